"""Lowers a step to a program of the simulator: one op for each piece of a pass, each collective, each transfer.

    class 0, stage 0    0F0 ------> 0F1 ...    0B0 -------> 0B1 piece 1 --> 0B1 piece 0 --> update
                          | transfer            | transfer        | bucket 0       | bucket 1
    class 0, stage 1      1F0 ------> 1B0 ......'                 '-- all-reduce   '-- all-reduce

A device is one (class, stage). The passes of a device follow each other in the order of the schedule. A buffer is an
output of an op: it is there from the start of its op to the end of the last op that takes it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from epl.parallel.plan import schedule as schedules
from epl.parallel.plan.schedule import BACKWARD, FORWARD, Action
from epl.parallel.plan.schedule_generators import generate
from epl.planner.prediction.facts import ModelFacts, Output
from epl.planner.prediction.gradients import GradientBucket, WeightGather
from epl.planner.prediction.host_memory import copy_seconds
from epl.planner.prediction.layout import StrategyLayout
from epl.planner.prediction.program_builder import (
    ACTIVATIONS,
    COMMUNICATION,
    GRADIENTS,
    Buffer,
    LoweredKind,
    LoweredOp,
    LoweredStep,
    ProgramBuilder,
    output,
)
from epl.planner.prediction.rank_classes import RankClass
from epl.planner.prediction.split_work import SplitExchange, SplitWork
from epl.planner.prediction.stage_plans import ClassStage, StagePlans, StepOptions
from epl.planner.prediction.stage_work import Piece, pieces_of
from epl.planner.prediction.traffic import Carried, Traffic
from epl.planner.simulator.model_costs import ModelCosts, RowExchange, RowWay
from epl.planner.simulator.program import SharedCores, SimulatedOutput

_FORWARD_PASS, _BACKWARD_PASS, _RECOMPUTATION = "forward pass", "backward pass", "recomputation"
_ONE_F_ONE_B = "PreferBackward"  # of the runs of gradient accumulation, which follow each other


class _GradientPart(NamedTuple):
    """The gradients of one bucket that one piece of the last backward pass completes.

    Attributes:
      begin: of the piece.
      bucket: its number.
      bytes, largest: of all of them, and of the largest.
      update: seconds of the updates with them.
    """

    begin: int
    bucket: int
    bytes: float
    largest: float
    update: float


class _Update(NamedTuple):
    """Seconds of some updates, and the gradients that they apply."""

    seconds: float
    gradients: List[Buffer]


class _Arrival(NamedTuple):
    """What a transfer has brought; each is a buffer, or None if there is nothing of it."""

    op: int
    kept: Optional[Buffer]  # until the backward pass of the micro batch
    transient: Optional[Buffer]
    once: Optional[Buffer]  # until the last backward pass


class _Message(NamedTuple):
    """Bytes that a rank sends from a stage to a later one for a micro batch, and gets back.

    Attributes:
      kept, transient: of tensors that the later stage keeps for its backward pass, and of others.
      once: of values that do not depend on data, which are sent once in a step.
      alone: of tensors that the earlier stage does not keep itself.
      gradients: that come back.
    """

    kept: float
    transient: float
    once: float
    alone: float
    gradients: float


class _ForwardPiece(NamedTuple):
    """A piece of a forward pass, and the bytes that it keeps: (piece of the backward pass, bytes)."""

    piece: Piece
    seconds: float
    temporary: int
    kept: Tuple[Tuple[int, int], ...]


class _BackwardPiece(NamedTuple):
    """A piece of a backward pass, and the gradients that it adds to."""

    piece: Piece
    seconds: float
    temporary: int
    parts: Tuple[_GradientPart, ...]


class StepLowering:
    """The lowering of one step: the program so far, and the buffers that later ops take.

    Device class * stages + stage of the program is that of a class in a stage.

    It is one class because all passes of a step share its buffers.
    """

    def __init__(
        self,
        facts: ModelFacts,
        costs: ModelCosts,
        layout: StrategyLayout,
        traffic: Traffic,
        classes: Sequence[RankClass],
        plans: StagePlans,
        split: Optional[SplitWork],
        options: StepOptions,
    ) -> None:
        self._facts, self._costs, self._layout, self._traffic = facts, costs, layout, traffic
        self._classes, self._plans, self._split, self._options = classes, plans, split, options
        self._num_stages = len(layout.stages)
        self._positions = [ops.position for ops in facts.stages]
        self.builder = ProgramBuilder(
            [
                None if cores is None else SharedCores(cores.number, float(len(one.ranks) * cores.workers))
                for one in classes
                for cores in one.cores
            ]
        )
        self._waits: Dict[int, List[int]] = {}  # device -> what its next pass waits for
        self._kept: Dict[Tuple[int, int], Dict[int, List[Buffer]]] = {}  # (device, micro batch) -> by backward piece
        self._arrivals: Dict[Tuple[int, str, int], List[_Arrival]] = {}
        self._received: Dict[Tuple[int, int], List[Buffer]] = {}  # (device, micro batch)
        self._sums: Dict[Tuple[int, int, int], Buffer] = {}  # (device, begin of a piece, bucket)
        self._updated: Dict[int, List[int]] = {}  # device -> the update that the next one waits for
        self._unchecked: Dict[int, List[_Update]] = {}  # device -> updates that wait for all gradients
        self._gathered: Dict[Tuple[int, int], Buffer] = {}  # (device, gather) while it is held
        self._on_host: Dict[Tuple[int, int], int] = {}  # (device, copy) -> the gather in the host's memory before it
        self._times_gathered: Dict[Tuple[int, int, int, str], int] = Counter()
        self._for_again: Set[Tuple[int, int]] = set()  # those of them that came for a recomputation
        self._parts: Dict[int, List[_GradientPart]] = {}
        # The passes of most micro batches are equal: by device, whether the micro batch is the first, and the last.
        self._forwards: Dict[Tuple[int, bool, bool], List[_ForwardPiece]] = {}
        self._backwards: Dict[Tuple[int, bool], List[_BackwardPiece]] = {}
        self._again: Dict[Tuple[int, int, int], Tuple[float, int]] = {}  # segment -> seconds and temporary memory
        self._segments: Dict[int, Dict[int, int]] = {}  # device -> end of a segment that is recomputed -> its begin
        self._messages: Dict[Tuple[int, Tuple[int, int]], _Message] = {}
        self._sent = {} if split is None else split.sent
        self._exchanges: Dict[Tuple[bool, int], List[Tuple[int, SplitExchange]]] = {}  # by pass and op
        for at, exchange in enumerate(() if split is None else split.exchanges):
            self._exchanges.setdefault((exchange.is_backward, exchange.at), []).append((at, exchange))
        self._of_rows: Dict[Tuple[str, int], List[Tuple[int, RowExchange]]] = {}  # by way and op
        for at, of_rows in enumerate(costs.exchanges if layout.ranks > 1 else ()):
            self._of_rows.setdefault((of_rows.way, of_rows.at), []).append((at, of_rows))

    def run(self) -> LoweredStep:
        """Adds all ops of the step; its program."""
        is_pipeline = self._num_stages > 1
        name = self._options.schedule if is_pipeline else _ONE_F_ONE_B
        schedule = generate(name, range(self._num_stages), self._layout.micro_batches)
        dependencies = sorted(self._facts.crossing) if is_pipeline else None
        for action in schedules.execution_order(schedule, dependencies):
            for number in range(len(self._classes)):
                if action.kind == FORWARD:
                    self._forward(number, action)
                else:
                    self._backward(number, action)
        for number in range(len(self._classes)):
            self._apply_checked(number)
        return self.builder.done()

    # ---- Forward passes.

    def _forward(self, number: int, action: Action) -> None:
        stage, _, micro_batch = action
        device, cuts = self._device(number, stage), self._plans.cuts[stage]
        gathers = self._gathers_in(micro_batch)
        pieces = self._forward_pieces(number, stage, micro_batch)
        backward = [one.piece for one in self._backward_pieces(number, stage, micro_batch)]
        arrivals = self._arrivals.pop((device, FORWARD, micro_batch), [])
        arrived = [one for arrival in arrivals for one in arrival[1:] if one is not None]
        kept: Dict[int, List[Buffer]] = {}
        self._gather_on_hosts(number, stage, micro_batch)
        if gathers and not self._options.drops:
            for at in range(len(cuts.gathers)):
                self._gather(number, stage, at, micro_batch, "step")
        for at, (piece, seconds, temporary, sizes) in enumerate(pieces):
            inputs = arrived if at in (0, len(pieces) - 1) else []
            for exchanged, exchange in self._exchange(number, stage, piece[0], micro_batch, False, inputs):
                inputs = inputs + [exchanged]
                if exchange.is_kept:
                    kept.setdefault(_piece_with(backward, piece[0]), []).append(exchanged)
            gathered = self._exchange_rows(number, stage, RowWay.FORWARD, piece[:1], micro_batch)
            inputs = inputs + gathered
            for buffer in gathered:
                kept.setdefault(_piece_with(backward, piece[0]), []).append(buffer)
            if gathers:
                inputs = inputs + self._weights_forward(number, stage, piece, micro_batch)
            outputs: List[SimulatedOutput] = []
            made = len(self.builder.ops)
            for place, size in sizes:
                kept.setdefault(place, []).append((made, len(outputs)))
                outputs.append(output(size, ACTIVATIONS))
            if at == len(pieces) - 1:
                sent_alone = sum(self._message(number, pair).alone for pair in self._facts.crossing if pair[0] == stage)
                outputs.append(output(sent_alone, ACTIVATIONS))
            told = self._told(LoweredKind.FORWARD, action, piece, at if len(pieces) > 1 else -1)
            self._pass(device, told, seconds, inputs, outputs, temporary)
            self._exchange_rows(number, stage, RowWay.WRITES, range(*piece), micro_batch)
        self._kept[device, micro_batch] = kept
        self._keep_arrivals(device, micro_batch, arrivals)
        sent = len(self.builder.ops) - 1, len(self.builder.ops[-1].outputs) - 1
        for pair in sorted(self._facts.crossing):
            if pair[0] == stage:
                self._send_forward(number, pair, micro_batch, sent)

    def _forward_pieces(self, number: int, stage: int, micro_batch: int) -> List[_ForwardPiece]:
        """The pieces of the forward pass of a micro batch."""
        device, cuts, work = self._device(number, stage), self._plans.cuts[stage], self._own(number, stage).work
        key = device, micro_batch == 0, micro_batch == self._layout.micro_batches - 1
        if key not in self._forwards:
            pieces = pieces_of(cuts.gathering if self._gathers_in(micro_batch) else cuts.forward, len(work))
            backward = self._backward_pieces(number, stage, micro_batch)
            kept_bytes = np.where(work.once, 0.0, work.kept) if micro_batch else work.kept
            ends = [one.piece[1] for one in backward]
            found = []
            for piece, temporary in zip(pieces, work.forward_temporary(pieces)):
                kept = []
                for place in range(bisect_right(ends, piece[0]), len(backward)):
                    other = backward[place].piece
                    if other[0] >= piece[1]:
                        break
                    size = work.held_by(kept_bytes, (max(piece[0], other[0]), min(piece[1], other[1])))
                    if size:
                        kept.append((place, size))
                seconds = work.forward_seconds(piece, micro_batch == 0)
                found.append(_ForwardPiece(piece, seconds, temporary, tuple(kept)))
            self._forwards[key] = found
        return self._forwards[key]

    def _keep_arrivals(self, device: int, micro_batch: int, arrivals: Sequence[_Arrival]) -> None:
        for arrival in arrivals:
            if arrival.kept is not None:
                self._received.setdefault((device, micro_batch), []).append(arrival.kept)
            if arrival.once is not None:
                self._received.setdefault((device, self._layout.micro_batches - 1), []).append(arrival.once)

    def _message(self, number: int, pair: Tuple[int, int]) -> _Message:
        """What a rank of a class sends from a stage to a later one, and back."""
        if (number, pair) not in self._messages:
            work = self._own(number, pair[0]).work
            found = dict.fromkeys(_Message._fields, 0.0)
            for tensor in self._facts.crossing[pair]:
                # In two types it is sent twice.
                takers = self._facts.takers[pair][tensor]
                size = sum({self._bytes_for(number, tensor, taker) for taker in takers})
                if not self._facts.from_data[tensor[0]]:
                    found["once"] += size
                else:
                    found["kept" if self._is_kept(number, tensor[0]) else "transient"] += size
                    if not work.kept[self._positions[pair[0]][tensor[0]]]:
                        found["alone"] += size
                if self._facts.has_gradient[tensor[0]]:
                    found["gradients"] += size
            self._messages[number, pair] = _Message(**found)
        return self._messages[number, pair]

    def _bytes_for(self, number: int, tensor: Output, taker: Tuple[int, int]) -> float:
        """What a rank of a class sends of a tensor to another stage, for an op there and one of its inputs."""
        one, shares = self._classes[number], self._sent.get((tensor, taker[0]))
        if shares is None:
            return self._costs.taken_bytes(one.rows, *taker)
        return self._costs.exchanged_bytes(one.group_rows, *tensor) * shares[one.place]

    def _send_forward(self, number: int, pair: Tuple[int, int], micro_batch: int, sent: Buffer) -> None:
        message = self._message(number, pair)
        sizes = message.kept, message.transient, 0.0 if micro_batch else message.once
        if not sum(sizes) and micro_batch:
            return
        carried = self._traffic.transfer(number, *pair, sum(sizes))
        op = self._transfer(number, pair, micro_batch, FORWARD, carried, sent, sizes)
        found = [(op, place) if size else None for place, size in enumerate(sizes)]
        device = self._device(number, pair[1])
        self._arrivals.setdefault((device, FORWARD, micro_batch), []).append(_Arrival(op, *found))

    def _is_kept(self, number: int, op: int) -> bool:
        """Whether the backward pass reads an output of an op."""
        one, stage = self._classes[number], self._facts.stage_of[op]
        return bool(self._costs.at(one.rows, one.kinds[stage]).kept_bytes[op])

    # ---- Backward passes.

    def _backward(self, number: int, action: Action) -> None:
        stage, _, micro_batch = action
        device = self._device(number, stage)
        of_pass = self._backward_pieces(number, stage, micro_batch)
        pieces = [one.piece for one in of_pass]
        arrived = [
            one for arrival in self._arrivals.pop((device, BACKWARD, micro_batch), []) for one in arrival[1:] if one
        ]
        kept = self._kept.pop((device, micro_batch))
        received = self._received.pop((device, micro_batch), [])
        self._drop_blocks(device, stage)
        for at in range(len(pieces) - 1, -1, -1):
            piece, seconds, temporary, parts = of_pass[at]
            self._recompute(number, action, pieces, at, kept)
            self._gather_again(number, stage, micro_batch, self._recomputed_blocks(number, stage, piece[0])[:1])
            inputs = kept.pop(at, []) + (arrived if at == len(pieces) - 1 else []) + (received if at == 0 else [])
            inputs = inputs + self._weights_backward(number, stage, micro_batch, piece, at == len(pieces) - 1)
            outputs: List[SimulatedOutput] = []
            fresh = 0.0
            made = len(self.builder.ops)
            for part in parts:
                key = device, part.begin, part.bucket
                in_place: Tuple[int, ...] = ()
                if micro_batch:
                    in_place = (len(inputs),)
                    inputs = inputs + [self._sums[key]]
                    fresh = max(fresh, part.largest)
                self._sums[key] = (made, len(outputs))
                outputs.append(output(part.bytes, GRADIENTS, in_place))
            if fresh:  # one gradient at a time, before it is added to the sum
                outputs.append(output(fresh, GRADIENTS))
            if at == 0:
                sent = sum(self._message(number, pair).gradients for pair in self._facts.crossing if pair[1] == stage)
                outputs.append(output(sent, ACTIVATIONS))
            told = self._told(LoweredKind.BACKWARD, action, piece, at if len(pieces) > 1 else -1)
            self._pass(device, told, seconds, inputs, outputs, temporary)
            exchanged = self._exchange(number, stage, piece[0], micro_batch, True)
            self._exchange_rows(number, stage, RowWay.BACKWARD, piece[:1], micro_batch)
            if micro_batch == self._layout.micro_batches - 1:
                self._reduce(number, stage, piece)
            if at == 0:
                for pair in sorted(self._facts.crossing):
                    if pair[1] == stage:
                        last = [op for (op, _), _ in exchanged]
                        self._send_backward(number, pair, micro_batch, (made, len(outputs) - 1), last)

    def _recompute(
        self, number: int, action: Action, pieces: Sequence[Piece], at: int, kept: Dict[int, List[Buffer]]
    ) -> None:
        """Computes the segment that ends with a piece a second time."""
        stage = action.stage
        device, work = self._device(number, stage), self._own(number, stage).work
        begin, end = self._segment_before(number, stage, pieces[at][1])
        if begin == end:
            return
        blocks = self._recomputed_blocks(number, stage, end)
        gathers = self._plans.cuts[stage].gathers
        cuts = [gathers[block].first for block in blocks[1:] if gathers[block].first > begin]
        parts = list(zip([begin, *cuts], [*cuts, end]))
        for place, part in enumerate(parts):
            self._gather_again(number, stage, action.micro_batch, blocks[place : place + 2])
            made = len(self.builder.ops)
            outputs: List[SimulatedOutput] = []
            for piece_at in range(at, -1, -1):
                if part[0] <= pieces[piece_at][0] < part[1]:
                    size = work.held_by(work.again, pieces[piece_at])
                    if size:
                        kept.setdefault(piece_at, []).append((made, len(outputs)))
                        outputs.append(output(size, ACTIVATIONS))
            told = self._told(LoweredKind.RECOMPUTE, action, part, place if len(parts) > 1 else -1)
            key = device, *part
            if key not in self._again:
                self._again[key] = work.recompute_seconds(part), work.recompute_temporary(part)
            seconds, temporary = self._again[key]
            inputs = self._used_in(device, gathers, part) if blocks else []
            self._pass(device, told, seconds, inputs, outputs, temporary)
        for block in blocks[:-1]:  # the last one serves the backward pass as well
            if (device, block) in self._for_again:
                del self._gathered[device, block]
        self._for_again.clear()

    def _segment_before(self, number: int, stage: int, end: int) -> Piece:
        """The segment that ends at a position, if it is recomputed; else an empty piece."""
        device = self._device(number, stage)
        if device not in self._segments:
            recomputed, starts = self._own(number, stage).work.recomputed, self._plans.cuts[stage].segments
            segments = zip(starts, [*starts[1:], len(recomputed)])
            self._segments[device] = {last: first for first, last in segments if recomputed[first:last].any()}
        return self._segments[device].get(end, end), end

    def _send_backward(
        self, number: int, pair: Tuple[int, int], micro_batch: int, sent: Buffer, after: Sequence[int]
    ) -> None:
        size = self._message(number, pair).gradients
        if size:
            carried = self._traffic.transfer(number, pair[1], pair[0], size)
            op = self._transfer(number, pair[::-1], micro_batch, BACKWARD, carried, sent, (size,), after)
            arrival = _Arrival(op, None, (op, 0), None)
            self._arrivals.setdefault((self._device(number, pair[0]), BACKWARD, micro_batch), []).append(arrival)

    # ---- Gradients and updates.

    def _parts_of(self, device: int, own: ClassStage, stage: int) -> List[_GradientPart]:
        """What the pieces of the last backward pass complete, by bucket."""
        if device not in self._parts:
            cuts = self._plans.cuts[stage]
            pieces = pieces_of(cuts.last, len(own.work))
            found: Dict[Tuple[int, int], List[int]] = {}
            for number, bucket in enumerate(cuts.buckets):
                for variable in bucket.variables:
                    begin = pieces[_piece_with(pieces, own.variables[variable].complete)][0]
                    found.setdefault((begin, number), []).append(variable)
            self._parts[device] = []
            for (begin, number), variables in sorted(found.items()):
                sizes = [own.variables[variable].gradient_bytes for variable in variables]
                update = sum(own.updates[variable] for variable in variables)
                self._parts[device].append(_GradientPart(begin, number, sum(sizes), max(sizes), update))
        return self._parts[device]

    def _members(self, bucket: GradientBucket) -> int:
        """How many ranks reduce a bucket."""
        return len(self._layout.groups) if bucket.of_split else self._layout.ranks

    def _reduce(self, number: int, stage: int, piece: Piece) -> None:
        """After a piece of the last backward pass: reduces complete buckets, and applies what needs no reduction."""
        device, cuts = self._device(number, stage), self._plans.cuts[stage]
        parts = self._parts_of(device, self._own(number, stage), stage)
        for part in _completed_by(piece, parts):
            if self._members(cuts.buckets[part.bucket]) == 1:
                buffers = [self._sums.pop((device, part.begin, part.bucket))]
                if self._options.checks:
                    self._unchecked.setdefault(device, []).append(_Update(part.update, buffers))
                elif self._options.offload:
                    self._update(device, stage, part.update, buffers, [])
                else:
                    told = LoweredOp(self._name_of_update(stage), LoweredKind.UPDATE)
                    self._pass(device, told, part.update, buffers, (), 0)
        for at, bucket in enumerate(cuts.buckets):
            if piece[0] <= bucket.complete < piece[1] and self._members(bucket) > 1:
                buffers = [
                    self._sums.pop((device, part.begin, part.bucket)) for part in parts if part.bucket == at
                ]  # fmt: skip
                reduced = self._reduce_bucket(number, stage, at, bucket, buffers)
                seconds = sum(part.update for part in parts if part.bucket == at)
                if self._options.checks:
                    self._unchecked.setdefault(device, []).append(_Update(seconds, reduced))
                    continue
                self._update(device, stage, seconds, reduced, [reduced[0][0]])

    def _apply_checked(self, number: int) -> None:
        """The updates of a class that wait until the gradients of all stages are there, to be checked."""
        devices = [self._device(number, stage) for stage in range(self._num_stages)]
        made = {op for device in devices for update in self._unchecked.get(device, ()) for op, _ in update.gradients}
        for stage, device in enumerate(devices):
            for seconds, buffers in self._unchecked.pop(device, []):
                self._update(device, stage, seconds, buffers, sorted(made))

    def _update(self, device: int, stage: int, seconds: float, buffers: List[Buffer], after: List[int]) -> None:
        """An update, on the device or on its host, with gradients that are there when some ops have run."""
        name, after = self._name_of_update(stage), after + self._updated.get(device, [])
        if self._options.offload:
            copied = self._copy_to_host(device, buffers, after)
            told = LoweredOp(name, LoweredKind.HOST_UPDATE)
            op = self.builder.add(told, device, seconds, (), [copied], pool=("host", device))
        else:
            op = self.builder.add(LoweredOp(name, LoweredKind.UPDATE), device, seconds, buffers, after)
        if self._options.apply_groups > 1:  # each group waits for the one before it
            self._updated[device] = [op]

    def _copy_to_host(self, device: int, buffers: List[Buffer], after: List[int]) -> int:
        size = float(sum(self.builder.ops[op].outputs[out].bytes for op, out in buffers))
        told = LoweredOp("gradients to the host", LoweredKind.TRANSFER, "offload", "copy to the host", size)
        seconds = copy_seconds(size, len(buffers))
        return self.builder.add(told, device, seconds, buffers, after, pool=("to host", device))

    def _copy_from_host(self, device: int, size: float, weights: int, what: str, after: List[int]) -> int:
        name = f"{weights} weight(s) for the {what}"
        told = LoweredOp(name, LoweredKind.TRANSFER, "offload", "copy from the host", size)
        seconds, waits = copy_seconds(size, weights), [*self._waits.get(device, ()), *after]
        return self.builder.add(
            told, device, seconds, (), waits, [output(size, COMMUNICATION)], 0, ("from host", device)
        )  # fmt: skip

    def _reduce_bucket(
        self, number: int, stage: int, at: int, bucket: GradientBucket, buffers: List[Buffer]
    ) -> List[Buffer]:
        members = self._members(bucket)
        place = self._classes[number].place if bucket.of_split else 0
        gathered = bucket.collective == "all-gather"
        sent = bucket.bytes * (members if gathered else 1)
        if bucket.of_split:
            carried = self._traffic.of_holders(bucket.collective, number, stage, sent)
        else:
            carried = self._traffic.of_stage(bucket.collective, number, stage, sent)
        sizes = [self.builder.ops[op].outputs[out].bytes for op, out in buffers]
        if bucket.collective == "all-reduce":
            outputs = [output(size, GRADIENTS, (place_of,)) for place_of, size in enumerate(sizes)]
        else:
            outputs = [output(sum(sizes) * members if gathered else sum(sizes) / members, GRADIENTS)]
        where = f"stage {stage}" if self._num_stages > 1 else "the model"
        told = LoweredOp(
            f"gradients of {where}, bucket {at}", LoweredKind.COLLECTIVE, f"gradients of {where}", bucket.collective,
            sent, carried.devices,
        )  # fmt: skip
        op = self.builder.add(told, self._device(number, stage), carried.seconds, buffers, (), outputs, 0, carried.pool)
        self.builder.join(("bucket", stage, at, place), op)
        return [(op, place_of) for place_of in range(len(outputs))]

    def _name_of_update(self, stage: int) -> str:
        return f"update of stage {stage}" if self._num_stages > 1 else "update"

    # ---- ZeRO: gathers of weights. Offload: copies of them.

    def _gathers_in(self, micro_batch: int) -> bool:
        """Whether weights come for a micro batch: each run gathers, and a pipeline is one run; each pass copies."""
        return self._options.offload or (bool(self._options.zero) and self._begins_run(micro_batch))

    def _begins_run(self, micro_batch: int) -> bool:
        return self._num_stages == 1 or micro_batch == 0

    def _gather(self, number: int, stage: int, at: int, micro_batch: int, what: str) -> None:
        """Gathers some weights, or copies them from the host, after the last pass of the device so far."""
        device, gather = self._device(number, stage), self._plans.cuts[stage].gathers[at]
        if self._options.offload:
            size = {_BACKWARD_PASS: gather.bytes_again, _RECOMPUTATION: gather.bytes_recomputed}.get(what, gather.bytes)
            if size:
                after = [self._on_host[device, at]] if (device, at) in self._on_host else []
                self._gathered[device, at] = (self._copy_from_host(device, size, gather.variables, what, after), 0)
            return
        carried = self._traffic.of_stage("all-gather", number, stage, gather.bytes)
        outputs = [output(gather.bytes, COMMUNICATION)]
        op = self._add_gather(number, stage, gather, what, carried, outputs)
        again = self._times_gathered[device, at, micro_batch, what]  # for each segment that a block has a part of
        self._times_gathered[device, at, micro_batch, what] += 1
        self.builder.join(("gather", stage, at, micro_batch, what, again), op)
        self._gathered[device, at] = (op, 0)

    def _gather_on_hosts(self, number: int, stage: int, micro_batch: int) -> None:
        """Gathers weights in the memory of the hosts, before a run copies them to its devices."""
        device, cuts = self._device(number, stage), self._plans.cuts[stage]
        if not cuts.host_gathers or not self._begins_run(micro_batch):
            return
        made = []
        for at, gather in enumerate(cuts.host_gathers):
            carried = self._traffic.of_hosts("all-gather", number, stage, gather.bytes)
            made.append(self._add_gather(number, stage, gather, "hosts", carried, ()))
            self.builder.join(("hosts", stage, at, micro_batch), made[-1])
        firsts = [gather.first for gather in cuts.host_gathers]
        for at, copy in enumerate(cuts.gathers):  # gathers follow each other, by their first use
            needed = bisect_right(firsts, copy.last)
            if needed:
                self._on_host[device, at] = made[needed - 1]

    def _add_gather(
        self,
        number: int,
        stage: int,
        gather: WeightGather,
        what: str,
        carried: Carried,
        outputs: Sequence[SimulatedOutput],
    ) -> int:
        device = self._device(number, stage)
        told = LoweredOp(
            f"{gather.variables} weight(s) for the {what}", LoweredKind.COLLECTIVE,
            f"weights of stage {stage} (ZeRO)" if self._num_stages > 1 else "weights (ZeRO)", "all-gather",
            gather.bytes, carried.devices,
        )  # fmt: skip
        waits = self._waits.get(device, ())
        return self.builder.add(told, device, carried.seconds, (), waits, outputs, 0, carried.pool)

    def _weights_forward(self, number: int, stage: int, piece: Piece, micro_batch: int) -> List[Buffer]:
        """The gathered weights that a piece of a forward pass begins to use; with v2 it gathers the next block."""
        device, gathers = self._device(number, stage), self._plans.cuts[stage].gathers
        if not self._options.drops:
            return [self._gathered[device, at] for at, one in enumerate(gathers) if piece[0] <= one.first < piece[1]]
        for at in range(len(gathers)):
            if piece[0] == 0 if at == 0 else piece[0] <= gathers[at - 1].first < piece[1]:
                self._gather(number, stage, at, micro_batch, _FORWARD_PASS)
        return self._used_in(device, gathers, piece)

    def _weights_backward(
        self, number: int, stage: int, micro_batch: int, piece: Piece, is_first: bool
    ) -> List[Buffer]:
        """The gathered weights that a piece of a backward pass uses, v0 and v1: for the last time."""
        device, gathers = self._device(number, stage), self._plans.cuts[stage].gathers
        if not self._options.drops:
            if self._num_stages > 1 and micro_batch < self._layout.micro_batches - 1:
                return []
            return [self._gathered[device, at] for at, one in enumerate(gathers) if piece[0] <= one.first < piece[1]]
        for at in range(len(gathers) - 1, -1, -1):
            is_next = is_first if at == len(gathers) - 1 else piece[0] <= gathers[at + 1].last < piece[1]
            if is_next and (device, at) not in self._gathered:
                self._gather(number, stage, at, micro_batch, _BACKWARD_PASS)
        return self._used_in(device, gathers, piece)

    def _drop_blocks(self, device: int, stage: int) -> None:
        """After a forward pass. The last block stays, but in a pipeline, where other passes may run between the two."""
        if self._options.drops:
            for at in range(len(self._plans.cuts[stage].gathers) - (self._num_stages == 1)):
                self._gathered.pop((device, at), None)

    def _recomputed_blocks(self, number: int, stage: int, end: int) -> List[int]:
        """The blocks of weights that come again for the segment which ends at a position, and is recomputed."""
        begin, end = self._segment_before(number, stage, end) if self._options.drops else (end, end)
        work = self._own(number, stage).work
        return [
            at
            for at, one in enumerate(self._plans.cuts[stage].gathers)
            if one.bytes_recomputed and work.recomputed[max(begin, one.first) : min(end, one.last + 1)].any()
        ]

    def _gather_again(self, number: int, stage: int, micro_batch: int, blocks: Sequence[int]) -> None:
        """Gathers blocks that are not there for a recomputation."""
        for block in blocks:
            key = self._device(number, stage), block
            if key not in self._gathered:
                self._gather(number, stage, block, micro_batch, _RECOMPUTATION)
                self._for_again.add(key)

    def _used_in(self, device: int, gathers: Sequence[WeightGather], piece: Piece) -> List[Buffer]:
        return [
            self._gathered[device, at]
            for at, one in enumerate(gathers)
            if one.first < piece[1] and piece[0] <= one.last and (device, at) in self._gathered
        ]

    # ---- Exchanges of a split, transfers, passes.

    def _exchange(
        self,
        number: int,
        stage: int,
        position: int,
        micro_batch: int,
        is_backward: bool,
        inputs: Sequence[Buffer] = (),
    ) -> List[Tuple[Buffer, SplitExchange]]:
        """The exchanges of a split at a position, one after the other; the next pass waits for them.

        They take `inputs`, which have come from other stages.
        """
        device, one = self._device(number, stage), self._classes[number]
        ops = self._plans.cuts[stage].ops
        found = []
        for at, exchange in self._exchanges.get((is_backward, ops[position]), ()):
            size = self._costs.exchanged_bytes(one.group_rows, *exchange.source)
            carried = self._traffic.of_group(exchange.collective, number, stage, size * exchange.fraction)
            told = LoweredOp(
                f"{exchange.what}{', backward' if is_backward else ''}", LoweredKind.COLLECTIVE, "split",
                exchange.collective, size * exchange.fraction, carried.devices,
            )  # fmt: skip
            received = size * exchange.received[one.place]
            waits = self._waits.get(device, ())
            outputs = [output(received, COMMUNICATION)]
            seconds = carried.seconds + exchange.copy_seconds(one.kinds[stage], size)
            op = self.builder.add(told, device, seconds, inputs, waits, outputs, 0, carried.pool)
            self.builder.join(("split", one.group, at, micro_batch), op)
            self._waits[device] = [op]
            found.append(((op, 0), exchange))
        return found

    def _exchange_rows(
        self, number: int, stage: int, way: str, positions: Sequence[int], micro_batch: int
    ) -> List[Buffer]:
        """The collectives of rows at some positions; the next pass waits for them, but for those of writes.

        Returns:
          What they have gathered.
        """
        if not self._of_rows:
            return []
        device, ops = self._device(number, stage), self._plans.cuts[stage].ops
        gathered = []
        for at, exchange in [one for position in positions for one in self._of_rows.get((way, ops[position]), ())]:
            size = self._costs.row_bytes(exchange, sum(self._layout.rows))
            carried = self._traffic.of_rows(exchange, number, stage, size)
            told = LoweredOp(
                f"{exchange.decision}, {way}", LoweredKind.COLLECTIVE, exchange.decision, exchange.collective, size,
                carried.devices, way=way,
            )  # fmt: skip
            gathers = exchange.collective == "all-gather"
            outputs = [output(size, COMMUNICATION)] if gathers else []
            waits = self._waits.get(device, ())
            op = self.builder.add(told, device, carried.seconds, (), waits, outputs, 0, carried.pool)
            self.builder.join(("rows", stage, at, micro_batch), op)
            gathered += [(op, 0)] if gathers else []
            if way != RowWay.WRITES:
                self._waits[device] = [op]
        return gathered

    def _transfer(
        self,
        number: int,
        pair: Tuple[int, int],
        micro_batch: int,
        kind: str,
        carried: Carried,
        sent: Buffer,
        received: Sequence[float],
        after: Sequence[int] = (),
    ) -> int:
        what = "activations" if kind == FORWARD else "gradients"
        told = LoweredOp(
            f"{what} of micro batch {micro_batch}, stage {pair[0]} to {pair[1]}", LoweredKind.TRANSFER,
            f"stage {pair[0]} to {pair[1]}", "point to point", sum(received), carried.devices,
        )  # fmt: skip
        outputs = [output(part, COMMUNICATION) for part in received]
        device = self._device(number, pair[1])
        return self.builder.add(told, device, carried.seconds, [sent], after, outputs, 0, carried.pool)

    def _pass(
        self,
        device: int,
        told: LoweredOp,
        seconds: float,
        inputs: Sequence[Buffer],
        outputs: Sequence[SimulatedOutput],
        temporary: int,
    ) -> None:
        """Adds a piece of a pass after all that its device has done so far."""
        op = self.builder.add(told, device, seconds, inputs, self._waits.get(device, ()), outputs, temporary)
        self._waits[device] = [op]

    def _told(self, kind: str, action: Action, piece: Piece, part: int) -> LoweredOp:
        ops = self._plans.cuts[action.stage].ops
        name = {LoweredKind.RECOMPUTE: f"{action} again"}.get(kind, str(action))
        if part >= 0:
            name += f" part {part}"
        members = (ops[piece[0]], ops[piece[1] - 1] + 1) if piece[0] < piece[1] else (0, 0)
        return LoweredOp(name, kind, ops=members, micro_batch=action.micro_batch)

    # ---- Facts of a device.

    def _device(self, number: int, stage: int) -> int:
        return number * self._num_stages + stage

    def _own(self, number: int, stage: int) -> ClassStage:
        return self._plans.stages[number][stage]

    def _backward_pieces(self, number: int, stage: int, micro_batch: int) -> List[_BackwardPiece]:
        """The pieces of the backward pass of a micro batch."""
        device, cuts, own = self._device(number, stage), self._plans.cuts[stage], self._own(number, stage)
        key = device, micro_batch == self._layout.micro_batches - 1
        if key not in self._backwards:
            pieces = pieces_of(cuts.last if key[1] else cuts.backward, len(cuts.ops))
            weights = np.zeros(len(own.work))
            for one in own.variables:
                weights[one.complete] += one.gradient_bytes
            all_parts = self._parts_of(device, own, stage)
            found = []
            for piece, temporary in zip(pieces, own.work.backward_temporary(pieces, weights)):
                parts = _completed_by(piece, all_parts)
                found.append(_BackwardPiece(piece, own.work.backward_seconds(piece), temporary, tuple(parts)))
            self._backwards[key] = found
        return self._backwards[key]


def _piece_with(pieces: Sequence[Piece], position: int) -> int:
    return bisect_left(pieces, (position + 1,)) - 1  # they follow each other from position 0 on


def _completed_by(piece: Piece, parts: Sequence[_GradientPart]) -> Sequence[_GradientPart]:
    """The parts that a piece completes, of parts in the order of their begins."""
    return parts[bisect_left(parts, piece[:1]) : bisect_left(parts, piece[1:])]
