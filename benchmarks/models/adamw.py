"""Adam with decoupled weight decay, written from plain ops as users of TensorFlow 1.x write their optimizers.

Owns the update rule (Loshchilov and Hutter, 2017, algorithm 2) and overrides ``apply_gradients``, on purpose: a
library that rewrites training graphs meets many ops per variable here, where ``tf.train.AdamOptimizer`` has one.
"""
from typing import Any, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

_NO_DECAY = ('bias', 'scale', 'shift')

_Rates = NamedTuple('_Rates', [
    ('learning_rate', tf.Tensor),
    ('decay', tf.Tensor),
    ('beta1', tf.Tensor),
    ('rest1', tf.Tensor),
    ('beta2', tf.Tensor),
    ('rest2', tf.Tensor),
    ('epsilon', tf.Tensor),
])


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam whose weight decay acts on the weights directly, not through the gradient."""

    def __init__(self, learning_rate: float, decay: float = 0.01, beta1: float = 0.9, beta2: float = 0.999,
                 epsilon: float = 1e-6) -> None:
        super(AdamWeightDecayOptimizer, self).__init__(use_locking=False, name='AdamWeightDecay')
        self._learning_rate = learning_rate
        self._decay = decay
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon

    def apply_gradients(self, grads_and_vars: List[Tuple[Any, tf.Variable]], global_step: Optional[tf.Variable] = None,
                        name: Optional[str] = None) -> tf.Operation:
        """Returns the op that updates all variables and increments the step."""
        rates = _Rates(*[tf.convert_to_tensor(value, tf.float32, name=name) for name, value in self._values()])
        updates = []
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                with tf.name_scope('update_' + variable.op.name.replace('/', '_')):
                    updates.extend(self._update(rates, tf.convert_to_tensor(gradient), variable))
        if global_step is not None:
            updates.append(tf.assign_add(global_step, 1))
        return tf.group(*updates, name=name or self.get_name())

    def _values(self) -> List[Tuple[str, float]]:
        return [('learning_rate', self._learning_rate), ('decay', self._decay), ('beta1', self._beta1),
                ('rest1', 1.0 - self._beta1), ('beta2', self._beta2), ('rest2', 1.0 - self._beta2),
                ('epsilon', self._epsilon)]

    def _update(self, rates: _Rates, gradient: tf.Tensor, variable: tf.Variable) -> List[tf.Tensor]:
        m = self._moment(variable, 'm')
        v = self._moment(variable, 'v')
        next_m = rates.beta1 * m + rates.rest1 * gradient
        next_v = rates.beta2 * v + rates.rest2 * tf.square(gradient)
        step = next_m / (tf.sqrt(next_v) + rates.epsilon)
        if not variable.op.name.endswith(_NO_DECAY):
            step += rates.decay * variable
        return [tf.assign(variable, variable - rates.learning_rate * step), tf.assign(m, next_m), tf.assign(v, next_v)]

    @staticmethod
    def _moment(variable: tf.Variable, name: str) -> tf.Variable:
        return tf.get_variable('%s/adam_%s' % (variable.op.name, name), variable.shape, tf.float32,
                               initializer=tf.zeros_initializer(), trainable=False)
