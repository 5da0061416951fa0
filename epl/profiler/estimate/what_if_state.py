"""What would lower the memory of weights and optimizer state: shards of them (ZeRO), or host memory (offload).

The device then holds gathered or copied weights for a time; this module simulates that on the program of the step:

    w --> MatMul ... MatMulGrad              v1             w --> fetch --> MatMul ... MatMulGrad
                                             v2, offload    w --> fetch --> MatMul,   w --> fetch --> MatMulGrad

Reduced gradients count as they do without ZeRO.
"""

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from epl.ir import op_types
from epl.ir.taskgraph import PHASE_ATTR, Phase
from epl.ir.view import variable_bytes
from epl.parallel.costs.op_times import times_on
from epl.parallel.plan.plan import world_size
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.parallel.split.resharding_paths import LINKS
from epl.planner.simulator.program import SimulatedOp, SimulatedOutput, SimulatedProgram
from epl.profiler.estimate.estimate import UPDATES, MemoryDifference, StepEstimate, StepGraph, estimate
from epl.profiler.estimate.program import TRANSFER

_LOOKUPS = frozenset(["Gather", "GatherNd", "GatherV2", "ResourceGather", "ResourceGatherNd"])


class _State(NamedTuple):
    """The state that ZeRO and offload remove from devices.

    Attributes:
      trained: op of the program that is a trained variable -> its bytes.
      bytes: per device, bytes of these variables and of their optimizer state.
    """

    trained: Dict[int, int]
    bytes: List[int]


class _Use(NamedTuple):
    """Where an op of the program takes a weight."""

    op: int
    position: int


def changes(graph: StepGraph, step: StepEstimate) -> List[MemoryDifference]:
    """ZeRO, and on GPUs offload, if they are off and work with the other features."""
    rewrite = graph.rewrite
    if rewrite is None or not graph.calls or rewrite.config.zero.level or rewrite.config.offload.level:
        return []
    found = []
    split = bool(split_taskgraphs(rewrite.graph))
    if world_size(rewrite.plan) > 1 and not split:
        found.append(_in_parts(graph, step, "v1"))
        if len(rewrite.plan.stages) == 1:
            found.append(_in_parts(graph, step, "v2"))
    if _device_type(step) == "gpu":
        found.append(_on_host(graph, step))
    return [change for change in found if change is not None]


def _in_parts(graph: StepGraph, step: StepEstimate, level: str) -> Optional[MemoryDifference]:
    """ZeRO of one level; None if nothing is trained."""
    assert graph.rewrite is not None
    state = _state(graph, step)
    if not state.trained:
        return None
    ranks = world_size(graph.rewrite.plan)
    saved = 1 - 1.0 / ranks
    fetches = _fetches(graph, step, state, again=level == "v2")
    after = estimate(graph, step, _fetched(step, state, fetches)).devices
    peak = max(device.peak - int(saved * size) for device, size in zip(after, state.bytes))
    link = LINKS[_device_type(step)]
    # Only a second gather adds bytes: one gather and a reduce-scatter send as much as an all-reduce.
    again = saved * (sum(state.trained[weight] for weight, _ in fetches) - sum(state.trained.values()))
    seconds = len(fetches) * link.latency + max(0.0, again) / link.bandwidth
    why = f"weights and optimizer state in parts over {ranks} replicas"
    return MemoryDifference(f"zero.level = {level}", peak, seconds / _seconds(step), why)


def _on_host(graph: StepGraph, step: StepEstimate) -> Optional[MemoryDifference]:
    state = _state(graph, step)
    if not state.trained:
        return None
    fetches = _fetches(graph, step, state, again=True, without=_LOOKUPS)
    program = _fetched(step, state, fetches)
    peak = max(device.peak - device.weights - device.slots for device in estimate(graph, step, program).devices)
    gradients = sum(state.trained.values())
    moved = (sum(state.trained[weight] for weight, _ in fetches) + gradients) / LINKS["gpu"].bandwidth
    updated = 2 * sum(state.bytes) / times_on("cpu").bandwidth
    return MemoryDifference(
        "offload.level = v0", peak, (moved + updated) / _seconds(step), "weights are in host memory"
    )


