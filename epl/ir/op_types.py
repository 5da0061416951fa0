"""Tables of TensorFlow op types: those that hold variables, write them, hold other state, or read data.

The functions that use them are in epl.ir.view and in the passes.
"""

# Ops that are a variable: one output, a reference or a handle.
REF_VARIABLES = frozenset(["Variable", "VariableV2", "AutoReloadVariable"])
RESOURCE_VARIABLES = frozenset(["VarHandleOp"])
VARIABLES = REF_VARIABLES | RESOURCE_VARIABLES

# Ops that return the value of a variable.
READS = frozenset(["Identity", "ReadVariableOp"])

# Ops that write a variable, their first input (fused optimizers write several, all of them inputs).
_REF_WRITES = [
    "Assign", "AssignAdd", "AssignSub", "CountUpTo", "ScatterAdd", "ScatterDiv", "ScatterMax", "ScatterMin",
    "ScatterMul", "ScatterSub", "ScatterUpdate", "ScatterNdAdd", "ScatterNdMax", "ScatterNdMin", "ScatterNdSub",
    "ScatterNdUpdate", "NegTrain", "StridedSliceAssign", "SdcaShrinkL1", "ApplyAdaMax", "ApplyAdadelta",
    "ApplyAdagrad", "ApplyAdagradDA", "ApplyAdagradV2", "ApplyAdam", "ApplyAddSign", "ApplyCenteredRMSProp",
    "ApplyFtrl", "ApplyFtrlV2", "ApplyGradientDescent", "ApplyMomentum", "ApplyPowerSign", "ApplyProximalAdagrad",
    "ApplyProximalGradientDescent", "ApplyRMSProp", "SparseApplyAdadelta", "SparseApplyAdagrad",
    "SparseApplyAdagradDA", "SparseApplyAdagradV2", "SparseApplyCenteredRMSProp", "SparseApplyFtrl",
    "SparseApplyFtrlV2", "SparseApplyMomentum", "SparseApplyProximalAdagrad", "SparseApplyProximalGradientDescent",
    "SparseApplyRMSProp",
]  # fmt: skip
_RESOURCE_WRITES = [
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceCountUpTo",
    "ResourceStridedSliceAssign", "ResourceScatterAdd", "ResourceScatterDiv", "ResourceScatterMax",
    "ResourceScatterMin", "ResourceScatterMul", "ResourceScatterSub", "ResourceScatterUpdate",
    "ResourceScatterNdAdd", "ResourceScatterNdMax", "ResourceScatterNdMin", "ResourceScatterNdSub",
    "ResourceScatterNdUpdate", "AssignVariableXlaConcatND", "ResourceApplyAdamWithAmsgrad",
    "ResourceApplyKerasMomentum", "ResourceSparseApplyKerasMomentum",
] + ["Resource" + name for name in _REF_WRITES if "Apply" in name]  # fmt: skip
ROW_WRITES = frozenset(name for name in _REF_WRITES + _RESOURCE_WRITES if "Scatter" in name or "SparseApply" in name)
SLICE_WRITES = frozenset(["StridedSliceAssign", "ResourceStridedSliceAssign"])
REF_WRITES = frozenset(_REF_WRITES)  # they return their input, the reference
WRITES = frozenset(_REF_WRITES + _RESOURCE_WRITES)
PLAIN_ASSIGNS = frozenset(["Assign", "AssignVariableOp"])

# Ops that ask about a variable, or say how it is to be kept: they take none of its value.
STATE_QUERIES = frozenset(["DisableCopyOnRead", "IsVariableInitialized", "VarIsInitializedOp", "VariableShape"])

# Ops that hold state which all replicas of a process share: they draw data from it, or look values up in it.
SHARED_STATE = frozenset(
    [
        "Iterator", "IteratorV2", "OneShotIterator", "IteratorFromStringHandle", "IteratorFromStringHandleV2",
        "AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3", "AnonymousMultiDeviceIterator",
        "AnonymousMultiDeviceIteratorV3", "MultiDeviceIterator",
        "MultiDeviceIteratorFromStringHandle", "FIFOQueue", "FIFOQueueV2", "PaddingFIFOQueue", "PaddingFIFOQueueV2",
        "PriorityQueue", "PriorityQueueV2", "RandomShuffleQueue", "RandomShuffleQueueV2", "Barrier", "HashTable",
        "HashTableV2", "MutableHashTable", "MutableHashTableV2", "MutableHashTableOfTensors",
        "MutableHashTableOfTensorsV2", "MutableDenseHashTable", "MutableDenseHashTableV2", "AnonymousHashTable",
        "AnonymousMutableDenseHashTable", "AnonymousMutableHashTable", "AnonymousMutableHashTableOfTensors",
        "FixedLengthRecordReader", "FixedLengthRecordReaderV2", "IdentityReader", "IdentityReaderV2", "LMDBReader",
        "TextLineReader", "TextLineReaderV2", "TFRecordReader", "TFRecordReaderV2", "WholeFileReader",
        "WholeFileReaderV2", "BigtableClient", "SummaryWriter", "MutexV2",
    ]  # fmt: skip
)  # fmt: skip

