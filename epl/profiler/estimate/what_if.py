"""What would lower the memory of a step: features that are off, each with the peak that it would give and its cost.

This module simulates recomputation on the program of the step, with the analysis of the pass, and so does
`what_if_state.py` for ZeRO and offload. For smaller micro batches it estimates the step again. For a schedule or groups
of updates it calculates from the bytes at the peak: activations are in proportion to the micro batches in flight,
updates to the number of groups.
"""

from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from epl.ir import op_types
from epl.ir.control_flow import depths_of
from epl.ir.dataflow import batch_nodes
from epl.parallel.costs.costs import Costs
from epl.parallel.plan.schedule import from_text, peak_in_flight
from epl.parallel.plan.schedule_generators import generate
from epl.parallel.plan.stages import stages_of_nodes
from epl.parallel.recompute import segments as recompute
from epl.parallel.recompute.candidates import choose
from epl.parallel.recompute.order import find_waits
from epl.parallel.recompute.segments import BackwardPass, Segment
from epl.parallel.rewriting.context import RewriteContext
from epl.planner.simulator.program import SimulatedOp, SimulatedProgram
from epl.profiler.estimate.estimate import (
    DeviceMemory,
    MemoryDifference,
    MemoryEstimate,
    StepEstimate,
    StepGraph,
    estimate,
    prepare,
)
from epl.profiler.estimate.what_if_state import changes as changes_of_state
from epl.utils import tf_compat

_GROUPS = 4  # of updates, as a suggestion


def changes(
    graph: StepGraph,
    step: StepEstimate,
    before: MemoryEstimate,
    ops: Sequence[str],
    fed: Mapping[str, Sequence[int]],
) -> Tuple[MemoryDifference, ...]:
    """Changes that would lower the peak, the cheapest first.

    Args:
      graph, step, before: the step and its estimate.
      ops, fed: as for `prepare`.
    """
    rewrite = graph.rewrite
    if rewrite is None:
        return ()
    peak = max(device.peak for device in before.devices)
    found = [
        _recomputation(graph, step),
        _smaller_micro_batches(graph, step, before, ops, fed),
        _schedule(rewrite, before, peak),
        _groups(rewrite, before),
        *changes_of_state(graph, step),
    ]
    lower = [change for change in found if change is not None and change.peak < peak]
    return tuple(sorted(lower, key=lambda change: (change.time, change.peak)))


# ---- Recomputation


def _recomputation(graph: StepGraph, step: StepEstimate) -> Optional[MemoryDifference]:
    assert graph.rewrite is not None
    if graph.rewrite.config.gradient_checkpoint.type:
        return None
    program, seconds = step.made.program, sum(op.seconds for op in step.made.program.ops)
    for call in graph.calls:
        seeds = {graph.view.index[seed.op.name] for seed in call.seeds}
        ys = {graph.view.index[y.op.name] for y in call.ys}
        changed = _recomputed(graph, step, program, seeds, ys)
        program = program if changed is None else changed
    if program is step.made.program:
        return None
    after = sum(op.seconds for op in program.ops)
    peak = max(device.peak for device in estimate(graph, step, program).devices)
    return MemoryDifference(
        "gradient_checkpoint.type = auto", peak, after / seconds - 1, "activations are computed twice"
    )


def _recomputed(
    graph: StepGraph, step: StepEstimate, program: SimulatedProgram, seeds: Set[int], ys: Set[int]
) -> Optional[SimulatedProgram]:
    """The program with the segments of one backward pass computed again; None if there are none."""
    view, made = graph.view, step.made
    number = {node: at for at, node in enumerate(made.order) if node >= 0}
    copies = graph.same_as
    built = graph.rewrite.built if graph.rewrite is not None else set()

    def is_other(node: int) -> bool:
        return node in copies or node not in number or view.nodes[node].name in built

    needed = {node for node in view.ancestors(graph.gradients, is_other) if not is_other(node)}
    backward = view.descendants(seeds) & needed
    forward = [node for node in made.order if node in needed and node not in backward]
    if not backward or not forward:
        return None
    passed = BackwardPass(forward, set(forward) - view.ancestors(ys), backward, sorted(seeds), sorted(ys))
    writes = [node for node in view.writes() if node in number]
    recomputable = recompute.find_recomputable(graph.tf_graph, view, passed, writes, made.types)
    stages = [0] * len(view) if graph.rewrite is None else stages_of_nodes(view, graph.rewrite.plan.stages)
    seconds = {node: program.ops[number[node]].seconds for node in forward}
    costs = Costs(seconds, {}, seconds, seconds, dict.fromkeys(forward, 0), made.types, ())
    choice = choose(view, passed, recomputable, stages, costs)
    segments = recompute.find_segments(view, passed, recomputable, choice.places, (), choice.whole)
    if not segments:
        return None
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(graph.tf_graph, op_type)}
    moving = batch_nodes(view, stateful)
    waits = find_waits(view, passed, segments, moving, depths_of(view), stages)
    ops = list(program.ops)
    originals: Dict[int, int] = {}
    for family in [originals] + graph.families:
        # The op of a node in this micro batch of this replica.
        numbers = {node: number[family.get(node, node)] for node in number if family.get(node, node) in number}
        _add_segments(ops, segments, waits, numbers)
    return program._replace(ops=ops)


