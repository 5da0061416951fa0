"""When a sharded weight is gathered (ZeRO v2): again for each block of its uses, while the block before runs.

    forward     gather w1, w2   use w1, drop it, gather w3   use w2, drop it, gather w4   use w3 ...
    backward    ... use w3, drop it, gather w2   use w2, drop it, gather w1   use w1

Uses are found and cut into blocks as those of weights in host memory are (`prefetch.py`), but a block is only as large
as the weights around it: with blocks of the size of a large embedding, all layers could be gathered at a time.

The gathers of a stream (a communicator) are ordered, so a run of one of them also runs the earlier ones and all ops
that these wait for. A gather gets a place in a stream only where all its consumers depend on all of these ops anyway:
then no run computes more than without the stream, and no edge closes a cycle. The updates of its variable count as
consumers: they run after the gather.

Uses without a place in a stream read a weight that is gathered up front, at the beginning of the step: uses in loops,
ops that do not depend on the data, and ops that no update needs.
"""

from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.plan.zero_decisions import block_bytes
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.weights.prefetch import Fetch, Needed, find_uses, plan_fetches, weight_bytes
from epl.parallel.weights.regions import WeightRegion

_MAX_STREAMS = 4  # streams, each a communicator; a model whose branches end in separate updates needs more than one


class Gathers(NamedTuple):
    """The schedule of all gathers. A weight is given by the node of its placeholder, an op by its node.

    Attributes:
      region: the weights, and the ops that are computed from them alone.
      streams: the gathers within the step, in order; their `source` is a weight.
      values: (op, input) of a use -> (node, output) that it reads: a weight, or a value computed from it.
      updates: weight -> the ops that write its variable in a step.
      up_front: weights with an up-front gather, ordered by their first use.
      unused: weights whose up-front gather no training step uses; it serves fetches of the user.
    """

    region: WeightRegion
    streams: List[List[Fetch]]
    values: Dict[Tuple[int, int], Tuple[int, int]]
    updates: Dict[int, List[int]]
    up_front: List[int]
    unused: List[int]


def plan_gathers(
    tf_graph: tf.Graph,
    view: GraphView,
    variables: Mapping[int, int],
    gradients: Set[int],
    replaced: Set[int],
    merged: Set[int],
) -> Gathers:
    """Plans the gathers.

    Args:
      tf_graph: the graph.
      view: its view.
      variables: weight -> the variable that holds this rank's shard.
      gradients: nodes that compute gradients.
      replaced: ops that no longer run because other ops replaced them.
      merged: ops whose outputs each step merges.
    """
    region = WeightRegion(tf_graph, view, variables)
    updates, changing = _writes(tf_graph, view, region, variables, gradients)
    every = {write for writes in updates.values() for write in writes}
    needed_by_updates = view.ancestors(every)
    uses, values = [], {}
    for use in find_uses(tf_graph, view, region, view.descendants(every) | replaced, changing):
        sources = sorted(region.weights[use.source])
        if len(sources) == 1 and use.consumer in needed_by_updates:
            values[use.consumer, use.position] = (use.source, use.output)
            size = weight_bytes(tf_graph, view, sources[0], 0)
            uses.append(use._replace(source=sources[0], output=0, bytes=size))
    together = dict.fromkeys([use.consumer for use in uses], (0, False))
    fetches = plan_fetches(view, uses, together, region.order, block_bytes(sum(use.bytes for use in uses)))
    streams = _streams(fetches, Needed(view, region.order, {w for fetch in fetches for w in fetch.waits}), updates)
    fetched = {(use.consumer, use.position) for stream in streams for fetch in stream for use in fetch.uses}
    values = {place: value for place, value in values.items() if place in fetched}
    up_front, unused = _left(view, region, variables, fetched, replaced, merged)
    return Gathers(region, streams, values, updates, up_front, unused)


def _writes(
    tf_graph: tf.Graph, view: GraphView, region: WeightRegion, variables: Mapping[int, int], gradients: Set[int]
) -> Tuple[Dict[int, List[int]], Set[int]]:
    """By weight, the ops that update its variable; and the weights that cannot be gathered twice.

    The latter are written before the gradients are computed, so a second gather could return another value; or they are
    written in a loop, where an op cannot wait for a gather.
    """
    writes = find_training_writes(tf_graph, view, view.writes(), gradients)
    after = view.descendants(gradients)
    fulls: Dict[int, List[int]] = {}
    for full, variable in variables.items():
        fulls.setdefault(variable, []).append(full)
    updates: Dict[int, List[int]] = {}
    changing: Set[int] = set()
    for write in sorted(writes):
        for full in [w for variable in set(view.variable_inputs(write)) for w in fulls.get(variable, ())]:
            updates.setdefault(full, []).append(write)
            if write not in after or region.depths[write][0]:
                changing.add(full)
    return updates, changing


def _streams(fetches: Iterable[Fetch], needed: Needed, updates: Mapping[int, Sequence[int]]) -> List[List[Fetch]]:
    """Assigns each gather to a stream; gathers that fit into none are left out."""
    streams: List[Tuple[List[Fetch], Set[int]]] = []
    for fetch in fetches:
        takers = [use.consumer for use in fetch.uses] + list(updates.get(fetch.source, ()))
        new: Tuple[List[Fetch], Set[int]] = ([], set())
        for stream, waits in streams + [new] * (len(streams) < _MAX_STREAMS):
            together = sorted(waits | set(fetch.waits))
            if all(needed.by(taker, together) for taker in takers):
                stream.append(fetch)
                waits.update(fetch.waits)
                break
        if new[0]:
            streams.append(new)
    return [stream for stream, _ in streams]


def _left(
    view: GraphView,
    region: WeightRegion,
    fulls: Iterable[int],
    fetched: Set[Tuple[int, int]],
    replaced: Set[int],
    merged: Set[int],
) -> Tuple[List[int], List[int]]:
    """The weights that need an up-front gather; and those whose up-front gather only unused ops would read.

    An op is unused if it is replaced, or if it is computed from weights alone and all its readers are in `fetched`,
    which read a copy of it.
    """
    consumers = view.consumers()

    def takers(node: int) -> Set[int]:
        found = set()
        for consumer in set(consumers[node]):
            places = [(consumer, i) for i, (producer, _) in enumerate(data_inputs(view, consumer)) if producer == node]
            if not places or not fetched.issuperset(places):
                found.add(consumer)
        return found

    unused = set(replaced)
    sources = set(fulls)
    for node in reversed(region.order):
        if node in region.weights and node not in sources | merged and takers(node) <= unused:
            unused.add(node)
    left = {full: takers(full) - replaced for full in sources}
    first = sorted((min(found), full) for full, found in left.items() if found)
    return (
        [full for _, full in first if not left[full] <= unused],
        [full for _, full in first if left[full] <= unused],
    )
