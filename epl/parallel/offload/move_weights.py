"""Offload: variables and their updates are on the host; weights are copied to the device shortly before they are used.

    w --> read --> MatMul ----> ... --> MatMulGrad          w --> read --> copy --> MatMul ----> ... --> MatMulGrad
                    ^                                                 |     ^                                ^
             f --> g'                                   =>            |     f --> g ...                      |
                                                                      `-- copy' (waits for a gradient) ------'

The copies are identities on the host: what follows on the device makes TensorFlow send them, once they ran. Ops of the
host carry `HOST_ATTR`, those of further replicas and micro batches as well: it is looked at where replicas are placed.
What is on the host, and which copy waits for what, is decided in `epl.parallel.offload.host_region` and
`epl.parallel.weights.prefetch`.

It works on the graph of the user, after recomputation and before every other pass, and on a model on one device.
"""

import logging
from typing import Collection, Dict, List, Optional, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import SAME, clone_nodes
from epl.ir.dataflow import data_inputs
from epl.ir.gradient_boundary import boundary_nodes, variables_by_gradient
from epl.ir.taskgraph import HOST_ATTR, TASKGRAPH_ATTR
from epl.ir.view import GraphView, variable_bytes
from epl.parallel.costs.shapes import num_elements
from epl.parallel.offload.host_region import HostRegion
from epl.parallel.plan.sections import Offloaded, OffloadSection
from epl.parallel.plan.stages import stages_of_nodes
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.delay_gradients import delay_gradients
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.weights.prefetch import (
    Fetch,
    Section,
    WeightUse,
    bytes_at_a_time,
    find_uses,
    largest,
    largest_names,
    late_uses,
    plan_fetches,
)
from epl.utils import tf_compat

logger = logging.getLogger("epl")

SCOPE = "EPL_OFFLOAD"


def find(rewrite: RewriteContext) -> Optional[OffloadSection]:
    """What each stage keeps in host memory, as `offload.level` says; nothing is changed, `run` does it."""
    if not rewrite.config.offload.level:
        return None
    view = GraphView(rewrite.tf_graph)
    stages = stages_of_nodes(view, rewrite.plan.stages)
    sizes = {
        node: _bytes(rewrite, view, node)
        for node in view.of_types(op_types.VARIABLES)
        if rewrite.shard_of(view.nodes[node].name) == view.nodes[node].name  # else its part is in its place
    }
    found = []
    for stage in range(len(rewrite.plan.stages)):
        own = [size for node, size in sizes.items() if stages[node] == stage]
        found.append(Offloaded(stage, len(own), sum(own)))
    return OffloadSection(tuple(found))


def _bytes(rewrite: RewriteContext, view: GraphView, node: int) -> int:
    """Of a variable; of parts those of the largest one: the plan is the same for all ranks."""
    shapes = () if rewrite.sharded is None else rewrite.sharded.shapes.get(view.nodes[node].name, ())
    if not shapes:
        return variable_bytes(view, node) or 0
    size = tf.as_dtype(view.nodes[node].attr["dtype"].type).size
    return max(num_elements(shape) for shape in shapes) * size


def run(rewrite: RewriteContext) -> None:
    """Marks what runs on the host, and adds the copies of weights."""
    if not rewrite.config.offload.level:
        return
    view = GraphView(rewrite.tf_graph)
    region = HostRegion(rewrite.tf_graph, view)
    for node in sorted(region.nodes):
        op = rewrite.remember(rewrite.operation(view.nodes[node].name))
        tf_compat.set_attr(op, HOST_ATTR, tf.AttrValue(b=True))
    stages = stages_of_nodes(view, rewrite.plan.stages)
    writes = _training_writes(rewrite, view)
    uses = _uses(rewrite, view, region, writes)
    fetches = plan_fetches(view, uses, _sections(rewrite, view, uses, stages), region.order, largest(uses))
    late = late_uses(view, fetches, region, _gradients(rewrite, view))
    names = _add(rewrite, view, fetches)
    objectives = [view.index[y.op.name] for call in rewrite.graph.gradient_calls for y in call.ys]
    _report(view, region, uses, fetches, stages, _computed(view, [*writes, *objectives]))
    delayed = {gradient: [view.nodes[node].name for node in takers] for gradient, takers in late.items()}
    delay_gradients(rewrite, view, delayed, SCOPE)
    if rewrite.is_plain:  # no pass places anything
        hosted = [view.nodes[node].name for node in sorted(region.nodes)]
        tf_compat.set_devices(rewrite.tf_graph, [(name, rewrite.host) for name in hosted + names])


def _training_writes(rewrite: RewriteContext, view: GraphView) -> Set[int]:
    bounds = boundary_nodes(view, rewrite.graph.gradient_calls)
    return find_training_writes(rewrite.tf_graph, view, view.writes(), bounds)


