"""The ops that a device is measured with: those of small layers, and of their gradients, by kind.

A layer is built on placeholders and differentiated; the ops of its kind, each signature once, are the samples. So a
rate is that of a forward op and of its backward ops together, as a training step has them.
"""

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs import backward
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.ops import OpCost, op_cost
from epl.parallel.costs.shapes import TensorType
from epl.planner.machine.op_kinds import Kind
from epl.utils import tf_compat


class OpSample(NamedTuple):
    """An op that is measured.

    Attributes:
      op: it.
      cost: of one run.
      dtype: name of the dtype in which it computes.
      layer: number of the layer that it is of, forward or backward.
    """

    op: Signature
    cost: OpCost
    dtype: str
    layer: int

    def describe(self) -> str:
        """It, in words: matmul float32: MatMul [64,512] [512,512]."""
        shapes = " ".join(str(list(one.shape or ())).replace(" ", "") for one in self.op.inputs)
        return f"{self.cost.kind} {self.dtype}: {self.op.type} {shapes}"


# Builds a layer of some rows in a dtype; its ops of one kind are the samples.
_Layer = Callable[[int, tf.DType], tf.Tensor]


def _input(dtype: tf.DType, *shape: int) -> tf.Tensor:
    return tf.placeholder(dtype, shape)


def _matmul(inner: int, columns: int) -> _Layer:
    return lambda rows, dtype: tf.matmul(_input(dtype, 32 * rows, inner), _input(dtype, inner, columns))


def _batch_matmul(length: int, width: int) -> _Layer:
    return lambda rows, dtype: tf.matmul(
        _input(dtype, 4 * rows, length, width), _input(dtype, 4 * rows, length, width), transpose_b=True
    )


def _convolution(size: int, channels: int, kernel: int, filters: int, stride: int) -> _Layer:
    return lambda rows, dtype: tf.nn.conv2d(
        _input(dtype, rows, size, size, channels), _input(dtype, kernel, kernel, channels, filters), stride, "SAME"
    )


def _depthwise(size: int, channels: int) -> _Layer:
    return lambda rows, dtype: tf.nn.depthwise_conv2d(
        _input(dtype, rows, size, size, channels), _input(dtype, 3, 3, channels, 1), [1, 1, 1, 1], "SAME"
    )


def _of_one(function: Callable[[tf.Tensor], tf.Tensor], columns: int = 4096) -> _Layer:
    """An op of one matrix, 128 KiB for each row in float32."""
    return lambda rows, dtype: function(_input(dtype, 8 * rows, columns))


def _of_two(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], columns: int = 4096) -> _Layer:
    return lambda rows, dtype: function(_input(dtype, 8 * rows, columns), _input(dtype, 8 * rows, columns))


def _with_bias(rows: int, dtype: tf.DType) -> tf.Tensor:
    return tf.nn.bias_add(_input(dtype, 8 * rows, 4096), _input(dtype, 4096))


def _cross_entropy(rows: int, dtype: tf.DType) -> tf.Tensor:
    labels = tf.placeholder(tf.int32, [32 * rows])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=_input(dtype, 32 * rows, 1000))


def _norm(size: int, channels: int) -> _Layer:
    def build(rows: int, dtype: tf.DType) -> tf.Tensor:
        pictures = _input(dtype, rows, size, size, channels)
        scales = [tf.placeholder(tf.float32, [channels]) for _ in range(2)]
        return tf.nn.fused_batch_norm(pictures, *scales)[0]

    return build


def _pool(function: Callable[..., tf.Tensor], size: int, window: int, stride: int) -> _Layer:
    return lambda rows, dtype: function(
        _input(dtype, rows, size, size, 64), [1, window, window, 1], [1, stride, stride, 1], "SAME"
    )


def _random(function: Callable[..., tf.Tensor]) -> _Layer:
    return lambda rows, dtype: function([8 * rows, 4096], dtype=dtype)


