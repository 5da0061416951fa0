"""Sequences: CRF taggers, tensor2tensor, attention models that translate, and word2vec."""

from typing import Any, Dict, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from tests.behaviour.programs.base import ROWS, dense, feeds, fresh, integers, program, weights
from tests.parity.context import STEPS, Context

WORDS, LENGTH, WIDTH, TAGS = 13, 5, 6, 4


# ---- Taggers.


def _tagger(ctx: Context, chances: Any, best: Any) -> None:
    """A BiLSTM with a chain of tags; the best tags are fetched between the steps.

    Args:
        ctx: of the run.
        chances: gives the logarithm of the chance of each sentence's tags, and the transitions.
        best: gives the best tags, of scores, transitions and lengths.
    """
    words = tf.placeholder(tf.int32, [None, LENGTH], "word_ids")
    tags = tf.placeholder(tf.int32, [None, LENGTH], "labels")
    lengths = tf.placeholder(tf.int32, [None], "sequence_lengths")
    keep = tf.placeholder_with_default(1.0, [], "dropout")
    x = tf.nn.dropout(tf.nn.embedding_lookup(weights("words/_word_embeddings", WORDS, WIDTH), words), keep)
    with tf.variable_scope("bi-lstm"):
        cells = [tf.nn.rnn_cell.LSTMCell(3, initializer=fresh()) for _ in range(2)]
        outputs, _ = tf.nn.bidirectional_dynamic_rnn(*cells, x, sequence_length=lengths, dtype=tf.float32)
    scores = dense(tf.concat(outputs, -1), TAGS, "proj")
    log_chances, transitions = chances(scores, tags, lengths)
    loss = tf.reduce_mean(-log_chances)
    decoded = best(scores, transitions, lengths)
    optimizer = tf.train.AdamOptimizer(0.02, epsilon=1e-4)
    pairs = [(tf.clip_by_value(slope, -5.0, 5.0), variable) for slope, variable in optimizer.compute_gradients(loss)]
    train_op = optimizer.apply_gradients(pairs, tf.train.get_or_create_global_step())
    rows = {words: integers(WORDS, ROWS, LENGTH), tags: integers(TAGS, ROWS, LENGTH, seed=1)}
    rows[lengths] = integers(LENGTH - 1, ROWS, seed=2) + 2
    with tf.Session() as sess:
        sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for feed in feeds(ctx, rows):
            ctx.record(loss=sess.run([train_op, loss], {**feed, keep: 1.0})[1])
            whole = {one: values[:4] for one, values in rows.items()}  # of the development set
            found, moves, given = sess.run([decoded, transitions, scores], whole)
            for tagged, size, score in zip(found, whole[lengths], given):
                assert list(tagged[:size]) == _viterbi(score[:size], moves)
        ctx.record_variables(sess)


def _viterbi(scores: np.ndarray, moves: np.ndarray) -> Any:
    """The best path, in Python, as the scripts have it for their evaluation."""
    before, total = [], scores[0]
    for score in scores[1:]:
        every = total[:, None] + moves
        before.append(every.argmax(0))
        total = score + every.max(0)
    path = [int(total.argmax())]
    for one in reversed(before):
        path.append(int(one[path[-1]]))
    return path[::-1]


