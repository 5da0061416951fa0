"""The bodies of functions as graphs of their own, with the shapes of one call.

    call        x [32, 8], variable w [8, 4] --> PartitionedCall(f)
    body of f   Placeholder [32, 8], VarHandleOp [8, 4] --> ReadVariableOp --> MatMul --> the result

A body knows a handle only as an argument, whose variable has no shape there; so a variable of its own stands for it.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs.backward import Constant, Signature, node_of
from epl.parallel.costs.folding import Folding
from epl.parallel.costs.loops import trips
from epl.parallel.costs.shapes import TensorType, Types, types_of
from epl.utils import tf_compat

# Op type -> the attributes that name the functions it calls.
_CALLS = {
    "PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",), "RemoteCall": ("f",), "SymbolicGradient": ("f",),
    "If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch"), "Case": ("branches",),
    "While": ("cond", "body"), "StatelessWhile": ("cond", "body"),
}  # fmt: skip
_BRANCHES = frozenset(["If", "StatelessIf", "Case"])
_WHILES = frozenset(["While", "StatelessWhile"])
# Their first input is no argument of the function: a condition, the number of a branch, a device.
_WITH_FIRST = _BRANCHES | {"RemoteCall"}
_SAME = frozenset(["Identity", "StopGradient"])


class Argument(NamedTuple):
    """What a call gives a function for one argument.

    Attributes:
      type: shape and dtype.
      constant: the elements of a small constant of whole numbers; None for other tensors.
      variable: shape and dtype of the variable whose handle it is; None for other tensors.
    """

    type: TensorType
    constant: Constant = None
    variable: Optional[TensorType] = None


class CallBody(NamedTuple):
    """The body of a function.

    Attributes:
      view: its graph.
      types: of the outputs of all nodes.
      arguments: the node that stands for each argument.
      results: (node, output) of each result.
    """

    view: GraphView
    types: Types
    arguments: Tuple[int, ...]
    results: Tuple[Tuple[int, int], ...]


class FunctionCall(NamedTuple):
    """An op that calls functions.

    Attributes:
      functions: their names.
      first: position of the input that is their first argument.
      is_choice: one of the functions runs.
      is_loop: the functions are the condition and the body of a loop.
      is_gradient: what is computed is the gradient of the function.
      by_type: the type of the op is the function: TensorFlow differentiates it by computing it again.
    """

    functions: Tuple[str, ...]
    first: int
    is_choice: bool
    is_loop: bool
    is_gradient: bool
    by_type: bool


class FunctionLibrary:
    """The functions of a graph."""

    def __init__(self, library: Any) -> None:
        """Args: library: a FunctionDefLibrary."""
        self._library = library
        self._functions: Dict[str, Any] = {one.signature.name: one for one in library.function}
        self._gradients: Dict[str, str] = {one.function_name: one.gradient_func for one in library.gradient}

    def call(self, op: Signature) -> Optional[FunctionCall]:
        """What an op calls; None if it calls nothing that is in the library."""
        if op.type in self._functions:
            return FunctionCall((op.type,), 0, False, False, False, True)
        if op.type not in _CALLS:
            return None
        attrs = node_of(op, "op").attr
        names: List[str] = []
        for key in _CALLS[op.type]:
            names += [one.name for one in attrs[key].list.func] or [attrs[key].func.name]
        if not all(name in self._functions for name in names):
            return None
        return FunctionCall(
            tuple(names), 1 if op.type in _WITH_FIRST else 0, op.type in _BRANCHES, op.type in _WHILES,
            op.type == "SymbolicGradient", False,
        )  # fmt: skip

    def gradient_of(self, name: str) -> Optional[str]:
        """The function that is declared to be the gradient of a function."""
        return self._gradients.get(name)

    def num_arguments(self, name: str) -> int:
        """The arguments of a function."""
        return len(self._functions[name].signature.input_arg)

    def body(self, name: str, arguments: Sequence[Argument]) -> CallBody:
        """The body of a function, given its arguments.

        Raises:
          ValueError: it does not take such arguments.
        """
        function = self._functions[name]
        given = function.signature.input_arg
        if len(given) != len(arguments):
            raise ValueError(f"function {name} has {len(given)} arguments, not {len(arguments)}")
        scratch = tf.Graph()
        tf_compat.add_functions(scratch, self._library)
        graph_def = tf.GraphDef()
        graph_def.versions.producer = scratch.graph_def_versions.producer
        for one, argument in zip(given, arguments):
            graph_def.node.add().CopyFrom(_argument_node(one.name, argument))
        tensors = {one.name: one.name for one in given}  # as the function names them -> as a graph does
        for node in function.node_def:
            tensors.update(_outputs(tf_compat.op_def(scratch, node.op), node))
        for node in function.node_def:
            copy = graph_def.node.add()
            copy.CopyFrom(node)
            copy.attr.pop("_output_shapes", None)
            for at, text in enumerate(node.input):
                copy.input[at] = text if text[0] == "^" else tensors[text]
        names = [node.name for node in graph_def.node]
        tf_compat.import_nodes(scratch, graph_def.SerializeToString(), names, [], [])
        view = GraphView(scratch)
        results = [tensors[function.ret[one.name]] for one in function.signature.output_arg]
        return CallBody(
            view,
            types_of(scratch, view, range(len(view))),
            tuple(view.index[one.name] for one in given),
            tuple(_tensor(view, text) for text in results),
        )


def _argument_node(name: str, argument: Argument) -> tf.NodeDef:
    node = tf.NodeDef(name=name)
    dtype, shape = argument.type.dtype.base_dtype, argument.type.shape
    if argument.variable is not None:
        node.op = "VarHandleOp"
        dtype, shape = argument.variable.dtype.base_dtype, argument.variable.shape
    elif argument.constant is not None:
        node.op = "Const"
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(argument.constant, dtype, shape=shape))
    else:
        node.op = "Placeholder"
    node.attr["dtype"].type = dtype.as_datatype_enum
    if node.op != "Const":
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return node


def _outputs(op_def: Any, node: tf.NodeDef) -> Dict[str, str]:
    """Name of each output in a function, such as split:output:1, -> in a graph, split:1."""
    found: Dict[str, str] = {}
    for output in op_def.output_arg:
        count = 1
        if output.number_attr:
            count = node.attr[output.number_attr].i
        elif output.type_list_attr:
            count = len(node.attr[output.type_list_attr].list.type)
        for at in range(count):
            found[f"{node.name}:{output.name}:{at}"] = f"{node.name}:{len(found)}" if found else node.name
    return found


def _tensor(view: GraphView, text: str) -> Tuple[int, int]:
    name, _, output = text.partition(":")
    return view.index[name], int(output or 0)


def passed_arguments(body: CallBody) -> Dict[int, int]:
    """Position of a result -> of the argument that it is, unchanged."""
    places = {node: at for at, node in enumerate(body.arguments)}
    found = {at: places.get(_origin(body, node)) for at, (node, _) in enumerate(body.results)}
    return {at: place for at, place in found.items() if place is not None}


def turns(condition: CallBody, body: CallBody) -> Optional[int]:
    """How often a loop with such a condition and body runs, if it counts up to a bound; else None."""
    return _limit(condition, body, _origin(condition, condition.results[0][0]))


def _limit(condition: CallBody, body: CallBody, node: int) -> Optional[int]:
    view, folding = condition.view, Folding(condition.view, condition.types)
    op_type = view.types[node]
    inputs = [_origin(condition, producer) for producer, _ in folding.data_inputs(node)]
    if op_type == "LogicalAnd":
        known = [one for one in (_limit(condition, body, producer) for producer in inputs) if one is not None]
        return min(known) if known else None
    if op_type in ("Greater", "GreaterEqual"):
        inputs.reverse()
    elif op_type not in ("Less", "LessEqual"):
        return None
    if inputs[0] not in condition.arguments:
        return None
    counter = condition.arguments.index(inputs[0])
    return trips(op_type, folding.scalar(inputs[0]), _step(body, counter), folding.scalar(inputs[1]))


def _step(body: CallBody, counter: int) -> Optional[float]:
    """What a turn adds to an argument of the body, if it is a constant."""
    added = _origin(body, body.results[counter][0])
    if body.view.types[added] not in ("Add", "AddV2"):
        return None
    folding = Folding(body.view, body.types)
    inputs = [_origin(body, producer) for producer, _ in folding.data_inputs(added)]
    others = [one for one in inputs if one != body.arguments[counter]]
    return folding.scalar(others[0]) if len(others) == 1 else None


def _origin(body: CallBody, node: int) -> int:
    """The node whose value a node passes on."""
    while body.view.types[node] in _SAME and node not in body.arguments:
        node = body.view.producers[node][0]
    return node


def arguments_of(op: Signature, first: int, constants: bool = True) -> List[Argument]:
    """The arguments that an op gives to the function that it calls, from an input on."""
    variables = op.variables or (None,) * len(op.inputs)
    known = op.constants if constants else (None,) * len(op.inputs)
    return [Argument(*given) for given in zip(op.inputs[first:], known[first:], variables[first:])]
