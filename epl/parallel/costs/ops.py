"""What one run of an op costs, by op type: a table of kinds, FLOPs and memory traffic.

FLOPs are counted as in tf.profiler: a multiply-add is two, an elementwise function is one per element. The table exists
because tf.profiler knows no batched matmul, no einsum and no norm, and gives up if a dimension is unknown.
`epl/parallel/costs/op_times.py` says how long it takes.
"""

from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.costs.shapes import UNKNOWN_DIMENSION, TensorType, num_bytes, num_elements
from epl.planner.machine.op_kinds import Kind

_TO_KERNEL = ("Conv2DBackpropFilter", "Conv3DBackpropFilter")  # their output is the kernel


class OpCost(NamedTuple):
    """One run of an op.

    Attributes:
      kind: a constant of Kind.
      flops: floating point operations.
      bytes: bytes read and written.
      narrowest: the smallest of rows, columns and summed elements of a contraction; 0 for other kinds. The rows of a
        convolution are the positions of all pictures of the batch.
      dtype: name of the dtype in which it computes: that of its first output.
    """

    kind: str
    flops: float
    bytes: float
    narrowest: int
    dtype: str = "float32"


Types = Sequence[TensorType]


class OpRun(NamedTuple):
    """An op that runs, with the types that it runs on.

    Attributes:
      node: the op: its type and attributes count.
      inputs, outputs: types of its data inputs and outputs.
      times: how often it runs.
      share: of its FLOPs and bytes that counts.
    """

    node: tf.NodeDef
    inputs: Tuple[TensorType, ...]
    outputs: Tuple[TensorType, ...]
    times: float = 1.0
    share: float = 1.0

    def cost(self) -> OpCost:
        """The cost of one run."""
        found = op_cost(self.node, self.inputs, self.outputs)
        if self.share == 1:
            return found
        return found._replace(flops=self.share * found.flops, bytes=self.share * found.bytes)


KeptInside = Tuple[TensorType, float]
RunPair = Tuple[Tuple[OpRun, ...], Tuple[OpRun, ...]]  # the same runs for two numbers of rows


class OpWork(NamedTuple):
    """What one run of an op computes and keeps.

    Attributes:
      forward, backward: the ops that run.
      kept_inputs, kept_outputs: positions of its tensors that the backward pass reads.
      inside: (tensor, how many) that are kept inside of functions.
      is_known: whether the backward pass is known; else it counts as the forward pass.
      unbounded: loops inside of functions whose turns are not known and count as 1.
    """

    forward: Tuple[OpRun, ...]
    backward: Tuple[OpRun, ...]
    kept_inputs: Tuple[int, ...] = ()
    kept_outputs: Tuple[int, ...] = ()
    inside: Tuple[KeptInside, ...] = ()
    is_known: bool = True
    unbounded: Tuple[str, ...] = ()


Flops = Callable[[tf.NodeDef, Types, Types], float]
Traffic = Callable[[Types, Types], float]


class Row(NamedTuple):
    kind: str
    flops: Flops
    traffic: Traffic


def kind_of(op_type: str) -> str:
    """The kind of an op type, a constant of Kind."""
    return _TABLE.get(op_type, _UNKNOWN).kind


