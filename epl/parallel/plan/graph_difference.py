"""The first difference of two graphs whose digests differ, in the user's words.

    worker 0    Const 0.01 --> ApplyAdam        worker 1    Const 0.5 --> ApplyAdam

An op differs first if its producers do not differ: here the constants, not the updates that read them. The process that
has the op describes it.
"""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir import node_wire, op_types
from epl.ir.view import GraphView
from epl.parallel.plan.graph_digest import GraphDigest, OpDigest
from epl.utils import tf_compat
from epl.utils.source_line import user_line

# The names of hyperparameters in optimizers, by their names in TensorFlow's update ops.
HYPERPARAMETERS = {
    "alpha": "learning rate",
    "beta1": "beta1",
    "beta2": "beta2",
    "epsilon": "epsilon",
    "l1": "l1",
    "l2": "l2",
    "l2_shrinkage": "l2 shrinkage",
    "logbase": "logarithm base",
    "lr": "learning rate",
    "lr_power": "learning rate power",
    "momentum": "momentum",
    "rho": "decay (rho)",
    "sign_decay": "sign decay",
}
# Ops that pass a hyperparameter on unchanged.
_PASSES_ON = frozenset(["Cast", "Identity", "Enter", "Switch"])
_LONGEST_VALUE = 60  # characters


class OpFacts(NamedTuple):
    """The description of an op by its process.

    Attributes:
      name: name of the op.
      type: its type.
      line: the line of the user's script that built it.
      words: the meaning of a constant, such as "the learning rate of Adam"; "" if it is not known.
      value: the value of a constant.
      attributes: the compared attributes, as text.
      inputs: its inputs.
    """

    name: str
    type: str
    line: str
    words: str
    value: Optional[str]
    attributes: Dict[str, str]
    inputs: List[str]


def first_difference(ours: Sequence[OpDigest], theirs: Sequence[OpDigest]) -> Tuple[str, str]:
    """The names of the ops that differ first, one of each graph; "" if the other graph has all ops of a graph.

    Ops with equal names come first: such an op is returned if it differs and its producers do not.
    """
    named = [{op.name: op.digest for op in ops} for ops in (ours, theirs)]
    known = [set(digests.values()) for digests in named]
    positions = {op.name: i for i, op in enumerate(theirs)}

    def is_common(op: OpDigest) -> bool:
        return named[0].get(op.name) == named[1].get(op.name)

    for op in ours:
        other = theirs[positions[op.name]] if op.name in positions else op
        moved = op.digest in known[1] and other.digest in known[0]  # other ops have other names
        if op.digest != other.digest and not moved:
            producers = [ours[p] for p in op.producers] + [theirs[p] for p in other.producers]
            if all(is_common(producer) for producer in producers):
                return op.name, op.name
    first, second = _roots(ours, known[1]), _roots(theirs, known[0])
    new = [[name for name in first if name not in named[1]], [name for name in second if name not in named[0]]]
    if any(new):  # their consumers differ, too
        first, second = new
    return (first or [""])[0], (second or [""])[0]


def _roots(ops: Sequence[OpDigest], there: Set[str]) -> List[str]:
    """The ops whose digests are not in `there`, while those of all their producers are."""
    return [
        op.name
        for op in ops
        if op.digest not in there and all(ops[producer].digest in there for producer in op.producers)
    ]


def facts_of(digest: GraphDigest, tf_graph: tf.Graph, name: str) -> Optional[OpFacts]:
    """The facts about an op of this process; None for the name ""."""
    if not name:
        return None
    view = digest.view
    node = view.index[name]
    entry = view.nodes[node]
    op = tf_graph.get_operation_by_name(name)
    return OpFacts(
        name,
        entry.op,
        user_line(op),
        _words(view, tf_graph, node) if entry.op == "Const" else "",
        _value(op) if entry.op == "Const" else None,
        _attributes(digest, entry),
        list(entry.input),
    )


