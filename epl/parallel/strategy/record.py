"""Records the strategy of a model that a script builds, and ends the script where it would train.

with recording():
    the script    tf.gradients: the forward pass is noted
                  its first run after the rewriting raises `Planned`
strategy_of(graph)
"""

import contextlib
from typing import Any, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.config.config import Config
from epl.config.keys import KEY_BY_NAME
from epl.env import Env
from epl.ir.colocation import taskgraph_index
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph
from epl.ir.taskgraph import TaskGraph
from epl.ir.view import GraphView
from epl.parallel.auto_partition.annotate import Partitioned
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.sections import PartitionSection, SplitSection
from epl.parallel.plan.strategy import Block, ForwardOp, PlannedChoice, Strategy
from epl.parallel.strategy import forward
from epl.strategies.split import Split
from epl.utils.containers import as_list
from epl.utils.errors import PlanError


class Planned(BaseException):
    """The script would train now; its model is planned. No Exception, so that a script that catches these ends, too.

    Attributes:
      tf_graph: the graph of the model, rewritten.
    """

    def __init__(self, tf_graph: tf.Graph) -> None:
        super().__init__("The model is planned.")
        self.tf_graph = tf_graph


class ForwardPass(NamedTuple):
    """State of a graph (`Graph.state_of`): the forward pass as it was when the model was first differentiated.

    Attributes:
      ops: in the order of the script, each in the block of its TaskGraph.
      view: the graph as it was then.
      nodes: the node of each op.
      trained: names of the variables that the model was differentiated by.
      roots: the nodes of the objective.
      taskgraphs: those of the model then; a scope may get a further one for the ops that train.
    """

    ops: Tuple[ForwardOp, ...]
    view: GraphView
    nodes: Tuple[int, ...]
    trained: Tuple[str, ...]
    roots: Tuple[int, ...]
    taskgraphs: Tuple[TaskGraph, ...]


_open: List[List[tf.Graph]] = []  # `recording` that are open, each with what it planned


@contextlib.contextmanager
def recording() -> Iterator[List[tf.Graph]]:
    """Scripts that run inside are recorded, and end with `Planned`.

    Yields:
      The graphs that were planned so far: also where the script has trained in a thread, or catches all exceptions.
    """
    planned: List[tf.Graph] = []
    _open.append(planned)
    try:
        yield planned
    finally:
        _open.pop()


def end_script(tf_graph: tf.Graph) -> NoReturn:
    """Raises Planned for a graph, and notes it in the open `recording`."""
    _open[-1].append(tf_graph)
    raise Planned(tf_graph)


def is_recording() -> bool:
    """Whether `recording` is open."""
    return bool(_open)


def note_forward_pass(graph: Graph, ys: Any, xs: Sequence[Any]) -> None:
    """Notes the forward pass of `ys`, before features change it; the first call of a graph counts.

    Args:
      graph, ys, xs: as for `forward_pass`.
    """
    if graph.state_of(ForwardPass) is None:
        graph.keep(ForwardPass, forward_pass(graph, ys, xs))


def forward_pass(graph: Graph, ys: Any, xs: Sequence[Any]) -> ForwardPass:
    """The forward pass of a model.

    Args:
      graph: the graph.
      ys: the objective: a tensor, or a list of them.
      xs: what the script differentiates by.
    """
    view = GraphView(graph.tf_graph)
    found = forward.forward_ops(graph.tf_graph, view, ys)
    names = [variable_name(x) for x in xs]
    blocks = [marked_block(graph, op.name) for op in found.values()]
    ops = forward.in_blocks(list(found.values()), blocks)
    roots = tuple(view.index[y.op.name] for y in as_list(ys))
    trained = tuple(name for name in names if name is not None)
    return ForwardPass(ops, view, tuple(found), trained, roots, tuple(graph.taskgraphs))


def marked_block(graph: Graph, name: str) -> int:
    """The block of an op by the marks of the script; ops before the first scope belong to it, unless it is a split."""
    mark = taskgraph_index(graph.tf_graph.get_operation_by_name(name))
    if mark is not None and mark in range(len(graph.taskgraphs)):
        return mark
    is_split = bool(graph.taskgraphs) and graph.taskgraphs[0].strategy.name_of_kind == "split"
    return strategies.OUTSIDE if is_split else 0


