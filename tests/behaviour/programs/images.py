"""Images and sound: object detection, DeepLab, StyleGAN, spectral norm, WaveNet, Tacotron 2, metric learning."""

import threading
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.behaviour.programs.base import ROWS, dense, feeds, fresh, integers, numbers, program, train, weights
from tests.parity.context import STEPS, Context


def _conv(x: tf.Tensor, channels: int, name: str, rate: int = 1, stride: int = 1) -> tf.Tensor:
    return tf.layers.conv2d(
        x, channels, 3, stride, "same", dilation_rate=rate, activation=tf.nn.relu, kernel_initializer=fresh(),
        kernel_regularizer=tf.keras.regularizers.l2(1e-3), name=name,
    )  # fmt: skip


def _overlap(boxes: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    low, high = tf.maximum(boxes[:, None, :2], others[None, :, :2]), tf.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = tf.reduce_prod(tf.maximum(high - low, 0.0), -1)
    areas = [tf.reduce_prod(one[:, 2:] - one[:, :2], -1) for one in (boxes, others)]
    return both / (areas[0][:, None] + areas[1][None] - both + 1e-8)


@program
def object_detection(ctx: Context) -> None:
    """Anchors are matched image by image; hard negatives of each image; non-maximum suppression for what is shown."""
    images = tf.placeholder(tf.float32, [None, 8, 8, 3], "image")
    truth = tf.placeholder(tf.float32, [None, 2, 4], "groundtruth_boxes")
    corners = np.stack(np.meshgrid([0, 0.5], [0, 0.5]), -1).reshape(-1, 2)
    anchors = tf.constant(np.concatenate([corners, corners + 0.5], 1), tf.float32)
    maps = _conv(_conv(images, 4, "FeatureExtractor/conv1", stride=2), 6, "FeatureExtractor/conv2", stride=2)
    codes = tf.reshape(_conv(maps, 4, "BoxPredictor/boxes"), [-1, 4, 4])
    scores = tf.reshape(_conv(maps, 1, "BoxPredictor/classes"), [-1, 4]) - 0.3

    def match(boxes: tf.Tensor) -> Any:
        overlap = _overlap(anchors, boxes)
        best = tf.argmax(overlap, 1)
        return tf.cast(tf.reduce_max(overlap, 1) > 0.2, tf.float32), tf.gather(boxes, best) - anchors

    positive, offsets = tf.map_fn(match, truth, (tf.float32, tf.float32), parallel_iterations=4)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=scores)

    def mined(inputs: Any) -> tf.Tensor:
        loss, is_positive = inputs
        kept = tf.image.non_max_suppression(anchors, loss * (1 - is_positive), 2, 0.9)
        return tf.reduce_sum(tf.gather(loss, kept)) + tf.reduce_sum(loss * is_positive)

    localization = tf.reduce_sum(tf.abs(codes - offsets), -1) * positive
    of_image = tf.map_fn(mined, (losses, positive), tf.float32) + tf.reduce_sum(localization, 1)
    tf.losses.add_loss(tf.reduce_mean(of_image))
    loss = tf.losses.get_total_loss()
    step = tf.train.get_or_create_global_step()
    rate = tf.train.piecewise_constant(step, [2, 4], [0.05, 0.02, 0.01])
    update = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, step)
    average = tf.train.ExponentialMovingAverage(0.9, step)
    with tf.control_dependencies([update]):
        train_op = average.apply(tf.trainable_variables())
    shown = tf.map_fn(lambda one: tf.gather(anchors, tf.image.non_max_suppression(anchors, one, 3, 0.5))[:1], scores)
    corner = np.random.RandomState(4).uniform(0, 0.5, [ROWS, 2, 2])
    boxes = np.concatenate([corner, corner + 0.4], -1).astype(np.float32)
    path, averages = ctx.directory + "/model", tf.train.Saver(average.variables_to_restore())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number, feed in enumerate(feeds(ctx, {images: numbers(ROWS, 8, 8, 3), truth: boxes})):
            if number == STEPS - 2:
                averages.save(sess, path)
            if number == STEPS - 1:
                averages.restore(sess, path)
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
            ctx.record(shown=sess.run(shown, {images: feed[images][:3]}).shape)
        ctx.record_variables(sess)


