"""ZeRO v2: which gathers of weights there are, what they wait for and what waits for them, and what a step holds."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.view import ancestor_ops
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.profiler import memory, step_stats
from epl.utils import tf_compat
from tests.parallel.in_process import error_text, rewritten
from tests.parallel.pipelines import Chain, begin

WIDTH = 8
WEIGHTS = "EPL_SPLIT/"


class Layers:
    """Dense layers l0, l1, ... of equal width on x [None, width], without biases, trained with momentum."""

    def __init__(self, count=6, width=WIDTH, resource=False, extra=None):
        self.x = hidden = tf.placeholder(tf.float32, [None, width], "x")
        self.outputs = []
        with tf.variable_scope("", use_resource=resource):
            for index in range(count):
                hidden = tf.layers.dense(hidden, width, tf.tanh, False, name=f"l{index}")
                self.outputs.append(hidden)
        self.loss = tf.reduce_mean(tf.square(hidden - 1.0)) + (extra() if extra else 0.0)
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        pairs = optimizer.compute_gradients(self.loss)
        self.gradients = [gradient for gradient, _ in pairs]
        self.train_op = optimizer.apply_gradients(pairs)

    def feed(self, rows=4):
        return {self.x: np.random.RandomState(0).randn(rows, int(self.x.shape[1])).astype("f")}


@pytest.fixture
def zero(init):
    """`zero(level)`: a fresh graph on two devices."""
    return lambda level="v2", splits=100, **config: init(zero__level=level, communication__max_splits=splits, **config)


def op(name):
    return tf.get_default_graph().get_operation_by_name(name)


def nodes():
    """All nodes; TensorFlow's Python does not know all copies."""
    return {node.name: node for node in tf_compat.full_graph_def(tf.get_default_graph()).node}


def gathers(variable):
    """The ops of replica 0 that gather a variable, in the order in which they were made."""
    scope = WEIGHTS + variable + "/all_gather"
    return [one for one in tf.get_default_graph().get_operations() if one.type == "EplAllGather"
            and one.name.startswith(scope)]  # fmt: skip


def after(tensor):
    """The gather that gives a tensor."""
    one = tensor.op
    while one.type != "EplAllGather":
        one = one.inputs[0].op
    return one


def weight_of(consumer, position=1):
    return after(op(consumer).inputs[position])


def waits(gather):
    """What the gather waits for besides other gathers."""
    found = set()
    stack = [gather]
    while stack:
        one = stack.pop()
        found.update(other.name for other in one.control_inputs if other.type not in COLLECTIVE_OP_TYPES)
        stack += [tensor.op for tensor in one.inputs if tensor.op.type not in ("VariableV2", "VarHandleOp")]
    return sorted(found)


def before(gather):
    """The gather before in the same lane."""
    (found,) = [other for other in gather.control_inputs if other.type in COLLECTIVE_OP_TYPES]
    return found


def started(session):
    session.run(tf.global_variables_initializer())
    return session


def backward(layer):
    return f"gradients/l{layer}/MatMul_grad/MatMul"


@pytest.mark.parametrize("resource", [False, True])
def test_both_passes_have_gathers_of_their_own(zero, resource):
    zero()
    Layers(resource=resource)
    rewritten()
    counts = [len(gathers(f"l{layer}/kernel")) for layer in range(6)]
    assert counts == [2, 2, 2, 2, 2, 1]  # the last layer is used twice in a row
    assert weight_of("l2/MatMul") is not weight_of(backward(2))
    assert weight_of("l5/MatMul") is weight_of(backward(5))


def test_a_gather_begins_when_the_layer_before_begins(zero):
    zero()
    Layers()
    rewritten()
    assert waits(weight_of("l0/MatMul")) == waits(weight_of("l1/MatMul")) == ["x"]
    assert waits(weight_of("l3/MatMul")) == ["l1/Tanh"]
    assert waits(weight_of(backward(3))) == ["gradients/l4/Tanh_grad/TanhGrad"]
    assert waits(weight_of(backward(2))) == ["gradients/l3/Tanh_grad/TanhGrad"]


