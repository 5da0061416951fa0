"""Tables of the TensorFlow ops through which names of files travel from a list to the op that opens the files.

`epl/parallel/io_slicing/file_lists.py` uses these tables. They list datasets by the name that
`function_bodies.base_type` gives them: "ParallelMapDataset" stands for "ParallelMapDatasetV2", too.
"""

from typing import Dict, FrozenSet

# Ops that open files, with the index of the input that names them.
READERS: Dict[str, int] = {
    "TFRecordDataset": 0,
    "TextLineDataset": 0,
    "FixedLengthRecordDataset": 0,
    "CSVDataset": 0,
    "LMDBDataset": 0,
    "ReadFile": 0,
}

# Readers that also open single files which belong to no list (a picture that a request names, a vocabulary).
SINGLE_FILE_READERS: FrozenSet[str] = frozenset(["ReadFile"])

# Ops that open files named by a queue, with the index of the queue's input.
QUEUE_READERS: Dict[str, int] = {"ReaderRead": 1, "ReaderReadV2": 1, "ReaderReadUpTo": 1, "ReaderReadUpToV2": 1}

ENQUEUE_MANY: FrozenSet[str] = frozenset(["QueueEnqueueMany", "QueueEnqueueManyV2"])
ENQUEUE_ONE: FrozenSet[str] = frozenset(["QueueEnqueue", "QueueEnqueueV2"])
DEQUEUE: FrozenSet[str] = frozenset(
    ["QueueDequeue", "QueueDequeueV2", "QueueDequeueMany", "QueueDequeueManyV2", "QueueDequeueUpTo",
     "QueueDequeueUpToV2"]
)  # fmt: skip

# Datasets whose elements have the same components as those of input 0; no element is lost.
SAME_ELEMENTS: FrozenSet[str] = frozenset(
    ["AssertNextDataset", "AssertPrevDataset", "AutoShardDataset", "BatchDataset", "BytesProducedStatsDataset",
     "CacheDataset", "FilterDataset", "FinalizeDataset", "GlobalShuffleDataset", "Identity", "IdentityIndexedDataset",
     "IgnoreErrorsDataset", "LatencyStatsDataset", "MaxIntraOpParallelismDataset", "ModelDataset",
     "NonSerializableDataset", "OptimizeDataset", "OptionsDataset", "PaddedBatchDataset", "ParallelBatchDataset",
     "ParallelFilterDataset", "PrefetchDataset", "PrivateThreadPoolDataset", "RebatchDataset", "RepeatDataset",
     "RewriteDataset", "SetStatsAggregatorDataset", "ShuffleAndRepeatDataset", "ShuffleDataset", "SleepDataset",
     "ThreadPoolDataset", "UnbatchDataset"]
)  # fmt: skip

# Datasets that choose elements by position, with the value of input 1 that chooses all of them.
CHOOSE_ELEMENTS: Dict[str, int] = {"TakeDataset": -1, "SkipDataset": 0, "ShardDataset": 1}

# Datasets whose elements are what function `f` returns for an element of input 0.
MAPS: FrozenSet[str] = frozenset(["MapDataset", "ParallelMapDataset", "MapAndBatchDataset"])

# Datasets whose elements are those of the datasets that function `f` returns for an element of input 0.
FLAT_MAPS: FrozenSet[str] = frozenset(["FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset"])

# Datasets that pass elements of input 0, then the inputs from 1 on, to a function.
CALLERS: FrozenSet[str] = MAPS | FLAT_MAPS | frozenset(["FilterDataset", "ParallelFilterDataset", "TakeWhileDataset"])

CALLS: FrozenSet[str] = frozenset(["PartitionedCall", "StatefulPartitionedCall"])

# Datasets whose elements need not stay in step with a list of files.
WITHOUT_DATA: FrozenSet[str] = frozenset(["RangeDataset", "RandomDataset", "TensorDataset"])

# Ops whose output is input 0, maybe in another order or shape.
SAME_NAMES: FrozenSet[str] = frozenset(
    ["EnsureShape", "ExpandDims", "Identity", "RandomShuffle", "Reshape", "ReverseV2", "Snapshot", "Squeeze"]
)

# Ops that work on each name by itself.
NAME_BY_NAME: FrozenSet[str] = frozenset(
    ["Add", "AddV2", "RegexReplace", "StaticRegexReplace", "StringJoin", "StringLower", "StringStrip", "StringUpper",
     "Substr"]
)  # fmt: skip

VARIABLES: FrozenSet[str] = frozenset(["Variable", "VariableV2", "VarHandleOp"])
ASSIGNS: FrozenSet[str] = frozenset(["Assign", "AssignVariableOp"])
PLACEHOLDERS: FrozenSet[str] = frozenset(["Placeholder", "PlaceholderV2", "PlaceholderWithDefault"])
