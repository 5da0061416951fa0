"""Runs a model plain and split: one graph per rank, as processes have it, in threads of the test.

A model is a function that builds with `batch(name, ...)` placeholders and variables, and returns a Model.
"""

import itertools
import random
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.sharding.placements import REPLICATED, offsets
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.rules.registry import Choice, Inside
from epl.parallel.split.lowering import Lowering
from epl.parallel.split.program import Program
from epl.parallel.split.region import find_region
from epl.parallel.split.resharding_paths import Link
from epl.parallel.split.search import search, variable_placements


# loss, outputs to compare, and ops outside of the split.
class Model(NamedTuple):
    loss: Any
    outputs: Sequence[Any]
    outside: Sequence[Any]


Model.__new__.__defaults__ = ((),)
Feeds = List[Dict[str, np.ndarray]]  # by rank: name of a placeholder -> its rows

# Small models are split, too: variables are dear, and starting a collective costs next to nothing.
DEAR = {"link": Link(1e-9, 1e6), "full_variable": 1e7}
# As few collectives as can be with matrices that are cut.
FEW_COLLECTIVES = {"link": Link(1.0, 1e9), "full_variable": 1e10}

_NAMES = itertools.count()


def wanted(choices: Sequence[Choice]) -> Tuple[Choice, ...]:
    """The choices as a search takes them rather than compute in full, whatever it costs to come there."""
    return tuple(choice._replace(inside=(*choice.inside, Inside("all-reduce", -1e15))) for choice in choices)


def few_choices(seed: int) -> Callable[[Program], None]:
    """Leaves each op of a program some of its choices at random, and none of them is too dear."""

    def prepare(program: Program) -> None:
        drawn = random.Random(seed)
        for index, step in enumerate(program.steps):
            kept = [choice for choice in step.choices if drawn.random() < 0.6]
            program.steps[index] = step._replace(choices=wanted(kept))

    return prepare


def communicator(ranks):
    """One of this process alone."""
    job = Job.current() or Job.start(["localhost:0"], 0, stall_warning=5, timeout=30)
    return Communicator(f"split_{next(_NAMES)}", [0] * ranks, job=job)


class Plain:
    """What the unsplit program computes on the rows of all ranks.

    Attributes:
      initial: name of a variable -> its value.
      loss, outputs, gradients: values; gradients by name of the variable.
    """

    def __init__(self, build: Callable[[], Model], feeds: Feeds) -> None:
        with tf.Graph().as_default() as graph, tf.Session() as sess:
            tf.set_random_seed(3)
            model = build()
            variables = tf.trainable_variables()
            grads = tf.gradients(model.loss, variables)
            sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            self.initial = {v.op.name: sess.run(v) for v in tf.global_variables() + tf.local_variables()}
            feed = {
                graph.get_tensor_by_name(name + ":0"): np.concatenate([rows[name] for rows in feeds])
                for name in feeds[0]
            }
            grads = [dense(v, grad) for v, grad in zip(variables, grads)]
            fetched = sess.run([model.loss, list(model.outputs), grads], feed)
            self.loss, self.outputs = fetched[0], fetched[1]
            self.gradients = {v.op.name: grad for v, grad in zip(variables, fetched[2])}


