"""Which writes update which variable, and groups of equal bytes."""

import itertools

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.ir.view import GraphView
from epl.parallel.grouped_apply.groups import balanced_groups, find_updates

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def largest(sizes, groups):
    return max(sum(max(1, sizes[i]) for i in group) for group in groups)


@given(SIZES, st.integers(2, 12))
@settings(deadline=None, max_examples=200)
def test_no_cut_has_a_smaller_largest_group(sizes, count):
    groups = balanced_groups(sizes, count)
    starts = itertools.combinations(range(1, len(sizes)), len(groups) - 1)
    edges = [(0,) + cut + (len(sizes),) for cut in starts]
    best = min(largest(sizes, [range(a, b) for a, b in zip(edge, edge[1:])]) for edge in edges)
    assert largest(sizes, groups) == best


@given(SIZES, st.integers(2, 12))
@settings(deadline=None)
def test_groups_hold_each_item_once_and_in_order(sizes, count):
    groups = balanced_groups(sizes, count)
    assert [i for group in groups for i in group] == list(range(len(sizes)))
    assert len(groups) == min(count, len(sizes)) and all(groups)


def test_an_unknown_size_counts_as_the_mean():
    assert balanced_groups([10, None, 10, 10], 2) == [[0, 1], [2, 3]]
    assert balanced_groups([None, None], 2) == [[0], [1]]


def updates(build, resource=False):
    """Name of a trained variable -> names of the variables that its update writes; and those of none."""
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=resource):
        return find(build, [tf.get_variable(name, [2]) for name in ("a", "b")])


def find(build, variables):
    """What `build` does with (gradient, variable) pairs."""
    gradients = [tf.identity(tf.ones([2]), name="gradient") for _ in variables]
    mine = tf.get_default_graph().get_operations()
    build(list(zip(gradients, variables)))
    view = GraphView(tf.get_default_graph())
    outside = {view.index[op.name] for op in mine}
    of_call = {view.index[g.op.name]: view.index[v.op.name] for g, v in zip(gradients, variables)}
    found = find_updates(view, of_call, set(), lambda node: node not in outside or node in of_call)
    names = {}
    for update in found.of_call:
        written = {view.nodes[v].name for write in update.writes for v in view.variable_inputs(write)}
        names[view.nodes[update.variable].name] = sorted(written)
    return names, [view.nodes[v].name for v in found.left_out]


@pytest.mark.parametrize(
    "optimizer, slots",
    [
        (lambda: tf.train.GradientDescentOptimizer(0.1), []),
        (lambda: tf.train.MomentumOptimizer(0.1, 0.9), ["Momentum"]),
        (lambda: tf.train.AdamOptimizer(), ["Adam", "Adam_1"]),
        (lambda: tf.train.RMSPropOptimizer(0.1, centered=True), ["RMSProp", "RMSProp_1", "RMSProp_2"]),
        (lambda: tf.train.FtrlOptimizer(0.1), ["Ftrl", "Ftrl_1"]),
    ],
)
@pytest.mark.parametrize("resource", [False, True])
def test_slots_are_written_with_their_variable(optimizer, slots, resource):
    def build(pairs):
        optimizer().apply_gradients(pairs, tf.train.get_or_create_global_step())

    found, left_out = updates(build, resource)
    assert found == {name: sorted([name] + [f"{name}/{slot}" for slot in slots]) for name in "ab"}
    assert not left_out


@pytest.mark.parametrize("resource", [False, True])
def test_slots_of_sparse_updates_are_written_with_their_variable(resource):
    def build(pairs):
        slices = [(tf.IndexedSlices(gradient, [0, 1]), variable) for gradient, variable in pairs]
        tf.train.AdamOptimizer().apply_gradients(slices)

    found, _ = updates(build, resource)
    assert found == {name: [name, name + "/Adam", name + "/Adam_1"] for name in "ab"}


def test_slots_of_plain_ops_are_written_with_the_variable_that_reads_them():
    def build(pairs):
        for gradient, variable in pairs:
            moment = tf.get_variable(variable.op.name + "_moment", [2], trainable=False)
            following = 0.9 * moment + gradient
            tf.group(tf.assign(variable, variable - following), tf.assign(moment, following))

    found, _ = updates(build)
    assert found == {"a": ["a", "a_moment"], "b": ["b", "b_moment"]}


def test_a_statistic_of_one_gradient_is_written_with_its_variable():
    def build(pairs):
        for gradient, variable in pairs:
            seen = tf.get_variable(variable.op.name + "_seen", [2], trainable=False)
            tf.group(tf.assign_sub(variable, gradient), tf.assign_add(seen, tf.abs(gradient)))

    found, _ = updates(build)
    assert found == {"a": ["a", "a_seen"], "b": ["b", "b_seen"]}


def test_what_updates_share_belongs_to_none():
    def build(pairs):
        total = tf.get_variable("total", [], trainable=False)
        norm = tf.global_norm([gradient for gradient, _ in pairs])
        tf.assign_add(total, norm)
        for gradient, variable in pairs:
            tf.assign_sub(variable, gradient / (norm + total))

    found, _ = updates(build)
    assert found == {"a": ["a"], "b": ["b"]}


def test_a_variable_that_nothing_writes_is_left_out():
    found, left_out = updates(lambda pairs: tf.assign_sub(pairs[0][1], pairs[0][0]))
    assert list(found) == ["a"] and left_out == ["b"]
