"""A step whose numbers are not those of one device on all rows says so: once, with the line of the script."""

import inspect
import re
from typing import Any, Callable, List, Sequence

import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small
from tests.parity.context import Context
from tests.parity.oracle import NOT_OF_ONE_DEVICE, Oracle
from tests.parity.scripts.data import CLASSES


def _state(name: str, *shape: int) -> tf.Variable:
    return tf.get_variable(name, shape, initializer=tf.ones_initializer(), trainable=False, use_resource=True)


def _train(loss: tf.Tensor, *updates: tf.Tensor) -> tf.Operation:
    with tf.control_dependencies(updates):
        return tf.train.GradientDescentOptimizer(0.1).minimize(loss)


# ---- Scripts. Each names the line that is told by a comment: `# told`.


def codebook(small: Small) -> tf.Operation:
    """VQ-VAE: the codebook is assigned from sums over the batch."""
    codes, sizes = _state("codebook", 5, 8), _state("sizes", 5)
    hidden = small.hidden
    nearest = tf.argmin(tf.reduce_sum(tf.square(hidden[:, None] - codes[None]), -1), 1)
    chosen = tf.one_hot(nearest, 5)
    size = sizes.assign(0.9 * sizes + 0.1 * tf.reduce_sum(chosen, 0))  # told
    mean = tf.matmul(chosen, hidden, transpose_a=True) / (size[:, None] + 1e-5)
    update = codes.assign(0.9 * codes + 0.1 * mean)  # told
    return _train(tf.reduce_mean(tf.square(hidden - tf.stop_gradient(tf.gather(codes, nearest)))), update)


def centers(small: Small) -> tf.Operation:
    """Center loss: the rows of a class move its center."""
    of_class = _state("centers", CLASSES, 8)
    difference = tf.gather(of_class, small.y) - small.hidden
    update = tf.scatter_sub(of_class, small.y, 0.5 * difference)  # told
    return _train(tf.reduce_mean(tf.square(difference)), update)


def memory_bank(small: Small) -> tf.Operation:
    """MoCo: the features of the batch are put into a variable."""
    bank = _state("bank", 16, 8)
    loss = tf.reduce_mean(tf.nn.log_softmax(tf.matmul(small.hidden, bank, transpose_b=True)))
    return _train(loss, bank.assign(tf.concat([small.hidden, bank], 0)[:16]))  # told


def baseline(small: Small) -> tf.Operation:
    """REINFORCE: the baseline is the moving mean of the reward."""
    mean = _state("baseline")
    reward = tf.reduce_sum(small.x, 1)
    loss = -tf.reduce_mean(tf.nn.log_softmax(small.logits)[:, 0] * (reward - mean))
    return _train(loss, mean.assign_add(0.1 * (tf.reduce_mean(reward) - mean)))  # told


def _lengths(small: Small) -> tf.Tensor:
    """StyleGAN 2: how far each row moves what the model makes of it."""
    (slopes,) = tf.gradients(tf.reduce_sum(tf.tanh(small.logits) * small.x[:, :CLASSES]), [small.hidden])
    return tf.sqrt(tf.reduce_sum(tf.square(slopes), 1))


def path_length(small: Small) -> tf.Operation:
    """A moving mean of lengths, and their distance to it."""
    lengths, mean = _lengths(small), _state("pl_mean")
    old = mean.read_value()
    with tf.control_dependencies([old]):
        update = mean.assign(old + 0.1 * (tf.reduce_mean(lengths) - old))  # told
    return _train(small.loss + tf.reduce_mean(tf.square(lengths - old)), update)


def masked_mean(small: Small) -> tf.Operation:
    mask = tf.cast(small.y > 0, tf.float32)
    return _train(tf.reduce_sum(mask * tf.square(small.logits[:, 0])) / tf.reduce_sum(mask))  # told


