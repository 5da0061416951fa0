"""How a fed value is shared out among the local replicas.

With K local replicas, a placeholder of unknown first dimension is cut into K parts; one of known first dimension d is
cut when K * d rows are fed and given whole to all when d rows are; scalars go to all.
"""

import logging
from typing import Any, Dict, List, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.rewrite import Rewrite
from epl.utils import tf_compat
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
        self._sparse: Dict[str, tf.SparseTensor] = {}  # by the name of the indices

    def cut_ahead(self, feed_dict: Dict[Any, Any]) -> Dict[Any, Any]:
        """Feeds in which TensorFlow finds nothing to refuse; the user's dict is not changed.

        A placeholder of known first dimension that is fed one batch per replica is cut here already. Parts of sparse
        tensors are noted, to be cut together by `share`.
        """
        feeds = {}
        for key in feed_dict:
            if isinstance(key, tf.SparseTensor):
                self._sparse[key.indices.name] = key
        for key, value in tf_compat.flatten_feeds(feed_dict):
            try:
                tensor = self._rewrite.tf_graph.as_graph_element(key, allow_operation=False)
            except (KeyError, TypeError, ValueError):
                feeds[key] = value  # TensorFlow says what is wrong with it
                continue
            if self._is_cut_ahead(tensor, value):
                for replica, part in enumerate(np.split(np.asarray(value), self._rewrite.local_replicas)):
                    feeds[self._copy(tensor, replica)] = part
            else:
                feeds[key] = value
        return feeds

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
        by_name = {tensor.name: value for tensor, value in feeds.items()}
        for tensor, value in feeds.items():
            if tensor.op.name not in self._cloned or tensor in shared:
                shared.setdefault(tensor, value)
                continue
            if tensor.name in self._sparse and replicas > 1:
                key = self._sparse[tensor.name]
                self._share_sparse(key, by_name, shared)
                rows[tensor.name] = (int(by_name[key.dense_shape.name][0]) // replicas,) * replicas
                continue
            if self._rewrite.prefix(1) + tensor.name in by_name:  # cut ahead
                shared[tensor] = value
                rows[tensor.name] = (len(value),) * replicas
                continue
            parts, sizes = self._parts(tensor, value, replicas)
            if sizes:
                rows[tensor.name] = sizes
            for replica in range(replicas):
                shared.setdefault(self._copy(tensor, replica), parts[replica])
        for weight, size in zip(self._rewrite.weights, self._weights(rows)):
            shared[weight] = np.asarray(size, np.float64)
        return shared

    def refuse_unused_parts(self, feeds: Dict[tf.Tensor, Any]) -> None:
        """Raises FeedError if a value was cut ahead for replicas that take no part in the run."""
        fed = {tensor.name for tensor in feeds}
        for tensor in feeds:
            if self._rewrite.prefix(1) + tensor.name in fed:
                size = _first_dimension(tensor)
                raise FeedError(
                    "{} has a first dimension of {} and was fed {} rows, a batch for each local replica, in a run that "
                    "replica 0 does alone (nothing is trained or merged). Feed it {} rows.".format(
                        tensor.name, size, size * self._rewrite.local_replicas, size
                    )
                )

    def _share_sparse(self, key: tf.SparseTensor, fed: Dict[str, Any], shared: Dict[tf.Tensor, Any]) -> None:
        """Cuts a fed sparse tensor by its dense rows."""
        replicas = self._rewrite.local_replicas
        indices, values, shape = (np.asarray(fed[t.name]) for t in (key.indices, key.values, key.dense_shape))
        rows, rest = divmod(int(shape[0]), replicas)
        if rest or not rows:
            raise FeedError(
                "{} was fed a sparse tensor of {} rows, which cannot be cut evenly for {} local replicas: feed a "
                "multiple of {} rows.".format(key.values.name, shape[0], replicas, replicas)
            )
        for replica in range(replicas):
            own = (indices[:, 0] >= replica * rows) & (indices[:, 0] < (replica + 1) * rows)
            part = indices[own]
            part[:, 0] -= replica * rows
            own_shape = shape.copy()
            own_shape[0] = rows
            for tensor, value in ((key.indices, part), (key.values, values[own]), (key.dense_shape, own_shape)):
                shared[self._copy(tensor, replica)] = value

    def _copy(self, tensor: tf.Tensor, replica: int) -> tf.Tensor:
        if not replica or tensor.op.name not in self._cloned:
            return tensor
        return self._rewrite.tf_graph.get_tensor_by_name(self._rewrite.prefix(replica) + tensor.name)

    def _is_cut_ahead(self, tensor: tf.Tensor, value: Any) -> bool:
        """Whether `value` holds the rows of every replica for a placeholder that TensorFlow lets take those of one.

        Raises:
          FeedError: rows that are neither one batch nor one for each replica.
        """
        size = _first_dimension(tensor)
        replicas = self._rewrite.local_replicas
        if tensor.op.name not in self._cloned or size is None or replicas == 1 or np.ndim(value) != tensor.shape.ndims:
            return False
        fed = np.shape(value)[0]
        if fed not in (size, replicas * size):
            raise FeedError(
                "{} has a first dimension of {} and was fed {} rows. With {} local replicas it takes {} rows, {} for "
                "each, or {} that all of them get.".format(
                    tensor.name, size, fed, replicas, replicas * size, size, size
                )
            )
        return fed != size

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