@program
def crf(ctx: Context) -> None:
    """The forward algorithm by tf.scan, over time; the best path by a loop with two arrays."""

    def chances(scores: tf.Tensor, tags: tf.Tensor, lengths: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        moves = weights("transitions", TAGS, TAGS)
        mask = tf.sequence_mask(lengths, LENGTH, tf.float32)
        of_tags = tf.reduce_sum(tf.reduce_sum(scores * tf.one_hot(tags, TAGS), -1) * mask, 1)
        steps = tf.gather_nd(moves, tf.stack([tags[:, :-1], tags[:, 1:]], -1))
        of_tags += tf.reduce_sum(steps * mask[:, 1:], 1)

        def step(total: tf.Tensor, now: Any) -> tf.Tensor:
            score, alive = now
            following = tf.reduce_logsumexp(total[:, :, None] + moves[None], 1) + score
            return tf.where(alive, following, total)

        times = tf.transpose(scores, [1, 0, 2]), tf.tile(tf.transpose(mask)[:, :, None] > 0, [1, 1, TAGS])
        totals = tf.scan(step, (times[0][1:], times[1][1:]), times[0][0])
        return of_tags - tf.reduce_logsumexp(totals[-1], -1), moves

    def best(scores: tf.Tensor, moves: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        def forward(time: tf.Tensor, total: tf.Tensor, pointers: Any) -> Any:
            every = total[:, :, None] + moves[None]
            alive = tf.tile((time < lengths)[:, None], [1, TAGS])
            stay = tf.tile(tf.range(TAGS)[None], [tf.shape(total)[0], 1])
            pointer = tf.where(alive, tf.argmax(every, 1, output_type=tf.int32), stay)
            total = tf.where(alive, tf.reduce_max(every, 1) + scores[:, time], total)
            return time + 1, total, pointers.write(time, pointer)

        start = (tf.constant(1), scores[:, 0], tf.TensorArray(tf.int32, LENGTH, clear_after_read=False))
        _, total, pointers = tf.while_loop(lambda time, *_: time < LENGTH, forward, start)
        last = tf.argmax(total, -1, output_type=tf.int32)

        def backward(time: tf.Tensor, tag: tf.Tensor, path: Any) -> Any:
            path = path.write(time, tag)
            places = tf.stack([tf.range(tf.shape(tag)[0]), tag], -1)
            return time - 1, tf.gather_nd(pointers.read(time), places), path

        path = tf.TensorArray(tf.int32, LENGTH)
        _, tag, path = tf.while_loop(lambda time, *_: time > 0, backward, (tf.constant(LENGTH - 1), last, path))
        return tf.transpose(path.write(0, tag).stack())

    _tagger(ctx, chances, best)


@program
def contrib_crf(ctx: Context) -> None:
    """The same with tf.contrib.crf."""
    import tensorflow as old

    library = old.contrib.crf

    def chances(*given: tf.Tensor) -> Any:
        with tf.variable_scope("chain", initializer=fresh()):
            return library.crf_log_likelihood(*given)

    _tagger(ctx, chances, lambda *given: library.crf_decode(*given)[0])


# ---- tensor2tensor.


class _HParams:
    """Values by name, as attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class _Copying:
    """A problem: it makes examples, batches them by length, and knows its vocabulary and its metrics."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.vocabulary = WORDS

    def input_fn(self, hparams: _HParams) -> Any:
        buckets = 2 + 2 * integers(2, STEPS, seed=4)  # the shortest of each step
        lengths = np.repeat(buckets, ROWS // STEPS) + integers(2, ROWS, seed=5)
        words = integers(self.vocabulary - 1, ROWS, LENGTH) + 1
        rows = [self._ctx.step_rows(values, step) for step in range(STEPS) for values in (words, lengths)]
        mine = list(zip(np.concatenate(rows[::2]), np.concatenate(rows[1::2])))
        data = tf.data.Dataset.from_generator(
            lambda: ({"inputs": row[:size], "targets": row[:size][::-1]} for row, size in mine),
            {"inputs": tf.int32, "targets": tf.int32},
            {"inputs": [None], "targets": [None]},
        )
        size = hparams.batch_size
        data = data.apply(
            tf.data.experimental.bucket_by_sequence_length(
                lambda one: tf.shape(one["targets"])[0], [4], [size] * 2, pad_to_bucket_boundary=False
            )
        )
        return data.map(lambda one: (one, one["targets"]))

    @staticmethod
    def all_rows() -> Any:
        """Examples of one length, for the evaluation."""
        words = integers(WORDS - 1, 32, LENGTH, seed=9) + 1
        return tf.data.Dataset.from_tensor_slices(({"inputs": words, "targets": words}, words)).batch(16)

    @staticmethod
    def metrics(logits: tf.Tensor, targets: tf.Tensor) -> Dict[str, Any]:
        weight = tf.cast(tf.not_equal(targets, 0), tf.float32)
        best = tf.argmax(logits, -1, output_type=tf.int32)
        return {"accuracy": tf.metrics.mean(tf.cast(tf.equal(best, targets), tf.float32), weight)}


def _smoothed(logits: tf.Tensor, targets: tf.Tensor, amount: float) -> Tuple[tf.Tensor, tf.Tensor]:
    """The sum of the losses of words, and their number."""
    weight = tf.cast(tf.not_equal(targets, 0), tf.float32)
    low = amount / (WORDS - 1)
    soft = tf.one_hot(targets, WORDS, 1.0 - amount, low)
    least = -((1 - amount) * np.log(1 - amount) + (WORDS - 1) * low * np.log(low + 1e-20))
    losses = tf.nn.softmax_cross_entropy_with_logits_v2(labels=soft, logits=logits) - least
    return tf.reduce_sum(losses * weight), tf.reduce_sum(weight)


class Factored(tf.train.Optimizer):
    """Second moments of matrices by rows and columns, updates of limited size, a rate by the size of weights."""

    def __init__(self, rate: Any) -> None:
        super().__init__(False, "Factored")
        self._rate = rate

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            shape = variable.shape.as_list()
            for name, kept in (("vr", shape[:-1]), ("vc", shape[1:])) if len(shape) == 2 else (("v", shape),):
                self._get_or_make_slot(variable, tf.zeros(kept), name, self._name)

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        grad = tf.cast(grad, tf.float32)
        squares = tf.square(grad) + 1e-6
        writes = []

        def moved(name: str, value: tf.Tensor) -> tf.Tensor:
            slot = self.get_slot(var, name)
            following = 0.8 * slot + 0.2 * value
            writes.append(tf.assign(slot, following))
            return following

        if len(var.shape) == 2:
            rows, columns = moved("vr", tf.reduce_mean(squares, 1)), moved("vc", tf.reduce_mean(squares, 0))
            x = grad * tf.rsqrt(rows / tf.reduce_mean(rows))[:, None] * tf.rsqrt(columns)[None]
        else:
            x = grad * tf.rsqrt(moved("v", squares))
        x /= tf.maximum(1.0, tf.sqrt(tf.reduce_mean(tf.square(x))))
        scale = tf.maximum(tf.sqrt(tf.reduce_mean(tf.square(var))), 1e-3)
        return tf.group(tf.assign_sub(var, self._rate * scale * x), *writes)

    _resource_apply_dense = _apply_dense

    def _apply_sparse(self, grad: tf.IndexedSlices, var: tf.Variable) -> tf.Operation:
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> tf.Operation:
        return self._apply_dense(tf.convert_to_tensor(tf.IndexedSlices(grad, indices, handle.shape)), handle)


@program
def tensor2tensor(ctx: Context) -> None:
    """A problem, parameters by name, batches by length, smoothed labels by weights, Adafactor, an Estimator."""
    problem = _Copying(ctx)
    hparams = _HParams(batch_size=ctx.batch, hidden_size=WIDTH, label_smoothing=0.1, learning_rate=0.1)

    class Seen(tf.train.SessionRunHook):
        """Records the loss of each step."""

        def __init__(self, loss: tf.Tensor) -> None:
            self._loss = loss

        def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
            return tf.train.SessionRunArgs(self._loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            ctx.record(loss=run_values.results)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> tf.estimator.EstimatorSpec:
        with tf.variable_scope("transformer", initializer=fresh()):
            table = tf.get_variable("symbol_modality", [problem.vocabulary, params.hidden_size])
            x = tf.gather(table, features["inputs"]) * params.hidden_size**0.5
            x *= tf.cast(tf.not_equal(features["inputs"], 0), tf.float32)[:, :, None]
            size = tf.shape(x)[1]
            places = tf.cast(tf.range(size), tf.float32)[:, None] * tf.exp(-tf.range(0, 3.0))[None]
            x += tf.concat([tf.sin(places), tf.cos(places)], 1)[None]
            query, key, value = tf.split(tf.layers.dense(x, 3 * params.hidden_size, use_bias=False, name="qkv"), 3, -1)
            bias = -1e9 * tf.cast(tf.equal(features["inputs"], 0), tf.float32)[:, None]
            attended = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias), value)
            x = tf.layers.dense(tf.nn.relu(x + attended), params.hidden_size, name="ffn")
            logits = tf.tensordot(x, table, [[2], [1]])
        total, count = _smoothed(logits, labels, params.label_smoothing)
        loss = total / tf.maximum(1.0, count)
        if mode == tf.estimator.ModeKeys.EVAL:
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=problem.metrics(logits, labels))
        step = tf.train.get_global_step()
        rate = params.learning_rate * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1) / 4)
        train_op = Factored(rate).minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[Seen(loss)])

    directory = ctx.temporary_directory()
    model = tf.estimator.Estimator(model_fn, directory, params=hparams)
    model.train(lambda: problem.input_fn(hparams), steps=STEPS)
    if ctx.worker == 0:
        ctx.record_checkpoint(tf.train.latest_checkpoint(directory))
    found = model.evaluate(problem.all_rows, steps=2)
    ctx.record(evaluated=[found["accuracy"], found["loss"]])


