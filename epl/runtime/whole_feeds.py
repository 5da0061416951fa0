"""Which fed values every replica and micro batch gets whole, and which hold the rows of the batch and are cut.

What holds no rows is known from `epl.keep_whole`, or from the graph (epl/parallel/sharding/row_dimensions.py). Where
that shows nothing, what is fed to an open first dimension counts as rows: then all have the same number of them.
"""

import logging
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import first_tensor
from epl.parallel.plan.replica_groups import replica_groups
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.sharding.row_dimensions import Dimensions, find_dimensions
from epl.utils.errors import FeedError

logger = logging.getLogger("epl")


class Fed(NamedTuple):
    """A value that is fed for several copies of a placeholder.

    Attributes:
      rows: of its first dimension, or of the dense shape.
      copies: of the placeholder.
      sharers: who has them, in words.
      rank: of the value, if the placeholder does not say it.
      is_known: whether the placeholder says its first dimension.
      is_cut: whether it does, and the rows are those of all copies.
    """

    rows: int
    copies: int
    sharers: str
    rank: Optional[int]
    is_known: bool
    is_cut: bool


class WholeFeeds:
    """Tells the whole feeds of one rewritten graph."""

    def __init__(self, rewrite: RewriteContext) -> None:
        assert rewrite.view is not None
        self._rewrite = rewrite
        self._view = rewrite.view
        self._said = {tensor.name for tensor in rewrite.graph.whole_inputs}
        self._by_hand: Optional[FrozenSet[str]] = None
        self._trained: Optional[Set[int]] = None
        self._dimensions: Dict[Tuple[FrozenSet[str], FrozenSet[Tuple[str, int]]], Optional[Dimensions]] = {}
        self._warned: Set[str] = set()

    def find(self, fed: Mapping[str, Fed], sparse: Sequence[tf.SparseTensor]) -> Set[str]:
        """The names of the fed tensors that all get whole, known first dimensions that are fed as they are left out.

        Args:
          fed: what the run needs and feeds for several copies; a sparse tensor by the name of its indices.
          sparse: all sparse placeholders that were ever fed.

        Raises:
          FeedError: two of them cannot be shared out together.
        """
        dimensions = self._dimensions_of(fed, sparse) if fed else None
        sizes = {} if dimensions is None else {name: of for name, of in dimensions.sizes.items() if of and name in fed}
        whole = {name for name, one in fed.items() if self._is_whole(name, one, sizes, dimensions)}
        if dimensions is not None:
            whole |= self._cannot_be_cut(fed, sizes, dimensions)
        cut = [name for name, one in sorted(fed.items()) if name not in whole and (one.is_cut or not one.is_known)]
        if dimensions is not None:
            _refuse_matches(fed, cut, sizes, dimensions)
            _refuse_groups(fed, cut, sizes, dimensions)
        together = self.of_batch(cut)
        for name in together[1:]:
            _refuse_other_rows(together[0], name, fed, sizes)
        return whole

    def of_batch(self, names: Sequence[str]) -> List[str]:
        """Those of the names of fed tensors that training needs; all if it needs none of them."""
        if self._trained is None:
            view = self._view
            self._trained = self._rewrite.needed_by(view, {view.index[name] for name in self._gradients()})
        trained = [name for name in names if self._view.index.get(name.partition(":")[0]) in self._trained]
        return trained or list(names)

    def _gradients(self) -> Set[str]:
        """Names of the ops that give gradients, and what they are gradients of."""
        graph = self._rewrite.graph
        return self._rewrite.gradients().union(*[[y.op.name for y in call.ys] for call in graph.gradient_calls])

    def _is_whole(
        self, name: str, fed: Fed, sizes: Mapping[str, Tuple[int, ...]], dimensions: Optional[Dimensions]
    ) -> bool:
        if self.takes_all(name):
            return True
        if fed.is_known or dimensions is None or name not in sizes:
            return False
        first = sizes[name][0]
        if fed.rows == dimensions.known.get(first):
            return True
        # A split is built for those that it has said to be whole.
        return first in dimensions.no_rows and replica_groups(self._rewrite.graph) is None

    def takes_all(self, name: str) -> bool:
        """Whether all copies of a tensor get the same, whatever the shapes tell."""
        return name in self._said or name in self._written_by_hand() or self._is_variable(name)

    def _is_variable(self, name: str) -> bool:
        node = self._view.index.get(name.partition(":")[0])
        return node is not None and (
            self._view.types[node] in op_types.VARIABLES
            or self._view.types[node] in op_types.READS
            and bool(self._view.variable_inputs(node))
        )

    def _written_by_hand(self) -> FrozenSet[str]:
        """The placeholders that nothing takes but writes of variables of which all replicas hold the same."""
        if self._by_hand is None:
            rewrite, view = self._rewrite, self._view
            writes = {
                node
                for node in rewrite.writes
                if any(view.nodes[v].name in rewrite.global_variables for v in view.variable_inputs(node))
            }
            names = self._gradients().union(output.tensor.partition(":")[0] for output in rewrite.plan.outputs)
            others = {view.index[name] for name in names} | (rewrite.writes - writes)
            alone = rewrite.needed_by(view, writes) - rewrite.needed_by(view, others)
            found = alone.intersection(view.user_placeholders())
            self._by_hand = frozenset(view.nodes[node].name + ":0" for node in found)
        return self._by_hand

    def _dimensions_of(self, fed: Mapping[str, Fed], sparse: Sequence[tf.SparseTensor]) -> Optional[Dimensions]:
        ranks = {name: one.rank for name, one in fed.items() if one.rank is not None}
        key = frozenset(one.indices.name for one in sparse), frozenset(ranks.items())
        if key not in self._dimensions:
            graph = self._rewrite.graph
            objective = [first_tensor(y).name for call in graph.gradient_calls for y in call.ys]
            groups = replica_groups(graph)
            users = {} if groups is None else groups.users_tensors()
            found = find_dimensions(self._rewrite.tf_graph, self._view, objective, sparse, users, ranks)
            self._dimensions[key] = found
            if found is not None and found.no_rows:
                names = [name for name, of in found.sizes.items() if of and of[0] in found.no_rows]
                logger.info("%s: the first dimension holds no rows of the batch; all get it whole.", ", ".join(names))
        return self._dimensions[key]

    def _cannot_be_cut(
        self, fed: Mapping[str, Fed], sizes: Mapping[str, Tuple[int, ...]], dimensions: Dimensions
    ) -> Set[str]:
        """What is one whole, as a graph with the adjacency or the edges of its nodes."""
        twice = {of[0]: name for name, of in sizes.items() if of.count(of[0]) > 1}
        found = {name for name, of in sizes.items() if of[0] in dimensions.uncut and not fed[name].is_known}
        for name in sorted(found - self._warned):
            self._warned.add(name)
            if sizes[name][0] in twice:
                why = f"has the rows of {twice[sizes[name][0]]}, which has them in two dimensions and"
            else:
                why = "is part of a whole whose rows are fed by their numbers, as edges name the nodes of a graph, and"
            logger.warning(
                "%s %s cannot be cut: each of the %s gets all of it, and computes the same.",
                name, why, fed[name].sharers,
            )  # fmt: skip
        return found


