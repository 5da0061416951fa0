"""What TensorFlow's kernels do with memory, by op type: a table, and sizes of temporary buffers.

    alias     the output is the memory of an input                              Reshape, Identity, rows of a tensor
    in place  the output takes the memory of an input that no other op needs    Tanh, Mul, AddN
    else      the output is allocated

Read from the kernels of TensorFlow 1.15 and compared with traced steps, op by op (docs/memory.md). A type that is not
in the table counts as allocating all its outputs, which is an upper bound.
"""

from typing import Sequence

from epl.ir import op_types
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.costs.shapes import TensorType, num_bytes, num_elements

Types = Sequence[TensorType]

_ALIASES = frozenset(
    """Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient Snapshot CheckNumerics Bitcast Print
    PlaceholderWithDefault ReadVariableOp Switch Merge Enter Exit NextIteration RefSwitch RefMerge RefEnter RefExit
    RefNextIteration RefIdentity EnsureShape""".split()
)
# Parts along the first dimension are aliases where they begin at an aligned address.
_CUTS = {"Slice": 0, "StridedSlice": 0, "Split": 1, "SplitV": 0, "Unpack": 0}  # op type -> the input that is cut
_ALIGNMENT = 32  # bytes; EIGEN_MAX_ALIGN_BYTES with AVX, for which TensorFlow is built

# Op types that take the memory of an input of equal size and type; the inputs in the order in which they are tried.
_FIRST = frozenset(
    """Neg Abs Sign Square Sqrt Rsqrt Reciprocal Inv Exp Expm1 Log Log1p Tanh Sigmoid Erf Erfc Sin Cos Tan Asin Acos
    Atan Sinh Cosh Floor Ceil Round Rint Lgamma Digamma LogicalNot Relu Relu6 LeakyRelu Elu Selu Softplus Softsign
    BiasAdd BiasAddV1 Softmax LogSoftmax ClipByValue ZerosLike OnesLike FusedBatchNorm FusedBatchNormV2
    FusedBatchNormV3""".split()
)
_FIRST_OR_SECOND = frozenset(
    """Add AddV2 Sub Mul MulNoNan RealDiv Div DivNoNan FloorDiv FloorMod Mod TruncateDiv Maximum Minimum Pow Atan2
    SquaredDifference Xlogy Xdivy LogicalAnd LogicalOr TanhGrad SigmoidGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad
    ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad""".split()
)
_ANY = frozenset(["AddN", "AccumulateNV2"])
_SECOND_OR_THIRD = frozenset(["Select", "SelectV2"])
# The loss is small; the gradient takes the memory of the logits.
_CROSS_ENTROPIES = frozenset(["SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"])
# Aliases if there is nothing to do: nothing to sum, repeat, convert or join.
_REDUCTIONS = frozenset("Sum Mean Prod Max Min All Any EuclideanNorm".split())
_ALIASES_OF_EQUAL_SIZE = _REDUCTIONS | frozenset("Tile BroadcastTo Cast Pack".split())

# Collectives reduce and broadcast in place; other collectives allocate their outputs.
_IN_PLACE_COLLECTIVES = {name: row.first_tensor for name, row in COLLECTIVE_OP_TYPES.items() if row.fused}

# The gradients of a convolution on the CPU unroll as many images at once as fit into a cache of that size ...
_CONVOLUTION_CACHE = 30 << 20
# ... that of the input one at a time if the part of an image that each thread does is at least this, another cache.
_THREAD_WORK = 256 << 10


def aliased_input(op_type: str, output: int, inputs: Types, outputs: Types) -> int:
    """The input whose memory an output shares; -1 for none.

    Args:
      op_type: of the op.
      output: its index.
      inputs, outputs: their types.
    """
    if not inputs:
        return -1
    if op_type in _ALIASES:
        if op_type in ("Merge", "RefMerge") and output:
            return -1  # unknown: the input that arrived
        return output if op_type == "IdentityN" else 0
    if op_type in op_types.REF_WRITES:
        return 0
    if op_type in _CUTS:
        return _CUTS[op_type] if _is_rows(inputs[_CUTS[op_type]], outputs[output]) else -1
    if op_type in _ALIASES_OF_EQUAL_SIZE and _same_size(inputs[0], outputs[0]):
        return 0
    return -1


