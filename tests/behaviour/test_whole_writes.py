"""Variables that a step writes from the batch are those of one device on all rows, and equal on all replicas."""

from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle, replica_differences, topology_name
from tests.parity.scripts.data import CLASSES, FEATURES, samples

TOPOLOGIES = [(1, 2), (2, 1), (2, 2)]
Step = Tuple[tf.Tensor, List[Any]]  # loss, updates


class Model:
    """Two dense layers on rows that are fed, or that each worker reads."""

    def __init__(self, ctx: Context, reads: bool) -> None:
        self.data = samples()
        self.reads = reads
        if reads:
            rows = tf.data.Dataset.from_tensor_slices((ctx.stream(self.data.x), ctx.stream(self.data.y)))
            self.x, self.y = tf.data.make_one_shot_iterator(rows.batch(ctx.batch)).get_next()
        else:
            self.x = tf.placeholder(tf.float32, [None, FEATURES], "x")
            self.y = tf.placeholder(tf.int32, [None], "y")
        weights = tf.get_variable("weights", initializer=_numbers(FEATURES, 8))
        self.hidden = tf.tanh(tf.matmul(self.x, weights))
        self.logits = tf.matmul(self.hidden, tf.get_variable("head", initializer=_numbers(8, CLASSES)))

    def feed(self, ctx: Context, step: int) -> Any:
        fed = {} if self.reads else {self.x: self.data.x, self.y: self.data.y}
        return {tensor: ctx.step_rows(rows, step) for tensor, rows in fed.items()}


def _numbers(*shape: int) -> np.ndarray:
    return np.random.RandomState(3).normal(size=shape).astype(np.float32)


def _state(name: str, *shape: int, resource: bool = True) -> tf.Variable:
    initial = 0.1 * _numbers(*shape) if shape else np.float32(0.5)
    return tf.get_variable(name, initializer=initial, trainable=False, use_resource=resource)


# ---- Scripts.


def codebook(model: Any) -> Step:
    """VQ-VAE: moving sums over the rows of each code."""
    codes, sizes, sums = _state("codes", 5, 8), _state("sizes", 5), _state("sums", 5, 8)
    hidden, known = model.hidden, codes.read_value()
    nearest = tf.argmin(tf.reduce_sum(tf.square(hidden[:, None] - known[None]), -1), 1)
    chosen = tf.one_hot(nearest, 5)
    loss = tf.reduce_mean(tf.square(hidden - tf.stop_gradient(tf.gather(known, nearest))))
    with tf.control_dependencies([loss]):
        size = sizes.assign(0.9 * sizes + 0.1 * tf.reduce_sum(chosen, 0))
        total = sums.assign(0.9 * sums + 0.1 * tf.matmul(chosen, hidden, transpose_a=True))
        return loss, [codes.assign(total / (tf.abs(size)[:, None] + 1e-2))]


def centers(model: Any) -> Step:
    of_class = _state("centers", CLASSES, 8)
    difference = tf.gather(of_class.read_value(), model.y) - model.hidden
    loss = tf.reduce_mean(tf.square(difference))
    with tf.control_dependencies([loss]):
        return loss, [tf.scatter_sub(of_class, model.y, 0.5 * difference)]


def ref_centers(model: Any) -> Step:
    of_class = _state("centers", CLASSES, 8, resource=False)
    difference = tf.gather(of_class, model.y) - model.hidden
    loss = tf.reduce_mean(tf.square(difference))
    with tf.control_dependencies([loss]):
        return loss, [tf.scatter_sub(of_class, model.y, 0.5 * difference)]


def memory_bank(model: Any) -> Step:
    bank = _state("bank", 24, 8)
    known = bank.read_value()
    loss = -tf.reduce_mean(tf.nn.log_softmax(tf.matmul(model.hidden, known, transpose_b=True))[:, 0])
    with tf.control_dependencies([loss]):
        return loss, [bank.assign(tf.concat([model.hidden, known], 0)[:24])]


def ring(model: Any) -> Step:
    """A queue of features: rows are put where a pointer stands, which moves by the rows of the batch."""
    bank, place = _state("bank", 32, 8), tf.get_variable("place", initializer=0, trainable=False, use_resource=True)
    known, at = bank.read_value(), place.read_value()
    loss = -tf.reduce_mean(tf.nn.log_softmax(tf.matmul(model.hidden, known, transpose_b=True))[:, 0])
    rows = tf.shape(model.hidden)[0]
    with tf.control_dependencies([loss]):
        put = tf.scatter_update(bank, (at + tf.range(rows)) % 32, model.hidden)
        return loss, [put, place.assign((at + rows) % 32)]


