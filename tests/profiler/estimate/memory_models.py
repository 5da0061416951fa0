"""Models whose memory is estimated and measured: each has `train_op` and `feed`, and is made of stages.

A stage is an `epl.replicate(1)`; with one stage the model is annotated as a whole.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from examples.bert import model as bert
from examples.bert import optimizer as bert_optimizer

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(bert.__file__)), "configs")


class Mlp:
    """Dense layers with tanh."""

    def __init__(self, stages=1, layers=64, width=64, rows=16384):
        self.x = hidden = tf.placeholder(tf.float32, [None, width], "x")
        for stage in range(stages):
            with epl.replicate(1):
                for layer in range(layers // stages):
                    hidden = tf.layers.dense(hidden, width, tf.tanh, name=f"l{stage}_{layer}")
                if stage == stages - 1:
                    self.loss = tf.reduce_mean(tf.square(hidden - 1.0))
        self.train_op = tf.train.AdamOptimizer(0.01).minimize(self.loss)
        self.feed = {self.x: np.random.RandomState(0).rand(rows, width).astype("f")}


class Resnet:
    """ResNet with bottlenecks (He et al., 2015) and batch norm; (3, 4, 6, 3) blocks are ResNet-50."""

    def __init__(self, stages=1, blocks=(1, 1, 1, 1), size=64, rows=16):
        x = tf.placeholder(tf.float32, [None, size, size, 3], "x")
        y = tf.placeholder(tf.int32, [None], "y")
        places = [(group, block) for group, count in enumerate(blocks) for block in range(count)]
        cuts = [stage * len(places) // stages for stage in range(stages + 1)]
        for stage in range(stages):
            with epl.replicate(1):
                if stage == 0:
                    hidden = tf.layers.conv2d(x, 64, 7, 2, "same", use_bias=False, name="stem")
                    hidden = tf.nn.relu(tf.layers.batch_normalization(hidden, training=True, name="stem_norm"))
                    hidden = tf.layers.max_pooling2d(hidden, 3, 2, "same")
                for group, block in places[cuts[stage] : cuts[stage + 1]]:
                    with tf.variable_scope(f"group{group}_block{block}"):
                        hidden = _bottleneck(hidden, 64 * 2**group, 2 if group and not block else 1)
                if stage == stages - 1:
                    logits = tf.layers.dense(tf.reduce_mean(hidden, [1, 2]), 1000, name="head")
                    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
                    self.loss = tf.reduce_mean(losses)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(self.loss)
        self.feed = {x: np.random.RandomState(0).rand(rows, size, size, 3).astype("f"), y: np.zeros([rows], "i")}


def _bottleneck(x, channels, stride):
    def convolution(value, count, size, step, name):
        value = tf.layers.conv2d(value, count, size, step, "same", use_bias=False, name=name)
        return tf.layers.batch_normalization(value, training=True, name=name + "_norm")

    shortcut = x
    if stride != 1 or x.shape[-1].value != 4 * channels:
        shortcut = convolution(x, 4 * channels, 1, stride, "shortcut")
    hidden = tf.nn.relu(convolution(x, channels, 1, 1, "reduce"))
    hidden = tf.nn.relu(convolution(hidden, channels, 3, stride, "middle"))
    return tf.nn.relu(convolution(hidden, 4 * channels, 1, 1, "expand") + shortcut)


class Bert:
    """The BERT of the examples with its head for spans, and its optimizer by default."""

    def __init__(self, stages=1, config="tiny", layers=None, length=128, rows=16, optimizer=None):
        sizes = bert.read_config(os.path.join(CONFIGS, config + ".json"))
        sizes = sizes._replace(num_hidden_layers=layers or sizes.num_hidden_layers)
        inputs = [tf.placeholder(tf.int32, [None, length], name) for name in ("ids", "mask", "segments")]
        positions = [tf.placeholder(tf.int32, [None], name) for name in ("first", "last")]
        scopes = [epl.replicate(1) for _ in range(stages)]
        logits = bert.span_logits(sizes, bert.Inputs(*inputs), scopes)
        with scopes[-1]:
            self.loss = bert.span_loss(logits, positions)
        self.train_op = (optimizer or bert_optimizer.AdamWeightDecayOptimizer(0.01)).minimize(self.loss)
        self.feed = {tensor: np.ones([rows, length], "i") for tensor in inputs}
        self.feed.update({tensor: np.zeros([rows], "i") for tensor in positions})


class SplitHead:
    """Dense layers, and a head of many classes in `epl.split` (with `cluster.colocate_split_and_replicate`)."""

    def __init__(self, classes=20000, width=128, rows=64, layers=2, parts=2):
        x = hidden = tf.placeholder(tf.float32, [None, width], "x")
        y = tf.placeholder(tf.int32, [None], "y")
        with epl.replicate(1):
            for layer in range(layers):
                hidden = tf.layers.dense(hidden, width, tf.tanh, name=f"l{layer}")
        with epl.split(parts):
            logits = tf.layers.dense(hidden, classes, name="head")
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            self.loss = tf.reduce_mean(losses)
        self.train_op = tf.train.AdamOptimizer(0.01).minimize(self.loss)
        self.feed = {x: np.random.RandomState(0).rand(rows, width).astype("f"), y: np.zeros([rows], "i")}


class Lstm:
    """A recurrent layer in a while loop."""

    def __init__(self, steps=24, width=64, rows=256):
        self.x = tf.placeholder(tf.float32, [None, steps, width], "x")
        with epl.replicate(1):
            outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(width), self.x, dtype=tf.float32)
            self.loss = tf.reduce_mean(tf.square(tf.layers.dense(outputs[:, -1], 1)))
        self.train_op = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)
        self.feed = {self.x: np.random.RandomState(0).rand(rows, steps, width).astype("f")}
