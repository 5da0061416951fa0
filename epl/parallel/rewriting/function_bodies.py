"""Reads a GraphDef as bodies (the main graph and every function of its library) that refer to each other.

It knows what a reference between nodes means in each of the two notations ("node:1" in a graph, "node:output:1" or
"argument" in a function), which node calls which function, which datasets are used at all, and the values of constants.
It changes nothing.
"""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

MAIN = ""  # the name of the body that is the main graph
SLICED = "_epl_io_sliced"  # attribute of the ops that replace a list which was divided

_DATASET = re.compile(r"^(?:Experimental|Legacy)?(.*Dataset)(?:V\d+)?$")


def base_type(op_type: str) -> str:
    """Returns the type of a dataset without prefix and version, and any other op type as it is.

    Example: "CSVDataset" of "ExperimentalCSVDataset" and of "CSVDatasetV2". The inputs of a dataset that have meaning
    here stand at the same positions in all its versions.
    """
    dataset = _DATASET.match(op_type)
    return dataset.group(1) if dataset else op_type


def is_dataset(op_type: str) -> bool:
    """Tells whether ops of this type make a dataset."""
    return _DATASET.match(op_type) is not None


class Body:
    """The nodes of the main graph, or of one function."""

    __slots__ = ("name", "nodes", "arguments", "returns")

    def __init__(self, name: str, nodes: Dict[str, tf.NodeDef], arguments: List[str], returns: List[str]) -> None:
        self.name = name
        self.nodes = nodes
        self.arguments = arguments  # names
        self.returns = returns  # references

    def producer(self, reference: str) -> Optional[tf.NodeDef]:
        """Returns the node that makes a value; None for an argument of the function."""
        return self.nodes.get(reference.split(":")[0])

    def argument(self, reference: str) -> int:
        """Returns the position of the argument that a reference without producer names."""
        return self.arguments.index(reference.split(":")[0])


class CallSite(NamedTuple):
    """A node that calls a function."""

    body: Body
    node: tf.NodeDef
    attr: str  # the attribute that names the function; empty where the op type does


def output_index(reference: str) -> int:
    """Returns the index of the producer's output that a reference names."""
    last = reference.split(":")[-1]
    return int(last) if ":" in reference else 0


def data_inputs(node: tf.NodeDef) -> List[str]:
    """Returns the references of a node without the control inputs, which come last."""
    return [reference for reference in node.input if not reference.startswith("^")]


def functions_of(node: tf.NodeDef) -> Iterator[Tuple[str, str]]:
    """Yields (attribute, function name) for every function that a node's attributes name."""
    for attr, value in node.attr.items():
        if value.HasField("func"):
            yield attr, value.func.name
        for function in value.list.func:
            yield attr, function.name


def _may_call(node: tf.NodeDef) -> bool:
    """Tells whether a node has an attribute that may name functions; any list may, even an empty one."""
    return any(value.HasField("func") or value.HasField("list") for value in node.attr.values())


class Bodies:
    """The main graph and the functions of a GraphDef."""

    def __init__(self, graph_def: tf.GraphDef) -> None:
        self.all: Dict[str, Body] = {MAIN: Body(MAIN, {n.name: n for n in graph_def.node}, [], [])}
        for function in graph_def.library.function:
            self.all[function.signature.name] = Body(
                function.signature.name,
                {n.name: n for n in function.node_def},
                [a.name for a in function.signature.input_arg],
                [function.ret[a.name] for a in function.signature.output_arg],
            )
        self._unused = _unused_datasets(self.all[MAIN])
        self._calls: Dict[str, List[CallSite]] = {}
        self._globs: Dict[bytes, List[bytes]] = {}
        callers: Dict[str, bool] = {}  # op type -> whether its attributes may name functions
        for body in self.all.values():
            for node in body.nodes.values():
                if node.op not in callers:
                    callers[node.op] = node.op in self.all or _may_call(node)
                if not callers[node.op] or self.is_unused(body, node):
                    continue
                if node.op in self.all:
                    self._calls.setdefault(node.op, []).append(CallSite(body, node, ""))
                for attr, name in functions_of(node):
                    self._calls.setdefault(name, []).append(CallSite(body, node, attr))

    def calls(self, function: str) -> List[CallSite]:
        """Returns the nodes that call a function, without datasets that nothing iterates."""
        return self._calls.get(function, [])

    def is_unused(self, body: Body, node: tf.NodeDef) -> bool:
        """Tells whether a node makes a dataset of the main graph that nothing iterates.

        `make_one_shot_iterator` leaves such datasets in the graph: it records them a second time, in a function.
        """
        return body.name == MAIN and node.name in self._unused

    def constant(self, body: Body, reference: str) -> Optional[np.ndarray]:
        """Returns the value of a constant expression, with patterns of file names resolved now; None for other nodes.

        A node with control inputs (an assertion, a limit of epochs) is no constant: replacing it would lose them.
        """
        node = body.producer(reference)
        if node is None or SLICED in node.attr or any(r.startswith("^") for r in node.input):
            return None
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        if node.op not in ("Identity", "Reshape", "Pack", "ConcatV2", "StringJoin", "MatchingFiles"):
            return None
        inputs = [self.constant(body, r) for r in data_inputs(node)]
        values = [value for value in inputs if value is not None]
        if len(values) < len(inputs):
            return None
        if node.op == "Identity":
            return values[0]
        if node.op == "Reshape":
            return values[0].reshape(values[1])
        if node.op == "Pack":
            return np.stack(values, axis=node.attr["axis"].i)
        if node.op == "ConcatV2":
            return np.concatenate(values[:-1], axis=int(values[-1]))
        if node.op == "StringJoin":
            join = np.frompyfunc(lambda *parts: node.attr["separator"].s.join(parts), len(values), 1)
            return np.asarray(join(*values), dtype=object)
        return self._matching_files(values[0])

    def _matching_files(self, patterns: np.ndarray) -> np.ndarray:
        """Returns the output of the op MatchingFiles: the files of all patterns, sorted."""
        names: List[bytes] = []
        for pattern in np.ravel(patterns):
            if pattern not in self._globs:
                try:
                    found = tf.io.gfile.glob(tf.compat.as_text(pattern))
                except tf.errors.NotFoundError:  # no such folder: the op itself will say so when it runs
                    found = []
                self._globs[pattern] = [tf.compat.as_bytes(name) for name in found]
            names += self._globs[pattern]
        return np.array(sorted(names), dtype=object)


def is_names(value: np.ndarray) -> bool:
    """Tells whether a constant holds strings."""
    return value.dtype == np.dtype(object)


def _unused_datasets(main: Body) -> Set[str]:
    """Returns the names of the datasets of the main graph whose elements nothing reads."""
    candidates = [node.name for node in main.nodes.values() if is_dataset(node.op)]
    consumers: Dict[str, Set[str]] = {name: set() for name in candidates}
    for node in main.nodes.values():
        for reference in node.input:
            name = reference.lstrip("^").split(":")[0]
            if name in consumers:
                consumers[name].add(node.name)
    unused: Set[str] = set()
    while candidates:
        name = candidates.pop()
        if name in unused or consumers[name] - unused:
            continue
        unused.add(name)
        inputs = [main.nodes[r.split(":")[0]] for r in data_inputs(main.nodes[name])]
        candidates += [node.name for node in inputs if is_dataset(node.op)]
    return unused