def all_pairs(small: Small) -> tf.Operation:
    scores = tf.matmul(small.hidden, small.hidden, transpose_b=True)  # told
    labels = tf.range(tf.shape(small.x)[0])
    return _train(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)))


def batch_norm(small: Small) -> tf.Operation:
    hidden = tf.layers.batch_normalization(small.hidden, training=True)  # told
    return _train(tf.reduce_mean(tf.square(hidden[:, 0] - 1)), *tf.get_collection(tf.GraphKeys.UPDATE_OPS))


def fused_batch_norm(small: Small) -> tf.Operation:
    images = tf.reshape(small.hidden, [-1, 2, 2, 2])
    hidden = tf.layers.batch_normalization(images, training=True, fused=True)  # told
    return _train(tf.reduce_mean(tf.square(hidden - 1)))


def batch_moments(small: Small) -> tf.Operation:
    _, variance = tf.nn.moments(small.hidden, [0])  # told
    return _train(tf.reduce_mean(variance))


def hardest_rows(small: Small) -> tf.Operation:
    hardest, _ = tf.nn.top_k(small.logits[:, 0], 2)  # told
    return _train(tf.reduce_mean(hardest))


def sorted_rows(small: Small) -> tf.Operation:
    ordered = tf.sort(small.logits[:, 0])  # told
    return _train(tf.reduce_mean(ordered * ordered))


def picked_rows(small: Small) -> tf.Operation:
    return _train(tf.reduce_mean(tf.boolean_mask(small.logits, small.y > 0)))  # told


def different_classes(small: Small) -> tf.Operation:
    classes, _ = tf.unique(small.y)
    weights = tf.get_variable("weights", [CLASSES])
    return _train(tf.reduce_mean(tf.gather(weights, classes)) + small.loss)  # told


def class_means(small: Small) -> tf.Operation:
    means = tf.math.unsorted_segment_mean(small.hidden, small.y, CLASSES)  # told
    return _train(tf.reduce_mean(tf.square(means)))


def root_of_a_mean(small: Small) -> tf.Operation:
    return _train(tf.sqrt(tf.reduce_mean(tf.square(small.logits))))  # told


def triplet(small: Small) -> tf.Operation:
    """The hardest positive and negative of each row, of all rows of the batch."""
    unit = tf.nn.l2_normalize(small.hidden, 1)
    distance = 2 - 2 * tf.matmul(unit, unit, transpose_b=True)  # told
    same = tf.cast(tf.equal(small.y[:, None], small.y[None]), tf.float32)
    far, near = tf.reduce_max(distance * same, 1), tf.reduce_min(distance + 9 * same, 1)
    return _train(tf.reduce_mean(tf.nn.relu(far - near + 0.5)))


def nt_xent(small: Small) -> tf.Operation:
    """SimCLR: two views of each row against all others."""
    views = [tf.nn.l2_normalize(view, 1) for view in (small.hidden[:, :4], small.hidden[:, 4:])]
    scores = tf.matmul(views[0], views[1], transpose_b=True) / 0.1  # told
    labels = tf.one_hot(tf.range(tf.shape(small.x)[0]), tf.shape(small.x)[0])
    return _train(tf.losses.softmax_cross_entropy(labels, scores))


def barlow_twins(small: Small) -> tf.Operation:
    rows = tf.cast(tf.shape(small.x)[0], tf.float32)
    product = tf.matmul(small.hidden[:, :4], small.hidden[:, 4:], transpose_a=True) / rows
    return _train(tf.reduce_sum(tf.square(product - tf.eye(4))))  # told


def focal(small: Small) -> tf.Operation:
    """RetinaNet: the loss of all anchors is divided by the number of positive ones."""
    positive = tf.cast(small.y > 1, tf.float32)
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=small.logits[:, 0])
    return _train(tf.reduce_sum(tf.square(1 - tf.exp(-loss)) * loss) / tf.maximum(tf.reduce_sum(positive), 1.0))  # told


