"""An all-reduce alone, through a session, for Horovod and EPL.

Usage: collective.py LIBRARY ELEMENTS.... Requests: ``{"elements": n, "steps": k, "warm_up": w}`` runs all-reduces of n
float32 values, one per session.run, and answers with the seconds they took.
"""

import sys

import tensorflow.compat.v1 as tf

from benchmarks import control
from benchmarks.workers import libraries


def main() -> None:
    """Builds one all-reduce per size, checks each against the known sum and serves the driver."""
    library = libraries.load(sys.argv[1])
    reduced = {}
    for elements in (int(argument) for argument in sys.argv[2:]):
        value = tf.get_variable(
            "value_%d" % elements, [elements], initializer=tf.constant_initializer(library.rank + 1.0)
        )
        reduced[elements] = library.all_reduce(value.read_value())
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
    session.run(tf.global_variables_initializer())
    for elements in sorted(reduced):
        result = session.run(reduced[elements])
        if not (result == 3.0).all():
            raise ValueError(
                "%s: the all-reduce of %d values gave %s, expected 3.0 everywhere" % (sys.argv[1], elements, result)
            )

    def answer(request: control.Message) -> control.Message:
        # The op, not its output: what the reduction costs, without a copy to NumPy.
        step = session.make_callable(reduced[request["elements"]].op)
        return control.timed(step, request["steps"], request["warm_up"])

    control.serve(library.rank, answer)


if __name__ == "__main__":
    main()