def test_gathers_run_in_one_order(zero):
    zero()
    Layers()
    rewritten()
    order = [f"l{layer}/MatMul" for layer in range(6)] + [backward(layer) for layer in (4, 3, 2, 1, 0)]
    for first, second in zip(order, order[1:]):
        assert before(weight_of(second)) is weight_of(first)


@pytest.mark.parametrize("resource", [False, True])
def test_an_update_waits_for_all_gathers_of_its_variable(zero, resource):
    zero()
    model = Layers(resource=resource)
    rewritten()
    updates = [one for one in model.train_op.control_inputs if "ApplyMomentum" in one.type]
    assert len(updates) == 6
    for layer in range(6):
        name = f"l{layer}/kernel"
        (update,) = [one for one in updates if name in one.name]
        assert set(gathers(name)) <= set(update.control_inputs)


def ran(session, fetches, feed):
    """How often each variable was gathered in a run, by both devices."""
    names = [one.op for one in step_stats.trace(session, fetches, feed)]
    counts = {}
    for name in names:
        if "EplAllGather" in name and WEIGHTS in name:
            variable = name.split(WEIGHTS)[1].split("/all_gather")[0]
            counts[variable] = counts.get(variable, 0) + 1
    return [counts.get(f"l{layer}/kernel", 0) for layer in range(6)]


def test_a_run_without_gradients_gathers_once_as_far_as_it_goes(zero):
    """TensorFlow's own optimizers leave the gathers as they are."""
    zero()
    model = Layers()
    with tf.Session() as session:
        started(session)
        assert ran(session, model.train_op, model.feed()) == [4, 4, 4, 4, 4, 2]
        assert ran(session, model.outputs[3], model.feed()) == [2, 2, 2, 2, 0, 0]


def peaks(level, zero, count, width):
    """What each of ten steps holds besides variables, in wholes of a weight."""
    zero(level)
    model = Layers(count, width)
    with tf.Session() as session:
        started(session)
        session.run(model.train_op, model.feed())
        traces = [step_stats.run(session, model.train_op, model.feed())[1] for _ in range(10)]
        steps = [memory.timelines(trace, session.graph) for trace in traces]
    for timeline in sum(steps, []):
        assert timeline.persistent <= (2 * count * (1 / 2 + 0.05)) * 4 * width * width
    held = [max(timeline.peak - timeline.persistent for timeline in timelines) for timelines in steps]
    return [peak / (4 * width * width) for peak in held]


def test_a_step_holds_few_weights_at_a_time(zero):
    """Two weights, one in use and the next; at most four gradients, however late they are reduced; parts of these.

    With v1 it is all weights, or all but one.
    """
    count, width = 16, 192
    assert max(peaks("v1", zero, count, width)) >= count - 1
    assert max(peaks("v2", zero, count, width)) <= count / 2


@pytest.mark.parametrize("level", ["v0", "v1"])
def test_whole_weights_go_as_gradients_come(zero, level):
    """Both together are hardly more than the weights, not twice as much: the limits that docs/zero.md gives."""
    count = 16
    assert count - 1 <= max(peaks(level, zero, count, 192)) <= count + 3


def test_a_gather_waits_for_gradients_of_blocks_before(zero):
    """tf.gradients hands both gradients of a MatMul on together: that of the weight of layer 6 needs this weight."""
    zero()
    Layers(8)
    rewritten()
    (barrier,) = [one for one in weight_of(backward(2)).control_inputs if one.type == "Assert"]
    waited = barrier.inputs[0].op.inputs[0].op.control_inputs
    assert [one.type for one in waited] == ["EplReduceScatter"]
    needed = ancestor_ops(waited)
    assert op("gradients/l6/MatMul_grad/MatMul_1") in needed and op("gradients/l5/MatMul_grad/MatMul_1") not in needed


def test_runs_without_updates_reduce_no_gradients(zero):
    zero()
    model = Layers(8)
    given = tf.gradients(model.loss, model.x)[0]
    with tf.Session() as session:
        started(session)
        names = [one.op for one in step_stats.trace(session, model.train_op, model.feed())]
        assert sum("EplReduceScatter" in name for name in names) == 2 * 8
        names = [one.op for one in step_stats.trace(session, given, model.feed())]
        assert any("EplAllGather" in name for name in names)
        assert not any("EplReduceScatter" in name for name in names)


