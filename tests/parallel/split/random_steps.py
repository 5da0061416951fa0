"""Steps of which random graphs are made, so that every kind of rule meets every other.

Each takes a tensor [batch, m, n], a number that is used in no other step, and a variant; and gives a tensor like it.
The ops that most models have come first.
"""

import tensorflow.compat.v1 as tf

from tests.parallel.split.models import FLOAT, one_hot, weights

VARIANTS = 48
FUNCTIONS = [tf.nn.relu, tf.tanh, tf.square, tf.nn.softmax, tf.nn.log_softmax, tf.negative, tf.abs, tf.nn.softplus]
FUNCTIONS += [tf.nn.elu, tf.nn.leaky_relu, tf.sigmoid, tf.exp, tf.expm1, tf.sin, tf.erf, tf.stop_gradient, tf.floor]
FUNCTIONS += [tf.ones_like, lambda x: tf.log1p(x * x), lambda x: tf.sqrt(1 + x * x), lambda x: tf.pow(1 + x * x, 0.3)]
REDUCTIONS = [tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod]
PAIRS = [tf.add, tf.subtract, tf.multiply, tf.maximum, tf.minimum, tf.squared_difference, tf.math.divide_no_nan]
COMPARISONS = [tf.less, tf.greater_equal, tf.not_equal]


def _size(x, axis):
    return x.shape[axis].value


def _take(variant, *lists):
    """An element of each list."""
    taken = []
    for one in lists:
        taken.append(one[variant % len(one)])
        variant //= len(one)
    return taken[0] if len(taken) == 1 else taken


def _apart(x, number):
    """The tensor, no two elements of which are equal: what sorts them is not at the mercy of rounding."""
    return x + weights("apart%d" % number, _size(x, 1), _size(x, 2))


def _best(x, number, axis=-1):
    """The positions of the largest elements along an axis."""
    return tf.argmax(_apart(x, number), axis, output_type=tf.int32)


# ---- Products with weights, functions, reductions, shapes.


def dense(x, number, variant):
    size, width = 3 + variant % 4, _size(x, 2)
    flat = tf.matmul(tf.reshape(x, [-1, width]), weights("w%d" % number, width, size))
    return tf.reshape(flat, [-1, _size(x, 1), size])


def biased(x, number, variant):
    bias = weights("bias%d" % number, _size(x, 2 - variant % 2))
    if variant % 2 == 0:
        return tf.nn.bias_add(x, bias)
    return tf.nn.bias_add(x[..., None], bias, "NCHW")[..., 0]


def affine(x, number, variant):
    return x * weights("s%d" % number, _size(x, 2)) + weights("b%d" % number, _size(x, 1), 1)


def function(x, number, variant):
    return _take(variant, FUNCTIONS)(x)


def paired(x, number, variant):
    other = tf.reduce_mean(x, 1, keepdims=True) if variant // len(PAIRS) % 2 else weights("o%d" % number, _size(x, 2))
    return _take(variant, PAIRS)(x, other)


def transposed(x, number, variant):
    return tf.transpose(x, [0, 2, 1])


def reduced(x, number, variant):
    reduction, axes = _take(variant, REDUCTIONS, [1, 2, [1, 2]])
    return x - reduction(x, axes, keepdims=True)


def over_batch(x, number, variant):
    return x + _take(variant, REDUCTIONS[:4])(x, 0, keepdims=True)


def moments(x, number, variant):
    mean, variance = tf.nn.moments(x, _take(variant, [[2], [1], [0, 1]]), keep_dims=True)
    return (x - mean) * tf.rsqrt(variance + 0.1)


def summed_otherwise(x, number, variant):
    """By ops that most models have others for."""
    if variant % 3 == 0:
        return tf.accumulate_n([x, tf.tanh(x)], shape=x.shape)
    if variant % 3 == 1:
        return tf.ensure_shape(x, [None, None, _size(x, 2)]) + tf.bitcast(tf.bitcast(tf.sin(x), tf.int64), FLOAT)
    return tf.raw_ops.Div(x=x, y=2 + tf.cos(x)) + tf.cast(tf.cast(10 * x, tf.int32), FLOAT)


