"""ZeRO v2: a weight is gathered for each block of its uses, and dropped after them.

    shard --> [placeholder] --> MatMul --> ... --> MatMulGrad      shard --> all-gather --> MatMul --> ...
                                                           =>       '--> all-gather' ------------> MatMulGrad
                                                                             ^ waits for a gradient

Before this pass, a placeholder of its shape takes the place of the full weight; afterwards no op reads the placeholder.
`epl.parallel.zero.gather_schedule` decides which weight is gathered when. All-gathers are stateful ops, so TensorFlow
does not merge them as duplicates.

The pass runs after recomputation: the recomputed ops read weights as the rest of the backward pass does.
"""

import logging
from typing import Any, List, NamedTuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import Clone, clone_each
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
from epl.parallel.rewriting.context import RewriteContext, ScheduledGather
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.weights.prefetch import Fetch, bytes_at_a_time, largest_names, weight_bytes
from epl.parallel.zero.gather_schedule import Gathers, plan_gathers
from epl.parallel.zero.model import ZeroModel, zero_of
from epl.utils import tf_compat

logger = logging.getLogger("epl")

SCOPE = "EPL_GATHER_PER_USE"  # scope of copies per block, of ops computed from a weight alone, such as a cast


def run(rewrite: RewriteContext) -> None:
    """Replaces the placeholders by gathers."""
    zero = zero_of(rewrite.graph)
    if zero is None or not zero.placeholders:
        return
    with rewrite.tf_graph.as_default():
        _GatherPerUse(rewrite, zero).run()


class _Fetched(NamedTuple):
    """A weight that was gathered for its uses in a block.

    Attributes:
      fetch: the uses.
      full: the full weight.
      prefix: name prefix of the copies of `chain`.
      chain: the ops between the weight and its uses, as nodes of the view.
    """

    fetch: Fetch
    full: tf.Tensor
    prefix: str
    chain: List[int]


class _GatherPerUse:
    """The gathers of one graph."""

    def __init__(self, rewrite: RewriteContext, zero: ZeroModel) -> None:
        self._rewrite = rewrite
        self._zero = zero
        self._view = GraphView(rewrite.tf_graph)
        self._placeholders = {self._view.index[one.tensor.op.name]: one for one in zero.placeholders}
        self._plan = self._planned()

    def _planned(self) -> Gathers:
        graph, view = self._rewrite.graph, self._view
        variables = {node: view.index[one.variable.made.variable.op.name] for node, one in self._placeholders.items()}
        gradients = boundary_nodes(view, graph.gradient_calls)
        replaced = {view.index[one.original.op.name] for one in graph.replacements.values()}
        merged = {view.index[output.tensor.partition(":")[0]] for output in self._rewrite.plan.outputs}
        return plan_gathers(graph.tf_graph, view, variables, gradients, replaced, merged)

    def run(self) -> None:
        """Adds the gathers: those of the streams, the up-front ones, the unused ones."""
        fetched: List[_Fetched] = []
        for number, fetches in enumerate(self._plan.streams):
            resharder = self._zero.new_stream()
            stream: List[ScheduledGather] = []
            for place, fetch in enumerate(fetches):
                prefix = f"{SCOPE}/stream{number}_{place}/"
                fetched.append(_Fetched(fetch, self._gather(fetch, resharder), prefix, self._chain(fetch)))
                stream.append(ScheduledGather(resharder.collectives[-1].name, fetch.block))
            self._rewrite.gather_streams.append(stream)
        self._give_fetched(fetched)
        for full in self._plan.up_front:
            self._give_rest(full, self._zero.resharder, self._placeholders[full].variable.updates())
        if self._plan.unused:
            resharder = self._zero.new_stream()
            for full in self._plan.unused:
                self._rewrite.unused_gathers.append(self._give_rest(full, resharder, ()).name)
        self._report()

    def _gather(self, fetch: Fetch, resharder: Any) -> tf.Tensor:
        """Gathers a weight for its uses in a block."""
        waits = [self._operation(node) for node in fetch.waits]
        full = self._zero.gather(self._placeholders[fetch.source].variable, resharder, waits)
        for node in self._plan.updates.get(fetch.source, ()):
            tf_compat.add_control_inputs(self._rewrite.remember(self._operation(node)), [resharder.collectives[-1]])
        return full

    def _chain(self, fetch: Fetch) -> List[int]:
        """The ops between a weight and its uses in a block, such as a cast."""
        view, weights = self._view, self._plan.region.weights
        values = {self._plan.values[use.consumer, use.position][0] for use in fetch.uses}
        chain = view.ancestors(values, lambda node: node not in weights or node == fetch.source)
        return sorted(node for node in chain if node in weights and node != fetch.source)

    def _give_fetched(self, fetched: List[_Fetched]) -> None:
        """Copies the ops between weights and their uses, on the values gathered for these, and connects the uses."""
        view, rewrite = self._view, self._rewrite
        clones = [
            Clone(one.chain, one.prefix, {view.nodes[one.fetch.source].name: one.full.op.name}) for one in fetched
        ]
        clone_each(rewrite.tf_graph, view, clones)
        for one in fetched:
            for node in one.chain:
                name = view.nodes[node].name
                rewrite.copies_per_use.setdefault(name, []).append(one.prefix + name)
            for use in one.fetch.uses:
                node, output = self._plan.values[use.consumer, use.position]
                tensor = one.full
                if node != one.fetch.source:
                    tensor = rewrite.operation(one.prefix + view.nodes[node].name).outputs[output]
                tf_compat.set_input(rewrite.remember(self._operation(use.consumer)), use.position, tensor)

    def _give_rest(self, full: int, resharder: Any, guarded: Any) -> tf.Tensor:
        """Gathers a weight for all remaining consumers of its placeholder, before the `guarded` ops run."""
        placeholder = self._placeholders[full]
        tensor = self._zero.gather(placeholder.variable, resharder)
        for op in guarded:
            tf_compat.add_control_inputs(op, [resharder.collectives[-1]])
        for consumer in set(placeholder.tensor.consumers()):
            for position, taken in enumerate(consumer.inputs):
                if taken is placeholder.tensor:
                    tf_compat.set_input(self._rewrite.remember(consumer), position, tensor)
        return tensor

    def _operation(self, node: int) -> tf.Operation:
        return self._rewrite.operation(self._view.nodes[node].name)

    def _report(self) -> None:
        fetches = [fetch for stream in self._plan.streams for fetch in stream]
        logger.info(
            "zero.level: %d weights are gathered %d times in a step, of which %.3f MB are there at a time",
            len({fetch.source for fetch in fetches}), len(fetches), bytes_at_a_time(fetches) / 1e6,
        )  # fmt: skip
        sizes = {self._placeholders[full].variable.made.name: self._bytes(full) for full in self._plan.up_front}
        if sizes:
            logger.info(
                "zero.level: %d weights (%.3f MB) are gathered at the beginning of a step, for loops, what does not "
                "train, or ops that know nothing of the data: %s.",
                len(sizes), sum(sizes.values()) / 1e6, largest_names(sizes),
            )  # fmt: skip

    def _bytes(self, full: int) -> int:
        return weight_bytes(self._rewrite.tf_graph, self._view, full, 0)


PASS = Pass(
    "gather_per_use",
    run,
    "zero.level",
    provides=names("copies_per_use gather_streams unused_gathers"),
    after=names("recompute offload"),
)
