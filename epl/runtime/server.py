"""Sessions of models that span processes: the TensorFlow server of each process, and what a process that serves does.

Every process starts one TensorFlow server on a port that the system gives it, so none can take another's, and tells
the others where. A constructor's session names the servers that it needs in `ConfigProto.cluster_def`; it waits for no
other. The state of a session (variables, tables, iterators) is its own, as that of a local session is.

    constructor                                     serving process
    ProcessServer.start ........ addresses ........ ProcessServer.start
    session_config, target                          serve: opens communicators, waits
    open, Session.run ------- ops of stage 1 ---->  runs them in its TensorFlow server
    end of the script ......... finish ..........   exit code 0

TensorFlow itself never gives up a process that has died: a `Session.run` waits for it to come back. So runs go through
`guarded`, which ends the wait when the service (`epl/ops/service.py`) says that a process has failed.

Who drives what is in `epl/cluster/topology.py`, the replacement of TensorFlow's methods in `hooks.py`.
"""

import atexit
import json
import threading
import weakref
from typing import Any, Callable, List, NoReturn, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster import tf_config
from epl.cluster.cluster import Cluster
from epl.cluster.topology import OWN_JOB, Topology, of_virtual_devices
from epl.env import Env
from epl.ir.graph import Graph
from epl.ops.job import Job, JobError, interruptible
from epl.ops.service import CommunicatorSpec, Service
from epl.ops.waits import Limits
from epl.parallel.plan.agreement import is_imagined, meet
from epl.parallel.plan.stages import stage_devices
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.op_errors import cause_of
from epl.utils.script_end import ScriptEnd

# How long the cause of an error may take to arrive after its consequence.
_NEWS_S = 3.0
# What TensorFlow reports when a process of the session, or a collective with one, has failed.
_CONSEQUENCES = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.FailedPreconditionError, tf.errors.UnknownError,
)  # fmt: skip
# tf.train.MonitoredSession takes these for a preemption and begins anew, for ever.
_RETRIED = (tf.errors.UnavailableError, tf.errors.AbortedError)


def topology_of(tf_graph: tf.Graph) -> Optional[Topology]:
    """Who drives the model of a graph; None without a model, or if every process has all stages that it drives.

    A split that nothing has differentiated is computed whole: each process has all of such a model.
    """
    cluster = Env.get().cluster
    graph = Graph.of(tf_graph)
    if cluster is None or cluster.worker_num == 1 or graph is None or not graph.taskgraphs:
        return None
    if split_taskgraphs(graph) and not graph.gradient_calls and not graph.apply_calls:
        return None
    _, devices = stage_devices(graph.taskgraphs, cluster)
    topology = of_virtual_devices(devices, cluster.worker_num)
    return topology if topology.spans_processes else None


def connect(tf_graph: tf.Graph, config: Optional[tf.ConfigProto]) -> "Optional[Tuple[ProcessServer, tf.ConfigProto]]":
    """What a session of a graph needs if its model spans processes; in a process that serves, it ends the script.

    Args:
        tf_graph: the session's graph.
        config: the user's configuration, which is not modified.

    Returns:
        The server whose `target` the session has, and the session's configuration; None for a local session.

    Raises:
        SystemExit: this process served until the end of the training.
        JobError: a process has failed; the message names it and the cause.
    """
    topology = topology_of(tf_graph)
    if topology is None or is_imagined():
        return None
    server = ProcessServer.start(config)
    server.service.job.set_roles(topology.roles())
    server.serving.update(set(range(server.cluster.worker_num)).difference(topology.constructors))
    if not topology.is_constructor(server.cluster.worker_index):
        server.serve()
    return server, server.session_config(topology, config)


def guarded(session: tf.Session, what: Callable[[], str], call: Callable[..., Any], *args: Any) -> Any:
    """A call of TensorFlow for a session: ended when a process fails that the session needs; see `what` there."""
    server = _server_of(session)
    return call(*args) if server is None else server.guarded(what, call, *args)


