"""A split and ZeRO in one model: parts over the ranks of a split group, and parts over all ranks.

    w of the split      each of the ranks of a group has a part, as have those of the other groups
    w around it         each rank of the job has a part

No variable is of both. Each follows its own parts through updates, and takes those of the other for whole: what is
computed from both, such as a norm of all gradients, takes sums that either has completed.
"""

from typing import Dict, List, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.service import CommunicatorSpec
from epl.parallel.sharded_variables.checkpoints import Checkpoints
from epl.parallel.sharded_variables.savers import Held
from epl.parallel.sharded_variables.slots import Made
from epl.parallel.sharded_variables.state import Choice, Shards, Shown

_Attrs = Dict[int, List[List[Tuple[str, tf.AttrValue]]]]


class ShardsTogether:
    """What passes and sessions ask of Shards, of several of one graph. See there for what each does."""

    def __init__(self, graph: Graph, members: Sequence[Shards]) -> None:
        """Takes the Shards, of which none has been finished."""
        self._members = list(members)
        self.checkpoints = Checkpoints(graph, members)

    @property
    def held(self) -> Dict[str, Held]:
        """As that of Shards."""
        return {name: held for one in self._members for name, held in one.held.items()}

    @property
    def shapes(self) -> Dict[str, Tuple[Tuple[int, ...], ...]]:
        """As that of Shards."""
        return {name: shapes for one in self._members for name, shapes in one.shapes.items()}

    @property
    def unopened(self) -> List[CommunicatorSpec]:
        """As that of Shards."""
        return [spec for one in self._members for spec in one.unopened]

    @property
    def collectives(self) -> List[tf.Operation]:
        """As that of Shards."""
        return [op for one in self._members for op in one.collectives]

    @property
    def reads(self) -> Dict[tf.Tensor, Tuple[tf.Operation, ...]]:
        """As that of Shards."""
        return {tensor: others for one in self._members for tensor, others in one.reads.items()}

    @property
    def gathered(self) -> Set[tf.Tensor]:
        """As that of Shards."""
        return set().union(*[one.gathered for one in self._members])

    def shown(self, tensor: tf.Tensor) -> Shown:
        """As that of Shards."""
        for one in self._members:
            shown = one.shown(tensor)
            if shown.tensor is not tensor:
                return shown
        return Shown(tensor, ())

    def has_value(self, part: str, first: tf.Tensor) -> Shown:
        """As that of Shards."""
        return next(one for one in self._members if part in one.held).has_value(part, first)

    def leads(self) -> Dict[tf.Tensor, Tuple[Tuple[int, ...], ...]]:
        """As that of Shards."""
        return {tensor: by_rank for one in self._members for tensor, by_rank in one.leads().items()}

    def refuse_copied_rows(self, fetches: Sequence[tf.Tensor], differentiates: bool) -> None:
        """As that of Shards."""
        for one in self._members:
            one.refuse_copied_rows(fetches, differentiates)

    def refuse_feed(self, tensor: tf.Tensor) -> None:
        """As that of Shards."""
        for one in self._members:
            one.refuse_feed(tensor)

    def meant(self, op: tf.Operation) -> tf.Operation:
        """As that of Shards."""
        for one in self._members:
            op = one.meant(op)
        return op

    def part_of(self, name: str) -> str:
        """As that of Shards."""
        for one in self._members:
            name = one.part_of(name)
        return name

    def results(self) -> Set[str]:
        """As that of Shards."""
        found: Set[str] = set().union(*[one.results() for one in self._members])
        return found.difference(*[one.outdated() for one in self._members])

    def replaced(self) -> List[str]:
        """As that of Shards."""
        return [name for one in self._members for name in one.replaced()]

    def choices(self) -> List[Choice]:
        """As that of Shards."""
        return [choice for one in self._members for choice in one.choices()]

    def initializers(self) -> List[str]:
        """As that of Shards."""
        return sorted({name for one in self._members for name in one.initializers()})

    def own_attrs(self, view: GraphView, cloned: Set[int]) -> _Attrs:
        """As that of Shards."""
        found: _Attrs = {}
        for one in self._members:
            for node, by_rank in one.own_attrs(view, cloned).items():
                if node not in found or any(by_rank):  # not what is only known to be the same on all ranks
                    found[node] = by_rank
        return found

    def adopt_updates(self, made: Sequence[Made] = ()) -> None:
        """As that of Shards."""
        for one in self._members:
            one.adopt_updates(made)

    def finish(self) -> None:
        """As that of Shards."""
        for one in self._members:
            one.finish()
