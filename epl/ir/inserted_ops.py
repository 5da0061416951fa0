"""Which decision each op that EPL adds to a graph follows from.

    the user's script       tf.gradients                        passes
    ops of the user    |    feature  user's  feature  ...   |   pass   pass  ...
                            ops      ops     ops                ops    ops

While the user builds, ops belong to the innermost `following`, by their numbers: each switch notes the last op so far.
Passes import ops without numbers, so these are told by name.
"""

import contextlib
import weakref
from typing import Dict, Iterable, Iterator, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

from epl.utils import tf_compat

THE_USER = ""  # whose ops follow from no decision


class OpOrigin(NamedTuple):
    """What an op follows from.

    Attributes:
      decision: a configuration key, or a word for what the annotation says: "epl.split", "replicas".
      step: what adds the op: the name of a pass, or of a part of a feature.
    """

    decision: str
    step: str


class InsertedOps:
    """The ops that EPL has added to one graph."""

    def __init__(self, tf_graph: tf.Graph) -> None:
        """Knows of none."""
        self._tf_graph = weakref.ref(tf_graph)
        self._open: List[OpOrigin] = []
        self._ranges: List[Tuple[int, int, OpOrigin]] = []  # last op before, last op, by number
        self._names: Dict[str, OpOrigin] = {}
        self._last = 0

    @contextlib.contextmanager
    def following(self, origin: OpOrigin) -> Iterator[None]:
        """Ops created inside follow from a decision, those of an inner `following` from its own."""
        self._switch()
        self._open.append(origin)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    @property
    def is_open(self) -> bool:
        """Whether ops that are created now follow from a decision."""
        return bool(self._open) and self._open[-1].decision != THE_USER

    def add(self, names: Iterable[str], origin: OpOrigin) -> None:
        """Notes ops by name."""
        self._names.update(dict.fromkeys(names, origin))

    def by_name(self) -> Dict[str, OpOrigin]:
        """Name of an op -> what it follows from; ops that are not there are the user's."""
        tf_graph = self._tf_graph()
        assert tf_graph is not None
        found: Dict[str, OpOrigin] = {}
        for before, last, origin in self._ranges:
            found.update((op.name, origin) for op in tf_compat.ops_between(tf_graph, before, last))
        found.update(self._names)
        return found

    def _switch(self) -> None:
        tf_graph = self._tf_graph()
        assert tf_graph is not None
        last = tf_compat.last_op_id(tf_graph)
        if self.is_open and last > self._last:
            self._ranges.append((self._last, last, self._open[-1]))
        self._last = last
