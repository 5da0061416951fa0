"""How the script of this process ends, as far as Python tells before it leaves: in good order, or with which failure.

`atexit` alone cannot tell: its functions run after a normal end and after an exception alike. Here the exception that
ends the script is noted; who has something to say to other processes at exit asks `failure`, and the launcher is told
in any case. What ends the process without Python (a signal, `os._exit`) others notice by themselves.
"""

import atexit
import ctypes
import gc
import os
import sys
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional, Type

from epl.utils.last_words import LastWords, tell_failure

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
            # TensorFlow's errors end with where the op was made, which only this process's log needs.
            text = str(error).split("\n\nOriginal stack trace for ")[0]
            cls._failure = f"{kind.__name__}: {text}"[:_LONGEST]
            excepthook(kind, error, trace)

        def note_status(status: Any) -> None:
            cls._failure = None if status is None or status == 0 else f"sys.exit({status!r})"[:_LONGEST]

        def leave_by_exception(status: Any = None) -> NoReturn:
            try:
                leave(status)
            except SystemExit:  # an object only now: until it is caught, it is a status without the attribute `code`
                raise

        sys.excepthook, sys.exit = noting_excepthook, leave_by_exception
        _tell_status_at_exit(note_status)
        pid = os.getpid()

        def tell_launcher() -> None:
            if cls._failure is not None and os.getpid() == pid:
                tell_failure(LastWords(cls._failure, None))

        atexit.register(tell_launcher)  # first, so it runs last: whoever knows more has told it by then

    @classmethod
    def failure(cls) -> Optional[str]:
        """The exception or the `sys.exit` with which the script ends; None if it ends in good order."""
        return cls._failure


def _tell_status_at_exit(tell: Callable[[Any], None]) -> None:
    """Has `tell` called with the status of the SystemExit that ends this process, whoever raised it and how.

    Python tells nobody about it; but it reads the attribute `code` of the exception then, and it alone does so while
    no Python function runs. So a property takes the place of the attribute, which gives and takes the same values.
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
