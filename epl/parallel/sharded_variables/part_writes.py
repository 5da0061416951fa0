"""The comparison of what gave variables in parts their values, outside of training steps, in each process.

A process can write its own parts alone. So each process notes how each variable got its last values:

    worker 0: fc/kernel by a restore    ---- broadcast ---->    worker 1: fc/kernel by an initializer    refused

They are compared before the first step after such a write, and before full values are read. A process that gets its
parts from another group of the same split is not asked.
"""

from typing import Dict, FrozenSet, List, Mapping, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.plan.communicators import PART_WRITES
from epl.parallel.plan.plan import section
from epl.parallel.plan.sections import OffloadSection
from epl.parallel.rewriting.context import PartWritesCheck, RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils.errors import PlanError

NOTHING, INITIALIZER, RESTORE, ASSIGNMENT = range(4)
_WORDS = ("nothing", "an initializer", "a restore", "an assignment")
_KEY = "how variables in parts got their values (first training step of a session, or after they were written by hand)"


class PartWrites:
    """How the variables in parts of one session got their values since all processes compared it last.

    Attributes:
      kept: names of the variables of which this process holds parts that it gets from no other process.
      compared: whether that is the same in all processes.
      comparisons: how often it was.
    """

    def __init__(self, kept: FrozenSet[str] = frozenset()) -> None:
        self.kept = kept
        self.compared = False
        self.comparisons = 0
        self._last: Dict[str, int] = {}
        self._assigned: Dict[str, int] = {}

    def note(self, writes: Mapping[str, int]) -> None:
        """Adds the writes of a run: name of a variable's op -> INITIALIZER, RESTORE or ASSIGNMENT."""
        self._last = {**self._last, **writes}
        for name in (name for name, kind in writes.items() if kind == ASSIGNMENT):
            self._assigned[name] = self._assigned.get(name, 0) + 1
        self.compared = self.compared and not writes

    def done(self) -> None:
        """Notes that all processes have the same."""
        self._last, self._assigned = {}, {}
        self.comparisons += 1
        self.compared = True

    @property
    def last(self) -> Dict[str, int]:
        """Name of a variable's op -> its last write."""
        return dict(self._last)

    @property
    def assigned(self) -> Dict[str, int]:
        """Name of a variable's op -> how many runs have assigned it a value."""
        return dict(self._assigned)

    def of(self, variables: Sequence[str]) -> np.ndarray:
        """The last writes of variables, in order."""
        return np.asarray([self._last.get(name, NOTHING) for name in variables], np.int64)


def words(kind: int) -> str:
    """A kind of write in a message."""
    return _WORDS[kind]


def kind_of_write(is_restored: bool, is_initializer: bool) -> int:
    """The number of a write outside of training steps; an initializer may read a checkpoint."""
    return INITIALIZER if is_initializer else RESTORE if is_restored else ASSIGNMENT


def run(rewrite: RewriteContext) -> None:
    """Adds the broadcast of what worker 0 has; fills `rewrite.part_writes`."""
    sharded = rewrite.sharded
    if sharded is None or not any(_writers(sharded, name) - {0} for name in sharded.variables):
        return
    variables = tuple(sorted(sharded.variables))
    process = rewrite.cluster.worker_index
    device = rewrite.host_of(0) if section(rewrite.plan, OffloadSection) is not None else rewrite.device(0)
    with rewrite.building("variables/part_writes"), tf.device(device):
        own = tf.placeholder_with_default(np.zeros([len(variables)], np.int64), [len(variables)])
        of_worker_0 = rewrite.process_communicator(PART_WRITES).broadcast(own, rewrite.process_rank, _KEY)
    kept = frozenset(name for name in variables if process in _writers(sharded, name))
    rewrite.part_writes = PartWritesCheck(own, of_worker_0, variables, kept)


def _writers(sharded: ShardedVariables, name: str) -> FrozenSet[int]:
    """The processes that hold the parts which a checkpoint has; the other groups of a split get theirs from these."""
    group = sharded.owner_of(name).group
    return frozenset(group.owners[rank] for rank in group.writers)


def refuse_different(rewrite: RewriteContext, own: np.ndarray, of_worker_0: np.ndarray) -> None:
    """Raises PlanError if a variable got its values in another way than in worker 0."""
    check, sharded = rewrite.part_writes, rewrite.sharded
    assert check is not None and sharded is not None
    found: List[Tuple[str, int, int]] = [
        (sharded.variables[name].full_name, int(mine), int(first))
        for name, mine, first in zip(check.variables, own, of_worker_0)
        if mine != first and name in check.kept
    ]
    if not found:
        return
    name, mine, first = found[0]
    raise PlanError(different(name, rewrite.cluster.worker_index, mine, first, len(found)))


def different(name: str, worker: int, mine: int, first: int, count: int) -> str:
    """The message for a variable that has its values in another way in worker 0."""
    return (
        "{!r} has its values in worker 0 by {}, and in worker {} by {}{}. Each worker has parts of it, which no other "
        "one writes. Run the same in every worker: `saver.restore(sess, path)` without `if worker_index == 0`, "
        "with a path that all of them can read; so also initializers and assignments.".format(
            name, words(first), worker, words(mine), f" (so have {count} variables)" if count > 1 else ""
        )
    )


PASS = Pass(
    "compare_part_writes",
    run,
    "replicas",
    provides=names("part_writes"),
    after=names("broadcast_variables"),
)