# ---- Translation.


def _attend(query: tf.Tensor, memory: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
    """Luong's attention."""
    scores = tf.reduce_sum(dense(memory, WIDTH, "memory_layer") * query[:, None], -1)
    chances = tf.nn.softmax(scores + tf.log(seen + 1e-9))
    context = tf.reduce_sum(chances[:, :, None] * memory, 1)
    return tf.tanh(dense(tf.concat([context, query], 1), WIDTH, "attention_layer"))


class _Translation:
    """The parts of a model that its graphs of training and of inference have in common."""

    def __init__(self, source: tf.Tensor, lengths: tf.Tensor) -> None:
        self.table = weights("embedding", WORDS, WIDTH)
        with tf.variable_scope("encoder"):
            cell = tf.nn.rnn_cell.GRUCell(WIDTH, kernel_initializer=fresh())
            x = tf.nn.embedding_lookup(self.table, source)
            self.memory, self.start = tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float32)
        self.seen = tf.sequence_mask(lengths, tf.shape(source)[1], tf.float32)
        self.cell = tf.nn.rnn_cell.GRUCell(WIDTH, kernel_initializer=fresh(), name="decoder_cell")

    def step(self, words: tf.Tensor, state: tf.Tensor, memory: tf.Tensor, seen: tf.Tensor) -> Any:
        """Logits of the next word and the next state."""
        with tf.variable_scope("decoder", reuse=tf.AUTO_REUSE):
            output, state = self.cell(tf.nn.embedding_lookup(self.table, words), state)
            return dense(_attend(output, memory, seen), WORDS, "output_projection"), state


