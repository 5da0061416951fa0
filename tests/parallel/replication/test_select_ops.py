"""Which ops every replica has a copy of."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.view import ancestor_ops
from epl.parallel import transformation
from epl.utils import tf_compat
from tests.parallel.in_process import Linear, error_text, rewritten


def cloned_types(rewrite):
    return {rewrite.view.types[node] for node in rewrite.cloned}


def cloned_names(rewrite):
    return {rewrite.view.nodes[node].name for node in rewrite.cloned}


def train(hidden):
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="dense")))
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def test_forward_backward_and_apply_are_copied(init):
    init()
    Linear().minimize()
    assert {"MatMul", "MatMulGrad", "ApplyGradientDescent", "VariableV2", "Placeholder", "EplAllReduce"} - {
        "MatMulGrad"
    } <= cloned_types(rewritten())


def test_initializers_are_not_copied(init):
    init()
    model = Linear()
    model.minimize()
    tf.global_variables_initializer()
    names = cloned_names(rewritten())
    assert "w/Assign" not in names and "w" in names and not any("Initializer" in name for name in names)


def test_saving_and_restoring_are_not_copied(init):
    init()
    Linear().minimize()
    tf.train.Saver()
    rewrite = rewritten()
    assert not [name for name in cloned_names(rewrite) if name.startswith("save/")]
    assert "save/Assign" in rewrite.foreign_writes and "w/Assign" in rewrite.foreign_writes


def test_get_next_is_copied_and_the_iterator_is_shared(init):
    init()
    data = tf.data.Dataset.from_tensor_slices(np.ones([8, 3], "f")).batch(2)
    train(data.make_initializable_iterator().get_next())
    types = cloned_types(rewritten())
    assert "IteratorGetNext" in types
    assert not {"IteratorV2", "BatchDatasetV2", "TensorSliceDataset", "MakeIterator"} & types


def test_dequeue_is_copied_and_the_queue_is_shared(init):
    init()
    x = tf.train.batch([tf.ones([3])], 2)
    train(x)
    types = cloned_types(rewritten())
    assert "QueueDequeueManyV2" in types and not {"FIFOQueueV2", "QueueEnqueueV2"} & types


def test_lookups_are_copied_and_the_table_is_shared(init):
    init()
    keys = tf.placeholder(tf.string, [None])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0)
    train(tf.one_hot(table.lookup(keys), 3))
    types = cloned_types(rewritten())
    assert "LookupTableFindV2" in types and not {"HashTableV2", "LookupTableImportV2", "InitializeTableV2"} & types


def test_statistics_of_batch_norm_are_copied(init):
    init()
    hidden = tf.layers.batch_normalization(tf.placeholder(tf.float32, [None, 3]), training=True, name="norm")
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train(hidden)
    rewrite = rewritten()
    assert {"norm/moving_mean", "norm/moving_variance"} <= cloned_names(rewrite)
    assert any("AssignMovingAvg" in rewrite.view.nodes[node].name for node in rewrite.writes)


def test_moving_averages_are_copied(init):
    init()
    model = Linear()
    with tf.control_dependencies([model.minimize()]):
        tf.train.ExponentialMovingAverage(0.9).apply([model.w])
    assert "w/ExponentialMovingAverage" in cloned_names(rewritten())


def test_replicas_add_to_the_variables_of_metrics_of_the_first(init):
    init()
    model = Linear()
    model.minimize()
    tf.metrics.mean(model.loss, name="metric")
    rewrite = rewritten()
    assert not {"metric/total", "metric/count"} & cloned_names(rewrite)
    assert {"metric/AssignAdd", "metric/AssignAdd_1"} <= cloned_names(rewrite)
    assert "metric/total" not in {sync.variable for sync in rewrite.syncs}


def test_what_only_evaluates_is_not_copied(init):
    init()
    model = Linear()
    model.minimize()
    tf.reduce_max(model.out, axis=0, name="largest")
    tf.reduce_max(model.out, name="shown_of_all_rows")
    tf.summary.scalar("summary", model.loss)
    names = cloned_names(rewritten())
    assert not {"largest", "summary"} & names and "shown_of_all_rows" in names


def test_a_restore_within_the_training_step_is_refused(init):
    init()
    model = Linear()
    model.minimize()
    saved = tf.raw_ops.RestoreV2(prefix="/none", tensor_names=["w"], shape_and_slices=[""], dtypes=[tf.float32])[0]
    model.w.assign_sub(tf.reshape(saved, [3, 1]))
    assert "reads a checkpoint within the training step" in error_text(transformation.transform)


def test_sync_replicas_optimizer_is_refused(init):
    init()
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 2, 2)
    model = Linear(optimizer=optimizer)
    optimizer.minimize(model.loss, global_step=tf.train.get_or_create_global_step())
    assert "synchronises gradients by itself" in error_text(transformation.transform)


def test_a_graph_that_cannot_be_rewritten_is_left_as_it_was(init):
    init()
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 2, 2)
    model = Linear(optimizer=optimizer)
    optimizer.minimize(model.loss, global_step=tf.train.get_or_create_global_step())
    before = tf_compat.full_graph_def(tf.get_default_graph())
    assert error_text(transformation.transform)
    assert tf_compat.full_graph_def(tf.get_default_graph()) == before


def test_writes_from_the_same_data_wait_for_the_gate(init):
    init()
    data = tf.data.Dataset.from_tensor_slices(np.ones([8, 3], "f")).batch(2)
    x = data.make_one_shot_iterator().get_next()
    seen = tf.get_variable("seen", [], initializer=tf.zeros_initializer(), trainable=False)
    count = seen.assign_add(tf.reduce_sum(x))
    train(x)
    rewrite = rewritten()
    ((gate, _),) = rewrite.gates
    barrier = next(op for op in count.op.control_inputs if op.name.endswith("same_data/stage0/passed"))
    assert gate in ancestor_ops([barrier])
    assert any(op.type == "IteratorGetNext" for op in ancestor_ops(gate.control_inputs))
    node = tf_compat.full_graph_def(rewrite.tf_graph)
    copy = next(n for n in node.node if n.name == "EPL_REPLICA_1/" + count.op.name)
    assert "^EPL_REPLICA_1/" + barrier.name in copy.input
