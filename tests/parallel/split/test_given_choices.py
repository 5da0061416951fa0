"""Choices that are given by op: the search takes them, and searches around them."""

import logging

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.parallel.plan.loaded import use_plan
from epl.parallel.plan.plan import describe, section
from epl.parallel.plan.sections import SplitSection
from epl.utils.errors import AnnotationError, PlanError
from tests.parallel.in_process import error_text, rewritten

COLOCATED = {"cluster__colocate_split_and_replicate": True}
BY_ROWS_FIRST = {"fc1/MatMul": "partial", "fc2/MatMul": "shard(1)"}


def build(init, choices, ratios=None, further=None):
    """Two dense layers in a scope, and a layer in a further one."""
    init(2, annotate=False, **COLOCATED)
    x = tf.placeholder(tf.float32, [None, 64], "x")
    with epl.split(2, ratios=ratios, choices=choices):
        hidden = tf.layers.dense(x, 256, tf.nn.relu, name="fc1")
        logits = tf.layers.dense(hidden, 32, name="fc2")
    with epl.split(2, choices=further):
        logits = tf.layers.dense(logits, 128, name="fc3")
        loss = tf.reduce_mean(tf.square(logits))
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def decided():
    """Op -> its choice, and variable -> the dimension that is cut, by the plan."""
    found = section(rewritten().plan, SplitSection)
    return {one.op: one for one in found.ops}, {one.variable: one.dim for one in found.variables}


def test_outputs_are_placed_as_given_and_the_rest_around_them(init):
    build(init, BY_ROWS_FIRST)
    ops, cut = decided()
    assert (ops["fc1/MatMul"].outputs, cut["fc1/kernel"]) == (("partial",), 0)
    assert (ops["fc2/MatMul"].outputs, cut["fc2/kernel"]) == (("shard(1: 16+16)",), 1)
    assert {name for name, one in ops.items() if one.given} == set(BY_ROWS_FIRST)


@pytest.mark.parametrize(
    "choices, dim",
    [
        ({"fc1/Mat*": "full, shard(1) -> shard(1)"}, 1),
        ({"fc1/Mat*": "full, shard(1: 128+128) -> shard(1: 128+128)"}, 1),
        ({"fc?/MatMul": "partial"}, 0),
        ({"*": "full"}, -1),
    ],
    ids=str,
)
def test_texts_are_those_of_a_printed_plan(init, choices, dim):
    build(init, choices)
    assert decided()[1]["fc1/kernel"] == dim


def test_a_choice_that_is_given_is_marked(init, caplog):
    caplog.set_level(logging.INFO, "epl")
    build(init, {"fc1/Relu": "full"})
    assert "  Relu fc1/Relu: full -> full (given)" in caplog.text
    assert "full -> full (given): fc1/Relu" in describe(rewritten().plan)


def test_sizes_follow_the_ratios_of_the_scope(init):
    build(init, {"fc1/MatMul": "shard(1)"}, [0, 1], {"fc3/MatMul": "shard(1)"})
    ops, _ = decided()
    assert ops["fc1/MatMul"].outputs == ("shard(1: 0+256)",) and ops["fc3/MatMul"].outputs == ("shard(1: 64+64)",)


def test_a_plan_gives_them_again(init):
    build(init, BY_ROWS_FIRST)
    plan = rewritten().plan
    with use_plan(plan):
        build(init, BY_ROWS_FIRST)
        assert rewritten().plan.features == plan.features
        text = error_text(build, init, {"fc1/MatMul": "shard(1)"})
    assert "does not fit the plan that it is to be built from: the scope of 'fc1/MatMul' gives other placements" in text


def test_what_an_op_cannot_do_is_refused_with_what_it_can(init):
    with pytest.raises(PlanError) as refused:
        build(init, {"fc1/MatMul": "shard(1: 100+156)"})
    text = str(refused.value)
    assert text.startswith("split: the choices give 'shard(1: 100+156)' for MatMul \"fc1/MatMul\" (" + __file__)
    assert "It can be computed as 'full, full -> full' | 'shard(0), full -> shard(0)' |" in text
    assert "'full, shard(1: 128+128) -> shard(1: 128+128)'" in text


def test_choices_that_exclude_each_other_are_refused(init):
    with pytest.raises(
        PlanError, match=r'with the choices that are given, BiasAdd "fc1/BiasAdd"|cannot be computed so'
    ):
        build(init, {"fc1/MatMul": "full", "fc1/BiasAdd": "partial"})
    with pytest.raises(PlanError, match=r'with the choices that are given, Identity "add" .* would take its inputs as'):
        init(2, annotate=False, **COLOCATED)
        with epl.split(2, choices={"add": "partial"}):
            kernel = tf.get_variable("kernel", [64, 64])
            loss = tf.reduce_sum(tf.identity(kernel, name="add"))
        tf.gradients(loss, kernel)


def test_a_name_of_another_scope_is_refused_with_the_nearest(init):
    with pytest.raises(PlanError, match=r"are for 'fc3/MatMul', and the scope has no op .* 'fc[12]/MatMul'"):
        build(init, {"fc3/MatMul": "shard(1)"})


@pytest.mark.parametrize("choices", [["fc1"], {"fc1": 1}, "fc1", {1: "full"}], ids=str)
def test_choices_are_texts_by_name(choices):
    with pytest.raises(AnnotationError, match="expected a dict from names of ops to the placements of their outputs"):
        epl.split(2, choices=choices)
