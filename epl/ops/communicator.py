"""Communicator: ranks that do collectives together, and the collectives of one rank as TensorFlow ops.

A call takes any dtype, lists and IndexedSlices, and builds native ops for them (`collectives.py`), none in a world of
one. This module chains the ops of one call. Between calls the caller fixes the order by control edges, per communicator
and rank, and in the same way on every rank (docs/collectives.md).
"""

import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.ops import collectives, gradients  # noqa: F401  (gradients: registers them)
from epl.ops.collectives import CollectiveMember, Weight
from epl.ops.job import Job
from epl.ops.weighing import weighed
from epl.ops.wire_dtypes import WireDtype, integer_mean, wire_dtype

Dense = Union[tf.Tensor, tf.Variable]
Reducible = Union[Dense, tf.IndexedSlices]

_Build = Callable[[CollectiveMember, List[tf.Tensor], str, Weight], List[tf.Tensor]]

REDUCE_OPS = ("sum", "mean", "prod", "min", "max")


class GatheredSlices(tf.IndexedSlices):
    """IndexedSlices of several ranks, one rank after the other.

    Attributes:
      rows: int64 vector, how many rows came from each rank.
      ranks: number of ranks.
    """

    def __init__(
        self, values: tf.Tensor, indices: tf.Tensor, dense_shape: Optional[tf.Tensor], rows: tf.Tensor, ranks: int
    ) -> None:
        super().__init__(values, indices, dense_shape)
        self.rows = rows
        self.ranks = ranks