def _beam_search(model: _Translation, batch: tf.Tensor, beams: int) -> tf.Tensor:
    """The best words of each sentence: beams are rows, [batch * beams]."""

    memory = tf.reshape(tf.tile(model.memory[:, None], [1, beams, 1, 1]), [-1, LENGTH, WIDTH])
    seen = tf.reshape(tf.tile(model.seen[:, None], [1, beams, 1]), [-1, LENGTH])
    state = tf.reshape(tf.tile(model.start[:, None], [1, beams, 1]), [-1, WIDTH])
    scores = tf.tile(tf.constant([[0.0] + [-1e9] * (beams - 1)]), [batch, 1])
    words = tf.ones([batch * beams, 1], tf.int32)

    def turn(time: tf.Tensor, words: tf.Tensor, scores: tf.Tensor, state: tf.Tensor) -> Any:
        logits, following = model.step(words[:, -1], state, memory, seen)
        every = scores[:, :, None] + tf.reshape(tf.nn.log_softmax(logits), [batch, beams, WORDS])
        scores, found = tf.nn.top_k(tf.reshape(every, [batch, beams * WORDS]), beams)
        parents = tf.reshape(tf.range(batch)[:, None] * beams + found // WORDS, [-1])
        words = tf.concat([tf.gather(words, parents), tf.reshape(found % WORDS, [-1, 1])], 1)
        return time + 1, words, scores, tf.gather(following, parents)

    shapes = tuple(tf.TensorShape(shape) for shape in ([], [None, None], [None, beams], [None, WIDTH]))
    start = (tf.constant(0), words, scores, state)
    _, words, _, _ = tf.while_loop(lambda time, *_: time < 4, turn, start, shapes)
    return tf.reshape(words, [batch, beams, -1])[:, 0]


@program
def translation(ctx: Context) -> None:
    """A graph for training and one for inference by beam search, each with its session; checkpoints in between."""
    lengths = integers(LENGTH - 1, ROWS, seed=2) + 2
    rows = [integers(WORDS, ROWS, LENGTH), lengths, integers(WORDS, ROWS, 4, seed=1)]
    training = tf.get_default_graph()
    source, sizes, target = [
        tf.placeholder(tf.int32, shape, name)
        for shape, name in (([None, LENGTH], "source"), ([None], "source_sequence_length"), ([None, 4], "target"))
    ]
    model = _Translation(source, sizes)
    words = tf.unstack(tf.concat([tf.ones_like(target[:, :1]), target[:, :-1]], 1), axis=1)
    state, outputs = model.start, []
    for one in words:
        logits, state = model.step(one, state, model.memory, model.seen)
        outputs.append(logits)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=tf.stack(outputs, 1))
    loss = tf.reduce_sum(losses) / tf.cast(tf.shape(source)[0], tf.float32)
    variables = tf.trainable_variables()
    clipped, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), 5.0)
    step = tf.Variable(0, trainable=False, name="global_step")
    rate = tf.cond(step < 3, lambda: tf.constant(0.2), lambda: 0.2 * 0.5 ** (tf.cast(step - 3, tf.float32) / 2))
    train_op = tf.train.GradientDescentOptimizer(rate).apply_gradients(zip(clipped, variables), step)
    saver = tf.train.Saver(tf.global_variables(), max_to_keep=2)
    everything, start = tf.global_variables(), tf.global_variables_initializer()
    inference = tf.Graph()
    with inference.as_default():
        asked, of_asked = tf.placeholder(tf.int32, [None, LENGTH]), tf.placeholder(tf.int32, [None])
        found = _beam_search(_Translation(asked, of_asked), tf.shape(asked)[0], 3)
        loader = tf.train.Saver(tf.global_variables())
    directory = ctx.temporary_directory()
    with tf.Session(graph=training) as sess, tf.Session(graph=inference) as other:
        sess.run(start)
        for number, feed in enumerate(feeds(ctx, dict(zip((source, sizes, target), rows)))):
            value, size, _ = sess.run([loss, norm, train_op], feed)
            ctx.record(loss=value)
            ctx.record(loss=size)
            if number == 3:
                path = saver.save(sess, directory + "/translate.ckpt", global_step=step)
                loader.restore(other, path or tf.train.latest_checkpoint(directory))
                ctx.record(found=other.run(found, {asked: rows[0][:3], of_asked: lengths[:3]}).tolist())
        ctx.record_variables(sess, everything)


