"""Makes the half copies of ops that compute in half precision, and the conversions between them and the rest.

    w --> read --> Cast (late) --.
    x --> Cast ------------------+--> MatMul' --> half --> Relu' --> half --> Cast --> loss
                                                   '--> Cast --> summary

A value is converted once for all its half-precision consumers. A weight is converted for each consumer: late, when the
other input exists, and again for the backward pass, so that no copy of a weight outlives its use. The gradient of a
weight flows back through the conversion, in float32. The backward loop of a tf.while_loop converts a weight again;
otherwise TensorFlow would keep one copy per iteration.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.colocation import taskgraph_index
from epl.ir.dataflow import data_inputs
from epl.ir.graph import Graph
from epl.ir.replacements import Replacement
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, WEIGHT_ATTR
from epl.ir.view import GraphView
from epl.parallel.amp.op_selection import HalfSelection, type_attr
from epl.utils import tf_compat

_MARKS = (TASKGRAPH_ATTR, PHASE_ATTR)
_NAMED = "_EPL_AMP_"  # in the names of half copies and conversions


def make_half_copies(graph: Graph, view: GraphView, choice: HalfSelection, half: tf.DType) -> List[tf.Operation]:
    """Adds half copies to the graph and connects all other ops to them; notes them in `graph.replacements`.

    Args:
      graph: the annotated model, before it is differentiated.
      view: its view.
      choice: the ops that get half copies.
      half: the type in which they compute.

    Returns:
      The conversions of weights.
    """
    maker = _Maker(graph, view, choice, half)
    with _plain(graph.tf_graph):
        for node in choice.half:
            maker.make(node)
        maker.connect()
    return maker.weight_casts


def is_of_half_copies(name: str) -> bool:
    """Whether an op of that name is a half copy, or a conversion between half copies and the rest."""
    return _NAMED in name.rpartition("/")[2]


def use_half_copies(graph: Graph) -> None:
    """Connects ops that the user or the differentiation built later to the half copies of their inputs."""
    halves = graph.halves()
    if not halves:
        return
    replaced = {copy.original.op for copy in halves.values()}
    with _plain(graph.tf_graph):
        for name in halves:
            original = graph.replacements[name].original
            for consumer in set(original.consumers()) - replaced:
                for position, tensor in enumerate(consumer.inputs):
                    if tensor is original:
                        tf_compat.set_input(consumer, position, _restored(graph, name))
        for op in replaced:
            for consumer in set(tf_compat.control_outputs(op)) - replaced:
                _replace_controls(graph, consumer)


def convert_again(casts: Sequence[tf.Operation], last_id: int) -> None:
    """Converts weights again for the backward pass: the ops created after op number `last_id`."""
    for cast in casts:
        if tf_compat.control_flow_context_of(cast) is not None:
            continue
        graph = cast.graph
        for consumer in cast.outputs[0].consumers():
            if tf_compat.op_id(consumer) <= last_id or tf_compat.control_flow_context_of(consumer) is not None:
                continue
            others = [tensor.op for tensor in consumer.inputs if tf_compat.op_id(tensor.op) > last_id]
            with _plain(graph):
                again = _cast(cast.inputs[0], cast.outputs[0].dtype, consumer, None, others[:1], is_weight=True)
            for position, tensor in enumerate(consumer.inputs):
                if tensor is cast.outputs[0]:
                    tf_compat.set_input(consumer, position, again)


def weight_in_gradient_loop(original: Callable[..., Any], state: Any, value: tf.Tensor) -> Any:
    """The value that a backward loop gets from its forward loop: a converted weight is converted again."""
    op = value.op
    if op.type != "Cast" or not _is_weight_cast(op) or not tf_compat.is_loop_invariant(op.inputs[0]):
        return original(state, value)
    if value.name not in state.history_map:
        state.history_map[value.name] = tf.cast(original(state, op.inputs[0]), value.dtype)
    return state.history_map[value.name]


def _is_weight_cast(op: tf.Operation) -> bool:
    try:
        return bool(op.get_attr(WEIGHT_ATTR))
    except ValueError:
        return False


class _Maker:
    """Makes the half copies of one differentiation."""

    def __init__(self, graph: Graph, view: GraphView, choice: HalfSelection, half: tf.DType) -> None:
        self.weight_casts: List[tf.Operation] = []
        self._graph = graph
        self._view = view
        self._choice = choice
        self._half = half
        self._casts: Dict[str, tf.Tensor] = {}  # by the name of the tensor converted to half precision
        self._back: Dict[Tuple[str, Optional[int]], tf.Tensor] = {}  # (original, TaskGraph) -> its restored value

    def make(self, node: int) -> None:
        """Makes the half copy of a node; those of its producers were made before."""
        op = self._operation(node)
        places = self._choice.places[node]
        inputs = [None if self._is_weight(tensor) else self._input(i, tensor, op) for i, tensor in enumerate(op.inputs)]
        late = [tensor.op for tensor in inputs if tensor is not None]
        for i, tensor in enumerate(op.inputs):
            if inputs[i] is None:
                inputs[i] = self._weight(tensor, op, late[:1]) if i in places.inputs else tensor
        proto = self._view.nodes[node]
        attrs = dict(proto.attr)
        attrs[type_attr(proto.op)] = tf.AttrValue(type=self._half.as_datatype_enum)
        with tf_compat.listed_in_context(op.graph, tf_compat.control_flow_context_of(op)):
            copy = op.graph.create_op(op.type, inputs, None, name=f"{op.name}{_NAMED}{self._half.name}", attrs=attrs)
        tf_compat.set_device(copy, op.device)
        for original, output in zip(op.outputs, copy.outputs):
            output.set_shape(original.shape)
            self._graph.replacements[original.name] = Replacement(original, output, None, is_half=True)
        controls = self._controls(op)
        if controls:
            tf_compat.add_control_inputs(copy, controls)

    def connect(self) -> None:
        """Connects ops without a half copy to the values of the half copies."""
        halves = set(self._choice.half)
        consumers = self._view.consumers()
        for node in self._choice.half:
            for consumer in set(consumers[node]) - halves:
                self._rewire(consumer, halves)
            op = self._operation(node)
            if tf_compat.output_context_of(op) is None:
                for original in op.outputs:
                    copy = self._graph.replacements[original.name]
                    self._graph.replacements[original.name] = copy._replace(
                        restored=self._restore(original, taskgraph_index(op))
                    )

    def _rewire(self, node: int, halves: Any) -> None:
        op = self._operation(node)
        for position, (producer, output) in enumerate(data_inputs(self._view, node)):
            if producer in halves:
                original = self._operation(producer).outputs[output]
                tf_compat.set_input(op, position, self._restore(original, taskgraph_index(op)))
        if any(name[0] == "^" and self._view.index[name[1:]] in halves for name in self._view.nodes[node].input):
            _replace_controls(self._graph, op)

    def _restore(self, original: tf.Tensor, taskgraph: Optional[int]) -> tf.Tensor:
        """The value of a half copy in the type of the original; another TaskGraph receives it in half precision."""
        half = self._graph.replacements[original.name].computed
        if half.dtype == original.dtype:
            return half
        key = (original.name, taskgraph)
        if key not in self._back:
            context = tf_compat.output_context_of(half.op)
            self._back[key] = _cast(half, original.dtype, original.op, context, (), taskgraph=taskgraph)
        return self._back[key]

    def _input(self, position: int, tensor: tf.Tensor, op: tf.Operation) -> tf.Tensor:
        """An input of the half copy of `op` that is not a weight."""
        node = self._view.index[op.name]
        copy = self._graph.replacements.get(tensor.name)
        if position not in self._choice.places[node].inputs:
            return tensor if copy is None else self._restore(tensor, taskgraph_index(op))
        if copy is not None and copy.computed.dtype == self._half:
            return copy.computed
        source = tensor.op
        if source.type == "Cast" and source.inputs[0].dtype == self._half:  # restored by an earlier half copy
            return source.inputs[0]
        if tensor.name not in self._casts:
            context = tf_compat.output_context_of(source)
            self._casts[tensor.name] = _cast(tensor, self._half, source, context, ())
        return self._casts[tensor.name]

    def _weight(self, tensor: tf.Tensor, op: tf.Operation, late: Sequence[tf.Operation]) -> tf.Tensor:
        """A weight in half precision, only for the half copy of `op`; converted after `late`."""
        context = tf_compat.control_flow_context_of(op)
        late = [other for other in late if tf_compat.output_context_of(other) is context]
        cast = _cast(tensor, self._half, op, context, late, is_weight=True)
        self.weight_casts.append(cast.op)
        return cast

    def _is_weight(self, tensor: tf.Tensor) -> bool:
        node = self._view.index[tensor.op.name]
        return node in self._choice.weights and node not in self._choice.constants

    def _controls(self, op: tf.Operation) -> List[tf.Operation]:
        return [_half_copy(self._graph, other) for other in op.control_inputs]

    def _operation(self, node: int) -> tf.Operation:
        return self._graph.tf_graph.get_operation_by_name(self._view.nodes[node].name)


def _restored(graph: Graph, name: str) -> tf.Tensor:
    copy = graph.replacements[name]
    if copy.restored is not None:
        return copy.restored
    restored = copy.computed
    if restored.dtype != copy.original.dtype:
        context = tf_compat.output_context_of(restored.op)
        restored = _cast(restored, copy.original.dtype, copy.original.op, context, ())
    graph.replacements[name] = copy._replace(restored=restored)
    return restored


def _half_copy(graph: Graph, op: tf.Operation) -> tf.Operation:
    """The half copy of an op, or the op itself."""
    copy = graph.replacements.get(op.outputs[0].name) if op.outputs else None
    return op if copy is None else copy.computed.op


def _replace_controls(graph: Graph, op: tf.Operation) -> None:
    """Moves an op's control inputs from replaced ops to their half copies."""
    controls = [_half_copy(graph, other) for other in op.control_inputs]
    tf_compat.remove_control_inputs(op)
    tf_compat.add_control_inputs(op, controls)