class Communicator:
    """Ranks 0 to W - 1, each owned by a process of the job, that do collectives together.

    A collective is built once per local rank, with the same `key` on every rank; all ranks must run it in one step.
    With one rank every collective is the identity, and neither a job nor the native libraries are needed. It is one
    class because it is the list of collectives: one method for each, with shapes and errors.
    """

    def __init__(
        self,
        name: str,
        rank_process: Sequence[int],
        transport: str = "auto",
        job: Optional[Job] = None,
        opened: bool = False,
    ) -> None:
        """Creates the communicator; blocks until every process that owns a rank has.

        Processes that share several communicators create them in the same order. Creating one again with the same name
        and ranks gives the existing one.

        Args:
            name: unique within the job.
            rank_process: the process that owns rank r, for every rank.
            transport: "auto", or one of "local" (one process), "shm" (one machine), "gloo" (any), "nccl" (GPUs).
            job: the job of the processes; if not given, the current one, which is joined if it was only announced.
            opened: the processes that own the ranks have opened it already; this process may build ops for any rank.

        Raises:
            ValueError: if the ranks do not fit the job.
            JobError: if the core refuses, with its reason.
            NativeUnavailableError: if there are several ranks and the native libraries are missing.
        """
        if not rank_process:
            raise ValueError(f'Communicator "{name}" has no ranks: rank_process is empty.')
        self._name = name
        self._rank_process = tuple(rank_process)
        self._job: Optional[Job] = None
        self._transport = "none"
        process = 0
        if opened:
            self._local_ranks: Tuple[int, ...] = tuple(range(self.world_size))
            return
        if self.world_size > 1:
            self._job = job or Job.join()
            if self._job is None:
                raise ValueError(
                    'Communicator "{}" has {} ranks, but there is no job: call Job.start first.'.format(
                        name, self.world_size
                    )
                )
            process = self._job.process
            self._check_processes(self._job)
            self._transport = self._job.create_communicator(name, self._rank_process, transport)
        elif job is not None:
            process = job.process
        self._local_ranks = tuple(
            r for r, owner in enumerate(self._rank_process) if owner == process or self.world_size == 1
        )

    def _check_processes(self, job: Job) -> None:
        beyond = [owner for owner in self._rank_process if not 0 <= owner < job.num_processes]
        if beyond:
            raise ValueError(
                'Communicator "{}": rank_process names process {}, but the job has {}.'.format(
                    self._name, beyond[0], job.num_processes
                )
            )
        if job.process not in self._rank_process:
            raise ValueError(
                'Communicator "{}": process {} owns none of its ranks {}; only owners create it.'.format(
                    self._name, job.process, list(self._rank_process)
                )
            )

    @property
    def name(self) -> str:
        """Name of the communicator."""
        return self._name

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._rank_process)

    @property
    def rank_process(self) -> Tuple[int, ...]:
        """The process that owns each rank."""
        return self._rank_process

    @property
    def local_ranks(self) -> Tuple[int, ...]:
        """The ranks of this process."""
        return self._local_ranks

    @property
    def transport(self) -> str:
        """How the data moves: local, shm, gloo, nccl; none in a world of one."""
        return self._transport

    def close(self) -> None:
        """Destroys the communicator in the core; ops that name it fail from now on."""
        if self._job is not None:
            self._job.destroy_communicator(self._name)

    def __repr__(self) -> str:
        return 'Communicator("{}", {} ranks on processes {}, {})'.format(
            self._name, self.world_size, list(self._rank_process), self._transport
        )

    # ---- Reductions.

    def all_reduce(
        self,
        tensors: Union[Reducible, Sequence[Reducible]],
        rank: int,
        key: str,
        reduce_op: str = "sum",
        weight: Optional[Weight] = None,
    ) -> Any:
        """The reduction of each tensor over all ranks, on every rank.

        Dense tensors of one dtype are fused into one op. IndexedSlices stay sparse: values and indices of all ranks are
        gathered, which is their sum (mean), as `GatheredSlices`.

        Args:
            tensors: a tensor or a list of them; their shapes are the same on every rank.
            rank: the local rank that this is built for.
            key: names the collective; the same on every rank.
            reduce_op: sum, mean, prod, min or max. The mean of integers is truncated.
            weight: number or scalar tensor that multiplies this rank's tensors before the reduction; for floating
                dtypes.

        Returns:
            The reduced tensor, or the list of them.

        Raises:
            TypeError: if a dtype cannot be reduced in this way.
            ValueError: if `rank` is not local or `reduce_op` unknown.
        """
        self._check_reduce_op(reduce_op)

        def dense(member: CollectiveMember, group: List[tf.Tensor], native_op: str, scale: Weight) -> List[tf.Tensor]:
            return collectives.all_reduce(member, group, native_op, scale)

        return self._reduce_list(tensors, rank, key, reduce_op, weight, dense, sparse=True)

    def reduce(
        self,
        tensors: Union[Dense, Sequence[Dense]],
        rank: int,
        key: str,
        root: int = 0,
        reduce_op: str = "sum",
        weight: Optional[Weight] = None,
    ) -> Any:
        """The reduction of each tensor over all ranks, on rank `root`; zeros on the others. See `all_reduce`."""
        self._check_reduce_op(reduce_op)
        self._check_root(root)

        def dense(member: CollectiveMember, group: List[tf.Tensor], native_op: str, scale: Weight) -> List[tf.Tensor]:
            return collectives.reduce(member, group, root, native_op, scale)

        return self._reduce_list(tensors, rank, key, reduce_op, weight, dense, sparse=False)

    def reduce_scatter(
        self, tensor: Dense, rank: int, key: str, reduce_op: str = "sum", weight: Optional[Weight] = None
    ) -> tf.Tensor:
        """This rank's part of the rows, reduced over all ranks.

        The first dimension is cut in `world_size` parts whose sizes differ by at most one, the larger ones first.
        """
        self._check_reduce_op(reduce_op)
        self._check_rank(rank)
        tensor = tf.convert_to_tensor(tensor)
        if tensor.shape.ndims == 0:
            raise ValueError(f'reduce_scatter "{key}": a scalar has no rows.')
        native_op, scale, found = self._way(tensor.dtype, reduce_op, weight)
        if self.world_size == 1:
            return _weigh(tensor, weight)

        def build(wire: tf.Tensor) -> tf.Tensor:
            return collectives.reduce_scatter(self._member(rank, key), wire, native_op, scale)

        with _scope("reduce_scatter", key):
            return _carried(tensor, found, build)

    # ---- Moves.

    def broadcast(self, tensors: Union[Dense, Sequence[Dense]], rank: int, key: str, root: int = 0) -> Any:
        """The tensors of rank `root`, on every rank; those of one dtype are fused.

        Args:
            tensors: a tensor or a list of them; their shapes are the same on every rank.
            rank: the local rank that this is built for.
            key: names the collective; the same on every rank.
            root: the rank whose values are sent.

        Returns:
            The tensor, or the list of them.
        """
        self._check_root(root)

        def dense(member: CollectiveMember, group: List[tf.Tensor], native_op: str, scale: Weight) -> List[tf.Tensor]:
            return collectives.broadcast(member, group, root)

        return self._reduce_list(tensors, rank, key, None, None, dense, sparse=False)

    def all_gather(self, tensor: Dense, rank: int, key: str, equal_rows: bool = False) -> tf.Tensor:
        """The rows of all ranks, in rank order; a scalar is one row.

        Args:
            tensor: its first dimension may differ between ranks, the others are the same.
            rank: the local rank that this is built for.
            key: names the collective; the same on every rank.
            equal_rows: the caller promises that all ranks have equally many rows; the result then has a static shape.
        """
        return self.all_gather_with_rows(tensor, rank, key, equal_rows)[0]

    def all_gather_with_rows(
        self, tensor: Dense, rank: int, key: str, equal_rows: bool = False
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """`all_gather`, and an int64 vector: how many rows came from each rank."""
        self._check_rank(rank)
        tensor = tf.convert_to_tensor(tensor)
        if tensor.shape.ndims == 0:
            tensor = tf.reshape(tensor, [1])
            equal_rows = True
        if self.world_size == 1:
            return tensor, tf.shape(tensor, out_type=tf.int64)[:1]
        rows: List[tf.Tensor] = []

        def build(wire: tf.Tensor) -> tf.Tensor:
            output, received = collectives.all_gather(self._member(rank, key), wire, equal_rows)
            rows.append(received)
            return output

        with _scope("all_gather", key):
            return _carried(tensor, wire_dtype(tensor.dtype, None), build), rows[0]

    def all_to_all(self, tensor: Dense, rank: int, key: str, row_splits: Optional[Any] = None) -> Any:
        """Sends part r of the rows to rank r.

        Args:
            tensor: rows to send.
            rank: the local rank that this is built for.
            key: names the collective; the same on every rank.
            row_splits: how many rows go to each rank (`world_size` numbers that add up to the rows); not given: equally
                many, and as many on every rank.

        Returns:
            The rows from rank 0, from rank 1, ...; with `row_splits` a pair of it and the rows received from each rank.
        """
        self._check_rank(rank)
        tensor = tf.convert_to_tensor(tensor)
        if row_splits is not None:
            row_splits = tf.cast(row_splits, tf.int64)
        if self.world_size == 1:
            return tensor if row_splits is None else (tensor, row_splits)
        received: List[Optional[tf.Tensor]] = []

        def build(wire: tf.Tensor) -> tf.Tensor:
            output, rows = collectives.all_to_all(self._member(rank, key), wire, row_splits)
            received.append(rows)
            return output

        with _scope("all_to_all", key):
            output = _carried(tensor, wire_dtype(tensor.dtype, None), build)
        return output if row_splits is None else (output, received[0])

    # ---- Shared by the above.

    def _member(self, rank: int, key: str) -> CollectiveMember:
        return CollectiveMember(self._name, rank, key, self.world_size)

    def _check_rank(self, rank: int) -> None:
        if rank not in self._local_ranks:
            raise ValueError(
                'Communicator "{}": rank {} is not one of this process\'s ranks {}.'.format(
                    self._name, rank, list(self._local_ranks)
                )
            )

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.world_size:
            raise ValueError(
                'Communicator "{}": root is {}, but the ranks are 0 to {}.'.format(
                    self._name, root, self.world_size - 1
                )
            )

    def _check_reduce_op(self, reduce_op: str) -> None:
        if reduce_op not in REDUCE_OPS:
            raise ValueError('reduce_op is "{}"; it must be one of {}.'.format(reduce_op, ", ".join(REDUCE_OPS)))

    def _way(
        self, dtype: tf.DType, reduce_op: str, weight: Optional[Weight]
    ) -> Tuple[str, Weight, Optional[WireDtype]]:
        """How a reduction is done: the native reduction, the weight of the op, and how the dtype travels.

        The mean of floats is a sum with weight 1 / W, which cannot overflow.
        """
        fractional = dtype.is_floating or dtype.is_complex
        if weight is not None and not fractional:
            raise TypeError(f"Tensors of {dtype.name} cannot be weighted; cast them to a floating dtype.")
        if reduce_op != "mean":
            return reduce_op, 1.0 if weight is None else weight, wire_dtype(dtype, reduce_op)
        if dtype.is_integer:
            return "sum", 1.0, integer_mean(dtype, self.world_size)
        if weight is None:
            return "sum", 1.0 / self.world_size, wire_dtype(dtype, "sum")
        return "sum", tf.cast(weight, tf.float64) / self.world_size, wire_dtype(dtype, "sum")

    def _reduce_list(
        self,
        tensors: Any,
        rank: int,
        key: str,
        reduce_op: Optional[str],
        weight: Optional[Weight],
        build: _Build,
        sparse: bool,
    ) -> Any:
        """Builds one op per dtype of the dense tensors, and gathers the sparse ones; reduce_op None only moves."""
        self._check_rank(rank)
        single = not isinstance(tensors, (list, tuple))
        given = [tensors] if single else list(tensors)
        values: List[Union[tf.Tensor, tf.IndexedSlices]] = [
            tensor if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor) for tensor in given
        ]
        groups: Dict[tf.DType, List[Tuple[int, tf.Tensor]]] = {}
        slices: List[Tuple[int, tf.IndexedSlices]] = []
        for index, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices):
                slices.append((index, value))
            else:
                groups.setdefault(value.dtype, []).append((index, value))
        if slices and not sparse:
            raise TypeError(f'"{key}": IndexedSlices can only be all-reduced; convert them with tf.convert_to_tensor.')
        plain = len(groups) + len(slices) == 1
        results = list(values)
        previous: List[tf.Operation] = []
        with _scope("collective", key):
            for dtype in sorted(groups, key=lambda dtype: dtype.name):
                op_key = key if plain else f"{key}/{dtype.name}"
                group = [tensor for _, tensor in groups[dtype]]
                outputs = self._reduce_group(group, self._member(rank, op_key), reduce_op, weight, build, previous)
                for (index, _), output in zip(groups[dtype], outputs):
                    results[index] = output
            for index, sparse_value in slices:
                op_key = key if plain else f"{key}/{index}"
                results[index] = self._reduce_slices(sparse_value, rank, op_key, str(reduce_op), weight, previous)
        return results[0] if single else results

    def _reduce_group(
        self,
        group: List[tf.Tensor],
        member: CollectiveMember,
        reduce_op: Optional[str],
        weight: Optional[Weight],
        build: _Build,
        previous: List[tf.Operation],
    ) -> List[tf.Tensor]:
        """One op for dense tensors of one dtype, after `previous`, which it replaces."""
        dtype = group[0].dtype
        if reduce_op is None:
            native_op, scale, found = "", 1.0, wire_dtype(dtype, None)  # type: Tuple[str, Weight, Optional[WireDtype]]
        else:
            native_op, scale, found = self._way(dtype, reduce_op, weight)
        if self.world_size == 1:
            return [_weigh(tensor, weight) for tensor in group]
        wire = group if found is None else [found.encode(tensor) for tensor in group]
        if tf.is_tensor(scale):
            scale = tf.cast(scale, tf.float64)
        # Only around the collective: TensorFlow gives the control edge to the first ops made here, not to their users.
        with tf.control_dependencies(previous):
            outputs = build(member, wire, native_op, scale)
        previous[:] = [outputs[0].op]
        return list(outputs) if found is None else [found.decode(output) for output in outputs]

    def _reduce_slices(
        self,
        slices: tf.IndexedSlices,
        rank: int,
        key: str,
        reduce_op: str,
        weight: Optional[Weight],
        previous: List[tf.Operation],
    ) -> tf.IndexedSlices:
        """The slices of all ranks, gathered after `previous`, which they replace.

        Duplicate indices add up, so that this is their sum.
        """
        if reduce_op not in ("sum", "mean"):
            raise TypeError(
                '"{}": IndexedSlices can only be summed or averaged, not reduced with {}.'.format(key, reduce_op)
            )
        if reduce_op == "mean" and slices.dtype.is_integer:
            raise TypeError(
                '"{}": IndexedSlices of {} cannot be averaged; cast them to a floating dtype.'.format(
                    key, slices.dtype.name
                )
            )
        if self.world_size == 1:
            return tf.IndexedSlices(_weigh(slices.values, weight), slices.indices, slices.dense_shape)
        _, scale, _ = self._way(slices.dtype, reduce_op, weight)
        values = _weigh(slices.values, None if isinstance(scale, float) and scale == 1.0 else scale)
        with tf.control_dependencies(previous):
            values, rows = self.all_gather_with_rows(values, rank, key + "/values")
        with tf.control_dependencies([values.op]):
            indices = self.all_gather(slices.indices, rank, key + "/indices")
        previous[:] = [indices.op]
        return GatheredSlices(values, indices, slices.dense_shape, rows, self.world_size)


def _scope(kind: str, key: str) -> Any:
    """A name scope that shows the collective's key; characters that names must not have become underscores."""
    return tf.name_scope("{}/{}".format(kind, re.sub(r"[^A-Za-z0-9_./-]", "_", key) or "unnamed"))


def _carried(tensor: tf.Tensor, found: Optional[WireDtype], build: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Builds a collective of one tensor, which travels in its wire dtype if it has one."""
    return build(tensor) if found is None else found.decode(build(found.encode(tensor)))


def _weigh(tensor: tf.Tensor, weight: Optional[Weight]) -> tf.Tensor:
    return tensor if weight is None else weighed(tensor, weight)
