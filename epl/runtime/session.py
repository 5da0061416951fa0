"""Session.run under a plan: keeps variables equal, runs what is planned, tells the other processes when it fails."""

import contextlib
import functools
import logging
import os
import threading
import weakref
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Set, Type

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ops.job import Job
from epl.parallel.replication.metric_variables import MetricVariables
from epl.parallel.replication.replica_rows import SHOWS, sentence
from epl.parallel.replication.run_kinds import VARIABLES
from epl.parallel.rewriting.context import PartWritesCheck, RewriteContext, VariableSync
from epl.parallel.sharded_variables.checkpoints import Checkpoints
from epl.parallel.sharded_variables.fetching import ShardFetches
from epl.parallel.sharded_variables.part_writes import PartWrites, refuse_different
from epl.parallel.sharded_variables.variables import InitializedValue
from epl.runtime.feeds import FeedSharing
from epl.runtime.replica_check import ReplicaCheck
from epl.runtime.run_plan import RunPlan, RunPlanner
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.op_errors import cause_of
from epl.utils.slow import told_when_slow

logger = logging.getLogger("epl")

# How TensorFlow runs ops once fetches and feeds are resolved:
# (session, handle, targets, fetches, feeds, options, metadata) -> values
RawRun = Callable[..., List[Any]]

_FIRST_NAMES = 5  # of a long list in a message
_FEW_NAMES = 2  # of what a run is asked for
_LONGEST_REASON = 2000  # characters
_NO_VALUE = "a variable has no value: "  # begins a reason


class SessionState:
    """What one session has done to the variables of a rewritten graph."""

    def __init__(self, check: Optional[PartWritesCheck]) -> None:
        self.replicas_current = False  # the other local replicas hold replica 0's values
        self.processes_current = False  # this process holds rank 0's values
        self.initialized: Set[str] = set()  # variables that are known to have a value
        self.ran: Set[int] = set()  # ids of plans, which live as long as the graph
        self.number = 0  # for the checkpoints of parts in several processes
        self.part_writes = PartWrites(frozenset() if check is None else check.kept)