def prototypes(small: Small) -> tf.Operation:
    """Prototypical networks: means of classes in the batch, and distances to them."""
    chosen = tf.one_hot(small.y, CLASSES)
    sums, counts = tf.matmul(chosen, small.hidden, transpose_a=True), tf.reduce_sum(chosen, 0)[:, None]
    means = sums / (counts + 1e-3)  # told
    distance = tf.reduce_sum(tf.square(small.hidden[:, None] - means[None]), -1)
    return _train(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=small.y, logits=-distance)))


def path_length_to_own_mean(small: Small) -> tf.Operation:
    """The distance to a mean that has the lengths of this step, and a gradient."""
    lengths, mean = _lengths(small), _state("pl_mean")
    new = mean + 0.1 * (tf.reduce_mean(lengths) - mean)
    return _train(small.loss + tf.reduce_mean(tf.square(lengths - new)))  # told


def norm_of_a_gradient(small: Small) -> tf.Operation:
    """The gradient of a weight is the mean over rows, and each replica has that of its own."""
    (slopes,) = tf.gradients(tf.reduce_mean(tf.square(small.logits)), tf.trainable_variables()[:1])
    return _train(small.loss + tf.reduce_sum(tf.square(slopes)))  # told


def slopes_of_a_mean(small: Small) -> tf.Operation:
    """WGAN-GP with the slopes of the mean: those of each row, divided by the number of rows of the replica."""
    (slopes,) = tf.gradients(tf.reduce_mean(small.logits[:, 0]), [small.x])
    lengths = tf.sqrt(1e-6 + tf.reduce_sum(tf.square(slopes), 1))
    return _train(small.loss + tf.reduce_mean(tf.square(lengths - 1)))  # told


def slopes_of_a_mean_of_a_larger_value(small: Small) -> tf.Operation:
    """The same behind a leaky relu that is written as a maximum, whose gradient selects."""
    larger = tf.maximum(0.2 * small.logits, small.logits)
    (slopes,) = tf.gradients(tf.reduce_mean(larger), [small.hidden])
    return _train(small.loss + tf.reduce_mean(tf.square(slopes)))  # told


def squared_slopes_of_a_mean(small: Small) -> tf.Operation:
    """R1 with the slopes of a mean."""
    (slopes,) = tf.gradients(tf.reduce_mean(tf.square(small.logits)), [small.hidden])
    return _train(small.loss + 10.0 * tf.nn.l2_loss(slopes))  # told


# ---- Scripts that are exact.


def of_weights(small: Small) -> tf.Operation:
    """Writes that no row has a part in: steps, a rate, moving averages of weights."""
    rate = _state("rate")
    average = tf.train.ExponentialMovingAverage(0.9).apply(tf.trainable_variables())
    step = tf.train.get_or_create_global_step()
    return _train(small.loss, average, rate.assign(rate * 0.99), step.assign_add(1))


def mean_of_losses(small: Small) -> tf.Operation:
    weights = tf.add_n([tf.nn.l2_loss(one) for one in tf.trainable_variables()])
    return _train(tf.losses.sparse_softmax_cross_entropy(small.y, small.logits) + 0.01 * weights)


def gradient_penalty(small: Small) -> tf.Operation:
    """WGAN-GP and R1: the slopes of each row."""
    (slopes,) = tf.gradients(tf.reduce_sum(small.logits[:, 0]), [small.x])
    lengths = tf.sqrt(1e-6 + tf.reduce_sum(tf.square(slopes), 1))
    return _train(small.loss + tf.reduce_mean(tf.square(lengths - 1)))


def directions(small: Small) -> tf.Operation:
    """FGSM and VAT: the direction of the slopes of a mean has none of their length."""
    (slopes,) = tf.gradients(tf.reduce_mean(tf.square(small.logits)), [small.hidden])
    near = small.hidden + 0.1 * tf.stop_gradient(tf.sign(slopes) + tf.nn.l2_normalize(slopes, 1, epsilon=1e-30))
    rows = tf.cast(tf.shape(small.x)[0], tf.float32)
    return _train(small.loss + tf.reduce_mean(tf.square(near)) + tf.reduce_mean(tf.square(slopes * rows)))


