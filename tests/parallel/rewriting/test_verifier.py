"""The verifier: silent on what the passes make, and each kind of damage is named."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel import features, transformation
from epl.parallel.rewriting import verifier
from epl.parallel.rewriting.verifier import verify_graph_def
from tests.parallel.in_process import Linear, rewritten

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


def graph_def(*nodes):
    """A GraphDef of (name, op, inputs) and optional attributes."""
    result = tf.GraphDef()
    for name, op, inputs, *attrs in nodes:
        node = result.node.add(name=name, op=op, input=inputs)
        for key, value in (attrs[0] if attrs else {}).items():
            if isinstance(value, int):
                node.attr[key].i = value
            else:
                node.attr[key].s = value.encode()
    return result


def collective(name, key, rank=0, inputs=(), op="EplAllReduce", communicator="c"):
    return name, op, list(inputs), {"communicator": communicator, "rank": rank, "key": key}


def loop(prefix="", frame="f"):
    return [
        (prefix + "enter", "Enter", [], {"frame_name": frame}),
        (prefix + "merge", "Merge", [prefix + "enter", prefix + "next"]),
        (prefix + "cond", "LoopCond", [prefix + "merge"]),
        (prefix + "switch", "Switch", [prefix + "merge", prefix + "cond"]),
        (prefix + "next", "NextIteration", [prefix + "switch:1"]),
    ]


def test_a_loop_is_no_cycle():
    assert verify_graph_def(graph_def(*loop())) == []


def test_a_cycle_is_named():
    (problem,) = verify_graph_def(graph_def(("a", "Neg", ["b"]), ("b", "Neg", ["a"]), ("c", "Neg", ["b"])))
    assert problem == "a cycle: a <- b needs itself"


def test_a_cycle_by_a_control_edge():
    assert "a cycle" in verify_graph_def(graph_def(("a", "NoOp", ["^b"]), ("b", "NoOp", ["^a"])))[0]


def test_a_missing_input():
    assert verify_graph_def(graph_def(("a", "Neg", ["b:1"]))) == ["'a' takes 'b:1', which does not exist"]


def test_a_missing_control_input():
    assert verify_graph_def(graph_def(("a", "NoOp", ["^b"]))) == ["'a' takes '^b', which does not exist"]


def test_a_name_that_occurs_twice():
    assert verify_graph_def(graph_def(("a", "NoOp", []), ("a", "NoOp", []))) == ["'a' stands in the graph twice"]


@pytest.mark.parametrize(
    "device",
    ["", "/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1", "/cpu:0", "/device:CPU:*", "/job:localhost"],
)
def test_devices_of_the_session(device):
    graph = graph_def(("a", "NoOp", []))
    graph.node[0].device = device
    assert verify_graph_def(graph, DEVICES) == []


@pytest.mark.parametrize(
    "device", ["/device:CPU:2", "/device:GPU:0", "/gpu:0", "/job:worker/task:0", "/task:1/device:CPU:0", "CPU:0"]
)
def test_devices_that_the_session_does_not_have(device):
    graph = graph_def(("a", "NoOp", []))
    graph.node[0].device = device
    (problem,) = verify_graph_def(graph, DEVICES)
    assert problem.startswith(f"'a' is on {device!r}")
    assert verify_graph_def(graph) == []


def test_copies_of_a_loop_have_their_own_frames():
    assert verify_graph_def(graph_def(*loop(), *loop("EPL_REPLICA_1/", "EPL_REPLICA_1/f"))) == []


def test_copies_that_share_a_frame():
    problems = verify_graph_def(graph_def(*loop(), *loop("EPL_REPLICA_1/")))
    assert problems == [
        "frame 'f' is entered by several copies: ['', 'EPL_REPLICA_1/']",
        "frame 'f' has several loop conditions: ['EPL_REPLICA_1/cond', 'cond']",
    ]


def test_collectives_without_an_order():
    (problem,) = verify_graph_def(graph_def(collective("a", "k1"), collective("b", "k2")))
    assert "have no order on communicator 'c'" in problem


def test_collectives_ordered_by_control_or_data_edges():
    nodes = [collective("a", "k1"), collective("b", "k2", inputs=["^a"]), ("m", "Neg", ["b"])]
    assert verify_graph_def(graph_def(*nodes, collective("c", "k3", inputs=["m"]))) == []


def test_collectives_of_two_communicators_need_no_order():
    assert verify_graph_def(graph_def(collective("a", "k1"), collective("b", "k2", communicator="d"))) == []


def test_ranks_with_other_orders():
    nodes = [
        collective("a0", "a"),
        collective("b0", "b", inputs=["^a0"]),
        collective("b1", "b", 1),
        collective("a1", "a", 1, inputs=["^b1"]),
    ]
    (problem,) = verify_graph_def(graph_def(*nodes))
    assert problem == "number 0 on communicator 'c' is EplAllReduce 'a' on rank 0 and EplAllReduce 'b' on rank 1"


def test_ranks_with_other_ops():
    (problem,) = verify_graph_def(graph_def(collective("a0", "a"), collective("a1", "a", 1, op="EplAllGather")))
    assert "EplAllReduce 'a' on rank 0 and EplAllGather 'a' on rank 1" in problem


def test_ranks_with_other_numbers_of_collectives():
    nodes = [collective("a0", "a"), collective("b0", "b", inputs=["^a0"]), collective("a1", "a", 1)]
    assert verify_graph_def(graph_def(*nodes)) == ["communicator 'c' has 2 collectives on rank 0 and 1 on rank 1"]


def test_a_key_that_a_rank_uses_twice():
    (problem,) = verify_graph_def(graph_def(collective("a", "k"), collective("b", "k", inputs=["^a"])))
    assert problem == "rank 0 has key 'k' several times on communicator 'c'"


def train_with_everything():
    """A model with a loop, batch norm, data, two optimizers and a global output."""
    import epl

    data = tf.data.Dataset.from_tensors(tf.ones([4, 3])).repeat()
    x = data.make_one_shot_iterator().get_next()
    hidden = tf.layers.batch_normalization(tf.layers.dense(x, 4, name="first"), training=True)
    hidden = tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, tf.layers.dense(h, 4, name="loop")), [0, hidden])[1]
    loss = tf.reduce_mean(tf.square(hidden))
    epl.add_to_collection(tf.reduce_max(hidden), epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    variables = tf.trainable_variables()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return tf.group(
            tf.train.AdamOptimizer().minimize(loss, var_list=variables[:2]),
            tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=variables[2:]),
        )


@pytest.mark.parametrize("devices", [2, 3])
def test_the_graph_is_whole_after_each_pass(init, monkeypatch, devices):
    checked = []
    check = verifier.check_rewrite
    monkeypatch.setattr(
        verifier, "check_rewrite", lambda rewrite, done: (checked.append(done[-1]), check(rewrite, done))
    )
    monkeypatch.setenv("EPL_VERIFY", "1")
    init(devices, communication__num_communicators=2, communication__max_splits=3)
    train_op = train_with_everything()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
    assert checked == [p.name for p in transformation.passes_of(features.FEATURES)]


def damaged(rewrite, damage):
    """The findings after the pass `clone_replicas` when the graph is changed by `damage`."""
    damage(rewrite)
    with pytest.raises(verifier.VerificationError) as caught:
        verifier.check_rewrite(rewrite, ["clone_replicas"])
    return str(caught.value)


def _collective(rewrite, replica=1):
    return rewrite.tf_graph.get_operation_by_name(rewrite.prefix(replica) + sorted(rewrite.collectives)[0])


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda r: _collective(r)._set_attr("rank", tf.AttrValue(i=7)), "has rank 7, not 1"),
        (lambda r: _collective(r)._set_attr("key", tf.AttrValue(s=b"other")), "'other' on rank 1"),
        (lambda r: _collective(r)._set_device("/device:CPU:5"), "'/device:CPU:5'"),
        (lambda r: r.collectives.add("loss"), "'EPL_REPLICA_1/loss' has rank 0, not 1"),
        (lambda r: r.collectives.add("none"), "rank 0 has no copy of the collective 'none'"),
    ],
    ids=["rank", "key", "device", "copy of another op", "missing"],
)
def test_damage_to_a_rewritten_graph_is_found(init, damage, words):
    init()
    Linear().minimize()
    rewrite = rewritten()
    verifier.check_rewrite(rewrite, ["clone_replicas"])
    text = damaged(rewrite, damage)
    assert "After pass 'clone_replicas'" in text and words in text
