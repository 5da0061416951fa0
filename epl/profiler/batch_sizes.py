"""The batch size of an input pipeline, where the shapes of a graph leave it open: that of its dataset.

dataset --> BatchDatasetV2 (32) --> PrefetchDataset --> MakeIterator --> IteratorV2 --> IteratorGetNext [?, 784]
                                                                                  =>   IteratorGetNext [32, 784]
"""

from typing import Dict, Iterable, Mapping, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView

# Datasets that make batches -> the input with the batch size, counted from the end of the data inputs.
_BATCHES = {
    "BatchDataset": -1, "BatchDatasetV2": -2, "PaddedBatchDataset": 1, "PaddedBatchDatasetV2": 1,
    "MapAndBatchDataset": -3, "ExperimentalMapAndBatchDataset": -3,
}  # fmt: skip
_GET_NEXT = ("IteratorGetNext", "IteratorGetNextSync")

Shape = Tuple[Optional[int], ...]


def batch_shapes(view: GraphView) -> Dict[str, Shape]:
    """Name of a tensor of an iterator with an open first dimension -> its shape with the batch size."""
    nodes = {node.name: node.to_proto() for node in view.nodes}
    found: Dict[str, Shape] = {}
    for index in view.of_types(_GET_NEXT):
        get_next = nodes[view.nodes[index].name]
        batch = _batch_of(get_next.input[0], nodes, view.graph_def.library.function)
        for output, shape in enumerate(get_next.attr["output_shapes"].list.shape) if batch else ():
            sizes = [None if dim.size < 0 else dim.size for dim in shape.dim]
            if sizes[:1] == [None]:
                found[f"{get_next.name}:{output}"] = (batch, *sizes[1:])
    return found


def _batch_of(iterator: str, nodes: Mapping[str, tf.NodeDef], functions: Iterable[tf.NodeDef]) -> Optional[int]:
    """The batch size of an iterator's tensors; None if its dataset makes no batches of a constant size."""
    name = _producer(iterator)
    if name in nodes and nodes[name].op == "OneShotIterator":
        factory = nodes[name].attr["dataset_factory"].func.name
        for function in functions:
            if function.signature.name == factory:
                inner = {node.name: node for node in function.node_def}
                return _batch_size(next(iter(function.ret.values()), ""), inner)
        return None
    for node in nodes.values():
        if node.op == "MakeIterator" and _producer(node.input[1]) == name:
            return _batch_size(node.input[0], nodes)
    return None


def _batch_size(dataset: str, nodes: Mapping[str, tf.NodeDef]) -> Optional[int]:
    """The batch size of the last dataset that makes batches, on the way from a dataset to its source."""
    node = nodes.get(_producer(dataset))
    while node is not None and node.op not in _BATCHES:
        node = nodes.get(_producer(node.input[0])) if node.input else None
    if node is None:
        return None
    inputs = [name for name in node.input if name[0] != "^"]
    size = nodes.get(_producer(inputs[_BATCHES[node.op]]))
    return int(tf.make_ndarray(size.attr["value"].tensor)) if size is not None and size.op == "Const" else None


def _producer(name: str) -> str:
    return name.lstrip("^").partition(":")[0]
