"""Runs every choice that a rule lists for an op on parts, and compares values and gradients with the unsplit op.

All cases of a call are in one graph and run at once: for each rank on a device of its own, with the collectives of a
job of one process. Inputs are parts by the placements of the choice, gradients by the convention of
epl/parallel/sharding/placements.py.
"""

import contextlib
import itertools
from collections import Counter
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl.parallel.sharding.rules.all  # noqa: F401
from epl.ops.communicator import Communicator
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.sharding.placements import Placement, offsets
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.rules.emission import RankEmission
from epl.parallel.sharding.rules.registry import Choice, OpInfo, TensorInfo, choices_of
from tests.native.ops_harness import local_job, session
from tests.parallel.sharding.rules.rule_inputs import Input


def _ranks(*ranks: Any) -> List[Any]:
    """The first two for `make test`, all others for long runs: each takes as long again."""
    return list(ranks[:2]) + [pytest.param(one, marks=pytest.mark.long) for one in ranks[2:]]


# Numbers of ranks, or ratios of their shards, for @pytest.mark.parametrize.
TWO = _ranks(2, (1, 0), 3, 4, (0, 1), (2, 0, 1))
THREE = _ranks(3, (2, 0, 1), 2, 4, (1, 0), (0, 1))

_NAMES = itertools.count()
_ROWS = {2: (4, 2), 3: (2, 1, 3), 4: (2, 1, 2, 1)}  # of each rank's batch; 6 in all


class Case(NamedTuple):
    """An op to check.

    Attributes:
      name: for messages.
      build: the op, or a tensor of it, from its inputs.
      inputs: what it takes.
      expected: the choices, as "s0,F>s0": placements of the inputs and outputs, s<dim>, b<dim> (batch), F or P.
      undifferentiated: outputs of which values are compared, gradients are not.
      unspecified: outputs that TensorFlow leaves as they are in memory.
      granularities: of the OpInfo.
      batch: the dimension of each output that holds the batch; not given: the one of unknown size.
      tolerance: of values and gradients.
    """

    name: str
    build: Callable[..., Any]
    inputs: Sequence[Input]
    expected: str
    undifferentiated: Sequence[int] = ()
    unspecified: Sequence[int] = ()
    granularities: Any = None
    batch: Any = None
    tolerance: float = 2e-5


class _Unsplit:
    """The op itself, its values and gradients."""

    def __init__(self, case: Case, ranks: int, ratios: Tuple[int, ...], seed: int) -> None:
        random = np.random.RandomState(seed)
        rows = sum(_ROWS[ranks])
        self.case = case
        self.ranks = ranks
        self._ratios = ratios
        self.batches = [batch_of(spec) for spec in case.inputs]
        self.arrays = [values_of(spec, random, rows) for spec in case.inputs]
        self.tensors = [self._tensor(spec, array) for spec, array in zip(case.inputs, self.arrays)]
        self.op = op_of(case.build(*self.tensors))
        taken = [getattr(tensor, "handle", tensor) for tensor in self.tensors]
        assert list(self.op.inputs) == taken, (case.name, list(self.op.inputs))
        self.outputs = list(self.op.outputs)
        self.with_gradient = [index for index in range(len(self.outputs)) if index not in case.undifferentiated]
        self.info = self._info()

    def _tensor(self, spec: Input, array: np.ndarray) -> Any:
        if spec.variable:
            return tf.Variable(array, use_resource=True)
        if spec.constant:
            return tf.constant(array)
        shape = [None if isinstance(size, str) else size for size in spec.shape]
        return tf.placeholder_with_default(tf.constant(array), shape)

    def _info(self) -> OpInfo:
        inputs = [
            TensorInfo(tuple(tensor.shape.as_list()), tensor.dtype, array if spec.constant else None, batch)
            for tensor, array, spec, batch in zip(self.tensors, self.arrays, self.case.inputs, self.batches)
        ]
        outputs = []
        for index, tensor in enumerate(self.outputs):
            shape = None if tensor.shape.ndims is None else tuple(tensor.shape.as_list())
            if self.case.batch is not None:
                batch = self.case.batch[index]
            else:
                batch = shape.index(None) if shape and None in shape else None
            outputs.append(TensorInfo(shape, tensor.dtype, None, batch))
        attrs = {name: self.op.get_attr(name) for name in self.op.node_def.attr}
        return OpInfo(self.op.type, self.op.name, attrs, tuple(inputs), tuple(outputs), self.ranks,
                      self.case.granularities or {}, self._ratios)  # fmt: skip

    def with_gradients(self, cotangents: Sequence[np.ndarray]) -> List[Any]:
        """Outputs, and the gradients with respect to the inputs."""
        return [self.outputs, self.gradients(self.outputs, self.tensors, cotangents)]

    def gradients(self, outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], given: Sequence[Any]) -> List[Any]:
        """Of outputs that have one with respect to inputs that have one; [] for the others and where there is none."""
        ys = [index for index in self.with_gradient if _has_gradients(outputs[index])]
        xs = [tensor for tensor in inputs if _has_gradients(tensor)]
        found: List[Any] = [None] * len(xs)
        if ys and xs:
            with contextlib.suppress(LookupError):  # the op has no gradient
                found = tf.gradients([outputs[y] for y in ys], xs, [tf.constant(given[y]) for y in ys])
        grads = iter(found)
        of_inputs = [next(grads) if _has_gradients(tensor) else None for tensor in inputs]
        return [[] if grad is None else tf.convert_to_tensor(grad) for grad in of_inputs]