def close(original: Callable[[tf.Session], None], session: tf.Session) -> None:
    """Closes a session, local or not."""
    server = _server_of(session)
    if server is None:
        original(session)
    else:
        server.close(original, session)


def is_connected(session: tf.Session) -> bool:
    """Whether a session has the devices of other processes."""
    return _server_of(session) is not None


def _server_of(session: tf.Session) -> "Optional[ProcessServer]":
    server = Env.get().process_server
    return server if server is not None and session in server.sessions else None


class ProcessServer:
    """The TensorFlow server of this process among those of the job.

    Attributes:
      cluster: the cluster of the environment.
      serving: the processes that serve a model of this script, and so have left it.
    """

    def __init__(self, job: Job, cluster: Cluster, config: Optional[tf.ConfigProto]) -> None:
        """Use `ProcessServer.start`."""
        self.cluster = cluster
        self.serving: Set[int] = set()
        communication = Env.get().config.communication
        self._service = Service(job, Limits(communication.stall_warning, communication.timeout))
        server = Env.get().get_or_create_server(config)
        # The address of a remote master costs a copy of all feeds; "localhost" is this process's own.
        one_machine = len({tf_config.machine_of(host) for host in job.hosts}) == 1
        machine = "localhost" if one_machine else tf_config.machine_of(job.hosts[job.process])
        own = "{}:{}".format(machine, server.target.rpartition(":")[2])
        self._addresses, planned = _exchange_facts(job, own, Env.get().transformed_graphs)
        Env.get().transformed_graphs = max(planned)  # who served before has planned fewer; names must be the same
        self._sessions: "weakref.WeakSet[tf.Session]" = weakref.WeakSet()
        self._lost_sessions: List[tf.Session] = []
        self._abandoned = False  # a run goes on that nobody waits for any more
        self._in_call = threading.local()
        atexit.register(self.leave)

    @classmethod
    def start(cls, config: Optional[tf.ConfigProto] = None) -> "ProcessServer":
        """The server of this process; made at the first call, which blocks until every process has called it.

        Args:
            config: what the user asked of sessions.

        Raises:
            PlanError: there is no job of several processes.
            PlanMismatchError: the processes have different versions or configurations.
            JobError: a process has failed or did not appear.
        """
        env = Env.get()
        job = meet() if env.cluster is not None and env.cluster.worker_num > 1 else None
        if job is None or env.cluster is None or job.num_processes == 1:
            raise PlanError(
                "A model that spans processes was asked for, and there is no job of several processes: "
                "call epl.init() in every worker of TF_CONFIG first."
            )
        if env.process_server is None or env.process_server.service.job is not job:
            if env.process_server is not None:  # of the job of another epl.init
                env.process_server.service.leave()
            env.process_server = cls(job, env.cluster, config)
        env.process_server.cluster = env.cluster  # another one after another epl.init
        return env.process_server

    @property
    def service(self) -> Service:
        """The rounds of the processes."""
        return self._service

    @property
    def sessions(self) -> "weakref.WeakSet[tf.Session]":
        """The living sessions with this server's target."""
        return self._sessions

    @property
    def target(self) -> str:
        """The target of sessions of this process."""
        return "grpc://" + self._addresses[self.cluster.worker_index]

    def session_config(self, topology: Topology, base: Optional[tf.ConfigProto] = None) -> tf.ConfigProto:
        """The configuration of a session of this process: its devices, and the servers that it needs.

        Args:
            topology: of the model that the session runs.
            base: the user's configuration, which is not modified.

        Raises:
            PlanError: `base` names servers itself.
        """
        if base is not None and (base.cluster_def.job or base.device_filters):
            raise PlanError(
                "The session's ConfigProto has a cluster_def or device_filters, and the model spans processes: EPL "
                "connects them. Leave both out."
            )
        proto = self.cluster.config_proto(base)
        proto.isolate_session_state = True
        own = self.cluster.worker_index
        chief = proto.cluster_def.job.add(name=OWN_JOB)
        chief.tasks[own] = self._addresses[own]
        others = [worker for worker in topology.workers_of(own) if worker != own]
        if others:
            workers = proto.cluster_def.job.add(name="worker")
            for worker in others:
                workers.tasks[worker] = self._addresses[worker]
        return proto

    def open(self, tf_graph: tf.Graph, communicators: Sequence[CommunicatorSpec]) -> None:
        """Opens communicators of a graph in all processes that own a rank, serving ones too; see `Service.open`."""
        self._service.open(communicators)
        names = [spec.name for spec in communicators]
        Env.get().hold(tf_graph, communicators, lambda: self._service.forget(names))

    def serve(self) -> NoReturn:
        """Serves until the constructors have finished; then the script ends with exit code 0.

        Raises:
            SystemExit: all constructors have ended their scripts.
            JobError: a process has failed; the message names it and the cause.
        """
        self._service.serve()
        self._service.leave()
        raise SystemExit(0)

    def adopt(self, session: tf.Session) -> None:
        """Remembers a session with this server's target, so that it is closed before the serving processes leave."""
        self._sessions.add(session)

    def guarded(self, what: Callable[[], str], call: Callable[..., Any], *args: Any) -> Any:
        """A call of a session that spans processes, ended when one of them fails or is silent for too long.

        Args:
            what: says what the call is, "Session.run of Adam"; asked when it lasts.
            call: with its arguments.

        Raises:
            JobError: a process has failed, or the call lasts too long; the message names the process and the cause.
        """
        if getattr(self._in_call, "active", False):
            return call(*args)  # part of a call that is guarded
        wait = self._service.waiting(lambda: f"is in {what()}, which uses devices of other workers,")

        def look() -> None:
            self._service.check()
            wait.look()

        def run() -> Any:
            self._in_call.active = True  # of this thread, which ends with the call
            return call(*args)

        try:
            self._service.check()
            return interruptible(run, look=look)
        except JobError:
            self._abandoned = True
            self._keep_sessions()
            raise
        except (KeyboardInterrupt, SystemExit):
            self._abandoned = True
            self._keep_sessions()
            raise
        except _CONSEQUENCES as error:
            failure = self._service.failure(_NEWS_S if isinstance(error, _RETRIED) else 1.0)
            if failure is None and not isinstance(error, _RETRIED):
                raise
            self._keep_sessions()
            raise JobError(
                failure or f"a process of the session cannot be reached: {cause_of(error)}", code=13
            ) from error

    def close(self, close: Callable[[tf.Session], None], session: tf.Session) -> None:
        """Closes a session. Nothing is done if TensorFlow would wait: for a process that is dead, for the run that
        Ctrl-C was to end.
        """
        if self._service.failure() is None and not self._abandoned:
            try:
                self.guarded(lambda: "Session.close", close, session)
            except JobError:
                pass  # whoever runs the session next is told

    def _keep_sessions(self) -> None:
        """Keeps sessions from being deleted, which would wait for the dead process."""
        self._lost_sessions = list(self._sessions)

    def leave(self) -> None:
        """Ends the training for this process, as the end of its script does: closes sessions, waits for the others.

        Not needed in a script of one training. Later `epl.init` may meet the same processes anew.
        """
        atexit.unregister(self.leave)
        if self._service.over:
            return
        failed = ScriptEnd.failure() is not None or self._service.failure() is not None
        for session in list(self._sessions):
            if failed or self._abandoned:
                tf_compat.abandon(session)
            else:
                session.close()
        if failed:
            self._service.leave()
        else:
            self._service.finish()


def _exchange_facts(job: Job, address: str, planned: int) -> Tuple[List[str], List[int]]:
    """Of every process: where its TensorFlow server listens, and how many graphs it has planned."""
    parts = job.exchange("TensorFlow servers", json.dumps([address, planned]).encode())
    addresses, counts = zip(*[json.loads(part.decode()) for part in parts])
    return list(addresses), list(counts)
