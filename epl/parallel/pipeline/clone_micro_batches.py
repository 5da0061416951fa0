"""The micro batches of a pipeline: ops that differ between them are cloned, gradients accumulated, outputs merged.

                                          x ----> forward ----> gradient ---+
    x --> forward --> gradient | apply    x/1 --> forward/1 --> gradient/1 --> sum, / M | apply
                                    =>    ...                               |
                                          variables, apply: shared

Micro batch 0 is the user's own graph. Gradients are added in the order of the micro batches, one at a time, so that at
most two of each are alive. Data is read in the order of the micro batches, all of it at the start of a step.
"""

from typing import Iterable, Iterator, Mapping, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types
from epl.ir.clone import SAME, clone_nodes
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.ir.view import GraphView
from epl.parallel.pipeline import micro_batches
from epl.parallel.pipeline.micro_batches import MicroBatchOps
from epl.parallel.pipeline.order_split_collectives import keys_of_copies, nodes_of, order_streams, streams_of
from epl.parallel.pipeline.order_writes import order_reads, order_writes, read_variable
from epl.parallel.pipeline.schedule_actions import Between, order_actions
from epl.parallel.pipeline.shared_values import share_values
from epl.parallel.pipeline.sum_gradients import GradientSums, of_all_micro_batches
from epl.parallel.plan.gradient_groups import control_flow_context
from epl.parallel.plan.stages import colocated_with, stages_of_nodes
from epl.parallel.replication.merge_outputs import merge
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.function_seeds import OwnSeeds
from epl.parallel.rewriting.needed_collectives import skip_unneeded
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.plan_nodes import Waits
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat
from epl.utils.errors import PlanError


def run(rewrite: RewriteContext) -> None:
    """Clones the micro batches of replica 0, and orders their actions as the schedule says."""
    if len(rewrite.plan.stages) == 1:
        return
    tf_graph = rewrite.tf_graph
    view = GraphView(tf_graph)
    _free_colocated(rewrite, view)
    boundaries = boundary_nodes(view, rewrite.trainings)
    writes = find_training_writes(tf_graph, view, view.writes(), boundaries)
    outputs = [view.index[output.tensor.partition(":")[0]] for output in rewrite.plan.outputs]
    streams = streams_of(rewrite, view)
    ops = micro_batches.find_micro_batch_ops(tf_graph, view, rewrite.trainings, writes, outputs, nodes_of(streams))
    _refuse(rewrite, view, ops)
    if rewrite.plan.num_micro_batch > 1:
        _refuse_aggregated(view, ops, boundaries)
    copies = range(1, rewrite.plan.num_micro_batch)
    stages = stages_of_nodes(view, rewrite.plan.stages)
    actions = micro_batches.find_actions(view, ops, rewrite.trainings, stages, nodes_of(streams, backward_only=True))
    shared = share_values(rewrite, view, ops, actions, stages)
    copied = ops.cloned.difference(shared.merged)
    rewrite.micro_batched = frozenset(view.nodes[node].name for node in copied)
    _note_stages(rewrite, view, copied, stages, copies)
    waits: Waits = {}
    between: Between = {}
    barriers = order_actions(rewrite, view, actions, waits, between)
    order_streams(rewrite, view, streams, copied, copies, waits)
    sums = GradientSums(rewrite, view, actions, between)
    extra = barriers + sums.nodes + shared.nodes
    keys = keys_of_copies(view, streams, copied, copies)
    cloned = _clone(rewrite, view, copied, copies, waits, extra, shared.inputs, keys)
    skip_unneeded(rewrite, rewrite.micro_batched, rewrite.stage_of)
    if copies:
        _merge_outputs(rewrite, view, ops)
        _use_merged_values(rewrite, view, ops, writes)
        sums.apply()
    order_reads(rewrite, view, ops, copies)
    order_writes(rewrite, view, ops, boundaries, stages)
    rewrite.view = view.followed(tf_graph, rewrite.user_nodes, cloned)


def _free_colocated(rewrite: RewriteContext, view: GraphView) -> None:
    """Removes TensorFlow's colocation of ops with an op of another stage.

    TensorFlow colocates a Switch with its input, and a tensor array with the first value written into it. A Switch of a
    variable stays with the variable.
    """
    for node in view.of_types(["Switch", "TensorArrayV3"]):
        attrs = view.nodes[node].attr
        anchor = colocated_with(view, node)
        if anchor >= 0 and attrs["T"].type != tf.resource.as_datatype_enum:
            if attrs[TASKGRAPH_ATTR].i != view.nodes[anchor].attr[TASKGRAPH_ATTR].i:
                tf_compat.clear_attr(rewrite.remember(rewrite.operation(view.nodes[node].name)), "_class")
                del attrs["_class"]


def _note_stages(
    rewrite: RewriteContext, view: GraphView, copied: Set[int], stages: Sequence[int], copies: Iterable[int]
) -> None:
    """Notes the stage of every op, including those of the further micro batches."""
    rewrite.stage_of = {proto.name: stage for proto, stage in zip(view.nodes, stages)}
    for prefix in [rewrite.micro_prefix(copy) for copy in copies]:
        rewrite.stage_of.update((prefix + view.nodes[node].name, stages[node]) for node in copied)


