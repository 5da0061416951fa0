"""Finds the file lists of a graph: constant lists of names that reach an op which opens files.

    Const [a b c d] -> TensorSliceDataset -> ShuffleDataset -> InterleaveDataset
                                                                 f(name): ... TFRecordDataset(name)

The search starts at the ops that open files (`file_ops.READERS`), in the main graph and in functions. It follows the
names backwards, through elements of datasets, arguments of functions, queues and variables, to the constant that holds
them. So a list of strings that no reader opens (names of classes) never counts as a list of files. This module changes
nothing; `epl/parallel/io_slicing/rewrite.py` divides the lists.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.io_slicing import file_ops
from epl.parallel.rewriting.function_bodies import (
    MAIN,
    SLICED,
    Bodies,
    Body,
    base_type,
    data_inputs,
    is_names,
    output_index,
)


class Edge(NamedTuple):
    """An input of a node that receives a constant list."""

    body: str  # the function that holds the node; MAIN for the main graph
    node: str
    position: int  # of the input
    value: np.ndarray  # the constant; its first dimension runs over the files


class FileList(NamedTuple):
    """A list of files, and the lists that are in step with it."""

    label: str  # the name of the node that holds the list
    reader: str  # the type of the op that opens the files
    edges: Tuple[Edge, ...]  # first the names, then lists that are in step with them, such as labels


class Refusal(NamedTuple):
    """A reader whose files cannot be divided."""

    reader: str  # op type
    node: str
    reason: str
    single: bool  # the reader seems to open a single file, not a list


class UnsliceableError(Exception):
    """An op between a reader and its list prevents the division of the list."""


def find_file_lists(bodies: Bodies) -> Tuple[List[FileList], List[Refusal]]:
    """Returns the file lists of a graph, each once, and the readers whose names come from something else."""
    lists: List[FileList] = []
    refusals: List[Refusal] = []
    seen: Set[Tuple[str, str, int]] = set()
    for body in list(bodies.all.values()):
        for node in list(body.nodes.values()):
            kind = base_type(node.op)
            if (kind not in file_ops.READERS and kind not in file_ops.QUEUE_READERS) or bodies.is_unused(body, node):
                continue
            search = _Search(bodies, kind)
            try:
                for found in search.from_reader(body, node):
                    edge = found.edges[0]
                    if edge[:3] not in seen:
                        seen.add(edge[:3])
                        lists.append(found)
            except UnsliceableError as error:
                single = kind in file_ops.SINGLE_FILE_READERS and not search.many
                refusals.append(Refusal(kind, node.name, str(error), single))
    return lists, refusals


class _Search:
    """Follows the file names of one reader backwards.

    `through` names an op that may pick names by position, if the search passed one after the last dataset or queue: a
    list that is found beyond it cannot be replaced by a part of itself. After the search, `many` tells whether the
    names pass a dataset or a queue, which hold many names.
    """

    def __init__(self, bodies: Bodies, reader: str) -> None:
        self._bodies = bodies
        self._reader = reader
        self.many = False
        self._visited: Set[Tuple[str, str, int, str]] = set()

    def from_reader(self, body: Body, node: tf.NodeDef) -> Iterator[FileList]:
        """Yields the lists that the reader `node` opens."""
        kind = base_type(node.op)
        if kind in file_ops.READERS:
            index = file_ops.READERS[kind]
            value = self._bodies.constant(body, node.input[index])
            if kind not in file_ops.SINGLE_FILE_READERS or value is None or value.ndim:
                yield from self._tensor(body, node, index, "")
        else:
            yield from self._queue(body, node.input[file_ops.QUEUE_READERS[node.op]], 0)

    def _list(self, body: Body, node: tf.NodeDef, index: int, value: np.ndarray, more: List[Edge]) -> FileList:
        source = node.input[index].split(":")[0]
        return FileList(source, self._reader, (Edge(body.name, node.name, index, value), *more))

    def _tensor(self, body: Body, node: tf.NodeDef, index: int, through: str) -> Iterator[FileList]:
        """Follows the names that a node receives as an input tensor."""
        reference = data_inputs(node)[index]
        value = self._bodies.constant(body, reference)
        if value is not None:
            if is_names(value) and value.ndim and through:
                self.many = True
                raise UnsliceableError(
                    f"are taken by {through} from the constant list {reference!r}, maybe by their position in it; let "
                    "tf.data.Dataset.from_tensor_slices (or tf.train.string_input_producer) go through the list"
                )
            if is_names(value) and (value.ndim or not through):
                yield self._list(body, node, index, value, [])
            return
        if (body.name, reference, -1, through) in self._visited:
            return
        self._visited.add((body.name, reference, -1, through))
        producer = body.producer(reference)
        if producer is None:
            yield from self._argument(body, body.argument(reference), through)
        elif SLICED in producer.attr:
            raise UnsliceableError(f"come from {producer.name!r}, of this graph as sliced before; build it anew")
        elif producer.op in file_ops.SAME_NAMES:
            yield from self._tensor(body, producer, 0, through)
        elif producer.op in file_ops.VARIABLES:
            yield from self._variable(body, producer, through)
        elif producer.op == "IteratorGetNext":
            yield from self._iterator(body, producer.input[0], output_index(reference), through)
        elif producer.op in file_ops.DEQUEUE:
            yield from self._queue(body, producer.input[0], output_index(reference))
        elif producer.op in file_ops.CALLS:
            callee = self._bodies.all[producer.attr["f"].func.name]
            yield from self._returned(callee, output_index(reference), through)
        elif producer.op in file_ops.PLACEHOLDERS:
            raise UnsliceableError(f"come from the placeholder {producer.name!r}; names that are fed cannot be sliced")
        elif not data_inputs(producer):
            raise UnsliceableError(f"come from {producer.name!r}, an op of type {producer.op}")
        else:
            if producer.op not in file_ops.NAME_BY_NAME:
                through = through or f"{producer.name!r} ({producer.op})"
            for i, source in enumerate(data_inputs(producer)):
                value = self._bodies.constant(body, source)
                if value is None or value.ndim:  # a scalar is a folder, a suffix, an axis
                    yield from self._tensor(body, producer, i, through)

    def _argument(self, body: Body, position: int, through: str) -> Iterator[FileList]:
        """Follows the names that a function receives as an argument to what its callers pass."""
        for caller, node, _ in self._bodies.calls(body.name):
            if node.op in file_ops.CALLS or node.op == body.name:
                yield from self._tensor(caller, node, position, through)
            elif base_type(node.op) in file_ops.CALLERS:
                elements = len(body.arguments) - len(node.attr["Targuments"].list.type)
                if position < elements:
                    yield from self._element(caller, node.input[0], position, through)
                else:
                    yield from self._tensor(caller, node, 1 + position - elements, through)
            else:
                raise UnsliceableError(f"reach the reader through {node.name!r}, an op of type {node.op} that calls it")

    def _returned(self, body: Body, position: int, through: str) -> Iterator[FileList]:
        """Follows the names that a function returns."""
        result = tf.NodeDef(name="", op="_Return", input=body.returns)
        yield from self._tensor(body, result, position, through)

    def _variable(self, body: Body, variable: tf.NodeDef, through: str) -> Iterator[FileList]:
        """Follows the names that a variable holds to what is assigned to it."""
        shape = variable.attr["shape"].shape
        if not shape.unknown_rank and all(dim.size >= 0 for dim in shape.dim):
            raise UnsliceableError(f"come from the variable {variable.name!r}, whose shape is fixed")
        for node in list(body.nodes.values()):
            if node.op in file_ops.ASSIGNS and body.producer(node.input[0]) is variable:
                yield from self._tensor(body, node, 1, through)

    def _iterator(self, body: Body, reference: str, component: int, through: str) -> Iterator[FileList]:
        """Follows the names that the main graph takes from an iterator."""
        iterator = body.producer(reference)
        if iterator is not None and iterator.op == "OneShotIterator":
            factory = self._bodies.all[iterator.attr["dataset_factory"].func.name]
            yield from self._element(factory, factory.returns[0], component, through)
            return
        makers = [n for n in body.nodes.values() if n.op == "MakeIterator" and body.producer(n.input[1]) is iterator]
        if not makers:
            raise UnsliceableError(f"come from the iterator {reference!r}, which no dataset of this graph initialises")
        for maker in makers:
            yield from self._element(body, maker.input[0], component, through)

    def _queue(self, body: Body, reference: str, component: int) -> Iterator[FileList]:
        """Follows the names that a queue holds to what is put into it."""
        self.many = True
        queue = body.producer(reference)
        for node in list(body.nodes.values()):
            if node.op in file_ops.ENQUEUE_MANY and body.producer(node.input[0]) is queue:
                yield from self._rows(body, node, 1, component)
            elif node.op in file_ops.ENQUEUE_ONE and body.producer(node.input[0]) is queue:
                yield from self._tensor(body, node, 1 + component, "")

    def _rows(self, body: Body, node: tf.NodeDef, first: int, component: int) -> Iterator[FileList]:
        """Follows component `component` of the rows of a node's inputs, which begin with input `first`."""
        inputs = data_inputs(node)
        value = self._bodies.constant(body, inputs[first + component])
        if value is None or not is_names(value):
            if len(inputs) - first > 1 and body.producer(inputs[first + component]) is not None:
                raise UnsliceableError(f"are paired with other values in {node.name!r}, and are no constant list")
            yield from self._tensor(body, node, first + component, "")
            return
        companions = self._companions(body, node, first, len(value))
        names = first + component
        yield self._list(body, node, names, value, [edge for edge in companions if edge.position != names])

    def _companions(self, body: Body, node: tf.NodeDef, first: int, rows: int) -> List[Edge]:
        """Returns the inputs of a node from `first` on; each must be a constant of `rows` rows."""
        edges = []
        for index in range(first, len(data_inputs(node))):
            value = self._bodies.constant(body, node.input[index])
            if value is None or not value.ndim or len(value) != rows:
                raise UnsliceableError(
                    f"go in step with {node.input[index]!r}, input of {node.name!r}, which is no constant of {rows} "
                    "rows, so that no part of it can be taken along"
                )
            edges.append(Edge(body.name, node.name, index, value))
        return edges

    def _element(self, body: Body, reference: str, component: int, through: str) -> Iterator[FileList]:
        """Follows the names that are one component of the elements of a dataset."""
        key = (body.name, reference, component, through)
        if key in self._visited:
            return
        self._visited.add(key)
        self.many = True
        node = body.producer(reference)
        if node is None:
            yield from self._captured_dataset(body, body.argument(reference), component, through)
            return
        kind = base_type(node.op)
        if kind == "TensorSliceDataset":
            yield from self._rows(body, node, 0, component)
        elif kind == "TensorDataset":
            value = self._bodies.constant(body, node.input[component])
            if value is not None and value.ndim:
                raise UnsliceableError(
                    f"are one element of {node.name!r}, of fixed size; use Dataset.from_tensor_slices"
                )
            yield from self._tensor(body, node, component, through)
        elif kind in file_ops.SAME_ELEMENTS:
            yield from self._element(body, node.input[0], component, through)
        elif kind in file_ops.CHOOSE_ELEMENTS:
            chosen = self._bodies.constant(body, node.input[1])
            if chosen is None or int(chosen) != file_ops.CHOOSE_ELEMENTS[kind]:
                raise UnsliceableError(
                    f"pass {node.name!r} ({kind}), which divides the list by position already; choose the files in "
                    "Python before the dataset is made, or switch io.slicing off"
                )
            yield from self._element(body, node.input[0], component, through)
        elif kind in file_ops.MAPS:
            yield from self._returned(self._bodies.all[node.attr["f"].func.name], component, through)
        elif kind in file_ops.FLAT_MAPS:
            function = self._bodies.all[node.attr["f"].func.name]
            yield from self._element(function, function.returns[0], component, through)
        elif kind == "ConcatenateDataset":
            for source in data_inputs(node):
                yield from self._element(body, source, component, through)
        elif kind == "ZipDataset":
            yield from self._zip(body, node, component, through)
        elif kind in file_ops.READERS:
            raise UnsliceableError(f"are read from other files, by {node.name!r} ({kind})")
        else:
            raise UnsliceableError(f"come from the dataset {node.name!r}, of type {node.op}")

    def _captured_dataset(self, body: Body, position: int, component: int, through: str) -> Iterator[FileList]:
        """Follows the elements of a dataset that a function receives as an argument."""
        for caller, node, _ in self._bodies.calls(body.name):
            elements = len(body.arguments) - len(node.attr["Targuments"].list.type)
            if base_type(node.op) not in file_ops.CALLERS or position < elements:
                raise UnsliceableError(f"are elements of a dataset that {node.name!r} ({node.op}) passes to a function")
            yield from self._element(caller, data_inputs(node)[1 + position - elements], component, through)

    def _zip(self, body: Body, node: tf.NodeDef, component: int, through: str) -> Iterator[FileList]:
        """Follows the names through a zip, and takes along the lists that are zipped with them."""
        branches = data_inputs(node)
        sizes = [self._components(body, branch) for branch in branches]
        own = next(i for i in range(len(sizes)) if component < sum(sizes[: i + 1]))
        for found in self._element(body, branches[own], component - sum(sizes[:own]), through):
            more = list(found.edges)
            for i, branch in enumerate(branches):
                rows = self._plain_rows(body, branch) if i != own else None
                if rows is not None:
                    more += [e for e in self._companions(body, rows, 0, len(found.edges[0].value)) if e not in more]
            yield found._replace(edges=tuple(more))

    def _plain_rows(self, body: Body, reference: str) -> Optional[tf.NodeDef]:
        """Returns the TensorSliceDataset whose elements a dataset has; None when it has others."""
        node = body.producer(reference)
        while node is not None and base_type(node.op) in file_ops.SAME_ELEMENTS:
            node = body.producer(node.input[0])
        return node if node is not None and node.op == "TensorSliceDataset" else None

    def _components(self, body: Body, reference: str) -> int:
        """Returns the number of components of a dataset's elements."""
        node = body.producer(reference)
        if node is None:
            raise UnsliceableError(f"are zipped with {reference!r}, an argument of a function")
        return len(node.attr["output_types"].list.type) or len(node.attr["Toutput_types"].list.type)


