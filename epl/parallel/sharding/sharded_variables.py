"""The registry of a graph's sharded variables: which variable op holds which shard of which variable, and who cut it.

    split    "EPL_SPLIT/fc/kernel"  ->  ShardInfo("fc/kernel", [10, 8], shard(1: 4+4), "epl.split")
    ZeRO     "EPL_SPLIT/table"      ->  ShardInfo("table", [64, 8], shard(0: 32+32), "zero.level")

A graph has one registry from the moment when the first of its variables is cut: `graph.state_of(ShardedVariables)`.
Each rank builds the ops of one rank; what differs in the ops of another is in the registry, too. How variables are cut
is the business of `epl/parallel/split/model.py` and `epl/parallel/zero/model.py`, the owners. What a run gives for a
sharded variable is in `epl/parallel/sharded_variables/fetching.py`, checkpoints are in `checkpoints.py` there.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.service import CommunicatorSpec
from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.shard_owner import NewVariable, ShardOwner
from epl.utils import tf_compat

_Shapes = Tuple[Tuple[int, ...], ...]
_Attrs = List[Tuple[str, tf.AttrValue]]


class ShardInfo(NamedTuple):
    """What a variable op holds a shard of.

    Attributes:
      full_name: name of the full variable in checkpoints.
      full_shape: of the full variable.
      placement: how it is cut.
      owner: the setting by which the user asks for it, see `ShardOwner`.
    """

    full_name: str
    full_shape: Tuple[int, ...]
    placement: Placement
    owner: str


class Shard(NamedTuple):
    """What became of a variable. Constants that differ between ranks are in `Resharder.owned`.

    Attributes:
      name: of the full variable's op, which is its name in checkpoints.
      variable: the user's object, which is the shard now.
      placement: the shard, with sizes.
      full_shape: of the full variable.
      old: the reference or handle of the full variable. Nothing may read it any more.
      reads: (value of the full variable, value of the shard) for each op that read it.
      users: other ops that take `old`: lookups in a resource variable, loops, branches. The lowering builds them anew.
      replaced: ops that were replaced for all who wait for them or use them; for those who fetch them.
      shapes: name of a variable op -> its attribute `shape`, by shard.
      seeds: name of a random op -> its second seed, by shard.
    """

    name: str
    variable: Any
    placement: Placement
    full_shape: Tuple[int, ...]
    old: tf.Tensor
    reads: Tuple[Tuple[tf.Tensor, tf.Tensor], ...]
    users: Tuple[tf.Operation, ...]
    replaced: Dict[tf.Operation, tf.Operation]
    shapes: Dict[str, _Shapes]
    seeds: Dict[str, Tuple[int, ...]]


class Slots(NamedTuple):
    """Variables that optimizers keep for shards, by the names of their ops.

    Attributes:
      variables: what they hold shards of; the trained shards are among them.
      shapes, seeds: what differs between ranks, as in `Shard`; those of the trained shards are not among them.
    """

    variables: Dict[str, ShardInfo]
    shapes: Dict[str, _Shapes]
    seeds: Dict[str, Tuple[int, ...]]


class ShardedVariables:
    """The sharded variables of one graph.

    Attributes:
      variables: name of a variable op -> what it holds a shard of. Slots are among them after apply_gradients.
      shards: the trained variables that were cut, in order.
      shapes: name of a variable op -> its attribute `shape` by rank of the job, where it may differ.
      owners: by setting.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.variables: Dict[str, ShardInfo] = {}
        self._by_owner: Dict[str, Dict[str, ShardInfo]] = {}
        self.shards: List[Shard] = []
        self.shapes: Dict[str, _Shapes] = {}
        self._seeds: Dict[str, Tuple[int, ...]] = {}
        self._shard_names: Dict[str, str] = {}  # op of a full variable -> op of its shard
        self.owners: Dict[str, ShardOwner] = {}

    # ---- What owners add.

    def add_shard(self, shard: Shard, owner: ShardOwner) -> None:
        """Adds a variable that was cut."""
        name = shard.variable.op.name
        self.shards.append(shard)
        self._shard_names[shard.old.op.name] = name
        info = ShardInfo(shard.name, shard.full_shape, shard.placement, owner.setting)
        self.add_slots(Slots({name: info}, shard.shapes, shard.seeds), owner)
        owner.values[shard.old] = shard.variable.op.outputs[0]
        owner.values.update(shard.reads)

    def add_slots(self, slots: Slots, owner: ShardOwner) -> None:
        """Adds further variables that are shards."""
        self.variables.update(slots.variables)
        self._by_owner.setdefault(owner.setting, {}).update(slots.variables)
        self.shapes.update((name, owner.group.by_rank(shapes)) for name, shapes in slots.shapes.items())
        self._seeds.update((name, owner.group.by_rank(seeds)) for name, seeds in slots.seeds.items())

    def adopt_updates(self, made: Sequence[NewVariable] = ()) -> None:
        """Lets the owners add the variables that updates write; `made` are those that an apply_gradients has made."""
        with self._graph.tf_graph.as_default():
            for owner in self.owners.values():
                owner.adopt_updates(made)

    # ---- Which variable is meant.

    def of(self, setting: str) -> Dict[str, ShardInfo]:
        """Those of the variables that one owner has cut."""
        return self._by_owner.get(setting, {})

    def shards_of(self, setting: str) -> List[Shard]:
        """The trained variables of one owner."""
        return [one for one in self.shards if self.variables[one.variable.op.name].owner == setting]

    def owner_of(self, name: str) -> ShardOwner:
        """The owner of a variable, given by the name of its op."""
        return self.owners[self.variables[name].owner]

    def shard_of(self, name: str) -> str:
        """The variable op that is trained in place of one of the user; both by name."""
        return self._shard_names.get(name, name)

    def shard_read(self, tensor: tf.Tensor) -> Optional[str]:
        """Name of the op of the shard whose value, or full value, a tensor is; None for another tensor."""
        op = tensor.op
        variable = op.inputs[0].op if op.type in op_types.READS and op.inputs else op
        name = self.shard_of(variable.name)
        return name if name in self.variables else None

    def full_names(self, setting: str) -> Dict[str, str]:
        """Op of a full variable -> op of its shard, of one owner; both by name."""
        names = self._shard_names.items()
        return {full: name for full, name in names if self.variables[name].owner == setting}

    # ---- Which ops are.

    def replacement_op(self, op: tf.Operation) -> tf.Operation:
        """The op on the shard that replaces an op of the user on the full variable; another op as it is."""
        for shard in self.shards:
            op = shard.replaced.get(op, op)
        return op

    def replaced(self) -> List[str]:
        """Names of ops on variables that are shards now; nothing runs them any more."""
        return [op.name for shard in self.shards for op in shard.replaced]

    def results(self) -> Set[str]:
        """Names of the ops that compute what the user may ask for, besides variables."""
        found: Set[str] = set().union(*[owner.results() for owner in self.owners.values()])
        return found - {tensor.op.name for owner in self.owners.values() for tensor in owner.values}

    def initializers(self) -> List[str]:
        """Names of the ops that give the shards their initial values: every rank runs its own."""
        operation = self._graph.tf_graph.get_operation_by_name
        ops = [variable.initializer for name in self.variables for variable in objects_of(operation(name))]
        ops += [shard.variable.initializer for shard in self.shards]
        return sorted({getattr(op, "op", op).name for op in ops})

    # ---- What differs between ranks.

    @property
    def collectives(self) -> List[tf.Operation]:
        """Those of the first rank that move data of the shards in a step."""
        return [op for owner in self.owners.values() for op in owner.group.collectives]

    @property
    def unopened(self) -> List[CommunicatorSpec]:
        """The communicators that are opened together with those of the plan."""
        return [spec for owner in self.owners.values() for spec in owner.group.unopened]

    def rank_attributes(self, view: GraphView, cloned: Set[int]) -> Dict[int, List[_Attrs]]:
        """Node -> by rank of the job, the attributes in which a copy differs.

        Initial values are drawn with the same seeds by all.
        """
        needed = view.ancestors([view.index[name] for name in self.initializers()]) & cloned
        ranks = max(len(owner.group.owners) for owner in self.owners.values())
        same: List[_Attrs] = [[] for _ in range(ranks)]
        attrs = {node: same for node in needed if "seed2" in view.nodes[node].attr}
        for group in [owner.group for owner in self.owners.values()]:
            for name, owned in [item for resharder, _ in group.resharders for item in resharder.owned.items()]:
                protos = group.by_rank([tf.make_tensor_proto(value, owned.dtype) for value in owned.values])
                attrs[view.index[name]] = [[("value", tf.AttrValue(tensor=proto))] for proto in protos]
        for name, shapes in self.shapes.items():
            values = [tf.AttrValue(shape=tf.TensorShape(shape).as_proto()) for shape in shapes]
            attrs[view.index[name]] = [[("shape", value)] for value in values]
        for name, seeds in self._seeds.items():
            attrs[view.index[name]] = [[("seed2", tf.AttrValue(i=seed))] for seed in seeds]
        return attrs


def objects_of(op: tf.Operation) -> List[Any]:
    """The Python objects of a variable in the collections: the user's own, and others, as an imported graph has."""
    found: List[Any] = []
    for key in op.graph.get_all_collection_keys():
        for member in op.graph.get_collection_ref(key):
            if isinstance(member, tf_compat.VARIABLE_CLASSES) and member.op is op:
                if not any(member is other for other in found):
                    found.append(member)
    return found