def _clone(
    rewrite: RewriteContext,
    view: GraphView,
    copied: Set[int],
    copies: Sequence[int],
    waits: Waits,
    extra: Sequence[tf.NodeDef],
    inputs: Mapping[str, str],
    keys: Mapping[Tuple[int, int], tf.AttrValue],
) -> Iterator[node_wire.Node]:
    """Adds a copy of the ops per further micro batch, and `extra` ops; returns the copies. Random copies get own seeds.

    `keys` are the keys of the copies of collectives, by micro batch and node.
    """
    seeds = OwnSeeds(view)
    random = [node for node in copied if seeds.is_random(view.nodes[node])]
    edits = {(copy, node): seeds.edit(view.nodes[node], micro_batch=copy) for copy in copies for node in random}
    rewrite.added_functions |= seeds.functions
    edits.update((key, SAME._replace(attrs=[("key", value)])) for key, value in keys.items())
    for key, ops in waits.items():
        edits[key] = edits.get(key, SAME)._replace(controls=ops)
    prefixes = [rewrite.micro_prefix(copy) for copy in copies]
    cloned = clone_nodes(
        rewrite.tf_graph,
        view,
        copied,
        prefixes,
        lambda copy, node: edits.get((copy + 1, node), SAME),
        extra,
        seeds.take_library(),
        inputs,
    )
    for (copy, node), ops in waits.items():
        if copy == 0:
            op = rewrite.remember(rewrite.operation(view.nodes[node].name))
            tf_compat.add_control_inputs(op, [rewrite.operation(name) for name in ops])
    return cloned


def _merge_outputs(rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps) -> None:
    """Merges each output over the micro batches of a replica, except outputs that are computed once per step."""
    for output in rewrite.plan.outputs:
        if view.index[output.tensor.partition(":")[0]] in ops.once:
            continue
        with rewrite.building("micro_batches/outputs", output.stage):
            rewrite.over_micro_batches[output.tensor] = merge(
                output.merge, of_all_micro_batches(rewrite, rewrite.tf_graph.get_tensor_by_name(output.tensor))
            )


def _use_merged_values(rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, writes: Set[int]) -> None:
    """Connects ops that run once per step to merged values; refuses a value that differs and is not merged.

    A variable that micro batches write is read again when such an op runs.
    """
    boundaries = boundary_nodes(view, rewrite.trainings)
    fixed = boundaries | ops.cloned
    region = view.ancestors(writes - ops.writes, fixed.__contains__) - fixed
    differing = (ops.cloned & ops.varying) - boundaries
    for node in sorted(region):
        data = [name for name in view.nodes[node].input if name[0] != "^"]
        for position, name in enumerate(data):
            tensor = name if ":" in name else name + ":0"
            producer = view.index[tensor.partition(":")[0]]
            if producer not in differing:
                continue
            merged = rewrite.over_micro_batches.get(tensor)
            taker = rewrite.operation(view.nodes[node].name)
            if merged is None and view.types[producer] in op_types.READS and view.variable_inputs(producer):
                merged = _read_late(rewrite, rewrite.operation(view.nodes[producer].name), taker)
            if merged is None:
                raise PlanError(
                    "{!r} runs once per step and takes {!r}, of which each of the {} micro batches has its own value. "
                    "Say how they are merged: epl.add_to_collection({!r}, epl.GraphKeys.LOCAL_MEAN_OBJECTS), for "
                    "example.".format(view.nodes[node].name, tensor, rewrite.plan.num_micro_batch, tensor)
                )
            tf_compat.set_input(rewrite.remember(taker), position, merged)


def _read_late(rewrite: RewriteContext, read: tf.Operation, taker: tf.Operation) -> tf.Tensor:
    """The variable of `read`, read again after all control inputs of `taker`."""
    stage = rewrite.stage_of[read.name]
    with rewrite.building("micro_batches/reads", stage), tf.control_dependencies(taker.control_inputs):
        return read_variable(read)


def _refuse_aggregated(view: GraphView, ops: MicroBatchOps, boundaries: Set[int]) -> None:
    """Refuses gradients that are computed from accumulated gradients: they have no micro batches to accumulate over."""
    for node in sorted(boundaries):
        if any(producer in ops.once for producer in view.producers[node]):
            raise PlanError(
                "The gradient {!r} is computed from gradients that an optimizer applies: those are accumulated over "
                "the micro batches, and so have no value in each of them. Take the gradients of another call of "
                "tf.gradients, which no optimizer gets, and go no further back than to what the last stage takes; or "
                "annotate the model as one stage.".format(view.nodes[node].name)
            )


def _refuse(rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps) -> None:
    staging = ops.cloned & set(view.of_types(op_types.STAGING))
    if staging:
        raise PlanError(
            "{!r} takes data from a staging area, which a pipeline cannot fill once per micro batch. Leave the staging "
            "area out: all data of a step is read ahead of its first action.".format(view.nodes[min(staging)].name)
        )
    for group in rewrite.groups:
        if control_flow_context(group) is not None:
            raise PlanError(
                "The gradients of {} are applied inside tf.cond, which a pipeline cannot do: apply them in every "
                "step.".format(group.name)
            )


PASS = Pass(
    "clone_micro_batches",
    run,
    "pipeline.num_micro_batch",
    provides=names("micro_batched micro_merged folded stage_of barriers later_writes"),
    adds=names("over_micro_batches orders collectives"),
    after=names("recompute offload gather_per_use needed_collectives"),
)
