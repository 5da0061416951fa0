"""Every op that has a rule for parts, in one training step of one graph: the cases of tests/parallel/split.

What a case takes at random is a variable, or a batch times one; a sum over its first dimension lets it come as addends,
too. Which choice of a rule is computed does not depend on costs here: a turn takes one after the other.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops

from epl.parallel.sharding.rules.registry import RULES
from tests.parallel.sharding.rules import (
    test_rules_convolution,
    test_rules_elementwise,
    test_rules_lookup,
    test_rules_losses,
    test_rules_matmul,
    test_rules_reductions,
    test_rules_reshape,
    test_rules_shapes,
)
from tests.parallel.sharding.rules.rule_harness import Case, batch_of, op_of, short, values_of
from tests.parallel.sharding.rules.rule_inputs import Input
from tests.parity.context import BY_HAND, GLOBAL_BATCH, Context
from tests.parity.scripts.splits import annotations

GROUPS: Dict[str, List[Callable[[], Iterator[Case]]]] = {
    "elementwise": [test_rules_elementwise.table_cases],
    "broadcasting": [test_rules_elementwise.broadcast_cases, test_rules_elementwise.bias_cases],
    "convolution": [
        test_rules_convolution.convolution_cases,
        test_rules_convolution.pooling_cases,
        test_rules_convolution.norm_cases,
    ],
    "lookup": [test_rules_lookup.lookup_cases, test_rules_lookup.one_hot_cases, test_rules_lookup.scatter_cases],
    "losses": [
        test_rules_losses.softmax_cases,
        test_rules_losses.cross_entropy_cases,
        test_rules_losses.in_top_k_cases,
    ],
    "matmul": [test_rules_matmul.matmul_cases, test_rules_matmul.batch_matmul_cases, test_rules_matmul.einsum_cases],
    "reductions": [
        test_rules_reductions.sum_cases,
        test_rules_reductions.extremum_cases,
        test_rules_reductions.search_cases,
    ],
    "reshape": [test_rules_reshape.cases],
    "moving": [test_rules_shapes.moving_cases, test_rules_shapes.slicing_cases],
    "shapes": [
        test_rules_shapes.repeating_cases,
        test_rules_shapes.shape_cases,
        test_rules_shapes.matrix_cases,
        test_rules_shapes.image_cases,
    ],
}
# Op types with a rule that no case can have: what is drawn differs from run to run (see split_random.py).
RANDOM = {"RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"}
ADDENDS = 4
# Infinite values, of which no mean is made; a size that the rule must not see; a shape for other batches; variables
# that round in the fourth digit.
LEFT_OUT = {"in_top_k_infinite", "mean_open", "fill_hidden", "softmax_half", "log_softmax_half", "sparse_half"}


def cases_of(groups: Sequence[str]) -> List[Case]:
    """The cases of some groups."""
    return [case for group in groups for cases in GROUPS[group] for case in cases() if case.name not in LEFT_OUT]


def number_of_choices(case: Case) -> int:
    """How many ways to compute it on parts its rule has."""
    return len(case.expected.split())


class Seen(NamedTuple):
    """What a case is on the batch of all.

    Attributes:
        type: of its op.
        shapes: of the outputs.
    """

    type: str
    shapes: List[Tuple[Optional[int], ...]]


def _seen(case: Case) -> Seen:
    random = np.random.RandomState(0)
    with tf.Graph().as_default():
        arrays = [values_of(spec, random, GLOBAL_BATCH) for spec in case.inputs]
        inputs = [
            tf.Variable(array, use_resource=True) if spec.variable else tf.constant(array)
            for spec, array in zip(case.inputs, arrays)
        ]
        op = op_of(case.build(*inputs))
        return Seen(op.type, [tuple(t.shape.as_list() if t.shape.ndims else ()) for t in op.outputs])


def op_types() -> Set[str]:
    """Those of which there is a case."""
    return {_seen(case).type for case in cases_of(sorted(GROUPS))}


def _one_of_each_rule(cases: Sequence[Tuple[Case, Seen]]) -> List[Tuple[Case, Seen]]:
    found: Dict[Any, Tuple[Case, Seen]] = {}
    for case, seen in cases:
        found.setdefault(RULES[seen.type], (case, seen))
    return list(found.values())


class Builder:
    """Builds cases, and collects what is fed to them.

    Attributes:
        feeds: placeholder -> rows of the batch, of all processes.
    """

    def __init__(self) -> None:
        self.feeds: Dict[tf.Tensor, np.ndarray] = {}

    def loss(self, case: Case, seen: Seen, seed: int) -> Tuple[tf.Operation, tf.Tensor]:
        """The op of a case, and a number that depends on where each of its elements is."""
        random = np.random.RandomState(seed)
        with tf.variable_scope(case.name):
            inputs = [self._taken(spec, "input_%d" % index, random) for index, spec in enumerate(case.inputs)]
            op = op_of(case.build(*inputs))
            terms = []
            for index, output in enumerate(op.outputs):
                if index not in case.unspecified:
                    if index in case.undifferentiated or not _has_gradient(op):
                        output = tf.stop_gradient(output)
                    terms.append(self._number(output, seen.shapes[index]))
            return op, tf.add_n(terms)

    def _taken(self, spec: Input, name: str, random: np.random.RandomState) -> Any:
        batch = batch_of(spec)
        values = values_of(spec, random, GLOBAL_BATCH)
        if spec.variable:
            return tf.get_variable(name, initializer=values, use_resource=True)
        if spec.constant:
            return tf.constant(values)
        if values.dtype.kind == "c":
            return tf.complex(_summed(values.real.copy(), name + "_real"), _summed(values.imag.copy(), name + "_imag"))
        if batch is None:
            if values.dtype.kind == "f":
                return _summed(values, name)
            return tf.convert_to_tensor(tf.get_variable(name, initializer=values, trainable=False))
        shape = [None if isinstance(size, str) else size for size in spec.shape]
        order = [batch] + [dim for dim in range(len(shape)) if dim != batch]
        rows, shape = np.transpose(values, order), [shape[dim] for dim in order]
        if values.dtype.kind == "f":
            taken = self._batch(_addends(rows, 1), [shape[0], ADDENDS] + shape[1:])
            scale = [ADDENDS] + [size or 1 for size in shape[1:]]
            taken = tf.reduce_sum(taken * tf.get_variable(name, initializer=np.ones(scale, values.dtype)), 1)
        else:
            taken = self._batch(rows, shape)
        return taken if batch == 0 else tf.transpose(taken, np.argsort(order))

    def _batch(self, rows: np.ndarray, shape: Sequence[Optional[int]]) -> tf.Tensor:
        placeholder = tf.placeholder(rows.dtype, shape)
        self.feeds[placeholder] = rows
        return placeholder

    def _number(self, output: tf.Tensor, shape: Tuple[Optional[int], ...]) -> tf.Tensor:
        """The mean of a square of the elements, each with a weight of its own."""
        if output.dtype.is_complex:
            output = tf.math.real(output) + 2 * tf.math.imag(output)
        output = tf.cast(output, tf.float32)
        static = output.shape.as_list() if output.shape.ndims is not None else []
        known = [size or 1 for size in static]
        output *= 1 + 0.5 * np.cos(np.arange(np.prod(known))).astype(np.float32).reshape(known)
        for dim, size in enumerate(static):
            if size is None and shape and (shape[dim] or 1) % GLOBAL_BATCH == 0:
                weights = self._batch(np.random.RandomState(dim).uniform(0.5, 1.5, shape[dim]).astype("f"), [None])
                output *= tf.reshape(weights, [-1] + [1] * (len(static) - dim - 1))
        return tf.reduce_mean(tf.square(output + 0.5))


def _has_gradient(op: tf.Operation) -> bool:
    try:
        return ops.get_gradient_function(op) is not None
    except LookupError:
        return False


def _addends(values: np.ndarray, axis: int) -> np.ndarray:
    """Values whose sum along a new dimension is exactly those given."""
    return np.stack([values] + [np.zeros_like(values)] * (ADDENDS - 1), axis)


def _summed(values: np.ndarray, name: str) -> tf.Tensor:
    return tf.reduce_sum(tf.get_variable(name, initializer=_addends(values, 0)), 0)


def train(
    ctx: Context,
    groups: Sequence[str],
    turn: int = 0,
    each_rule: bool = False,
    every_variable: bool = False,
    ratios: Sequence[float] = (),
) -> None:
    """Makes a step on all cases of some groups, or one case of each rule of theirs.

    Records their losses before it and, if asked for, every variable after it, else the losses; and how each case was
    computed.
    """
    cases = [(case, _seen(case)) for case in cases_of(groups)]
    cases = _one_of_each_rule(cases) if each_rule else cases
    ctx.init(annotate=False, cluster__colocate_split_and_replicate=True)
    _, split = annotations(ctx, ratios=ratios)
    builder = Builder()
    with split():
        built = [builder.loss(case, seen, seed) for seed, (case, seen) in enumerate(cases)]
        losses = tf.stack([loss for _, loss in built])
        loss = tf.reduce_sum(losses)
    optimizer = tf.train.MomentumOptimizer(1.0, 0.9)
    with choosing(
        ctx, {op.name: turn + number for number, (op, _) in enumerate(built)}, {of_case.op.name for _, of_case in built}
    ):
        pairs = optimizer.compute_gradients(loss)
    by_parts = [(grad, var) for grad, var in pairs if grad is not None] if ctx.mode == BY_HAND else []
    means = [tf.placeholder(var.dtype.base_dtype, var.shape) for _, var in by_parts]
    with tf.control_dependencies([losses]):
        train_op = optimizer.apply_gradients([(mean, var) for mean, (_, var) in zip(means, by_parts)] or pairs)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        feeds = {
            tensor: np.array_split(rows, ctx.workers)[ctx.worker] if ctx.planned else rows
            for tensor, rows in builder.feeds.items()
        }
        if by_parts:
            feeds.update(zip(means, _means_over_parts(ctx, sess, [grad for grad, _ in by_parts], feeds)))
        before = sess.run([losses, train_op], feeds)[0]
        for value in before:
            ctx.record(loss=value)
        variables = {v.name.partition(":")[0]: v for v in tf.global_variables()}
        values = sess.run(variables if every_variable else {})
        if not every_variable:  # a step may leave where functions are defined
            after = sess.run([losses, train_op], feeds)[0]
            values.update({case.name: value for (case, _), value in zip(cases, after)})
        ctx.results["variables"] = [values]


def _means_over_parts(
    ctx: Context, sess: tf.Session, gradients: Sequence[Any], feeds: Dict[tf.Tensor, np.ndarray]
) -> List[np.ndarray]:
    """Gradients as the means of those of parts of the rows: how plain TensorFlow rounds otherwise."""
    found = []
    for part in range(ctx.replicas):
        rows = {tensor: np.array_split(values, ctx.replicas)[part] for tensor, values in feeds.items()}
        found.append(sess.run([tf.convert_to_tensor(one) for one in gradients], rows))
    return [np.mean(of_parts, axis=0) for of_parts in zip(*found)]


@contextlib.contextmanager
def choosing(ctx: Context, turns: Dict[str, int], whole: Set[str]) -> Iterator[None]:
    """Plans that are made inside have one choice for each op of a name in `turns`: the one whose turn it is.

    Ops of the names in `whole` are computed whole, so that the search is done with a case when its loss is there.
    """
    if not ctx.planned:
        yield
        return
    from epl.parallel.split import section
    from epl.parallel.split.search import search
    from tests.parallel.split.harness import DEAR, wanted

    def searched(program: Any, _: Any, **limits: Any) -> Any:
        for index, step in enumerate(program.steps):
            if step.op.name in whole:
                program.steps[index] = step._replace(choices=())
            if step.op.name in turns:
                first = turns[step.op.name] % max(1, len(step.choices))
                program.steps[index] = step._replace(choices=wanted(step.choices[first : first + 1]))
                ctx.record(possible=(step.op.name, [short(choice) for choice in step.choices]))
        decision = search(program, **DEAR)
        for step, choice in zip(program.steps, decision.choices):
            if step.op.name in turns:
                ctx.record(taken=(step.op.name, short(step.choices[choice]) if choice >= 0 else "full"))
        return decision

    with mock.patch.object(section, "search", searched):
        yield