@program
def deeplab(ctx: Context) -> None:
    """Atrous convolutions, image pooling, resized logits, an auxiliary loss, slow start, rates of layers."""
    images = tf.placeholder(tf.float32, [None, 8, 8, 3], "images")
    labels = tf.placeholder(tf.int32, [None, 8, 8], "labels")
    maps = _conv(images, 4, "xception/entry", stride=2)
    maps = tf.layers.batch_normalization(maps, training=False, name="xception/bn")
    pooled = tf.image.resize_bilinear(tf.reduce_mean(maps, [1, 2], keepdims=True), [4, 4], align_corners=True)
    branches = [pooled] + [_conv(maps, 3, "aspp%d" % rate, rate) for rate in (1, 2)]
    branches.append(tf.nn.atrous_conv2d(maps, weights("aspp/atrous", 3, 3, 4, 2), 3, "SAME"))
    low = _conv(tf.concat(branches, 3), 4, "decoder")
    for scale, logits in (("main", _conv(low, 3, "logits")), ("aux", _conv(maps, 3, "aux_logits"))):
        logits = tf.image.resize_bilinear(logits, tf.shape(labels)[1:3], align_corners=True)
        flat = tf.one_hot(tf.reshape(labels, [-1]), 3)
        losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=flat, logits=tf.reshape(logits, [-1, 3]))
        valid = 1.0 - 0.5 * tf.cast(tf.equal(tf.reshape(labels, [-1]), 2), tf.float32)
        tf.losses.add_loss(tf.reduce_mean(losses * valid) * (1.0 if scale == "main" else 0.4))
    loss = tf.losses.get_total_loss()
    step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(0.05, step, 20, power=0.9)
    rate = tf.where(step < 2, tf.constant(0.01), rate)
    optimizer = tf.train.MomentumOptimizer(rate, 0.9)
    pairs = optimizer.compute_gradients(loss)
    pairs = [(10.0 * grad if "logits" in var.op.name else grad, var) for grad, var in pairs]
    update = optimizer.apply_gradients(pairs, step)
    with tf.control_dependencies([tf.group(update, *tf.get_collection(tf.GraphKeys.UPDATE_OPS))]):
        train_op = tf.identity(loss, "train_op")
    train(ctx, loss, train_op, {images: numbers(ROWS, 8, 8, 3), labels: integers(3, ROWS, 8, 8)})