def check_zips(bodies: Bodies, sliced: List[FileList]) -> None:
    """Refuses datasets zipped with sliced ones that are not sliced alike.

    `Dataset.zip((records, labels))` pairs a record with a label by position: when the files of the records are divided
    and the labels are not, every pair would be wrong.

    Raises:
      UnsliceableError: with the names of the zip and of the other dataset.
    """
    cuts = _cut_nodes(bodies, sliced)
    for body in bodies.all.values():
        for node in body.nodes.values():
            if node.op != "ZipDataset" or bodies.is_unused(body, node):
                continue
            branches = [_upstream(body, branch) for branch in data_inputs(node)]
            sizes = [{cuts[body.name, name] for name in names if (body.name, name) in cuts} for names in branches]
            for branch, names, size in zip(data_inputs(node), branches, sizes):
                if size != max(sizes, key=len) and not all(_without_data(body.nodes[name]) for name in names):
                    raise UnsliceableError(
                        f"are zipped in {node.name!r} with {branch!r}, which is not divided in the same way, so that "
                        "what belongs together would come apart; zip the lists of names and read both in one map, or "
                        "switch io.slicing off"
                    )


def _cut_nodes(bodies: Bodies, sliced: List[FileList]) -> Dict[Tuple[str, str], int]:
    """Returns (body, node) -> number of files, for nodes that receive a sliced list, directly or in a function."""
    cuts: Dict[Tuple[str, str], int] = {}
    pending = [(edge.body, edge.node, len(found.edges[0].value)) for found in sliced for edge in found.edges]
    while pending:
        body, node, size = pending.pop()
        if (body, node) not in cuts:
            cuts[body, node] = size
            if body != MAIN:
                pending += [(site.body.name, site.node.name, size) for site in bodies.calls(body)]
    return cuts


def _upstream(body: Body, reference: str) -> Set[str]:
    """Returns the names of the nodes of a body from which a value is computed."""
    names: Set[str] = set()
    pending = [reference]
    while pending:
        node = body.producer(pending.pop())
        if node is not None and node.name not in names:
            names.add(node.name)
            pending += data_inputs(node)
    return names


def _without_data(node: tf.NodeDef) -> bool:
    """Tells whether a node upstream of a zip holds no data that must stay in step with files."""
    kind = base_type(node.op)
    return node.op == "Const" or kind in file_ops.WITHOUT_DATA or kind in file_ops.SAME_ELEMENTS