def _device_type(step: StepEstimate) -> str:
    return "gpu" if any("GPU" in name for name in step.devices.names) else "cpu"


def _seconds(step: StepEstimate) -> float:
    return sum(op.seconds for op in step.made.program.ops)


def _state(graph: StepGraph, step: StepEstimate) -> _State:
    view, number = graph.view, {node: at for at, node in enumerate(step.made.order)}
    state = _State({}, [0] * len(step.devices.names))
    for node in filter(graph.is_used, view.of_types(op_types.VARIABLES)):
        if node not in number:
            continue
        trained = graph.is_trained(node)
        if trained or _phase(graph, node) == Phase.APPLY:
            size = variable_bytes(view, node) or 0
            state.bytes[step.devices.of_node(node)] += size
            if trained:
                state.trained[number[node]] = size
    return state


def _phase(graph: StepGraph, node: int) -> str:
    phase: bytes = graph.view.nodes[graph.original(node)].attr[PHASE_ATTR].s
    return phase.decode()


def _fetches(
    graph: StepGraph, step: StepEstimate, state: _State, again: bool, without: FrozenSet[str] = frozenset()
) -> List[Tuple[int, List[_Use]]]:
    """(Weight, its uses) of each fetch, in the order in which they are needed.

    Args:
      graph, step, state: the step and its weights.
      again: the backward pass fetches weights a second time.
      without: types of ops that run where the weights are.
    """
    values = {weight: weight for weight in state.trained}  # op -> the weight that it gives
    found: Dict[Tuple[int, str], List[_Use]] = {}
    for at, (op, node) in enumerate(zip(step.made.program.ops, step.made.order)):
        taken = [(position, producer) for position, (producer, _) in enumerate(op.inputs) if producer in values]
        if not taken:
            continue
        op_type = graph.view.types[node] if node >= 0 else ""
        if op_type in op_types.READS:
            values[at] = values[taken[0][1]]
        elif node < 0 or (graph.role_of(node) != UPDATES and op_type not in op_types.WRITES | without):
            phase = _phase(graph, node) if again and node >= 0 else ""
            for position, producer in taken:
                found.setdefault((values[producer], phase), []).append(_Use(at, position))
    return sorted(((weight, uses) for (weight, _), uses in found.items()), key=lambda fetch: fetch[1][0])


def _fetched(step: StepEstimate, state: _State, fetches: List[Tuple[int, List[_Use]]]) -> SimulatedProgram:
    """The program with the fetches; if a weight has several, each waits for the inputs of the use before it."""
    ops = list(step.made.program.ops)
    early = len(fetches) == len({weight for weight, _ in fetches})
    bandwidth = LINKS[_device_type(step)].bandwidth
    last: Dict[int, Tuple[int, Tuple[int, ...]]] = {}  # device -> its last fetch, and the inputs of its first use
    for weight, uses in fetches:
        device, size = ops[weight].device, state.trained[weight]
        fetch, waits = last.get(device, (-1, ()))
        after = (() if fetch < 0 else (fetch,)) + (() if early else waits)
        output = SimulatedOutput(size, -1, (), TRANSFER, False)
        number = len(ops)
        ops.append(SimulatedOp(device, size / bandwidth, False, ((weight, 0),), after, (output,), 0, (-1, 0)))
        first = ops[uses[0].op]
        others = {p for position, (p, _) in enumerate(first.inputs) if p >= 0 and position != uses[0].position}
        last[device] = number, tuple(sorted(others - state.trained.keys()))
        for use in uses:
            inputs = list(ops[use.op].inputs)
            inputs[use.position] = (number, 0)
            ops[use.op] = ops[use.op]._replace(inputs=tuple(inputs))
    return step.made.program._replace(ops=ops)