def joined(x, number, variant):
    other, axis = _take(variant, [x, tf.sin(x)], [1, 2])
    return tf.concat([x, other], axis)


def halved(x, number, variant):
    axis = 1 + variant % 2
    return x if _size(x, axis) % 2 else tf.multiply(*tf.split(x, 2, axis))


def stacked(x, number, variant):
    both = tf.stack([x, tf.cos(x)], _take(variant, [0, 1, 3]))
    first, second = tf.unstack(both, 2, _take(variant, [0, 1, 3]))
    return first + tf.squeeze(tf.expand_dims(second, 2), 2)


def attended(x, number, variant):
    return tf.matmul(tf.matmul(x, x, transpose_b=True), x)


def reshaped(x, number, variant):
    m, n = _size(x, 1), _size(x, 2)
    shapes = [[-1, n, m], [-1, 1, m * n], [-1, m * n, 1], tf.stack([tf.shape(x)[0], n, m])]
    return tf.reshape(tf.reshape(x, _take(variant, shapes)), [-1, n, m])


def contracted(x, number, variant):
    m, n = _size(x, 1), _size(x, 2)
    if variant % 3 == 0:
        return tf.einsum("bmn,mk->bkn", x, weights("e%d" % number, m, 4))
    if variant % 3 == 1:
        return tf.einsum("bmn,mnk->bmk", x, weights("f%d" % number, m, n, 3))
    return tf.einsum("bmn,bkn->bmk", x, tf.tanh(x))


# ---- What picks, compares and sorts.


def picked(x, number, variant):
    best = one_hot(_best(x, number), _size(x, 2))
    return tf.where(best > 0, x, x * 0.5) + tf.cumsum(best, 1 + variant % 2)


def compared(x, number, variant):
    comparison, condition = _take(variant, COMPARISONS, [tf.where, tf.where_v2])
    return condition(comparison(x, weights("t%d" % number, _size(x, 2))), tf.square(x), x)


def rows_selected(x, number, variant):
    """By a condition for each row of the batch, or one that is broadcast."""
    is_true, axes = _take(variant, [tf.reduce_all, tf.reduce_any], [[1, 2], 1, 2])
    condition = is_true(x > -0.2, axes, keepdims=axes != [1, 2])
    return tf.where(condition, x, 2.0 * x) if axes == [1, 2] else tf.where_v2(condition, x, 2.0 * x)


def true_anywhere(x, number, variant):
    """All and any over the batch or everything."""
    is_true, axes = _take(variant, [tf.reduce_all, tf.reduce_any], [0, None])
    return x * (1 + tf.cast(is_true(x < 0.3, axes, keepdims=True), FLOAT))


def best_of(x, number, variant):
    count = 1 + variant % _size(x, 2)
    values, positions = tf.nn.top_k(_apart(x, number), count)
    return values * (1 + 0.1 * tf.cast(positions, FLOAT))


def summed_up(x, number, variant):
    running, exclusive, reverse, axis = _take(variant, [tf.cumsum, tf.cumprod], [False, True], [False, True], [1, 2, 0])
    return running(x, axis, exclusive, reverse)


def classified(x, number, variant):
    """Losses of rows; their labels are what another variable says."""
    m, n = _size(x, 1), _size(x, 2)
    logits = tf.reshape(x, [-1, n])
    labels = tf.reshape(_best(x, number), [-1])
    if variant % 3 == 0:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    elif variant % 3 == 1:
        losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=one_hot(labels, n), logits=logits)
    else:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=one_hot(labels, n), logits=logits)[:, 0]
    right = tf.nn.in_top_k(tf.cast(logits, tf.float32), labels, 1 + variant % 2)
    return x + tf.reshape(losses, [-1, m, 1]) * tf.reshape(1 + tf.cast(right, FLOAT), [-1, m, 1])


