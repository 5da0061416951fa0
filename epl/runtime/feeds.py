"""How a fed value is shared out among the local replicas and the micro batches of each.

With K = local replicas x micro batches of the step, a placeholder of unknown first dimension is cut into K parts
(row_cuts.py); one of known first dimension d is cut when K * d rows are fed and given whole to all when d rows are;
scalars go to all, and so does what holds no rows of a batch (whole_feeds.py). A placeholder that only ops after the
gradients take has one part per replica. Micro batches are equal: their rows are a multiple of K. Rows for all are no
matter to a run that does not need the placeholder.
"""

import logging
import threading
from typing import Any, Container, Dict, Iterable, List, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.plan.plan import proportions
from epl.parallel.rewriting.context import RewriteContext
from epl.runtime.row_cuts import RowCuts
from epl.runtime.whole_feeds import Fed, WholeFeeds
from epl.utils import tf_compat
from epl.utils.errors import FeedError

logger = logging.getLogger("epl")


class FeedSharing:
    """Shares out the feeds of one rewritten graph.

    It is one class because shares of threads, micro batches and replicas are all cut from the same values of one run.
    """

    def __init__(self, rewrite: RewriteContext) -> None:
        view = rewrite.view
        assert view is not None
        self._rewrite = rewrite
        self._view = view
        self._cloned = {view.nodes[node].name for node in rewrite.cloned}
        self._of_thread = threading.local()  # `.cut`: what replica 0 alone takes and was cut ahead, name -> rows
        self._warned: Set[str] = set()
        self._sparse: Dict[str, tf.SparseTensor] = {}  # by the name of the indices
        self._whole = WholeFeeds(rewrite)
        self._cuts = RowCuts(rewrite)

    def cut_ahead(self, feed_dict: Dict[Any, Any]) -> Dict[Any, Any]:
        """Feeds in which TensorFlow finds nothing to refuse; the user's dict is not changed.

        A placeholder of known first dimension that is fed one batch per replica is cut here already. Parts of sparse
        tensors are noted, to be cut together by `share`.
        """
        feeds = {}
        self._of_thread.cut = {}
        for key in feed_dict:
            if isinstance(key, tf.SparseTensor):
                self._sparse[key.indices.name] = key
        for key, value in tf_compat.flatten_feeds(feed_dict):
            try:
                tensor = self._rewrite.tf_graph.as_graph_element(key, allow_operation=False)
            except (KeyError, TypeError, ValueError):
                feeds[key] = value  # TensorFlow says what is wrong with it
                continue
            again = self._computed_again(tensor)  # every replica may have these alone
            self._warned.update(one.name for one in again)
            copies = self.copies(again[-1] if again else tensor)
            parts = self._parts_ahead(tensor, value, len(copies))
            if parts == 1:
                feeds.update(dict.fromkeys([key, *again], value))
                continue
            for one in [tensor, *again]:
                feeds.update(zip(self.copies(one), np.split(np.asarray(value), parts)))
            if parts > len(copies):
                self._of_thread.cut[tensor.name] = len(value)
        return feeds

    def _computed_again(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        """What stands for a tensor, which is computed from a weight alone, where that is gathered for a few uses."""
        names = self._rewrite.copies_per_use.get(tensor.op.name, ())
        return [self._rewrite.operation(name).outputs[tensor.value_index] for name in names]

    def share(self, feeds: Dict[tf.Tensor, Any], unneeded: Container[str] = ()) -> Dict[tf.Tensor, Any]:
        """The feeds of all local replicas, their weights included.

        Args:
          feeds: tensor -> array, as fed by the user.
          unneeded: names of tensors that the run does not need.

        Raises:
          FeedError: rows that cannot be shared out, or a value of which the micro batches have no copies.
        """
        self._refuse_without_copies(feeds)
        shared: Dict[tf.Tensor, Any] = {}
        rows: Dict[str, Tuple[int, ...]] = {}
        by_name = {tensor.name: value for tensor, value in feeds.items()}
        fed = self._fed_for_copies(feeds, unneeded)
        whole = self._whole.find(fed, list(self._sparse.values()))
        cut = self._whole.of_batch([name for name, one in fed.items() if name not in whole and not one.is_known])
        base = min((fed[name].rows for name in cut), default=0)
        for tensor, value in feeds.items():
            copies = self.copies(tensor)
            if tensor in shared or tensor.name in unneeded or (len(copies) == 1 and tensor.op.name not in self._cloned):
                shared.setdefault(tensor, value)
                continue
            if tensor.op.name in self._rewrite.read_once:
                shared.update(self._of_readers(tensor, value, copies))
                continue
            if tensor.name in whole:
                key = self._sparse.get(tensor.name)
                for one in (tensor,) if key is None else (key.indices, key.values, key.dense_shape):
                    shared.update(dict.fromkeys(self.copies(one), by_name[one.name]))
                continue
            if tensor.name in self._sparse and len(copies) > 1:
                key = self._sparse[tensor.name]
                rows[tensor.name] = self._share_sparse(key, by_name, shared, base)
                continue
            if copies[-1] is not tensor and copies[-1].name in by_name:  # cut ahead
                shared[tensor] = value
                rows[tensor.name] = (len(value),) * len(copies)
                continue
            parts, sizes = self._parts(tensor, value, len(copies), base)
            if sizes:
                rows[tensor.name] = sizes
            for copy, part in zip(copies, parts):
                shared.setdefault(copy, part)
        rows = {name: rows[name] for name in self._whole.of_batch(list(rows))}
        for weight, size in zip(self._rewrite.weights, self._weights(rows)):
            shared[weight] = np.asarray(size, np.float64)
        return shared

    def _of_readers(self, tensor: tf.Tensor, value: Any, readers: Sequence[tf.Tensor]) -> Dict[tf.Tensor, Any]:
        """The rows of a batch that the script feeds in place of reading it; anything else is given to all readers."""
        is_batch = any(
            tensor.op.name == one.source and tensor.value_index in one.dense for one in self._rewrite.divisions
        )
        values = np.array_split(value, len(readers)) if is_batch else [value] * len(readers)
        return dict(zip(readers, values))

    def _fed_for_copies(self, feeds: Dict[tf.Tensor, Any], unneeded: Container[str]) -> Dict[str, Fed]:
        """Of what a run needs, what is fed for several copies; a sparse tensor by the name of its indices."""
        by_name = {tensor.name: value for tensor, value in feeds.items()}
        parts = {part.name for key in self._sparse.values() for part in (key.values, key.dense_shape)}
        parts.update(copy.name for tensor in feeds for copy in self.copies(tensor) if copy is not tensor)  # cut ahead
        found = {}
        for tensor, value in feeds.items():
            copies = self.copies(tensor)
            if len(copies) == 1 or tensor.name in unneeded or tensor.name in parts:
                continue
            if tensor.op.name in self._rewrite.read_once:
                continue
            key = self._sparse.get(tensor.name)
            shape = np.shape(value) if key is None else tuple(by_name[key.dense_shape.name])
            size = _first_dimension(tensor) if key is None else None
            is_cut = copies[-1].name in by_name
            rows = shape[0] * (len(copies) if is_cut else 1) if shape else 0
            says_rank = tensor.shape.ndims if key is None else tf.dimension_value(key.dense_shape.shape[0])
            rank = len(shape) if says_rank is None else None
            sharers = self._cuts.sharers(len(copies))
            if shape:
                found[tensor.name] = Fed(int(rows), len(copies), sharers, rank, size is not None, is_cut)
        return found

    def _refuse_without_copies(self, feeds: Iterable[tf.Tensor]) -> None:
        rewrite = self._rewrite
        for tensor in feeds:
            if tensor.op.name in rewrite.folded or tensor.op.name in rewrite.micro_merged:
                raise FeedError(
                    "{!r} was fed in a step of a pipeline, of which micro batch 0 alone would see the value: it is {}. "
                    "Feed a tf.placeholder_with_default in its place.".format(
                        tensor.name,
                        "a constant that the others have built in"
                        if tensor.op.name in rewrite.folded
                        else "a shape that gradients take",
                    )
                )

    def repeat(self, feeds: Dict[tf.Tensor, Any]) -> Dict[tf.Tensor, Any]:
        """The feeds of all local replicas, where each gets all of what the user fed."""
        return {copy: value for tensor, value in feeds.items() for copy in self.copies(tensor)}

    def by_replica(self, tensor: tf.Tensor, values: Sequence[Any]) -> Dict[tf.Tensor, Any]:
        """The feeds of all local replicas, given a value for each rank of the job."""
        copies = self.copies(tensor)
        replicas = self._rewrite.local_replicas if len(copies) > 1 else 1
        of_replica = len(copies) // replicas
        return {copy: np.asarray(values[self._rewrite.base_rank + at // of_replica]) for at, copy in enumerate(copies)}

    def refuse_unused_parts(self, feeds: Dict[tf.Tensor, Any], unneeded: Container[str], is_shared: bool) -> None:
        """Raises FeedError if a value was cut ahead for copies that take no part in the run, which needs the value.

        Args:
          feeds: what `cut_ahead` gave.
          unneeded: names of tensors that the run does not need.
          is_shared: whether the feeds are shared out.
        """
        fed = {tensor.name for tensor in feeds}
        cut = dict(getattr(self._of_thread, "cut", {}))
        if not is_shared:
            copies = [(tensor, self.copies(tensor)) for tensor in feeds]
            cut.update((t.name, len(of) * _first_dimension(t)) for t, of in copies if of[1:] and of[-1].name in fed)
        for tensor in feeds:
            if tensor.name in cut and tensor.name not in unneeded:
                size = _first_dimension(tensor)
                raise FeedError(
                    "{} has a first dimension of {} and was fed {} rows, in a run in which replica 0 alone takes it. "
                    "Feed it {} rows.".format(tensor.name, size, cut[tensor.name], size)
                )

    def _share_sparse(
        self, key: tf.SparseTensor, fed: Dict[str, Any], shared: Dict[tf.Tensor, Any], base: int
    ) -> Tuple[int, ...]:
        """Cuts a fed sparse tensor by its dense rows; returns those of each copy."""
        tensors = (key.indices, key.values, key.dense_shape)
        indices, values, shape = (np.asarray(fed[t.name]) for t in tensors)
        copies = [self.copies(t) for t in tensors]
        count = max(len(of) for of in copies)  # what the model does not take, or is constant, has fewer
        if self._cuts.shares:
            sizes = self._cuts.sizes(key.values.name, int(shape[0]), count, base)
        else:
            rows, rest = divmod(int(shape[0]), count)
            if rest or not (rows or self._cuts.may_be_empty):
                raise FeedError(
                    "{} was fed a sparse tensor of {} rows, which cannot be cut evenly for {}: feed a multiple of {} "
                    "rows.".format(key.values.name, shape[0], self._cuts.sharers(count), count)
                )
            sizes = (rows,) * count
        ends = np.cumsum(sizes)
        for copy, (end, rows) in enumerate(zip(ends, sizes)):
            own = (indices[:, 0] >= end - rows) & (indices[:, 0] < end)
            part = indices[own]
            part[:, 0] -= end - rows
            own_shape = shape.copy()
            own_shape[0] = rows
            for of, value in zip(copies, (part, values[own], own_shape)):
                for tensor in of[copy : copy + 1] if len(of) == count else of:
                    shared[tensor] = value
        return tuple(sizes)

    def copies(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        """The tensor in every local replica, and there in every micro batch that has its own; itself first.

        What reads a batch for several replicas is there once for these.
        """
        rewrite = self._rewrite
        if tensor.op.name in rewrite.read_once:
            names = [rewrite.prefix(reader) + tensor.name for reader in sorted(set(rewrite.readers))]
            return [rewrite.tf_graph.get_tensor_by_name(name) for name in names]
        if tensor.op.name not in self._cloned:
            return [tensor]
        prefixes = [
            rewrite.prefix(replica) + prefix
            for replica in range(rewrite.local_replicas)
            for prefix in rewrite.micro_prefixes_of(tensor.op.name)
        ]
        return [rewrite.tf_graph.get_tensor_by_name(prefix + tensor.name) if prefix else tensor for prefix in prefixes]

    def _parts_ahead(self, tensor: tf.Tensor, value: Any, copies: int) -> int:
        """Into how many parts the rows are cut that TensorFlow would not let a placeholder take; 1 for none.

        Raises:
          FeedError: rows that are neither one batch nor one for each copy.
        """
        size = _first_dimension(tensor)
        if size is None or np.ndim(value) != tensor.shape.ndims or tensor.op.name not in self._view.index:
            return 1
        if self._whole.takes_all(tensor.name):
            return 1
        fed = np.shape(value)[0]
        if copies == 1:  # no training step takes it, but it may be in the feeds of one
            replicas = self._rewrite.local_replicas
            sharers = {replicas, replicas * self._rewrite.plan.num_micro_batch}
            return fed // size if size and fed in {size * count for count in sharers} else 1
        if fed not in (size, copies * size):
            raise FeedError(
                "{} has a first dimension of {} and was fed {} rows. With {} it takes {} rows, {} for each, or {} that "
                "all of them get.".format(tensor.name, size, fed, self._cuts.sharers(copies), copies * size, size, size)
            )
        if self._cuts.shares and size and fed != size:
            raise FeedError(
                "{} has a first dimension of {} and was fed {} rows, and auto.balance gives the replicas rows in the "
                "proportions {}. Leave the first dimension open (None).".format(
                    tensor.name, size, fed, proportions(self._rewrite.plan.row_shares)
                )
            )
        return fed // size if size else 1

    def _parts(self, tensor: tf.Tensor, value: Any, copies: int, base: int) -> Tuple[List[Any], Tuple[int, ...]]:
        """The value of each copy, and their rows if the value was cut."""
        if np.ndim(value) == 0 or tensor.shape.ndims == 0:
            return [value] * copies, ()
        size = _first_dimension(tensor)
        fed = np.shape(value)[0]
        if size is not None:
            if copies > 1 and tensor.name not in self._warned:
                self._warned.add(tensor.name)
                logger.warning(
                    "%s has a first dimension of %d and was fed %d rows: each of the %s gets all. Feed %d rows to give "
                    "each its own.", tensor.name, size, fed, self._cuts.sharers(copies), copies * size,
                )  # fmt: skip
            return [value] * copies, ()
        sizes = self._cuts.sizes(tensor.name, fed, copies, base)
        return np.split(np.asarray(value), np.cumsum(sizes)[:-1]), sizes

    def _weights(self, rows: Dict[str, Tuple[int, ...]]) -> Tuple[int, ...]:
        """Rows of each replica, by the first placeholder that was cut; the others must be cut in proportion."""
        replicas = self._rewrite.local_replicas
        sums = {name: tuple(int(n) for n in np.reshape(parts, (replicas, -1)).sum(1)) for name, parts in rows.items()}
        if not sums:
            return ()
        first = min(sums)
        for name, sizes in sums.items():
            for size, own in zip(sizes, sums[first]):
                if size * sum(sums[first]) != own * sum(sizes):
                    raise FeedError(
                        "{} is cut into {} rows and {} into {}: the replicas would get unequal shares of the two. Feed "
                        "multiples of {} rows.".format(first, list(sums[first]), name, list(sizes), replicas)
                    )
        return sums[first]


def _first_dimension(tensor: tf.Tensor) -> Any:
    """The static first dimension, or None."""
    if tensor.shape.ndims is None or tensor.shape.ndims == 0:
        return None
    return tf.dimension_value(tensor.shape[0])
