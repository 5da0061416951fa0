"""How BERT is fine-tuned: Adam with decoupled weight decay, clipping, warm-up and linear decay of the learning rate.

Owns the update rule (Loshchilov and Hutter, 2017, algorithm 2, without the correction of the first steps' bias, as BERT
was trained) and its variables `<variable>/adam_m` and `<variable>/adam_v`. It is written from plain ops, as many
training scripts of TensorFlow 1.x have it, and overrides `apply_gradients`. Imports nothing but TensorFlow.
"""

import re
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

NO_DECAY = ("LayerNorm", "layer_norm", "bias")  # the published choice: variables with one of these in their name
CLIP_NORM = 1.0


class _Rates(NamedTuple):
    learning_rate: tf.Tensor
    decay: tf.Tensor
    beta1: tf.Tensor
    rest1: tf.Tensor
    beta2: tf.Tensor
    rest2: tf.Tensor
    epsilon: tf.Tensor


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam whose weight decay acts on the weights directly, not through the gradient."""

    def __init__(
        self,
        learning_rate: Any,
        decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        no_decay: Sequence[str] = NO_DECAY,
    ) -> None:
        """Takes a number or a scalar tensor as learning rate; `no_decay` are patterns of variable names."""
        super().__init__(use_locking=False, name="AdamWeightDecay")
        self._learning_rate = learning_rate
        self._values = {"decay": decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self._no_decay = tuple(no_decay)

    def apply_gradients(
        self, grads_and_vars: List[Tuple[Any, tf.Variable]], global_step: Optional[tf.Variable] = None, name: str = None
    ) -> tf.Operation:
        """Returns the op that updates all variables and increments the step."""
        values = dict(self._values, learning_rate=self._learning_rate)
        values.update(rest1=1.0 - values["beta1"], rest2=1.0 - values["beta2"])
        rates = _Rates(*[tf.convert_to_tensor(values[key], tf.float32, name=key) for key in _Rates._fields])
        updates = []
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                with tf.name_scope("update_" + variable.op.name.replace("/", "_")):
                    updates.extend(self._update(rates, tf.convert_to_tensor(gradient), variable))
        if global_step is not None:
            updates.append(tf.assign_add(global_step, 1))
        return tf.group(*updates, name=name or self.get_name())

    def _update(self, rates: _Rates, gradient: tf.Tensor, variable: tf.Variable) -> List[tf.Tensor]:
        m = self._moment(variable, "m")
        v = self._moment(variable, "v")
        next_m = rates.beta1 * m + rates.rest1 * gradient
        next_v = rates.beta2 * v + rates.rest2 * tf.square(gradient)
        step = next_m / (tf.sqrt(next_v) + rates.epsilon)
        if not any(re.search(pattern, variable.op.name) for pattern in self._no_decay):
            step += rates.decay * variable
        return [tf.assign(variable, variable - rates.learning_rate * step), tf.assign(m, next_m), tf.assign(v, next_v)]

    @staticmethod
    def _moment(variable: tf.Variable, name: str) -> tf.Variable:
        return tf.get_variable(
            f"{variable.op.name}/adam_{name}",
            variable.shape,
            tf.float32,
            initializer=tf.zeros_initializer(),
            trainable=False,
        )


def learning_rate(peak: float, step: tf.Tensor, steps: int, warm_up: int) -> tf.Tensor:
    """Returns the rate of a step: linear from 0 to the peak over `warm_up` steps, then on the line that ends at 0.

    The line falls from the peak at step 0 to 0 at step `steps`, so that the warm-up ends a little below the peak.
    """
    decayed = tf.train.polynomial_decay(peak, step, steps, end_learning_rate=0.0, power=1.0)
    if not warm_up:
        return decayed
    done = tf.cast(step, tf.float32)
    return tf.where(done < warm_up, peak * done / warm_up, decayed)


def train_op(loss: tf.Tensor, step: tf.Variable, peak: float, steps: int, warm_up: int) -> tf.Operation:
    """Returns the op of a training step: gradients, clipped together to the norm 1, applied to all variables."""
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), CLIP_NORM)
    optimizer = AdamWeightDecayOptimizer(learning_rate(peak, step, steps, warm_up))
    return optimizer.apply_gradients(list(zip(gradients, variables)), step)
