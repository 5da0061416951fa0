"""Which ops every micro batch has of its own, which are shared, and which run once per step."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.view import GraphView
from epl.utils.errors import PlanError
from tests.parallel.pipelines import Chain, begin, dense, rewritten, stage


def of_type(rewrite, op_type):
    """The NodeDefs of a type by name, copies included."""
    view = GraphView(rewrite.tf_graph)
    return {view.nodes[node].name: view.nodes[node] for node in view.of_types([op_type])}


@pytest.mark.parametrize("resource", [False, True])
def test_variables_and_the_update_are_shared_and_the_rest_is_cloned(init, resource):
    begin(init, 3, 2)
    model = Chain(2, resource=resource)
    model.minimize(global_step=tf.train.get_or_create_global_step())
    rewrite = rewritten()
    names = rewrite.micro_batched
    assert {"x", "y", "d0/MatMul", "d0/Tanh", "d1/MatMul", "loss", "gradients/d0/MatMul_grad/MatMul_1"} <= names
    assert not [name for name in names if "kernel" in name or "learning_rate" in name or "global_step" in name]
    assert len(of_type(rewrite, "VarHandleOp" if resource else "VariableV2")) == (4 if resource else 5)
    applied = of_type(rewrite, "ResourceApplyGradientDescent" if resource else "ApplyGradientDescent")
    assert len(applied) == 4


def test_regularisation_and_constants_are_shared(init):
    begin(init, 2, 2)
    model = Chain(2)
    scale = tf.constant(0.1, name="scale")
    model.loss += tf.multiply(scale, tf.nn.l2_loss(tf.trainable_variables()[0]), name="penalty")
    model.minimize()
    names = rewritten().micro_batched
    assert "loss" in names and "penalty" not in names and "scale" not in names and "L2Loss" not in names


def test_data_is_drawn_per_micro_batch_from_one_iterator(init):
    begin(init, 3, 2)
    x = tf.data.Dataset.from_tensors([[1.0, 2.0, 3.0]]).repeat().make_one_shot_iterator().get_next()
    with stage():
        hidden = dense(x, 3, 0)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    assert len(of_type(rewrite, "IteratorGetNext")) == 3 and len(of_type(rewrite, "OneShotIterator")) == 1
    for copy in (1, 2):
        read = rewrite.operation(rewrite.micro_prefix(copy) + x.op.name)
        assert [op.name for op in read.control_inputs] == [rewrite.micro_prefix(copy - 1) + x.op.name]


def test_random_ops_of_copies_have_seeds_of_their_own(init):
    begin(init, 4, 2)
    tf.set_random_seed(5)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        hidden = tf.nn.dropout(dense(x, 3, 0), rate=0.5)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    drawn = [node for name, node in of_type(rewrite, "RandomUniform").items() if "dropout" in name]
    seeds = [(node.attr["seed"].i, node.attr["seed2"].i) for node in drawn]
    assert len(seeds) == 4 and len(set(seeds)) == 4


def test_initializers_are_not_cloned(init):
    begin(init, 3, 2)
    model = Chain(2)
    model.minimize()
    rewrite = rewritten()
    assert not [name for name in rewrite.micro_batched if "Initializer" in name or "Assign" in name]


def test_a_loop_is_cloned_whole(init):
    begin(init, 2, 2)
    x = tf.placeholder(tf.float32, [None, 3], "x")
    with stage():
        w = tf.get_variable("w", [3, 3])
        hidden = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.matmul(h, w)), [0, x], name="loop")[1]
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    for op_type in ("Enter", "Merge", "Switch", "LoopCond"):
        assert {name for name in of_type(rewrite, op_type) if name.startswith("loop/")} <= rewrite.micro_batched
    frames = {node.attr["frame_name"].s for node in of_type(rewrite, "Enter").values()}
    assert len(frames) == 4  # forward and backward, in two micro batches


def test_a_value_of_each_micro_batch_in_an_update_of_a_step_is_refused_unless_it_is_merged(init):
    def build(merged):
        begin(init, 2, 2)
        model = Chain(2)
        norm = tf.reduce_mean(model.out, name="norm")
        if merged:
            epl.add_to_collection(norm, epl.GraphKeys.LOCAL_MEAN_OBJECTS)
        pairs = model.optimizer.compute_gradients(model.loss)
        model.optimizer.apply_gradients([(g * norm, v) for g, v in pairs])
        return rewritten()

    with pytest.raises(
        PlanError, match="'norm' runs once per step and takes 'd1/BiasAdd:0', of which each of the 2 micro"
    ):
        build(False)
    tf.reset_default_graph()
    assert build(True).over_micro_batches["norm:0"] is not None


def test_a_staging_area_is_refused(init):
    from tensorflow.python.ops import data_flow_ops

    begin(init, 2, 2)
    area = data_flow_ops.StagingArea([tf.float32], [tf.TensorShape([None, 3])])
    area.put([tf.ones([2, 3])])
    with stage():
        hidden = dense(area.get()[0], 3, 0)
    with stage():
        loss = tf.reduce_mean(dense(hidden, 1, 1))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with pytest.raises(PlanError, match="staging area"):
        rewritten()


def test_the_seeds_of_the_backward_pass_and_of_nothing_else_are_the_gradient_of_the_loss(init):
    begin(init, 2, 2)
    model = Chain(2)
    model.minimize()
    (training,) = rewritten().trainings
    assert [seed.op.type for seed in training.seeds] == ["Fill"] and len(training.boundaries) == 4