@program
def stylegan(ctx: Context) -> None:
    """Slopes of both models in every second step, a moving mean of path lengths, averages of weights, spectral norm.

    All is in float64: Adam divides by small second moments.
    """
    latents = tf.placeholder(tf.float64, [None, 4], "latents")
    reals = tf.placeholder(tf.float64, [None, 5], "reals")
    noise = tf.placeholder(tf.float64, [None, 5], "noise")
    vector = tf.get_variable("D/u", initializer=np.ones([1, 6]), trainable=False, use_resource=True)
    length = tf.get_variable("pl_mean", initializer=np.float64(0), trainable=False, use_resource=True)
    iterated = []

    def discriminate(x: tf.Tensor) -> tf.Tensor:
        with tf.variable_scope("D", reuse=tf.AUTO_REUSE):
            kernel = weights("kernel", 5, 6, dtype=tf.float64)
            left = tf.stop_gradient(tf.nn.l2_normalize(tf.matmul(vector, kernel, transpose_b=True)))
            right = tf.stop_gradient(tf.nn.l2_normalize(tf.matmul(left, kernel)))
            iterated.append(right)
            norm = tf.reduce_sum(tf.matmul(left, kernel) * right)
            return dense(tf.nn.leaky_relu(tf.matmul(x, kernel / norm)), 1, "scores")

    with tf.variable_scope("G"):
        mapped = dense(latents, 6, "map", tf.nn.leaky_relu)
        fakes = dense(mapped, 5, "synthesis", tf.tanh)
    of_reals, of_fakes = discriminate(reals), discriminate(fakes)
    losses = {
        "D": tf.reduce_mean(tf.nn.softplus(of_fakes)) + tf.reduce_mean(tf.nn.softplus(-of_reals)),
        "G": tf.reduce_mean(tf.nn.softplus(-of_fakes)),
    }
    (slopes,) = tf.gradients(tf.reduce_sum(of_reals), [reals])
    (moves,) = tf.gradients(tf.reduce_sum(fakes * noise), [mapped])
    lengths = tf.sqrt(tf.reduce_sum(tf.square(moves), 1))
    before, shown = length.read_value(), tf.reduce_mean(lengths)
    regularizers = {
        "D": 5 * tf.reduce_mean(tf.reduce_sum(tf.square(slopes), 1)),
        "G": tf.reduce_mean(tf.square(lengths - before)),
    }
    steps = {}
    for scope in ("D", "G"):
        optimizer = tf.train.AdamOptimizer(0.01, 0.0, 0.99, 1e-3, name="Adam_" + scope)
        variables = tf.trainable_variables(scope + "/")
        steps[scope] = [optimizer.minimize(one[scope], var_list=variables) for one in (losses, regularizers)]
    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([steps["D"][0]]):
        iterate = vector.assign(iterated[0])
    with tf.control_dependencies([steps["G"][0]]):
        follow = average.apply(tf.trainable_variables("G/"))
    with tf.control_dependencies([steps["G"][1]]):
        lengthen = length.assign(before + 0.1 * (shown - before))
    rows = {latents: numbers(ROWS, 4), reals: numbers(ROWS, 5, seed=1), noise: numbers(ROWS, 5, seed=2)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step, feed in enumerate(feeds(ctx, rows)):
            ctx.record(loss=sess.run([losses["D"], iterate], feed)[0])
            if step % 2 == 0:
                ctx.record(loss=sess.run([regularizers["D"], steps["D"][1]], feed)[0])
            ctx.record(loss=sess.run([losses["G"], follow], feed)[0])
            if step % 2 == 0:
                shown_loss, shown_length, _ = sess.run([regularizers["G"], shown, lengthen], feed)
                ctx.record(loss=shown_loss)
                ctx.record(loss=shown_length)
        ctx.record_variables(sess)


@program
def cyclegan(ctx: Context) -> None:
    """Two models of each kind in turn, a history of fakes that the script keeps and feeds, a rate that is fed."""
    reals = [tf.placeholder(tf.float32, [None, 4], name) for name in ("real_A", "real_B")]
    history = [tf.placeholder(tf.float32, [None, 4], name) for name in ("fake_A_sample", "fake_B_sample")]
    rate = tf.placeholder(tf.float32, None, "learning_rate")

    def model(x: tf.Tensor, units: int, name: str) -> tf.Tensor:
        with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
            return dense(dense(x, 5, "hidden", tf.nn.leaky_relu), units, "out")

    def near(x: tf.Tensor, value: float) -> tf.Tensor:
        return tf.reduce_mean(tf.square(x - value))

    fakes = [model(reals[1], 4, "generator_B2A"), model(reals[0], 4, "generator_A2B")]
    if ctx.planned:
        import epl

        for fake in fakes:  # the history has those of all devices
            epl.add_to_collection(fake, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    again = [model(fakes[1], 4, "generator_B2A"), model(fakes[0], 4, "generator_A2B")]
    generator_loss = 10.0 * tf.add_n([tf.reduce_mean(tf.abs(x - y)) for x, y in zip(reals, again)])
    discriminator_loss = 0.0
    for real, fake, old, name in zip(reals, fakes, history, "AB"):
        generator_loss += near(model(fake, 1, "discriminator_" + name), 1.0)
        discriminator_loss += near(model(real, 1, "discriminator_" + name), 1.0)
        discriminator_loss += near(model(old, 1, "discriminator_" + name), 0.0)
    steps = []
    for loss, part in ((generator_loss, "generator"), (discriminator_loss, "discriminator")):
        variables = [one for one in tf.trainable_variables() if part in one.name]
        steps.append(tf.train.AdamOptimizer(rate, 0.5, epsilon=1e-4).minimize(loss, var_list=variables))
    rows = dict(zip(reals, (numbers(ROWS, 4), numbers(ROWS, 4, seed=1))))
    kept: Any = None
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number, feed in enumerate(feeds(ctx, rows)):
            feed[rate] = 0.01 * (1 - max(0, number - 3) / 3)
            *found, value, _ = sess.run(fakes + [generator_loss, steps[0]], feed)
            ctx.record(loss=value)
            if kept is None:
                kept = [one.copy() for one in found]
            for old, one in zip(kept, found):
                old[number % 2 :: 2] = one[number % 2 :: 2]
            feed.update(zip(history, kept))
            ctx.record(loss=sess.run([discriminator_loss, steps[1]], feed)[0])
        ctx.record_variables(sess)


def _wave(x: tf.Tensor, dilation: int, name: str) -> tf.Tensor:
    """A causal convolution of two steps, of every `dilation`-th sample: samples are folded into the batch."""
    filters = weights(name, 2, int(x.shape[-1]), 4)
    size, padding = tf.shape(x), dilation - tf.shape(x)[1] % dilation
    padded = tf.pad(x, [[0, 0], [dilation, 0], [0, 0]])
    padded = tf.pad(padded, [[0, 0], [0, tf.where(padding < dilation, padding, 0)], [0, 0]])
    folded = tf.transpose(tf.reshape(padded, [-1, dilation, x.shape[-1]]), [1, 0, 2])
    folded = tf.reshape(folded, [size[0] * dilation, -1, x.shape[-1]])
    out = tf.nn.conv1d(tf.pad(folded, [[0, 0], [0, 1], [0, 0]]), filters, 1, "VALID")
    out = tf.transpose(tf.reshape(out, [dilation, -1, 4]), [1, 0, 2])
    out = tf.reshape(out, [size[0], -1, 4])
    return out[:, : size[1]]


@program
def wavenet(ctx: Context) -> None:
    """A queue that a thread of the script fills; dilated convolutions; averages of weights are saved."""
    sample = tf.placeholder(tf.float32, [None, 1])
    queue = tf.PaddingFIFOQueue(32, [tf.float32], [[None, 1]])
    enqueue = queue.enqueue([sample])
    audio = queue.dequeue_many(ctx.batch)
    levels = 8
    squeezed = tf.sign(audio) * tf.log1p(7.0 * tf.abs(audio)) / tf.log(8.0)
    classes = tf.clip_by_value(tf.cast((squeezed + 1) / 2 * 7 + 0.5, tf.int32), 0, 7)[:, :, 0]
    x = tf.one_hot(classes, levels)
    skips = []
    for layer, dilation in enumerate((1, 2, 4)):
        gated = tf.tanh(_wave(x, dilation, "filter%d" % layer)) * tf.sigmoid(_wave(x, dilation, "gate%d" % layer))
        skips.append(dense(gated, levels, "skip%d" % layer))
        x = (x + dense(gated, levels, "dense%d" % layer)) if layer else dense(gated, levels, "dense%d" % layer)
    logits = tf.reshape(tf.nn.relu(tf.add_n(skips))[:, :-1], [-1, levels])
    labels = tf.reshape(classes[:, 1:], [-1])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    loss += 1e-3 * tf.add_n([tf.nn.l2_loss(var) for var in tf.trainable_variables() if "bias" not in var.name])
    step = tf.train.get_or_create_global_step()
    update = tf.train.AdamOptimizer(0.01, epsilon=1e-4).minimize(loss, step)
    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([update]):
        train_op = average.apply(tf.trainable_variables())
    rows = np.clip(numbers(ROWS, 9, 1), -1, 1)
    mine = np.concatenate([ctx.step_rows(rows, one) for one in range(STEPS)])
    path, averages = ctx.directory + "/ema", tf.train.Saver(average.variables_to_restore())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        coordinator = tf.train.Coordinator()

        def fill() -> None:
            for row in mine:
                if coordinator.should_stop():
                    return
                sess.run(enqueue, {sample: row})

        reader = threading.Thread(target=fill, daemon=True)
        reader.start()
        for number in range(STEPS):
            if number == STEPS - 2:
                averages.save(sess, path)
            if number == STEPS - 1:
                averages.restore(sess, path)
            ctx.record(loss=sess.run([loss, train_op])[0])
        coordinator.request_stop()
        coordinator.join([reader])
        ctx.record_variables(sess)


@program
def tacotron(ctx: Context) -> None:
    """A decoder with attention by tf.while_loop: its own output or the target, by a ratio of the step; stop tokens."""
    text = tf.placeholder(tf.int32, [None, 4], "inputs")
    target = tf.placeholder(tf.float32, [None, 5, 3], "mel_targets")
    memory = tf.nn.embedding_lookup(weights("inputs_embedding", 9, 6), text)
    step = tf.train.get_or_create_global_step()
    ratio = tf.train.cosine_decay(1.0, step, 10, alpha=0.2)
    keys = dense(memory, 6, "memory_layer")
    cell = tf.nn.rnn_cell.LSTMCell(6, initializer=fresh(), name="decoder_LSTM")
    locations = weights("location", 3, 1, 6)
    batch = tf.shape(text)[0]

    def attend(output: tf.Tensor, before: tf.Tensor) -> Any:
        query = tf.layers.dense(output, 6, kernel_initializer=fresh(), name="query_layer", reuse=tf.AUTO_REUSE)
        placed = tf.nn.conv1d(before[:, :, None], locations, 1, "SAME")
        energy = tf.reduce_sum(tf.tanh(keys + query[:, None] + placed), -1)
        chances = tf.nn.softmax(energy)
        return chances, tf.reduce_sum(chances[:, :, None] * memory, 1)

    def turn(time: tf.Tensor, frame: tf.Tensor, seen: tf.Tensor, chances: tf.Tensor, held: Any, found: Any) -> Any:
        output, held = cell(tf.concat([frame, seen], 1), held)
        now, seen = attend(output, chances)
        mel = tf.layers.dense(
            tf.concat([output, seen], 1), 4, kernel_initializer=fresh(), name="projection", reuse=tf.AUTO_REUSE
        )
        following = ratio * target[:, time] + (1 - ratio) * mel[:, :3]
        return time + 1, following, seen, chances + now, held, found.write(time, mel)

    found = tf.TensorArray(tf.float32, 5)
    start = (tf.constant(0), tf.zeros([batch, 3]), tf.zeros([batch, 6]), tf.zeros([batch, 4]))
    held = cell.zero_state(batch, tf.float32)
    results = tf.while_loop(
        lambda time, *_: time < 5, turn, start + (held, found), parallel_iterations=1, swap_memory=True
    )
    outputs = tf.transpose(results[-1].stack(), [1, 0, 2])
    ends = tf.one_hot(4 * tf.ones([batch], tf.int32), 5)
    loss = tf.losses.mean_squared_error(target, outputs[:, :, :3])
    loss += tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=ends, logits=outputs[:, :, 3]))
    loss += 1e-3 * tf.add_n([tf.nn.l2_loss(var) for var in tf.trainable_variables() if "bias" not in var.name])
    optimizer = tf.train.AdamOptimizer(0.01, epsilon=1e-4)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.apply_gradients(zip(clipped, variables), step)
    train(ctx, loss, train_op, {text: integers(9, ROWS, 4), target: numbers(ROWS, 5, 3)})