class GraphRunner:
    """Runs sessions of one rewritten graph.

    It is one class because planning, feeding and writing of one run use the same lock, session and raw run.
    """

    def __init__(self, rewrite: RewriteContext, raw: RawRun) -> None:
        """Keeps `raw`, TensorFlow's own way to run ops."""
        self._raw = raw
        self._follow(rewrite)
        self._states: "weakref.WeakKeyDictionary[tf.Session, SessionState]" = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._replica_lock = threading.Lock()
        self._pid = os.getpid()

    def _follow(self, rewrite: RewriteContext) -> None:
        self.rewrite = rewrite
        self._fetches = rewrite.graph.state_of(ShardFetches)
        self._checkpoints = rewrite.graph.state_of(Checkpoints)
        self.feeds = FeedSharing(rewrite)
        self._planner = RunPlanner(rewrite)
        self._replica_check = ReplicaCheck(rewrite)

    def go_on_with(self, rewrite: RewriteContext) -> None:
        """Runs sessions of the graph as it was rewritten again: variables that were added are not equal yet."""
        with self._replica_lock, self._lock:
            self._follow(rewrite)
            for state in self._states.values():
                state.replicas_current = state.processes_current = False
                state.ran.clear()

    def refuse_fork(self) -> None:
        """Raises PlanError in a fork of the process that ran the graph first: TensorFlow's threads are not there."""
        if os.getpid() != self._pid:
            raise PlanError(
                "Session.run was called in process {}, a fork of process {}, which has run the graph already. A fork "
                "has none of TensorFlow's threads, and would wait for ever. Start such processes before the first "
                "Session.run, or by the method spawn, and let them use no session of their parent.".format(
                    os.getpid(), self._pid
                )
            )

    def run(
        self,
        session: tf.Session,
        targets: Sequence[tf.Operation],
        fetches: Sequence[tf.Tensor],
        feeds: Dict[tf.Tensor, Any],
        options: Any,
        metadata: Any,
    ) -> List[Any]:
        """What the user asked for, on all replicas that it concerns."""
        plan = self._planner.plan_run(fetches, targets, feeds)
        self._tell_own_rows(plan)
        chosen = self._chosen(session, plan.choices)
        if not plan.first and not chosen:
            return self._run(session, plan, fetches, feeds, {}, options, metadata)
        first = tuple(dict.fromkeys([*plan.first, *chosen.values()]))
        reads = {} if self._fetches is None else self._fetches.reads
        others = [op for tensor in first for op in reads.get(tensor, ())]
        plan = self._planner.plan_run(first, others, ())
        values = dict(zip(first, self._run(session, plan, first, {}, {}, None, None)))
        known = {tensor: value for tensor, value in values.items() if tensor not in reads}
        for choice, variable in chosen.items():
            known.update(dict.fromkeys(choice.flags, np.bool_(True)))
            known.update(dict.fromkeys(choice.reads, values[variable]))
        values.update(known)
        wholes = {copy: np.asarray(value) for t, value in known.items() for copy in self.feeds.copies(t)}
        targets = [op for op in targets if op not in others]
        found = {tensor.name: value for tensor, value in values.items()}
        rest = [tensor for tensor in fetches if tensor.name not in found]
        if rest or targets:
            plan = self._planner.plan_run(rest, targets, feeds, wholes)
            results = self._run(session, plan, rest, feeds, wholes, options, metadata)
            found.update((tensor.name, result) for tensor, result in zip(rest, results))
        return [found[tensor.name] for tensor in fetches]

    def _chosen(self, session: tf.Session, choices: Sequence[InitializedValue]) -> Dict[InitializedValue, tf.Tensor]:
        """The choices whose variables have a value, and what gives it."""
        fetches = self._fetches
        if not choices or fetches is None:
            return {}
        checks = {sync.variable: sync.is_initialized for sync in self.rewrite.syncs}
        flags = [op.outputs[0] for op in self._ops([checks[choice.shard] for choice in choices])]
        has_value = self._raw(session, None, [], flags, {}, None, None)
        return {choice: fetches.fetch_value(choice.variable).tensor for choice, has in zip(choices, has_value) if has}

    def _run(
        self,
        session: tf.Session,
        plan: RunPlan,
        fetches: Sequence[tf.Tensor],
        feeds: Dict[tf.Tensor, Any],
        wholes: Dict[tf.Tensor, Any],
        options: Any,
        metadata: Any,
    ) -> List[Any]:
        """As `run`, for the plan of what has a value at any time of the run; `wholes`: fed as they are."""
        state = self._state(session)
        self.feeds.refuse_unused_parts(feeds, plan.unneeded, plan.shares_feeds)
        if plan.shares_feeds:
            feeds = self.feeds.share(feeds, plan.unneeded)
        elif plan.repeats_feeds:
            feeds = self.feeds.repeat(feeds)
            sharded = self.rewrite.sharded
            for owner in () if sharded is None else sharded.owners.values():
                owner.refuse_replicated_rows([*fetches, *plan.written.values], plan.differentiates)
                if not plan.differentiates:
                    for tensor, by_rank in owner.primary_ranks().items():
                        feeds.update(self.feeds.by_replica(tensor, by_rank))
        feeds = dict(feeds)
        if self.rewrite.counted and not plan.counts_rows:
            for weight in self.rewrite.weights:
                feeds.setdefault(weight, np.asarray(1.0))
        if plan.has_whole_batch and self.rewrite.batch_count is not None:
            feeds[self.rewrite.batch_count] = np.asarray(1, np.int64)
            feeds.update(dict.fromkeys(self.rewrite.batch_checks, np.asarray(True)))
        feeds.update(dict.fromkeys(plan.barriers, np.asarray(True)))
        feeds.update(wholes)
        if self._checkpoints is not None:
            feeds.update(self._checkpoints.feeds(state.number))

        gathers = self._fetches is not None and not self._fetches.gathered.isdisjoint(plan.fetches)

        def run_step() -> List[Any]:
            if plan.is_collective:
                self._take_values_of_rank_0(session, state)
            elif gathers:
                self._compare_part_writes(session, state)
            if plan.copies_first:
                self._copy_to_replicas(session, state)
            with self._told_when_slow(state, plan, fetches):
                result = self._raw(session, None, plan.targets, plan.fetches, feeds, options, metadata)
            state.initialized |= plan.initializes
            state.part_writes.note(plan.part_writes)
            state.replicas_current &= not plan.writes_replica_0_alone
            state.processes_current &= not plan.writes_process_alone
            state.replicas_current &= not plan.written.differs_between_replicas
            state.processes_current &= not plan.written.differs_between_processes
            if plan.is_collective and plan.trains:
                self._replica_check.step_done(self._reader(session))
            return result

        if plan.is_collective:
            if self._checkpoints is None:
                return self._collectively(run_step)
            with self._checkpoints.step():
                return self._collectively(run_step)
        if gathers:
            run_step = functools.partial(self._gathering, run_step)
        if plan.uses_replicas and not (plan.only_stages and state.replicas_current):  # it may wait for another thread
            with self._replica_lock:
                return run_step()
        return run_step()

    def _told_when_slow(
        self, state: SessionState, plan: RunPlan, fetches: Sequence[tf.Tensor]
    ) -> ContextManager[object]:
        """In the first run of a plan TensorFlow prepares the ops for it."""
        if id(plan) in state.ran:
            return contextlib.ExitStack()
        state.ran.add(id(plan))
        names = [tensor.op.name for tensor in fetches] + [op.name for op in plan.targets]
        what = "TensorFlow prepares {:,} ops for the first run of {}, unless the run waits for data".format(
            tf_compat.num_nodes(self.rewrite.tf_graph), ", ".join(names[:_FEW_NAMES])
        )
        return told_when_slow(what, self.rewrite.cluster.worker_index)

    def closing(self, session: tf.Session) -> None:
        """The session is about to close."""
        with self._lock:
            state = self._states.pop(session, None)
        if state is not None and self._checkpoints is not None:
            self._checkpoints.session_closes(state.number)

    def _tell_own_rows(self, plan: RunPlan) -> None:
        """Warns of what a run writes, fetches or differentiates that depends on a replica's rows: once of each line."""
        rewrite = self.rewrite
        new = [one for one in plan.own_rows if rewrite.graph.says_first(f"rows: {one.kind} {one}")]
        if new:
            level = logging.INFO if all(one.kind == SHOWS for one in new) else logging.WARNING
            if rewrite.cluster.worker_index == rewrite.plan.owners[0]:
                logger.log(
                    level, "The step is not that of one device on all rows: %s. epl.explain(...) lists all of it; "
                    "docs/data_parallelism.md says what to do. This is said once.", sentence(new),
                )  # fmt: skip

    def say_whose_metrics(self, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str]) -> None:
        """Warns once if Keras is to report what replica 0 computed of its rows alone; all by name."""
        metrics = self.rewrite.graph.state_of(MetricVariables) or MetricVariables()
        merged = metrics.updated.union(name.partition(":")[0] for name in self.rewrite.merged)
        own = [name for name in fetches if name.partition(":")[0] not in merged]
        if self.rewrite.local_replicas == 1 or not own:
            return
        if self._plan_of_names(fetches, targets, feeds).shares_feeds and Env.get().says_first("Keras metrics"):
            logger.warning(
                "tf.keras trains with %d replicas in this process. The loss that it reports is that of all rows; its "
                "metrics (%s) are those of the rows of replica 0. Model.evaluate gives them for all rows. This is said "
                "once.",
                self.rewrite.local_replicas, ", ".join(own),
            )  # fmt: skip

    def batch_of(
        self, read: Callable[[], List[Any]], fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str]
    ) -> List[Any]:
        """Reads the batch of a run, given by names; where the data ends before a step, it ends for all workers."""
        if not self._plan_of_names(fetches, targets, feeds).is_collective:
            return read()
        return self._telling_others(read, tf.errors.OutOfRangeError)

    def _plan_of_names(self, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str]) -> RunPlan:
        tf_graph = self.rewrite.tf_graph
        return self._planner.plan_run(
            [tf_graph.get_tensor_by_name(name) for name in fetches],
            [tf_graph.get_operation_by_name(name) for name in targets],
            [tf_graph.get_tensor_by_name(name) for name in feeds],
        )

    def begin(self, session: tf.Session, restore: Callable[[], None]) -> None:
        """Prepares a new session for hooks: `restore`, whose failure the others are told, then the values of rank 0."""
        if self.rewrite.plan.workers > 1:
            self._telling_others(restore)
        self.take_values_of_rank_0(session)

    def take_values_of_rank_0(self, session: tf.Session) -> None:
        """Gives this process rank 0's values now: a hook may read the global step before the first training step."""
        state = self._state(session)
        if self.rewrite.broadcasts or self.rewrite.part_writes is not None:
            self._collectively(lambda: self._take_values_of_rank_0(session, state))

    def _collectively(self, run_step: Callable[[], Any]) -> Any:
        """Runs a step that needs other replicas; if it fails here, those that wait for this process are told.

        One at a time: the order of collectives is fixed within a step, not between steps of several threads.
        """
        with self._replica_lock:
            return self._telling_others(run_step, tf.errors.OutOfRangeError)

    def _gathering(self, run_step: Callable[[], Any]) -> Any:
        """Runs what is no step but has collectives; a variable without a value fails in the same way everywhere."""
        try:
            return self._telling_others(run_step, tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError)
        except tf.errors.OutOfRangeError as error:
            if _NO_VALUE not in error.message:
                raise
            # Of another process, which has found it first.
            raise tf.errors.FailedPreconditionError(error.node_def, error.op, error.message) from None

    def _telling_others(self, run_step: Callable[[], Any], *ends: Type[tf.errors.OpError]) -> Any:
        """Runs what others take part in; if it fails here, they are told.

        Args:
          run_step: what to run.
          ends: errors that end the step in all processes. Where there are others, any other error ends the job.
        """
        job = Job.current()
        if job is None:
            raise PlanError("The job has ended (Job.stop, or epl.init for other workers): build the model again.")
        generation = job.generation
        try:
            return run_step()
        except ends as error:
            no_value = _NO_VALUE * isinstance(error, tf.errors.FailedPreconditionError)
            self._end_step(job, no_value + cause_of(error), generation)
            raise
        except BaseException as error:
            if self.rewrite.plan.workers == 1:
                job.end_generation(cause_of(error), generation)
            else:
                job.abort(f"{type(error).__name__}: {cause_of(error)[:_LONGEST_REASON]}")
            raise

    def _end_step(self, job: Job, reason: str, generation: int) -> None:
        """The step has ended early for all that take part in it, processes that serve included."""
        if self.rewrite.spans_processes:
            server = Env.get().process_server
            assert server is not None
            server.service.end_generation(reason, generation)
        else:
            job.end_generation(reason, generation)

    def _state(self, session: tf.Session) -> SessionState:
        with self._lock:
            if session not in self._states:
                self._check_devices(session)
                state = self._states[session] = SessionState(self.rewrite.part_writes)
                if self._checkpoints is not None:
                    state.number = self._checkpoints.session_begins(self._reader(session), state.part_writes)
            return self._states[session]

    def _reader(self, session: tf.Session) -> Callable[[Sequence[tf.Tensor]], List[Any]]:
        """Reads values in a session, without a step of the plan; it does not keep the session."""
        kept = weakref.ref(session)

        def read(tensors: Sequence[tf.Tensor]) -> List[Any]:
            living = kept()
            if living is None:
                raise RuntimeError("The session has ended without session.close().")
            return self._raw(living, None, [], list(tensors), {}, None, None)

        return read

    def _check_devices(self, session: tf.Session) -> None:
        """Soft placement would run the replicas of missing devices on the first one, without a word."""
        there = [device.name for device in session.list_devices()]
        rewrite = self.rewrite
        for replica in range(rewrite.local_replicas):
            for stage in range(len(rewrite.plan.stages)):
                wanted = rewrite.device(stage, replica)
                if not any(name.endswith(wanted) for name in there):
                    raise PlanError(
                        "The plan puts replica {} on {}, and the session has {}. Open the session after epl.init(); "
                        "for a GPU, see TensorFlow's messages about CUDA libraries that it could not load.".format(
                            replica, wanted, ", ".join(there)
                        )
                    )

    def _compare_part_writes(self, session: tf.Session, state: SessionState) -> None:
        """Refuses parts that a process has initialized, restored or assigned in another way than worker 0."""
        check = self.rewrite.part_writes
        if check is None or state.part_writes.compared:
            return
        own = state.part_writes.of(check.variables)
        (first,) = self._raw(session, None, [], [check.of_worker_0], {check.own: own}, None, None)
        refuse_different(self.rewrite, own, first)
        state.part_writes.done()

    def _take_values_of_rank_0(self, session: tf.Session, state: SessionState) -> None:
        rewrite = self.rewrite
        is_compared = rewrite.part_writes is None or state.part_writes.compared
        is_current = state.processes_current or not rewrite.broadcasts
        tells_kind = self._ops(rewrite.run_kinds.get(VARIABLES, ()))
        if tells_kind and not (is_compared and is_current):
            self._raw(session, None, tells_kind, [], {}, None, None)
        self._compare_part_writes(session, state)
        if is_current:
            return
        if rewrite.process_rank == 0:
            missing = [sync.variable for sync in self._uninitialized(session, state) if sync.is_global]
            if missing:
                raise PlanError(
                    "{} variable(s) have no value before the first training step: {}{}. Run "
                    "tf.global_variables_initializer(), or restore a checkpoint, first.".format(
                        len(missing), ", ".join(missing[:_FIRST_NAMES]), ", ..." if missing[_FIRST_NAMES:] else ""
                    )
                )
        self._raw(session, None, self._ops(rewrite.broadcasts), [], {}, None, None)
        state.processes_current = True
        state.replicas_current = False

    def _copy_to_replicas(self, session: tf.Session, state: SessionState) -> None:
        rewrite = self.rewrite
        if state.replicas_current or rewrite.local_replicas == 1:
            return
        # Asked first: TensorFlow 1.15 may crash in a run that copies variables of which one has no value.
        missing = {sync.variable for sync in self._uninitialized(session, state)}
        copies = [copy for sync in rewrite.syncs if sync.variable not in missing for copy in sync.copies]
        if copies:
            self._raw(session, None, self._ops(copies), [], {}, None, None)
        # What has no value yet gets one by an initializer, after which all are copied again.
        state.replicas_current = True

    def _uninitialized(self, session: tf.Session, state: SessionState) -> List[VariableSync]:
        """The variables without a value; TensorFlow is asked about those alone of which it is not known."""
        unknown = [sync for sync in self.rewrite.syncs if sync.variable not in state.initialized]
        if not unknown:
            return []
        checks = [op.outputs[0] for op in self._ops([sync.is_initialized for sync in unknown])]
        values = self._raw(session, None, [], checks, {}, None, None)
        state.initialized.update(sync.variable for sync, has_value in zip(unknown, values) if has_value)
        return [sync for sync, has_value in zip(unknown, values) if not has_value]

    def _ops(self, names: Sequence[str]) -> List[tf.Operation]:
        return [self.rewrite.tf_graph.get_operation_by_name(name) for name in names]
