"""A trial of a plan: the process times a few training steps, writes no checkpoints and events, and ends.

step    0 1         2 3 4 5 6
        warm up     timed          then TrialDone ends the script
"""

import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from epl.env import Env
from epl.ir.graph import Graph, first_tensor
from epl.ir.view import ancestor_ops

WARM_UP, TIMED = 2, 5  # training steps


class TrialDone(BaseException):
    """All steps of a trial are done; scripts that handle their own errors do not hold it up."""


class Trial:
    """The steps of a trial so far."""

    def __init__(self, folder: str) -> None:
        """Args: folder: takes what the script summarizes."""
        self.folder = folder
        self._times: List[float] = []
        self._known: Dict[Tuple[str, ...], bool] = {}  # what was run -> whether it trains

    @property
    def seconds(self) -> Optional[float]:
        """The median of the timed steps; None if the script ended before them."""
        return statistics.median(self._times[WARM_UP:]) if len(self._times) >= WARM_UP + TIMED else None

    def run(self, graph: Graph, wanted: Sequence[Any], step: Callable[[], Any]) -> Any:
        """What a run of some tensors and ops gives; one that needs gradients is a training step, and is timed.

        Raises:
          TrialDone: it was the last one, or one after it, of a script that goes on.
        """
        if not self._trains(graph, wanted):
            return step()
        begin = time.perf_counter()
        result = step()
        self._times.append(time.perf_counter() - begin)
        if len(self._times) >= WARM_UP + TIMED:
            raise TrialDone
        return result

    def _trains(self, graph: Graph, wanted: Sequence[Any]) -> bool:
        names = tuple(one.name for one in wanted)
        if names not in self._known:
            calls = graph.gradient_calls
            gradients = {first_tensor(gradient).op for call in calls for _, gradient in call.boundaries}
            needed = ancestor_ops(getattr(one, "op", one) for one in wanted)
            self._known[names] = not needed.isdisjoint(gradients)
        return self._known[names]


def summary_writer(original: Callable[..., None], writer: Any, logdir: Any, *args: Any, **kwargs: Any) -> None:
    """`tf.summary.FileWriter.__init__`: in a trial the events go to its folder."""
    trial = Env.get().trial
    original(writer, logdir if trial is None else trial.folder, *args, **kwargs)
