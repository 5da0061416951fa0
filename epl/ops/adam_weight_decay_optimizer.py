"""Adam with decoupled weight decay (Loshchilov and Hutter, 2017, algorithm 2): `AdamWeightDecayOptimizer`."""

import re
from typing import Any, List, Optional, Sequence

import tensorflow.compat.v1 as tf


class AdamWeightDecayOptimizer(tf.train.AdamOptimizer):
    """Adam whose weight decay acts on the weights directly, not through the gradient and its moments.

        w <- w - rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)
        rate = learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)

    A sparse gradient updates its moments as in `tf.train.AdamOptimizer`: all rows move, so all rows decay.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Optional[Sequence[str]] = None,
        name: str = "AdamWeightDecayOptimizer",
    ) -> None:
        """Makes the optimizer.

        Args:
          learning_rate: a number or a scalar tensor.
          weight_decay_rate: the share of a weight that a step of rate 1 takes away.
          beta_1: decay of the mean of gradients.
          beta_2: decay of the mean of squared gradients.
          epsilon: added to the square root of that mean.
          exclude_from_weight_decay: regular expressions; a variable whose name one of them is found in does not decay.
          name: the prefix of the names of the ops and slots that the optimizer creates.

        Raises:
          ValueError: `exclude_from_weight_decay` is one string, or no regular expression.
        """
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)
        if isinstance(exclude_from_weight_decay, str):
            raise ValueError(
                "exclude_from_weight_decay is the string {0!r}: expected a list of patterns, [{0!r}].".format(
                    exclude_from_weight_decay
                )
            )
        try:
            self._excluded = [re.compile(pattern) for pattern in exclude_from_weight_decay or ()]
        except re.error as error:
            raise ValueError(
                f"exclude_from_weight_decay has {error.pattern!r}, which is no regular expression: {error}."
            ) from error
        self._weight_decay_rate = weight_decay_rate

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        with tf.control_dependencies(self._decayed(grad, var)):
            return super()._apply_dense(grad, var)

    def _resource_apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        with tf.control_dependencies(self._decayed(grad, var)):
            return super()._resource_apply_dense(grad, var)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        with tf.control_dependencies(self._decayed(grad.values, var)):
            return super()._apply_sparse(grad, var)

    def _resource_apply_sparse(self, grad: tf.Tensor, var: Any, indices: tf.Tensor) -> tf.Operation:
        with tf.control_dependencies(self._decayed(grad, var)):
            return super()._resource_apply_sparse(grad, var, indices)

    def _decayed(self, gradient: tf.Tensor, variable: Any) -> List[tf.Operation]:
        """The decay of a variable; it waits for the gradient, which is computed from the weights before the decay."""
        name = variable.name.split(":")[0]
        if not self._weight_decay_rate or any(pattern.search(name) for pattern in self._excluded):
            return []
        kind = variable.dtype.base_dtype
        first, second = (tf.cast(power, kind) for power in self._get_beta_accumulators())
        with tf.control_dependencies([gradient]):
            rate = tf.cast(self._lr_t, kind) * tf.sqrt(1 - second) / (1 - first)
            return [variable.assign_sub(rate * self._weight_decay_rate * variable, read_value=False)]