@pytest.mark.parametrize("splits", [5, 100])
def test_gradients_alone_are_reduced_by_all_replicas(zero, splits):
    """What orders gathers in a training step does not hide a collective of one communicator after another's."""
    zero(splits=splits, communication__timeout=5, communication__clip_after_allreduce=True)
    model = Layers(26)
    norm = tf.global_norm(model.gradients)
    with tf.Session() as session:
        started(session)
        for fetch in (model.gradients, norm, [model.gradients[0], model.gradients[-1]]):
            session.run(fetch, model.feed())


def trained_beside(trunk, values):
    """A layer on the trunk's output that leaves the trunk as it is, with data of its own, trained by itself."""
    hidden = tf.stop_gradient(trunk)
    hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, False, name="beside")
    loss = tf.reduce_mean(tf.square(hidden - values))
    weights = tf.trainable_variables("beside")
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=weights), loss


def test_a_training_waits_for_no_data_of_another(zero):
    zero()
    labels = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(np.ones([2, WIDTH], "f")).repeat(2))
    model = Layers(12)
    other, _ = trained_beside(model.outputs[5], labels.get_next())
    with tf.Session() as session:
        started(session)
        for _ in range(3):
            session.run(model.train_op, model.feed())
        session.run(labels.initializer)
        session.run(other, model.feed())
        session.run(model.train_op, model.feed())


def test_a_training_needs_no_feed_of_another(zero):
    """Not for an output that a training step merges either."""
    zero()
    labels = tf.placeholder(tf.float32, [None, WIDTH])
    model = Layers(12)
    other, loss = trained_beside(model.outputs[5], labels)
    epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    with tf.Session() as session:
        started(session)
        for _ in range(3):
            session.run(model.train_op, model.feed())
        session.run([model.train_op, other], {**model.feed(), labels: np.ones([4, WIDTH])})


def test_a_gradient_that_updates_nothing_in_parts_is_not_waited_for(zero):
    """A number with a loss and an optimizer of its own, as the temperature of a policy."""
    zero()
    target = tf.placeholder(tf.float32, [])
    model = Layers(12)
    with tf.variable_scope("temperature"):
        number = tf.get_variable("n", [], initializer=tf.ones_initializer())
    loss = tf.square(number - target) * tf.stop_gradient(tf.reduce_mean(model.outputs[-1]))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[number])
    with tf.Session() as session:
        started(session)
        for _ in range(3):
            session.run(model.train_op, model.feed())


def test_what_is_computed_from_a_weight_alone_is_so_for_each_block(zero):
    zero()
    Layers(extra=lambda: 0.1 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()]))
    rewritten()
    copy = [tensor.op for tensor in op("gradients/AddN_2").inputs if tensor.op.name.startswith("EPL_GATHER_PER_USE/")]
    assert len(copy) == 1 and copy[0].type == "Mul"


def test_a_weight_of_a_loop_is_gathered_once_and_named(zero, caplog):
    caplog.set_level(logging.INFO, "epl")
    zero()
    x = tf.placeholder(tf.float32, [None, WIDTH], "x")
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH]).read_value()
    body = lambda i, h: (i + 1, tf.tanh(tf.matmul(h, kernel)))  # noqa: E731
    looped = tf.while_loop(lambda i, h: i < 3, body, [tf.constant(0), x])[1]
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(tf.layers.dense(looped, WIDTH))))
    rewritten()
    assert len(gathers("kernel")) == 1
    assert "1 weights (0.000 MB) are gathered at the beginning of a step" in caplog.text and ": kernel." in caplog.text


def test_an_evaluation_beside_the_training_has_its_own_gathers(zero):
    """It takes other data, which a training step does not have."""
    zero()
    model = Layers()
    y = tf.placeholder(tf.float32, [None, WIDTH])
    hidden = y
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        for layer in range(6):
            hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, False, name=f"l{layer}")
    with tf.Session() as session:
        started(session)
        session.run(model.train_op, model.feed())
        data = model.feed()[model.x]
        expected = session.run(model.outputs[-1], {model.x: data})
        np.testing.assert_array_equal(session.run(hidden, {y: data}), expected)
    assert len(gathers("l2/kernel")) == 3
    assert waits(weight_of("l3/MatMul")) == ["l1/Tanh"]


