"""Rules of element-wise ops, with or without broadcasting: tables of op types."""

from typing import Iterator, List, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.rules.common import broadcast_labels, dimensions, known_ranks, labelled, linear, text_attr
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, OpInfo, rule

# All inputs are broadcast to the shape of the output.
_NOT_LINEAR = """
    Abs Acos Acosh Angle Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e Betainc Bucketize Ceil ClipByValue ComplexAbs
    Cos Cosh Digamma Elu EluGrad Erf Erfc Exp Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars Floor FloorDiv
    FloorMod Igamma Igammac IgammaGradA Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Lgamma
    Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod MulNoNan NextAfter OnesLike Polygamma PopulationCount
    Pow Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt RsqrtGrad Selu SeluGrad
    Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference
    Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlogy Zeta ZerosLike
    ApproximateEqual BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterEqual Less LessEqual NotEqual CheckNumerics
"""
_LINEAR_IN_ALL = """
    Add AddN AddV2 Complex Conj GuaranteeConst Identity Imag Neg PreventGradient Real Snapshot StopGradient Sub"""
_LINEAR_IN_EACH = "Mul"
_LINEAR_IN_FIRST = "DivNoNan RealDiv"


def _broadcast(op: OpInfo) -> Iterator[Choice]:
    if known_ranks(op):
        rank = len(op.outputs[0].shape or ())
        yield from labelled(op, [broadcast_labels(tensor, rank) for tensor in op.inputs], [range(rank)])


rule(*_NOT_LINEAR.split())(_broadcast)


@rule(*_LINEAR_IN_ALL.split())
def _linear_in_all(op: OpInfo) -> Iterator[Choice]:
    yield from _broadcast(op)
    yield from linear(op, *range(len(op.inputs)))


@rule(*_LINEAR_IN_EACH.split())
def _linear_in_each(op: OpInfo) -> Iterator[Choice]:
    yield from _broadcast(op)
    for index in range(len(op.inputs)):
        yield from linear(op, index)


@rule(*_LINEAR_IN_FIRST.split())
def _linear_in_first(op: OpInfo) -> Iterator[Choice]:
    yield from _broadcast(op)
    yield from linear(op, 0)


@rule("Div")
def _div(op: OpInfo) -> Iterator[Choice]:
    """Quotients of integers are truncated, so partial sums of integers are not divided one by one."""
    yield from _broadcast(op)
    if not op.outputs[0].dtype.is_integer:
        yield from linear(op, 0)


@rule("Cast")
def _cast(op: OpInfo) -> Iterator[Choice]:
    """Partial sums are not rounded to fewer bits before they are summed."""
    yield from _broadcast(op)
    source, target = op.inputs[0].dtype, op.outputs[0].dtype
    if source.is_floating and target.is_floating and target.size >= source.size:
        yield from linear(op, 0)


@rule("Bitcast")
def _bitcast(op: OpInfo) -> Iterator[Choice]:
    if op.inputs[0].dtype.size == op.outputs[0].dtype.size:
        yield from _broadcast(op)


@rule("AccumulateNV2")
def _accumulate(op: OpInfo) -> Iterator[Choice]:
    """Emits an AddN: the attribute of an AccumulateNV2 would have the shape of the full tensor."""

    def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
        return [tf.add_n(inputs)]

    for choice in _linear_in_all(op):
        yield choice._replace(emit=emit)


@rule("EnsureShape")
def _ensure_shape(op: OpInfo) -> Iterator[Choice]:
    """The shard is checked without the dimension that is cut."""

    def emitter(outputs: Tuple[Placement, ...]) -> Emit:
        sizes = list(op.outputs[0].shape or ())
        sizes[outputs[0].dim] = None

        def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
            return emission.same(inputs, shape=tf.TensorShape(sizes))

        return emit

    data = dimensions(op.inputs[0])
    yield from labelled(op, [data], [data], emitter=emitter)


@rule("SelectV2")
def _select_v2(op: OpInfo) -> Iterator[Choice]:
    yield from _broadcast(op)
    yield from linear(op, 1, 2)


@rule("Select")
def _select(op: OpInfo) -> Iterator[Choice]:
    """The condition has the shape of the others, or is a scalar, or a vector that picks rows."""
    if known_ranks(op):
        data = dimensions(op.outputs[0])
        yield from labelled(op, [dimensions(op.inputs[0]), data, data], [data])
        yield from linear(op, 1, 2)


@rule("BiasAdd", "BiasAddV1")
def _bias_add(op: OpInfo) -> Iterator[Choice]:
    if not known_ranks(op):
        return
    data = dimensions(op.outputs[0])
    if text_attr(op, "data_format") != "NCHW":
        yield from labelled(op, [data, data[-1:]], [data])
    elif len(data) == 4:
        yield from labelled(op, [data, data[1:2]], [data])
