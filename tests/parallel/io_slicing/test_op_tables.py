"""The tables of dataset ops have the types that this TensorFlow makes, those of newer versions included."""

import re

import pytest

from epl.parallel.io_slicing import file_ops
from epl.parallel.rewriting import batch_constants
from epl.parallel.rewriting.function_bodies import base_type
from tests.op_registry import registered_ops

TABLES = {
    "readers": file_ops.READERS,
    "same elements": file_ops.SAME_ELEMENTS,
    "chosen elements": file_ops.CHOOSE_ELEMENTS,
    "maps": file_ops.MAPS,
    "flat maps": file_ops.FLAT_MAPS,
    "callers": file_ops.CALLERS,
    "without data": file_ops.WITHOUT_DATA,
    "batches": batch_constants._BATCHES,
    "kept batches": batch_constants._KEEP_BATCHES,
    "flattened": batch_constants._FLATTEN,
}


def _without_version(op_type):
    """The op type of the first version: "MapDataset" of "ParallelMapDatasetV2", which does the same in threads."""
    return re.sub(r"V\d+$", "", re.sub("^(Legacy)?(Parallel)?", "", base_type(op_type)))


def _datasets():
    return {base_type(name): op for name, op in registered_ops().items() if re.search(r"Dataset(V\d+)?$", name)}


def test_every_dataset_that_opens_files_is_a_reader():
    opens = {name for name, op in _datasets().items() if any(given.name == "filenames" for given in op.input_arg)}
    assert opens == {name for name in file_ops.READERS if name in _datasets()}


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_version_of_a_dataset_is_in_the_same_table(table):
    listed = {_without_version(name) for name in TABLES[table] if "Dataset" in name}
    missing = {name for name in _datasets() if _without_version(name) in listed and name not in TABLES[table]}
    assert missing == set()
