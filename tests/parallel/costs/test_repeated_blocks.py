"""Which name scopes are blocks, and how blocks become stages."""

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.costs.costs import node_costs
from epl.parallel.costs.repeated_blocks import find_blocks, stages_of_blocks
from tests.parallel.partition_models import transformer


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def blocks_of(loss):
    """The scopes that are found, as the common prefix of each block's names."""
    view = GraphView(tf.get_default_graph())
    needed = view.ancestors([view.index[loss.op.name]])
    found = find_blocks(view, needed, node_costs(tf.get_default_graph(), view, needed))
    return sorted({view.nodes[node].name.split("/")[0] for node in block}.pop() for block in found)


def dense_chain(names, width=64):
    """Dense layers in a row, each under a name of its own."""
    x = tf.placeholder(tf.float32, [16, width])
    for name in names:
        x = tf.layers.dense(x, width, tf.nn.relu, name=name)
    return tf.reduce_sum(x)


def test_layers_are_blocks():
    assert blocks_of(transformer(4)) == ["layer_0", "layer_1", "layer_2", "layer_3"]


def test_the_names_do_not_matter():
    assert blocks_of(dense_chain(["red", "green", "blue", "pink"])) == ["blue", "green", "pink", "red"]


def test_three_scopes_are_no_pattern():
    assert blocks_of(dense_chain(["a", "b", "c"])) == []


def test_a_scope_of_another_size_is_no_block():
    x = tf.placeholder(tf.float32, [16, 512])
    x = tf.layers.dense(x, 64, tf.nn.relu, name="first")
    for i in range(6):
        x = tf.layers.dense(x, 64, tf.nn.relu, name=f"layer{i}")
    assert blocks_of(tf.reduce_sum(x)) == [f"layer{i}" for i in range(6)]


def test_blocks_inside_one_scope_are_found():
    with tf.variable_scope("model"):
        loss = dense_chain(["a", "b", "c", "d"])
    assert blocks_of(loss) == ["model"] * 4


def test_blocks_that_take_less_than_half_of_the_time_do_not_count():
    x = tf.placeholder(tf.float32, [16, 256])
    for i in range(4):
        x = tf.layers.dense(x, 256, name=f"equal{i}")
    for width in (600, 400, 700):
        x = tf.layers.dense(x, width, name=f"other{width}")
    assert blocks_of(tf.reduce_sum(x)) == []


def chain_of_units(count, extra=()):
    """Units 0 .. count - 1 in a row, each a node: of_node, order, producers, fed."""
    producers = {unit: [unit - 1] if unit else [] for unit in range(count)}
    for unit, producer in extra:
        producers[unit] = producers[unit] + [producer]
    return list(range(count)), list(range(count)), producers, set(range(count))


def test_what_stands_between_blocks_stays_with_the_block_before():
    stages = stages_of_blocks([[1], [2], [4], [5]], *chain_of_units(7), num_stages=2)
    assert [stages[unit] for unit in range(7)] == [0, 0, 0, 0, 1, 1, 1]


def test_blocks_that_do_not_divide_give_no_stages():
    assert stages_of_blocks([[1], [2], [3], [4]], *chain_of_units(6), num_stages=3) is None


def test_blocks_that_feed_an_earlier_one_give_no_stages():
    of_node, order, producers, fed = chain_of_units(5)
    assert stages_of_blocks([[0, 4], [1], [2], [3]], of_node, order, producers, fed, num_stages=2) is None


def test_blocks_side_by_side_give_no_stages():
    producers = {0: [], 1: [0], 2: [0], 3: [0], 4: [0]}
    assert stages_of_blocks([[1], [2], [3], [4]], range(5), range(5), producers, set(range(5)), num_stages=2) is None


def test_a_variable_goes_with_the_unit_it_stands_before():
    producers = {0: [], 1: [0], 9: [], 2: [1, 9], 3: [2]}
    stages = stages_of_blocks([[0], [1], [2], [3]], range(10), [0, 1, 9, 2, 3], producers, {0, 1, 2, 3}, num_stages=2)
    assert stages[9] == 1