def _uses(rewrite: RewriteContext, view: GraphView, region: HostRegion, writes: Set[int]) -> List[WeightUse]:
    bounds = boundary_nodes(view, rewrite.graph.gradient_calls)
    after = view.descendants(bounds)
    changing = {variable for write in writes - after for variable in view.variable_inputs(write)}
    replaced = {view.index[one.original.op.name] for one in rewrite.graph.replacements.values()}  # they run no more
    return find_uses(rewrite.tf_graph, view, region, view.descendants(writes) | replaced, changing)


def _computed(view: GraphView, roots: Sequence[int]) -> Set[int]:
    """What some nodes are computed from.

    TensorFlow takes out what they only wait for, and nobody reads: tf.gradients has the gradient of a kernel wait for
    that of the rows, also of those that are fed.
    """
    found = set(roots)
    stack = list(found)
    while stack:
        for producer, _ in data_inputs(view, stack.pop()):
            if producer not in found:
                found.add(producer)
                stack.append(producer)
    return found


def _sections(
    rewrite: RewriteContext, view: GraphView, uses: Sequence[WeightUse], stages: Sequence[int]
) -> Dict[int, Section]:
    """In a pipeline the copies of an action belong to the action; with one stage the two passes are one sequence."""
    if len(rewrite.plan.stages) == 1:
        return {use.consumer: (0, False) for use in uses}
    seeds = [view.index[seed.op.name] for call in rewrite.graph.gradient_calls for seed in call.seeds]
    backward = view.descendants(seeds)
    return {use.consumer: (stages[use.consumer], use.consumer in backward) for use in uses}


def _gradients(rewrite: RewriteContext, view: GraphView) -> Dict[int, List[int]]:
    """By variable, the nodes that give its gradient. Not of resources: what was read of one stays what it was."""
    references = set(view.of_types(op_types.REF_VARIABLES))
    found: Dict[int, List[int]] = {}
    for name, variable in variables_by_gradient(rewrite.graph).items():
        if view.index[variable] in references:
            found.setdefault(view.index[variable], []).append(view.index[name.partition(":")[0]])
    return found


def _add(rewrite: RewriteContext, view: GraphView, fetches: Sequence[Fetch]) -> List[str]:
    """Adds the copies, and gives them to those for whom they are made. Names of the copies."""
    nodes = []
    for number, fetch in enumerate(fetches):
        name = view.nodes[fetch.source].name
        tensor = rewrite.operation(name).outputs[fetch.output]
        node = tf.NodeDef(name=f"{SCOPE}/copy{number}/{name}", op="Identity")
        node.input.append(f"{name}:{fetch.output}" if fetch.output else name)
        node.input.extend("^" + view.nodes[wait].name for wait in fetch.waits)
        node.attr["T"].type = tensor.dtype.base_dtype.as_datatype_enum
        node.attr[HOST_ATTR].b = True
        mark = view.nodes[fetch.uses[0].consumer].attr.get(TASKGRAPH_ATTR)
        if mark is not None:
            node.attr[TASKGRAPH_ATTR].CopyFrom(mark)
        nodes.append(node)
    clone_nodes(rewrite.tf_graph, view, [], [], lambda copy, node: SAME, nodes)
    for node, fetch in zip(nodes, fetches):
        copy = rewrite.operation(node.name).outputs[0]
        for use in fetch.uses:
            consumer = rewrite.remember(rewrite.operation(view.nodes[use.consumer].name))
            tf_compat.set_input(consumer, use.position, copy)
    return [node.name for node in nodes]


def _report(
    view: GraphView,
    region: HostRegion,
    uses: Sequence[WeightUse],
    fetches: Sequence[Fetch],
    stages: Sequence[int],
    in_step: Collection[int],
) -> None:
    """Says how much is copied in a training step, and what is so at its start.

    Args:
      view, region, uses, fetches, stages: the graph, what runs on the host, the uses of weights, their copies, the
        stage of each node.
      in_step: the nodes that a step computes with.
    """
    fetched = {(use.consumer, use.position) for fetch in fetches for use in fetch.uses}
    for stage in sorted(set(stages)):
        own = [
            fetch
            for fetch in fetches
            if stages[fetch.uses[0].consumer] == stage and any(use.consumer in in_step for use in fetch.uses)
        ]
        if own:
            logger.info(
                "offload.level: stage %d copies %.1f MB of weights to its device in %d copies, of which %.1f MB are "
                "there at a time",
                stage, sum(fetch.uses[0].bytes for fetch in own) / 1e6, len(own), bytes_at_a_time(own) / 1e6,
            )  # fmt: skip
    early = {
        view.nodes[use.source].name: use.bytes
        for use in uses
        if (use.consumer, use.position) not in fetched
        and (region.depths[use.consumer] != (0, 0) or use.consumer not in region.moving)  # else it runs first
    }
    if early:
        logger.warning(
            "offload.level: %d weights (%.1f MB) are copied to the device at the start of a step and stay there, as "
            "loops take them, or ops that know nothing of the data: %s.",
            len(early), sum(early.values()) / 1e6, largest_names(early),
        )  # fmt: skip


PASS = Pass(
    "offload",
    run,
    "offload.level",
    requires=names("recomputed"),
    after=names("recompute"),
    plain=True,
    optional=True,
)
