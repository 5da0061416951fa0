"""The batch size of an input pipeline, where the shapes of a graph leave it open: that of its dataset.

dataset of batches of 32 --> IteratorGetNext [?, 784]    =>    IteratorGetNext [32, 784]
"""

from typing import Dict, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.rewriting.batch_constants import UnknownBatchError, batch_sizes_of
from epl.parallel.rewriting.function_bodies import MAIN, Bodies

_GET_NEXT = ("IteratorGetNext", "IteratorGetNextSync")

Shape = Tuple[Optional[int], ...]


def batch_shapes(view: GraphView) -> Dict[str, Shape]:
    """Name of a tensor of an iterator with an open first dimension -> its shape with the batch size.

    Of an iterator over several datasets the first one counts.
    """
    sources = view.of_types(_GET_NEXT)
    if not sources:
        return {}
    graph_def = tf.GraphDef(library=view.graph_def.library)
    graph_def.node.extend(node.to_proto() for node in view.nodes)
    bodies = Bodies(graph_def)
    found: Dict[str, Shape] = {}
    for index in sources:
        get_next = bodies.all[MAIN].nodes[view.nodes[index].name]
        try:
            batch = batch_sizes_of(bodies, get_next.name)[0].rows
        except UnknownBatchError:
            continue
        for output, shape in enumerate(get_next.attr["output_shapes"].list.shape):
            sizes = [None if dim.size < 0 else dim.size for dim in shape.dim]
            if sizes[:1] == [None]:
                found[f"{get_next.name}:{output}"] = (batch, *sizes[1:])
    return found
