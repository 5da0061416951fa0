"""ZeRO (`zero.level`): data parallelism in which each rank holds 1/N of the weights and of the optimizer state.

    shard of w --> all-gather --> forward, backward --> gradient --> reduce --> its shard --> update of the shard of w

| level | gradients | weights |
| --- | --- | --- |
| v0 | all-reduced, then cut: equal to those of data parallelism, bit by bit | gathered once in a step |
| v1 | reduce-scattered: each rank gets only its shard | the same |
| v2 | as v1 | gathered for a block of uses at a time, for forward and backward: `epl.parallel.zero.gather_per_use` |

ZeRO begins at apply_gradients: the optimizer gets shards of gradients and variables. All other ops that use a variable
are redirected when the graph is complete (`variables.py`). Slots, checkpoints and fetches work as for all sharded
variables: `epl/parallel/sharded_variables`.
"""

import logging
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.env import Env
from epl.ir import op_types
from epl.ir.colocation import in_taskgraph
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph
from epl.ir.view import ancestor_ops
from epl.ops.communicator_groups import SubCommunicators
from epl.parallel.plan.agreement import meet, refuse_missing_workers
from epl.parallel.plan.communicators import processes_of, transport_of_job
from epl.parallel.plan.dedicated_devices import has_dedicated_devices
from epl.parallel.plan.plan import Stage
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.plan.scattered_gradients import Cut, ScatteredGradients
from epl.parallel.plan.stages import plan_stages, refuse_other_stages, span_processes, stage_of_op
from epl.parallel.plan.unequal_scopes import unequal_scopes
from epl.parallel.plan.zero_decisions import Candidate, scatters_gradients
from epl.parallel.plan.zero_refusals import refuse_stages_with_groups, refuse_v2
from epl.parallel.sharded_variables.gradients import ShardedGradients
from epl.parallel.sharded_variables.initial_values import local_shapes, next_seed
from epl.parallel.sharded_variables.state import add_owner, sharded_variables
from epl.parallel.sharded_variables.variables import beside, is_shard, wait_for_shards
from epl.parallel.sharding.group_communicators import GroupCommunicators
from epl.parallel.sharding.packed import Member
from epl.parallel.sharding.placements import Placement, offsets
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.shard_owner import ZERO, NewVariable, ShardOwner
from epl.parallel.sharding.updates import complete_updates
from epl.parallel.zero import section
from epl.parallel.zero.up_front_gathers import gather_pack, packs, values_of_writes
from epl.parallel.zero.variables import Use, WeightPlaceholder, ZeroVariable, why_full
from epl.utils import tf_compat
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")

Pair = Tuple[Optional[Gradient], Any]
# An op that reads a variable after its update: (consumer, variable, use), or (lookup, variable, None).
_Late = Tuple[tf.Operation, ZeroVariable, Optional[Use]]
# The readers of a variable's value at the beginning of a step: (variable, uses, lookups).
_Given = Tuple[ZeroVariable, Sequence[Use], Sequence[tf.Operation]]


def hold_shards(graph: Graph, pairs: Sequence[Pair]) -> None:
    """With `zero.level`, shards the variables that are about to be trained.

    Args:
      graph: the annotated model.
      pairs: the (gradient, variable) pairs of apply_gradients.

    Raises:
      NotAvailableError: the model uses a feature that does not work together with ZeRO.
      PlanError: scopes that were opened since the last call have changed the stages.
    """
    env = Env.get()
    level = env.config.zero.level
    if not level or graph.rewritten is not None:
        return
    assert env.cluster is not None
    zero = zero_of(graph)
    if zero is not None:
        zero.refuse_other_stages(env.cluster)
    stages, owners = plan_stages(graph, env.cluster)
    if len(owners) == 1:
        if graph.says_first("zero"):
            logger.info("zero.level is %r and has no effect: there is one replica of the model.", level)
        return
    _refuse_combinations(graph, level, len(stages))
    with graph.changing():
        if zero is None:
            meet()
            name = env.new_shards_name() + "/zero"
            refuse_missing_workers(name, owners)
            zero = graph.keep(ZeroModel, ZeroModel(graph, level, name, stages, owners, env.cluster.worker_index))
            graph.keep(ScatteredGradients, zero)
        zero.hold(pairs)


