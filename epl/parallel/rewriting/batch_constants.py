"""The batch sizes of what a graph reads: constants of datasets and queues, in the main graph and in functions.

    IteratorGetNext <-- iterator <-- MakeIterator <-- PrefetchDataset <-- BatchDatasetV2 <-- Const 32

The search goes back from an op that reads to the datasets of its iterator, and in them to the last batch that is made:
past datasets that keep batches, into zipped and concatenated ones, and into functions that make datasets. It changes
nothing.
"""

from typing import Dict, Iterator, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.rewriting.function_bodies import MAIN, Bodies, Body, base_type, data_inputs

# Ops that make batches (datasets by `function_bodies.base_type`), with the index of the input that has the batch size.
_BATCHES: Dict[str, int] = {
    "BatchDataset": 1,
    "DenseToSparseBatchDataset": 1,
    "MapAndBatchDataset": -3,
    "PaddedBatchDataset": 1,
    "ParallelBatchDataset": 1,
    "QueueDequeueUpTo": 1,
    "QueueDequeueUpToV2": 1,
}
# Datasets whose elements are batches of input 0, or what a function computes of each.
_KEEP_BATCHES = frozenset(
    ["AssertNextDataset", "AssertPrevDataset", "BytesProducedStatsDataset", "CacheDataset", "FilterDataset",
     "FinalizeDataset", "Identity", "IgnoreErrorsDataset", "LatencyStatsDataset", "MapDataset",
     "MaxIntraOpParallelismDataset", "ModelDataset", "NonSerializableDataset", "OptimizeDataset", "OptionsDataset",
     "ParallelFilterDataset", "ParallelMapDataset", "PrefetchDataset", "PrivateThreadPoolDataset", "RepeatDataset",
     "RewriteDataset", "ScanDataset", "SetStatsAggregatorDataset", "ShuffleAndRepeatDataset", "ShuffleDataset",
     "SkipDataset", "SleepDataset", "TakeDataset", "TakeWhileDataset", "ThreadPoolDataset"]
)  # fmt: skip
_COUNT_BATCHES = frozenset(["SkipDataset", "TakeDataset"])  # of those, if they come after what makes batches
_JOIN = frozenset(["ConcatenateDataset", "ZipDataset"])  # of the batches of all their inputs
# Datasets whose elements are those of the datasets that function `f` returns.
_FLATTEN = frozenset(["FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset"])


class UnknownBatchError(Exception):
    """A batch size is not a constant; the text says why, for use within a sentence."""


class BatchSize(NamedTuple):
    """A constant that is the batch size of something that the training step reads.

    Attributes:
      body: the function that holds the node that makes batches; MAIN for the main graph.
      node: its name there.
      position: of the input that has the batch size.
      rows: the batch size.
    """

    body: str
    node: str
    position: int
    rows: int


def batch_sizes_of(bodies: Bodies, source: str, may_count: bool = True) -> List[BatchSize]:
    """The batch sizes of a data source of the main graph, by its name; each once.

    Args:
      bodies: of the graph.
      source: the data source.
      may_count: whether a number of batches may be taken or skipped, which is another number of rows with other sizes.

    Raises:
      UnknownBatchError: one is not a constant of the input pipeline.
    """
    main = bodies.all[MAIN]
    node = main.nodes[source]
    if node.op in _BATCHES:
        return [_size(bodies, main, node)]
    if node.op not in ("IteratorGetNext", "IteratorGetNextSync"):
        raise UnknownBatchError(f"{node.op} gives no batches whose size is known")
    datasets = _datasets(bodies, _producer(main, node.input[0]))
    return list(
        dict.fromkeys(
            size for body, reference in datasets for size in _from_dataset(bodies, body, reference, may_count)
        )
    )


def _datasets(bodies: Bodies, iterator: tf.NodeDef) -> Iterator[Tuple[Body, str]]:
    """The datasets of an iterator: (body, reference)."""
    main = bodies.all[MAIN]
    nodes = list(main.nodes.values())
    if iterator.op == "OneShotIterator":
        body = bodies.all[iterator.attr["dataset_factory"].func.name]
        yield body, body.returns[0]
    elif iterator.op.startswith("IteratorFromStringHandle"):
        given = [_producer(main, node.input[0]) for node in nodes if node.op == "IteratorToStringHandle"]
        others = {one.name: one for one in given if one.op != iterator.op}  # it gives a handle of itself, too
        if not others:
            raise UnknownBatchError("no iterator of the graph gives a string handle")
        for one in others.values():
            yield from _datasets(bodies, one)
    else:
        makers = [node for node in nodes if node.op == "MakeIterator" and node.input[1].split(":")[0] == iterator.name]
        if not makers:
            raise UnknownBatchError(f"nothing in the graph makes the iterator {iterator.name!r} ({iterator.op})")
        for node in makers:
            yield main, node.input[0]


def _from_dataset(bodies: Bodies, body: Body, reference: str, may_count: bool) -> Iterator[BatchSize]:
    """The sizes of the batches that a dataset gives."""
    node = _producer(body, reference)
    kind = base_type(node.op)
    if kind in _BATCHES:
        _refuse_windows(body, node)
        yield _size(bodies, body, node)
    elif kind in _KEEP_BATCHES:
        if kind in _COUNT_BATCHES and not (may_count or _has_all(bodies, body, node)):
            raise UnknownBatchError(
                f"{node.name!r} counts batches, which would have other rows: call Dataset.take and Dataset.skip before "
                "Dataset.batch"
            )
        yield from _from_dataset(bodies, body, node.input[0], may_count)
    elif kind in _JOIN:
        for one in data_inputs(node):
            yield from _from_dataset(bodies, body, one, may_count)
    elif kind in _FLATTEN:
        function = bodies.all[node.attr["f"].func.name]
        yield from _from_dataset(bodies, function, function.returns[0], may_count)
    elif kind == "ShardDataset":
        raise UnknownBatchError(
            f"{node.name!r} deals out batches to workers, which would be of different sizes: call Dataset.shard before "
            "Dataset.batch"
        )
    else:
        raise UnknownBatchError(f"{node.name!r} ({node.op}) gives elements that no Dataset.batch after it has made")


def _has_all(bodies: Bodies, body: Body, node: tf.NodeDef) -> bool:
    """Whether a dataset takes all batches, or skips none."""
    count = bodies.constant(body, data_inputs(node)[1])
    return count is not None and (int(count) < 0 if base_type(node.op) == "TakeDataset" else int(count) == 0)


def _refuse_windows(body: Body, batch: tf.NodeDef) -> None:
    """A batch of a dataset that is given to a function, as Dataset.window does, may have no more rows than that."""
    node = _producer(body, batch.input[0])
    while base_type(node.op) in _KEEP_BATCHES:
        node = _producer(body, node.input[0])


def _producer(body: Body, reference: str) -> tf.NodeDef:
    node = body.producer(reference)
    if node is None:
        raise UnknownBatchError(f"{reference!r} is an argument of the function {body.name!r}")
    return node


def _size(bodies: Bodies, body: Body, node: tf.NodeDef) -> BatchSize:
    references = data_inputs(node)
    position = _BATCHES[base_type(node.op)] % len(references)
    value = bodies.constant(body, references[position])
    if value is None:
        raise UnknownBatchError(f"the batch size of {node.name!r} ({node.op}) is not a constant")
    return BatchSize(body.name, node.name, position, int(value))
