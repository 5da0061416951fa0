"""Which graphs have one digest, and what is said of the first difference of those that have not."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel.plan.graph_difference import OpFacts, facts_of, first_difference, in_words
from epl.parallel.plan.graph_digest import SEED_INPUTS, GraphDigest, OpDigest
from tests.op_registry import registered_ops
from tests.parallel.function_models import control_flow_v2


def model(optimizer=None, activation=tf.nn.relu, before=None, after=None, data=None, rate=0.01, seed=7, extra=None):
    """A layer, dropout, an optimizer; ops of one worker alone are made by `before`, `extra` and `after`."""
    if before is not None:
        before()
    x = tf.placeholder(tf.float32, [None, 3], "x") if data is None else data()
    w = tf.get_variable("w", [3, 4], initializer=tf.ones_initializer())
    hidden = tf.nn.dropout(activation(tf.matmul(x, w)), rate=0.5, seed=seed)
    if extra is not None:
        hidden = extra(hidden)
    loss = tf.reduce_mean(tf.square(hidden), name="loss")
    train_op = (optimizer or tf.train.AdamOptimizer(rate)).minimize(loss, tf.train.get_or_create_global_step())
    if after is not None:
        after(loss, train_op)


@pytest.fixture
def digest(init):
    """`digest(**of model)`: the digest of the model, and its graph."""

    def build(**differing):
        init()
        model(**differing)
        return GraphDigest(Graph.get()), tf.get_default_graph()

    return build


@pytest.fixture
def difference(digest):
    """`difference(of worker 0, of worker 1)`: what is said of models that are built so."""

    def compare(*workers):
        built = [digest(**differing) for differing in workers]
        lists = [[OpDigest(*op) for op in json.loads(json.dumps(one.ops()))] for one, _ in built]
        if built[0][0].top == built[1][0].top:
            return ""
        chosen = first_difference(*lists)
        facts = [json.loads(json.dumps(facts_of(one, graph, name))) for (one, graph), name in zip(built, chosen)]
        return in_words((0, 1), [None if one is None else OpFacts(*one) for one in facts])

    return compare


@pytest.fixture
def words(difference):
    """`words(**of model)`: what is said where worker 1 builds it so, and worker 0 as it is by default."""
    return lambda **differing: difference({}, differing)


def from_dataset(rows):
    """Data of one worker: its own rows, its own number of them."""

    def read():
        dataset = tf.data.Dataset.from_tensor_slices(np.full([rows, 3], rows, "f")).shard(2, rows % 2).batch(2)
        return tf.data.make_initializable_iterator(dataset.shuffle(4, seed=rows)).get_next()

    return read


def from_queue(files):
    """Data of one worker: its own files."""

    def read():
        names = tf.train.string_input_producer(files, seed=len(files))
        _, line = tf.TextLineReader().read(names)
        return tf.reshape(tf.decode_csv(line, [[0.0]] * 3), [1, 3])

    return read


@pytest.mark.parametrize(
    "differing",
    [
        {"seed": 8},
        {"before": lambda: tf.summary.scalar("made_by_the_chief", tf.constant(1.0))},
        {"before": lambda: [tf.constant(3.0), tf.get_variable("of_the_chief", [2])]},
        {"before": lambda: tf.set_random_seed(5)},
        {"after": lambda loss, train_op: tf.summary.merge([tf.summary.scalar("loss", loss)])},
        {"after": lambda loss, train_op: tf.train.Saver()},
        {"extra": lambda h: tf.identity(h) if tf.no_op() is None else h},
    ],
    ids=["seed", "summary", "ops", "graph_seed", "summary_of_loss", "saver", "no_op"],
)
def test_what_computes_the_same_has_one_digest(words, differing):
    assert words(**differing) == ""


@pytest.mark.parametrize("source", [(from_dataset(6), from_dataset(9)), (from_queue(["a"]), from_queue(["b", "c"]))])
def test_data_and_what_prepares_it_may_differ(digest, source):
    first, second = [digest(data=data)[0].top for data in source]
    assert first == second


def test_every_op_that_draws_by_a_seed_it_is_given_is_known():
    arguments = {name: [arg.name for arg in op.input_arg] for name, op in registered_ops().items()}
    drawing = {
        name: names.index("seed")
        for name, names in arguments.items()
        if "seed" in names and "seed2" not in names and not name.startswith(("Kmeans", "KMC2"))
    }
    assert {name: SEED_INPUTS.get(name) for name in drawing} == drawing


def test_names_of_py_funcs_and_tables_may_differ(digest):
    def data(of_worker):
        def read():
            for _ in range(of_worker):
                tf.py_func(lambda: np.float32(1), [], tf.float32)
            tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"] * of_worker, [1] * of_worker), 0)
            table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["b"], [of_worker]), 0)
            rows = tf.cast(table.lookup(tf.constant(["x%d" % of_worker] * 3)), tf.float32)
            drawn = tf.random.stateless_uniform([1, 3], seed=[1, of_worker])
            return drawn + rows + tf.reshape(tf.py_func(lambda: np.ones([1, 3], "f"), [], tf.float32), [1, 3])

        return read

    first, second = [digest(data=data(worker))[0].top for worker in (1, 2)]
    assert first == second


def test_the_bodies_of_functions_count_not_their_names(digest):
    def with_body(factor, others):
        def extra(hidden):
            for i in range(others):
                tf.function(lambda h, i=i: h * i)(hidden * 5.0)
            scale = tf.exp(hidden * factor)
            return tf.function(lambda h: h * factor + scale)(hidden)

        return extra

    tops = [digest(extra=with_body(*case))[0].top for case in ((2.0, 0), (2.0, 2), (3.0, 0))]
    assert tops[0] == tops[1] != tops[2]


def test_how_a_function_is_run_may_differ(digest):
    """TensorFlow writes the map in `config_proto` in an order that differs between processes."""

    def with_config(*devices):
        def extra(hidden):
            called = tf.function(lambda h: h * 2.0)(hidden)
            counts = [tf.ConfigProto(device_count={device: 1}).SerializeToString() for device in devices]
            called.op._set_attr("config_proto", tf.AttrValue(s=b"".join(counts)))
            return called

        return extra

    first, second = [digest(extra=with_config(*devices))[0].top for devices in (("CPU", "GPU"), ("GPU", "CPU"))]
    assert first == second


def test_processes_agree_on_functions():
    """AutoGraph takes the order of what branches and loops give from Python sets: that of seed 4 is another."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.parallel.function_models"]
    environments = [dict(os.environ, PYTHONHASHSEED=seed) for seed in ("1", "4")]
    processes = [subprocess.Popen(command, env=one, stdout=subprocess.PIPE) for one in environments]
    first, second = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert first == second and len(set(first.values())) == len(first)