def op_cost(node: tf.NodeDef, inputs: Types, outputs: Types) -> OpCost:
    """FLOPs and bytes read and written by one run of an op.

    Args:
      node: the op.
      inputs: its data inputs, in order.
      outputs: its outputs, in order.
    """
    row = _TABLE.get(node.op, _UNKNOWN)
    narrowest = 0
    if row.kind in (Kind.MATMUL, Kind.BATCH_MATMUL) and "equation" not in node.attr:
        rows, columns = _dimension(outputs[0], -2), _dimension(outputs[0], -1)
        narrowest = min(rows, columns, _summed(node, inputs))
    elif row.kind == Kind.CONVOLUTION:
        weights = outputs[0] if node.op.startswith(_TO_KERNEL) else inputs[1]
        result = inputs[2] if "Backprop" in node.op else outputs[0]
        channels = _dimension(weights, -1)
        # A product of a matrix with a row for each position of all pictures, and of the weights.
        narrowest = min(num_elements(one.shape) // max(1, channels) for one in (weights, result))
        narrowest = min(channels, narrowest)
    dtype = outputs[0].dtype.base_dtype.name if outputs else "float32"
    return OpCost(row.kind, row.flops(node, inputs, outputs), row.traffic(inputs, outputs), narrowest, dtype)


# ---- memory traffic


def _all(inputs: Types, outputs: Types) -> float:
    return sum(num_bytes(t) for t in inputs) + sum(num_bytes(t) for t in outputs)


def _output_twice(inputs: Types, outputs: Types) -> float:
    """For ops that pick some elements of an input: they read only those."""
    return 2 * sum(num_bytes(t) for t in outputs)


def _last_input_twice(inputs: Types, outputs: Types) -> float:
    """For ops that write a part into a tensor that stays in place."""
    return 2 * num_bytes(inputs[-1]) if inputs else 0


def _no_bytes(inputs: Types, outputs: Types) -> float:
    return 0


# ---- FLOPs


def _none(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    return 0


def _per_output(count: float) -> Flops:
    return lambda node, inputs, outputs: count * sum(num_elements(t.shape) for t in outputs[:1])


def _per_input(count: float) -> Flops:
    return lambda node, inputs, outputs: count * sum(num_elements(t.shape) for t in inputs[:1])


def _add_n(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    return (len(inputs) - 1) * num_elements(outputs[0].shape)


def _dimension(tensor: TensorType, axis: int) -> int:
    if tensor.shape is None or len(tensor.shape) < abs(axis):
        return UNKNOWN_DIMENSION
    size = tensor.shape[axis]
    return UNKNOWN_DIMENSION if size is None else size


def _is_set(node: tf.NodeDef, attr: str) -> bool:
    return attr in node.attr and node.attr[attr].b  # reading a missing attribute would add it


def _summed(node: tf.NodeDef, inputs: Types) -> int:
    """The dimension that a matmul sums over."""
    transposed = _is_set(node, "transpose_a") or _is_set(node, "adj_x")
    return _dimension(inputs[0], -2 if transposed else -1)


def _contraction(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    return 2.0 * _summed(node, inputs) * num_elements(outputs[0].shape)


def _einsum(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    """Two per combination of all indices, those of the ellipsis included; one when there is one input."""
    terms = node.attr["equation"].s.decode().replace(" ", "").split("->")[0].split(",")
    sizes: Dict[Any, int] = {}
    for term, tensor in zip(terms, inputs):
        rank = 0 if tensor.shape is None else len(tensor.shape)
        before, dots, after = term.partition("...")
        open_axes = list(range(rank - len(before) - len(after), 0, -1)) if dots else []  # counted from the right
        for axis, label in enumerate([*before, *open_axes, *after]):
            sizes[label] = max(sizes.get(label, 1), _dimension(tensor, axis - rank))
    product = 1.0
    for size in sizes.values():
        product *= size
    return product * len(inputs)


def _convolution(result: int, kernel: Callable[[Types, Types], TensorType]) -> Flops:
    """Flops of a convolution or of one of its gradients.

    Args:
      result: the input that is the result of the forward convolution, -1 when it is the output.
      kernel: picks the kernel, [height, width, channels in, channels out].
    """

    def flops(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
        positions = outputs[0] if result < 0 else inputs[result]
        weights = kernel(inputs, outputs)
        return 2.0 * num_elements(positions.shape) * num_elements(weights.shape) / max(1, _dimension(weights, -1))

    return flops


def _depthwise(result: int, kernel: Callable[[Types, Types], TensorType]) -> Flops:
    """As `_convolution`, each channel by itself: the kernel is [height, width, channels, multiplier]."""

    def flops(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
        positions = outputs[0] if result < 0 else inputs[result]
        shape = kernel(inputs, outputs).shape
        return 2.0 * num_elements(positions.shape) * num_elements(None if shape is None else shape[:2])

    return flops


def _kernel_in(inputs: Types, outputs: Types) -> TensorType:
    return inputs[1]


def _kernel_out(inputs: Types, outputs: Types) -> TensorType:
    return outputs[0]


def _pool(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    window = 1
    for size in node.attr["ksize"].list.i:
        window *= size
    return float(window * num_elements(outputs[0].shape))


def _pool_gradient(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    """Distributes the gradient over each window. Kernels of oneDNN take another input after it."""
    gradient = 2 if node.op.startswith("Max") else 1
    return _pool(node, outputs, inputs[gradient : gradient + 1])


def _update(count: float) -> Flops:
    """Per element of the variable; a variable with a handle is as large as its gradient."""
    return lambda node, inputs, outputs: count * max(num_elements(t.shape) for t in [*inputs, *outputs])


def _batch_norm(node: tf.NodeDef, inputs: Types, outputs: Types) -> float:
    """Training has two more reductions than inference."""
    return (8.0 if _is_set(node, "is_training") else 5.0) * num_elements(outputs[0].shape)


# ---- the table: (kind, FLOPs, traffic, op types)

_ROWS: Tuple[Tuple[str, Flops, Traffic, str], ...] = (
    (Kind.FREE, _none, _no_bytes, """
        Const Variable VariableV2 AutoReloadVariable VarHandleOp ReadVariableOp VariableShape IsVariableInitialized
        VarIsInitializedOp DisableCopyOnRead
        Identity IdentityN RefIdentity Reshape Squeeze ExpandDims Shape ShapeN Size Rank StopGradient
        PreventGradient NoOp ControlTrigger Assert CheckNumerics BroadcastGradientArgs
        Placeholder PlaceholderV2 PlaceholderWithDefault IteratorV2 Iterator OneShotIterator IteratorGetNext
        IteratorGetNextSync Stage Unstage FIFOQueueV2 RandomShuffleQueueV2 PaddingFIFOQueueV2 QueueDequeueV2
        QueueDequeueManyV2 QueueDequeueUpToV2
        Switch Merge Enter Exit NextIteration LoopCond RefSwitch RefMerge RefEnter RefExit RefNextIteration
        TensorArrayV3 TensorArraySizeV3 TensorArrayReadV3 TensorArrayWriteV3 TensorArrayCloseV3 StackV2 StackPushV2
        StackPopV2"""),
    (Kind.MOVE, _none, _output_twice, "Gather GatherV2 GatherNd ResourceGather ResourceGatherNd Slice StridedSlice"),
    (Kind.MOVE, _none, _last_input_twice, "Assign AssignVariableOp ScatterUpdate ResourceScatterUpdate"),
    (Kind.MOVE, _none, _all, """
        Concat ConcatV2 Pack Unpack Split SplitV Tile Pad PadV2 MirrorPad Fill ZerosLike OnesLike OneHot Bitcast
        BroadcastTo Snapshot DynamicStitch ParallelDynamicStitch DynamicPartition ScatterNd Range InvertPermutation
        TensorArrayGatherV3 TensorArrayScatterV3 TensorArrayConcatV3 TensorArraySplitV3"""),
    (Kind.REARRANGE, _none, _all, """
        Transpose ConjugateTranspose Cast Reverse ReverseV2 ReverseSequence SpaceToDepth DepthToSpace SpaceToBatch
        SpaceToBatchND BatchToSpace BatchToSpaceND"""),
    (Kind.MATMUL, _contraction, _all, "MatMul SparseMatMul"),
    (Kind.BATCH_MATMUL, _contraction, _all, "BatchMatMul BatchMatMulV2"),
    (Kind.BATCH_MATMUL, _einsum, _all, "Einsum"),
    (Kind.CONVOLUTION, _convolution(-1, _kernel_in), _all, "Conv2D Conv3D"),
    (Kind.CONVOLUTION, _convolution(2, _kernel_in), _all, "Conv2DBackpropInput Conv3DBackpropInputV2"),
    (Kind.CONVOLUTION, _convolution(2, _kernel_out), _all, "Conv2DBackpropFilter Conv3DBackpropFilterV2"),
    (Kind.DEPTHWISE, _depthwise(-1, _kernel_in), _all, "DepthwiseConv2dNative"),
    (Kind.DEPTHWISE, _depthwise(2, _kernel_in), _all, "DepthwiseConv2dNativeBackpropInput"),
    (Kind.DEPTHWISE, _depthwise(2, _kernel_out), _all, "DepthwiseConv2dNativeBackpropFilter"),
    (Kind.ELEMENTWISE, _per_output(1), _all, """
        Add AddV2 Sub Mul MulNoNan RealDiv Div DivNoNan FloorDiv FloorMod Mod TruncateDiv Maximum Minimum Neg Abs Sign
        Square SquaredDifference Sqrt Rsqrt SqrtGrad RsqrtGrad Reciprocal Inv Floor Ceil Round Rint ClipByValue BiasAdd
        BiasAddV1 Relu Relu6 LeakyRelu ReluGrad Relu6Grad LeakyReluGrad Equal NotEqual Less LessEqual Greater
        GreaterEqual ApproximateEqual LogicalAnd LogicalOr LogicalNot Select SelectV2 IsNan IsInf IsFinite"""),
    (Kind.ELEMENTWISE, _add_n, _all, "AddN AccumulateNV2"),
    (Kind.TRANSCENDENTAL, _per_output(1), _all, """
        Exp Expm1 Log Log1p Tanh TanhGrad Sigmoid SigmoidGrad Softplus Softsign Elu Selu"""),
    (Kind.SLOW, _per_output(1), _all, """
        Erf Erfc Pow Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Xlogy Xdivy Lgamma Digamma"""),
    (Kind.REDUCTION, _per_input(1), _all, """
        Sum Mean Prod Max Min All Any EuclideanNorm Cumsum Cumprod SegmentSum SegmentMean SegmentMax UnsortedSegmentSum
        UnsortedSegmentMax SparseSegmentSum SparseSegmentMean Bincount BiasAddGrad"""),
    (Kind.REDUCTION, _per_input(2), _all, "L2Loss"),
    (Kind.SEARCH, _per_input(1), _all, "ArgMax ArgMin TopK TopKV2 InTopK InTopKV2"),
    (Kind.SOFTMAX, _per_input(5), _all, "Softmax LogSoftmax"),
    (Kind.CROSS_ENTROPY, _per_input(10), _all, "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"),
    (Kind.NORM, _batch_norm, _all, "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"),
    (Kind.NORM, _per_output(11), _all, "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3"),
    (Kind.NORM, _per_output(5), _all, "LRN"),
    (Kind.POOL, _pool, _all, "MaxPool MaxPoolV2 AvgPool MaxPool3D AvgPool3D MaxPoolWithArgmax"),
    (Kind.POOL, _pool_gradient, _all, "MaxPoolGrad AvgPoolGrad MaxPool3DGrad AvgPool3DGrad"),
    (Kind.ELEMENTWISE, _update(2), _all, "ApplyGradientDescent ResourceApplyGradientDescent"),
    (Kind.ELEMENTWISE, _update(4), _all, "ApplyMomentum ResourceApplyMomentum ResourceApplyKerasMomentum"),
    (Kind.ELEMENTWISE, _update(6), _all, "ApplyAdagrad ResourceApplyAdagrad ApplyAdagradV2 ResourceApplyAdagradV2"),
    (Kind.ELEMENTWISE, _update(11), _all, "ApplyRMSProp ResourceApplyRMSProp"),
    (Kind.ELEMENTWISE, _update(12), _all, "ApplyAdam ResourceApplyAdam"),
    (Kind.RANDOM, _per_output(1), _all, """
        RandomUniform RandomUniformInt Multinomial StatelessRandomUniform RandomShuffle"""),
    (Kind.RANDOM, _per_output(4), _all, """
        RandomStandardNormal TruncatedNormal StatelessRandomNormal StatelessTruncatedNormal
        ParameterizedTruncatedNormal"""),
    (Kind.CALL, _none, _all, """
        PartitionedCall StatefulPartitionedCall If StatelessIf While StatelessWhile SymbolicGradient RemoteCall Case
        For"""),
)  # fmt: skip

_TABLE: Dict[str, Row] = {
    name: Row(kind, flops, traffic) for kind, flops, traffic, names in _ROWS for name in names.split()
}
_UNKNOWN = Row(Kind.UNKNOWN, _per_output(1), _all)
