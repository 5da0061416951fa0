"""Whale: M6-MoE-10T on 512 GPUs: what it takes to fit."""

from typing import List, Sequence

from benchmarks.papers import planning
from benchmarks.papers.figure import Comparison, Figure, Table, gigabytes
from benchmarks.papers.m6_experts import model
from epl.planner.prediction.prediction import PredictedMemory
from epl.planner.search.planned_model import PlannedModel

GPUS, NETWORK, ROWS = 512, "eth-50", 1
_BLOCKS = 2 * 1.25  # that a device holds with offload, in sizes of its largest weight: docs/offload.md
_FEATURES = "512 GPUs: epl.split of the experts, gradient checkpoint, offload"
_HOST_ROLES = ("weights", "slots")

_TEXT = (
    'Whale, slides of USENIX ATC 2022, "Industry-Scale Giant Model Training": M6-MoE-10T, the experts in '
    "`wh.split(total_gpus)` and the rest replicated, trains on 512 V100. The article about EPL names mixtures of "
    "experts, gradient checkpoint, offload and optimized communication as what M6 took. Neither says how large layers "
    "and experts are.",
    f"The model here has {model.LAYERS} layers of width {model.WIDTH:,} with {model.EXPERTS:,} experts of "
    f"{model.INNER:,} units, {model.EXPERTS // GPUS} of each layer on each GPU: {{:.2f}} trillion weights. A GPU would "
    "hold {} of weights in float32 alone, and half of that in float16, so no plan without offload can fit.",
    "The simulator does not know offload: a machine does not say how fast host memory is. So the time of a step is not "
    "predicted, and the memory with offload is computed from the simulated step: weights and slots leave the GPU, and "
    "the two blocks of weights that a device holds at a time come to it, each at most a quarter larger than the "
    "largest weight.",
)


def figure() -> Figure:
    """Simulates the memory with and without recomputation."""
    found = planning.planned(model.build, planning.ADAM, config=model.CONFIG)
    weights = sum(op.variable_bytes for op in found.costs.ops if op.is_trained) / 4
    largest = max(op.variable_bytes for op in found.costs.ops if op.is_trained) / GPUS
    plain, again = [_memory(found, kind) for kind in ("", "auto")]
    limit = float(plain.limit or 0)
    offloaded = [_with_offload(one, largest) for one in (plain, again)]
    host = sum(again.by_role.get(role, 0) for role in _HOST_ROLES) * planning.NODE
    assumed = (
        f"the model above, {ROWS} row of {model.LENGTH} words on each GPU, an expert takes one word of a row; V100 of "
        "32 GB; float32, Adam; `offload.level` v0 computed by hand, as above"
    )
    comparisons = (
        Comparison(_FEATURES, "trains", _fits(offloaded[1], limit), "", assumed),
        Comparison("without offload", "", _fits(float(again.peak), limit), "", "as above"),
        Comparison("host memory of a node of 8 GPUs", "", gigabytes(host), "", "as above; without slots a third"),
    )
    values = {
        "weights": weights, "limit": limit, "with offload": offloaded[1], "with offload alone": offloaded[0],
        "without offload": float(again.peak),
    }  # fmt: skip
    rows: List[Sequence[str]] = [("gradient checkpoint", *planning.ROLES, "sum", "with offload", "")]
    for name, one, left in zip(("no", "auto"), (plain, again), offloaded):
        cells = [gigabytes(one.by_role.get(role, 0)) for role in planning.ROLES]
        rows.append((name, *cells, gigabytes(one.peak), gigabytes(left), "fits" if left <= limit else "does not fit"))
    text = (_TEXT[0], _TEXT[1].format(weights / 1e12, gigabytes(again.by_role["weights"])), _TEXT[2])
    table = Table(f"Memory of a GPU at its worst moment, of {gigabytes(limit)}:", tuple(rows))
    return Figure("M6-MoE-10T on 512 GPUs", "m6_experts", text, comparisons, (table,), values)


def _memory(found: PlannedModel, checkpoint: str) -> PredictedMemory:
    strategy = planning.with_settings(found.strategy, {"gradient_checkpoint.type": checkpoint})
    step = planning.step(strategy, found, planning.gpus(GPUS, NETWORK), ROWS * GPUS)
    return max((one.memory for one in step.devices), key=lambda memory: memory.peak)


def _with_offload(memory: PredictedMemory, largest: float) -> float:
    """Bytes on a GPU if weights and slots are in host memory; `largest`: bytes of its largest weight."""
    return memory.peak - sum(memory.by_role.get(role, 0) for role in _HOST_ROLES) + _BLOCKS * largest


def _fits(size: float, limit: float) -> str:
    return f"{'fits' if size <= limit else 'does not fit'}: {gigabytes(size)} of {gigabytes(limit)}"
