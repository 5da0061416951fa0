"""The split TaskGraphs of a model, lowered when it is differentiated first: one rank's program takes their place.

    user's graph    features ──▶ [ epl.split: dense ──▶ loss ] ──▶ tf.gradients
    this rank       features ──▶ bridge ──▶ all-gather ──▶ ... ──▶ loss ──▶ tf.gradients      the user's ops do not run

Replicate code around a split is trained on the mean of what the ranks compute, each on its own batch; the split itself
on the batch of all, once. So gradients are divided by the rank's share in the mean on their way from the split into
replicate code, and multiplied by it on their way back: the *bridges* (epl/parallel/split/bridges.py).

Here: when it is done, and what the user's program sees of it. The program itself is made by epl/parallel/split;
variables, slots and checkpoints are in `epl/parallel/sharded_variables`.
"""

import logging
from typing import Any, ContextManager, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.colocation import in_taskgraph, taskgraph_index
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import times
from epl.ir.graph import Graph, GraphKeys, first_tensor
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, Phase
from epl.ops.communicator import Communicator
from epl.ops.communicator_groups import SubCommunicators
from epl.parallel.plan.agreement import meet, refuse_missing_workers
from epl.parallel.plan.communicators import processes_of, transport_of_job
from epl.parallel.plan.replica_groups import ReplicaGroups
from epl.parallel.plan.scattered_gradients import ScatteredGradients
from epl.parallel.plan.sections import SplitSection
from epl.parallel.plan.stages import refuse_other_stages, span_processes, stage_of_op, stage_of_taskgraph
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.parallel.sharded_variables.computed_parts import ComputedParts
from epl.parallel.sharded_variables.gradients import ShardedGradients
from epl.parallel.sharded_variables.initial_values import next_seed
from epl.parallel.sharded_variables.late_users import refuse_late_users
from epl.parallel.sharded_variables.state import add_owner, sharded_variables
from epl.parallel.sharded_variables.variables import SCOPE, shard_variable, wait_for_shards
from epl.parallel.sharding.batch_weights import BatchWeights
from epl.parallel.sharding.group_communicators import GroupCommunicators
from epl.parallel.sharding.placements import REPLICATED, Placement
from epl.parallel.sharding.shard_owner import SPLIT, NewVariable, ShardedTensor, ShardOwner
from epl.parallel.sharding.sharded_variables import ShardInfo, objects_of
from epl.parallel.sharding.stage_streams import StagePass, StageResharder
from epl.parallel.sharding.updates import complete_updates
from epl.parallel.split import report
from epl.parallel.split.bridges import (
    common_into_split,
    into_split,
    mean_into_split,
)
from epl.parallel.split.decision import decide_split
from epl.parallel.split.differentiated import Differentiated
from epl.parallel.split.fetched_values import computed_value, result_value
from epl.parallel.split.groups import SplitPlan, plan_split
from epl.parallel.split.inference_rows import InferenceRows
from epl.parallel.split.late_variables import refuse_late_variables
from epl.parallel.split.lowering import Lowering
from epl.parallel.split.outer_reads import gather_outer_reads
from epl.parallel.split.region import Dependence
from epl.parallel.split.region_outputs import RegionOutputs
from epl.parallel.split.search import Decision
from epl.parallel.split.second_gradients import refuse_gradients_of_parts
from epl.parallel.split.sizes_in_model import doubts
from epl.utils import tf_compat
from epl.utils.errors import FeedError, NotAvailableError, PlanError

logger = logging.getLogger("epl")


def lower(graph: Graph, ys: Any, xs: Any) -> Tuple[Any, Any]:
    """Lowers the split TaskGraphs of a model, once; returns what is to be differentiated in place of `ys` by `xs`.

    Args:
      graph: the annotated model.
      ys, xs: as given to tf.gradients.

    Raises:
      NotAvailableError: the model or the cluster asks for what cannot be done yet.
      PlanError: the model cannot be split as annotated.
    """
    with graph.tf_graph.as_default(), tf.control_dependencies(None):  # the call may wait for results of the split
        split = split_of(graph)
        if split is None:
            with graph.changing():
                plan = plan_split(graph)
                if plan is None:
                    return ys, xs
                if graph.state_of(ScatteredGradients) is not None:
                    raise NotAvailableError(
                        "epl.split that is differentiated after apply_gradients with zero.level",
                        "Call tf.gradients or compute_gradients for the losses of the split before the first "
                        "apply_gradients.",
                    )
                split = SplitModel(graph, plan, tf.nest.flatten(ys))
                graph.keep(ReplicaGroups, split)
        refuse_gradients_of_parts(graph, ys, split.shards, split.ranks)
        split.redirect()
        tensors = split.differentiated
        return tf.nest.map_structure(tensors.objective, ys), tf.nest.map_structure(tensors.source, xs)


