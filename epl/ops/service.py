"""How constructors and the processes that serve them stay in step: rounds, the end of training, and failure.

A process that serves runs no session, so nothing in its script tells it to open a communicator, to end a step or to
leave. It takes part in *rounds* instead: every process gives one message, and all get those of all. All
constructors give the same message, and the serving processes do what it says.

    constructor 0      open [stage 1]   opened   ... session ...   end step 7   ...   finished
    constructor 2      open [stage 1]   opened   ... session ...   end step 7   ...   finished
    serving 1, 3       serve            opened                     serve              serve

The service runs over a companion of the job, which outlives the collectives. A process that has finished its script
leaves the job but not the service, so that it sees failures of processes that still train. TensorFlow's servers and
sessions are in `epl/runtime/server.py`.
"""

import functools
import json
import sys
import threading
import time
from typing import Any, Callable, Counter, Dict, List, NamedTuple, Optional, Sequence, Tuple

from epl.ops.job import Job, JobError
from epl.ops.waits import Limits, Wait
from epl.utils.last_words import LastWords, has_launcher, tell_failure
from epl.utils.script_end import ScriptEnd

_FAILED = 13  # the core's code for the failure of a process
_LEFT = 9  # and for a process that left in good order
# A process that has finished its script keeps the job so long, for collectives of the last step that still go on.
_LAST_STEP_S = 10.0
# The process that failed ends before those that end because of it. EPL tells epl-launch whose failure it was; other
# programs that start workers (Slurm, say) take the first process that ends for the cause.
_CAUSE_FIRST_S = 2.0
_DIED = "died or was lost"  # the core's text for a process that has ended already

_KINDS = ("serve", "open", "opened", "end step", "exchange", "finish")

Message = Dict[str, Any]


class CommunicatorSpec(NamedTuple):
    """A communicator that processes open: see `epl.ops.communicator.Communicator`."""

    name: str
    rank_process: Tuple[int, ...]
    transport: str = "auto"


