"""How the script of this process ends, as far as Python knows: in good order, or with which failure.

`atexit` alone cannot tell: its functions run after a normal end and after an exception. This module notes the exception
that ends the script. Code that tells other processes at exit calls `failure`; the launcher is told in any case. If the
process ends without Python (a signal, `os._exit`), other processes notice that by themselves.
"""

import atexit
import ctypes
import gc
import os
import sys
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional, Type

from epl.utils.last_words import LastWords, tell_failure
from epl.utils.op_errors import cause_of

_LONGEST = 2000  # characters of a cause


class ScriptEnd:
    """What is known about the end of this process's script."""

    _watching = False
    _failure: Optional[str] = None

    @classmethod
    def watch(cls) -> None:
        """From now on notes how the script ends; a second call does nothing."""
        if cls._watching:
            return
        cls._watching = True
        excepthook, leave = sys.excepthook, sys.exit

        def noting_excepthook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
            # Only this process's log needs the places where ops were made.
            cls._failure = f"{kind.__name__}: {cause_of(error)}"[:_LONGEST]
            excepthook(kind, error, trace)

        def note_status(status: Any) -> None:
            cls._failure = None if status is None or status == 0 else f"sys.exit({status!r})"[:_LONGEST]

        def leave_by_exception(status: Any = None) -> NoReturn:
            try:
                leave(status)
            except SystemExit:  # an object only here: before it is caught, it is a status without the attribute `code`
                raise

        sys.excepthook, sys.exit = noting_excepthook, leave_by_exception
        _tell_status_at_exit(note_status)
        pid = os.getpid()

        def tell_launcher() -> None:
            if cls._failure is not None and os.getpid() == pid:
                tell_failure(LastWords(cls._failure, None))

        atexit.register(tell_launcher)  # first, so it runs last: code that knows more has told the launcher by then

    @classmethod
    def failure(cls) -> Optional[str]:
        """The exception or the `sys.exit` with which the script ends; None if it ends in good order."""
        return cls._failure


def _tell_status_at_exit(tell: Callable[[Any], None]) -> None:
    """Calls `tell` with the status of the SystemExit that ends this process, wherever it was raised.

    Python has no hook for it. But Python itself then reads the attribute `code` of the exception, and only this read
    happens while no Python function runs. So a property with the same values replaces the attribute.
    """
    code = SystemExit.__dict__["code"]

    def read(error: SystemExit) -> Any:
        status = code.__get__(error)
        if sys._getframe().f_back is None:
            tell(status)
        return status

    (attributes,) = gc.get_referents(SystemExit.__dict__)  # what the read-only view shows
    attributes["code"] = property(read, code.__set__, code.__delete__, code.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