def divided_by_rows(small: Small) -> tf.Operation:
    rows = tf.cast(tf.shape(small.x)[0], tf.float32)
    return _train(tf.reduce_sum(tf.square(small.logits)) / rows)


def own_words(small: Small) -> tf.Operation:
    """BERT: the words of each row are picked by numbers that count the rows of the batch."""
    words = tf.reshape(small.hidden, [-1, 2])
    places = small.y[:, None] * 0 + 4 * tf.range(tf.shape(small.x)[0])[:, None]
    return _train(tf.reduce_mean(tf.square(tf.gather(words, tf.reshape(places, [-1])))))


def recurrent(small: Small) -> tf.Operation:
    steps = tf.reshape(small.hidden, [-1, 4, 2])
    length = 1 + small.y % 3
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(3), steps, length, dtype=tf.float32)
    last = tf.gather_nd(outputs, tf.stack([tf.range(tf.shape(steps)[0]), length - 1], 1))
    return _train(tf.reduce_mean(tf.square(last - 1)))


def bags_of_words(small: Small) -> tf.Operation:
    words = tf.sparse.from_dense(tf.reshape(small.y, [-1, 1]) + 1)
    table = tf.get_variable("words", [CLASSES + 1, 8])
    bags = tf.nn.embedding_lookup_sparse(table, words, None, combiner="mean")
    return _train(tf.reduce_mean(tf.square(bags - small.hidden)))


def dilated(small: Small) -> tf.Operation:
    """DeepLab: a dilated convolution of TensorFlow 1 puts blocks of the images next to the rows of the batch."""
    images = tf.reshape(small.hidden, [-1, 2, 2, 2])
    blocks = tf.space_to_batch(images, [[0, 0], [0, 0]], block_size=2)
    maps = tf.batch_to_space(tf.tanh(blocks), [[0, 0], [0, 0]], block_size=2)
    return _train(tf.reduce_mean(tf.square(maps - 1)))


Model = Callable[[Small], tf.Operation]
# Told where each replica writes of its own rows.
WRITES: List[Model] = [codebook, centers, memory_bank, baseline, path_length]
TOLD: List[Model] = [
    *WRITES, masked_mean, all_pairs, batch_norm, fused_batch_norm, batch_moments,
    hardest_rows, sorted_rows, picked_rows, different_classes, class_means, root_of_a_mean,
    triplet, nt_xent, barlow_twins, focal, prototypes, path_length_to_own_mean, norm_of_a_gradient,
    slopes_of_a_mean, slopes_of_a_mean_of_a_larger_value, squared_slopes_of_a_mean,
]  # fmt: skip
EXACT: List[Model] = [
    of_weights, mean_of_losses, gradient_penalty, directions, divided_by_rows, own_words, recurrent, bags_of_words,
    dilated,
]  # fmt: skip


def _script(ctx: Context, name: str, state: str = "each") -> None:
    ctx.init(replicate__state=state)
    small = Small()
    train_op = globals()[name](small)
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for step in range(2):
            sess.run(train_op, small.feed(ctx, step))


def _said(oracle: Oracle, topology: Any, name: str, state: str = "each") -> List[str]:
    (said, *_) = [
        [line for line in answer.log.splitlines() if NOT_OF_ONE_DEVICE in line]
        for answer in oracle.plan(topology, _script, name=name, state=state)
    ]
    return said


@pytest.mark.parametrize("model", TOLD, ids=lambda model: model.__name__)
def test_a_step_tells_the_line_that_is_not_that_of_one_device(oracle: Oracle, model: Model) -> None:
    lines, first = inspect.getsourcelines(model)
    told = {first + at for at, line in enumerate(lines) if line.endswith("# told\n")}
    (said,) = _said(oracle, (1, 2), model.__name__, "each" if model in WRITES else "all")
    assert set(map(int, re.findall(r"test_own_rows\.py:(\d+) ", said))) == told, said


