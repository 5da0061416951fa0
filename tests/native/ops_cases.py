"""What every collective must compute, as cases that can run on any layout of ranks over devices and processes.

A case builds its ops for one rank, and says what each rank must get; the expected values come from numpy or from plain
TensorFlow. How a layout is run is `ops_harness.py`'s.
"""

from typing import Any, Callable, Dict, List, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf


class Case(NamedTuple):
    build: Callable[..., List[Any]]
    expected: Callable[[int], List[List[np.ndarray]]]
    tolerance: float


CASES: Dict[str, Case] = {}


def case(name, expected, tolerance=0.0):
    """Registers the decorated build function as a case."""

    def register(build):
        assert name not in CASES
        CASES[name] = Case(build, expected, tolerance)
        return build

    return register


def values(rank, shape, dtype="float32", seed=0):
    """Small integers, different per rank, that sums and products of any dtype hold exactly."""
    return np.random.RandomState(100 * seed + rank).randint(1, 4, size=shape).astype(dtype)


def of_all(world, shape, dtype="float32", seed=0):
    return [values(rank, shape, dtype, seed) for rank in range(world)]


REDUCTIONS = {"sum": np.add.reduce, "prod": np.multiply.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce}


def reduced(arrays, reduce_op):
    dtype = arrays[0].dtype
    if reduce_op == "mean":
        total = np.add.reduce(arrays)
        return (total // len(arrays) if dtype.kind in "iu" else total / len(arrays)).astype(dtype)
    return REDUCTIONS[reduce_op](arrays).astype(dtype)


# ---- all_reduce

for _dtype in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
    for _op in ("sum", "prod", "min", "max", "mean"):

        def _expected(world, dtype=_dtype, op=_op):
            return [[reduced(of_all(world, (5, 7), dtype), op)]] * world

        @case(f"all_reduce_{_op}_{_dtype}", _expected, 2e-3 if _dtype == "float16" else 1e-6)
        def _build(comm, rank, dtype=_dtype, op=_op):
            return [comm.all_reduce(tf.constant(values(rank, (5, 7), dtype)), rank, "x", op)]


for _op in ("sum", "prod", "min", "max", "mean"):

    @case(f"all_reduce_{_op}_bfloat16", lambda world, op=_op: [[reduced(of_all(world, (5, 7)), op)]] * world, 2**-7)
    def _build(comm, rank, op=_op):
        total = comm.all_reduce(tf.cast(values(rank, (5, 7)), tf.bfloat16), rank, "x", op)
        assert comm.world_size == 1 or total.op.type == "EplAllReduce"  # it travels as it is
        return [tf.cast(total, tf.float32)]


MIXED = [
    ((3, 2), "float32"),
    ((), "float32"),
    ((0, 4), "float32"),
    ((6,), "int64"),
    ((1000,), "float32"),
    ((2,), "float64"),
    ((3,), "int64"),
]


def _mixed(rank):
    return [tf.constant(values(rank, shape, dtype, seed)) for seed, (shape, dtype) in enumerate(MIXED)]


def _mixed_expected(world):
    return [[reduced(of_all(world, shape, dtype, seed), "sum") for seed, (shape, dtype) in enumerate(MIXED)]] * world


@case("all_reduce_list_of_dtypes_and_shapes", _mixed_expected)
def _(comm, rank):
    return comm.all_reduce(_mixed(rank), rank, "list")


@case("all_reduce_many_elements", lambda world: [[reduced(of_all(world, (300001,)), "sum")]] * world)
def _(comm, rank):
    return [comm.all_reduce(tf.constant(values(rank, (300001,))), rank, "many")]


def _weighted(world):
    total = sum((r + 1) * array for r, array in enumerate(of_all(world, (4,), "float64")))
    return [[total, total / world]] * world


@case("all_reduce_weighted_sum_and_mean", _weighted, 1e-12)
def _(comm, rank):
    tensor = tf.constant(values(rank, (4,), "float64"))
    total = comm.all_reduce(tensor, rank, "weighted", weight=tf.constant(rank + 1.0))
    with tf.control_dependencies([total]):
        return [total, comm.all_reduce([tensor], rank, "weighted_mean", "mean", weight=rank + 1)[0]]


@case(
    "all_reduce_of_what_another_all_reduce_gave_is_in_place",
    lambda world: [[world * reduced(of_all(world, (9,)), "sum")]] * world,
)
def _(comm, rank):
    return [comm.all_reduce(comm.all_reduce(tf.constant(values(rank, (9,))), rank, "first"), rank, "second")]


def _other(rank, dtype, shape=(3, 2)):
    array = values(rank, shape, "int32")
    if dtype == tf.bool:
        return tf.constant(array > 1)
    if dtype.is_complex:
        return tf.cast(tf.complex(array.astype("float64"), array - 2.0), dtype)
    if dtype == tf.uint64:
        return tf.bitcast(tf.constant(array.astype("int64")), dtype)
    if dtype == tf.uint32:
        return tf.bitcast(tf.constant(array), dtype)
    return tf.cast(tf.constant(array), dtype)


def _readable(tensor):
    """What numpy and the pickle between processes know."""
    if tensor.dtype in (tf.uint32, tf.uint64):
        return tf.bitcast(tensor, tf.int32 if tensor.dtype == tf.uint32 else tf.int64)
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


for _dtype in (tf.int16, tf.uint16, tf.uint32, tf.uint64, tf.bfloat16, tf.complex64, tf.complex128):

    def _expected(world, dtype=_dtype):
        arrays = [a - 0 for a in of_all(world, (3, 2), "int32")]
        total = sum(arrays) + (sum(a - 2 for a in arrays) * 1j if dtype.is_complex else 0)
        return [[total, arrays[0] + ((arrays[0] - 2) * 1j if dtype.is_complex else 0)]] * world

    @case("carried_" + _dtype.name, _expected)
    def _build(comm, rank, dtype=_dtype):
        total = comm.all_reduce(_other(rank, dtype), rank, "carried")
        with tf.control_dependencies([total]):
            return [_readable(total), _readable(comm.broadcast(_other(rank, dtype), rank, "sent"))]


@case(
    "carried_bool",
    lambda world: (
        [
            [
                reduced([a > 1 for a in of_all(world, (3, 2), "int32")], "max"),
                reduced([a > 1 for a in of_all(world, (3, 2), "int32")], "min"),
            ]
        ]
        * world
    ),
)
def _(comm, rank):
    any_true = comm.all_reduce(_other(rank, tf.bool), rank, "any", "max")
    with tf.control_dependencies([any_true]):
        return [any_true, comm.all_reduce(_other(rank, tf.bool), rank, "all", "min")]


def _slices(rank):
    """Rank r touches r + 1 rows, some of them twice."""
    indices = values(rank, (rank + 1,), "int64")
    return values(rank, (rank + 1, 3)), indices


def _slices_expected(world, mean):
    dense = np.zeros((5, 3), "float32")
    for rank in range(world):
        rows, indices = _slices(rank)
        np.add.at(dense, indices, rows / (world if mean else 1))
    return [[dense]] * world


for _op in ("sum", "mean"):

    @case("all_reduce_of_slices_" + _op, lambda world, op=_op: _slices_expected(world, op == "mean"), 1e-6)
    def _build(comm, rank, op=_op):
        rows, indices = _slices(rank)
        slices = tf.IndexedSlices(tf.constant(rows), tf.constant(indices), tf.constant([5, 3], tf.int64))
        total = comm.all_reduce(slices, rank, "slices", op)
        assert isinstance(total, tf.IndexedSlices)
        return [tf.unsorted_segment_sum(total.values, total.indices, 5)]


# ---- reduce, broadcast


@case(
    "reduce_to_the_last_rank",
    lambda world: [
        [reduced(of_all(world, (4, 3)), "sum") if rank == world - 1 else np.zeros((4, 3), "float32")]
        for rank in range(world)
    ],
)
def _(comm, rank):
    return [comm.reduce(tf.constant(values(rank, (4, 3))), rank, "reduce", root=comm.world_size - 1)]


@case(
    "broadcast_from_the_last_rank",
    lambda world: [[values(world - 1, shape, dtype, seed) for seed, (shape, dtype) in enumerate(MIXED)]] * world,
)
def _(comm, rank):
    return comm.broadcast(_mixed(rank), rank, "broadcast", root=comm.world_size - 1)


# ---- all_gather


@case(
    "all_gather_of_different_row_counts",
    lambda world: (
        [[np.concatenate([values(r, (r, 2)) for r in range(world)]), np.arange(world, dtype="int64")]] * world
    ),
)
def _(comm, rank):
    return list(comm.all_gather_with_rows(tf.constant(values(rank, (rank, 2))), rank, "gather"))


@case("all_gather_of_equal_row_counts", lambda world: [[np.concatenate(of_all(world, (3, 2), "int32"))]] * world)
def _(comm, rank):
    gathered = comm.all_gather(tf.constant(values(rank, (3, 2), "int32")), rank, "gather", equal_rows=True)
    assert gathered.shape.as_list() == [3 * comm.world_size, 2]
    return [gathered]


@case("all_gather_of_scalars", lambda world: [[np.arange(world) * 1.5]] * world)
def _(comm, rank):
    gathered = comm.all_gather(tf.constant(rank * 1.5, tf.float64), rank, "gather")
    assert gathered.shape.as_list() == [comm.world_size]
    return [gathered]


# ---- reduce_scatter


def _own_part(array, rank, world):
    return np.array_split(array, world)[rank]


for _rows in (8, 9, 2):

    @case(
        f"reduce_scatter_of_{_rows}_rows",
        lambda world, rows=_rows: [
            [_own_part(reduced(of_all(world, (rows, 3)), "sum"), rank, world)] for rank in range(world)
        ],
    )
    def _build(comm, rank, rows=_rows):
        part = comm.reduce_scatter(tf.constant(values(rank, (rows, 3))), rank, "scatter")
        assert part.shape.as_list() == [len(_own_part(np.zeros(rows), rank, comm.world_size)), 3]
        return [part]


# ---- all_to_all


def _exchanged(world):
    parts = [np.split(array, world) for array in of_all(world, (2 * world, 3))]
    return [[np.concatenate([parts[sender][rank] for sender in range(world)])] for rank in range(world)]


@case("all_to_all_of_equal_parts", _exchanged)
def _(comm, rank):
    return [comm.all_to_all(tf.constant(values(rank, (2 * comm.world_size, 3))), rank, "exchange")]


def _splits(sender, world):
    """Rows that `sender` gives to each rank; some are none."""
    return [(sender + 2 * receiver) % 3 for receiver in range(world)]


def _exchanged_v(world):
    results = []
    for rank in range(world):
        rows = []
        for sender in range(world):
            splits = _splits(sender, world)
            start = sum(splits[:rank])
            rows.append(values(sender, (sum(splits), 2))[start : start + splits[rank]])
        results.append([np.concatenate(rows), np.array([len(r) for r in rows])])
    return results


@case("all_to_all_with_row_splits", _exchanged_v)
def _(comm, rank):
    splits = _splits(rank, comm.world_size)
    return list(comm.all_to_all(tf.constant(values(rank, (sum(splits), 2))), rank, "exchange", row_splits=splits))


# ---- gradients: against the same function of all ranks' inputs in plain TensorFlow


def gradient_case(name, inputs, plain):
    """A case of the gradients of sum over ranks of sum(c * y^2) by each rank's x, where y = collective(x).

    Args:
        name: of the case.
        inputs: (rank, world) -> the rank's x.
        plain: list of all x -> list of all y, in plain TensorFlow.
    """

    def losses(ys, first_rank):
        return [(first_rank + number + 2.0) * tf.reduce_sum(tf.square(y)) for number, y in enumerate(ys)]

    def expected(world):
        with tf.Graph().as_default(), tf.Session() as session:
            xs = [tf.constant(inputs(rank, world)) for rank in range(world)]
            grads = tf.gradients(tf.add_n(losses(plain(xs), 0)), xs)
            return [[value] for value in session.run([tf.convert_to_tensor(grad) for grad in grads])]

    def register(collective):

        def build(comm, rank):
            x = tf.constant(inputs(rank, comm.world_size))
            return tf.gradients(losses([collective(comm, x, rank)], rank), x)

        case("gradient_of_" + name, expected, 1e-5)(build)
        return collective

    return register


def _weight(rank):
    return 0.5 + rank


@gradient_case("all_reduce", lambda r, w: values(r, (3, 2)), lambda xs: [tf.add_n(xs)] * len(xs))
def _(comm, x, rank):
    return comm.all_reduce(x, rank, "grad")


@gradient_case("all_reduce_mean", lambda r, w: values(r, (3, 2)), lambda xs: [tf.add_n(xs) / len(xs)] * len(xs))
def _(comm, x, rank):
    return comm.all_reduce([x], rank, "grad", "mean")[0]


@gradient_case(
    "all_reduce_weighted",
    lambda r, w: values(r, (3, 2)),
    lambda xs: [tf.add_n([_weight(r) * x for r, x in enumerate(xs)])] * len(xs),
)
def _(comm, x, rank):
    return comm.all_reduce(x, rank, "grad", weight=tf.constant(_weight(rank)))


@gradient_case(
    "reduce", lambda r, w: values(r, (3, 2)), lambda xs: [tf.zeros_like(xs[0])] * (len(xs) - 1) + [tf.add_n(xs)]
)
def _(comm, x, rank):
    return comm.reduce(x, rank, "grad", root=comm.world_size - 1)


@gradient_case("broadcast", lambda r, w: values(r, (3, 2)), lambda xs: [xs[0] + 0 * x for x in xs])
def _(comm, x, rank):
    return comm.broadcast(x, rank, "grad", root=0)


@gradient_case(
    "all_gather_of_different_row_counts", lambda r, w: values(r, (r, 2)), lambda xs: [tf.concat(xs, axis=0)] * len(xs)
)
def _(comm, x, rank):
    return comm.all_gather(x, rank, "grad")


@gradient_case(
    "all_gather_of_equal_row_counts", lambda r, w: values(r, (3, 2)), lambda xs: [tf.concat(xs, axis=0)] * len(xs)
)
def _(comm, x, rank):
    return comm.all_gather(x, rank, "grad", equal_rows=True)


@gradient_case("all_gather_of_scalars", lambda r, w: values(r, ()), lambda xs: [tf.stack(xs)] * len(xs))
def _(comm, x, rank):
    return comm.all_gather(x, rank, "grad")


def _split_rows(x, world):
    sizes = [len(part) for part in np.array_split(np.zeros(int(x.shape[0])), world)]
    return tf.split(x, sizes)


@gradient_case(
    "reduce_scatter",
    lambda r, w: values(r, (5, 2)),
    lambda xs: [_weight(0) * part for part in _split_rows(tf.add_n(xs), len(xs))],
)
def _(comm, x, rank):
    return comm.reduce_scatter(x, rank, "grad", weight=_weight(0))


@gradient_case(
    "all_to_all",
    lambda r, w: values(r, (2 * w, 3)),
    lambda xs: [tf.concat([tf.split(x, len(xs))[r] for x in xs], axis=0) for r in range(len(xs))],
)
def _(comm, x, rank):
    return comm.all_to_all(x, rank, "grad")


@gradient_case(
    "all_to_all_with_row_splits",
    lambda r, w: values(r, (sum(_splits(r, w)), 2)),
    lambda xs: [
        tf.concat([tf.split(x, _splits(s, len(xs)))[r] for s, x in enumerate(xs)], axis=0) for r in range(len(xs))
    ],
)
def _(comm, x, rank):
    return comm.all_to_all(x, rank, "grad", row_splits=_splits(rank, comm.world_size))[0]


@gradient_case("all_reduce_of_bfloat16", lambda r, w: values(r, (4,)), lambda xs: [tf.add_n(xs)] * len(xs))
def _(comm, x, rank):
    return tf.cast(comm.all_reduce(tf.cast(x, tf.bfloat16), rank, "grad"), tf.float32)
