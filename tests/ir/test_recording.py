"""What is recorded while the user builds: phases, TaskGraphs of backward ops, calls of gradients and optimizers."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR
from epl.utils import tf_compat
from tests.parallel.in_process import Linear, error_text, marks
from tests.tensorflows import WITH_ESTIMATOR


def new_ops(build):
    """The ops that `build` creates."""
    graph = tf.get_default_graph()
    before = set(graph.get_operations())
    build()
    return [op for op in graph.get_operations() if op not in before]


def test_phases_of_backward_and_apply_ops(init):
    init()
    model = Linear()
    assert set(marks(PHASE_ATTR, tf.get_default_graph().get_operations())) == {None}
    backward = new_ops(lambda: setattr(model, "pairs", model.optimizer.compute_gradients(model.loss)))
    apply_ops = new_ops(lambda: model.optimizer.apply_gradients(model.pairs))
    assert set(marks(PHASE_ATTR, backward)) == {"backward"}
    assert set(marks(PHASE_ATTR, apply_ops)) == {"apply"}
    assert set(marks(PHASE_ATTR, new_ops(lambda: tf.constant(1)))) == {None}


def test_ops_wait_for_many_through_one(init):
    init()
    model = Linear()
    updates = [tf.no_op(name=f"update{i}") for i in range(9)]
    with tf.control_dependencies(updates):
        ops = new_ops(model.minimize)
        after = tf.no_op()
    waiting = [op for op in ops if updates[0] in op.control_inputs]
    assert [set(op.control_inputs) for op in waiting] == [set(updates)] * 2
    assert marks(PHASE_ATTR, waiting) == ["backward", "apply"]
    assert all(set(op.control_inputs) & set(waiting) for op in ops if not op.inputs and op not in waiting)
    assert set(after.control_inputs) == set(updates)


def test_ops_wait_for_few_themselves(init):
    init()
    model = Linear()
    updates = [tf.no_op(), tf.no_op()]
    with tf.control_dependencies(updates):
        assert "epl_dependencies" not in [op.name for op in new_ops(model.minimize)]


@pytest.mark.parametrize("kind", ["plain", "while", "cond", "while in cond"])
def test_backward_ops_belong_to_the_taskgraph_of_their_forward_op(init, kind):
    init(annotate=False)
    loop = lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), [0, x])[1]  # noqa: E731
    bodies = {
        "plain": tf.sin,
        "while": loop,
        "cond": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x), lambda: tf.cos(x)),
        "while in cond": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: loop(x), lambda: x),
    }
    with epl.replicate(1):
        v = tf.get_variable("v", [2], use_resource=True)
        hidden = v * 2.0
    with epl.replicate(1):
        y = tf.reduce_sum(bodies[kind](tf.identity(hidden)))
    ops = new_ops(lambda: tf.gradients(y, v))
    found = marks(TASKGRAPH_ATTR, ops)
    assert {0, 1} <= set(found)
    for op, mark in zip(ops, found):
        if op.type in ("Cos", "Sin") or "while" in op.name or "cond" in op.name:
            assert mark == 1, op.name
        if op.name.startswith("gradients/mul_grad"):
            assert mark == 0, op.name


def test_annotations_survive_export_and_import(init):
    init()
    with epl.replicate(1):
        model = Linear()
        model.minimize()
    graph = tf.get_default_graph()
    ops = graph.get_operations()
    expected = dict(zip([op.name for op in ops], zip(marks(TASKGRAPH_ATTR, ops), marks(PHASE_ATTR, ops))))
    meta = tf.train.export_meta_graph()
    with tf.Graph().as_default() as other:
        tf.train.import_meta_graph(meta)
        ops = other.get_operations()
        found = dict(zip([op.name for op in ops], zip(marks(TASKGRAPH_ATTR, ops), marks(PHASE_ATTR, ops))))
    assert {name: found[name] for name in expected} == expected


def test_a_gradient_call_holds_objective_and_gradients_of_variables(init):
    init()
    ref, resource = tf.get_variable("ref", [2]), tf.get_variable("resource", [2], use_resource=True)
    x = tf.constant([1.0, 2.0])
    loss = tf.reduce_sum(ref * resource * x)
    returned = tf.gradients(loss, [ref, x, resource])
    (call,) = Graph.get().gradient_calls
    assert call.ys == (loss,)
    assert [name for name, _ in call.boundaries] == ["ref", "resource"]
    assert [gradient for _, gradient in call.boundaries] == [returned[0], returned[2]]


def test_gradients_that_are_none_are_no_boundaries(init):
    init()
    v, unused = tf.get_variable("v", [2]), tf.get_variable("unused", [2])
    assert tf.gradients(tf.reduce_sum(v), [v, unused])[1] is None
    assert [name for name, _ in Graph.get().gradient_calls[0].boundaries] == ["v"]


def test_a_sparse_gradient_stays_sparse(init):
    init()
    table = tf.get_variable("table", [5, 2])
    (gradient,) = tf.gradients(tf.nn.embedding_lookup(table, [1, 1]), table)
    assert isinstance(gradient, tf.IndexedSlices)
    (model_gradient,) = [g for _, g in Graph.get().gradient_calls[0].boundaries]
    assert model_gradient is gradient


def test_sparse_as_dense(init):
    init(communication__sparse_as_dense=True)
    table = tf.get_variable("table", [5, 2])
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1])))
    ((_, gradient),) = Graph.get().apply_calls[0].boundaries
    assert isinstance(gradient, tf.Tensor)


class _Delegating(tf.train.Optimizer):
    """An optimizer of the user that overrides apply_gradients and has another one do the work."""

    def __init__(self):
        super().__init__(False, "Delegating")
        self._inner = tf.train.GradientDescentOptimizer(0.1)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return self._inner.apply_gradients([(2.0 * g, v) for g, v in grads_and_vars], global_step, name)


def test_only_the_outermost_apply_gradients_is_recorded(init):
    init()
    model = Linear(optimizer=_Delegating())
    model.minimize()
    (call,) = Graph.get().apply_calls
    assert [name for name, _ in call.boundaries] == ["w"]


def test_an_apply_gradients_that_fails_ends_its_recording(init):
    init()
    model = Linear()
    assert error_text(model.optimizer.apply_gradients, [(None, model.w)])
    model.minimize()
    assert [len(call.boundaries) for call in Graph.get().apply_calls][-1] == 1


def test_a_variable_as_gradient(init):
    init()
    model = Linear()
    total = tf.get_variable("total", [3, 1], trainable=False)
    model.optimizer.apply_gradients([(total, model.w)])
    assert Graph.get().apply_calls[0].boundaries[0][0] == "w"


def test_an_array_as_gradient(init):
    init()
    model = Linear()
    model.optimizer.apply_gradients([(np.ones([3, 1], np.float32), model.w)])
    assert Graph.get().apply_calls[0].boundaries[0][0] == "w"


def test_keras_optimizers_are_recorded(init):
    init()
    model = Linear(resource=True)
    tf.keras.optimizers.SGD(0.1).get_updates(model.loss, [model.w])
    assert [name for name, _ in Graph.get().apply_calls[0].boundaries] == ["w"]


def test_a_model_without_annotation_is_not_recorded_and_a_warning_says_so(init, caplog):
    init(annotate=False)
    model = Linear()
    before = tf_compat.num_nodes(tf.get_default_graph())
    model.minimize()
    tf.train.AdamOptimizer().minimize(model.loss)
    assert Graph.get().gradient_calls == [] and Graph.get().apply_calls == []
    assert not [op for op in tf.get_default_graph().get_operations() if "epl_boundary" in op.name] and before
    assert len([r for r in caplog.records if "no EPL annotation" in r.getMessage()]) == 1


def test_a_model_without_annotation_on_one_device_is_not_spoken_of(init, caplog):
    init(1, annotate=False)
    Linear().minimize()
    assert Graph.get().taskgraphs == [] and not caplog.records


@pytest.mark.parametrize(
    "key, value",
    [
        ("gradient_checkpoint.type", "auto"),
        ("zero.level", "v1"),
        ("offload.level", "v0"),
        ("amp.level", "O1"),
        ("optimizer.num_apply_group", 2),
        ("pipeline.num_micro_batch", 4),
        ("communication.fp16", True),
    ],
)
def test_what_the_configuration_asks_for_annotates_the_model(init, caplog, key, value):
    init(annotate=False, **{key.replace(".", "__"): value})
    Linear().minimize()
    assert [str(one.strategy) for one in Graph.get().taskgraphs] == [str(epl.replicate(1))]
    assert len(Graph.get().apply_calls) == 1
    assert not [record for record in caplog.records if "no EPL annotation" in record.getMessage()]


@WITH_ESTIMATOR
def test_an_estimator_graph_belongs_to_the_default_strategy(init, tmp_path):
    init()
    seen = {}

    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1) - labels))
        seen["graph"] = Graph.get()
        step = tf.train.get_global_step()
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.train.AdamOptimizer().minimize(loss, step))

    data = np.ones([8, 3], np.float32), np.ones([8, 1], np.float32)
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices(data).batch(2))
    assert len(seen["graph"].taskgraphs) == 1
    assert estimator.get_variable_value("global_step") == 2


def test_a_function_body_is_not_annotated(init):
    init()

    @tf.function
    def double(x):
        return x * 2

    result = double(tf.constant(1.0))
    assert marks(TASKGRAPH_ATTR, [result.op]) == [0]
    assert len(Graph.all()) == 1


def test_collections_keep_order_and_refuse_what_has_no_meaning(init):
    init()
    a, b = tf.constant(1.0, name="a"), tf.constant(2.0, name="b")
    tensors = [a, b]
    epl.add_to_collection(tensors, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    epl.add_to_collection(a, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    assert epl.get_collection(epl.GraphKeys.GLOBAL_MEAN_OBJECTS) == [a, b] and tensors == [a, b]
    assert "a:0 is in collection" in error_text(epl.add_to_collection, a, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    assert "KeyError" in error_text(epl.add_to_collection, a, "no_such_key")
    assert "Expected tf.Tensor" in error_text(epl.add_to_collection, 1, epl.GraphKeys.LOCAL_SUM_OBJECTS)