@program
def contrib_translation(ctx: Context) -> None:
    """The same with tf.contrib.seq2seq: TrainingHelper, BeamSearchDecoder, weights of target words."""
    import tensorflow as old

    seq2seq = old.contrib.seq2seq
    source, target = [tf.placeholder(tf.int32, [None, LENGTH], name) for name in ("source", "target")]
    batch = tf.shape(source)[0]
    table = weights("embedding", WORDS, WIDTH)
    with tf.variable_scope("encoder", initializer=fresh()):
        memory, state = tf.nn.dynamic_rnn(
            tf.nn.rnn_cell.LSTMCell(WIDTH), tf.nn.embedding_lookup(table, source), dtype=tf.float32
        )
    projection = tf.layers.Dense(WORDS, use_bias=False, kernel_initializer=fresh(), name="output_projection")

    def decode(memory: tf.Tensor, beams: int) -> Any:
        with tf.variable_scope("decoder", reuse=tf.AUTO_REUSE, initializer=fresh()) as scope:
            attention = seq2seq.LuongAttention(WIDTH, memory, scale=True)
            cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.LSTMCell(WIDTH), attention, WIDTH, name="attention")
            if beams == 1:
                begin = cell.zero_state(batch, tf.float32).clone(cell_state=state)
                shifted = tf.concat([tf.ones_like(target[:, :1]), target[:, :-1]], 1)
                helper = seq2seq.TrainingHelper(tf.nn.embedding_lookup(table, shifted), tf.fill([batch], LENGTH))
                decoder = seq2seq.BasicDecoder(cell, helper, begin, projection)
            else:
                tiled = seq2seq.tile_batch(state, beams)
                begin = cell.zero_state(batch * beams, tf.float32).clone(cell_state=tiled)
                decoder = seq2seq.BeamSearchDecoder(
                    cell, table, tf.fill([batch], 1), 0, begin, beams, output_layer=projection
                )
            return seq2seq.dynamic_decode(decoder, maximum_iterations=LENGTH, swap_memory=True, scope=scope)[0]

    logits = decode(memory, 1).rnn_output
    loss = seq2seq.sequence_loss(logits, target, tf.ones(tf.shape(target)))
    found = decode(seq2seq.tile_batch(memory, 3), 3).predicted_ids
    train_op = old.contrib.layers.optimize_loss(
        loss, tf.train.get_or_create_global_step(), 0.02, lambda rate: tf.train.AdamOptimizer(rate, epsilon=1e-4)
    )
    rows = {source: integers(WORDS, ROWS, LENGTH), target: integers(WORDS, ROWS, LENGTH, seed=1)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for feed in feeds(ctx, rows):
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
            ctx.record(found=sess.run(found, {source: rows[source][:3]}).tolist())
        ctx.record_variables(sess)


# ---- Words.


@program
def word2vec(ctx: Context) -> None:
    """Noise-contrastive estimation with words that the script draws, sparse updates, a rate by the words read."""
    examples = tf.placeholder(tf.int32, [None], "examples")
    labels = tf.placeholder(tf.int32, [None], "labels")
    drawn = tf.placeholder(tf.int64, [5], "sampled_ids")
    table = weights("emb", 40, WIDTH)
    out, bias = weights("sm_w_t", 40, WIDTH), weights("sm_b", 40)
    read = tf.get_variable("words", [], tf.float32, tf.zeros_initializer(), trainable=False, use_resource=True)
    chances = tf.constant(np.linspace(0.01, 0.1, 40), tf.float32)
    wanted = tf.cast(labels, tf.int64)[:, None]
    expected = tf.gather(chances, wanted), tf.gather(chances, drawn)
    losses = tf.nn.nce_loss(
        out, bias, wanted, tf.nn.embedding_lookup(table, examples), 5, 40, sampled_values=(drawn, *expected)
    )
    loss = tf.reduce_mean(losses)
    rate = 0.5 * tf.maximum(0.01, 1.0 - read.read_value() / 200.0)
    step = tf.Variable(0, name="global_step", trainable=False)
    update = tf.train.GradientDescentOptimizer(rate).minimize(loss, step, gate_gradients=tf.train.Optimizer.GATE_NONE)
    with tf.control_dependencies([update]):
        train_op = read.assign_add(tf.cast(tf.shape(examples)[0], tf.float32))
    normal = tf.nn.l2_normalize(table, 1)
    words = tf.placeholder(tf.int32, [None], "nearby_word")
    nearby = tf.nn.top_k(tf.matmul(tf.gather(normal, words), normal, transpose_b=True), 4)
    rows = {examples: integers(40, ROWS), labels: integers(40, ROWS, seed=1)}
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for number, feed in enumerate(feeds(ctx, rows)):
            feed[drawn] = np.random.RandomState(number).permutation(40)[:5]
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
            ctx.record(nearby=sess.run(nearby, {words: [1, 2, 3]}).indices.shape)
        ctx.record_variables(sess)
