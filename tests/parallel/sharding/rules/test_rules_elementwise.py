"""Elementwise ops on parts: every op type of the tables, broadcasting, and addends that linear ops pass on."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.rules import elementwise as rules_elementwise
from tests.op_registry import registered_ops
from tests.parallel.sharding.rules.rule_harness import THREE, TWO, Case, check
from tests.parallel.sharding.rules.rule_inputs import (
    booleans,
    constant,
    floats,
    hidden,
    imaginary,
    integers,
    positive,
    tied,
)

# Op types whose inputs are not all floats; the others get numbers between 0.1 and 0.9.
INTEGERS = "BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift PopulationCount TruncateDiv TruncateMod".split()
BOOLEANS = "LogicalAnd LogicalNot LogicalOr".split()
COMPLEX = "Angle ComplexAbs Conj Imag Real".split()
TIED = """
    ApproximateEqual Equal Greater GreaterEqual Less LessEqual Maximum Minimum NotEqual Relu ReluGrad
    SquaredDifference""".split()
SCALARS = "ClipByValue FakeQuantWithMinMaxVars".split()
ATTRS = dict.fromkeys(["CheckNumerics", "PreventGradient"], {"message": "m"})
ATTRS["Bucketize"] = {"boundaries": [0.3, 0.5]}


def build(op_type, attrs=None):
    """A function that makes the op of its inputs."""
    names = [arg.name for arg in registered_ops()[op_type].input_arg]

    def call(*inputs):
        if op_type == "AddN":
            return tf.raw_ops.AddN(inputs=list(inputs))
        return getattr(tf.raw_ops, op_type)(**dict(zip(names, inputs)), **(attrs or ATTRS.get(op_type, {})))

    return call


def inputs_of(op_type, count):
    if op_type in INTEGERS:
        return [integers(7, low=1)] * count
    if op_type in BOOLEANS:
        return [booleans(7)] * count
    if op_type in COMPLEX:
        return [imaginary(7)] * count
    if op_type in TIED:
        return [tied(7)] * count
    if op_type in SCALARS:
        return [floats(7), constant(-0.5), constant(0.5)]
    if op_type in ("Acosh", "Zeta"):
        return [above_one(7)] * count
    if op_type == "Polygamma":
        return [constant([1.0, 2, 1, 2, 1, 2, 1]), positive(7)]
    return [positive(7)] * count


def above_one(*shape):
    """Numbers for functions that are not defined below 1."""
    return floats(*shape)._replace(make=lambda random, sizes: random.uniform(1.5, 2.5, sizes).astype(np.float32))


def table_cases():
    """One vector, one choice for each op type."""
    registered = registered_ops()
    linear = rules_elementwise._LINEAR_IN_ALL.split()
    for op_type in rules_elementwise._NOT_LINEAR.split() + linear:
        count = 3 if op_type == "AddN" else len(registered[op_type].input_arg)
        placements = ",".join(["s0", "F", "F"] if op_type in SCALARS else ["s0"] * count)
        expected = placements + ">s0"
        if op_type in linear:
            expected += " {}>P".format(",".join(["P"] * count))
        blocked = (0,) if op_type == "PreventGradient" else ()
        yield Case(op_type, build(op_type), inputs_of(op_type, count), expected, blocked)


@pytest.mark.parametrize("ranks", TWO)
def test_every_op_type(ranks):
    check(list(table_cases()), ranks)


def broadcast_cases():
    grid = floats("B", 1, 7)
    yield Case("rows", tf.add, [floats("B", 7), floats(7)], "b0,F>b0 s1,s0>s1 P,P>P")
    yield Case("outer", tf.maximum, [grid, floats(8, 1)], "b0,F>b0 F,s0>s1 s2,F>s2")
    yield Case("product", tf.multiply, [floats(5, 7), floats(7)], "s0,F>s0 s1,s0>s1 P,F>P F,P>P")
    yield Case("quotient", tf.divide, [floats(7), positive()], "s0,F>s0 P,F>P")
    yield Case("quotient_or_0", build("DivNoNan"), [floats("B", 7), hidden([0.0, 2.0, -1.0, 0.0, 0.5, 1.0, 3.0])],
               "b0,F>b0 s1,s0>s1 P,F>P")  # fmt: skip
    yield Case("integer_quotient", build("Div"), [integers(7), integers(7, low=1)], "s0,s0>s0")
    yield Case("square", lambda x, y: tf.squared_difference(x, y), [floats("B", 7), floats("B", 1)],
               "b0,b0>b0 s1,F>s1")  # fmt: skip
    yield Case("scalars", tf.add, [floats(), floats()], "P,P>P")
    yield Case("accumulated", lambda *values: tf.raw_ops.AccumulateNV2(inputs=values, shape=[5, 7]), [floats(5, 7)] * 3,
               "s0,s0,s0>s0 s1,s1,s1>s1 P,P,P>P")  # fmt: skip
    yield Case("cast", lambda x: tf.cast(x, tf.float64), [floats(7)], "s0>s0 P>P")
    yield Case("narrowed", lambda x: tf.cast(x, tf.float16), [floats(7)], "s0>s0")
    yield Case("counted", lambda x: tf.cast(x, tf.float32), [booleans("B", 7)], "b0>b0 s1>s1")
    yield Case("bits", lambda x: tf.bitcast(x, tf.int32), [floats(7)], "s0>s0")
    yield Case("v2", tf.where_v2, [booleans(7), floats(5, 1), floats()], "F,s0,F>s0 s0,F,F>s1 F,P,P>P")
    yield Case("select", tf.where, [booleans(5, 7), floats(5, 7), floats(5, 7)], "s0,s0,s0>s0 s1,s1,s1>s1 F,P,P>P")
    yield Case("picked_rows", tf.where, [booleans("B"), floats("B", 7), floats("B", 7)],
               "b0,b0,b0>b0 F,s1,s1>s1 F,P,P>P")  # fmt: skip
    yield Case("ensured", build("EnsureShape", {"shape": [None, 7]}), [floats("B", 7)], "b0>b0 s1>s1")
    yield Case("complex", build("Mul"), [imaginary(7), imaginary(7)], "s0,s0>s0 P,F>P F,P>P")
    yield Case("clip", build("ClipByValue"), [floats(7), floats(7), positive(7)], "s0,s0,s0>s0")


def bias_cases():
    yield Case("bias", tf.nn.bias_add, [floats("B", 7), floats(7)], "b0,F>b0 s1,s0>s1")
    yield Case("bias_4d", tf.nn.bias_add, [floats(4, 1, 1, 7), floats(7)], "s0,F>s0 s3,s0>s3")
    yield Case("bias_v1", build("BiasAddV1"), [floats(5, 7), floats(7)], "s0,F>s0 s1,s0>s1")
    nchw = build("BiasAdd", {"data_format": "NCHW"})
    # TensorFlow's own gradient of it is wrong on a CPU.
    yield Case("bias_nchw", nchw, [floats(4, 7, 1, 1), floats(7)], "s0,F>s0 s1,s0>s1", undifferentiated=[0])


@pytest.mark.parametrize("ranks", THREE)
def test_broadcasting_and_addends(ranks):
    check(list(broadcast_cases()) + list(bias_cases()), ranks)