def strategy_of(graph: Graph) -> Strategy:
    """The strategy of a model that was built in `recording`.

    Raises:
      PlanError: the model was not differentiated by variables.
    """
    found = graph.state_of(ForwardPass)
    if found is None:
        raise PlanError("The model has no gradients by variables, so that there is no strategy to train it.")
    return strategy_of_pass(graph, found)


def strategy_of_pass(graph: Graph, found: ForwardPass) -> Strategy:
    """The strategy of a model, as far as it is decided, given its forward pass."""
    env = Env.get()
    cluster = env.cluster
    assert cluster is not None
    used = graph.state_of(Strategy)
    return Strategy(
        model=strategies.fingerprint(found.ops),
        workers=cluster.worker_num,
        devices=cluster.gpu_num_per_worker,
        device_type=cluster.device_type,
        blocks_origin=_origin_of_blocks(graph) if used is None else used.blocks_origin,
        blocks=blocks_of(found.taskgraphs, [_names(found, one.index) for one in found.taskgraphs]),
        choices=choices_of(graph.state_of(SplitSection), found),
        settings=strategies.settings_of(env.config.get, lambda key: _origin_of_key(env.config, used, key)),
        ops=found.ops,
    )


def has_made_blocks(graph: Graph) -> bool:
    """Whether the strategy that is used has made the TaskGraphs of a model: its script leaves them open."""
    return graph.state_of(Strategy) is not None and graph.state_of(Partitioned) is not None


def _origin_of_blocks(graph: Graph) -> str:
    """Where the blocks come from, if no strategy is used."""
    partition = graph.state_of(PartitionSection)
    if partition is not None:
        return partition.policy
    if any(one.strategy is not graph.default_strategy for one in graph.taskgraphs):
        return strategies.SCOPES
    is_asked = bool(graph.taskgraphs) and graph.beginning is not None
    return strategies.DEFAULT_STRATEGY if is_asked else strategies.NO_ANNOTATION


def _origin_of_key(config: Config, used: Optional[Strategy], key: str) -> str:
    """Where the value of a key came from: the configuration says "planner" of all keys that are left to EPL."""
    if used is None or config.is_set(key):
        return config.provenance(key)
    if config.auto.plan_file:
        is_default = config.get(key) == KEY_BY_NAME[key].default
        return "default" if is_default else f"auto.plan_file {config.auto.plan_file!r}"
    return next((one.origin for one in used.settings if one.key == key), "default")


def choices_of(section: Optional[SplitSection], found: ForwardPass) -> Tuple[PlannedChoice, ...]:
    """How the ops of splits are computed, by their places in the forward pass; () without a split.

    Args:
      section: what was decided of the splits; None: nothing yet.
      found: the forward pass.
    """
    place = {op.name: number for number, op in enumerate(found.ops)}
    chosen = [one for one in (() if section is None else section.ops) if one.op in place]
    return tuple(sorted(PlannedChoice(place[one.op], one.text(), one.inside) for one in chosen))


def blocks_of(taskgraphs: Sequence[TaskGraph], names: Sequence[List[str]] = ()) -> Tuple[Block, ...]:
    """The blocks of the TaskGraphs of a model, given the names of their ops; without scopes if these are left out."""
    nesting = list(dict.fromkeys(id(one.outer) for one in taskgraphs if one.outer is not None))
    number_of = {scope: number for number, scope in enumerate(nesting, 1)}
    return tuple(
        _block_of(one, of_one, number_of.get(id(one.outer or one.strategy), 0))
        for one, of_one in zip(taskgraphs, names or [[]] * len(taskgraphs))
    )


def _block_of(taskgraph: TaskGraph, names: List[str], stage: int) -> Block:
    strategy = taskgraph.strategy
    is_split = strategy.name_of_kind == "split"
    return Block(
        kind=strategy.name_of_kind,
        devices=strategy.device_count or (0 if is_split else 1),
        outer=0 if taskgraph.outer is None else taskgraph.outer.device_count or 1,
        ratios=strategy.ratios if isinstance(strategy, Split) else (),
        scopes=strategies.scopes_of(names),
        stage=stage,
    )


def _names(found: ForwardPass, block: int) -> List[str]:
    return [op.name for op in found.ops if op.block == block]