def _has_gradients(tensor: Any) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def op_of(built: Any) -> tf.Operation:
    """The op after what `Case.build` gives."""
    first = built[0] if isinstance(built, (list, tuple)) else built
    return first if isinstance(first, tf.Operation) else first.op


def batch_of(spec: Input) -> Optional[int]:
    """The dimension that holds the batch."""
    found = [dim for dim, size in enumerate(spec.shape) if str(size).endswith("B")]
    return found[0] if found else None


def values_of(spec: Input, random: np.random.RandomState, rows: int) -> np.ndarray:
    """Numbers for an input, with so many rows in the batch."""
    return spec.make(random, tuple(_size(size, rows) for size in spec.shape))


def _size(size: Any, rows: int) -> int:
    if not isinstance(size, str):
        return size
    return rows * int(size[:-1] or 1) if size.endswith("B") else int(size[1:])


def short(choice: Choice) -> str:
    """A choice as in `Case.expected`."""

    def letter(placement: Placement) -> str:
        if not placement.is_shard:
            return placement.kind[0].upper()
        return ("b" if placement.sizes is None else "s") + str(placement.dim)

    return "{}>{}".format(",".join(map(letter, choice.inputs)), ",".join(map(letter, choice.outputs)))


def sizes_of(placement: Placement, full: int, ranks: int) -> Tuple[int, ...]:
    """The sizes of the parts of a dimension that has `full` elements."""
    if placement.sizes is not None:
        assert sum(placement.sizes) == full, (placement, full)
        return placement.sizes
    rows = _ROWS[ranks]
    return tuple(count * full // sum(rows) for count in rows)


def parts_of(array: np.ndarray, placement: Placement, ranks: int, random: np.random.RandomState) -> List[np.ndarray]:
    """What each rank has of a value."""
    if placement.is_shard:
        sizes = sizes_of(placement, array.shape[placement.dim], ranks)
        return [
            np.take(array, range(begin, begin + size), axis=placement.dim) for begin, size in zip(offsets(sizes), sizes)
        ]
    if placement.kind == "full":
        return [array] * ranks
    partial_sums = [random.randint(-3, 4, array.shape).astype(array.dtype) for _ in range(ranks - 1)]
    return partial_sums + [(array - sum(partial_sums)).astype(array.dtype)]


def _gradient_parts(array: np.ndarray, placement: Placement, ranks: int) -> List[np.ndarray]:
    return parts_of(array, placement, ranks, None) if placement.is_shard else [array] * ranks


class _Split:
    """A choice on the parts of each rank."""

    def __init__(
        self, unsplit: _Unsplit, choice: Choice, resharders: Sequence[Resharder], cotangents: Sequence[np.ndarray]
    ) -> None:
        self.choice = choice
        ranks = unsplit.ranks
        random = np.random.RandomState(1)
        parts = [parts_of(array, placement, ranks, random) for array, placement in zip(unsplit.arrays, choice.inputs)]
        given = [_gradient_parts(value, placement, ranks) for value, placement in zip(cotangents, choice.outputs)]
        self.fetches = []
        for rank, resharder in enumerate(resharders):
            with tf.device(f"/device:CPU:{rank}"):
                local = [
                    _local(unsplit, index, placement, parts[index][rank], ranks)
                    for index, placement in enumerate(choice.inputs)
                ]
                entered = [
                    resharder.enter(tensor) if placement.kind == "full" else tensor
                    for tensor, placement in zip(local, choice.inputs)
                ]
                emission = RankEmission(unsplit.op, resharder, lambda: tf.constant(_ROWS[ranks], tf.int64))
                before = _collectives()
                if choice.emit is None:
                    outputs = emission.same(entered)
                else:
                    outputs = choice.emit(emission, unsplit.info, entered)
                assert len(outputs) == len(unsplit.outputs)
                for output, full in zip(outputs, unsplit.outputs):
                    assert output.dtype == full.dtype, (output, full)
                forward = _collectives()
                grads = unsplit.gradients(outputs, local, [value[rank] for value in given])
                self.built = [forward[len(before) :], _collectives()[len(forward) :]]
                self.of_entered = Counter()  # the collectives of the gradients of what has been entered
                for grad, placement in zip(grads, choice.inputs):
                    if placement.kind == "full" and isinstance(grad, tf.Tensor):
                        is_sparse = grad.op.type == "UnsortedSegmentSum"
                        self.of_entered.update(["all-gather"] * 2 if is_sparse else ["all-reduce"])
                self.fetches.append([list(outputs), grads])

    def wrong_inside(self) -> List[str]:
        """In what the collectives that the choice tells differ from those that were built."""
        told = [
            Counter(one.collective for one in self.choice.inside if one.is_backward == way) for way in (False, True)
        ]
        built = [Counter(COLLECTIVE_OP_TYPES[op.type].kind.replace("_", "-") for op in ops) for ops in self.built]
        built[1].subtract(self.of_entered)
        wrong = []
        if told != [Counter({name: count for name, count in one.items() if count}) for one in built]:
            wrong.append(f"tells {told} inside, and builds {built}")
        reduced = [tensor for op in self.built[0] if op.type == "EplAllReduce" for tensor in op.inputs[1:]]
        if all(tensor.shape.is_fully_defined() for tensor in reduced):
            sizes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in reduced)
            expected = sum(one.nbytes for one in self.choice.inside if one[::2] == ("all-reduce", False))
            wrong += [] if sizes == expected else [f"tells all-reduces of {expected} bytes, and builds {sizes}"]
        return [f"{short(self.choice)}: {one}" for one in wrong]