def in_place_inputs(op_type: str, output: int, num_inputs: int) -> Sequence[int]:
    """The inputs whose memory an output may take, the first choice first."""
    if op_type in _FIRST:
        return (0,) if output == 0 else ()
    if op_type in _FIRST_OR_SECOND:
        return (0, 1)
    if op_type in _ANY:
        return range(num_inputs)
    if op_type in _SECOND_OR_THIRD:
        return (1, 2)
    if op_type in _CROSS_ENTROPIES:
        return (0,) if output == 1 else ()
    if op_type in _IN_PLACE_COLLECTIVES:
        return (_IN_PLACE_COLLECTIVES[op_type] + output,)
    return ()


def temporary_bytes(op_type: str, inputs: Types, outputs: Types, on_gpu: bool, threads: int) -> int:
    """Bytes that an op allocates for itself while it runs, as far as they come from the allocator of the device.

    Args:
      op_type: of the op.
      inputs, outputs: their types.
      on_gpu: on a GPU cuDNN chooses its workspaces by timing, so they are unknown and do not count.
      threads: the threads that share the work of one op.
    """
    if op_type in _REDUCTIONS and len(inputs) > 1:
        return _transposed_bytes(inputs[0], outputs[0])
    if op_type == "MaxPoolGrad":
        return 8 * num_elements(inputs[1].shape)  # the index of each maximum
    if on_gpu:
        return 0
    if op_type == "Conv2DBackpropFilter":
        return _unrolled_bytes(outputs[0], inputs[2], by_threads=0)
    if op_type == "Conv2DBackpropInput":
        return _unrolled_bytes(inputs[1], inputs[2], by_threads=threads)
    return 0


def _same_size(one: TensorType, other: TensorType) -> bool:
    return one.dtype.base_dtype == other.dtype.base_dtype and num_elements(one.shape) == num_elements(other.shape)


def _is_rows(whole: TensorType, part: TensorType) -> bool:
    """Whether a part is some rows of the full tensor, each at an aligned address."""
    if not whole.shape or part.shape is None:
        return False
    row = num_bytes(TensorType(whole.shape[1:], whole.dtype))
    inner = part.shape if len(part.shape) < len(whole.shape) else part.shape[1:]
    return row % _ALIGNMENT == 0 and row > 0 and tuple(inner) == tuple(whole.shape[1:])


def _transposed_bytes(whole: TensorType, reduced: TensorType) -> int:
    """The transposed copy that a reduction makes when kept and reduced dimensions alternate more than twice."""
    if whole.shape is None or reduced.shape is None or len(reduced.shape) != len(whole.shape):
        return 0  # without keepdims the kept dimensions are not known
    pattern = [size != kept for size, kept in zip(whole.shape, reduced.shape) if size != 1]
    runs = 1 + sum(one != other for one, other in zip(pattern, pattern[1:]))
    return num_bytes(whole) if runs > 3 else 0


def _unrolled_bytes(weights: TensorType, gradient: TensorType, by_threads: int) -> int:
    """The unrolled images of a gradient of Conv2D (conv_grad_{input,filter}_ops.cc of TensorFlow).

    Args:
      weights: the kernel, [height, width, channels in, channels out].
      gradient: of the output.
      by_threads: threads that share one image if it is large enough; 0: threads never share an image.
    """
    if weights.shape is None or len(weights.shape) != 4 or gradient.shape is None or len(gradient.shape) != 4:
        return 0
    depth = num_elements(weights.shape[3:])
    window = num_elements(weights.shape[:3])
    batch = num_elements(gradient.shape[:1])
    positions = num_elements(gradient.shape) // max(1, batch * depth)
    work = (positions * window + positions * depth + window * depth) * weights.dtype.base_dtype.size
    images = -(-_CONVOLUTION_CACHE // max(1, work))
    if by_threads and (batch == 1 or work // by_threads >= _THREAD_WORK):
        images = 1
    return images * positions * window * weights.dtype.base_dtype.size
