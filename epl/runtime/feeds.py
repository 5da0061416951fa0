"""How a fed value is shared out among the local replicas.

With K local replicas, a placeholder of unknown first dimension is cut into K parts; one of known first dimension d is
cut when K * d rows are fed and given whole to all when d rows are; scalars go to all.
"""

import logging
from typing import Any, Dict, List, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.rewrite import Rewrite
from epl.utils.errors import FeedError

logger = logging.getLogger("epl")


class FeedSharing(object):
    """Shares out the feeds of one rewritten graph."""

    def __init__(self, rewrite: Rewrite) -> None:
        view = rewrite.view
        assert view is not None
        self._rewrite = rewrite
        self._cloned = {view.nodes[node].name for node in rewrite.cloned}
        self._warned: Set[str] = set()

    def share(self, feeds: Dict[tf.Tensor, Any]) -> Dict[tf.Tensor, Any]:
        """The feeds of all local replicas, their weights included.

        Args:
          feeds: tensor -> array, as fed by the user.

        Raises:
          FeedError: rows that cannot be shared out.
        """
        replicas = self._rewrite.local_replicas
        shared: Dict[tf.Tensor, Any] = {}
        rows: Dict[str, Tuple[int, ...]] = {}
        for tensor, value in feeds.items():
            parts = [value]
            if tensor.op.name in self._cloned:
                parts, sizes = self._parts(tensor, value, replicas)
                if sizes:
                    rows[tensor.name] = sizes
                for replica in range(1, replicas):
                    copy = self._rewrite.tf_graph.get_tensor_by_name(self._rewrite.prefix(replica) + tensor.name)
                    shared[copy] = parts[replica]
            shared[tensor] = parts[0]
        for weight, size in zip(self._rewrite.weights, self._weights(rows)):
            shared[weight] = np.asarray(size, np.float64)
        return shared

    def whole_batch(self, tensor: tf.Tensor, value: np.ndarray) -> bool:
        """Whether a known first dimension makes TensorFlow refuse `value`, which holds that many rows per replica."""
        size = _first_dimension(tensor)
        replicas = self._rewrite.local_replicas
        return (
            replicas > 1
            and tensor.op.name in self._cloned
            and size is not None
            and np.ndim(value) == tensor.shape.ndims
            and np.shape(value)[0] == replicas * size
            and np.shape(value)[0] != size
        )

    def cut_whole_batch(self, tensor: tf.Tensor, value: np.ndarray) -> Dict[tf.Tensor, np.ndarray]:
        """The parts of a value for which `whole_batch` holds."""
        parts = np.split(np.asarray(value), self._rewrite.local_replicas)
        graph, prefix = self._rewrite.tf_graph, self._rewrite.prefix
        return {graph.get_tensor_by_name(prefix(replica) + tensor.name): part for replica, part in enumerate(parts)}

    def _parts(self, tensor: tf.Tensor, value: Any, replicas: int) -> Tuple[List[Any], Tuple[int, ...]]:
        """The value of each replica, and their rows if the value was cut."""
        if np.ndim(value) == 0 or tensor.shape.ndims == 0:
            return [value] * replicas, ()
        size = _first_dimension(tensor)
        fed = np.shape(value)[0]
        if size is not None:
            if replicas > 1 and tensor.name not in self._warned:
                self._warned.add(tensor.name)
                logger.warning(
                    "%s has a first dimension of %d and was fed %d rows: each of the %d local replicas gets all. "
                    "Feed %d rows to give each its own.", tensor.name, size, fed, replicas, replicas * size,
                )  # fmt: skip
            return [value] * replicas, ()
        if fed < replicas:
            raise FeedError(
                "{} was fed {} row(s), and they are shared out among {} local replicas: feed at least {}, or a "
                "placeholder of known first dimension for a value that all replicas get.".format(
                    tensor.name, fed, replicas, replicas
                )
            )
        parts = np.array_split(value, replicas)
        return parts, tuple(len(part) for part in parts)

    def _weights(self, rows: Dict[str, Tuple[int, ...]]) -> Tuple[int, ...]:
        """Rows of each replica, by the first placeholder that was cut; the others must be cut in proportion."""
        if not rows:
            return ()
        first = min(rows)
        shares = [size / float(sum(rows[first])) for size in rows[first]]
        for name, sizes in rows.items():
            for size, share in zip(sizes, shares):
                if abs(size / float(sum(sizes)) - share) > 1e-9:
                    raise FeedError(
                        "{} is cut into {} rows and {} into {}: the replicas would get unequal shares of the two. Feed "
                        "multiples of {} rows.".format(
                            first, list(rows[first]), name, list(sizes), self._rewrite.local_replicas
                        )
                    )
        return rows[first]


def _first_dimension(tensor: tf.Tensor) -> Any:
    """The static first dimension, or None."""
    if tensor.shape.ndims is None or tensor.shape.ndims == 0:
        return None
    return tf.dimension_value(tensor.shape[0])