def _collectives() -> List[tf.Operation]:
    """The collectives of the default graph, in the order in which they were made."""
    return [op for op in tf.get_default_graph().get_operations() if op.type in COLLECTIVE_OP_TYPES]


def _local(unsplit: _Unsplit, index: int, placement: Placement, part: np.ndarray, ranks: int) -> tf.Tensor:
    """A rank's part, with no more of its shape known than all ranks have in common."""
    if not placement.is_shard and unsplit.case.inputs[index].constant:
        return tf.constant(part)
    shape = unsplit.tensors[index].shape.as_list()
    if placement.is_shard:
        sizes = sizes_of(placement, unsplit.arrays[index].shape[placement.dim], ranks)
        shape[placement.dim] = sizes[0] if len(set(sizes)) == 1 and placement.sizes is not None else None
    return tf.placeholder_with_default(tf.constant(part), shape)


def check(cases: Sequence[Case], how: Union[int, Tuple[int, ...]]) -> None:
    """Asserts for every case that its choices are those expected, and that they compute what the op computes.

    Args:
      cases: the ops.
      how: the number of ranks, or the ratios of their shards: dimensions of size 1 can then be cut as well.
    """
    wrong: List[str] = []
    ranks, ratios = (how, ()) if isinstance(how, int) else (len(how), how)
    communicator = Communicator(f"rules_{next(_NAMES)}", [0] * ranks, job=local_job())
    with tf.Graph().as_default() as graph, session(ranks, graph) as sess:
        unsplit = []
        for seed, case in enumerate(cases):
            with tf.name_scope("unsplit_" + case.name):
                unsplit.append(_Unsplit(case, ranks, ratios, seed))
        sess.run(tf.global_variables_initializer())
        sizes = _run(sess, [[tf.shape(output) for output in one.outputs] for one in unsplit])
        random = np.random.RandomState(0)
        cotangents = [[random.uniform(-1, 1, size).astype(np.float32) for size in of_case] for of_case in sizes]
        for values, one in zip(cotangents, unsplit):
            for index, output in enumerate(one.outputs):
                if output.dtype.is_complex:
                    values[index] = values[index] + 1j * random.uniform(-1, 1, values[index].shape)
                if _has_gradients(output):
                    values[index] = values[index].astype(output.dtype.as_numpy_dtype)
        resharders = [Resharder(communicator, rank, "rules") for rank in range(ranks)]
        split = []
        for one, values in zip(unsplit, cotangents):
            choices = choices_of(one.info)
            found, expected = set(map(short, choices)), set(one.case.expected.split())
            if found != expected and not (ratios and found > expected):
                wrong.append(f"{one.case.name}: the choices are {' '.join(sorted(found))}")
            with tf.name_scope("split_" + one.case.name):
                split.append([_Split(one, choice, resharders, values) for choice in choices])
        full = [one.with_gradients(values) for one, values in zip(unsplit, cotangents)]
        full, parts = _run(sess, [full, [[choice.fetches for choice in of_case] for of_case in split]])
    communicator.close()
    for one, values, of_case, fetched in zip(unsplit, full, split, parts):
        for choice, got in zip(of_case, fetched):
            wrong += [f"{one.case.name}: {what}" for what in choice.wrong_inside()]
            wrong += _differences(one, choice.choice, values, got)
    assert not wrong, "\n".join(wrong)