def _add_segments(
    ops: List[SimulatedOp], segments: Sequence[Segment], waits: Sequence[Sequence[int]], numbers: Mapping[int, int]
) -> None:
    """Appends the copies of the segments, and makes the backward pass take them; `numbers` has the op of a node."""
    for segment, wait in zip(segments, waits):
        if any(node not in numbers for node in segment.nodes):
            continue  # a segment of a replica that takes no part in the step
        members = [numbers[node] for node in segment.nodes]
        again = {member: len(ops) + at for at, member in enumerate(members)}
        after = tuple(numbers[node] for node in wait if node in numbers)
        for member in members:
            op = ops[member]
            inputs = tuple((again.get(producer, producer), output) for producer, output in op.inputs)
            first = not any(producer in again for producer, _ in op.inputs)
            ops.append(op._replace(inputs=inputs, after=op.after + (after if first else ())))
        for use in segment.uses:
            consumer = numbers[use.consumer]
            if ops[consumer].inputs:
                changed = list(ops[consumer].inputs)
                changed[use.position] = (again[numbers[use.producer]], use.output)
                ops[consumer] = ops[consumer]._replace(inputs=tuple(changed))


# ---- Others


def _smaller_micro_batches(
    graph: StepGraph,
    step: StepEstimate,
    before: MemoryEstimate,
    ops: Sequence[str],
    fed: Mapping[str, Sequence[int]],
) -> Optional[MemoryDifference]:
    """Twice as many micro batches of half the rows each, if all rows are fed."""
    assert graph.rewrite is not None
    plan, config = graph.rewrite.plan, graph.rewrite.config
    stages = len(plan.stages)
    if graph.view.of_types(op_types.DATA_SOURCES) or (stages > 1 and config.pipeline.strategy == "preferforward"):
        return None
    placeholders = {name for name, shape in fed.items() if len(shape) and not _is_barrier(graph, name)}
    if not placeholders or any(fed[name][0] % 2 for name in placeholders):
        return None
    halves = dict(fed)
    halves.update({name: (fed[name][0] // 2,) + tuple(fed[name][1:]) for name in placeholders})
    half = prepare(graph, ops, halves, max(step.made.program.threads))
    after = estimate(graph, half).devices
    if [device.device for device in after] != [device.device for device in before.devices]:
        return None
    sums = [device.weights if stages == 1 and config.pipeline.num_micro_batch == 1 else 0 for device in after]
    peak = max(device.peak + size for device, size in zip(after, sums))
    seconds = sum(op.seconds for op in step.made.program.ops)
    time = max(0.0, 2 * sum(op.seconds for op in half.made.program.ops) / seconds - 1)
    value = 2 * config.pipeline.num_micro_batch
    why = "half the rows in each {}".format("run, gradients are added up" if stages == 1 else "micro batch")
    return MemoryDifference(f"pipeline.num_micro_batch = {value}", peak, time, why)


def _is_barrier(graph: StepGraph, tensor: str) -> bool:
    built = graph.rewrite.built if graph.rewrite is not None else set()
    name = tensor.partition(":")[0]
    node = graph.view.index[name]
    return graph.view.nodes[graph.original(node)].name in built


def _schedule(rewrite: RewriteContext, before: MemoryEstimate, peak: int) -> Optional[MemoryDifference]:
    """1F1B in place of GPipe."""
    plan = rewrite.plan
    if not plan.schedule or rewrite.config.pipeline.strategy != "preferforward":
        return None
    mine = from_text(plan.schedule)
    other = generate("PreferBackward", mine.device_of_stage, plan.num_micro_batch)
    flight, less = peak_in_flight(mine), peak_in_flight(other)
    kept: Dict[str, float] = {}
    for stage in range(len(plan.stages)):
        for replica in range(rewrite.local_replicas):
            device = rewrite.device(stage, replica)
            part = less[stage] / float(max(1, flight[stage]))
            kept[device] = max(part, kept.get(device, 0.0))
    after = [_with(device, "activations", kept.get(device.device, 1.0)) for device in before.devices]
    return MemoryDifference("pipeline.strategy = PreferBackward", max(after), 0.0, "fewer micro batches in flight")


def _groups(rewrite: RewriteContext, before: MemoryEstimate) -> Optional[MemoryDifference]:
    if rewrite.config.optimizer.num_apply_group > 1:
        return None
    after = max(_with(device, "updates", 1.0 / _GROUPS) for device in before.devices)
    config = f"optimizer.num_apply_group = {_GROUPS}"
    return MemoryDifference(config, after, 0.0, "updates of some variables at a time")


def _with(device: DeviceMemory, role: str, part: float) -> int:
    """The peak of a device if one of its roles held the given fraction of its bytes."""
    return int(device.peak - getattr(device, role) * (1 - part))
