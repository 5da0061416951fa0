"""Values that micro batches share, so that their ops need no copies: computed constants, and the shape of a tensor.

    perm --> InvertPermutation --> Transpose         perm --> InvertPermutation --> Transpose
                                               =>    [1, 0, 2] -------------------> Transpose/1

    x --> Shape   --> f                              x/1 --> Shape/1 --> f/1
     `--> Shape_1 --> g                        =>                `-----> g/1

When an op is added to a graph, TensorFlow evaluates constant inputs such as `perm` for each op that reads them: a fifth
of the time to add the clones. Micro batch 0, the user's own graph, stays as it is.
"""

from typing import Dict, Hashable, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import GraphView
from epl.parallel.pipeline.micro_batches import Actions, MicroBatchOps
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.plan_nodes import PlanNodes
from epl.utils import tf_compat

# Values of more elements, or computed by more ops, are not folded.
_MOST_ELEMENTS = 64
_MOST_OPS = 20
_WHOLE = (tf.int32, tf.int64)  # types for which all kinds of devices compute equal values
_BACKWARD = node_wire.string(Phase.BACKWARD.encode())


class SharedValues(NamedTuple):
    """The inputs of copies that differ from those of the originals.

    Attributes:
      inputs: input of an original, as in a NodeDef -> input of its copies; the name of a copied op means its copy.
      merged: ops without copies -> the ops whose copies replace theirs.
      nodes: constants to be added with the copies.
    """

    inputs: Dict[str, str]
    merged: Dict[int, int]
    nodes: List[tf.NodeDef]


def share_values(
    rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, trainings: Sequence[Actions], stages: Sequence[int]
) -> SharedValues:
    """Finds the ops that need no copies; fills `rewrite.micro_merged` and `rewrite.folded`.

    Args:
      rewrite: the rewriting, before micro batches are cloned.
      view: view of its graph.
      ops: the nodes of each micro batch.
      trainings: the nodes of the actions of micro batch 0.
      stages: the stage of each node.
    """
    merged = _equal_shapes(rewrite, view, ops, trainings, stages)
    inputs = {}
    for node, other in merged.items():
        name, kept = view.nodes[node].name, view.nodes[other].name
        inputs[name], inputs["^" + name] = kept, "^" + kept
        rewrite.micro_merged[name] = kept
    nodes = _Constants(rewrite, view, stages).replace(ops.cloned, inputs)
    return SharedValues(inputs, merged, nodes)


def _equal_shapes(
    rewrite: RewriteContext, view: GraphView, ops: MicroBatchOps, trainings: Sequence[Actions], stages: Sequence[int]
) -> Dict[int, int]:
    """Ops that compute the shape of a tensor for a gradient -> the first op that does so in the same actions."""
    outputs = {view.index[output.tensor.partition(":")[0]] for output in rewrite.plan.outputs}
    kept = outputs.union(*[view.producers[node] for node in boundary_nodes(view, rewrite.trainings)])
    first: Dict[Tuple[Hashable, ...], int] = {}
    merged: Dict[int, int] = {}
    for node in view.of_types(["Shape"]):
        if node not in ops.cloned or _reads_variable(view, view.producers[node][0]):
            continue
        proto = view.nodes[node]
        actions = tuple(key for actions in trainings for key, members in actions.items() if node in members)
        key = (tuple(proto.input), stages[node], actions, proto.attr.serialized("out_type"))
        other = first.setdefault(key, node)
        if other != node and node not in kept and proto.attr.serialized(PHASE_ATTR) == _BACKWARD:
            merged[node] = other
    return merged


def _reads_variable(view: GraphView, node: int) -> bool:
    return view.types[node] in op_types.VARIABLES or bool(view.variable_inputs(node))


class _Constants:
    """Integers that are computed from constants alone: axes, permutations, shapes; each is evaluated once."""

    def __init__(self, rewrite: RewriteContext, view: GraphView, stages: Sequence[int]) -> None:
        self._rewrite = rewrite
        self._view = view
        self._stages = stages
        self._structures: Dict[int, Optional[int]] = {}  # node -> number of its computation, if constant
        self._numbers: Dict[Tuple[Hashable, ...], Optional[int]] = {}
        self._foldable: Dict[str, bool] = {}
        self._names: Dict[Tuple[int, int], str] = {}  # computation, stage -> constant; "" for none
        self._added: Dict[int, PlanNodes] = {}

    def replace(self, nodes: Set[int], inputs: Dict[str, str]) -> List[tf.NodeDef]:
        """Adds to `inputs` the constants that replace computed inputs of copies of `nodes`; returns new constants."""
        view = self._view
        folded: Set[int] = set()
        for node in sorted(nodes):
            for name, producer in zip(view.nodes[node].input, view.producers[node]):
                if name[0] == "^":
                    break
                if producer in nodes or ":" in name or view.types[producer] == "Const" or name in inputs:
                    continue
                constant = self._constant(producer)
                if constant:
                    inputs[name] = constant
                    folded.add(producer)
        self._rewrite.folded = frozenset(view.names(view.ancestors(folded)))
        return [node for added in self._added.values() for node in added.nodes]

    def _constant(self, node: int) -> str:
        """Name of the constant with the value of a node, in its stage; "" if it has none."""
        number = self._structure(node)
        if number is None:
            return ""
        stage = self._stages[node]
        name = self._names.get((number, stage))
        if name is None:
            tensor = self._rewrite.operation(self._view.nodes[node].name).outputs[0]
            value = tf_compat.evaluate_constant(tensor)
            if value is None:
                name = ""
            else:
                added = self._added.get(stage)
                if added is None:
                    scope = f"micro_batches/constants/stage{stage}"
                    added = self._added[stage] = PlanNodes(self._rewrite, scope, stage)
                name = added.constant(value, tensor.dtype)
            self._names[number, stage] = name
        return name

    def _structure(self, node: int, before: int = 0) -> Optional[int]:
        """A number for the computation of a node from constants, equal for equal computations; None for other nodes.

        Args:
          node: the node.
          before: number of ops between it and its consumer in the copies.
        """
        if node in self._structures:
            return self._structures[node]
        self._structures[node] = None
        view = self._view
        proto = view.nodes[node]
        outputs = self._rewrite.operation(proto.name).outputs
        if before > _MOST_OPS or not self._can_fold(proto.op) or len(outputs) != 1 or outputs[0].dtype not in _WHOLE:
            return None
        parts: List[Optional[int]] = []
        for name, producer in zip(proto.input, view.producers[node]):
            parts.append(None if ":" in name or name[0] == "^" else self._structure(producer, before + 1))
        if None in parts or not (parts or proto.op == "Const"):
            return None
        attrs = node_wire.split_attrs(proto.serialized_attrs)
        own = tuple(sorted((key, value) for key, value in attrs.items() if key[0] != "_"))
        key = (proto.op, own, tuple(parts))
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers) if _is_small(outputs[0]) else None
        self._structures[node] = self._numbers[key]
        return self._structures[node]

    def _can_fold(self, op_type: str) -> bool:
        """Whether ops of a type return the same value in every run."""
        if op_type not in self._foldable:
            self._foldable[op_type] = (
                op_type not in op_types.PLACEHOLDERS | op_types.CONTROL_FLOW
                and not tf_compat.is_stateful(self._rewrite.tf_graph, op_type)
            )  # fmt: skip
        return self._foldable[op_type]


def _is_small(tensor: tf.Tensor) -> bool:
    elements = tensor.shape.num_elements()
    return elements is not None and elements <= _MOST_ELEMENTS