def _refuse_combinations(graph: Graph, level: str, stages: int) -> None:
    """Raises NotAvailableError for features that do not work together with ZeRO."""
    cluster = Env.get().cluster
    assert cluster is not None
    if stages > 1 and replica_groups(graph) is not None:
        is_unequal = unequal_scopes(graph.taskgraphs, cluster) is not None
        refuse_stages_with_groups(level, is_unequal, has_dedicated_devices(graph.taskgraphs, cluster))
    if level == "v2":
        refuse_v2(bool(Env.get().config.offload.level), replica_groups(graph) is not None, stages)


def zero_of(graph: Graph) -> Optional["ZeroModel"]:
    """The ZeRO state of a graph; None if it shards no variable."""
    return graph.state_of(ZeroModel)


def known_to_optimizers(value: Any) -> Any:
    """The optimizer's counterpart of an argument: the shard, if `value` is a sharded variable, else `value` itself."""
    tf_graph = getattr(value, "graph", None)
    graph = Graph.of(tf_graph) if isinstance(tf_graph, tf.Graph) else None
    zero = None if graph is None else zero_of(graph)
    return value if zero is None else zero.known_to_optimizers(value)


class ZeroModel(ShardOwner, ScatteredGradients):
    """The variables of one graph that ZeRO shards.

    It is one class because all its steps share the table of sharded variables: `hold` fills it at apply_gradients,
    `part` reads it to cut gradients, and `finish` adds the gathers of its variables.

    Attributes:
      level: "v0", "v1" or "v2".
      placeholders: with "v2", the placeholders for full weights.
    """

    setting = ZERO

    def __init__(
        self, graph: Graph, level: str, name: str, stages: Sequence[Stage], owners: Sequence[int], process: int
    ) -> None:
        """Shards nothing yet. Opens communicators: may block until every process does.

        Args:
          graph: the annotated model.
          level: `zero.level`.
          name: prefix of the names of communicators.
          stages: the stages of the model.
          owners: the process of each rank (replica of the model).
          process: this one. What it builds is of no use if it owns no replica.
        """
        cluster = Env.get().cluster
        assert cluster is not None
        config = Env.get().config
        of_devices = transport_of_job(config, cluster)
        # With offload.level weights are gathered in host memory, and copied to the devices from there.
        of_weights = transport_of_job(config, cluster, on_host=bool(config.offload.level))
        ranks = (tuple(range(len(owners))),)
        first = SubCommunicators(name, ranks, owners, of_weights, span_processes(stages, owners))
        super().__init__(GroupCommunicators(graph, first, processes_of(stages), process, of_devices))
        self._graph, self._stages = graph, tuple(stages)
        self._registry = sharded_variables(graph)
        add_owner(graph, self._registry, self)
        self._gradients = ShardedGradients(graph, self._registry, self)
        self.level = level
        self._of_weights = of_weights
        self._variables: Dict[str, ZeroVariable] = {}
        self._calls: Dict[ZeroVariable, int] = {}  # by variable: the number of the call of `hold` that has sharded it
        self._surplus: Dict[int, List[float]] = {}  # by stage and rank: bytes from shards with one row more
        self._cuts: Dict[tf.Tensor, Cut] = {}
        self.placeholders: List[WeightPlaceholder] = []
        self._streams: List[Resharder] = []
        self._first_apply = tf_compat.last_op_id(graph.tf_graph)

    # ---- apply_gradients.

    def refuse_other_stages(self, cluster: Cluster) -> None:
        """Raises PlanError if scopes that were opened since the first apply_gradients have changed the stages."""
        refuse_other_stages(self._graph, cluster, self._stages, self.setting)

    def hold(self, pairs: Sequence[Pair]) -> None:
        """Shards those variables of the pairs for which it is worth it."""
        number = max(self._calls.values(), default=0) + 1
        by_stage: Dict[int, List[Candidate]] = {}
        variables = {}
        for gradient, variable in pairs:
            name = variable_name(variable)
            if gradient is None or name is None or name in self._variables or name in variables or is_shard(variable):
                continue
            reason = why_full(variable)
            if reason:
                logger.info("zero.level: %s stays whole on every device: it %s.", name, reason)
                continue
            variables[name] = variable
            shape = tuple(variable.shape.as_list())
            size = variable.shape.num_elements() * variable.dtype.base_dtype.size
            candidate = Candidate(name, shape, size, isinstance(gradient, tf.IndexedSlices))
            by_stage.setdefault(stage_of_op(variable.op, self._stages), []).append(candidate)
        candidates = [one for of_stage in by_stage.values() for one in of_stage]
        placements: Dict[str, Placement] = {}
        for stage, of_stage in by_stage.items():
            placements.update(section.decide(of_stage, self._surplus.setdefault(stage, [0.0] * self.ranks)))
        section.note(self._graph, self.level, len(self._stages), candidates, placements)
        for one in candidates:
            if one.name not in placements:
                continue
            with tf.init_scope():
                made = ZeroVariable(variables[one.name], placements[one.name], self.resharder, next_seed(self._graph))
            self._variables[one.name] = made
            self._calls[made] = number
            self._registry.add_shard(made.made, self)

    def part(self, pair: Pair) -> Pair:
        """The shards of a gradient and its variable, for the optimizer."""
        gradient, variable = pair
        full = self._variables.get(variable_name(variable) or "")
        if gradient is None or full is None:
            return pair
        placement = full.made.placement
        with tf.name_scope("epl_part"):
            if (
                isinstance(gradient, tf.IndexedSlices) and placement.dim
            ):  # the placement was chosen for another, dense gradient
                gradient = tf.convert_to_tensor(gradient)
            if isinstance(gradient, tf.IndexedSlices):
                part: Gradient = self._local_rows(gradient, full)
            else:
                part = tf.identity(self.resharder.cut(gradient, placement))
                self._cuts[gradient] = Cut(part, Member(full.made.full_shape, placement))
        self._gradients.note(part, placement)
        return part, full.made.variable

    def known_to_optimizers(self, value: Any) -> Any:
        """The shard, if `value` is a sharded variable; else `value` itself."""
        full = self._variables.get(variable_name(value) or "")
        return value if full is None else full.made.variable

    def scatters(self, gradient: Gradient) -> bool:
        """Whether a gradient can be reduce-scattered: the graph uses only this rank's shard of the reduced gradient."""
        if not scatters_gradients(self.level, Env.get().config.communication.clip_after_allreduce):
            return False
        return not isinstance(gradient, tf.IndexedSlices) and self.cut_of(gradient) is not None

    def cut_of(self, gradient: tf.Tensor) -> Optional[Cut]:
        """Where a gradient is cut, if its shard is its only use."""
        while gradient not in self._cuts:
            consumers = gradient.consumers()
            if len(consumers) != 1 or consumers[0].type != "Identity":
                return None
            gradient = consumers[0].outputs[0]
        return self._cuts[gradient]

    def _local_rows(self, gradient: tf.IndexedSlices, full: ZeroVariable) -> tf.IndexedSlices:
        """The rows of a sparse gradient that belong to this rank's shard."""
        made = full.made
        sizes = made.placement.sizes or ()
        own = gradient.indices - self.resharder.own(offsets(sizes), gradient.indices.dtype)
        kept = tf.logical_and(own >= 0, own < self.resharder.own(sizes, own.dtype))
        shape = self.resharder.own(local_shapes(made.full_shape, made.placement), own.dtype)
        with tf_compat.silent_deprecations():
            return tf.IndexedSlices(tf.boolean_mask(gradient.values, kept), tf.boolean_mask(own, kept), shape)

    # ---- When the graph is built.

    def adopt_updates(self, made: Sequence[NewVariable] = ()) -> None:
        """Adds the slots of an apply_gradients to the registry."""
        self._gradients.adopt_updates(made)

    def finish(self) -> None:
        """Redirects all ops that use a sharded variable to its shard, or to the gathered full value.

        Raises:
          PlanError: scopes that were opened since the first apply_gradients have changed the stages.
        """
        cluster = Env.get().cluster
        assert cluster is not None
        self.refuse_other_stages(cluster)
        with self._graph.tf_graph.as_default():
            updates = self._gradients.trace()
            late: List[_Late] = []
            given: List[_Given] = []
            uses = [(variable, variable.redirect()) for variable in self._variables.values()]
            wait_for_shards(variable.made for variable in self._variables.values())
            for variable, of_variable in sorted(uses, key=lambda one: _first(one[1])):
                writes = variable.writes()
                up_front: List[Use] = []
                lookups: List[tf.Operation] = []
                for use in of_variable:
                    if self._is_late(use, writes):
                        late.append((use.consumer, variable, use))
                    else:
                        up_front.append(use)
                for op in variable.lookups():
                    if self._waits(op) or _is_after(op, writes):
                        late.append((op, variable, None))
                    else:
                        lookups.append(op)
                if up_front or lookups:
                    given.append((variable, up_front, lookups))
            self._give(given)
            if updates.rounds:
                with in_taskgraph(self._graph.tf_graph, self._stages[0].taskgraphs[0]):
                    sums = self.group.further("sums", 0)
                    self.values.update(complete_updates(updates, sums, None, self.group.in_branch))
            self._give_late(late)

    def follow_late(self, after: int) -> None:
        """Redirects Savers and the like that were built after the first run to the shards; refuses other new users."""
        with self._graph.tf_graph.as_default():
            for variable in self._variables.values():
                variable.follow_late()
            wait_for_shards(variable.made for variable in self._variables.values())

    def _is_late(self, use: Use, writes: Collection[tf.Operation]) -> bool:
        """Whether a value is read after an update, or after one of `writes`."""
        value = use.value.op
        return self._waits(value) or self._waits(use.consumer) or _is_write(value) or _is_after(value, writes)

    def _waits(self, op: tf.Operation) -> bool:
        """Whether an op was built after apply_gradients and has control inputs."""
        return tf_compat.op_id(op) > self._first_apply and bool(_controls(op))

    def _give(self, given: Sequence[_Given]) -> None:
        """Connects the ops that read variables before they are written to the full values, or to placeholders (v2)."""
        if self.level == "v2":
            self.placeholders = [WeightPlaceholder(variable.placeholder(), variable) for variable, _, _ in given]
            fulls = [one.tensor for one in self.placeholders]
        else:
            fulls = self._gather_once(given)
        for (variable, uses, lookups), full in zip(given, fulls):
            for use in uses:
                tf_compat.set_input(use.consumer, use.position, full)
                tf_compat.add_control_inputs(use.consumer, _controls(use.value.op))  # the read's own control inputs
            for lookup in lookups:
                variable.give_rows(lookup, full)

    def _gather_once(self, given: Sequence[_Given]) -> List[tf.Tensor]:
        """The full values, gathered at the beginning of a step."""
        fulls: Dict[ZeroVariable, tf.Tensor] = {}
        variables = [variable for variable, _, _ in given]
        takers = values_of_writes(self._variables.values())
        alone = {
            variable
            for variable, uses, lookups in given
            if variable.is_written_by_script or not takers.isdisjoint([*[use.consumer for use in uses], *lookups])
        }
        for pack in packs(variables, lambda one: (self._stage(one), self._calls[one]), alone):
            stage = self._stage(pack[0])
            resharder = self.resharder if not stage else self.group.further(f"early{stage}", stage, self._of_weights)
            gathered = [self.gather(pack[0], resharder)] if len(pack) == 1 else gather_pack(pack, resharder)
            fulls.update(zip(pack, gathered))
            for op in [op for variable in pack for op in variable.updates()]:
                tf_compat.add_control_inputs(
                    op, [resharder.collectives[-1]]
                )  # an update waits until its variable is gathered
        return [fulls[variable] for variable in variables]

    def new_stream(self) -> Resharder:
        """Opens another stream: its gathers are ordered among themselves alone."""
        self._streams.append(self.group.further(f"lane{len(self._streams)}", 0))
        return self._streams[-1]

    def _give_late(self, late: Sequence[_Late]) -> None:
        made: Dict[Tuple[ZeroVariable, Tuple[str, ...]], tf.Tensor] = {}
        streams: Dict[Tuple[int, Tuple[str, ...]], str] = {}  # by stage and control inputs: streams wait apart

        def resharder(variable: ZeroVariable, names: Tuple[str, ...]) -> Resharder:
            stage = self._stage(variable)
            stream = streams.setdefault((stage, names), f"late{stage}/{len(streams)}")
            return self.group.further(stream, stage)

        def full(variable: ZeroVariable, *ops: tf.Operation) -> tf.Tensor:
            """The full value after all control inputs of `ops`."""
            controls = [before for op in ops for before in _controls(op)]
            key = variable, tuple(sorted({op.name for op in controls}))
            if key not in made:
                made[key] = self.gather(variable, resharder(*key), controls)
            return made[key]

        def written(variable: ZeroVariable, part: tf.Tensor) -> tf.Tensor:
            """The full value that a write returns."""
            key = variable, ("of " + part.op.name,)
            if key not in made:
                made[key] = self.gather(variable, resharder(*key), part=part)
            return made[key]

        # In the order of the consumers, which is the same in every process.
        for taker, variable, use in sorted(late, key=lambda one: tf_compat.op_id(one[0])):
            if len(self._stages) > 1 and tf_compat.op_id(taker) <= self._first_apply:
                _refuse_writes_in_stages(variable, taker)
            if use is None:
                variable.give_rows(taker, full(variable, taker))
            elif _is_write(use.value.op):
                tf_compat.set_input(taker, use.position, written(variable, use.part))
            else:
                after = [taker] if self._waits(taker) else []
                tf_compat.set_input(taker, use.position, full(variable, use.value.op, *after))
        for variable in self._variables.values():
            for value, part in variable.reads:
                if not _is_write(value.op):
                    self.values[value] = full(variable, value.op) if self._waits(value.op) else part

    def _stage(self, variable: ZeroVariable) -> int:
        return stage_of_op(variable.made.old.op, self._stages)

    def gather(
        self,
        variable: ZeroVariable,
        resharder: Resharder,
        controls: Sequence[tf.Operation] = (),
        part: Optional[tf.Tensor] = None,
    ) -> tf.Tensor:
        """The full value of a variable, gathered after the earlier collectives of `resharder` and after `controls`.

        `part`: the tensor to gather; by default the value of the shard.
        """
        made = variable.made
        with beside(made.old.op), tf.device(made.variable.device), tf.control_dependencies(list(controls)):
            own = made.variable.read_value() if part is None else tf.identity(part)
            return resharder.gather(resharder.hide_size(own, made.placement), made.placement)


