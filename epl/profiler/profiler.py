"""FLOPs and memory of a graph, from its shapes alone: nothing is run."""

from typing import Dict, Iterator, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.amp.half_ops import is_of_half_copies
from epl.parallel.costs.costs import Costs, node_costs
from epl.parallel.costs.shapes import num_bytes
from epl.profiler.batch_sizes import batch_shapes


def profile_flops(is_shape_unknown: bool = True, graph: Optional[tf.Graph] = None) -> Dict[str, int]:
    """FLOPs of each op of the user's model, by name; ops without any are left out.

    A batch that the model leaves open is that of the dataset (`Dataset.batch`). Other open dimensions count as
    `costs_shapes.UNKNOWN_DIMENSION`, loops with a known number of iterations as often as they run.

    Args:
      is_shape_unknown: an argument of the released EPL; if all shapes are known, nothing is assumed in any case.
      graph: the graph; the default graph if not given.
    """
    view, costs = _costs(graph)
    return {view.nodes[node].name: int(costs.flops[node]) for node in _users(graph, view) if costs.flops[node]}


def profile_memory(is_shape_unknown: bool = True, graph: Optional[tf.Graph] = None) -> Dict[str, int]:
    """Bytes of each tensor of the user's model, by name; those that take none are left out.

    Args:
      is_shape_unknown, graph: as for `profile_flops`. Open dimensions count as there.
    """
    view, costs = _costs(graph)
    sizes = (
        (f"{view.nodes[node].name}:{output}", num_bytes(tensor))
        for node in _users(graph, view)
        for output, tensor in enumerate(costs.types[node])
    )
    return {name: size for name, size in sizes if size}


def _costs(graph: Optional[tf.Graph]) -> Tuple[GraphView, Costs]:
    tf_graph = graph or tf.get_default_graph()
    view = GraphView(tf_graph)
    return view, node_costs(tf_graph, view, range(len(view)), known=batch_shapes(view), with_backward=False)


def _users(graph: Optional[tf.Graph], view: GraphView) -> Iterator[int]:
    """The user's nodes: nodes that the rewriting added would count the model several times."""
    known = Graph.of(graph or tf.get_default_graph())
    added = known.rewritten.added if known is not None and known.rewritten is not None else frozenset()
    return (
        node
        for node in range(len(view))
        if view.nodes[node].name not in added and not is_of_half_copies(view.nodes[node].name)
    )
