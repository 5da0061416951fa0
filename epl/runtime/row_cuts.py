"""How many rows each copy of a fed placeholder gets.

    K copies, even rows       10 rows for 4 copies                                3  3  2  2
    proportions 5:3:1         96 rows for 3 replicas                              53  32  11
                              96 rows for 3 replicas x 2 micro batches            27 27  16 16  5 5

The micro batches of a replica have as many rows: with proportions, rows are shared out in units of one row for each
micro batch. A placeholder with several rows for each row of another one is cut in the proportions of that one.
"""

from typing import Tuple

from epl.parallel.plan.plan import proportions
from epl.parallel.plan.row_shares import local_shares, ranks_without_rows, rows_for_all, share_out
from epl.parallel.rewriting.context import RewriteContext
from epl.utils.errors import FeedError


class RowCuts:
    """Cuts the rows of the placeholders of one rewritten graph.

    Attributes:
      shares: the proportions of the replicas of this process; () if all have as many rows.
      may_be_empty: whether a batch of no rows may be fed: rows are uneven, and other processes have those of the step.
    """

    def __init__(self, rewrite: RewriteContext) -> None:
        self._replicas = rewrite.local_replicas
        self._micro_batches = rewrite.plan.num_micro_batch
        self.shares = local_shares(rewrite.plan, rewrite.cluster.worker_index)
        self.may_be_empty = bool(rewrite.plan.row_shares) and len(set(rewrite.plan.owners)) > 1

    def sizes(self, name: str, rows: int, copies: int, base: int) -> Tuple[int, ...]:
        """The rows of each copy: replica after replica, and its micro batches within it.

        Args:
          name: of the placeholder.
          rows: that were fed.
          copies: of the placeholder, one for each replica or one for each of its micro batches.
          base: the smallest number of rows that this run cuts; other numbers may be multiples of it.

        Raises:
          FeedError: the rows cannot be cut.
        """
        if not rows and self.may_be_empty:
            return (0,) * copies
        if self.shares and copies >= self._replicas:
            return self._uneven(name, rows, copies, base)
        if rows < copies:
            raise FeedError(
                "{} was fed {} row(s), and they are shared out among {}: feed at least {}, or call epl.keep_whole for "
                "what holds no rows of a batch and all of them get.".format(name, rows, self.sharers(copies), copies)
            )
        each, rest = divmod(rows, copies)
        if rest and copies > self._replicas:
            raise FeedError(
                "{} was fed {} rows, which cannot be cut evenly for {}: feed a multiple of {} rows.".format(
                    name, rows, self.sharers(copies), copies
                )
            )
        return tuple(each + (copy < rest) for copy in range(copies))

    def _uneven(self, name: str, rows: int, copies: int, base: int) -> Tuple[int, ...]:
        """The rows of each copy in the proportions of the replicas."""
        each = copies // self._replicas
        several = rows // base if base and rows % base == 0 else 1
        unit = self._micro_batches if rows // several % self._micro_batches == 0 else 1
        if unit % each:
            raise FeedError(
                "{} was fed {} rows, which cannot be cut evenly for {}: feed a multiple of {} rows.".format(
                    name, rows, self.sharers(copies), each
                )
            )
        found = share_out(rows // several // unit, self.shares)
        without = ranks_without_rows(found)
        if without:
            raise FeedError(
                "{} was fed {} row(s), which are cut in the proportions {} for {}: replica(s) {} of this process would "
                "have none. Feed at least {} rows, or give auto.balance proportions that are nearer to each other; "
                "call epl.keep_whole for what holds no rows of a batch and all of them get.".format(
                    name,
                    rows,
                    proportions(self.shares),
                    self.sharers(copies),
                    ", ".join(map(str, without)),
                    rows_for_all(self.shares) * unit,
                )
            )
        return tuple(own * several * unit // each for own in found for _ in range(each))

    def sharers(self, copies: int) -> str:
        """Who shares the rows of a placeholder with that many copies, in words."""
        if copies == self._replicas:
            return f"{self._replicas} local replicas"
        return f"{self._replicas} local replica(s) x {copies // self._replicas} micro batches"
