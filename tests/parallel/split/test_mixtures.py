"""The mixture of experts of examples/moe: between gate and experts goes what has to, there and back, and no more."""

import os
import sys

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import shard
from epl.parallel.split.program import Program
from epl.parallel.split.region import find_region
from epl.parallel.split.resharding_paths import collectives
from epl.parallel.split.search import reshardings, search, variable_placements

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.append(os.path.join(ROOT, "examples", "moe"))

import mixture  # noqa: E402

RANKS, EXPERTS = 4, 8


class Inside:
    """Stands for epl.split: knows the ops that were made in it."""

    def __init__(self):
        self.ops = []

    def __enter__(self):
        self._before = len(tf.get_default_graph().get_operations())

    def __exit__(self, *error):
        self.ops += tf.get_default_graph().get_operations()[self._before :]


def split(gate, batch, layers=1, experts=EXPERTS, width=512):
    """The program of layers, and what the search decides for it."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [batch, 64, width]) * tf.get_variable("before", [width])
        inside, present = Inside(), tf.ones_like(x[:, :, 0])
        for number in range(layers):
            with tf.variable_scope(f"layer_{number}"):
                x += mixture.layer(x, present, experts, 4 * width, gate, scope=inside)[0]
        tf.reduce_mean(tf.square(x))
        region = find_region(inside.ops)
        program = Program(region, RANKS)
        program.train(list(region.outputs))
        return program, search(program)


def sent(program, decision):
    """Names of the collectives between ops, forward and backward, without those of a few bytes."""
    made = [(program.values[number], one) for step in reshardings(program, decision) for number, one in step]
    names = [collectives(one.kind, value.trained) for value, one in made if one.forward + one.backward > 64]
    return [sorted(name for name in side if name) for side in zip(*names)]


@pytest.mark.grid
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("gate", ["switch", "top2"])
@pytest.mark.parametrize("batch", [None, 4])
def test_two_all_to_alls_forward_and_two_backward_in_each_layer(gate, batch, layers):
    program, decision = split(gate, batch, layers)
    assert sent(program, decision) == [["all-to-all"] * 2 * layers] * 2
    found = variable_placements(program, decision).values()
    assert list(found) == [shard(0, (EXPERTS // RANKS,) * RANKS)] * 2 * layers


def test_a_batch_of_known_size_needs_nothing_else():
    program, decision = split("top2", 4)
    assert not any(step.choices[choice].inside for step, choice in zip(program.steps, decision.choices) if choice >= 0)


def test_experts_that_devices_do_not_divide_are_dealt_out_all_the_same():
    program, decision = split("top2", 4, experts=7)
    assert sent(program, decision) == [["all-to-all"] * 2] * 2
    assert set(variable_placements(program, decision).values()) == {shard(0, (2, 2, 2, 1))}
