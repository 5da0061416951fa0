"""A job of which only this process is there: to plan for workers and devices that nobody has to start.

Whatever the processes would tell each other, all of them tell what this one does. No port is opened, nothing runs.
"""

import ctypes
import os
from typing import Any, Callable, List, Optional, Sequence

from epl.ops.job import Job


class ImaginedJob(Job):
    """A job whose other processes agree with this one, and which has no collectives."""

    is_imagined = True

    def __init__(self, hosts: Sequence[str]) -> None:
        """Args: hosts: "host:port" of each process; this is the first of them."""
        super().__init__(ctypes.c_void_p(), hosts, 0)

    @classmethod
    def begin(cls, hosts: Sequence[str]) -> "ImaginedJob":
        """Makes the job the current one; `epl.init` with these hosts finds it."""
        job = Job._current = cls(hosts)
        return job

    @property
    def alive(self) -> bool:
        """Whether it was not stopped."""
        return self._handle is not None and self._pid == os.getpid()

    def companion(
        self, members: Optional[Sequence[int]] = None, tell: Optional[Callable[[str, str], str]] = None
    ) -> Job:
        """The job itself: nothing is sent."""
        return self

    def exchange(self, key: str, data: bytes, look: Optional[Callable[[], None]] = None) -> List[bytes]:
        """The bytes of this process, once for each process."""
        return [data] * self.num_processes

    def create_communicator(self, name: str, rank_process: Sequence[int], transport: str) -> str:
        """Makes none; returns the transport that was asked for."""
        return transport

    def destroy_communicator(self, name: str) -> None:
        """There is none."""

    def abort(self, reason: str) -> None:
        """There is no process to be told."""

    def stop(self) -> None:
        """Ends the job."""
        self._handle = None
        if Job._current is self:
            Job._current = None

    def __exit__(self, *unused: Any) -> None:
        self.stop()
