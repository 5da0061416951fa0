"""The registry of a graph's sharded variables: for each variable op, the shard that it holds and the owner that cut it.

    split    "EPL_SPLIT/fc/kernel"  ->  ShardInfo("fc/kernel", [10, 8], shard(1: 4+4), "epl.split")
    ZeRO     "EPL_SPLIT/table"      ->  ShardInfo("table", [64, 8], shard(0: 32+32), "zero.level")

A graph has one registry after the first of its variables is cut: `graph.state_of(ShardedVariables)`. A process builds
the ops of one rank; the registry has the differences in the ops of the other ranks, too. The owners cut the variables:
`epl/parallel/split/model.py` and `epl/parallel/zero/model.py`. `epl/parallel/sharded_variables/fetching.py` has the
values that runs give for sharded variables, `checkpoints.py` there has checkpoints.
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
    """The shard that a variable op holds.

    Attributes:
      full_name: name of the full variable in checkpoints.
      full_shape: of the full variable.
      placement: how it is cut.
      owner: the setting by which the user asks for that, see `ShardOwner`.
    """

    full_name: str
    full_shape: Tuple[int, ...]
    placement: Placement
    owner: str


class Shard(NamedTuple):
    """A variable that was cut. Constants that differ between ranks are in `Resharder.owned`.

    Attributes:
      name: of the full variable's op, which is its name in checkpoints.
      variable: the user's object, which is the shard now.
      placement: the shard, with sizes.
      full_shape: of the full variable.
      old: the reference or handle of the full variable. Nothing may read it any more.
      reads: (value of the full variable, value of the shard) for each op that read the variable.
      users: other ops that take `old`: lookups in a resource variable, loops, branches. The lowering rebuilds them.
      replaced: op -> its replacement, which all ops that use it or wait for it take already; a fetch must look it up.
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
      variables: the shards that they hold; the trained shards are among them.
      shapes, seeds: differences between ranks, as in `Shard`, without those of the trained shards.
    """

    variables: Dict[str, ShardInfo]
    shapes: Dict[str, _Shapes]
    seeds: Dict[str, Tuple[int, ...]]


class ShardedVariables:
    """The sharded variables of one graph.

    Attributes:
      variables: name of a variable op -> the shard that it holds. Slots are among them after apply_gradients.
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

    # ---- Additions by owners.

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
        """Lets the owners add the variables that updates write; `made` are the new ones of an apply_gradients."""
        with self._graph.tf_graph.as_default():
            for owner in self.owners.values():
                owner.adopt_updates(made)

    # ---- Lookups of variables.

    def of(self, setting: str) -> Dict[str, ShardInfo]:
        """The variables that one owner has cut."""
        return self._by_owner.get(setting, {})

    def shards_of(self, setting: str) -> List[Shard]:
        """The trained variables of one owner."""
        return [one for one in self.shards if self.variables[one.variable.op.name].owner == setting]

    def owner_of(self, name: str) -> ShardOwner:
        """The owner of a variable, given by the name of its op."""
        return self.owners[self.variables[name].owner]

    def shard_of(self, name: str) -> str:
        """Name of the variable op that is trained in place of a variable op of the user, given by name."""
        return self._shard_names.get(name, name)

    def shard_read(self, tensor: tf.Tensor) -> Optional[str]:
        """Name of a shard's variable op if a tensor is its value or its full value; None for another tensor."""
        op = tensor.op
        variable = op.inputs[0].op if op.type in op_types.READS and op.inputs else op
        name = self.shard_of(variable.name)
        return name if name in self.variables else None

    def full_names(self, setting: str) -> Dict[str, str]:
        """Op of a full variable -> op of its shard, of one owner; both by name."""
        names = self._shard_names.items()
        return {full: name for full, name in names if self.variables[name].owner == setting}

    # ---- Lookups of ops.

    def replacement_op(self, op: tf.Operation) -> tf.Operation:
        """The op on the shard that replaces an op of the user on the full variable; any other op unchanged."""
        for shard in self.shards:
            op = shard.replaced.get(op, op)
        return op

    def replaced(self) -> List[str]:
        """Names of ops on full variables that ops on shards have replaced; nothing runs them any more."""
        return [op.name for shard in self.shards for op in shard.replaced]

    def results(self) -> Set[str]:
        """Names of the ops whose results the user may ask for, without variables."""
        found: Set[str] = set().union(*[owner.results() for owner in self.owners.values()])
        return found - {tensor.op.name for owner in self.owners.values() for tensor in owner.values}

    def initializers(self) -> List[str]:
        """Names of the ops that give the shards their initial values: every rank runs its own."""
        operation, objects = self._graph.tf_graph.get_operation_by_name, objects_by_op(self._graph.tf_graph)
        ops = [variable.initializer for name in self.variables for variable in objects.get(operation(name), ())]
        ops += [shard.variable.initializer for shard in self.shards]
        return sorted({getattr(op, "op", op).name for op in ops})

    # ---- Differences between ranks.

    @property
    def collectives(self) -> List[tf.Operation]:
        """The collectives of the first rank that move data of shards in a step."""
        return [op for owner in self.owners.values() for op in owner.group.collectives]

    @property
    def unopened(self) -> List[CommunicatorSpec]:
        """The communicators that are opened together with those of the plan."""
        return [spec for owner in self.owners.values() for spec in owner.group.unopened]

    def rank_attributes(self, view: GraphView, cloned: Set[int]) -> Dict[int, List[_Attrs]]:
        """Node -> by rank of the job, the attributes in which a copy of the node differs.

        All ranks draw initial values with the same seeds, except shards that have seeds of their own.
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


def objects_by_op(graph: tf.Graph) -> Dict[tf.Operation, List[Any]]:
    """Op of a variable -> its Python objects in the collections, which an imported graph may add to."""
    found: Dict[tf.Operation, List[Any]] = {}
    for key in graph.get_all_collection_keys():
        for member in graph.get_collection_ref(key):
            if isinstance(member, tf_compat.VARIABLE_CLASSES):
                same = found.setdefault(member.op, [])
                if not any(member is other for other in same):
                    same.append(member)
    return found


def objects_of(op: tf.Operation) -> List[Any]:
    """The Python objects of one variable. For many variables `objects_by_op` reads the collections once."""
    return objects_by_op(op.graph).get(op, [])
