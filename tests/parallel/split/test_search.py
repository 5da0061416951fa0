"""Which placements the search finds: those that are known to be best for the layers that people split.

Nothing runs here: collectives are counted in the program of rank 0, of models in their real sizes.
"""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.plan import values
from epl.parallel.plan.sections import SplitSection
from epl.parallel.sharding.placements import REPLICATED, shard
from epl.parallel.split import search as search_module
from epl.parallel.split.given_choices import planned
from epl.parallel.split.groups import SplitPlan
from epl.parallel.split.report import REFUSED_BYTES, moved_bytes, refuse_full_variables, table
from epl.parallel.split.resharding_paths import Link
from epl.parallel.split.search import reshardings, search
from epl.parallel.split.section import section_of
from epl.utils.errors import PlanError
from tests.parallel.split.harness import Model, Split, communicator, few_choices, moved
from tests.parallel.split.models import FLOAT, attention, classifier, cross_entropy, mixture, transformer, weights


@pytest.fixture(scope="module")
def wire():
    """Of four ranks."""
    return communicator(4)


def outside(*shape):
    """A trained tensor from replicate code that is the same on every rank, and its ops."""
    with tf.variable_scope("replicated"):
        x = tf.identity(weights("x", *shape))
    return x, tf.get_default_graph().get_operations()


def dense_pair(biased=False):
    x, before = outside(16, 1024)
    h = tf.matmul(x, weights("column", 1024, 4096))
    h = tf.nn.relu(tf.nn.bias_add(h, weights("bias", 4096)) if biased else h)
    return Model(tf.reduce_sum(tf.square(tf.matmul(h, weights("row", 4096, 1024)))), [], before)


def test_dense_activation_dense_is_column_then_row(wire):
    split = Split(dense_pair, 4, 0, wire, costs={})
    assert split.placements == {"column": shard(1, (1024,) * 4), "row": shard(0, (1024,) * 4)}
    assert split.kinds() == [["AllReduce"], ["AllReduce"]]


def test_the_bias_of_a_column_goes_with_it(wire):
    split = Split(lambda: dense_pair(biased=True), 4, 0, wire, costs={})
    assert split.placements["bias"] == shard(0, (1024,) * 4)
    assert split.kinds() == [["AllReduce"], ["AllReduce"]]


def convolutions(height, channels):
    def build():
        hidden, before = outside(1, height, height, channels)
        for layer in ("one", "two"):
            kernel = weights(layer, 3, 3, channels, channels)
            hidden = tf.nn.relu(tf.nn.conv2d(hidden, kernel, padding="SAME", strides=1))
        return Model(tf.reduce_sum(tf.square(hidden)), [], before)

    return build


def test_a_large_picture_is_cut_along_its_height(wire):
    split = Split(convolutions(256, 16), 4, 0, wire, costs={"link": Link(1e-6, 1e9), "full_variable": 1.0})
    assert split.placements == {"one": REPLICATED, "two": REPLICATED}
    steps = zip(split.program.steps, split.decision.choices)
    cut = {str(step.choices[choice].outputs[0]) for step, choice in steps if step.op.type in ("Conv2D", "Relu")}
    assert cut == {"shard(1: 64+64+64+64)"}


def test_large_kernels_of_a_small_picture_are_cut(wire):
    split = Split(convolutions(8, 512), 4, 0, wire, costs={"link": Link(1e-6, 1e9), "full_variable": 1.0})
    assert all(placement.is_shard for placement in split.placements.values())


def test_attention_is_split_by_heads(wire):
    def build():
        x, before = outside(1, 4, 1024)
        return Model(tf.reduce_sum(tf.square(attention(x, 16, 64, "attention"))), [], before)

    split = Split(build, 4, 0, wire, costs={})
    columns = shard(1, (256,) * 4)
    assert [split.placements["attention/" + name] for name in ("q", "key", "value")] == [columns] * 3
    assert split.placements["attention/output"] == shard(0, (256,) * 4)
    assert split.kinds() == [["AllReduce"], ["AllReduce"]]


def test_attention_of_layers_on_three_dimensions_is_split_by_heads_as_well(wire):
    """Each of the three layers reshapes the input for itself."""

    def build():
        x, before = outside(1, 4, 1024)

        def head(name):
            h = tf.layers.dense(x, 1024, name=name, kernel_initializer=tf.random_normal_initializer(stddev=0.3))
            return tf.transpose(tf.reshape(h, [-1, 4, 16, 64]), [0, 2, 1, 3])

        mixed = tf.matmul(tf.nn.softmax(tf.matmul(head("q"), head("key"), transpose_b=True)), head("value"))
        joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, 4, 1024])
        return Model(tf.reduce_sum(tf.square(tf.layers.dense(joined, 1024, name="output"))), [], before)

    split = Split(build, 4, 0, wire, costs={})
    assert [split.placements[name + "/kernel"].dim for name in ("q", "key", "value", "output")] == [1, 1, 1, 0]
    assert split.kinds() == [["AllReduce"], ["AllReduce"]]


def test_heads_that_do_not_divide_are_split_by_whole_heads(wire):
    def build():
        x, before = outside(1, 4, 640)
        return Model(tf.reduce_sum(tf.square(attention(x, 10, 64, "attention"))), [], before)

    split = Split(build, 4, 0, wire, costs={})
    assert split.placements["attention/q"] == shard(1, (192, 192, 128, 128))
    assert split.kinds() == [["AllReduce"], ["AllReduce"]]


