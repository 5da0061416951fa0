"""One checkpoint of the variables of several processes: worker 0 writes it, and asks the other workers for their parts.

    worker 0, in its Saver's save op                          worker 1, a thread that waits
    write full variables and own slices   part 0
    ask for the slices that are saved     ------------->      read them, write part 1
    merge the parts, which gives the file <-------------      written

Worker 0 saves at any time: in a hook, in the user's loop, after the last step. The other workers need not know. While
it saves it takes part in no step, so another worker has at most begun the next step, whose collectives wait for worker
0, and writes no variable before them: the thread reads the values after the step that worker 0 has finished. Worker 0
says how many steps it has done, and how its variables got their values since (`part_writes.py`). A worker that is
behind catches up first; one that is ahead, or that restored what worker 0 did not, refuses, and no file is published.
The variables live as long as the session, so a session of another worker closes after worker 0 has closed its own.

If a graph has several sessions, those of all workers that began as the first, second and so on belong together: the
save op is fed that number.

All processes see one file system, as with every TensorFlow checkpoint of several processes.
"""

import atexit
import contextlib
import json
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ops.job import Job, JobError
from epl.ops.waits import Limits, Wait, is_too_late
from epl.parallel.sharded_variables.part_writes import NOTHING, PartWrites, words
from epl.utils.errors import EplError
from epl.utils.script_end import ScriptEnd

# Reads a session's values of variables, given the names of their ops.
Read = Callable[[Sequence[str]], List[Any]]

PART = "{}_epl_parts/part-{:05d}-of-{:05d}"

_ASK, _WRITTEN = "parts of a checkpoint", "parts of a checkpoint are written"
_POLL_S = 0.2
_LIMIT_S = 300.0  # for a worker to reach the step of worker 0
# The errors of TensorFlow for a variable without a value, for either kind of variable.
_NOT_YET = (tf.errors.FailedPreconditionError, tf.errors.NotFoundError)


class CheckpointPartsError(EplError, RuntimeError):
    """A checkpoint could not be written, as another process could not write its part, or not in time."""


