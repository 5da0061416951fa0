"""How values flow through a graph: data inputs, nodes that depend on the batch, nodes that alias variables."""

from typing import AbstractSet, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView

# Their output depends only on the shape of their input.
SHAPE_OPS = frozenset(["Shape", "ShapeN", "Size", "Rank"])
# Their output is the memory of their first input.
ALIASES = frozenset(["Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot"])
# Their first output is the memory of their first input, in its shape.
_SHOWING = frozenset(["Identity", "IdentityN", "PlaceholderWithDefault"])
# Their output may be memory of an input: all of it or a part, in another shape.
_VIEWS = ALIASES | _SHOWING | op_types.SWITCHES | op_types.MERGES
_VIEWS |= frozenset("AddN Bitcast Cast CheckNumerics EnsureShape Pack Slice Split SplitV StridedSlice".split())
_VIEWS |= frozenset(["Transpose", "Unpack"])


def data_inputs(view: GraphView, node: int) -> List[Tuple[int, int]]:
    """(Producer, output) of each data input of a node; control inputs come after them."""
    found = []
    for name, producer in zip(view.nodes[node].input, view.producers[node]):
        if name[0] == "^":
            break
        found.append((producer, int(name.partition(":")[2] or 0)))
    return found


def aliased_tensor(view: GraphView, node: int, output: int) -> Optional[Tuple[int, int]]:
    """The (producer, output) whose memory an output of a node is; None if the node has made its own."""
    if view.types[node] in ALIASES:
        return data_inputs(view, node)[0]
    return data_inputs(view, node)[output] if view.types[node] == "IdentityN" else None


def batch_nodes(view: GraphView, stateful: AbstractSet[str]) -> Set[int]:
    """The nodes computed from data, placeholders or random numbers; not nodes that depend on their shapes only."""
    return data_descendants(view, batch_sources(view, stateful), set(view.of_types(SHAPE_OPS)))


def batch_sources(view: GraphView, stateful: AbstractSet[str]) -> Set[int]:
    """The nodes that give data, what is fed, or random numbers.

    Args:
      view: of the graph.
      stateful: the types of ops that may give another value each time.
    """
    roots = set(view.of_types(op_types.DATA_SOURCES) + view.user_placeholders())
    variables = set(view.of_types(op_types.VARIABLES))
    others = view.of_types(stateful - op_types.VARIABLES - op_types.SHARED_STATE - op_types.WRITES)
    roots.update(node for node in others if not variables.intersection(view.producers[node]))
    return roots


def shown_variables(view: GraphView) -> Dict[int, int]:
    """Node whose first output is the memory of a variable (itself, its `read`) -> the variable. Not for resources.

    Their value changes when the variable is written. The write of a resource variable copies it if a read is in use.
    """
    consumers = view.consumers()
    shown = {variable: variable for variable in view.of_types(op_types.REF_VARIABLES)}
    stack = list(shown)
    while stack:
        node = stack.pop()
        for consumer in consumers[node]:
            is_showing = view.types[consumer] in _SHOWING and data_inputs(view, consumer)[0] == (node, 0)
            if is_showing and consumer not in shown:
                shown[consumer] = shown[node]
                stack.append(consumer)
    return shown


def viewed_variables(view: GraphView) -> Dict[int, FrozenSet[int]]:
    """Node whose output may be memory of variables (by `_VIEWS` ops) -> the variables. Not for resources."""
    consumers = view.consumers()
    references = view.of_types(op_types.REF_VARIABLES)
    viewed = {variable: frozenset([variable]) for variable in references}
    stack = list(references)
    while stack:
        node = stack.pop()
        for consumer in consumers[node]:
            if view.types[consumer] in _VIEWS and view.takes_data(consumer, node):
                known = viewed.get(consumer, frozenset())
                if not viewed[node] <= known:
                    viewed[consumer] = known | viewed[node]
                    stack.append(consumer)
    return viewed


def data_descendants(view: GraphView, roots: Iterable[int], stop: Set[int]) -> Set[int]:
    """The roots and the nodes computed from them, along data edges; the search does not enter `stop`."""
    consumers = view.consumers()
    seen = set(roots)
    stack = list(seen)
    while stack:
        node = stack.pop()
        for consumer in consumers[node]:
            if consumer not in seen and consumer not in stop and view.takes_data(consumer, node):
                seen.add(consumer)
                stack.append(consumer)
    return seen


def has_open_rows(tensor: tf.Tensor) -> bool:
    """Whether the number of rows of a data tensor is unknown when the graph is built."""
    if tensor.dtype in (tf.variant, tf.resource):
        return False
    return tensor.shape.ndims is None or (tensor.shape.ndims > 0 and tf.dimension_value(tensor.shape[0]) is None)