# Ops that draw the next piece of data: each replica runs its own op and so gets different data.
DATA_SOURCES = frozenset(
    [
        "IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "OptionalGetValue",
        "MultiDeviceIteratorGetNextFromShard",
        "QueueDequeue", "QueueDequeueV2", "QueueDequeueMany", "QueueDequeueManyV2", "QueueDequeueUpTo",
        "QueueDequeueUpToV2", "ReaderRead", "ReaderReadV2", "ReaderReadUpTo", "ReaderReadUpToV2", "BarrierTakeMany",
        "Unstage", "OrderedMapUnstage", "MapUnstage", "OrderedMapUnstageNoKey", "MapUnstageNoKey",
    ]  # fmt: skip
)  # fmt: skip

# Ops that draw random numbers from a state that is a variable.
GENERATORS = frozenset(
    [
        "NonDeterministicInts", "RngReadAndSkip", "RngSkip", "StatefulRandomBinomial", "StatefulStandardNormal",
        "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniform", "StatefulUniformFullInt",
        "StatefulUniformInt",
    ]  # fmt: skip
)  # fmt: skip

# Ops that fill a queue: they and their ancestors are the input pipeline, which all replicas of a process share.
ENQUEUES = frozenset(
    ["QueueEnqueue", "QueueEnqueueV2", "QueueEnqueueMany", "QueueEnqueueManyV2", "BarrierInsertMany"]  # fmt: skip
)  # fmt: skip

# Ops that find a staging area by its shared name, on their own device, where one puts values and another gets them.
STAGING = frozenset(
    [
        "Stage", "StageClear", "StagePeek", "StageSize", "Unstage",
        "MapStage", "MapClear", "MapIncompleteSize", "MapPeek", "MapSize", "MapUnstage", "MapUnstageNoKey",
        "OrderedMapStage", "OrderedMapClear", "OrderedMapIncompleteSize", "OrderedMapPeek", "OrderedMapSize",
        "OrderedMapUnstage", "OrderedMapUnstageNoKey",
    ]  # fmt: skip
)  # fmt: skip

# Ops of control flow (v1): into and out of a loop's frame, its back edge, into and out of a branch.
ENTERS = frozenset(["Enter", "RefEnter"])
EXITS = frozenset(["Exit", "RefExit"])
NEXT_ITERATIONS = frozenset(["NextIteration", "RefNextIteration"])
SWITCHES = frozenset(["Switch", "RefSwitch"])
MERGES = frozenset(["Merge", "RefMerge"])
CONTROL_FLOW = ENTERS | EXITS | NEXT_ITERATIONS | SWITCHES | MERGES | {"LoopCond"}

# Ops that pass their input on: always a reference; a value, which may be a handle.
REFERENCE_FLOW = frozenset(["RefEnter", "RefExit", "RefIdentity", "RefMerge", "RefNextIteration", "RefSwitch"])
VALUE_FLOW = frozenset(["Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch"])

PLACEHOLDERS = frozenset(["Placeholder", "PlaceholderV2", "PlaceholderWithDefault"])

# Ops that read a checkpoint.
CHECKPOINT_READS = frozenset(["RestoreV2", "Restore", "RestoreSlice"])

# Ops that need the process of the script: its Python functions, its files.
PYTHON = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])
_FILES = ["SaveV2", "Save", "SaveSlices", "MergeV2Checkpoints", "ReadFile", "WriteFile", "MatchingFiles"]
OF_SCRIPT = CHECKPOINT_READS | PYTHON | frozenset(_FILES)

SUMMARIES = frozenset(
    [
        "ScalarSummary",
        "HistogramSummary",
        "ImageSummary",
        "AudioSummary",
        "AudioSummaryV2",
        "TensorSummary",
        "TensorSummaryV2",
    ]  # fmt: skip
)

# Ops of tf.train.SyncReplicasOptimizer and parameter servers, whose own synchronisation contradicts the plan's.
FOREIGN_SYNCHRONISATION = frozenset(
    [
        "ConditionalAccumulator",
        "SparseConditionalAccumulator",
        "ResourceConditionalAccumulator",
        "CollectiveReduce",
        "NcclAllReduce",
    ]  # fmt: skip
)
