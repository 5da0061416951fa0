"""What the planner finds in an annotated model, and what it refuses."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.plan import planner
from epl.parallel.plan.gradient_groups import find_groups
from epl.parallel.plan.stages import plan_stages
from epl.utils.errors import NotAvailableError
from tests.parallel.in_process import Linear, error_text


def groups():
    """Name -> variables of each group of gradients, as planned."""
    found = find_groups(Graph.get(), Env.get().config, plan_stages(Graph.get(), Env.get().cluster)[0])
    return {group.name: [variable for variable, _ in group.boundaries] for group in found}


def boundary_phases():
    found = find_groups(Graph.get(), Env.get().config, plan_stages(Graph.get(), Env.get().cluster)[0])
    tensors = [getattr(gradient, "values", gradient) for group in found for _, gradient in group.boundaries]
    return [tensor.op.get_attr("_epl_phase").decode() for tensor in tensors]


def make_plan():
    env = Env.get()
    stages, owners = plan_stages(Graph.get(), env.cluster)
    found = find_groups(Graph.get(), env.config, stages)
    return planner.make_plan("plan", Graph.get(), stages, owners, (), found, env.config, env.cluster)


def two_variables():
    a, b = tf.get_variable("a", [2]), tf.get_variable("b", [3])
    return a, b, tf.reduce_sum(tf.square(a)) + tf.reduce_sum(tf.square(b))


def test_gradients_are_aggregated_at_apply(init):
    init()
    _, _, loss = two_variables()
    tf.train.AdamOptimizer().minimize(loss)
    assert groups() == {"apply0": ["a", "b"]}
    assert boundary_phases() == ["apply", "apply"]


def test_clip_after_allreduce_aggregates_at_gradients(init):
    init(communication__clip_after_allreduce=True)
    a, b, loss = two_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [a, b]), 1.0)
    tf.train.AdamOptimizer().apply_gradients(zip(gradients, [a, b]))
    assert groups() == {"apply0": ["a", "b"]}
    assert boundary_phases() == ["backward", "backward"]


def test_clip_after_allreduce_aggregates_gradients_of_the_users_own_at_apply(init):
    init(communication__clip_after_allreduce=True)
    a, b, loss = two_variables()
    (gradient,) = tf.gradients(loss, [a])
    tf.train.AdamOptimizer().apply_gradients([(gradient, a), (tf.random_uniform([3]), b)])
    assert groups() == {"apply0": ["a", "b"]}
    assert boundary_phases() == ["backward", "apply"]


def clipping_warnings(caplog):
    return [r.getMessage() for r in caplog.records if "communication.clip_after_allreduce" in r.getMessage()]


def test_clipping_before_the_mean_is_said_in_a_warning(init, caplog):
    init()
    a, b, loss = two_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [a, b]), 1.0)
    tf.train.AdamOptimizer().apply_gradients(zip(gradients, [a, b]))
    make_plan()
    (text,) = clipping_warnings(caplog)
    assert "Each replica does so with its own gradients, before they are averaged" in text


@pytest.mark.parametrize("how", ["nothing between", "clipped after", "Keras optimizer"])
def test_no_warning_where_gradients_are_not_clipped_by_each_replica(init, caplog, how):
    init(communication__clip_after_allreduce=how == "clipped after")
    a, b, loss = two_variables()
    gradients = tf.gradients(loss, [a, b])
    if how == "clipped after":
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    if how == "Keras optimizer":
        model = Linear("resource", resource=True)
        tf.keras.optimizers.SGD(0.1).get_updates(model.loss, [model.w])
    else:
        tf.train.AdamOptimizer().apply_gradients(zip(gradients, [a, b]))
    make_plan()
    assert not clipping_warnings(caplog)


def test_each_optimizer_is_a_group(init):
    init()
    a, b, loss = two_variables()
    tf.train.AdamOptimizer().minimize(loss, var_list=[a])
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=[b])
    assert groups() == {"apply0": ["a"], "apply1": ["b"]}


def test_gradients_that_several_optimizers_share_are_aggregated_once_before_them(init):
    init(communication__clip_after_allreduce=True)
    a, b, loss = two_variables()
    gradients = tf.gradients(loss, [a, b])
    tf.train.AdamOptimizer().apply_gradients([(gradients[0], a)])
    tf.train.AdamOptimizer().apply_gradients(zip(gradients, [a, b]))
    assert groups() == {"apply0": ["a"], "apply1": ["b"]}


def test_none_gradients_are_left_out(init):
    init()
    a, b, _ = two_variables()
    gradients = tf.gradients(tf.reduce_sum(a), [a, b])
    tf.train.AdamOptimizer().apply_gradients(zip(gradients, [a, b]))
    assert groups() == {"apply0": ["a"]}


def test_writes_without_an_optimizer_are_a_group_of_their_own(init):
    init()
    a, b, loss = two_variables()
    gradients = tf.gradients(loss, [a, b])
    a.assign_sub(0.1 * gradients[0])
    assert groups() == {"writes": ["a"]}


def test_a_norm_that_is_only_looked_at_is_not_aggregated(init):
    init()
    a, b, loss = two_variables()
    tf.global_norm(tf.gradients(loss, [a, b]))
    tf.train.AdamOptimizer().minimize(loss)
    assert groups() == {"apply0": ["a", "b"]}
    assert boundary_phases() == ["apply", "apply"]


def test_a_gradient_penalty_is_part_of_the_objective(init):
    init()
    model = Linear()
    (slope,) = tf.gradients(model.out, model.x)
    model.optimizer.minimize(model.loss + tf.reduce_mean(tf.square(slope)))
    assert groups() == {"apply0": ["w"]}


def test_second_order_gradients_are_aggregated_where_they_are_applied(init):
    init()
    a, b, loss = two_variables()
    first = tf.gradients(loss * loss, [a, b])
    tf.train.AdamOptimizer().minimize(tf.add_n([tf.reduce_sum(tf.square(g)) for g in first]))
    assert groups() == {"apply0": ["a", "b"]}


@pytest.mark.parametrize("clip_after", [False, True])
def test_second_order_gradients_with_clip_after_allreduce_leave_the_inner_ones_alone(init, clip_after):
    init(communication__clip_after_allreduce=clip_after)
    model = Linear()
    (inner,) = tf.gradients(model.loss, model.w)
    outer = tf.gradients(tf.reduce_sum(tf.square(inner)), model.w)
    model.optimizer.apply_gradients(zip(outer, [model.w]))
    (found,) = find_groups(Graph.get(), Env.get().config, plan_stages(Graph.get(), Env.get().cluster)[0])
    ((_, boundary),) = found.boundaries
    assert boundary.op is not inner.op
    assert groups() == {"apply0": ["w"]}


def test_the_objective_is_a_local_mean(init):
    init()
    Linear().minimize()
    assert [(o.tensor, o.scope, o.merge) for o in make_plan().outputs] == [("loss:0", "local", "mean")]


def test_collections_become_outputs(init):
    init()
    model = Linear()
    model.minimize()
    epl.add_to_collection(model.out, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    epl.add_to_collection(model.loss, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    found = {o.tensor: (o.scope, o.merge, bool(o.communicator)) for o in make_plan().outputs}
    assert found == {"out:0": ("global", "concat", True), "loss:0": ("local", "sum", False)}


def layers(count, sparse=False):
    hidden = tf.placeholder(tf.float32, [None, 4], "x")
    if sparse:
        table = tf.get_variable("table", [9, 4])
        hidden += tf.nn.embedding_lookup(table, tf.placeholder(tf.int32, [None], "ids"))
    for i in range(count):
        hidden = tf.layers.dense(hidden, 4, name=f"layer{i}", use_bias=False)
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(hidden))


def test_buckets_are_in_the_order_in_which_gradients_become_ready(init):
    init(communication__max_splits=4)
    layers(4)
    (group,) = make_plan().groups
    order = [group.reductions[i].variable for transfer in group.transfers for i in transfer.members]
    assert order == [f"layer{i}/kernel" for i in (3, 2, 1, 0)]
    assert len(group.transfers) > 1
    assert [transfer.key for transfer in group.transfers] == [
        f"apply0/gradients{i}" for i in range(len(group.transfers))
    ]


@pytest.mark.parametrize("splits", [1, 2, 60])
def test_at_most_max_splits_buckets_and_every_gradient_once(init, splits):
    init(communication__max_splits=splits)
    layers(5)
    (group,) = make_plan().groups
    assert len(group.transfers) <= splits
    assert sorted(i for transfer in group.transfers for i in transfer.members) == list(range(5))


def test_a_sparse_gradient_travels_alone(init):
    init(communication__max_splits=1)
    layers(2, sparse=True)
    (group,) = make_plan().groups
    sparse = [i for i, reduction in enumerate(group.reductions) if reduction.sparse]
    assert [group.reductions[i].variable for i in sparse] == ["table"]
    assert (sparse[0],) in [transfer.members for transfer in group.transfers]


def test_transfers_take_turns_on_the_communicators(init):
    init(communication__max_splits=8, communication__num_communicators=2)
    layers(4, sparse=True)
    (group,) = make_plan().groups
    used = [transfer.communicator for transfer in group.transfers]
    assert used == [f"plan/apply0/{i % 2}" for i in range(len(used))] and len(used) > 1


def test_an_integer_gradient_is_refused_by_name(init):
    init()
    model = Linear()
    counter = tf.get_variable("counter", [2], tf.int32, trainable=False)
    gradient = tf.gradients(model.loss, model.w)
    tf.train.GradientDescentOptimizer(1.0)
    model.optimizer.apply_gradients(zip(gradient, [model.w]))
    Graph.get().apply_calls.append(Graph.get().apply_calls[0]._replace(boundaries=(("counter", tf.identity(counter)),)))
    text = error_text(make_plan)
    assert text.startswith("PlanError") and "'counter'" in text and "int32" in text


def test_a_number_of_stages_without_automatic_partition_is_refused(init):
    init(pipeline__num_stages=2)
    Linear().minimize()
    text = error_text(transformation.transform)
    assert text.startswith("PlanError") and "pipeline.num_stages is 2 and auto.auto_parallel is off" in text


def test_a_split_that_is_trained_without_its_gradients_is_refused(init):
    init(annotate=False)
    x = tf.placeholder(tf.float32, [None, 3])
    with epl.split(2):
        kernel = tf.get_variable("kernel", [3, 4])
        y = tf.matmul(x, kernel)
    train = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones([3, 4]), kernel)])
    with tf.Session() as sess, pytest.raises(NotAvailableError, match="cannot be lowered without tf.gradients yet"):
        sess.run([y, train], {x: [[1.0, 2, 3]]})
