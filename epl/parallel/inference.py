"""A graph without gradients (evaluation, prediction) is placed by stage: those of one replica, each on its own device.

Nothing else is done to it. The graph may grow and run again, and may be given gradients after all: until then its ops
have the plan's devices, and what the user exports has the user's.
"""

import logging
from typing import Callable, Dict, Iterable, Optional, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.ir import node_wire, op_types
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.plan import planner
from epl.parallel.plan.plan import ranks_of
from epl.parallel.plan.stages import plan_stages, stages_of_nodes
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.parallel.replication.clone_replicas import pinned_devices
from epl.parallel.rewriting.context import RewriteContext
from epl.utils import tf_compat
from epl.utils.errors import EplError

logger = logging.getLogger("epl")


class DevicePlacement:
    """Which ops of a graph were placed."""

    def __init__(self) -> None:
        self.last_op = -1  # creation number of the last op that was there
        self._devices: Dict[str, Tuple[str, str]] = {}  # name -> the user's device, the plan's

    def user_device(self, node: Union[tf.NodeDef, node_wire.Node]) -> str:
        """The device that the user gave to an op; one colocated with an op that was placed has got the plan's."""
        if node.name in self._devices:
            return self._devices[node.name][0]
        user: str
        placed: Optional[str]
        user, placed = self._devices.get(_anchor(node), ("", None))
        return user if node.device == placed else node.device

    def add(self, tf_graph: tf.Graph, placed: Iterable[Tuple[str, str, str]]) -> None:
        """Places ops that were not placed before; of each its name, the user's device, and the plan's."""
        new = [(name, user, device) for name, user, device in placed if name not in self._devices]
        self._devices.update((name, (user, device)) for name, user, device in new)
        tf_compat.set_devices(tf_graph, [(name, device) for name, _, device in new])

    def undo(self, tf_graph: tf.Graph) -> None:
        """Gives all ops the user's devices again."""
        nodes = tf_compat.full_graph_def(tf_graph).node
        tf_compat.set_devices(tf_graph, [(node.name, self.user_device(node)) for node in nodes])


def place(graph: Graph, cluster: Cluster, config: Config, has_device: Callable[[str], bool]) -> None:
    """Places what is new in a graph; does nothing if it has one stage, gradients, or a plan.

    Args:
      graph: the graph.
      cluster, config: of the environment.
      has_device: whether the session that is to run it has a device of this name.
    """
    tf_graph = graph.tf_graph
    strategies = [taskgraph.strategy for taskgraph in graph.taskgraphs]
    if graph.rewritten is not None or graph.gradient_calls or graph.apply_calls:
        return
    if config.offload.level and strategies:
        _warn_once(
            graph,
            "not offloaded",
            "offload.level is {!r} and has no effect on a graph without gradients: its variables are on the "
            "devices.".format(config.offload.level),
        )
    if len(strategies) < 2 or _is_split(graph):
        return
    placement = graph.device_placement = graph.device_placement or DevicePlacement()
    if placement.last_op == tf_compat.last_op_id(tf_graph):
        return
    placement.last_op = tf_compat.last_op_id(tf_graph)
    try:
        stages, owners = plan_stages(graph, cluster)
        rewrite = RewriteContext(
            graph,
            planner.make_plan("inference", graph, stages, owners, (), [], config, cluster),
            [],
            [],
            config,
            cluster,
        )
    except EplError as error:
        _warn(graph, str(error))
        return
    if len(stages) == 1 or not ranks_of(rewrite.plan, cluster.worker_index):
        return
    own = [rewrite.device(stage) for stage in range(len(stages))]
    missing = [device for device in own if not has_device(device)]
    if missing:
        _warn(graph, f"The session has no {missing[0]}.")
        return
    view = GraphView(tf_graph)
    for node in view.nodes:
        node.device = placement.user_device(node)
    rewrite.cloned = view.descendants(view.of_types(op_types.DATA_SOURCES | op_types.PLACEHOLDERS | op_types.VARIABLES))
    pinned = pinned_devices(rewrite, view)
    of_nodes = stages_of_nodes(view, stages)
    placement.add(
        tf_graph,
        [
            (proto.name, proto.device, pinned.get(node) or own[stage])
            for node, (proto, stage) in enumerate(zip(view.nodes, of_nodes))
        ],
    )


def _is_split(graph: Graph) -> bool:
    """Whether the stages of a graph are none without gradients, as some are split; says why if they fit no devices."""
    try:
        return bool(split_taskgraphs(graph))
    except EplError as error:
        _warn(graph, str(error))
        return True


def _anchor(node: Union[tf.NodeDef, node_wire.Node]) -> str:
    """The name of the op with which another is colocated, or ""."""
    groups = node.attr["_class"].list.s if "_class" in node.attr else ()
    return next((group[5:].decode() for group in groups if group[:5] == b"loc:@"), "")


def _warn(graph: Graph, reason: str) -> None:
    _warn_once(graph, "not placed", "The graph has no gradients, and its stages run on one device: " + reason)


def _warn_once(graph: Graph, key: str, text: str) -> None:
    if graph.says_first(key):
        logger.warning("%s", text)
