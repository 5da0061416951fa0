"""Gives inputs of nodes in functions other constants.

    one_shot_dataset: Const 32 --> BatchDatasetV2         one_shot_dataset_rows: Const 53 --> BatchDatasetV2
    OneShotIterator(one_shot_dataset)                =>   OneShotIterator(one_shot_dataset_rows)

A changed function is a copy with a new name; so is each function that calls it, up to the ops of the main graph, which
then call the copies.
"""

from typing import Callable, Dict, List, NamedTuple, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from epl.parallel.rewriting.function_bodies import MAIN, Bodies, functions_of
from epl.utils import tf_compat
from epl.utils.errors import PlanError


class NewInput(NamedTuple):
    """A constant that a node of a function is to receive.

    Attributes:
      body: the function.
      node: name of the node in it.
      position: of the input.
      value: the constant.
    """

    body: str
    node: str
    position: int
    value: np.ndarray


class Change(NamedTuple):
    """What asks for new inputs, for names and messages.

    Attributes:
      key: the configuration key.
      what: what the constants are, as in "a list of files".
      suffix: of the names of changed functions.
      mark: attribute of the new constants, or "".
    """

    key: str
    what: str
    suffix: str
    mark: str = ""


def rewrite_functions(
    graph: tf.Graph,
    graph_def: tf.GraphDef,
    bodies: Bodies,
    inputs: Sequence[NewInput],
    change: Change,
    before_change: Callable[[tf.Operation], object],
) -> List[str]:
    """Copies functions under new names, with the new inputs, and makes nodes call the copies.

    Args:
      graph: the graph; changed.
      graph_def: of the graph; its nodes are changed, too.
      bodies: of `graph_def`.
      inputs: none in the main graph.
      change: what asks for it.
      before_change: is called for each op of the main graph before it is changed.

    Returns:
      The names of the copies.

    Raises:
      PlanError: an op of the main graph has the type of a function that would have to change.
    """
    names = _names_of_rewritten(bodies, inputs, change)
    if not names:
        return []
    changed = tf.GraphDef(versions=graph_def.versions)
    for function in graph_def.library.function:
        if function.signature.name not in names:
            continue
        copy = changed.library.function.add()
        copy.CopyFrom(function)
        copy.signature.name = names[function.signature.name]
        for node in copy.node_def:
            _call(node, names)
        for one in inputs:
            if one.body == function.signature.name:
                _rewire(copy, one, change)
    with graph.as_default():
        tf.import_graph_def(changed, name="")
    for node in bodies.all[MAIN].nodes.values():
        called = {attr for attr, name in functions_of(node) if name in names}
        if called:
            op = graph.get_operation_by_name(node.name)
            before_change(op)
            _call(node, names)
            for attr in called:
                tf_compat.set_attr(op, attr, node.attr[attr])
    return list(names.values())


def _names_of_rewritten(bodies: Bodies, inputs: Sequence[NewInput], change: Change) -> Dict[str, str]:
    """Returns old -> new name of every function that holds one of the nodes or calls one that does."""
    names: Dict[str, str] = {}
    pending = [one.body for one in inputs]
    while pending:
        old = pending.pop()
        if old != MAIN and old not in names:
            new, count = f"{old}_{change.suffix}", 0
            while new in bodies.all:
                count += 1
                new = f"{old}_{change.suffix}_{count}"
            names[old] = new
            for site in bodies.calls(old):
                if site.body.name == MAIN and not site.attr:
                    raise PlanError(
                        f"{change.key}: {site.node.name!r} calls the function {old!r}, which holds {change.what}, in a "
                        f"way that cannot be changed. Make {change.what} outside the function and pass it in."
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


def _rewire(function: "tf.compat.v1.FunctionDef", new: NewInput, change: Change) -> None:
    """Makes a node of a function read the new constant."""
    taken = {node.name for node in function.node_def}
    name = next(n for n in (f"epl_{change.suffix}/value_{i}" for i in range(len(taken) + 1)) if n not in taken)
    value = tf.make_tensor_proto(new.value)
    const = function.node_def.add(name=name, op="Const")
    const.attr["value"].tensor.CopyFrom(value)
    const.attr["dtype"].type = value.dtype
    if change.mark:
        const.attr[change.mark].b = True
    consumer = next(node for node in function.node_def if node.name == new.node)
    consumer.input[new.position] = f"{name}:output:0"
