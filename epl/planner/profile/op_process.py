"""Measures ops in a process of its own (op_worker.py), which is started when it is first needed.

TensorFlow gives all sessions of a process the threads of the first one, and keeps the memory of a GPU; a process that
plans would not train as before.
"""

import contextlib
import os
import pickle
import select
import subprocess
import sys
from typing import Any, Optional

from epl.launcher import processes
from epl.parallel.costs.backward import Signature
from epl.planner.profile.op_timing import MeasuredDevice, MeasuredOp

_LONGEST = 120.0  # seconds that an op may take, the start of TensorFlow included
_END_SECONDS = 5.0


class OpProcess:
    """A process that measures ops on one device."""

    def __init__(self, device: MeasuredDevice, seconds: float = 0.1, longest: float = _LONGEST) -> None:
        """Nothing is started yet.

        Args:
          device: where ops are measured.
          seconds: how long each op, and each backward pass, is measured at least.
          longest: seconds after which an op is given up.
        """
        self._given = (device, seconds)
        self._longest = longest
        self._process: "Optional[subprocess.Popen[bytes]]" = None

    def measure(self, op: Signature) -> MeasuredOp:
        """Measures an op; one that fails, ends the process or takes too long has a problem."""
        try:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            pickle.dump(op, process.stdin)
            process.stdin.flush()
            if not select.select([process.stdout], [], [], self._longest)[0]:
                self.close()
                return MeasuredOp(None, None, f"it took more than {self._longest:.0f} s")
            found: Any = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            return MeasuredOp(None, None, f"the process that measured it ended with code {self._end(_END_SECONDS)}")
        return MeasuredOp(*found)

    def close(self) -> None:
        """Ends the process, if there is one; the next op starts another."""
        self._end(0.0)

    def _end(self, patience: float) -> Optional[int]:
        """Ends the process if it does not end by itself; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what it did not read
                if stream is not None:
                    stream.close()
        return code

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            # This process may have found EPL by its own sys.path alone.
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "epl.planner.profile.op_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(os.environ, PYTHONPATH=paths, TF_CPP_MIN_LOG_LEVEL="3"),
                start_new_session=True,  # a Ctrl-C in the terminal reaches this process alone
                preexec_fn=processes.die_with_parent,
            )
            assert self._process.stdin is not None
            pickle.dump(self._given, self._process.stdin)
        return self._process
