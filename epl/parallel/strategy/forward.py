"""The forward pass of a model as a strategy lists it: the ops that the objective needs, after its data sources."""

from typing import Any, Dict, List, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import data_inputs
from epl.ir.view import GraphView
from epl.parallel.plan.strategy import ForwardOp
from epl.utils.containers import as_list


def forward_ops(tf_graph: tf.Graph, view: GraphView, ys: Any) -> Dict[int, ForwardOp]:
    """Node -> the op, in the order of the script; all in block 0.

    What data sources read from does not belong to it: datasets, files.

    Args:
      tf_graph: the graph.
      view: its view.
      ys: the objective: a tensor, or a list of them.
    """
    sources = set(view.of_types(op_types.DATA_SOURCES))
    needed = sorted(view.ancestors([view.index[y.op.name] for y in as_list(ys)], sources.__contains__))
    place = {node: number for number, node in enumerate(needed)}
    found = {}
    for node in needed:
        name = view.nodes[node].name
        inputs = () if node in sources else tuple(_input(place, one) for one in data_inputs(view, node))
        outputs = tuple(_in_words(tensor) for tensor in tf_graph.get_operation_by_name(name).outputs)
        found[node] = ForwardOp(name, view.types[node], inputs, outputs, 0)
    return found


def in_blocks(ops: List[ForwardOp], blocks: List[int]) -> Tuple[ForwardOp, ...]:
    """The ops, each in its block."""
    return tuple(op._replace(block=block) for op, block in zip(ops, blocks))


def _input(place: Dict[int, int], taken: Tuple[int, int]) -> str:
    producer, output = taken
    return f"{place[producer]}:{output}" if output else str(place[producer])


def _in_words(tensor: tf.Tensor) -> str:
    dtype = tensor.dtype.base_dtype.name
    if tensor.shape.ndims is None:
        return dtype
    sizes = ["?" if size is None else str(size) for size in tensor.shape.as_list()]
    return "{}[{}]".format(dtype, ",".join(sizes))
