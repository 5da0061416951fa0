"""With `replicate.batch` "all" a loss that mixes rows is that of one device on all rows, and so are the weights."""

from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.rewriting.row_markers import find_markers
from epl.parallel.whole_batch import markers
from tests.behaviour.small import error_of
from tests.parity.context import STEPS, Context
from tests.parity.oracle import NOT_OF_ONE_DEVICE, Oracle, check_told, compare, topology_name
from tests.parity.pool import Answer
from tests.parity.scripts import pipelines
from tests.parity.scripts.accumulation import Training
from tests.parity.scripts.data import CLASSES, FEATURES, samples

TOPOLOGIES = [(2, 1), (2, 2), pytest.param((1, 4), marks=pytest.mark.long)]
EXACT, SINGLE = 1e-12, 1e-6


class Model:
    """Two dense layers on rows that are fed, or that each worker reads.

    Attributes:
      x, y: the rows and their classes.
      mask: 1 for the rows that count, about half of them.
      hidden, other: features of the rows, and of other views of them.
      logits: of the classes.
    """

    def __init__(self, ctx: Context, dtype: str, reads: bool = False) -> None:
        self.data = samples()
        rows = {"x": self.data.x.astype(dtype), "y": self.data.y}
        if reads:
            streams = tuple(ctx.stream(one) for one in rows.values())
            batches = tf.data.Dataset.from_tensor_slices(streams).batch(ctx.batch)
            self.x, self.y = tf.data.make_one_shot_iterator(batches).get_next()
        else:
            self.x = tf.placeholder(dtype, [None, FEATURES], "x")
            self.y = tf.placeholder(tf.int32, [None], "y")
        self._fed = {} if reads else {self.x: rows["x"], self.y: rows["y"]}
        self.mask = tf.cast(self.y > 1, dtype)
        weights = tf.get_variable("weights", initializer=_numbers(FEATURES, 8).astype(dtype))
        self.hidden = tf.tanh(tf.matmul(self.x, weights))
        self.other = tf.tanh(tf.matmul(tf.reverse(self.x, [1]), weights))
        self.logits = tf.matmul(self.hidden, tf.get_variable("head", initializer=_numbers(8, CLASSES).astype(dtype)))

    @property
    def of_each(self) -> tf.Tensor:
        """The loss of each row."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.y, logits=self.logits)

    def feed(self, ctx: Context, step: int) -> Dict[tf.Tensor, np.ndarray]:
        return {tensor: ctx.step_rows(rows, step) for tensor, rows in self._fed.items()}


def _numbers(*shape: int) -> np.ndarray:
    return np.random.RandomState(3).normal(size=shape)


# ---- Losses that mix rows.


def masked(model: Model) -> tf.Tensor:
    return tf.reduce_sum(model.mask * model.of_each) / tf.reduce_sum(model.mask)


def focal(model: Model) -> tf.Tensor:
    """The normalizer is the number of positive rows, at least 1."""
    right = tf.one_hot(model.y, CLASSES, dtype=model.x.dtype)
    odds = tf.nn.sigmoid(model.logits)
    likely = right * odds + (1 - right) * (1 - odds)
    loss = -tf.reduce_sum(tf.square(1 - likely) * tf.math.log(likely))
    return loss / tf.maximum(tf.reduce_sum(model.mask), 1)


def weighted(model: Model) -> tf.Tensor:
    """tf.losses: divided by the number of rows whose weight is not 0."""
    return tf.losses.sparse_softmax_cross_entropy(model.y, model.logits, weights=model.mask)


def sum_of_rows(model: Model) -> tf.Tensor:
    return tf.reduce_sum(model.of_each) * 0.05


def nt_xent(model: Model) -> tf.Tensor:
    """SimCLR: each view of a row against all views of all rows."""
    views = tf.nn.l2_normalize(tf.concat([model.hidden, model.other], 0), 1)
    rows = tf.shape(model.x)[0]
    scores = tf.matmul(views, views, transpose_b=True) / 0.5
    scores -= 1e9 * tf.eye(2 * rows, dtype=scores.dtype)
    partners = tf.concat([tf.range(rows) + rows, tf.range(rows)], 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partners, logits=scores))


def clip(model: Model) -> tf.Tensor:
    """CLIP: each row of one view against all rows of the other, both ways."""
    scores = tf.matmul(model.hidden, model.other, transpose_b=True)
    labels = tf.range(tf.shape(model.x)[0])
    ways = [tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=one) for one in
            (scores, tf.transpose(scores))]  # fmt: skip
    return (tf.reduce_mean(ways[0]) + tf.reduce_mean(ways[1])) / 2


def barlow_twins(model: Model) -> tf.Tensor:
    """The cross-correlation of two views over the batch, normalized by the statistics of the batch."""
    views = []
    for one in (model.hidden, model.other):
        mean, variance = tf.nn.moments(one, [0])
        views.append((one - mean) / tf.sqrt(variance + 1e-5))
    rows = tf.cast(tf.shape(model.x)[0], model.x.dtype)
    correlation = tf.matmul(views[0], views[1], transpose_a=True) / rows
    return tf.reduce_sum(tf.square(correlation - tf.eye(8, dtype=model.x.dtype))) * 0.1


def hard_triplets(model: Model) -> tf.Tensor:
    """Batch-hard mining: the farthest row of the class, and the nearest one of others."""
    squares = tf.reduce_sum(tf.square(model.hidden), 1)
    distances = squares[:, None] + squares[None] - 2 * tf.matmul(model.hidden, model.hidden, transpose_b=True)
    same = tf.equal(model.y[:, None], model.y[None])
    farthest = tf.reduce_max(tf.where(same, distances, tf.zeros_like(distances)), 1)
    nearest = tf.reduce_min(tf.where(same, 1e3 * tf.ones_like(distances), distances), 1)
    return tf.reduce_mean(tf.nn.softplus(farthest - nearest))


def root_of_a_mean(model: Model) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(model.logits)))


def hardest_rows(model: Model) -> tf.Tensor:
    hardest, _ = tf.nn.top_k(model.of_each, 3)
    return tf.reduce_mean(hardest)


def picked_rows(model: Model) -> tf.Tensor:
    return tf.reduce_mean(tf.boolean_mask(model.of_each, model.mask > 0))


def class_means(model: Model) -> tf.Tensor:
    means = tf.math.unsorted_segment_mean(model.hidden, model.y, CLASSES)
    return tf.reduce_mean(tf.square(model.hidden - tf.gather(means, model.y))) + tf.reduce_sum(tf.square(means))


def normalized(model: Model) -> tf.Tensor:
    """A batch norm of ordinary ops, before a layer that is trained."""
    mean, variance = tf.nn.moments(model.hidden, [0])
    hidden = tf.nn.batch_normalization(model.hidden, mean, variance, None, None, 1e-3)
    last = tf.get_variable("last", initializer=_numbers(8, CLASSES).astype(model.x.dtype.as_numpy_dtype))
    logits = tf.matmul(hidden, last)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=model.y, logits=logits))


def counted(model: Model) -> tf.Tensor:
    """Terms that depend on the number of rows."""
    rows = tf.cast(tf.shape(model.x)[0], model.x.dtype)
    return tf.reduce_mean(model.of_each) * tf.math.log(rows) + tf.reduce_sum(model.mask * model.of_each) / (rows + 1)


def two_terms(model: Model) -> tf.Tensor:
    """A mean over rows, which stays one of each replica, next to a term of all rows and one of weights."""
    weights = tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])
    return tf.reduce_mean(model.of_each) + 0.3 * clip(model) + 0.01 * weights


Loss = Callable[[Model], tf.Tensor]
MIXING: List[Loss] = [
    masked, focal, sum_of_rows, nt_xent, clip, barlow_twins, hard_triplets, root_of_a_mean, hardest_rows,
    picked_rows, class_means, normalized, counted, two_terms,
]  # fmt: skip


# ---- Losses that do not.


def mean_of_rows(model: Model) -> tf.Tensor:
    weights = tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])
    return 0.5 * tf.reduce_mean(model.of_each) + 0.01 * weights


def tf_losses(model: Model) -> tf.Tensor:
    return tf.losses.sparse_softmax_cross_entropy(model.y, model.logits)


def divided_by_rows(model: Model) -> tf.Tensor:
    return tf.reduce_sum(model.of_each) / tf.cast(tf.shape(model.x)[0], model.x.dtype)


def divided_by_the_last_size(model: Model) -> tf.Tensor:
    return tf.reduce_sum(model.of_each) / tf.cast(tf.shape(model.of_each)[-1], model.x.dtype)


def dropout(model: Model) -> tf.Tensor:
    hidden = tf.nn.dropout(model.hidden, rate=0.5, seed=5)
    return tf.reduce_mean(tf.square(hidden))


NOT_MIXING: List[Loss] = [mean_of_rows, tf_losses, divided_by_rows, divided_by_the_last_size, dropout]


# ---- Scripts.


def _train(
    ctx: Context, losses: List[str], dtype: str = "float64", reads: bool = False, steps: int = 1, **config: Any
) -> None:
    """Trains a model for each loss, one after the other, with so many runs of a training step."""
    for name in losses:
        tf.reset_default_graph()
        ctx.init(replicate__batch="all", pipeline__num_micro_batch=steps, **config)
        model = Model(ctx, dtype, reads)
        loss = globals()[name](model)
        training = Training(ctx, steps, [loss], tf.train.MomentumOptimizer(0.05, 0.9))
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            values = [training.run(sess, loss, model.feed(ctx, step)) for step in range(STEPS)]
            ctx.record(**{f"{name}/loss": values})
            ctx.record(recomputed=sum("EPL_RECOMPUTE/" in op.name for op in sess.graph.get_operations()))
            ctx.record_variables(sess)
            ctx.record(**{f"{name}/variables": ctx.results["variables"] + ctx.results.get("replicas", [])})


def _compare(oracle: Oracle, topology: Any, losses: List[Loss], tolerance: float, **arguments: Any) -> List[Answer]:
    names = [one.__name__ for one in losses]
    (plain,) = [oracle.plain(_train, losses=names, **arguments).results]
    problems = []
    answers = oracle.plan(topology, _train, losses=names, **arguments)
    for worker, answer in enumerate(answers):
        for name in names:
            (expected,) = plain[f"{name}/loss"]
            seen = np.mean([one.results[f"{name}/loss"][0] for one in answers], axis=0)
            pairs = [("loss", seen, np.array(expected))]
            (variables,) = plain[f"{name}/variables"]
            for copy in answer.results[f"{name}/variables"][0]:
                pairs += [(what, value, variables[0][what]) for what, value in copy.items() if what in variables[0]]
            for what, one, other in pairs:
                difference = np.max(np.abs(one - other)) / max(np.max(np.abs(other)), 1e-3)
                if not difference <= tolerance:
                    problems.append(f"worker {worker}: {name}: {what} differs by {difference:.3g}")
    assert not problems, "\n".join(problems)
    check_told(answers)
    return answers


def test_losses_that_mix_rows_are_of_all_rows(oracle: Oracle) -> None:
    _compare(oracle, (1, 2), MIXING, EXACT)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=topology_name)
def test_losses_over_processes(oracle: Oracle, topology: Any) -> None:
    _compare(oracle, topology, [masked, nt_xent, barlow_twins, hard_triplets, two_terms], EXACT, reads=True)


@pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)
def test_losses_in_single_precision(oracle: Oracle, topology: Any) -> None:
    _compare(oracle, topology, [weighted, clip, normalized], SINGLE, dtype="float32")


@pytest.mark.parametrize("config", [{"zero__level": "v0"}, {"zero__level": "v1"}, {"auto__balance": "5:3"}], ids=str)
def test_losses_with_parts_of_slots_and_unequal_rows(oracle: Oracle, config: Dict[str, Any]) -> None:
    _compare(oracle, (1, 2), [focal, clip, picked_rows, two_terms], EXACT, **config)


RECOMPUTED = {"gradient_checkpoint__type": "auto"}


@pytest.mark.parametrize(
    "topology,config",
    [
        ((1, 2), {}),
        ((2, 1), {"reads": True, "gradient_checkpoint__check_gradients": True}),
        ((2, 2), {"reads": True, "zero__level": "v0"}),
        ((1, 2), {"auto__balance": "5:3", "zero__level": "v1"}),
    ],
    ids=str,
)
def test_losses_with_recomputation(oracle: Oracle, topology: Any, config: Dict[str, Any]) -> None:
    losses = MIXING if not config else [masked, nt_xent, barlow_twins, hard_triplets, two_terms]
    answers = _compare(oracle, topology, losses, EXACT, **RECOMPUTED, **config)
    assert all(np.count_nonzero(answer.results["recomputed"]) >= len(losses) - 1 for answer in answers)


@pytest.mark.parametrize(
    "topology,config",
    [((1, 2), {}), ((2, 1), {"reads": True, **RECOMPUTED}), ((1, 2), {"auto__balance": "5:3", "zero__level": "v1"})],
    ids=str,
)
def test_losses_of_micro_steps(oracle: Oracle, topology: Any, config: Dict[str, Any]) -> None:
    losses = [masked, sum_of_rows, nt_xent, barlow_twins, hard_triplets, counted, two_terms]
    _compare(oracle, topology, losses, EXACT, steps=3, **config)


@pytest.mark.parametrize(
    "topology,shape,config",
    [
        ((1, 4), {"stages": 2, "micro_batches": 4, "replicas": 2}, {}),
        ((2, 2), {"stages": 2, "micro_batches": 2, "replicas": 1}, {"zero__level": "v1"}),
        ((1, 4), {"stages": 2, "micro_batches": 2, "replicas": 2, "schedule": "PreferForward"}, RECOMPUTED),
    ],
    ids=str,
)
def test_losses_of_pipelines(oracle: Oracle, topology: Any, shape: Dict[str, Any], config: Dict[str, Any]) -> None:
    """As one device that accumulates over micro batches of the rows of all replicas."""
    model = {"name": "contrast", "dtype": "float64"}
    replicas = topology[0] * shape["replicas"]
    reference = oracle.plain(
        pipelines.accumulated, micro_batches=shape["micro_batches"], replicas=replicas, joined=True, **model
    )
    answers = oracle.plan(topology, pipelines.train, replicate__batch="all", **model, **shape, **config)
    compare(reference, answers, EXACT)


@pytest.mark.parametrize(
    "topology,half,tolerance,config",
    [
        ((1, 2), "float16", 4e-3, {}),
        ((2, 1), "bfloat16", 3e-2, {}),
        ((2, 1), "float16", 4e-3, {"steps": 3, **RECOMPUTED}),
    ],
    ids=str,
)
def test_losses_in_mixed_precision(
    oracle: Oracle, topology: Any, half: str, tolerance: float, config: Dict[str, Any]
) -> None:
    """As near to float32 as mixed precision on one device is; the losses of each replica are further off."""
    losses = [masked, nt_xent, picked_rows, normalized, two_terms]
    _compare(oracle, topology, losses, tolerance, dtype="float32", amp__level="O1", amp__dtype=half, **config)


# ---- What is built, and said.


def _built(ctx: Context) -> None:
    for loss in NOT_MIXING:
        for batch in ("each", "all"):
            tf.reset_default_graph()
            ctx.init(replicate__batch=batch)
            model = Model(ctx, "float64")
            train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss(model))
            with tf.Session() as sess:
                sess.run(tf.global_variables_initializer())
                sess.run(train_op, model.feed(ctx, 0))
                ctx.record(**{loss.__name__: sorted(op.type for op in sess.graph.get_operations())})


def test_a_model_that_mixes_no_rows_has_no_other_ops(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _built)
    for loss in NOT_MIXING:
        each, of_all = answer.results[loss.__name__]
        assert each == of_all, loss.__name__


def _shown(ctx: Context) -> None:
    ctx.init(replicate__batch="all")
    model = Model(ctx, "float64")
    loss = masked(model)
    smooth = tf.get_variable("smooth", initializer=np.float64(0.0), trainable=False)
    train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    update = smooth.assign(0.9 * smooth + 0.1 * loss)
    _, metric = tf.metrics.mean(model.of_each)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        ctx.record(metric=sess.run([loss, metric], model.feed(ctx, 0))[1])
        ctx.record(rows=np.mean(sess.run(model.of_each, model.feed(ctx, 0))))
        ctx.record(alone=sess.run(loss, model.feed(ctx, 0)))
        ctx.record(trained=sess.run([loss, train_op, update], model.feed(ctx, 0))[0])
        ctx.record(smooth=sess.run(smooth))
        with pytest.raises(ValueError, match="computed from all rows"):
            sess.run(train_op, {**model.feed(ctx, 0), loss: 1.0})


def test_the_loss_is_that_of_all_rows_where_it_is_shown(oracle: Oracle) -> None:
    (plain,) = oracle.plain(_train, losses=["masked"]).results["masked/loss"]
    (answer,) = oracle.plan((1, 2), _shown)
    (alone,), (trained,), (smooth,) = (answer.results[name] for name in ("alone", "trained", "smooth"))
    np.testing.assert_allclose([alone, trained, smooth * 10], [plain[0]] * 3, rtol=EXACT)
    np.testing.assert_allclose(
        answer.results["metric"], answer.results["rows"], rtol=SINGLE
    )  # metrics are kept in float32
    assert NOT_OF_ONE_DEVICE not in answer.log


def _twice(ctx: Context) -> None:
    """A loss that is differentiated three times, and fetched by worker 0 alone."""
    ctx.init(replicate__batch="all", communication__timeout=30)
    model = Model(ctx, "float64")
    loss = masked(model)
    train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    tf.global_norm(tf.gradients(loss, tf.trainable_variables()))
    other_op = tf.train.GradientDescentOptimizer(0.01).minimize(tf.exp(loss))  # shares all ops but one
    losses = [loss] if ctx.worker == 0 else []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            ctx.record(losses=sess.run([(train_op, other_op)[step % 2], *losses], model.feed(ctx, step))[1:])
        ctx.record(sums=len(find_markers(GraphView(sess.graph), markers.SUMS)))
        ctx.record_variables(sess)


def test_losses_that_share_ops_share_what_is_of_all_rows(oracle: Oracle) -> None:
    plain = oracle.plain(_twice).results
    first, second = (answer.results for answer in oracle.plan((2, 1), _twice))
    assert first["sums"] == second["sums"] == [2]
    np.testing.assert_allclose(first["losses"], plain["losses"], rtol=EXACT)
    for answer in (first, second):
        for name, value in plain["variables"][0].items():
            np.testing.assert_allclose(answer["variables"][0][name], value, rtol=EXACT, atol=EXACT)


# ---- What is refused.


def _refused(ctx: Context, what: str) -> None:
    config = {
        "of_sums": {"communication__gradients_reduce_method": "sum"},
        "offloaded": {"offload__level": "v0"},
        "weights_in_parts": {"zero__level": "v2"},
        "normed": {"batch_norm__sync": True},
    }
    ctx.init(replicate__batch="all", **config.get(what, {}))
    import epl

    model = Model(ctx, "float32")
    loss = masked(model)
    variables = tf.trainable_variables()
    if what == "python":
        loss = tf.reduce_mean(model.of_each) * tf.py_func(np.sum, [model.hidden], tf.float32)
    if what == "read_by_python":
        loss = tf.reduce_mean(model.of_each * tf.py_func(lambda: np.float32(1), [], tf.float32))
    if what == "loop":
        loss = tf.while_loop(lambda one: tf.reduce_sum(one) < 0, lambda one: one * 2, [loss])
    if what == "vector":
        loss = model.of_each
    if what == "tensors":
        tf.gradients(loss, model.hidden)
    if what == "tensors_too":
        variables = [*variables, model.hidden]
    if what == "penalty":
        loss = tf.reduce_mean(tf.square(tf.gradients(tf.reduce_mean(model.of_each), variables)[0]))
    gradients = tf.gradients(loss, variables, grad_ys=tf.constant(2.0) if what == "seeds" else None)
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables))
    if what == "whole_late":
        epl.keep_whole(model.y)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, model.feed(ctx, 0))


REFUSED = {
    "of_sums": 'not available yet: replicate.batch "all" with communication.gradients_reduce_method',
    "offloaded": 'not available yet: replicate.batch "all" with offload.level',
    "weights_in_parts": 'not available yet: replicate.batch "all" with zero.level',
    "normed": 'not available yet: replicate.batch "all" with batch_norm.sync',
    "python": 'not available yet: replicate.batch "all" with rows that EPL cannot follow',
    "read_by_python": 'not available yet: replicate.batch "all" with rows that EPL cannot follow',
    "loop": 'not available yet: replicate.batch "all" with rows that EPL cannot follow',
    "vector": 'not available yet: replicate.batch "all" with a loss that is no scalar',
    "tensors": 'not available yet: replicate.batch "all" with gradients by tensors alone',
    "tensors_too": 'replicate.batch "all" with gradients by variables and by other tensors in one call',
    "penalty": 'not available yet: replicate.batch "all" with gradients of gradients',
    "seeds": 'not available yet: replicate.batch "all" with grad_ys',
    "whole_late": "was taken to hold rows of a batch",
}


def _refused_all(ctx: Context) -> None:
    for what in REFUSED:
        tf.reset_default_graph()
        ctx.record(**{what: error_of(_refused, ctx, what)})


def test_what_is_not_proved_is_refused(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _refused_all)
    said = {what: answer.results[what][0] for what in REFUSED}
    assert [(what, text) for what, text in said.items() if REFUSED[what] not in text] == []