def test_the_order_of_arguments_and_outputs_does_not_count(digest):
    def ordered(names, shown="ab", factor=2.0):
        def extra(hidden):
            @tf.function
            def compute(*values):
                given = dict(zip(names, values))
                computed = {"a": given["a"] * factor, "b": given["b"] + 1.0}
                return [computed[name] for name in names]

            of = {"a": hidden, "b": tf.exp(hidden)}
            given = dict(zip(names, compute(*[of[name] for name in names])))
            return given[shown[0]] - given[shown[1]]

        return extra

    tops = [digest(extra=ordered(*case))[0].top for case in (("ab",), ("ba",), ("ab", "ba"), ("ab", "ab", 3.0))]
    assert tops[0] == tops[1] and len(set(tops)) == 3


@pytest.mark.tensorflow("1", reason="what TensorFlow 2 keeps for the gradient of a loop depends on the order")
def test_the_order_of_what_a_loop_keeps_does_not_count(digest):
    def ordered(names, shown, steps=3):
        def extra(hidden):
            def turn(values):
                given = dict(zip(names, values))
                following = {"i": given["i"] + 1.0, "h": given["h"] * given["i"], "g": given["g"] - given["h"]}
                return [following[name] for name in names]

            of = {"i": tf.constant(1.0), "h": hidden, "g": hidden}
            with control_flow_v2():
                kept = tf.while_loop(
                    lambda *values: dict(zip(names, values))["i"] < steps,
                    lambda *values: turn(values),
                    [of[name] for name in names],
                )
            return dict(zip(names, kept))[shown]

        return extra

    tops = [digest(extra=ordered(*case))[0].top for case in (("ihg", "g"), ("ghi", "g"), ("ihg", "h"), ("ihg", "g", 4))]
    assert tops[0] == tops[1] and len(set(tops)) == 3


# What a loop makes of two sums that begin alike, and of something that stays.
TURNS = [
    lambda s, q, f: (s + f, q + s),
    lambda s, q, f: (s + f, q + q),
    lambda s, q, f: (s + f, q + s + f),
    lambda s, q, f: (s + f, (q + s) + (q + q)),
    lambda s, q, f: (s + f, (q + s) + (s + s)),
]


