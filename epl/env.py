"""What `epl.init()` set up, for the whole process: configuration, cluster, job, scopes, graphs."""

import os
import socket
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.config.config import Config
from epl.ir.graph import Graph
from epl.ops.job import Announcement, Job
from epl.utils import tf_server

if TYPE_CHECKING:  # `epl.init` makes them and hands them in
    from epl.cluster.cluster import Cluster
    from epl.parallel.plan.strategy import Strategy
    from epl.parallel.strategy.replay import FindStrategy
    from epl.runtime.server import ProcessServer
    from epl.runtime.trial import Trial
    from epl.strategies.context import StrategyContext


class Held(NamedTuple):
    """What is kept for a tf.Graph: see `Env.hold`."""

    tf_graph: "weakref.ref[tf.Graph]"
    what: object
    end: Callable[[], None]


class Env:
    """The process-wide state of EPL. `Env.get()` gives the one instance."""

    _instance: "Optional[Env]" = None

    def __init__(self) -> None:
        self.config = Config()
        self.cluster: "Optional[Cluster]" = None
        self._strategy_context: "Optional[StrategyContext]" = None
        self.is_ready = False
        self.inits = 0  # calls of epl.init that succeeded
        self._said: Set[str] = set()
        self.transformed_graphs = 0
        self.cut_graphs = 0
        self._held: List[Held] = []
        self._server: Optional[tf.train.Server] = None
        self.process_server: Optional["ProcessServer"] = None  # if a model spans processes
        self.asked_local_rows = False  # since epl.init: the script reads batches of its own sizes
        self.find_strategy: Optional["FindStrategy"] = None  # the planner; `epl.init` hands it in
        self.found_strategy: Optional["Strategy"] = None  # what it has decided since epl.init
        self.trial: Optional["Trial"] = None  # if the process tries a plan; `epl.planner.trials` begins it
        self.met: Optional[Job] = None  # whose processes agree on the configuration; set by epl.parallel.plan.agreement

    @classmethod
    def get(cls) -> "Env":
        """The Env of this process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def reset(self) -> None:
        """Forgets graphs, scopes and cluster, as every `epl.init` does; the connection to the other processes stays."""
        self._end(self._held)
        Graph.forget_all()
        self.config = Config()
        self.cluster = None
        self._strategy_context = None
        self.is_ready = False
        self.asked_local_rows = False
        self.found_strategy = None
        self.met = None

    def init(self, config: Config, cluster: "Cluster", strategy_context: "StrategyContext") -> None:
        """Takes over a configuration, a cluster and the stack of strategies, which is empty.

        It needs no other process: the processes connect when one of them needs the others first.
        """
        self.config = config
        self.cluster = cluster
        self._strategy_context = strategy_context
        Job.announce(self._job_of(cluster) if cluster.worker_num > 1 else None)
        self.is_ready = True
        self.inits += 1

    @property
    def strategy_context(self) -> "StrategyContext":
        """The strategies in effect, since `epl.init`."""
        if self._strategy_context is None:
            raise RuntimeError("There are no strategies yet: call epl.init() first.")
        return self._strategy_context

    def use(self, cluster: "Cluster") -> None:
        """Replaces the cluster. If it counts the same processes in another order, the job starts anew in that order,
        when it is next needed.
        """
        self.cluster = cluster
        hosts = list(Job.announced_hosts())
        if hosts != cluster.hosts and sorted(hosts) == sorted(cluster.hosts):
            Job.announce(self._job_of(cluster))

    def _job_of(self, cluster: "Cluster") -> Announcement:
        config = self.config.communication
        host = cluster.hosts[cluster.worker_index]
        return Announcement(
            hosts=tuple(cluster.hosts),
            process=cluster.worker_index,
            find_listen_fd=lambda: _inherited_socket(host),
            start_timeout=config.start_timeout,
            stall_warning=config.stall_warning,
            timeout=config.timeout,
            pid=os.getpid(),
        )

    def says_first(self, what: str) -> bool:
        """Whether this process has not said `what` before: what concerns a whole script is said once."""
        is_first = what not in self._said
        self._said.add(what)
        return is_first

    def hold(self, tf_graph: tf.Graph, what: object, end: Callable[[], None]) -> None:
        """Keeps what a tf.Graph needs: until a model is planned after the tf.Graph is gone, or until `reset`.

        Args:
          tf_graph: that needs it.
          what: a communicator, for example, which does not refer to the tf.Graph.
          end: ends it.
        """
        self._held.append(Held(weakref.ref(tf_graph), what, end))

    @property
    def held(self) -> List[object]:
        """What is kept for graphs."""
        return [one.what for one in self._held]

    def end_unused(self) -> None:
        """Ends what is kept for graphs that are gone; no session of another process may need it any more."""
        self._end([one for one in self._held if one.tf_graph() is None])

    def _end(self, held: Sequence[Held]) -> None:
        for one in list(held):
            self._held.remove(one)
            one.end()

    def new_graph_name(self) -> str:
        """A name for the communicators of the next planned graph: the same in every process, used once."""
        self.transformed_graphs += 1
        return f"graph{self.transformed_graphs}"

    def new_shards_name(self) -> str:
        """A name for the communicators of the next graph whose variables are cut into parts: as `new_graph_name`.

        Parts are made where a graph is built, which a process does that will serve, too; plans where it runs.
        """
        self.cut_graphs += 1
        return f"parts{self.cut_graphs}"

    @property
    def epl_graphs(self) -> List[Graph]:
        """The annotated graphs that are alive."""
        return Graph.all()

    @property
    def graph_map(self) -> Dict[tf.Graph, Graph]:
        """tf.Graph -> epl.Graph."""
        return {graph.tf_graph: graph for graph in Graph.all()}

    @property
    def default_graph(self) -> Optional[Graph]:
        """The epl.Graph of the default tf.Graph, or None."""
        return Graph.get()

    @property
    def parallel_information(self) -> Optional[Dict[str, Any]]:
        """Facts that layers share about the default graph; None without an annotated graph."""
        graph = Graph.get()
        return None if graph is None else graph.parallel_information

    def get_config_proto(self, allow_growth: bool = True) -> tf.ConfigProto:
        """The session configuration for this process's devices."""
        return self._ready_cluster().config_proto(allow_growth=allow_growth)

    @property
    def server(self) -> Optional[tf.train.Server]:
        """The TensorFlow server of this process, if one was made."""
        return self._server

    @server.setter
    def server(self, server: tf.train.Server) -> None:
        if self._server is not None:
            raise RuntimeError("Server is already set.")
        self._server = server

    def get_or_create_server(self, config: Optional[tf.ConfigProto] = None) -> tf.train.Server:
        """The TensorFlow server of this process, on a free port; made at the first call.

        It knows no other process: a session that spans processes names those that it needs, and where they listen. In
        a job of one machine no other machine reaches it.

        Args:
          config: what the user asked of sessions; the devices of the server are made by it. Read at the first call.

        Raises:
          ClusterError: the system cannot keep other machines from it.
        """
        if self._server is None:
            cluster = self._ready_cluster()
            own = cluster.machines[cluster.worker_index]
            others = sorted(set(cluster.machines) - {own})
            self._server = tf_server.start(own, others, cluster.config_proto(config))
        return self._server

    def _ready_cluster(self) -> "Cluster":
        if self.cluster is None:
            raise RuntimeError("There is no cluster yet: call epl.init() first.")
        return self.cluster


def _inherited_socket(host: str) -> Optional[int]:
    """The listening socket that the launcher opened for `host` and left to this process, if there is one.

    A port that was chosen but not held could be taken by another program before the worker listens there.
    """
    try:
        fd = int(os.environ.get("EPL_LISTEN_FD", ""))
        duplicate = socket.socket(fileno=os.dup(fd))
    except (ValueError, OSError):
        return None
    with duplicate:
        listens = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return fd if listens and str(duplicate.getsockname()[1]) == host.rpartition(":")[2] else None
