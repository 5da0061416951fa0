"""What one Session.run means: which copies run with it, what is fetched instead, who takes part."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.runtime.run_plan import RunPlanner
from tests.parallel.in_process import Linear, counting_loop, rewritten


def prepare(resource=False, step=False):
    """A trained model with accuracy, its RunPlanner."""
    model = Linear(resource=resource)
    model.accuracy = tf.reduce_max(model.out, name="accuracy")
    model.minimize()
    model.init = tf.global_variables_initializer()
    return model, RunPlanner(rewritten())


def extra(step, asked=()):
    return sorted(op.name for op in step.targets if op not in asked)


@pytest.mark.parametrize("resource", [False, True])
def test_the_training_op_runs_on_every_replica_with_the_others(init, resource):
    init(3)
    model, planner = prepare(resource)
    step = planner.plan_run([], [model.train_op], model.feed())
    assert step.is_collective and step.uses_replicas and not step.writes_replica_0_alone
    write = next(op for op in model.train_op.control_inputs if "Apply" in op.type).name
    assert [name for name in extra(step) if name.startswith("EPL")] == [f"EPL_REPLICA_{i}/{write}" for i in (1, 2)]


def test_the_loss_alone_on_fed_data_is_computed_on_all_of_it(init):
    init()
    model, planner = prepare()
    step = planner.plan_run([model.loss], [], model.feed())
    assert step.fetches == (model.loss,) and step.targets == ()
    assert not step.uses_replicas and not step.is_collective


def test_the_scalars_of_a_training_step_are_merged_over_the_replicas(init):
    init()
    model, planner = prepare()
    step = planner.plan_run([model.loss, model.accuracy, model.out], [model.train_op], model.feed())
    assert step.fetches[0] is not model.loss and step.fetches[1] is not model.accuracy
    assert step.fetches[2] is model.out


def test_the_loss_alone_on_data_that_is_read_is_the_mean_over_the_replicas(init):
    init()
    x = tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat().make_one_shot_iterator().get_next()
    loss = tf.reduce_mean(tf.layers.dense(x, 1))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    step = RunPlanner(rewritten()).plan_run([loss], [], {})
    assert step.fetches[0] is not loss and step.uses_replicas and not step.is_collective


def test_the_accuracy_alone_uses_no_replica(init):
    init()
    model, planner = prepare()
    step = planner.plan_run([model.accuracy], [], model.feed())
    assert (step.fetches, step.targets, step.barriers) == ((model.accuracy,), (), ())
    assert not step.uses_replicas and not step.is_collective and not step.writes_replica_0_alone
    assert not step.shares_feeds and step.unneeded == {"y:0"}


def test_a_group_made_after_the_rewriting_means_what_it_groups(init):
    init()
    model, planner = prepare()
    group = tf.group(model.train_op, tf.no_op())
    step = planner.plan_run([], [group], model.feed())
    assert step.is_collective and step.uses_replicas
    direct = planner.plan_run([], [model.train_op], model.feed())
    assert step.targets[1:] == direct.targets[1:] and step.targets[0] is group
    assert any(name.startswith("EPL_REPLICA_1/") for name in extra(step))


def test_an_update_op_made_before_runs_on_every_replica_without_the_others(init):
    init()
    model = Linear()
    count = tf.get_variable("count", [], initializer=tf.zeros_initializer(), trainable=False)
    add = count.assign_add(1.0)
    model.minimize()
    step = RunPlanner(rewritten()).plan_run([add], [], {})
    assert not step.is_collective and step.uses_replicas and extra(step) == ["EPL_REPLICA_1/" + add.op.name]


def test_initializers_write_replica_0_alone(init):
    init()
    model, planner = prepare()
    step = planner.plan_run([], [model.init], {})
    assert step.writes_replica_0_alone and not step.is_collective and extra(step, [model.init]) == []


def test_an_initializer_made_after_the_rewriting(init):
    init()
    _, planner = prepare()
    step = planner.plan_run([], [tf.global_variables_initializer()], {})
    assert step.writes_replica_0_alone and not step.uses_replicas


def test_a_restore_writes_replica_0_alone(init):
    init()
    model = Linear()
    model.minimize()
    saver = tf.train.Saver()
    planner = RunPlanner(rewritten())
    restore = tf.get_default_graph().get_operation_by_name(saver.saver_def.restore_op_name)
    assert planner.plan_run([], [restore], {}).writes_replica_0_alone
    later = tf.train.Saver()
    restore = tf.get_default_graph().get_operation_by_name(later.saver_def.restore_op_name)
    assert planner.plan_run([], [restore], {}).writes_replica_0_alone


@pytest.mark.parametrize("resource", [False, True])
def test_loading_a_value_writes_replica_0_alone(init, resource):
    init()
    model, planner = prepare(resource)
    step = planner.plan_run([], [model.w.initializer], [model.w.initializer.inputs[1]])
    assert step.writes_replica_0_alone and not step.uses_replicas


def test_a_fed_tensor_needs_nothing_behind_it(init):
    init()
    model, planner = prepare()
    update = model.w.assign_add(tf.ones([3, 1]) * model.accuracy)
    assert planner.plan_run([], [update.op], []).writes_replica_0_alone
    with tf.control_dependencies([model.train_op]):
        trained = tf.identity(model.loss)
    assert planner.plan_run([trained], [], []).is_collective
    assert not planner.plan_run([trained], [], [trained]).is_collective


def test_a_global_output_is_merged_with_a_training_step_even_when_not_fetched(init):
    init()
    model = Linear()
    model.minimize()
    epl.add_to_collection(model.out, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    rewrite = rewritten()
    planner = RunPlanner(rewrite)
    output = rewrite.merged["out:0"].op
    assert output in extra(planner.plan_run([], [model.train_op], model.feed()))
    step = planner.plan_run([model.out], [], model.feed())
    assert step.is_collective and {output, "EPL_REPLICA_1/" + output} == set(extra(step))


def test_an_output_that_reads_other_data_is_not_merged_with_a_training_step(init):
    init()
    model = Linear()
    other = tf.reduce_sum(tf.placeholder(tf.float32, [None], "other"))
    model.minimize()
    epl.add_to_collection(other, epl.GraphKeys.GLOBAL_SUM_OBJECTS)
    rewrite = rewritten()
    step = RunPlanner(rewrite).plan_run([], [model.train_op], model.feed())
    assert rewrite.merged[other.name].op not in extra(step)


def test_a_step_is_worked_out_once(init):
    init()
    model, planner = prepare()
    assert planner.plan_run([model.loss], [], []) is planner.plan_run([model.loss], [], [])


def test_a_write_inside_a_loop_runs_on_every_replica(init):
    init()
    model = Linear()
    loop = counting_loop()
    model.minimize()
    step = RunPlanner(rewritten()).plan_run([loop], [], {})
    assert step.uses_replicas
    assert extra(step), "no op of replica 1 runs the loop"


def test_a_run_that_writes_metrics_alone_takes_no_statistics_of_other_rows(init):
    init(batch_norm__sync=True)
    x = tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat().make_one_shot_iterator().get_next()
    loss = tf.reduce_mean(tf.layers.dense(tf.layers.batch_normalization(x, training=True), 1))
    _, metric = tf.metrics.mean(loss)
    averages = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    planner = RunPlanner(rewritten())
    assert not planner.plan_run([metric], [], {}).is_collective
    assert planner.plan_run([metric], averages, {}).is_collective


def test_averages_of_a_pipeline_alone_run_in_one_order_in_all_micro_batches(init):
    """A barrier that is fed orders nothing: ranks would run the collectives of later micro batches in any order."""
    init(4, annotate=False, pipeline__num_micro_batch=3, batch_norm__sync=True)
    hidden = tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat().make_one_shot_iterator().get_next()
    for _ in range(2):
        with epl.replicate(1):
            for _ in range(2):
                hidden = tf.layers.batch_normalization(tf.layers.dense(hidden, 3), training=True)
            loss = tf.reduce_mean(hidden)
    averages = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    rewrite = rewritten()
    assert [order for order in rewrite.orders if "batch_norm_1_forward" in order.barriers[0]]
    plan = RunPlanner(rewrite).plan_run([], averages, [])
    assert plan.is_collective and not [one.name for one in plan.barriers if "_forward" in one.name]


@pytest.mark.parametrize("key", ["batch_norm__sync", "replicate__batch"])
@pytest.mark.parametrize("stages,recomputed", [(1, "auto"), (2, ""), (2, "auto")])
def test_a_run_that_shows_a_value_of_micro_batches_takes_none_of_other_rows(init, key, stages, recomputed):
    config = {key: {"batch_norm__sync": True, "replicate__batch": "all"}[key]}
    init(2 * stages, annotate=False, pipeline__num_micro_batch=2, gradient_checkpoint__type=recomputed, **config)
    x = tf.placeholder(tf.float32, [None, 3])
    with epl.replicate(1) as first:
        hidden = tf.tanh(tf.layers.dense(x, 3))
        hidden = tf.tanh(tf.layers.dense(tf.layers.batch_normalization(hidden, training=True), 3))
    with epl.replicate(1) if stages == 2 else first:
        hidden = tf.tanh(tf.layers.dense(tf.layers.batch_normalization(hidden, training=True), 3))
        loss = tf.sqrt(tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1))))
    _, metric = tf.metrics.mean(loss)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    planner = RunPlanner(rewritten())
    for asked in (loss, metric):
        assert not planner.plan_run([asked], [], [x]).is_collective
    assert planner.plan_run([loss], [train_op], [x]).is_collective
