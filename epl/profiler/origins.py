"""Where the ops of a rewritten graph come from: those that EPL added from decisions, those of the user from lines.

op of the graph --in `Graph.inserted`--> its decision, and the step that added it
                '-else, the user's-----> file and line of the script
"""

from collections import Counter
from typing import Dict, List, NamedTuple, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.colocation import taskgraph_index
from epl.ir.graph import Graph
from epl.ir.taskgraph import PHASE_ATTR
from epl.utils import tf_compat
from epl.utils.source_line import user_place


class InsertedFacts(NamedTuple):
    """Ops that EPL added for one decision, in one step.

    Attributes:
      decision: a configuration key, or a word for what the annotation says, such as "replicas".
      step: the pass, or the part of a feature, that added them.
      ops: how many.
    """

    decision: str
    step: str
    ops: int


class SourceFacts(NamedTuple):
    """Lines of the script that made ops of a TaskGraph.

    Attributes:
      taskgraph: its number.
      file: path of the file.
      first, last: lines.
      ops: how many the lines between them made.
    """

    taskgraph: int
    file: str
    first: int
    last: int
    ops: int


class GraphOrigins(NamedTuple):
    """Where the ops of a graph come from.

    Attributes:
      inserted: by EPL, the steps of most ops first.
      sources: of the user's ops of the forward pass; by TaskGraph, those of most ops first.
      user_ops: how many ops are the user's.
      located: how many of them have a line of the script.
    """

    inserted: Tuple[InsertedFacts, ...]
    sources: Tuple[SourceFacts, ...]
    user_ops: int
    located: int


class _Found(NamedTuple):
    """State of a graph (`Graph.state_of`): what was found when it had a number of ops."""

    ops: int
    origins: GraphOrigins


def find_origins(graph: Graph) -> GraphOrigins:
    """The origins of the ops that a graph has now."""
    known, ops = graph.state_of(_Found), tf_compat.num_nodes(graph.tf_graph)
    if known is None or known.ops != ops:
        known = graph.keep(_Found, _Found(ops, _find(graph)))
    return known.origins


def _find(graph: Graph) -> GraphOrigins:
    tf_graph = graph.tf_graph
    inserted = graph.inserted.by_name()
    counts = Counter(inserted.values())
    lines: Dict[Tuple[int, str], List[int]] = {}
    own = tf_compat.op_names(tf_graph) - inserted.keys()
    located = 0
    for name in own - _unwrapped(graph):
        op = tf_graph.get_operation_by_name(name)
        place = user_place(op)
        if place is None:
            continue
        located += 1
        taskgraph = taskgraph_index(op)
        if taskgraph is not None and _is_forward(op):
            lines.setdefault((taskgraph, place[0]), []).append(place[1])
    sources = [
        SourceFacts(taskgraph, file, min(found), max(found), len(found)) for (taskgraph, file), found in lines.items()
    ]
    return GraphOrigins(
        tuple(sorted((InsertedFacts(*origin, ops=n) for origin, n in counts.items()), key=lambda one: (-one.ops, one))),
        tuple(sorted(sources, key=lambda one: (one.taskgraph, -one.ops, one.file))),
        len(own),
        located,
    )


def describe_origins(origins: GraphOrigins) -> List[str]:
    """The origins in lines for a person."""
    by_decision: Dict[str, List[InsertedFacts]] = {}
    for one in origins.inserted:
        by_decision.setdefault(one.decision, []).append(one)
    lines = []
    for decision, steps in by_decision.items():
        words = ", ".join(f"{one.step} {one.ops:,}" for one in steps)
        lines.append(f"{sum(one.ops for one in steps):,} ops for {decision}: {words}")
    for source in origins.sources:
        place = f"{source.first}" if source.first == source.last else f"{source.first}-{source.last}"
        lines.append(f"TaskGraph {source.taskgraph}: {source.ops:,} ops by {source.file}:{place}")
    return lines


def _is_forward(op: tf.Operation) -> bool:
    try:
        op.get_attr(PHASE_ATTR)
    except ValueError:
        return True
    return False


def _unwrapped(graph: Graph) -> Set[str]:
    """Names of ops that no Python code has made: copies that passes imported."""
    return tf_compat.untouched_names(graph.tf_graph)
