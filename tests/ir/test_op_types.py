"""The tables of op types against TensorFlow's own registry."""

import pytest
import tensorflow.compat.v1 as tf

from epl.ir import op_types
from tests.op_registry import registered_ops

# Names that other versions of TensorFlow have, or that stand in a graph without being in the registry of this one.
_OF_OTHER_VERSIONS = {
    "AnonymousHashTable", "AutoReloadVariable", "BigtableClient", "DisableCopyOnRead", "NegTrain",
    "AnonymousIteratorV3", "AnonymousMultiDeviceIteratorV3", "AnonymousMutableDenseHashTable",
    "AnonymousMutableHashTable", "AnonymousMutableHashTableOfTensors", "AssignVariableXlaConcatND",
    "ResourceScatterNdMax", "ResourceScatterNdMin", "RngReadAndSkip", "ScatterNdMax", "ScatterNdMin",
}  # fmt: skip

# Ops that take a variable by reference, or whose names look like writes, and that write no variable.
_NO_WRITES = {
    "BarrierClose", "BarrierIncompleteSize", "BarrierInsertMany", "BarrierReadySize", "BarrierTakeMany",
    "AccumulatorApplyGradient", "AccumulatorNumAccumulated", "AccumulatorSetGlobalStep", "AccumulatorTakeGradient",
    "ResourceAccumulatorApplyGradient",  # accumulators of SyncReplicasOptimizer, which is refused
    "SparseAccumulatorApplyGradient", "SparseAccumulatorTakeGradient",
    "IsVariableInitialized", "RefIdentity", "RefEnter", "RefExit", "RefMerge", "RefNextIteration", "RefSelect",
    "RefSwitch",  # hand a reference on
    "DebugGradientRefIdentity",
    "DestroyTemporaryVariable",  # lives within one step
    "InitializeTable", "InitializeTableFromTextFile", "LookupTableExport", "LookupTableFind", "LookupTableImport",
    "LookupTableInsert", "LookupTableSize",  # tables, shared
    "QueueClose", "QueueDequeue", "QueueDequeueMany", "QueueDequeueUpTo", "QueueEnqueue", "QueueEnqueueMany",
    "QueueIsClosed", "QueueSize",  # queues, shared
    "ReaderNumRecordsProduced", "ReaderNumWorkUnitsCompleted", "ReaderRead", "ReaderReadUpTo", "ReaderReset",
    "ReaderRestoreState", "ReaderSerializeState",  # readers, shared
    "Stack", "StackClose", "StackPop", "StackPush", "TensorArray", "TensorArrayClose", "TensorArrayConcat",
    "TensorArrayGather", "TensorArrayGrad", "TensorArrayPack", "TensorArrayRead", "TensorArrayScatter",
    "TensorArraySize", "TensorArraySplit", "TensorArrayUnpack", "TensorArrayWrite",  # live within one step
}  # fmt: skip

# The registry also has ops of TensorFlow's own tests, which no Python function makes.
REGISTRY = {name: op for name, op in registered_ops().items() if hasattr(tf.raw_ops, name)}


def table_names():
    """(table, op type) of every table of the module."""
    for name, table in sorted(vars(op_types).items()):
        if not name.startswith("_") and isinstance(table, frozenset):
            for op_type in sorted(table):
                yield name, op_type


def test_every_op_type_of_the_tables_exists():
    unknown = {op_type for _, op_type in table_names()} - set(REGISTRY) - _OF_OTHER_VERSIONS
    assert not unknown


def test_every_op_that_takes_a_reference_is_a_write_or_a_known_exception():
    by_reference = {name for name, op in REGISTRY.items() if any(arg.is_ref for arg in op.input_arg)}
    assert by_reference - op_types.WRITES - _NO_WRITES == set()


def test_every_resource_op_that_sounds_like_a_write_is_one_or_a_known_exception():
    resource = tf.resource.as_datatype_enum
    sounds = {
        name
        for name, op in REGISTRY.items()
        if any(arg.type == resource for arg in op.input_arg)
        and (name.startswith("Assign") or (name.startswith("Resource") and ("Apply" in name or "Scatter" in name)))
    }
    assert sounds - op_types.WRITES - _NO_WRITES == set()


def test_every_op_that_draws_from_the_state_of_a_generator_is_one():
    resource = tf.resource.as_datatype_enum
    sounds = {
        name
        for name, op in REGISTRY.items()
        if name.startswith(("Rng", "Stateful", "NonDeterministic")) and any(a.type == resource for a in op.input_arg)
    }
    assert sounds - op_types.GENERATORS == set()


def test_exceptions_are_needed():
    assert not _NO_WRITES & op_types.WRITES
    assert not _NO_WRITES - set(REGISTRY)


def test_a_write_takes_what_it_writes_as_its_first_input():
    resource = tf.resource.as_datatype_enum
    for name in op_types.WRITES & set(REGISTRY):
        first = REGISTRY[name].input_arg[0]
        assert first.is_ref or first.type == resource, name


@pytest.mark.parametrize(
    "one, other",
    [
        ("WRITES", "VARIABLES"),
        ("SHARED_STATE", "VARIABLES"),
        ("SHARED_STATE", "DATA_SOURCES"),
        ("PLACEHOLDERS", "DATA_SOURCES"),
        ("WRITES", "DATA_SOURCES"),
    ],
)
def test_tables_that_exclude_each_other(one, other):
    assert not getattr(op_types, one) & getattr(op_types, other)


def test_every_op_that_dequeues_or_unstages_is_a_data_source():
    sounds = {
        name
        for name in REGISTRY
        if name.startswith(("QueueDequeue", "ReaderRead", "IteratorGetNext")) or name.endswith("Unstage")
    }
    assert sounds - op_types.DATA_SOURCES == set()


def test_every_resource_that_holds_data_or_tables_is_shared():
    resource = tf.resource.as_datatype_enum
    sounds = {
        name
        for name, op in REGISTRY.items()
        if op.output_arg
        and (op.output_arg[0].type == resource or op.output_arg[0].is_ref)
        and any(word in name for word in ("Queue", "Reader", "HashTable", "Iterator"))
        and not name.startswith(("Reader", "Experimental", "Deserialize"))
    }
    assert sounds - op_types.SHARED_STATE == {"FakeQueue"}  # wraps the handle of a queue


def test_every_op_that_finds_a_staging_area_is_known():
    sounds = {
        name
        for name, op in REGISTRY.items()
        if {"capacity", "memory_limit", "shared_name"} <= {attr.name for attr in op.attr}
    }
    assert sounds == op_types.STAGING