_LAYERS: Tuple[Tuple[str, _Layer], ...] = (
    (Kind.MATMUL, _matmul(512, 512)), (Kind.MATMUL, _matmul(1024, 1024)), (Kind.MATMUL, _matmul(768, 3072)),
    (Kind.BATCH_MATMUL, _batch_matmul(128, 64)), (Kind.BATCH_MATMUL, _batch_matmul(64, 32)),
    (Kind.CONVOLUTION, _convolution(32, 64, 3, 64, 1)), (Kind.CONVOLUTION, _convolution(28, 128, 1, 256, 1)),
    (Kind.CONVOLUTION, _convolution(112, 3, 7, 64, 2)), (Kind.CONVOLUTION, _convolution(28, 128, 3, 128, 2)),
    (Kind.DEPTHWISE, _depthwise(28, 64)),
    (Kind.ELEMENTWISE, _of_two(tf.add)), (Kind.ELEMENTWISE, _of_two(tf.multiply)),
    (Kind.ELEMENTWISE, _of_one(tf.nn.relu)), (Kind.ELEMENTWISE, _of_two(tf.subtract, 16384)),
    (Kind.ELEMENTWISE, _with_bias), (Kind.ELEMENTWISE, _of_one(tf.square, 16384)),
    (Kind.ELEMENTWISE, _of_two(tf.multiply, 1024)),
    (Kind.TRANSCENDENTAL, _of_one(tf.exp)), (Kind.TRANSCENDENTAL, _of_one(tf.tanh)),
    (Kind.TRANSCENDENTAL, _of_one(tf.sigmoid)), (Kind.TRANSCENDENTAL, _of_one(tf.log)),
    (Kind.SLOW, _of_one(tf.erf, 1024)), (Kind.SLOW, _of_two(tf.pow, 1024)),
    (Kind.REDUCTION, _of_one(lambda x: tf.reduce_sum(x, -1))), (Kind.REDUCTION, _of_one(tf.reduce_sum)),
    (Kind.REDUCTION, _of_one(lambda x: tf.reduce_mean(x, 0))),
    (Kind.REDUCTION, _of_one(lambda x: tf.reduce_max(x, -1))),
    (Kind.REDUCTION, _with_bias),
    (Kind.SEARCH, _of_one(lambda x: tf.argmax(x, -1))), (Kind.SEARCH, _of_one(lambda x: tf.nn.top_k(x, 2)[0])),
    (Kind.SOFTMAX, _of_one(tf.nn.softmax, 128)), (Kind.SOFTMAX, _of_one(tf.nn.softmax, 1024)),
    (Kind.SOFTMAX, _of_one(tf.nn.log_softmax, 1024)),
    (Kind.CROSS_ENTROPY, _cross_entropy),
    (Kind.NORM, _norm(32, 64)), (Kind.NORM, _norm(14, 256)),
    (Kind.POOL, _pool(tf.nn.max_pool, 32, 2, 2)), (Kind.POOL, _pool(tf.nn.max_pool, 32, 3, 2)),
    (Kind.POOL, _pool(tf.nn.avg_pool, 32, 2, 2)),
    (Kind.RANDOM, _random(tf.random_uniform)), (Kind.RANDOM, _random(tf.truncated_normal)),
)  # fmt: skip
# Ops whose work is next to nothing: what they take is their start.
_TINY: Tuple[_Layer, ...] = (
    lambda rows, dtype: tf.add(_input(dtype, 4), _input(dtype, 4)),
    lambda rows, dtype: tf.multiply(_input(dtype, 4), _input(dtype, 4)),
    lambda rows, dtype: tf.tanh(_input(dtype, 4)),
    lambda rows, dtype: tf.nn.relu(_input(dtype, 4)),
    lambda rows, dtype: tf.matmul(_input(dtype, 2, 2), _input(dtype, 2, 2)),
    lambda rows, dtype: tf.reduce_sum(_input(dtype, 4, 2), -1),
    lambda rows, dtype: tf.nn.bias_add(_input(dtype, 2, 2), _input(dtype, 2)),
    lambda rows, dtype: tf.concat([_input(dtype, 2, 2), _input(dtype, 2, 2)], -1),
    lambda rows, dtype: tf.nn.softmax(_input(dtype, 2, 2)),
)


