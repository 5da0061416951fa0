"""The process in which ops are measured: one that fails for want of memory, or crashes, ends this process alone.

    op_process.py --device, then one signature after the other--> this process --what was found--> op_process.py

Standard input and output carry pickled values; what TensorFlow prints goes to standard error.
"""

import os
import pickle
import sys

from epl.planner.profile.op_timing import MeasuredOp, measure


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    device, seconds = pickle.load(sys.stdin.buffer)
    while True:
        try:
            op = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            ((_, found),) = measure([op], device, seconds)
        except Exception as error:  # an op that cannot be measured is no reason to end
            found = MeasuredOp(None, None, f"{type(error).__name__}: {error}")
        pickle.dump(found, answers)
        answers.flush()


if __name__ == "__main__":
    main()