def _refuse_matches(
    fed: Mapping[str, Fed], cut: List[str], sizes: Mapping[str, Tuple[int, ...]], dimensions: Dimensions
) -> None:
    """Raises FeedError for a value that is not cut where another one, which is, has the same rows, and others then."""
    by_size = {sizes[name][0]: name for name in reversed(cut) if name in sizes}
    for name, of in sorted(sizes.items()):
        other = by_size.get(of[0])
        if other is not None and name not in cut and fed[other].rows != fed[name].rows * fed[other].copies:
            raise FeedError(
                "{} was fed {} row(s) that each of the {} gets, and {} was fed {} that are cut for them: in the model "
                "the two have the same rows. Feed {} rows of both, or say that both hold no rows of a batch, by "
                "epl.keep_whole.".format(
                    name, fed[name].rows, fed[name].sharers, other, fed[other].rows, _rows_of_all(fed[name], fed[other])
                )
            )
        for dim, size in enumerate(of[1:], 1):
            if size in by_size and size not in dimensions.known and size != of[0]:
                raise FeedError(
                    "{} has the rows of {} in dimension {}, and rows are cut in the first dimension alone, for {}. "
                    "Feed it with the rows first; or, if {} holds no rows of a batch, call epl.keep_whole for "
                    "it.".format(name, by_size[size], dim, fed[name].sharers, by_size[size])
                )


def _refuse_groups(
    fed: Mapping[str, Fed], cut: List[str], sizes: Mapping[str, Tuple[int, ...]], dimensions: Dimensions
) -> None:
    """Raises FeedError for rows of groups that are fed by number, as those of unsorted_segment_sum, if any is cut."""
    for rows, groups in dimensions.grouped:
        names = [name for number in (rows, groups) for name, of in sorted(sizes.items()) if of[0] == number]
        found = [name for name in names if name in cut]
        if found:
            raise FeedError(
                "{} would be cut for {}, and the model groups rows by numbers that are fed and count over all of them, "
                "as tf.segment_sum does: {}. If they hold no rows of a batch, call epl.keep_whole for the numbers, the "
                "rows, and what has one row for each group: each gets all of them. If there are several rows for each "
                "one of the batch, feed them with the rows of the batch first and the several ones in a dimension of "
                "their own.".format(
                    found[0],
                    fed[found[0]].sharers,
                    ", ".join(f"{name} was fed {fed[name].rows} rows" for name in names),
                )
            )


def _rows_of_all(whole: Fed, cut: Fed) -> int:
    return whole.rows * whole.copies if whole.is_known else cut.rows


def _refuse_other_rows(one: str, other: str, fed: Mapping[str, Fed], sizes: Mapping[str, Tuple[int, ...]]) -> None:
    """Raises FeedError for values that are cut from different numbers of rows, if the graph does not show why."""
    rows = sorted([fed[one].rows, fed[other].rows])
    if rows[0] == rows[1] or (one in sizes and other in sizes and _is_multiple(sizes[one][0], sizes[other][0])):
        return
    raise FeedError(
        "{} was fed {} rows and {} was fed {}, and both would be cut for {}. If one of them holds no rows of a batch, "
        "call epl.keep_whole for it before the first run, and each gets all of it. If it holds several rows for each "
        "one of the batch, feed it with the rows of the batch first and the several ones in a dimension of their "
        "own.".format(one, fed[one].rows, other, fed[other].rows, fed[one].sharers)
    )


def _is_multiple(one: int, other: int) -> bool:
    """Whether a dimension is computed from another one: there are several of it for each of the other."""
    return one != other and max(one, other) % min(one, other) == 0