class Split:
    """The program of one rank, in a graph of its own.

    Attributes:
      lowering, program, decision: as they were built.
      loss, outputs: REPLICATED.
      parts: name of a variable that is cut -> this rank's part.
      placements: name of a variable -> its placement.
      gradients: name of a variable, or of one outside -> this rank's gradient.
    """

    def __init__(
        self,
        build: Callable[[], Model],
        ranks: int,
        rank: int,
        wire: Any,
        initial: Any = None,
        costs: Any = None,
        decision: Any = None,
        prepare: Callable[[Program], None] = lambda program: None,
        half: bool = False,
        ratios: Sequence[int] = (),
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.set_random_seed(3)
            model = build()
            outside = set(model.outside)
            user_variables = tf.global_variables() + tf.local_variables()
            user_ops = [op for op in self.graph.get_operations() if op not in outside]
            self.program = Program(find_region(user_ops), ranks, half=half, ratios=lambda op: tuple(ratios))
            self.program.train([model.loss])
            prepare(self.program)
            self.decision = decision or search(self.program, **(DEAR if costs is None else costs))
            self.resharder = Resharder(wire, rank, "split")
            self.parts = {}
            self._initial, self._rank = initial, rank
            self.lowering = Lowering(self.program, self.decision, self.resharder, self._variable, "EPL_SPLIT/")
            self.placements = {
                self.program.values[number].tensor.op.name: placement
                for number, placement in variable_placements(self.program, self.decision).items()
            }
            self.loss = self.lowering.whole(model.loss)
            self.outputs = [self.lowering.whole(output) for output in model.outputs]
            self.forward = len(self.resharder.collectives)
            whole = {v.op.name: v for v in user_variables if v.op.name not in self.parts}
            variables = dict(self.parts, **{name: v for name, v in whole.items() if v in tf.trainable_variables()})
            grads = tf.gradients(self.loss, list(variables.values()))
            self.gradients = {name: dense(v, grad) for (name, v), grad in zip(variables.items(), grads)}
            self.outside = {op.name for op in outside}
            self.initializer = [part.initializer for part in self.parts.values()]
            self.initializer += [tf.assign(v, initial[name]) for name, v in whole.items() if initial is not None]

    def _variable(self, op, placement):
        name = op.name
        if placement == REPLICATED:
            original = [v for v in tf.global_variables() + tf.local_variables() if v.op.name == name][0]
            return tf.convert_to_tensor(original)
        with tf.init_scope(), tf.name_scope("PART/"):
            if self._initial is None:  # the graph is only looked at
                shape = list(tf.TensorShape(op.get_attr("shape")).as_list())
                shape[placement.dim] = placement.sizes[self._rank]
                value = tf.zeros(shape, tf.as_dtype(op.get_attr("dtype")))
            else:
                value = part(self._initial[name], placement, self._rank)
            self.parts[name] = tf.Variable(value, use_resource=True, name=name)
        return self.parts[name].read_value()

    def kinds(self):
        """(forward, backward) collectives: their op types in order, those of single elements left out."""
        return [[op.type[3:] for op in part if not is_small(op)] for part in self.collectives()]

    def collectives(self):
        """(forward, backward) collectives."""
        return self.resharder.collectives[: self.forward], self.resharder.collectives[self.forward :]


def dense(variable, grad):
    return tf.zeros(variable.shape, variable.dtype.base_dtype) if grad is None else tf.convert_to_tensor(grad)


def is_small(op):
    """Whether a collective moves a few elements."""
    shape = moved(op).shape
    return shape.num_elements() is not None and shape.num_elements() < 8


def moved(op):
    """The tensor that a collective moves."""
    return op.inputs[COLLECTIVE_OP_TYPES[op.type].first_tensor]


def part(value, placement, rank):
    """A rank's part of an array."""
    if placement == REPLICATED:
        return value
    begin = offsets(placement.sizes)[rank]
    return np.take(value, range(begin, begin + placement.sizes[rank]), axis=placement.dim)


def run_split(
    build: Callable[[], Model],
    feeds: Feeds,
    plain: Plain,
    prepare: Any = None,
    costs: Any = None,
    ratios: Sequence[int] = (),
) -> List[Any]:
    """Runs all ranks: per rank (loss, outputs, gradients); and the Splits."""
    ranks = len(feeds)
    wire = communicator(ranks)
    prepare = prepare or (lambda program: None)
    splits = []  # type: List[Split]
    for rank in range(ranks):
        decision = splits[0].decision if splits else None
        splits.append(Split(build, ranks, rank, wire, plain.initial, costs, decision, prepare, ratios=ratios))
    results = [None] * ranks  # type: List[Any]
    errors = []

    def run(rank):
        split = splits[rank]
        try:
            with tf.Session(graph=split.graph) as sess:
                sess.run(split.initializer)
                feed = {split.graph.get_tensor_by_name(name + ":0"): rows for name, rows in feeds[rank].items()}
                results[rank] = sess.run([split.loss, split.outputs, split.gradients], feed)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        Job.current().end_generation("a rank failed")
        raise errors[0]
    return [results, splits]


def check(
    build: Callable[[], Model],
    feeds: Feeds,
    tolerance: float = 1e-9,
    prepare: Any = None,
    costs: Any = None,
    ratios: Sequence[int] = (),
    of_all: Optional[Callable[[], Model]] = None,
) -> List[Split]:
    """Loss, outputs and all gradients are those of the unsplit program, on every rank; the Splits.

    `of_all` builds a model into which the size of the batch is written, with that of all ranks.
    """
    plain = Plain(of_all or build, feeds)
    results, splits = run_split(build, feeds, plain, prepare, costs, ratios)
    for rank, (loss, outputs, gradients) in enumerate(results):
        close(loss, plain.loss, tolerance)
        for output, wanted in zip(outputs, plain.outputs):
            close(output, wanted, tolerance)
        for name in set(gradients).intersection(plain.gradients) - splits[rank].outside:
            placement = splits[rank].placements.get(name, REPLICATED)
            close(gradients[name], part(plain.gradients[name], placement, rank), tolerance, name)
    return splits


def close(got, wanted, tolerance, what=""):
    """Equal, relative to the largest element."""
    assert np.shape(got) == np.shape(wanted), what
    scale = max(float(np.max(np.abs(wanted), initial=0)), 1e-3) if np.asarray(wanted).dtype.kind == "f" else 1
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale, err_msg=what)


def rows(counts: Sequence[int], seed: int = 0, **shapes: Any) -> Feeds:
    """Feeds with as many rows on each rank: `x=(5, 6)` is the shape of a row of floats, `y=10` draws a label below 10
    for each row, `t=([5], 10)` five of them."""
    drawn = np.random.RandomState(seed)
    found = []
    for count in counts:
        fed = {}
        for name, shape in sorted(shapes.items()):
            if isinstance(shape, int):
                fed[name] = drawn.randint(0, shape, [count]).astype(np.int32)
            elif shape and isinstance(shape[0], list):
                fed[name] = drawn.randint(0, shape[1], [count] + shape[0]).astype(np.int32)
            else:
                fed[name] = drawn.randn(count, *shape).astype(np.float32)
        found.append(fed)
    return found