def split_of(graph: Graph) -> Optional["SplitModel"]:
    """The lowered split of a graph; None before it is lowered, or without one."""
    found = graph.state_of(ReplicaGroups)
    assert found is None or isinstance(found, SplitModel)
    return found


class SplitModel(ShardOwner, ReplicaGroups):
    """The lowered split of one graph.

    It is one class because it has two interfaces, ShardOwner and ReplicaGroups, to one program and one region.

    Attributes:
      ratios: of each split TaskGraph; () if the parts of all are as equal as they can be.
      differentiated: what tf.gradients takes in place of the user's tensors.
      full_variables: names of variables that every rank holds in full, with the full gradient.
      moved_bytes: that a rank sends in a step.
      complete: names of the ops of noted gradients that the ranks of a group need not make a mean of.
    """

    setting = SPLIT

    def __init__(self, graph: Graph, plan: SplitPlan, objective: Sequence[Any]) -> None:
        """Finds the split, decides how it is computed, and builds the program of this process's first rank."""
        env = Env.get()
        cluster = env.cluster
        assert cluster is not None
        meet()
        name = env.new_shards_name() + "/split"
        refuse_missing_workers(name, plan.owners)
        fp16_scale = env.config.communication.fp16_scale if env.config.communication.fp16 else None
        transport = transport_of_job(env.config, cluster)
        across = span_processes(plan.stages, plan.owners)
        first = SubCommunicators(name, plan.groups, plan.owners, transport, across)
        processes = processes_of(plan.stages)
        group = GroupCommunicators(graph, first, processes, cluster.worker_index, transport, fp16_scale)
        super().__init__(group)
        self._graph, self._stages = graph, tuple(plan.stages)
        self._registry = sharded_variables(graph)
        self._gradients = ShardedGradients(graph, self._registry, self)
        self._computed = ComputedParts({}, {}, {})
        self.ratios = plan.ratios
        if len(plan.stages) > 1:
            own, communicator = first.place(group.rank).rank, first.at(group.rank)
            group.resharder = StageResharder(
                communicator, own, "split", fp16_scale, self._open_stream, self._current_pass
            )
        self._indices = {taskgraph.index for taskgraph in split_taskgraphs(graph)}
        decided = decide_split(graph, plan, objective)
        self._region, self._program, decision = decided.region, decided.program, decided.decision
        self._inside = frozenset(self._region.ops)
        full_inputs = decided.full_inputs
        graph.keep_whole(sorted(full_inputs, key=lambda tensor: tensor.name))  # feeds are told, too
        graph.keep(SplitSection, decided.section)
        logger.info("%s", report.table(self._program, decision))
        if self._program.growth:
            names = ", ".join(sorted(tensor.op.name for tensor in self._program.growth))
            logger.info("split: numbers of rows, which go on from device to device: %s", names)
        for doubt in doubts(self._program):
            logger.warning("%s", doubt)
        self.moved_bytes = sum(report.moved_bytes(self._program, decision))
        self.full_variables: Set[str] = set()
        self.complete: Set[str] = set()
        self._of_groups: Set[tf.Tensor] = set()
        self._objective = list(objective)
        self._inference = InferenceRows(graph, self._program, group, plan)
        if self._inference.any_open:
            self.resharder.batch_weights = BatchWeights(self._sum_once, lambda: self._current_pass().stage)
        self._outputs: Dict[tf.Tensor, tf.Tensor] = {}
        self._lowering = self._build(decision, full_inputs)
        if len(plan.groups) > 1 and self.resharder.batch_weights is not None:  # gradients of parts are weighed by them
            for stage in plan.stages:
                taskgraph = min(self._indices.intersection(stage.taskgraphs), default=None)
                if taskgraph is not None:
                    with in_taskgraph(graph.tf_graph, taskgraph):
                        self.resharder.batch_weights.of_group()
        self._region_outputs = RegionOutputs(
            self._region,
            self._program,
            self._lowering,
            self.resharder,
            self._indices,
            self.building,
            self._gradients.is_own,
        )
        self.differentiated = Differentiated(
            self._program,
            self._lowering,
            self._region_outputs,
            self.resharder,
            self.values,
            self.building,
            full_inputs,
        )
        with self.resharder.once():
            for made in self._registry.shards_of(SPLIT):
                gather_outer_reads(made, self.resharder, self._inside)
        self._seen_through = self._lowered_through = tf_compat.last_op_id(graph.tf_graph)
        self._gradients.traced_after = self._lowered_through
        add_owner(graph, self._registry, self)

    @property
    def shards(self) -> Dict[str, ShardInfo]:
        """The variables that the split has cut, and their slots."""
        return self._registry.of(SPLIT)

    @property
    def sub_communicators(self) -> List[SubCommunicators]:
        """The communicators of groups, and of the ranks with the same shard."""
        return self.group.sub_communicators

    def building(self) -> ContextManager[None]:
        """Ops that are made inside are not the user's: they compute with shards, or in place of his."""
        return self._gradients.building()

    @property
    def lowered_ops(self) -> FrozenSet[tf.Operation]:
        """The ops of the user inside of the split; others run in their place."""
        return self._inside

    # ---- Stages of a pipeline.

    def _open_stream(self, stage: int, what: str) -> Communicator:
        """May block until every process does."""
        opened = self.group.opened(f"stage{stage}/{what}", stage)
        self.sub_communicators.append(opened)
        return opened.at(self.group.rank)

    def _current_pass(self) -> StagePass:
        """The pass that the marks of new ops say."""
        taskgraph, phase = [tf_compat.attr_scope(self._graph.tf_graph, name) for name in (TASKGRAPH_ATTR, PHASE_ATTR)]
        stage = 0 if taskgraph is None else stage_of_taskgraph(self._stages).get(taskgraph.i, 0)
        backward = phase is not None and phase.s.decode() == Phase.BACKWARD
        return StagePass(stage, backward, len(self._graph.gradient_calls))

    def _sum_once(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks of the group, made once a step in the stage whose ops are being built."""
        with self.building(), self.resharder.once():
            return self.resharder.all_reduce(tensor, "rows_of_group")

    def _build(self, decision: Decision, full_inputs: Set[tf.Tensor]) -> Lowering:
        entries: Dict[tf.Tensor, tf.Tensor] = {}
        depends_on_data = Dependence(beside=full_inputs)

        def entry(tensor: tf.Tensor) -> tf.Tensor:
            if tensor not in entries:
                entries[tensor] = self._entered(tensor, depends_on_data)
            return entries[tensor]

        return Lowering(
            self._program,
            decision,
            self.resharder,
            self._variable,
            SCOPE + "/",
            entry=entry,
            stage_of=lambda op: stage_of_op(op, self._stages),
        )

    def _entered(self, tensor: tf.Tensor, depends_on_data: Dependence) -> tf.Tensor:
        """A tensor of replicate code as the split takes it."""
        if self._program.values[self._program.number[tensor]].info.batch is not None:
            return into_split(tensor, self.resharder)
        number = self._program.number[tensor]
        if not tensor.dtype.is_floating or number in self._program.fixed:
            return tensor
        if tensor.op.type in op_types.WRITES and tf_compat.control_flow_context_of(tensor.op) is not None:
            return tensor  # what a branch of the split has written, alike on all ranks; not all branches are taken
        if tensor.op.type not in op_types.PLACEHOLDERS and depends_on_data(tensor):
            return mean_into_split(tensor, self.resharder)
        return common_into_split(tensor, self.resharder)

    def _variable(self, op: tf.Operation, placement: Placement) -> tf.Tensor:
        """The value of this rank's part of a variable."""
        objects = objects_of(op)
        if not objects:
            raise PlanError(
                "{!r} is a variable that is in no collection, and epl.split cannot find its tf.Variable object. Create "
                "it with tf.get_variable, or with the collection tf.GraphKeys.GLOBAL_VARIABLES.".format(op.name)
            )
        if placement == REPLICATED:
            if not self._region.is_read_outside(op):
                self.full_variables.add(op.name)
            return objects[0].value()
        made = shard_variable(objects[0], placement, self.resharder, next_seed(self._graph))
        self._registry.add_shard(made, self)
        return made.variable.value()

    # ---- Fetches.

    def primary_ranks(self) -> Dict[tf.Tensor, Tuple[Tuple[int, ...], ...]]:
        """As that of ShardOwner."""
        return self._inference.primary_ranks()

    def refuse_replicated_rows(self, fetches: Sequence[tf.Tensor], differentiates: bool) -> None:
        """As that of ShardOwner."""
        local = {tensor: own for tensor, (own, _) in self._lowering.tensors.items()}
        objective = self._objective if differentiates else []
        self._inference.refuse(fetches, objective, [local, self._region_outputs.outputs])

    def value_of(self, tensor: tf.Tensor) -> Union[None, tf.Tensor, ShardedTensor]:
        """As that of ShardOwner."""
        if tensor in self._outputs:
            return self._graph.restored(self._outputs[tensor])
        value = self._program.result(tensor)
        if value is None or tensor.op in self._region.kept:
            if self._registry.shard_read(tensor):
                return None
            return computed_value(self._graph, self._computed, self.group, tensor)
        local, placement = self._lowering.tensors[tensor]
        return result_value(self._graph, self._program, value, self._graph.restored(local), placement)

    def local(self, item: Any) -> Any:
        """What a rank computes in place of a tensor or op of the user; the same if it is none of the split."""
        tensor = item.outputs[0] if isinstance(item, tf.Operation) and item.outputs else item
        if tensor not in self._program.number or self._program.result(tensor) is None:
            return item
        return self._lowering.tensors[tensor][0]

    def refuse_feed(self, tensor: tf.Tensor) -> None:
        """Raises FeedError for what is computed inside of the split: nothing takes it as it is."""
        if self._program.result(tensor) is not None:
            raise FeedError(
                "{!r} is fed, and computed inside of epl.split on {} devices: what takes it takes what they compute. "
                "Feed a placeholder, or build it outside of the split.".format(tensor.name, self.ranks)
            )

    def redirect(self) -> None:
        """Gives the ops that were made since then what stands for the tensors of the split."""
        self._region_outputs.redirect(tf_compat.ops_since(self._graph.tf_graph, self._seen_through))
        self._seen_through = tf_compat.last_op_id(self._graph.tf_graph)

    def users_tensors(self) -> Dict[str, str]:
        """Name of a tensor that a rank computes in place of one of the user -> that of the user's."""
        made = {tensor: local for tensor, (local, _) in self._lowering.tensors.items()}
        found: Dict[str, str] = {}
        for local in (made, self._region_outputs.outputs, self.differentiated.rows, self.values):
            results = [tensor for tensor in local if self._program.result(tensor) is not None]
            found.update((self._graph.restored(local[tensor]).name, tensor.name) for tensor in results)
        return found

    def results(self) -> Set[str]:
        """Names of the ops that compute what the user may ask for."""
        tensors = [tensor for tensor, _ in self._lowering.tensors.values()]
        tensors += self._region_outputs.outputs.values()
        found = {self._graph.restored(tensor).op.name for tensor in tensors if tensor.op not in self._region.kept}
        return found | self._computed.ops()

    # ---- Gradients.

    def reduced(self, variable: str, gradient: Gradient) -> Gradient:
        """The gradient that tf.gradients has computed, as the reduction method wants it where no all-reduce does it."""
        is_sum = Env.get().config.communication.gradients_reduce_method == "sum"
        if not is_sum or not self.is_complete(variable, gradient):
            return gradient
        computed = first_tensor(gradient).op
        with in_taskgraph(computed.graph, taskgraph_index(computed)):
            return times(gradient, float(self.ranks))

    def has_shard(self, variable: str) -> bool:
        """As that of ReplicaGroups."""
        return variable in self.shards

    def is_complete(self, variable: str, gradient: Gradient) -> bool:
        """As that of ReplicaGroups."""
        return variable in self.shards or (variable in self.full_variables and isinstance(gradient, tf.IndexedSlices))

    def note_gradient(self, variable: str, gradient: Gradient) -> None:
        """A gradient that tf.gradients gave back is that of a part, if the variable is one."""
        if self.is_complete(variable, gradient):
            self.complete.add(first_tensor(gradient).op.name)
        shard_info = self.shards.get(variable)
        if shard_info is not None:
            self._gradients.note(gradient, shard_info.placement)

    def adopt_updates(self, made: Sequence[NewVariable] = ()) -> None:
        """Adds the slots of an apply_gradients to the registry."""
        self._gradients.adopt_updates(made)

    def finish(self) -> None:
        """What can be done only when the whole graph is built: before it is rewritten.

        Raises:
          PlanError: scopes that were opened since then have changed what devices the stages have, or have variables.
        """
        cluster = Env.get().cluster
        assert cluster is not None
        refuse_other_stages(self._graph, cluster, self._stages, self.setting)
        self._take_outputs()
        self.redirect()
        first = self._stages[0].taskgraphs[0]
        with self.resharder.once(), in_taskgraph(self._graph.tf_graph, first if len(self._stages) > 1 else None):
            self._complete_updates()
        self._refuse_late_variables()

    def _complete_updates(self) -> None:
        """Completes what the user computes with gradients of shards, and lets it update them."""
        wait_for_shards(self._registry.shards_of(SPLIT))  # ops that were built since then, too
        gradients, group = self._gradients, self.group
        with self._graph.tf_graph.as_default():
            updates = gradients.trace()
            self.values.update(complete_updates(updates, self.resharder, group.between_groups, group.in_branch))
        placements = {self.values.get(tensor, tensor): placement for tensor, placement in updates.placements.items()}
        self._computed = ComputedParts(placements, gradients.rows, gradients.row_shapes)

    def follow_late(self, after: int) -> None:
        """As that of ShardOwner.

        Raises:
          PlanError: a scope of epl.split that was opened since then has variables, or an op computes with a shard.
        """
        self._refuse_late_variables()
        refuse_late_users(self._graph, self._registry, after)

    def _refuse_late_variables(self) -> None:
        refuse_late_variables(self._graph, self._lowered_through, self.shards, self.ranks)

    def _take_outputs(self) -> None:
        """What is merged of the split and its variables is what replicate code takes of them."""
        tensors = [tensor for key in GraphKeys.ALL_COLLECTION_KEYS for tensor in self._graph.get_collection(key)]
        shards = self.shards
        for tensor in tensors:
            result, shard_info = self._program.result(tensor), shards.get(self._registry.shard_read(tensor) or "")
            if result is not None:
                output = self._region_outputs.output(tensor)
            elif shard_info is not None:
                with self.building(), self.resharder.once(), in_taskgraph(tensor.graph, taskgraph_index(tensor.op)):
                    output = self.resharder.gather(self.values.get(tensor, tensor), shard_info.placement)
            else:
                continue
            self._outputs[self.values.get(tensor, tensor)] = output
            if result is None or result.info.batch is None:
                self._of_groups.add(output)

    def output(self, tensor: tf.Tensor) -> tf.Tensor:
        """What is merged in place of a tensor in an output collection."""
        return self._outputs.get(self.values.get(tensor, tensor), tensor)

    def is_of_group(self, output: str) -> bool:
        """Whether the ranks of a group have the value of an output together, given the name of what is merged."""
        return any(self._graph.restored(tensor).name == output for tensor in self._of_groups)

    def values_of_groups(self) -> Set[str]:
        """As that of ReplicaGroups."""
        whole = {one: own for one, (own, placement) in self._lowering.tensors.items() if placement == REPLICATED}
        found: Set[str] = set()
        for local in (whole, self._region_outputs.outputs):
            results = [(own, self._program.result(tensor)) for tensor, own in local.items()]
            found.update(
                self._graph.restored(own).name for own, result in results if result and result.info.batch is None
            )
        return found
