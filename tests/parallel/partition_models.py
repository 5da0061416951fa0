"""Small models for the tests of automatic partition: each returns its loss."""

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.auto_partition.partition import partition
from epl.utils import tf_compat


def tokens(length=16, batch=8):
    """Placeholders of token ids and labels."""
    return tf.placeholder(tf.int32, [batch, length], "ids"), tf.placeholder(tf.int32, [batch], "labels")


def attention_layer(x, width):
    """One head of self attention and a feed-forward part, each with a residual."""
    query, key, value = [tf.layers.dense(x, width, name=name) for name in ("query", "key", "value")]
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / float(width))
    x = x + tf.layers.dense(tf.matmul(scores, value), width, name="output")
    return x + tf.layers.dense(tf.layers.dense(x, 4 * width, tf.nn.relu, name="expand"), width, name="contract")


def transformer(layers, width=32, vocabulary=50, tied=False, batch=8):
    """Embedding, layers under the scopes layer_0 and so on, and a head."""
    ids, labels = tokens(batch=batch)
    table = tf.get_variable("table", [vocabulary, width])
    x = tf.nn.embedding_lookup(table, ids)
    for number in range(layers):
        with tf.variable_scope(f"layer_{number}"):
            x = attention_layer(x, width)
    with tf.variable_scope("head"):
        pooled = tf.reduce_mean(x, 1)
        logits = tf.matmul(pooled, table, transpose_b=True) if tied else tf.layers.dense(pooled, vocabulary)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")


def cnn(blocks=6, size=32):
    """Convolutions with skip connections and batch norm; the channels double and the picture halves half-way."""
    images = tf.placeholder(tf.float32, [4, size, size, 3], "images")
    x = tf.layers.conv2d(images, 16, 3, padding="same", name="stem")
    for number in range(blocks):
        with tf.variable_scope(f"block_{number}"):
            if number == blocks // 2:
                x = tf.layers.conv2d(x, 32, 3, 2, padding="same", name="down")
            y = tf.layers.batch_normalization(tf.layers.conv2d(x, int(x.shape[-1]), 3, padding="same"), training=True)
            x = tf.nn.relu(x + y)
    return tf.reduce_mean(tf.square(tf.layers.dense(tf.reduce_mean(x, [1, 2]), 10)), name="loss")


def lstm(steps=12, width=16):
    """A recurrent layer in a while loop between two dense ones."""
    x = tf.placeholder(tf.float32, [4, steps, width], "x")
    hidden = tf.layers.dense(x, 4 * width, name="before")
    cell = tf.nn.rnn_cell.LSTMCell(width, name="cell")
    outputs, _ = tf.nn.dynamic_rnn(cell, hidden, dtype=tf.float32)
    hidden = tf.layers.dense(outputs[:, -1], 64, tf.nn.relu, name="after")
    return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="last")), name="loss")


class Cut:
    """A partition of the default graph, asked about by name."""

    def __init__(self, loss, num_stages):
        self.view = GraphView(tf.get_default_graph())
        self.found = partition(tf.get_default_graph(), self.view, [loss.op.name], num_stages)

    def stage(self, name):
        """The stage of an op."""
        return self.found.of_node[self.view.index[name]]

    def stages_under(self, prefix):
        """The stages of all needed ops with a name that begins so."""
        return {stage for node, stage in self.found.of_node.items() if self.view.nodes[node].name.startswith(prefix)}

    def layers(self, count):
        """For each of the scopes layer_0 and so on, the stages of its matmuls."""
        return [
            sorted(
                stage
                for stage in range(len(self.found.stages))
                if any(
                    self.found.of_node[node] == stage and self.view.nodes[node].name.startswith("layer_%d/" % number)
                    for node in self.view.of_types(["MatMul", "BatchMatMulV2"])
                )
            )
            for number in range(count)
        ]

    def share(self):
        """The longest stage as a multiple of an equal share."""
        seconds = [stage.seconds for stage in self.found.stages]
        return max(seconds) / (sum(seconds) / len(seconds))

    def flows_forward(self):
        """Whether no op takes anything from a later stage, back edges of loops aside."""
        stages = self.found.of_node
        return all(stages[p] <= s for n, s in stages.items() for p in self.view.producers[n])


def stage_marks(tf_graph):
    """Op name -> stage, as the NodeDefs say."""
    nodes = tf_compat.full_graph_def(tf_graph).node
    return {node.name: node.attr["_epl_taskgraph"].i if "_epl_taskgraph" in node.attr else None for node in nodes}