def test_trainings_that_run_apart_do_not_need_each_other(zero):
    """Each has data of its own, and the update of a weight that both take needs that of one of them alone."""
    zero()
    data = [tf.placeholder(tf.float32, [None, WIDTH], name) for name in ("a", "b")]
    train_ops = []
    for number, x in enumerate(data):
        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
            hidden = tf.layers.dense(x, WIDTH, tf.tanh, False, name="shared")
            for layer in range(3):
                hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, False, name=f"own{number}_{layer}")
        own = tf.trainable_variables(f"own{number}")
        shared = tf.trainable_variables("shared") if number == 0 else []
        loss = tf.reduce_mean(tf.square(hidden - 1.0))
        train_ops.append(tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=shared + own))
    values = np.random.RandomState(0).randn(4, WIDTH)
    with tf.Session() as session:
        started(session)
        for x, train_op in zip(data, train_ops):
            session.run(train_op, {x: values})
        session.run(train_ops, dict.fromkeys(data, values))
    assert len(gathers("own1_1/kernel")) == 2


def test_pipelines_are_refused(init):
    begin(init, 2, 4, zero__level="v2")
    text = error_text(Chain().minimize)
    assert "NotAvailableError" in text and "It is 'v2', which does not go together with 2 stages" in text


def test_recomputed_ops_take_the_gathers_of_the_backward_pass(zero):
    zero(gradient_checkpoint__type="collection")
    model = Layers()
    for output in model.outputs[1::2]:
        tf.add_to_collection("checkpoints", output)
    rewritten()
    again = "EPL_RECOMPUTE/stage0_segment1/l2/MatMul"
    assert weight_of("l2/MatMul") is not weight_of(again)
    with tf.Session() as session:
        started(session)
        assert ran(session, model.train_op, model.feed())[2] <= 6


def test_half_precision_is_made_of_the_whole_of_each_pass(zero):
    zero(amp__level="O1", amp__loss_scale=1)
    model = Layers()
    rewritten()
    products = [one for one in tf.get_default_graph().get_operations() if one.type == "MatMul"]
    casts = {
        tensor.op
        for one in products
        for tensor in one.inputs
        if tensor.op.type == "Cast" and tensor.op.inputs[0].op.name.startswith(WEIGHTS + "l2/kernel")
    }
    assert len(casts) == 2 and {after(cast.inputs[0]) for cast in casts} == set(gathers("l2/kernel"))
    with tf.Session() as session:
        started(session)
        session.run(model.train_op, model.feed())


def test_a_table_that_is_larger_than_all_layers_does_not_make_blocks_larger(zero):
    zero()
    ids = tf.placeholder(tf.int32, [None], "ids")
    table = tf.get_variable("table", [20 * WIDTH, WIDTH])
    hidden = tf.nn.embedding_lookup(table, ids)
    for layer in range(6):
        hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, False, name=f"l{layer}")
    logits = tf.matmul(hidden, table, transpose_b=True)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits))
    tf.train.AdamOptimizer().minimize(loss)
    rewritten()
    assert waits(weight_of("l4/MatMul")) == ["l2/Tanh"]
    assert len(gathers("table")) == 2  # for the lookup; for both passes of the product


def test_the_end_of_the_data_ends_a_step(zero):
    """The gathers of a replica that has data wait for the other one, which has none."""
    zero()
    iterator = tf.data.make_initializable_iterator(
        tf.data.Dataset.from_tensor_slices(np.ones([3, WIDTH], "f")).batch(1)
    )
    hidden = tf.identity(iterator.get_next())
    for layer in range(4):
        hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, False, name=f"l{layer}")
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(hidden)))
    with tf.Session() as session:
        started(session)
        for _ in range(5):
            session.run(iterator.initializer)
            session.run(train_op)
            with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                session.run(train_op)
