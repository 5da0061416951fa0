"""What the simulator knows of a model: its ops, and what they cost for a number of rows on a kind of device.

    strategy.ops    op 0     op 1      op 2 ...           the forward pass; every value here is by these numbers
    OpCosts         seconds forward and backward, bytes of outputs, bytes that the backward pass keeps

A cost is a function of the rows: a model replica computes micro batches of some rows, and a plan may give each replica
another number of them.
"""

from abc import ABC, abstractmethod
from typing import Dict, FrozenSet, NamedTuple, Optional, Tuple

from epl.planner.machine.machine import Device


class Basis:
    """Where a number comes from, the best first."""

    MEASURED = "measured"  # this op, with these shapes, on this device
    CALIBRATED = "calibrated"  # rates measured on this machine
    DATA_SHEET = "data sheet"  # rates of a preset, or of a machine file


class ModelOp(NamedTuple):
    """An op of the forward pass.

    Attributes:
      name: its name, for people.
      type: op type.
      inputs: (op, output) of each data input; each op comes after its producers.
      variable_bytes: bytes of the variable that it is; 0 for other ops.
      is_trained: whether it is a variable that the objective is differentiated by.
      by_rows: whether its outputs have rows of the batch, so that they and its work grow with them.
      is_repeatable: whether a backward pass may compute it again, instead of keeping its outputs.
      variable_shape: of the variable that it is; None if that is not known, and for other ops.
      is_checkpoint: whether the script names it a checkpoint, which is kept (`gradient_checkpoint.type` "collection").
      read_inputs: positions of `inputs` that the backward pass reads, as they are or as a view of them.
    """

    name: str
    type: str
    inputs: Tuple[Tuple[int, int], ...]
    variable_bytes: int
    is_trained: bool
    by_rows: bool
    is_repeatable: bool
    variable_shape: Optional[Tuple[int, ...]] = None
    is_checkpoint: bool = False
    read_inputs: FrozenSet[int] = frozenset()


class RowWay:
    """Where a step has a collective of rows."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WRITES = "writes"


class RowExchange(NamedTuple):
    """A collective of all replicas, by which they compute with the rows of all.

    Attributes:
      decision: what asks for it.
      collective: its name.
      way: a constant of RowWay; no pass waits for one of writes.
      at: the op before which it runs in the forward pass, or after whose backward op in the backward pass; of writes:
        the last op of the forward pass that they are computed from.
      source: (op, output) of the forward pass that it is of: for a batch of all replicas that is its full tensor; None
        for others.
      fixed, by_row: bytes of full tensors that are none of the forward pass: of all, and for each row.
    """

    decision: str
    collective: str
    way: str
    at: int
    source: Optional[Tuple[int, int]] = None
    fixed: int = 0
    by_row: int = 0


class OpCosts(NamedTuple):
    """What all ops cost, by number of the op; for one pass over some rows, all runs in loops included.

    Attributes:
      forward, backward: seconds of the op and of its backward ops.
      forward_flops, backward_flops: floating point operations.
      output_bytes: bytes that its outputs allocate; 0 for aliases, variables and constants.
      kept_bytes: bytes of its outputs that backward ops read; each tensor counts once, where it was allocated.
      basis: a constant of Basis, of both times.
    """

    forward: Tuple[float, ...]
    backward: Tuple[float, ...]
    forward_flops: Tuple[float, ...]
    backward_flops: Tuple[float, ...]
    output_bytes: Tuple[float, ...]
    kept_bytes: Tuple[float, ...]
    basis: Tuple[str, ...]


class ModelCosts(ABC):
    """The costs of a model.

    Attributes:
      ops: the forward pass, in the order of the ops of its strategy.
      rows: of the batch of one model replica, as the script has it; None if the script leaves it open.
      slots: name of each optimizer slot of a variable -> bytes of it for one byte of the variable, such as
        {"Momentum": 1.0}.
      notes: assumptions, for people.
      exchanges: collectives of rows, where there are several replicas.
      uncounted: settings whose collectives of rows are not known, as the model is not planned yet.
    """

    ops: Tuple[ModelOp, ...]
    rows: Optional[int]
    slots: Dict[str, float]
    notes: Tuple[str, ...]
    exchanges: Tuple[RowExchange, ...] = ()
    uncounted: Tuple[str, ...] = ()

    @abstractmethod
    def at(self, rows: int, device: Device) -> OpCosts:
        """The costs of one forward and backward pass over `rows` rows on a kind of device; found once, then kept.

        Raises:
          ValueError: `rows` is not above 0.
        """

    @abstractmethod
    def tensor_bytes(self, rows: int, op: int, output: int) -> float:
        """Bytes of an output of an op for `rows` rows."""

    def taken_bytes(self, rows: int, op: int, position: int) -> float:
        """Bytes of an input of an op as a transfer sends them: half if its producer converts it to half precision."""
        return self.tensor_bytes(rows, *self.ops[op].inputs[position])

    def exchanged_bytes(self, rows: int, op: int, output: int) -> float:
        """Bytes of an output as the ranks of a split exchange it: of float32, also with mixed precision."""
        return self.tensor_bytes(rows, op, output)

    def row_bytes(self, exchange: RowExchange, rows: int) -> float:
        """Bytes of the full tensors of a collective, if all replicas together have so many rows."""
        taken = 0.0 if exchange.source is None else self.exchanged_bytes(rows, *exchange.source)
        return taken + exchange.fixed + exchange.by_row * rows