def of_loop_of_autograph(hidden, turn):
    @tf.function
    def summed(h):
        s = q = tf.zeros_like(h)
        for _ in tf.range(3):
            s, q = turn(s, q, h)
        return q

    return hidden * tf.stop_gradient(summed(hidden))


def of_while(hidden, turn, order=(0, 1)):
    zeros = tf.zeros_like(hidden)

    def following(i, *kept):
        made = turn(*[kept[at] for at in order], hidden)
        return [i + 1] + [made[at] for at in order]

    kept = tf.while_loop(lambda i, *_: i < 3, following, [0, zeros, zeros])
    return hidden * tf.stop_gradient(kept[1 + order[1]])


def of_while_v2(hidden, turn, order=(0, 1)):
    with control_flow_v2():
        return of_while(hidden, turn, order)


@pytest.mark.parametrize("loop", [of_loop_of_autograph, of_while, of_while_v2])
def test_loops_differ_in_what_they_make_of_variables_that_begin_alike(digest, loop):
    tops = [digest(extra=lambda h, turn=turn: loop(h, turn))[0].top for turn in [*TURNS, TURNS[0]]]
    assert len(set(tops)) == len(TURNS) and tops[0] == tops[-1]


@pytest.mark.parametrize("loop", [of_while, of_while_v2])
def test_the_order_of_variables_that_begin_alike_does_not_count(digest, loop):
    tops = [digest(extra=lambda h, order=order: loop(h, TURNS[0], order))[0].top for order in ((0, 1), (1, 0))]
    assert tops[0] == tops[1]


def from_placeholders():
    return [tf.placeholder(tf.float32, [None, 4]) for _ in range(2)]


def from_draws():
    return [tf.random.uniform([5, 4], seed=seed) for seed in (1, 2)]


def from_stateless_draws():
    return [tf.random.stateless_uniform([5, 4], seed=[1, of]) for of in (1, 2)]


def from_iterators():
    rows = tf.data.Dataset.from_tensors(np.ones([5, 4], "f"))
    return [tf.data.make_one_shot_iterator(rows).get_next() for _ in range(2)]


def from_py_funcs():
    return [tf.py_func(lambda k=k: np.full([5, 4], k, "f"), [], tf.float32) for k in (1, 2)]


def from_functions_that_draw():
    draw = tf.function(lambda: tf.random.uniform([5, 4]))
    return [draw(), draw()]


def from_one_function_that_draws():
    return tf.function(lambda: [tf.random.uniform([5, 4]), tf.random.uniform([5, 4])])()


@pytest.mark.grid
@pytest.mark.parametrize(
    "make",
    [
        from_placeholders,
        from_draws,
        from_stateless_draws,
        from_iterators,
        from_py_funcs,
        from_functions_that_draw,
        from_one_function_that_draws,
    ],
)  # fmt: skip
@pytest.mark.parametrize("call", [lambda f: f, tf.function], ids=["ops", "function"])
def test_sources_that_are_alike_are_two(digest, make, call):
    def extra(compute, order):
        def use(hidden):
            first, second = make()
            given = {"first": first, "second": second}
            called = call(lambda *values: compute(**dict(zip(order, values))))
            return hidden + tf.reduce_mean(called(*[given[name] for name in order]))

        return use

    def minus(first, second):
        return first - 2.0 * second

    cases = [
        (minus, ("first", "second")),
        (minus, ("second", "first")),
        (lambda first, second: minus(second, first), ("first", "second")),
        (lambda first, second: minus(first, first), ("first", "second")),
    ]
    tops = [digest(extra=extra(*case))[0].top for case in cases]
    assert tops[0] == tops[1] and len(set(tops)) == 3


def test_a_sum_of_a_set_has_one_digest(digest):
    def of_terms(*factors):
        return lambda hidden: tf.add_n([tf.multiply(hidden, factor) for factor in factors])

    tops = [digest(extra=of_terms(*factors))[0].top for factors in ((2.0, 3.0), (3.0, 2.0), (2.0, 2.0))]
    assert tops[0] == tops[1] != tops[2]