def _cast(
    tensor: tf.Tensor,
    dtype: tf.DType,
    like: tf.Operation,
    context: Any,
    controls: Sequence[tf.Operation],
    is_weight: bool = False,
    taskgraph: Optional[int] = None,
) -> tf.Tensor:
    """A conversion on the device of `like`, and in its TaskGraph unless another is given."""
    attrs = {
        "SrcT": tf.AttrValue(type=tensor.dtype.base_dtype.as_datatype_enum),
        "DstT": tf.AttrValue(type=dtype.as_datatype_enum),
    }
    for mark in _MARKS:
        value = _mark(like, mark)
        if value is not None:
            attrs[mark] = value
    if taskgraph is not None:
        attrs[TASKGRAPH_ATTR] = tf.AttrValue(i=taskgraph)
    if is_weight:
        attrs[WEIGHT_ATTR] = tf.AttrValue(b=True)
    name = f"{tensor.op.name}{_NAMED}cast_{dtype.name}"
    with tf_compat.listed_in_context(tensor.graph, context):
        op = tensor.graph.create_op("Cast", [tensor], None, name=name, attrs=attrs)
    same_taskgraph = taskgraph is None or taskgraph == taskgraph_index(like)
    tf_compat.set_device(op, like.device if same_taskgraph else "")
    if controls:
        tf_compat.add_control_inputs(op, controls)
    return op.outputs[0]


def _mark(op: tf.Operation, name: str) -> Optional[tf.AttrValue]:
    try:
        value = op.get_attr(name)
    except ValueError:
        return None
    return tf.AttrValue(s=value) if isinstance(value, bytes) else tf.AttrValue(i=value)


@contextlib.contextmanager
def _plain(tf_graph: tf.Graph) -> Iterator[None]:
    """Ops created inside ignore all scopes of the user: names, devices, control dependencies, colocation, marks."""
    marks = [(mark, tf_compat.set_attr_scope(tf_graph, mark, None)) for mark in _MARKS]
    try:
        with tf_graph.as_default(), tf_graph.control_dependencies(None), tf_graph.device(None):
            with tf_graph.name_scope(None), tf_graph.colocate_with(None, ignore_existing=True):
                yield
    finally:
        for mark, value in marks:
            tf_compat.set_attr_scope(tf_graph, mark, value)