class Service:
    """The rounds of one process, and its watch over the others."""

    def __init__(self, job: Job, limits: Limits) -> None:
        """Joins the other processes; blocks until all have called it.

        Args:
            job: the job of the processes.
            limits: those of every wait for other processes.
        """
        self._job = job
        self._limits = limits
        self._companion = job.companion()
        self._failure: Optional[str] = None
        self._failed = threading.Event()
        self._over = False
        self._forgotten: List[str] = []  # communicators that serving processes still have
        self._rounds = threading.Lock()
        threading.Thread(target=self._watch, name="epl_service_watch", daemon=True).start()

    @property
    def job(self) -> Job:
        """The job whose collectives are served."""
        return self._job

    @property
    def over(self) -> bool:
        """Whether this process has left."""
        return self._over

    def failure(self, patience: float = 0.0) -> Optional[str]:
        """Which process has failed and why, in words; None if all are well.

        Args:
            patience: seconds to wait. A process may see the consequence of a failure before it hears of the failure.
        """
        self._failed.wait(patience)
        return self._failure

    def check(self) -> None:
        """Raises JobError if a process has failed."""
        if self._failure is not None:
            raise JobError(self._failure, code=_FAILED)

    def waiting(self, what: Callable[[], str], missing: Callable[[], List[int]] = list, **options: bool) -> Wait:
        """A wait for processes of the service; see `Wait`."""
        return Wait(self._companion, self._limits, what, missing, **options)

    # ---- What constructors do.

    def open(self, communicators: Sequence[CommunicatorSpec]) -> None:
        """Opens communicators, in this order, in every process that owns a rank; all constructors make the same call.

        Serving processes end first what all constructors have forgotten.

        Raises:
            JobError: a process has failed, or the constructors differ.
        """
        specs = [[spec.name, list(spec.rank_process), spec.transport] for spec in communicators]
        forgotten, self._forgotten = self._forgotten, []
        self._agree({"do": "open", "communicators": specs, "forgotten": forgotten})
        self._open(specs)
        self._agree({"do": "opened"})

    def forget(self, names: Sequence[str]) -> None:
        """Ends communicators that no session of this constructor needs any more; `open` tells those that serve them."""
        self._end(names)
        self._forgotten += names

    def end_generation(self, reason: str, generation: int) -> None:
        """`Job.end_generation` in every process; all constructors call it, as their common step has failed.

        Raises:
            JobError: a process has failed, or the constructors differ.
        """
        # Here first: this makes the steps of the other constructors fail.
        self._job.end_generation(reason, generation)
        self._agree({"do": "end step", "generation": generation, "reason": reason})

    def exchange(self, key: str, text: str) -> List[Optional[str]]:
        """Gives text to the other constructors and gets theirs, by process; None for those that serve.

        Raises:
            JobError: a process has failed, or the constructors differ in `key`.
        """
        messages = self._agree({"do": "exchange", "key": key, "text": text})
        return [message.get("text") for message in messages]

    def finish(self) -> None:
        """The script of this constructor has ended in good order: waits for the others to end too, then leaves."""
        # Without a thread for the round, processes that still train could not learn that this one is gone.
        end = time.monotonic() + _LAST_STEP_S

        def leave_job() -> None:
            if time.monotonic() > end:
                self._job.stop()

        if self._over:
            return
        try:
            self._agree({"do": "finish"}, leave_job)
        except JobError as error:
            # The exit code stays: this process has done its work.
            sys.stderr.write(f"EPL: worker {self._job.process} has ended its script, and {error}\n")
        self.leave()

    # ---- What serving processes do.

    def serve(self) -> None:
        """Does what the constructors say until they have finished.

        Raises:
            JobError: a process has failed; the message names it and the cause.
        """
        times_forgotten: Counter[str] = Counter()
        while True:
            messages = [message for message in self._round({"do": "serve"}) if message["do"] != "serve"]
            message = messages[0]
            if message["do"] == "open":
                times_forgotten.update(name for one in messages for name in one.get("forgotten", ()))
                ended = [name for name, times in times_forgotten.items() if times == len(messages)]
                self._end(ended)
                for name in ended:
                    del times_forgotten[name]
                self._open(message["communicators"])
                self._round({"do": "opened"})
            elif message["do"] == "end step":
                self._job.end_generation(message["reason"], message["generation"])
            elif message["do"] == "finish":
                return

    # ---- What both do.

    def leave(self) -> None:
        """Leaves the service and the job, in good order unless the script fails. Later calls do nothing."""
        if self._over:
            return
        self._over = True
        failure = ScriptEnd.failure() if self._companion.alive else None  # a fork has nothing to say
        if failure is not None:
            # The job may learn the first failure later than its companion.
            tell_failure(LastWords(failure, self._companion.first_failure))
        if self._failure is not None and _DIED not in self._failure and not has_launcher():
            time.sleep(_CAUSE_FIRST_S)
        if failure is not None:
            self._companion.abort(failure)
        self._companion.stop()
        self._job.stop_at_exit()

    def _open(self, specs: Sequence[Sequence[Any]]) -> None:
        for name, rank_process, transport in specs:
            if self._job.process in rank_process and len(rank_process) > 1:
                self._job.create_communicator(name, rank_process, transport)

    def _end(self, names: Sequence[str]) -> None:
        for name in names:
            self._job.destroy_communicator(name)

    def _agree(self, mine: Message, look: Optional[Any] = None) -> List[Message]:
        """A round of a constructor; fails if another constructor gives something else."""
        messages = self._round(mine, look)
        for worker, message in enumerate(messages):
            if message["do"] != "serve" and _what(message) != _what(mine):
                raise JobError(
                    "worker {} {}, and worker {} {}: constructors must run the same steps. Give every worker equally "
                    "much to do, or end all of them by the end of their data.".format(
                        self._job.process, _words(mine), worker, _words(message)
                    ),
                    code=_LEFT,
                )
        return messages

    def _round(self, mine: Message, look: Optional[Any] = None) -> List[Message]:
        """Gives a message and returns those of all processes; fails with the reason if a process has failed."""
        wait = self.waiting(
            lambda: f"{_words(mine)} and waits for the others",
            functools.partial(self._companion.missing, "round"),
            without_end=mine["do"] in ("serve", "finish"),
            quiet=mine["do"] == "serve",
        )

        def look_around() -> None:
            self.check()
            wait.look()
            if look is not None:
                look()

        with self._rounds:
            self.check()
            try:
                parts = self._companion.exchange("round", json.dumps(mine).encode(), look_around)
            except JobError as error:
                raise JobError(self.failure(patience=1.0) or str(error), error.code) from None
        return [_read(worker, part) for worker, part in enumerate(parts)]

    def _watch(self) -> None:
        """Waits for a failure: takes part in an exchange that nobody else joins, so that only a failure ends it."""
        try:
            self._companion.exchange(f"watch of worker {self._job.process}", b"")
        except JobError as error:
            # The exchange is an internal detail: it is cut off the message.
            news = str(error).split(" while worker ")[0]
            if not self._over and not (error.code == _LEFT and "has left" in news):
                self._failure = news
                self._failed.set()


def _read(worker: int, part: bytes) -> Message:
    """A message as it came over the wire."""
    try:
        message = json.loads(part.decode())
    except ValueError:
        message = None
    if not isinstance(message, dict) or message.get("do") not in _KINDS:
        raise JobError(f"worker {worker} sent what makes no sense in a round: {part[:80]!r}", code=_FAILED)
    return message


def _what(message: Message) -> Tuple[Any, ...]:
    """The part of a message on which constructors must agree."""
    return tuple(message.get(key) for key in ("do", "communicators", "generation", "key"))


def _words(message: Message) -> str:
    return {
        "serve": "serves",
        "open": "opens the communicators {}".format([spec[0] for spec in message.get("communicators", ())]),
        "opened": "has opened its communicators",
        "end step": "ends step {} ({})".format(message.get("generation"), message.get("reason")),
        "exchange": "compares {}".format(message.get("key")),
        "finish": "has ended its script",
    }[message["do"]]