def baseline(model: Any) -> Step:
    """REINFORCE: the baseline is the moving mean of the reward."""
    mean = _state("baseline")
    reward, known = tf.reduce_sum(model.x, 1), mean.read_value()
    loss = -tf.reduce_mean(tf.nn.log_softmax(model.logits)[:, 0] * (reward - known))
    with tf.control_dependencies([loss]):
        return loss, [mean.assign_add(0.1 * (tf.reduce_mean(reward) - known))]


def normalizer(model: Any) -> Step:
    """PPO: the running mean and variance of the reward, with the count of rows."""
    mean, variance, count = _state("mean"), _state("variance"), _state("count")
    reward = tf.reduce_sum(model.x, 1)
    known = mean.read_value(), variance.read_value(), count.read_value()
    loss = tf.reduce_mean(tf.nn.log_softmax(model.logits)[:, 0] * (reward - known[0]) / tf.sqrt(known[1] + 1.0))
    rows = tf.cast(tf.shape(reward)[0], tf.float32)
    of_batch, spread = tf.nn.moments(reward, [0])
    total = known[2] + rows
    with tf.control_dependencies([loss]):
        return loss, [
            mean.assign(known[0] + (of_batch - known[0]) * rows / total),
            variance.assign((known[1] * known[2] + spread * rows) / total),
            count.assign(total),
        ]


def hardest(model: Any) -> Step:
    """The rows with the largest values, of all rows, are kept."""
    kept = _state("kept", 3)
    values, _ = tf.nn.top_k(model.logits[:, 0], 3)
    loss = tf.reduce_mean(tf.square(model.logits[:, 0] - tf.reduce_mean(kept.read_value())))
    with tf.control_dependencies([loss]):
        return loss, [kept.assign(0.5 * kept + 0.5 * values)]


def visits(model: Any) -> Step:
    """Visit counts."""
    counts = tf.get_variable("counts", [CLASSES], tf.int32, tf.ones_initializer(), trainable=False, use_resource=True)
    known = tf.cast(tf.gather(counts.read_value(), model.y), tf.float32)
    loss = tf.reduce_mean(tf.square(model.logits[:, 0]) / known)
    with tf.control_dependencies([loss]):
        return loss, [tf.scatter_add(counts, model.y, tf.ones_like(model.y))]


def priors(model: Any) -> Step:
    """Learned class priors, and the center of DINO: the mean of predictions is taken off the next ones."""
    prior = _state("prior", CLASSES)
    known = prior.read_value()
    loss = -tf.reduce_mean(tf.nn.log_softmax(model.logits - known)[:, 1])
    with tf.control_dependencies([loss]):
        return loss, [prior.assign(0.9 * known + 0.1 * tf.reduce_mean(model.logits, 0))]


Script = Callable[[Any], Step]
SCRIPTS: List[Script] = [
    codebook, centers, ref_centers, memory_bank, ring, baseline, normalizer, hardest, visits, priors,
]  # fmt: skip


def _train(ctx: Context, name: str, reads: bool = False, **config: Any) -> None:
    ctx.init(**config)
    model = Model(ctx, reads)
    loss, updates = globals()[name](model)
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
    train_op = tf.group(optimizer.minimize(loss, step), *updates)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number in range(STEPS):
            ctx.record(loss=sess.run([loss, train_op], model.feed(ctx, number))[0])
        ctx.record_variables(sess)


@pytest.mark.grid
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=topology_name)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_step_writes_what_one_device_writes(oracle: Oracle, script: Script, topology: Any) -> None:
    oracle.check(topology, _train, name=script.__name__)


# Replicas of one process that read from one iterator get its batches in any order: a ring keeps the order of rows.
@pytest.mark.grid
@pytest.mark.parametrize("topology", [(1, 2), (1, 2, 2), (2, 2, 2)], ids=topology_name)
@pytest.mark.parametrize("name", ["codebook", "ring", "normalizer"])
def test_each_worker_may_read_rows_of_its_own(oracle: Oracle, name: str, topology: Any) -> None:
    if topology == (1, 2) and name == "ring":
        topology = (2, 1)
    oracle.check(topology, _train, name=name, reads=True)