def test_loops_have_a_digest(digest):
    def loop(steps, factor, others=0):
        def extra(hidden):
            for _ in range(others):
                tf.while_loop(lambda i: i < 2, lambda i: i + 1, [0])
            return tf.while_loop(lambda i, h: i < steps, lambda i, h: (i + 1, h * factor), [0, hidden])[1]

        return extra

    tops = [digest(extra=loop(*case))[0].top for case in ((3, 2.0), (3, 2.0, 1), (4, 2.0), (3, 2.5))]
    assert tops[0] == tops[1] and len(set(tops)) == 3


@pytest.mark.parametrize(
    "differing, expected",
    [
        ({"rate": 0.5}, "the learning rate of Adam is 0.5 in worker 1 and 0.01 in worker 0 (Const, 'Adam/learning_"),
        ({"optimizer": tf.train.AdamOptimizer(0.01, beta1=0.8)}, "the beta1 of Adam is 0.8 in worker 1 and 0.9 in "),
        ({"optimizer": tf.train.AdamOptimizer(0.01, epsilon=0.1)}, "the epsilon of Adam is 0.1 in worker 1 and 1e-08 "),
        ({"activation": tf.nn.tanh}, "the first op that differs is 'Tanh' (Tanh, 'Tanh', "),
        ({"extra": lambda h: h * 3.0}, "worker 1 has 'mul/y' (Const, 'mul/y', "),
        ({"extra": lambda h: h[:, :2]}, "worker 1 has 'strided_slice/stack' (Const, "),
    ],
    ids=["learning_rate", "beta1", "epsilon", "activation", "op", "slice"],
)  # fmt: skip
def test_the_first_difference_is_named(words, differing, expected):
    text = words(**differing)
    assert expected in text
    assert "test_graph_digest.py:" in text


def test_a_difference_inside_a_loop_is_named(difference):
    def loop(change):
        return lambda h: tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, change(h)), [0, h])[1]

    assert "'while/" in difference({"extra": loop(tf.tanh)}, {"extra": loop(tf.exp)})
    of_later_turns = [{"extra": lambda h, turn=turn: of_while(h, turn)} for turn in TURNS[-2:]]
    assert "'while/" in difference(*of_later_turns)


def test_another_optimizer_is_named(words):
    assert "Momentum" in words(optimizer=tf.train.MomentumOptimizer(0.01, 0.9))


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda v: tf.train.MomentumOptimizer(0.1, v), "the momentum of Momentum is"),
        (lambda v: tf.train.GradientDescentOptimizer(v), "the learning rate of GradientDescent is"),
        (lambda v: tf.train.RMSPropOptimizer(0.1, decay=v), "the decay (rho) of RMSProp is"),
        (
            lambda v: tf.train.GradientDescentOptimizer(
                tf.train.exponential_decay(0.1, tf.train.get_or_create_global_step(), 10, v)
            ),
            "a constant that the learning rate of GradientDescent is computed from is",
        ),
    ],
)
def test_hyperparameters_have_their_names(difference, make, expected):
    built = [{"after": lambda loss, _, v=v: make(v).minimize(loss)} for v in (0.5, 0.25)]
    assert expected + " 0.25 in worker 1 and 0.5 in worker 0" in difference(*built)


def test_another_function_is_not_named_by_its_name(difference):
    built = [{"extra": lambda h, k=k: tf.function(lambda a: a * k)(h)} for k in (2.0, 3.0)]
    text = difference(*built)
    assert text.startswith("what op 'PartitionedCall' computes from inputs of the same names, or in a function, is")


def test_an_attribute_is_named(difference):
    built = [{"extra": lambda h, t=t: tf.matmul(h, tf.ones([4, 4]), transpose_b=t)} for t in (False, True)]
    expected = "attribute transpose_b of op 'MatMul_1' is b: true in worker 1 and b: false in worker 0"
    assert expected in difference(*built)


def test_ops_of_one_name_from_two_lines_are_two_ops(difference):
    first = {"extra": lambda h: h * 2.0}
    second = {"extra": lambda h: h * 3.0}
    text = difference(first, second)
    assert text.startswith("the first op that differs is 'mul/y'") and text.count("test_graph_digest.py:") == 2


def test_a_clip_of_one_worker_is_found(digest):
    def clipped(norm):
        def after(loss, _):
            optimizer = tf.train.GradientDescentOptimizer(0.1)
            gradients, variables = zip(*optimizer.compute_gradients(loss))
            optimizer.apply_gradients(zip(tf.clip_by_global_norm(gradients, norm)[0], variables))

        return after

    assert digest(after=clipped(1.0))[0].top != digest(after=clipped(2.0))[0].top