def _attributes(digest: GraphDigest, entry: node_wire.Node) -> Dict[str, str]:
    """The attributes that are compared as text: not the value of a constant, nor the names of functions."""
    names = [name for name in digest.rules.kept(entry.op, entry.attr) if name != "value"]
    values = {name: entry.attr[name] for name in names}
    return {name: _shortened(str(value)) for name, value in values.items() if not value.HasField("func")}


def in_words(workers: Sequence[int], facts: Sequence[Optional[OpFacts]]) -> str:
    """The difference between the ops of two workers, in words; one worker may lack the op."""
    here, there = facts
    if here is None and there is None:
        return "what differs is inside a loop, in what it does with variables that begin alike"
    if here is None or there is None:
        (worker, found) = (workers[0], here) if there is None else (workers[1], there)
        other = workers[1] if there is None else workers[0]
        assert found is not None
        return f"worker {worker} has {_op(found)}, which worker {other} has not"
    if here.name != there.name or os.path.basename(here.line) != os.path.basename(there.line):
        return "the first op that differs is {} in worker {} and {} in worker {}".format(
            _op(there), workers[1], _op(here), workers[0]
        )
    what, values = _differing(here, there)
    return "{} is {} in worker {} and {} in worker {} ({})".format(
        what, values[1], workers[1], values[0], workers[0], _place(there)
    )


def _differing(here: OpFacts, there: OpFacts) -> Tuple[str, Tuple[Any, Any]]:
    """The first difference of two ops with one name, in words, and its two values."""
    name = repr(here.name)
    if here.type != there.type:
        return "the type of op " + name, (here.type, there.type)
    if here.value != there.value:
        return here.words or there.words or "constant " + name, (here.value, there.value)
    for key in sorted(set(here.attributes) | set(there.attributes)):
        values = here.attributes.get(key, "not set"), there.attributes.get(key, "not set")
        if values[0] != values[1]:
            return f"attribute {key} of op {name}", values
    for i, values in enumerate(zip(here.inputs, there.inputs)):
        if values[0] != values[1]:
            return f"input {i} of op {name}", values
    if len(here.inputs) != len(there.inputs):
        return "the number of inputs of op " + name, (len(here.inputs), len(there.inputs))
    return f"what op {name} computes from inputs of the same names, or in a function,", ("one thing", "another")


def _op(facts: OpFacts) -> str:
    return f"{facts.name!r} ({_place(facts)})"


def _place(facts: OpFacts) -> str:
    return f"{facts.type}, {facts.name!r}, {facts.line}"


def _words(view: GraphView, tf_graph: tf.Graph, constant: int) -> str:
    """The hyperparameter that a constant is for the first update op that depends on it; "" if none."""
    consumers = view.consumers()
    level, seen, is_direct = [constant], {constant}, True
    while level:
        following: List[int] = []
        for node in level:
            for consumer in consumers[node]:
                if view.types[consumer] in op_types.WRITES:
                    found = _hyperparameter(view, tf_graph, node, consumer)
                    if found:
                        return found if is_direct else f"a constant that {found} is computed from"
                elif consumer not in seen and view.takes_data(consumer, node):
                    seen.add(consumer)
                    following.append(consumer)
        is_direct = is_direct and all(view.types[node] in _PASSES_ON for node in following)
        level = following
    return ""


def _hyperparameter(view: GraphView, tf_graph: tf.Graph, producer: int, update: int) -> str:
    """The hyperparameter that an update op reads from a node, such as "the learning rate of Adam"; "" if none."""
    op_type = view.types[update]
    arguments = tf_compat.op_def(tf_graph, op_type).input_arg
    for argument, name, taken in zip(arguments, view.nodes[update].input, view.producers[update]):
        if taken == producer and argument.name in HYPERPARAMETERS and name[0] != "^":
            optimizer = op_type.replace("Resource", "").replace("Sparse", "").replace("Apply", "")
            return f"the {HYPERPARAMETERS[argument.name]} of {optimizer}"
    return ""


def _value(constant: tf.Operation) -> str:
    value = np.asarray(tf_compat.evaluate_constant(constant.outputs[0]))
    return _shortened(np.array2string(value, threshold=8) if value.ndim else str(value))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."