# ---- Lookups.


def looked_up(x, number, variant):
    """Rows of a table; the ids are cut or not, and so is the table."""
    ids = _best(x, number, 1 + variant % 2)
    table = weights("table%d" % number, max(_size(x, 1), _size(x, 2)) + 3, 5)
    return tf.tanh(tf.nn.embedding_lookup(table, ids))


def gathered(x, number, variant):
    """Along a dimension by constants, and by what is another place for each row."""
    m, n = _size(x, 1), _size(x, 2)
    if variant % 3 == 0:
        return tf.gather(x, [m - 1, 0, m // 2], axis=1)
    if variant % 3 == 1:
        return tf.gather(x, [0, n - 1, n - 1, n // 2], axis=2)
    return tf.gather(x, tf.stack([_best(x, number, 1)] * 2, 1)[:, :, 0], axis=1, batch_dims=1)


def gathered_nd(x, number, variant):
    table = weights("nd%d" % number, _size(x, 2), 3, 4)
    ids = _best(x, number)[..., None]
    if variant % 2:
        return tf.gather_nd(table, ids)[:, :, 1]
    return tf.gather_nd(table, tf.concat([ids, ids * 0 + 2], -1))


def scattered(x, number, variant):
    """Sums by index over positions."""
    m, n = _size(x, 1), _size(x, 2)
    places = [(3 * index + variant) % 4 for index in range(m)]
    by_place = tf.transpose(x, [1, 0, 2])
    if variant % 3 == 0:
        shape = tf.stack([4, tf.shape(x)[0], n])
        by_place = tf.scatter_nd([[place] for place in places], by_place, shape)
    elif variant % 3 == 1:
        by_place = tf.math.unsorted_segment_sum(by_place, places, 4)
    else:
        by_place = tf.math.segment_sum(by_place, sorted(places))
    return tf.reshape(tf.transpose(by_place, [1, 0, 2]), [-1, max(places) + 1 if variant % 3 == 2 else 4, n])


def segments(x, number, variant):
    of_segment = [tf.math.segment_mean, tf.math.segment_max, tf.math.segment_min][variant % 3]
    m, n = _size(x, 1), _size(x, 2)
    found = of_segment(tf.transpose(x, [2, 0, 1]), [index // 2 for index in range(n)])
    return tf.reshape(tf.transpose(found, [1, 2, 0]), [-1, m, (n + 1) // 2])


# ---- Shapes.


def padded(x, number, variant):
    before, after, axis, mode = _take(variant, [0, 1], [1, 0], [1, 2], ["CONSTANT", "REFLECT", "SYMMETRIC"])
    if _size(x, axis) < 2:
        return x
    widths = [[0, 0], [0, 0], [0, 0]]
    widths[axis] = [before, after]
    return tf.pad(x, widths, mode, constant_values=_take(variant // 24, [0, 0.5]) if mode == "CONSTANT" else 0)


def tiled(x, number, variant):
    multiples, reduction = _take(variant, [[1, 2, 1], [1, 1, 2], [1, 2, 2]], [None, 1, 2])
    if reduction is None:
        return tf.tile(x, multiples)
    multiples = [1, 1, 1]
    multiples[reduction] = _size(x, reduction)
    return x * tf.tile(tf.reduce_max(x, reduction, keepdims=True), multiples)


def spread(x, number, variant):
    """Broadcasting by an op of its own, and constants of the shape of others."""
    shape = tf.shape(x)
    if variant % 3 == 0:
        return x + tf.broadcast_to(weights("spread%d" % number, _size(x, 2)), shape)
    if variant % 3 == 1:
        return x + tf.fill(shape, tf.reduce_mean(x))
    return x * tf.cast(shape[1] + tf.size(x) // shape[0], FLOAT)


def sliced(x, number, variant):
    m, n = _size(x, 1), _size(x, 2)
    kept = [
        lambda: x[:, : max(m - 1, 1)],
        lambda: x[:, :, n // 2 :],
        lambda: x[:, ::-1] if m > 1 else x,
        lambda: x[:, None, 0, :] + x,
        lambda: x[..., ::2],
        lambda: tf.slice(x, [0, 0, n // 3], [-1, m, n - n // 3]),
    ]
    return _take(variant, kept)()


def turned(x, number, variant):
    if variant % 3 == 0:
        return tf.reverse(x, [1 + variant // 3 % 2])
    if variant % 3 == 1:
        return tf.roll(x, 1 + variant % 2, 1 + variant // 3 % 2)
    lengths = _best(x, number, 1)[:, 0] % _size(x, 2) + 1
    return tf.reverse_sequence(x, lengths, seq_axis=2, batch_axis=0)


# ---- Images and matrices.


def convolved(x, number, variant):
    n = _size(x, 2)
    padding, kind = _take(variant, ["SAME", "SAME", "VALID"], ["full", "depthwise", "transposed", "channels"])
    padding = "SAME" if _size(x, 1) < 2 or n < 2 else padding
    image = tf.stack([x, tf.sin(x), x * x, tf.ones_like(x)], -1)
    kernel = weights("kernel%d" % number, 2, 2, 4, 4)
    if kind == "depthwise":
        image = tf.nn.depthwise_conv2d_native(image, kernel[..., :2], [1, 1, 1, 1], padding)
    elif kind == "transposed":
        size = tf.stack([tf.shape(x)[0], _size(x, 1), n, 4])
        image = tf.nn.conv2d_transpose(image, kernel, size, [1, 1, 1, 1], "SAME")
    else:
        image = tf.nn.conv2d(image, kernel, [1, 1, 1, 1], padding)
    if kind == "channels":
        return tf.reshape(image, [-1, _size(image, 1), _size(image, 2) * 4])[:, :, :9]
    return tf.reduce_sum(image, -1)


def pooled(x, number, variant):
    pool, kind = _take(variant, [tf.nn.max_pool2d, tf.nn.avg_pool2d], [[2, 1], [1, 2], [2, 2]])
    image = tf.stack([_apart(x, number), tf.sin(x)], -1)
    return tf.reduce_sum(pool(image, [1] + kind + [1], [1, 1, 1, 1], "SAME"), -1)


def depth_moved(x, number, variant):
    image = tf.stack([x, tf.sin(x), x * x, tf.ones_like(x)], -1)
    if variant % 3 == 0:
        return tf.depth_to_space(image, 2)[..., 0]
    if variant % 3 == 1:
        return tf.reduce_sum(tf.image.resize_nearest_neighbor(image, [_size(x, 1) + 1, _size(x, 2)]), -1)
    patches = tf.extract_image_patches(image, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME")
    return tf.reduce_sum(patches[..., 3:9], -1)


def solved(x, number, variant):
    """Ops on square matrices."""
    m = _size(x, 1)
    square = tf.matmul(x, x, transpose_b=True) + tf.eye(m, dtype=FLOAT)
    made = [
        lambda: tf.linalg.inv(square),
        lambda: tf.linalg.solve(square, x),
        lambda: tf.linalg.band_part(square, 1, 0) + tf.linalg.diag(tf.linalg.diag_part(square)),
        lambda: tf.linalg.set_diag(square, x[:, :, 0]),
        lambda: tf.linalg.cholesky(square),
    ]
    return _take(variant, made)()


COMMON = [dense, affine, function, transposed, reduced, over_batch, joined, halved, attended, reshaped, contracted]
COMMON += [picked]
RARE = [
    biased,
    paired,
    summed_otherwise,
    moments,
    stacked,
    compared,
    rows_selected,
    true_anywhere,
    best_of,
    summed_up,
    classified,
]
RARE += [looked_up, gathered, gathered_nd, scattered, segments, padded, tiled, spread, sliced, turned, convolved]
RARE += [pooled, depth_moved, solved]
