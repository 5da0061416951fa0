"""One worker of a job that trains models whose stages lie in several workers: spanning_training.py <directory>.

It runs the cases of <directory>/cases.json, one after the other, and leaves in <directory>/<case>_<worker> what the
script recorded. A worker that serves is caught at the end of each case, so that it takes part in the next one.
"""

import contextlib
import importlib
import json
import os
import pickle
import sys
from typing import Any, Iterator

import tensorflow.compat.v1 as tf

import epl
from tests.parity.context import PLAN, Context


class SpanningContext(Context):
    """What a script sees in a constructor: `workers` counts the constructors, `worker` is this one's place in them."""

    def __init__(self, worker: int, case: Any, directory: str) -> None:
        constructors = case["constructors"]
        place = constructors.index(worker) if worker in constructors else -1
        super().__init__(PLAN, len(constructors), 1, case.get("together", 1), max(place, 0), directory)
        self.is_constructor = place >= 0
        self._case = case

    def init(self, annotate: bool = True, **config: Any) -> None:
        """Each worker has as many devices as the case says, however many a replica has."""
        config["cluster__num_virtual_devices"] = self._case["devices"]
        super().init(annotate, **config)
        if "layout" in self._case:
            epl.Cluster(layout=self._case["layout"]).__enter__()


@contextlib.contextmanager
def until_the_end_of_the_training(context: SpanningContext) -> Iterator[None]:
    """The end of a script of one training, without the end of the process."""
    try:
        yield
    except SystemExit as end:
        assert end.code == 0 and not context.is_constructor, "this worker served, with code %s" % end.code
        context.record(served=True)
    else:
        assert context.is_constructor, "this worker drove the model"
        epl.Env.get().process_server.leave()


def main() -> None:
    tf.logging.set_verbosity(tf.logging.ERROR)
    directory = sys.argv[1]
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    with open(os.path.join(directory, "cases.json")) as source:
        cases = json.load(source)
    for name, case in cases.items():
        print("---- case", name, flush=True)
        context = SpanningContext(worker, case, directory)
        tf.reset_default_graph()
        module, _, function = case["script"].rpartition(".")
        with until_the_end_of_the_training(context):
            getattr(importlib.import_module(module), function)(context, **case["arguments"])
        with open(os.path.join(directory, "%s_%d" % (name, worker)), "wb") as out:
            pickle.dump(context.results, out)


if __name__ == "__main__":
    main()