# ---- With other features.


@pytest.mark.grid
@pytest.mark.parametrize(
    "config",
    [{"zero__level": "v0"}, {"zero__level": "v2"}, {"debug__check_replicas": 2}],
    ids=["zero-v0", "zero-v2", "checked"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["codebook", "ring"])
def test_writes_of_all_rows_go_with(oracle: Oracle, name: str, config: Any) -> None:
    reference = oracle.plain(_train, name=name)
    oracle.check((2, 2), _train, reference, name=name, **config)


def _restarts(ctx: Context) -> None:
    """VQ-VAE with random restarts: codes are replaced by rows of the batch, drawn at random."""
    ctx.init()
    model = Model(ctx, False)
    codes = _state("codes", 5, 8)
    loss = tf.reduce_mean(tf.square(tf.nn.dropout(model.hidden, rate=0.5) - codes.read_value()[:1]))
    with tf.control_dependencies([loss]):
        drawn = tf.random_shuffle(model.x, seed=5)[:5, :8]
        noise = tf.random.normal([5, 8], seed=6)
        update = codes.assign(drawn + 0.1 * noise)
    train_op = tf.group(tf.train.GradientDescentOptimizer(0.1).minimize(loss), update)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            sess.run(train_op, model.feed(ctx, step))
            ctx.record(codes=sess.run(codes))
        ctx.record_variables(sess, [codes])


@pytest.mark.parametrize("topology", [(1, 2), (2, 1)], ids=topology_name)
def test_all_replicas_write_what_the_first_one_draws(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_restarts).results["codes"]
    answers = oracle.plan(topology, _restarts)
    assert replica_differences(answers) == []
    np.testing.assert_allclose(answers[0].results["codes"], expected, rtol=1e-5)


def _by_hand(ctx: Context) -> None:
    """The update of a codebook runs by itself, with all rows fed: before training, between steps, with one row."""
    ctx.init()
    model = Model(ctx, False)
    loss, (update,) = codebook(model)
    train_op = tf.group(tf.train.GradientDescentOptimizer(0.1).minimize(loss), update)
    codes = tf.global_variables()[0]
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(3):
            sess.run(update, {model.x: model.data.x[step : step + 5]})
            ctx.record(codes=sess.run(codes))
            sess.run(train_op, model.feed(ctx, step))
            ctx.record(codes=sess.run(codes))
        ctx.record_variables(sess)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=topology_name)
def test_a_write_by_hand_has_all_that_is_fed(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_by_hand).results["codes"]
    answers = oracle.plan(topology, _by_hand)
    assert replica_differences(answers) == []
    np.testing.assert_allclose(answers[0].results["codes"], expected, rtol=1e-5)


# ---- What stays that of each replica is told.


def in_a_branch(model: Any) -> Step:
    mean = _state("mean")
    reward = tf.reduce_mean(model.x)
    update = tf.cond(tf.reduce_mean(mean) > -9, lambda: mean.assign(reward), mean.read_value)
    return tf.reduce_mean(tf.square(model.logits)), [update]


def in_python(model: Any) -> Step:
    mean = _state("mean")
    reward = tf.numpy_function(lambda rows: rows, [model.x], tf.float32)
    reward.set_shape([None, FEATURES])
    return tf.reduce_mean(tf.square(model.logits)), [mean.assign(tf.reduce_mean(reward))]


def built_in_rows(model: Any) -> Step:
    """A queue whose pointer moves by a number of rows that the script writes."""
    bank, place = _state("bank", 32, 8), tf.get_variable("place", initializer=0, trainable=False, use_resource=True)
    at = place.read_value()
    with tf.control_dependencies([at]):
        put = bank[at : at + 8].assign(model.hidden)
    with tf.control_dependencies([put]):
        return tf.reduce_mean(tf.square(model.logits)), [place.assign((at + 8) % 32)]


@pytest.mark.parametrize("script", [in_a_branch, in_python, built_in_rows], ids=lambda one: one.__name__)
def test_what_stays_that_of_each_replica_is_told(oracle: Oracle, script: Script) -> None:
    (answer,) = oracle.plan((1, 2), _train, name=script.__name__)
    assert "the copies differ" in answer.log
