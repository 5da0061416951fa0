"""The pass of `io.slicing`: every worker reads its own share of the files.

Before and after, on worker 1 of 2:

    Const [a b c d] ---------------> TensorSliceDataset -> ... -> TFRecordDataset
    Const [b d] -> (any length) ---> TensorSliceDataset -> ... -> TFRecordDataset      (the old Const stays as it is)

This module changes the graph and its functions. `epl/parallel/io_slicing/file_lists.py` finds the lists of files;
`epl/parallel/io_slicing/shares.py` decides which worker gets which file. No session may have run the dataset or queue
yet. The pass changes which files are read, not what is computed from them.
"""

import hashlib
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.io_slicing.file_lists import Edge, FileList, Refusal, UnsliceableError, check_zips, find_file_lists
from epl.parallel.io_slicing.function_bodies import MAIN, SLICED, Bodies, functions_of
from epl.parallel.io_slicing.shares import SliceResult, slice_files
from epl.utils import tf_compat
from epl.utils.errors import PlanError

_EXPECTED = (
    "io.slicing divides constant lists of names, or constant patterns of names, that reach an op which opens files "
    "(TFRecordDataset, TextLineDataset, FixedLengthRecordDataset, CsvDataset, read_file, the readers of a queue) as "
    "elements of a tf.data.Dataset or of tf.train.string_input_producer"
)


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
    _rewrite_functions(graph, graph_def, bodies, [(e, i) for e, i in edges.values() if e.body != MAIN])
    for edge, indices in edges.values():
        if edge.body == MAIN:
            _rewire(graph, edge, indices)
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


def _rewrite_functions(
    graph: tf.Graph, graph_def: tf.GraphDef, bodies: Bodies, edges: Sequence[Tuple[Edge, Sequence[int]]]
) -> None:
    """Copies functions under new names, with parts of lists in place of the lists, and makes nodes call the copies.

    A function that calls a copied one is copied as well, up to the ops of the main graph.
    """
    names = _names_of_rewritten(bodies, edges)
    if not names:
        return
    changed = tf.GraphDef(versions=graph_def.versions)
    for function in graph_def.library.function:
        if function.signature.name not in names:
            continue
        copy = changed.library.function.add()
        copy.CopyFrom(function)
        copy.signature.name = names[function.signature.name]
        for node in copy.node_def:
            _call(node, names)
        for edge, indices in edges:
            if edge.body == function.signature.name:
                _rewire_in_function(copy, edge, indices)
    with graph.as_default():
        tf.import_graph_def(changed, name="")
    for node in bodies.all[MAIN].nodes.values():
        called = {attr for attr, name in functions_of(node) if name in names}
        if called:
            _call(node, names)
            for attr in called:
                tf_compat.set_attr(graph.get_operation_by_name(node.name), attr, node.attr[attr])


def _names_of_rewritten(bodies: Bodies, edges: Sequence[Tuple[Edge, Sequence[int]]]) -> Dict[str, str]:
    """Returns old -> new name of every function that holds one of the edges or calls one that does."""
    names: Dict[str, str] = {}
    pending = [edge.body for edge, _ in edges]
    while pending:
        old = pending.pop()
        if old != MAIN and old not in names:
            new, count = f"{old}_io_slicing", 0
            while new in bodies.all:
                count += 1
                new = f"{old}_io_slicing_{count}"
            names[old] = new
            for site in bodies.calls(old):
                if site.body.name == MAIN and not site.attr:
                    raise PlanError(
                        f"io.slicing: {site.node.name!r} calls the function {old!r}, which holds a list of files, in a "
                        "way that cannot be changed. Make the list outside the function and pass it in."
                    )
                pending.append(site.body.name)
    return names


def _call(node: tf.NodeDef, names: Dict[str, str]) -> None:
    """Makes a node call the new functions in place of the old ones."""
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
        functions = [value.func] if value.HasField("func") else value.list.func
        for function in functions:
            function.name = names.get(function.name, function.name)


def _rewire_in_function(function: "tf.compat.v1.FunctionDef", edge: Edge, indices: Sequence[int]) -> None:
    """Makes a node of a function read a part of a list."""
    taken = {node.name for node in function.node_def}
    name = next(n for n in (f"epl_io_slicing/files_{i}" for i in range(len(taken) + 1)) if n not in taken)
    value = tf.make_tensor_proto(_take(edge, indices))
    const = function.node_def.add(name=name, op="Const")
    const.attr["value"].tensor.CopyFrom(value)
    const.attr["dtype"].type = value.dtype
    const.attr[SLICED].b = True
    consumer = next(node for node in function.node_def if node.name == edge.node)
    consumer.input[edge.position] = f"{name}:output:0"