def _refuse_writes_in_stages(variable: ZeroVariable, taker: tf.Operation) -> None:
    """Raises PlanError for an op of a micro batch that reads a variable after a write of the model."""
    raise PlanError(
        "{!r} ({}) takes {!r} after what the model writes into it. With zero.level, a pipeline gathers its weights "
        "once in a step, before all micro batches. Write into it after minimize, or set zero.level to ''.".format(
            taker.name, taker.type, variable.made.name
        )
    )


def _is_write(op: tf.Operation) -> bool:
    return op.type in op_types.WRITES


def _is_after(op: tf.Operation, writes: Collection[tf.Operation]) -> bool:
    """Whether an op waits for one of `writes`."""
    return bool(writes) and not ancestor_ops(_controls(op)).isdisjoint(writes)


def _controls(op: tf.Operation) -> List[tf.Operation]:
    """The control inputs of an op; none for an op in a loop or branch.

    Where an op reads a constant that was built in the same tf.control_dependencies, TensorFlow gives the control inputs
    to the constant alone; they are included.
    """
    if tf_compat.control_flow_context_of(op) is not None:
        return []
    constants = [tensor.op for tensor in op.inputs if tensor.op.type == "Const"]
    return [before for waiting in [op] + constants for before in waiting.control_inputs]


def _first(uses: Sequence[Use]) -> int:
    """The id of the first consumer."""
    return min([tf_compat.op_id(use.consumer) for use in uses] or [0])