def tiny_ops() -> List[OpSample]:
    """Ops that start and do next to nothing."""
    return [sample for number, layer in enumerate(_TINY) for sample in _samples(layer, number, None, 1, tf.float32)]


def ops_of_kinds(dtype: tf.DType, rows: int, all_layers: bool) -> List[OpSample]:
    """Ops of all kinds.

    Args:
      dtype: in which they compute.
      rows: how large they are: 8 rows are about a millisecond of a CPU's core in float32.
      all_layers: of all layers; else of the first one of each kind.
    """
    found: List[OpSample] = []
    kinds = [kind for kind, _ in _LAYERS]
    for number, (kind, layer) in enumerate(_LAYERS):
        if all_layers or kinds.index(kind) == number:
            found += _samples(layer, number, kind, rows, dtype)
    return found


def narrow_matmuls(rows: int, all_layers: bool) -> List[OpSample]:
    """The matmuls of `ops_of_kinds` in float32, with an eighth of the rows."""
    found = ops_of_kinds(tf.float32, max(1, rows // 8), all_layers)
    return [sample for sample in found if sample.cost.kind == Kind.MATMUL]


def _samples(layer: _Layer, number: int, kind: Optional[str], rows: int, dtype: tf.DType) -> List[OpSample]:
    """The ops of a layer and of its gradients that are of a kind; None: those of the layer alone, of any kind."""
    with tf.Graph().as_default() as graph:
        try:
            result = layer(rows, dtype)
        except (TypeError, ValueError):  # there is no such op for this dtype
            return []
        placeholders = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
        floating = [one for one in placeholders if one.dtype.is_floating]
        if kind is not None and floating and result.dtype.is_floating:
            try:
                tf.gradients(result, floating)
            except (LookupError, TypeError, ValueError):  # no gradient: the forward op alone
                pass
        view = GraphView(graph)
        found = []
        for op in graph.get_operations():
            if not op.inputs and kind != Kind.RANDOM:
                continue
            types = [
                [_input_type(tensor) for tensor in op.inputs],
                [TensorType(_shape(tensor), tensor.dtype) for tensor in op.outputs],
            ]
            cost = op_cost(op.node_def, *types)
            if cost.kind == (kind or cost.kind) and cost.kind != Kind.FREE:
                found.append(OpSample(_signature(view, op, *types), cost, dtype.name, number))
        return found


def _input_type(tensor: tf.Tensor) -> TensorType:
    """Shape and dtype; the workspace of a norm, of which no size is known, is empty."""
    shape = _shape(tensor)
    return TensorType((0,) if shape is None else shape, tensor.dtype)


def _shape(tensor: tf.Tensor) -> Optional[Tuple[Optional[int], ...]]:
    return None if tensor.shape.ndims is None else tuple(tensor.shape.as_list())


def _signature(
    view: GraphView, op: tf.Operation, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> Signature:
    constants = [_whole_numbers(tensor) for tensor in op.inputs]
    attrs = backward.attributes_of(view.nodes[view.index[op.name]].serialized_attrs)
    nothing = (False,) * len(inputs)
    used = (True,) * len(outputs)
    return Signature(op.type, attrs, tuple(inputs), tuple(outputs), tuple(constants), nothing, used)


def _whole_numbers(tensor: tf.Tensor) -> Optional[Tuple[float, ...]]:
    """The elements of an input such as axes or a shape; None if they are not known."""
    if tensor.dtype not in (tf.int32, tf.int64) or tensor.op.type == "Placeholder":
        return None
    if tensor.op.type == "ShapeN":
        return tuple(tensor.op.inputs[tensor.value_index].shape.as_list())
    value = tf_compat.evaluate_constant(tensor)
    return None if value is None or value.ndim > 1 else tuple(value.flatten().tolist())
