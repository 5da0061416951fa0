"""The tables of io.slicing hold every op type of the TensorFlow that runs, old and new versions of an op alike."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.io_slicing import file_ops
from epl.parallel.rewriting.function_bodies import base_type, is_dataset
from tests.op_registry import registered_ops

DATASETS = {name: op for name, op in registered_ops().items() if is_dataset(name) and hasattr(tf.raw_ops, name)}


def inputs(name):
    return [argument.name for argument in DATASETS[name].input_arg]


def test_every_dataset_that_opens_files_is_a_reader():
    """The files of a dataset that no table holds would be read whole by every worker, in silence."""
    openers = {name for name in DATASETS if inputs(name)[:1] == ["filenames"]}
    assert len(openers) >= 5
    assert {base_type(name) for name in openers} <= set(file_ops.READERS)


@pytest.mark.parametrize("op_type", sorted(name for name in DATASETS if base_type(name) in file_ops.READERS))
def test_every_version_of_a_reader_has_its_files_at_one_position(op_type):
    assert inputs(op_type)[file_ops.READERS[base_type(op_type)]] == "filenames"


@pytest.mark.parametrize("op_type", sorted(name for name in DATASETS if base_type(name) in file_ops.CALLERS))
def test_every_version_of_a_caller_passes_elements_then_other_inputs(op_type):
    assert inputs(op_type)[:2] == ["input_dataset", "other_arguments"]
    assert "Targuments" in [attribute.name for attribute in DATASETS[op_type].attr]


@pytest.mark.parametrize(
    "op_type",
    sorted(name for name in DATASETS if base_type(name) in file_ops.SAME_ELEMENTS | set(file_ops.CHOOSE_ELEMENTS)),
)
def test_every_version_of_a_dataset_that_keeps_elements_has_them_as_input_0(op_type):
    assert inputs(op_type)[0] == "input_dataset"


def test_names_of_datasets_lose_prefix_and_version():
    names = ["ExperimentalCSVDataset", "CSVDatasetV2", "LegacyParallelInterleaveDatasetV2", "ReaderReadV2"]
    assert [base_type(name) for name in names] == [
        "CSVDataset",
        "CSVDataset",
        "ParallelInterleaveDataset",
        "ReaderReadV2",
    ]