def test_the_vocabulary_is_split_and_tied(wire):
    def build():
        tokens = tf.placeholder(tf.int32, [None], "tokens")
        labels = tf.placeholder(tf.int32, [None], "labels")
        words = weights("table", 32000, 256)
        x = tf.nn.tanh(tf.nn.embedding_lookup(words, tokens))
        return Model(cross_entropy(tf.matmul(x, words, transpose_b=True), labels), [])

    split = Split(build, 4, 0, wire, costs={})
    assert split.placements == {"table": shard(0, (8000,) * 4)}
    sizes = [size for part in split.collectives() for op in part for size in moved(op).shape.as_list()]
    assert max(size or 0 for size in sizes) <= 256  # neither the table nor the logits move


@pytest.mark.tensorflow(
    "1", reason="einsum of TensorFlow 2 is one op; its sum over experts is scattered, which moves as many bytes"
)
def test_experts_take_two_all_to_alls_forward_and_two_backward(wire):
    split = Split(lambda: mixture(experts=8, width=512, hidden=2048, inner=True), 4, 0, wire, costs={})
    assert split.placements["expert_in"] == split.placements["expert_out"] == shard(0, (2,) * 4)
    forward, backward = split.kinds()
    assert [forward.count("AllToAllV"), backward.count("AllToAllV")] == [2, 2]


def test_what_all_to_alls_send_as_float16_is_a_quarter_of_float64(wire):
    def sent(half):
        split = Split(lambda: mixture(8, 512, 2048, inner=True), 4, 0, wire, costs={}, half=half)
        told = [line for line in table(split.program, split.decision).split("\n") if "all-to-all" in line]
        assert len(told) == 2 and all(("as float16" in line) == half for line in told)
        made = [one for step in reshardings(split.program, split.decision) for _, one in step if one.kind == "move"]
        return sum(one.forward + one.backward for one in made)

    assert sent(half=True) == sent(half=False) / 4


def test_small_variables_stay_where_splitting_them_would_cost_more(wire):
    def build():
        x = tf.placeholder(FLOAT, [None, 4], "x")
        return Model(tf.reduce_mean(tf.square(tf.matmul(x, weights("w", 4, 4)))), [])

    assert Split(build, 4, 0, wire, costs={}).placements == {"w": REPLICATED}


def test_the_decision_is_the_same_every_time(wire):
    split = Split(dense_pair, 4, 0, wire, costs={})
    assert search(split.program) == split.decision == Split(dense_pair, 4, 3, wire, costs={}).decision


def _layers(count):
    x, before = outside(1, 4, 64)
    for number in range(count):
        x = tf.nn.relu(x + attention(x, 16, 4, f"attention{number}"))
        x = tf.matmul(tf.nn.relu(tf.matmul(x, weights(f"in{number}", 64, 256))), weights(f"out{number}", 256, 64))
    return Model(tf.reduce_sum(tf.square(x)), [], before)


def _decided(wire, layers):
    split = Split(lambda: _layers(layers), 4, 0, wire, costs={})
    return split.program, search(split.program)


def test_what_follows_from_the_states_before_a_block_is_found_once(wire, monkeypatch):
    made, found = [], search_module._Search._transition

    def count(*args):
        made.append(args)
        return found(*args)

    monkeypatch.setattr(search_module._Search, "_transition", count)
    counts = []
    for layers in (6, 12):
        _decided(wire, layers)
        counts.append(len(made))
        made.clear()
    assert counts[1] == counts[0]


def test_blocks_that_were_seen_before_are_decided_as_if_they_were_not(wire, monkeypatch):
    program, decision = _decided(wire, 6)
    kind = iter(range(10**6))
    monkeypatch.setattr(search_module._Search, "_step_kind", lambda *args: next(kind))
    assert search(program) == decision


def test_bytes_are_those_of_the_collectives(wire):
    split = Split(dense_pair, 4, 0, wire, costs={})
    all_reduce = 2 * 3 / 4 * 16 * 1024 * 8
    assert moved_bytes(split.program, split.decision) == (2 * all_reduce, 0)
    assert f"in all {2 * all_reduce:,.0f} bytes" in table(split.program, split.decision)


def dilation():
    x = tf.placeholder(FLOAT, [None, 4, 4, 192], "x")
    y = tf.nn.dilation2d(x, weights("filter", 3, 3, 192), [1] * 4, [1] * 4, "SAME")
    return Model(tf.reduce_mean(tf.square(y)), [])


def test_what_has_no_rule_is_named_with_its_line(wire):
    split = Split(dilation, 4, 0, wire, costs={})
    told = table(split.program, split.decision)
    assert f'Dilation2D "Dilation2D" ({__file__}:' in told and "has no rule" in told


def test_a_large_variable_that_would_stay_whole_is_refused(wire):
    split = Split(dilation, 4, 0, wire, costs={})
    refuse_full_variables(split.program, split.decision, REFUSED_BYTES)
    with pytest.raises(
        PlanError, match=r"\"filter\" of 13,824 bytes would stay whole .* Dilation2D \"Dilation2D\" \(.*:\d+\)"
    ):
        refuse_full_variables(split.program, split.decision, 1024)


@pytest.mark.grid
@pytest.mark.parametrize("build", [dense_pair, classifier, transformer, mixture], ids=lambda build: build.__name__)
@pytest.mark.parametrize("seed", [None, 0])
def test_a_decision_is_found_again_by_its_placements(wire, build, seed):
    """The plan has the placements of each op; with random choices left out, others than the best are decided on."""
    prepare = {} if seed is None else {"prepare": few_choices(seed)}
    split = Split(build, 4, 0, wire, **prepare)
    over = SplitPlan(((0, 1, 2, 3),), (), (), ())
    section = values.from_json(SplitSection, values.to_json(section_of(over, split.program, split.decision)))
    limits = dict(enumerate(planned(split.program, section)))
    assert section.ops and search(split.program, limits=limits).choices == split.decision.choices