class CheckpointParts:
    """The work of one process for checkpoints of all processes: worker 0 asks, the other workers answer in a thread.

    It is one class because the events of sessions, the questions and the answers share a lock, sessions and steps.
    """

    def __init__(self, companion: Job, slices: Mapping[str, Tuple[str, str]], limits: Limits) -> None:
        """Starts the thread that answers, except on worker 0.

        Args:
          companion: of the processes, for this purpose alone.
          slices: those that this process writes: name of a variable op -> name of the full variable, slice.
          limits: of the waits for other processes.
        """
        self._process, self._processes = companion.process, companion.num_processes
        self._slices = dict(slices)
        self._companion = companion
        self._limits = limits
        self._changed = threading.Condition()
        # By the number of a session. Reads have the graph, which ends these parts when it is gone.
        self._reads: "weakref.WeakValueDictionary[int, Read]" = weakref.WeakValueDictionary()
        self._writes: Dict[int, PartWrites] = {}
        self._begun = 0
        self._steps = 0
        self._in_steps = 0  # in several threads
        self._steps_before: Dict[str, int] = {}  # of worker 0, by file, when it began to save
        self._closed_first: Set[int] = set()  # sessions that worker 0 has closed
        # The number of the session that saves; it has the graph, too.
        self._session: Callable[[], Optional[tf.Tensor]] = lambda: None
        self._over = False
        self._thread: Optional[threading.Thread] = None
        ScriptEnd.watch()
        atexit.register(self.leave)
        if self._process:
            self._thread = threading.Thread(target=self._serve, name="epl_checkpoint_parts", daemon=True)
            self._thread.start()

    # ---- Events of sessions.

    def attach(self, read: Read, writes: Optional[PartWrites] = None) -> int:
        """Notes that a session has begun.

        Args:
          read: reads its variables, in any thread, without a step of the plan. The caller keeps it.
          writes: tells how its variables got their values outside of steps.

        Returns:
          The number of the session.
        """
        with self._changed:
            number, self._begun = self._begun, self._begun + 1
            self._reads[number] = read
            self._writes[number] = writes or PartWrites()
            self._changed.notify_all()
            return number

    def feeds(self, session: int) -> Dict[tf.Tensor, np.ndarray]:
        """Further feeds for a run of a session."""
        tensor = self._session()
        return {} if tensor is None or not session else {tensor: np.asarray(session, np.int32)}

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Inside, this process runs a step of all processes; without an error, it has done the step after that."""
        self._note_step(1)
        try:
            yield
        except BaseException:
            self._note_step(-1)
            raise
        self._note_step(-1, 1)

    def _note_step(self, begun: int, done: int = 0) -> None:
        with self._changed:
            self._in_steps += begun
            self._steps += done
            self._changed.notify_all()

    def close(self, session: int = 0) -> None:
        """To be called before a session closes: worker 0 tells the other workers, which wait for that.

        Raises:
          JobError, CheckpointPartsError: a process is silent for too long.
        """
        wait = self._waiting("waits for worker 0 to close its session", without_end=True)
        failed = sys.exc_info()[0] not in (None, tf.errors.OutOfRangeError, StopIteration)
        with self._changed:
            if session not in self._reads or self._over:
                return
            if self._process:
                while not (failed or self._over or session in self._closed_first):
                    wait.look()
                    self._changed.wait(_POLL_S)
            del self._reads[session], self._writes[session]
        if not self._process and not failed:
            self._tell({"do": "close", "session": session})

    def leave(self) -> None:
        """Ends the connection; the end of the script calls it, on worker 0 also what ends with its graph.

        Other workers wait for worker 0 to leave, unless their script failed.
        """
        if self._thread is not None and ScriptEnd.failure() is None:
            wait = self._waiting("is done with its model and waits for worker 0", without_end=True)
            try:
                with self._changed:
                    while not self._over and self._thread.is_alive():
                        wait.look()
                        self._changed.wait(_POLL_S)
            except JobError as error:  # the exit code stays: the work of this process is done
                sys.stderr.write(f"EPL: {error}\n")
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._companion.stop()
        atexit.unregister(self.leave)

    # ---- Worker 0.

    def ask(self, filename: str, session: int, entries: Sequence[Tuple[str, str]]) -> List[str]:
        """Lets the other workers write their slices.

        Args:
          filename: of the checkpoint.
          session: number of the session that saves.
          entries: (key in the checkpoint, name of the full variable) of all sharded variables that are saved.

        Returns:
          Prefixes of the files that they have written.

        Raises:
          CheckpointPartsError: a process has failed, or left, or could not write, or is late.
        """
        with self._changed:
            state = self._state(session)
        steps = state["steps"]
        if self._steps_before.pop(filename, steps) != steps:
            raise CheckpointPartsError(
                "The checkpoint {!r} is not published: worker 0 has trained on while it was written, so that its parts "
                "are of different steps. Save between two steps, in the thread that trains.".format(filename)
            )
        self._tell({"do": "write", "file": filename, "entries": list(entries), "session": session, "state": state})
        wait = self._waiting(f"waits for the parts of the checkpoint {filename!r}", _WRITTEN)
        answers = [json.loads(answer.decode()) for answer in self._exchange(_WRITTEN, {"file": ""}, wait)[1:]]
        for worker, answer in enumerate(answers, 1):
            if answer.get("error"):
                raise CheckpointPartsError(
                    "Worker {} could not write its part of the checkpoint {!r}: {}".format(
                        worker, filename, answer["error"]
                    )
                )
            if answer["file"] and answer["steps"] != steps:
                raise CheckpointPartsError(_of_other_steps(f"worker {worker}", answer["steps"], steps))
        return [answer["file"] for answer in answers if answer["file"]]

    def own_prefix(self, filename: tf.Tensor) -> tf.Tensor:
        """Prefix of worker 0's own part of a checkpoint; makes its folder, as a sharded Saver's may not exist yet."""

        def prepared(name: bytes) -> bytes:
            prefix = PART.format(name.decode(), 0, self._processes)
            tf.io.gfile.makedirs(os.path.dirname(prefix))
            self._steps_before[name.decode()] = self._steps
            return prefix.encode()

        with tf.device("/cpu:0"):
            return tf.reshape(tf.numpy_function(prepared, [filename], tf.string), [])

    def merged(
        self, filename: tf.Tensor, own: tf.Tensor, write: Optional[tf.Operation], entries: Sequence[Tuple[str, str]]
    ) -> tf.Operation:
        """An op that merges all parts into the checkpoint.

        Args:
          filename: of the checkpoint.
          own: from `own_prefix`.
          write: writes worker 0's own part there; None if worker 0 has nothing to write.
          entries: as in `ask`.
        """
        with tf.device("/cpu:0"), tf.control_dependencies([own.op if write is None else write]):
            session = self._session()
            if session is None:
                with tf.control_dependencies(None):
                    session = tf.placeholder_with_default(0, [])
                self._session = weakref.ref(session)
            given = [filename, session]
            others = tf.numpy_function(lambda name, session: self._asked(name, session, entries), given, tf.string)
            first = [] if write is None else [[own]]
            prefixes = tf.concat(first + [tf.reshape(others, [-1])], axis=0)
            return tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes, destination_prefix=filename, delete_old_dirs=True
            )

    def _asked(self, filename: bytes, session: int, entries: Sequence[Tuple[str, str]]) -> np.ndarray:
        return np.asarray([name.encode() for name in self.ask(filename.decode(), int(session), entries)], object)

    def _tell(self, request: Dict[str, Any]) -> None:
        what = "asks for the parts of a checkpoint" if request["do"] == "write" else "closes its session"
        try:
            self._exchange(_ASK, request, self._waiting(what, _ASK))
        except CheckpointPartsError as error:
            if request["do"] != "close" or is_too_late(error.__cause__):  # a worker that has left need not be told
                raise

    def _exchange(self, key: str, message: Dict[str, Any], wait: Optional[Wait] = None) -> List[bytes]:
        try:
            return self._companion.exchange(key, json.dumps(message).encode(), wait.look if wait is not None else None)
        except JobError as error:
            raise CheckpointPartsError(
                f"Parts of the model are in other processes, and they cannot be asked for them: {error}"
            ) from error

    def _waiting(self, what: str, key: str = "", without_end: bool = False) -> Wait:
        """A wait for the other processes, in the exchange `key` if there is one."""

        def missing() -> List[int]:
            return self._companion.missing(key) if key else []

        return Wait(self._companion, self._limits, lambda: what, missing, without_end)

    # ---- Other workers.

    def _serve(self) -> None:
        """Answers the requests of worker 0 until it leaves."""
        while True:
            try:
                request = json.loads(self._exchange(_ASK, {})[0].decode())
                if request["do"] == "write":
                    self._exchange(_WRITTEN, self._answer(request))
            except CheckpointPartsError:
                self._end()
                return
            if request["do"] == "close":
                with self._changed:
                    self._closed_first.add(request["session"])
                    self._changed.notify_all()

    def _answer(self, request: Dict[str, Any]) -> Dict[str, Any]:
        try:
            return self._write(request)
        except Exception as error:  # worker 0 reports it to the user
            return {"error": f"{type(error).__name__}: {str(error)[:2000]}"}

    def _write(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Writes the requested slices; gives the prefix of the file, "" if there are no slices, and the steps done."""
        keys: Dict[str, List[str]] = {}
        for key, full_name in request["entries"]:
            keys.setdefault(full_name, []).append(key)
        wanted = [
            (variable, key, spec)
            for variable, (full_name, spec) in sorted(self._slices.items())
            for key in keys.get(full_name, ())
        ]
        if not wanted:
            return {"file": ""}
        state = request["state"]
        values = self._values([variable for variable, _, _ in wanted], request["session"], state)
        prefix = PART.format(request["file"], self._process, self._processes)
        write_slices(prefix, [(key, spec, value) for (_, key, spec), value in zip(wanted, values)])
        return {"file": prefix, "steps": state["steps"]}

    def _values(self, variables: Sequence[str], session: int, wanted: Dict[str, Any]) -> List[Any]:
        """The values in a session in the state of worker 0; waits until this process is there.

        Raises:
          CheckpointPartsError: it is elsewhere, and does not come there.
        """
        end = time.monotonic() + _LIMIT_S
        while True:
            with self._changed:
                while not self._over and time.monotonic() < end and self._is_behind(session, wanted):
                    self._changed.wait(_POLL_S)
                read = self._reads.get(session)
                if read is None:
                    raise CheckpointPartsError("it has no session that holds the variables.")
                self._refuse_other_state(session, wanted)
            try:
                values = read(variables)
            except _NOT_YET:
                if time.monotonic() > end:
                    raise
                time.sleep(_POLL_S)
                continue
            with self._changed:
                self._refuse_other_state(session, wanted)
            return values

    def _state(self, session: int) -> Dict[str, Any]:
        """How far a session is: steps of all processes, comparisons of writes, and writes since."""
        writes = self._writes.get(session)
        writes = writes or PartWrites()
        facts = {"compared": writes.comparisons, "writes": writes.last, "assigned": writes.assigned}
        return {"steps": self._steps, **facts}

    def _is_behind(self, session: int, wanted: Dict[str, Any]) -> bool:
        """Whether this process has less than worker 0, and may still come to the same."""
        if session not in self._reads:
            return True
        own = self._state(session)
        if own["steps"] < wanted["steps"] or own["compared"] < wanted["compared"]:
            return True
        assigned = self._different_assignments(session, wanted)
        if assigned:
            return not self._in_steps and all(mine < first for _, mine, first in assigned)
        different = self._different_writes(session, wanted)
        return bool(different) and not self._in_steps and all(first != NOTHING for _, _, first in different)

    def _different_writes(self, session: int, wanted: Dict[str, Any]) -> List[Tuple[str, int, int]]:
        """The variables that got their values in another way than in worker 0: name, way here, way there."""
        return _differences(self._state(session)["writes"], wanted["writes"], self._kept(session))

    def _different_assignments(self, session: int, wanted: Dict[str, Any]) -> List[Tuple[str, int, int]]:
        """The variables that more or fewer runs have assigned than in worker 0: name, runs here, runs there."""
        return _differences(self._state(session)["assigned"], wanted["assigned"], self._kept(session))

    def _kept(self, session: int) -> FrozenSet[str]:
        return self._writes[session].kept if session in self._writes else frozenset()

    def _refuse_other_state(self, session: int, wanted: Dict[str, Any]) -> None:
        """Raises CheckpointPartsError if the values are not of the step of worker 0, or have come in another way."""
        own = self._state(session)
        if own["steps"] != wanted["steps"]:
            raise CheckpointPartsError(_of_other_steps("it", own["steps"], wanted["steps"]))
        for name, mine, first in self._different_assignments(session, wanted)[:1]:
            if mine:  # 0: the way differs, too
                raise CheckpointPartsError(
                    "the file is not published, as its parts would not belong together: since the last step "
                    "{!r} was assigned by {} run(s) here, and by {} in worker 0, which saves. Assign in every worker, "
                    "and let all meet between a save and the next assignment: by a training step, or by a fetch of "
                    "the variable in every worker.".format(self._slices.get(name, (name,))[0], mine, first)
                )
        for name, mine, first in self._different_writes(session, wanted)[:1]:
            raise CheckpointPartsError(
                "the file is not published, as its parts would not belong together: since the last step {!r} has got "
                "its values in worker 0 by {}, and here by {}. Restore, initialize and assign in every worker before "
                "worker 0 saves, in a monitored session by tf.train.Scaffold(init_fn=...).".format(
                    self._slices.get(name, (name,))[0], words(first), words(mine)
                )
            )


def _differences(own: Mapping[str, int], first: Mapping[str, int], names: FrozenSet[str]) -> List[Tuple[str, int, int]]:
    """Those of `names` that two mappings give other numbers, 0 where they have none: name and both numbers."""
    pairs = [(name, own.get(name, 0), first.get(name, 0)) for name in sorted(names)]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _of_other_steps(who: str, steps: int, wanted: int) -> str:
    """The message for parts that are of another step than those of worker 0."""
    return (
        f"the file is not published, as its parts would be of different steps: {who} has done {steps} steps of all "
        f"workers, and worker 0 {wanted}. Save between two steps, in the thread that trains."
    )


def write_slices(prefix: str, entries: Sequence[Tuple[str, str, Any]]) -> None:
    """Writes (key, slice, value) into the checkpoint file `prefix`, in a graph of its own."""
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        tensors = [tf.placeholder(value.dtype, value.shape) for _, _, value in entries]
        write = tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[key for key, _, _ in entries],
            shape_and_slices=[spec for _, spec, _ in entries],
            tensors=tensors,
        )
        with tf.Session(graph=graph) as sess:
            sess.run(write, {tensor: value for tensor, (_, _, value) in zip(tensors, entries)})