@pytest.mark.parametrize("model", EXACT, ids=lambda model: model.__name__)
def test_a_step_that_is_exact_tells_nothing(oracle: Oracle, model: Model) -> None:
    assert _said(oracle, (1, 2), model.__name__) == []


@pytest.mark.parametrize("model", WRITES, ids=lambda model: model.__name__)
def test_a_write_of_all_rows_is_not_told(oracle: Oracle, model: Model) -> None:
    assert _said(oracle, (1, 2), model.__name__, "all") == []


@pytest.mark.parametrize("topology", [(1, 1), (2, 1)], ids=["1x1", "2x1"])
def test_what_one_replica_does_is_not_told(oracle: Oracle, topology: Any) -> None:
    assert len(_said(oracle, topology, "codebook")) == (topology != (1, 1))


def _in_python(small: Small) -> tf.Tensor:
    score = tf.numpy_function(lambda logits: logits.mean(), [small.logits], tf.float32)
    score.set_shape([])
    return score


def _fetched(ctx: Context, names: Sequence[str]) -> None:
    ctx.init()
    small = Small()
    mean = tf.reduce_mean(small.logits)
    known = {"mean": mean, "in_python": _in_python(small), "loss": small.loss}
    known["branch"] = tf.cond(tf.placeholder_with_default(True, []), lambda: 2 * mean, lambda: mean + 1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for name in names:
            sess.run([small.train_op, known[name]], small.feed(ctx))


@pytest.mark.parametrize(
    "names, said", [(["mean", "loss"], 0), (["in_python", "branch", "branch", "in_python"], 2)], ids=["exact", "told"]
)
def test_a_fetched_scalar_of_replica_0_is_told(oracle: Oracle, names: Any, said: int) -> None:
    (answer,) = oracle.plan((1, 2), _fetched, names=names)
    assert answer.log.count("of the rows of replica 0 alone") == said


def _fetched_late(ctx: Context) -> None:
    ctx.init()
    small = Small()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(small.train_op, small.feed(ctx))
        late = {"late": 100.0 * small.loss, "of_weights": tf.add_n(list(map(tf.nn.l2_loss, tf.trainable_variables())))}
        for _ in range(2):
            sess.run([small.train_op, late], small.feed(ctx))


def test_a_scalar_that_is_built_late_is_told(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _fetched_late)
    (line,) = [line for line in answer.log.splitlines() if "of the rows of replica 0 alone" in line]
    assert "gives `mul" in line and "as it was built after the first run" in line


# ---- What is listed.


def _explained(ctx: Context) -> None:
    import contextlib
    import io

    import epl

    ctx.init(replicate__state="each")
    small = Small()
    correct = tf.equal(tf.argmax(small.logits, 1, output_type=tf.int32), small.y)
    tf.summary.scalar("accuracy", tf.reduce_mean(tf.cast(correct, tf.float32)))
    tf.summary.scalar("in_python", _in_python(small))
    tf.summary.scalar("loss", small.loss)
    merged = tf.reduce_mean(small.logits)
    epl.add_to_collection(merged, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    tf.summary.scalar("merged", merged)
    baseline(small)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        epl.explain()
    ctx.record(text=text.getvalue())


def test_an_explanation_lists_lines_ops_and_shown_values(oracle: Oracle) -> None:
    (answer,) = oracle.plan((1, 2), _explained)
    (text,) = answer.results["text"]
    listed = text.split("What is not that of one device on all rows:\n")[1].split("\n\n")[0].splitlines()
    written, shown = listed
    assert "writes `baseline` from the rows of each replica: the copies differ (AssignAddVariableOp" in written
    assert "shows `PyFunc" in shown and shown.endswith("of the rows of replica 0 alone (in_python)")