@program
def contrib_tacotron(ctx: Context) -> None:
    """The same with AttentionWrapper, dynamic_decode and a helper of the script."""
    import tensorflow as old

    seq2seq = old.contrib.seq2seq
    text = tf.placeholder(tf.int32, [None, 4], "inputs")
    target = tf.placeholder(tf.float32, [None, 5, 3], "mel_targets")
    batch = tf.shape(text)[0]

    class Helper(seq2seq.Helper):
        """Takes the targets, and ends after the last one."""

        batch_size = property(lambda self: batch)
        sample_ids_shape = property(lambda self: tf.TensorShape([]))
        sample_ids_dtype = property(lambda self: tf.int32)

        def initialize(self, name: Any = None) -> Any:
            return tf.tile([False], [batch]), tf.zeros([batch, 3])

        def sample(self, time: tf.Tensor, outputs: tf.Tensor, state: Any, name: Any = None) -> tf.Tensor:
            return tf.zeros([batch], tf.int32)

        def next_inputs(
            self, time: tf.Tensor, outputs: tf.Tensor, state: Any, sample_ids: tf.Tensor, name: Any = None
        ) -> Any:
            following = tf.cond(time % 2 > 0, lambda: outputs[:, :3], lambda: target[:, time])
            return time + 1 >= tf.tile([5], [batch]), following, state

    memory = tf.nn.embedding_lookup(weights("inputs_embedding", 9, 6), text)
    with tf.variable_scope("decoder", initializer=fresh()):
        attention = seq2seq.BahdanauAttention(6, memory)
        cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.LSTMCell(6), attention, alignment_history=True)
        cell = old.contrib.rnn.OutputProjectionWrapper(cell, 4)
        decoder = seq2seq.BasicDecoder(cell, Helper(), cell.zero_state(batch, tf.float32))
        (outputs, _), _, _ = seq2seq.dynamic_decode(decoder, impute_finished=True, maximum_iterations=7)
    loss = tf.reduce_mean(tf.square(outputs[:, :, :3] - target))
    optimizer = tf.train.AdamOptimizer(0.01, epsilon=1e-4)
    train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
    train(ctx, loss, train_op, {text: integers(9, ROWS, 4), target: numbers(ROWS, 5, 3)})
