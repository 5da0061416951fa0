"""Small models for the fragments: what they call, under the names that they use."""

from typing import Any, Callable, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from tests.parity.context import Context

FEATURES, WIDTH, CLASSES, EXPERTS, STEPS = 12, 16, 200, 8, 6


def _initial(scale: float = 0.3) -> Any:
    return tf.random_normal_initializer(stddev=scale, seed=3)


def _dense(x: tf.Tensor, units: int, name: str, activation: Callable = None, scale: float = 0.3) -> tf.Tensor:
    return tf.layers.dense(x, units, activation, name=name, kernel_initializer=_initial(scale))


class Parts:
    """The functions of one fragment; they leave what comes next in attributes, as the fragments pass nothing on.

    Attributes:
        loss: of the whole model, once it is built.
    """

    ROWS = 1120  # of one step: 35 micro batches, and 4 replicas with 8 micro batches, divide them

    def __init__(self, rows: int, ctx: Context) -> None:
        self._rows = rows
        self._ctx = ctx
        self.loss: tf.Tensor = None
        self._x: tf.Tensor = None
        self._y: tf.Tensor = None
        self._hidden: tf.Tensor = None

    # ---- Data: each worker reads its share of every step

    def inputs(self) -> tf.Tensor:
        """A batch of features; the labels are kept."""
        random = np.random.RandomState(5)
        x = random.normal(size=(STEPS, self.ROWS, FEATURES)).astype(np.float32)
        y = random.randint(0, CLASSES, (STEPS, self.ROWS)).astype(np.int32)
        workers = self._ctx.workers if self._ctx.planned else 1
        own = slice(self._ctx.worker * self.ROWS // workers, (self._ctx.worker + 1) * self.ROWS // workers)
        rows = [values[:, own].reshape((-1,) + values.shape[2:]) for values in (x, y)]
        dataset = tf.data.Dataset.from_tensor_slices(tuple(rows)).batch(self._rows)
        self._x, self._y = dataset.make_one_shot_iterator().get_next()
        return self._x

    # ---- One model, and the same in two parts

    def model(self) -> None:
        self.model_part1()
        self.model_part2()

    def model_part1(self) -> None:
        self._hidden = _dense(_dense(self.inputs(), WIDTH, "first", tf.nn.tanh), WIDTH, "second", tf.nn.tanh)

    def model_part2(self) -> None:
        self._classify(_dense(self._hidden, WIDTH, "third", tf.nn.tanh))

    model_stage0, model_stage1 = model_part1, model_part2

    def op1(self) -> tf.Tensor:
        self.model_part1()
        return self._hidden

    # ---- Images in classes

    def resnet50(self, inputs: tf.Tensor) -> tf.Tensor:
        image = tf.reshape(inputs, [-1, 4, 3, 1])
        maps = tf.layers.conv2d(image, 4, 2, padding="same", name="conv1", kernel_initializer=_initial())
        more = tf.layers.conv2d(tf.nn.relu(maps), 4, 2, padding="same", name="conv2", kernel_initializer=_initial())
        return tf.reshape(tf.nn.relu(maps + more), [-1, 48])

    def resnet(self) -> None:
        self._hidden = self.resnet50(self.inputs())

    def fc(self, features: tf.Tensor) -> tf.Tensor:
        return _dense(features, CLASSES, "fc", scale=0.05)

    def softmax(self, logits: tf.Tensor) -> None:
        self.loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self._y, logits=logits))

    def classification(self) -> None:
        self.softmax(self.fc(self._hidden))

    def _classify(self, hidden: tf.Tensor) -> None:
        self.softmax(self.fc(hidden))

    # ---- A mixture of experts

    def gating_dispatch(self) -> Tuple[tf.Tensor, tf.Tensor]:
        tokens = _dense(self.inputs(), WIDTH, "attention", tf.nn.tanh)
        return tf.nn.softmax(_dense(tokens, EXPERTS, "gate")), tokens

    def attention_and_gating(self) -> None:
        self._gates, self._hidden = self.gating_dispatch()

    def moe_variable_define(self) -> None:
        self._up = tf.get_variable("up", [EXPERTS, WIDTH, 64], initializer=_initial(0.1))
        self._down = tf.get_variable("down", [EXPERTS, 64, WIDTH], initializer=_initial(0.1))

    def moe_calculation_define(self) -> None:
        dispatched = tf.einsum("be,bd->ebd", self._gates, self._hidden)
        given = tf.einsum("ebh,ehd->ebd", tf.nn.relu(tf.einsum("ebd,edh->ebh", dispatched, self._up)), self._down)
        self._classify(self._hidden + tf.reduce_sum(given, 0))

    def moe(self, combined_weights: tf.Tensor, dispatch_inputs: tf.Tensor) -> None:
        self._gates, self._hidden = combined_weights, dispatch_inputs
        self.moe_variable_define()
        self.moe_calculation_define()

    # ---- A model of many equal blocks

    def m6_model_def(self) -> None:
        hidden = _dense(self.inputs(), WIDTH, "embed", tf.nn.tanh)
        for block in range(8):
            with tf.variable_scope("block%d" % block):
                hidden += _dense(hidden, WIDTH, "layer", tf.nn.tanh)
        self._classify(hidden)
