"""The pass of `io.slicing`: every worker reads its own share of the files.

Before and after, on worker 1 of 2:

    Const [a b c d] ---------------> TensorSliceDataset -> ... -> TFRecordDataset
    Const [b d] -> (any length) ---> TensorSliceDataset -> ... -> TFRecordDataset      (the old Const stays as it is)

This module changes the graph. `epl/parallel/io_slicing/file_lists.py` finds the lists of files;
`epl/parallel/io_slicing/shares.py` decides which worker gets which file. No session may have run the dataset or queue
yet. The pass changes which files are read, not what is computed from them.
"""

import hashlib
import logging
from typing import List, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.io_slicing.file_lists import Edge, FileList, Refusal, UnsliceableError, check_zips, find_file_lists
from epl.parallel.io_slicing.shares import SliceResult, slice_files
from epl.parallel.rewriting.function_bodies import MAIN, SLICED, Bodies
from epl.parallel.rewriting.function_inputs import Change, NewInput, rewrite_functions
from epl.utils import tf_compat
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")

_EXPECTED = (
    "io.slicing divides constant lists of names, or constant patterns of names, that reach an op which opens files "
    "(TFRecordDataset, TextLineDataset, FixedLengthRecordDataset, CsvDataset, read_file, the readers of a queue) as "
    "elements of a tf.data.Dataset or of tf.train.string_input_producer"
)

_CHANGE = Change("io.slicing", "a list of files", "io_slicing", SLICED)


class _Share(NamedTuple):
    """A file list, and the part of it that this worker reads."""

    found: FileList
    result: SliceResult
    names: List[bytes]  # the whole list


def slice_inputs(
    graph: tf.Graph, local_replicas: Sequence[int], worker: int, unbalanced: bool, drop_last: bool
) -> List[str]:
    """Gives this worker its share of every file list of a graph, in place.

    Patterns of file names (`tf.data.Dataset.list_files`, `tf.train.match_filenames_once`) are resolved now, and sorted;
    each line carries a digest of the whole list, which is the same on all workers when they see the same files.

    Args:
      graph: the graph; not finalized, and its input not run by any session yet.
      local_replicas: the number of replicas on every worker.
      worker: the index of this worker.
      unbalanced: `io.unbalanced_io_slicing`.
      drop_last: `io.drop_last_files`.

    Returns:
      One line per file list, for the log: how it was divided, or why it stays whole. If the graph has no file list, one
      line that says what the pass looked for.

    Raises:
      PlanError: files are read whose names cannot be divided, for instance because they come from a placeholder.
    """
    if len(local_replicas) == 1:
        return ["io.slicing: one worker, which reads all files"]
    graph_def = graph.as_graph_def()
    bodies = Bodies(graph_def)
    lists, refusals = find_file_lists(bodies)
    _raise_refusals(refusals)
    shares = [_share(found, local_replicas, worker, unbalanced, drop_last) for found in lists]
    cut = [share for share in shares if share.result.indices != tuple(range(len(share.names)))]
    try:
        check_zips(bodies, [share.found for share in cut])
    except UnsliceableError as error:
        raise PlanError(f"io.slicing: files of a list {error}.") from None
    edges = {edge[:3]: (edge, share.result.indices) for share in cut for edge in share.found.edges}
    in_functions = [NewInput(*edge[:3], _take(edge, i)) for edge, i in edges.values() if edge.body != MAIN]
    rewrite_functions(graph, graph_def, bodies, in_functions, _CHANGE, lambda op: None)
    for edge, indices in edges.values():
        if edge.body == MAIN:
            _rewire(graph, edge, indices)
    whole = [share for share in shares if share.result.remedy]
    if whole and worker == 0:
        label, names, result = whole[0].found.label, whole[0].names, whole[0].result
        logger.warning(
            "io.slicing is on, and every worker reads all %d file(s) of %r: %s. So %d workers read the same records in "
            "an epoch. %s", len(names), label, result.reason, len(local_replicas), result.remedy,
        )  # fmt: skip
    lines = [_line(share, worker, len(local_replicas)) for share in shares]
    lines += [f"io.slicing: not sliced: the names that {r.node!r} ({r.reader}) opens {r.reason}" for r in refusals]
    return lines or [f"io.slicing: nothing to slice in this graph. {_EXPECTED}."]


def _raise_refusals(refusals: Sequence[Refusal]) -> None:
    """Raises for the first reader of a list that cannot be divided."""
    for refusal in refusals:
        if not refusal.single:
            raise PlanError(
                f"io.slicing: the names of the files that {refusal.node!r} ({refusal.reader}) opens {refusal.reason}. "
                f"{_EXPECTED}. Write the list down in this form, or divide it in the script and switch io.slicing off."
            )


def _share(found: FileList, local_replicas: Sequence[int], worker: int, unbalanced: bool, drop_last: bool) -> _Share:
    """Returns the part of a file list that this worker reads."""
    rows = np.atleast_1d(found.edges[0].value)
    names = [b" ".join(np.ravel(row)) for row in rows]  # a row has several names in a list of tuples of files
    return _Share(found, slice_files(names, local_replicas, worker, unbalanced, drop_last), names)


def _line(share: _Share, worker: int, workers: int) -> str:
    """Returns the line of the log about a file list."""
    digest = hashlib.sha1(b"\0".join(share.names)).hexdigest()[:8]
    return (
        f"io.slicing: {share.found.label!r} ({len(share.names)} files, digest {digest}, read by {share.found.reader}): "
        f"worker {worker} of {workers} reads {len(share.result.files)}: {share.result.reason}"
    )


def _take(edge: Edge, indices: Sequence[int]) -> np.ndarray:
    """Returns the rows of a list that a worker gets."""
    return np.atleast_1d(edge.value)[list(indices)]


def _rewire(graph: tf.Graph, edge: Edge, indices: Sequence[int]) -> None:
    """Makes a node of the main graph read a part of a list.

    The old Const does not change: the script may use it for other purposes. A `placeholder_with_default` after the new
    Const hides its length, because TensorFlow refuses an input of another static shape.
    """
    consumer = graph.get_operation_by_name(edge.node)
    old = consumer.inputs[edge.position]
    with graph.as_default(), graph.control_dependencies(None), graph.device(None), graph.device(consumer.device):
        with graph.name_scope(None), graph.name_scope("epl_io_slicing"):
            part = tf.constant(_take(edge, indices), dtype=old.dtype, name="files")
            hidden = tf.placeholder_with_default(part, shape=None, name="share")
    tf_compat.set_attr(hidden.op, SLICED, tf.AttrValue(b=True))
    tf_compat.set_input(consumer, edge.position, hidden)
