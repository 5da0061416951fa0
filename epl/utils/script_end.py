"""How the script of this process ends, as far as Python tells before it leaves: in good order, or with which failure.

`atexit` alone cannot tell: its functions run after a normal end and after an exception alike. Here the exception that
ends the script and the argument of `sys.exit` are noted; who has something to say to other processes at exit asks
`failure`. What ends the process without Python (a signal, `os._exit`) others notice by themselves.
"""

import sys
import threading
from types import TracebackType
from typing import Any, NoReturn, Optional, Type

_LONGEST = 2000  # characters of a cause


class ScriptEnd(object):
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
            cls._failure = "{}: {}".format(kind.__name__, text)[:_LONGEST]
            excepthook(kind, error, trace)

        def noting_exit(status: Any = None) -> NoReturn:
            # In another thread it ends that thread alone.
            if threading.current_thread() is threading.main_thread():
                cls._failure = None if status is None or status == 0 else "sys.exit({!r})".format(status)[:_LONGEST]
            leave(status)

        sys.excepthook, sys.exit = noting_excepthook, noting_exit

    @classmethod
    def failure(cls) -> Optional[str]:
        """The exception or the `sys.exit` with which the script ends; None if it ends in good order."""
        return cls._failure