def _run(sess: tf.Session, fetches: Any) -> Any:
    """Runs; the message of an op that fails names the case, and is all that is shown."""
    message = ""
    try:
        return sess.run(fetches)
    except tf.errors.OpError as error:
        message = error.message
    raise AssertionError(message[:800])


def _differences(unsplit: _Unsplit, choice: Choice, full: Any, got: Any) -> List[str]:
    """What differs between an op and a choice of its rule."""
    wrong = []
    pairs = []
    for index, placement in enumerate(choice.outputs):
        if index not in unsplit.case.unspecified:
            pairs.append((f"output {index}", full[0][index], [outputs[index] for outputs, _ in got], placement))
    for index, placement in enumerate(choice.inputs):
        parts = [grads[index] for _, grads in got]
        wanted = full[1][index]
        if isinstance(wanted, list):
            if any(np.any(part) for part in parts):
                wrong.append(f"{unsplit.case.name} {short(choice)}: a gradient of input {index}")
            continue
        if any(isinstance(part, list) for part in parts):
            parts = [np.zeros(unsplit.arrays[index].shape) if isinstance(part, list) else part for part in parts]
        pairs.append((f"gradient {index}", wanted, parts, placement if placement.is_shard else None))
    for what, wanted, parts, placement in pairs:
        try:
            _compare(wanted, parts, placement, unsplit.ranks, unsplit.case.tolerance)
        except AssertionError as error:
            wrong.append(f"{unsplit.case.name} {short(choice)} {what}: {error}")
    return wrong


def _compare(
    wanted: np.ndarray, parts: Sequence[np.ndarray], placement: Optional[Placement], ranks: int, tolerance: float
) -> None:
    """Parts in a placement against the whole; None: the whole on every rank."""
    if placement is not None and placement.is_shard:
        sizes = sizes_of(placement, wanted.shape[placement.dim], ranks)
        assert [part.shape[placement.dim] for part in parts] == list(sizes), "parts {} instead of {}".format(
            [part.shape for part in parts], sizes)  # fmt: skip
        wholes = [np.concatenate(parts, axis=placement.dim)]
    elif placement is not None and placement.kind == "partial":
        wholes = [sum(parts)]
    else:
        wholes = list(parts)
    for whole in wholes:
        assert whole.shape == wanted.shape, f"shape {whole.shape} instead of {wanted.shape}"
        if wanted.dtype.kind in "fc":
            assert not np.any(np.isnan(wanted)), "the op itself gives what is no number"
            np.testing.assert_allclose(whole, wanted, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(whole, wanted)


def on_ranks(
    op: tf.Operation,
    info: OpInfo,
    placements: Sequence[Placement],
    values: Sequence[Sequence[Any]],
    build: Callable[..., Any],
) -> List[Any]:
    """Runs the choice with these input placements in the default graph.

    Args:
      op: the unsplit op.
      info: what the rule knows of it.
      placements: of its inputs.
      values: of each input, what each rank has.
      build: makes of outputs and local inputs what is run.

    Returns:
      What each rank got.
    """
    choice = next(choice for choice in choices_of(info) if choice.inputs == tuple(placements))
    communicator = Communicator(f"rules_{next(_NAMES)}", [0] * info.ranks, job=local_job())
    fetches = []
    for rank in range(info.ranks):
        with tf.device(f"/device:CPU:{rank}"):
            resharder = Resharder(communicator, rank, "rules")
            local = [tf.constant(value[rank]) for value in values]
            fetches.append(build(choice.emit(RankEmission(op, resharder), info, local), local))
    with session(info.ranks, tf.get_default_graph()) as sess:
        try:
            return sess.run(fetches)
        finally:
            communicator.close()
