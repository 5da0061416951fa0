"""Whale: M6-MoE-10T on 512 GPUs: what it takes to fit."""

from typing import List, Mapping, Sequence, Tuple

from benchmarks.papers import planning
from benchmarks.papers.figure import Comparison, Figure, Table, gigabytes
from benchmarks.papers.m6_experts import model
from epl.planner.prediction.prediction import Prediction
from epl.planner.search.planned_model import PlannedModel

GPUS, NETWORK, ROWS = 512, "eth-50", 1
_FEATURES = "512 GPUs: epl.split of the experts, gradient checkpoint, offload"
_HOST_ROLES = ("weights", "slots")
_PLANS: Sequence[Tuple[str, Mapping[str, str]]] = (
    ("epl.split", {}),
    ("and gradient checkpoint", {"gradient_checkpoint.type": "auto"}),
    ("and offload", {"offload.level": "v0"}),
    ("and both", {"gradient_checkpoint.type": "auto", "offload.level": "v0"}),
)

_TEXT = (
    'Whale, slides of USENIX ATC 2022, "Industry-Scale Giant Model Training": M6-MoE-10T, the experts in '
    "`wh.split(total_gpus)` and the rest replicated, trains on 512 V100. The article about EPL names mixtures of "
    "experts, gradient checkpoint, offload and optimized communication as what M6 took. Neither says how large layers "
    "and experts are.",
    f"The model here has {model.LAYERS} layers of width {model.WIDTH:,} with {model.EXPERTS:,} experts of "
    f"{model.INNER:,} units, {model.EXPERTS // GPUS} of each layer on each GPU: {{:.2f}} trillion weights. A GPU would "
    "hold {} of weights in float32 alone, and half of that in float16, so no plan without offload can fit.",
)


def figure() -> Figure:
    """Simulates the memory with and without recomputation."""
    found = planning.planned(model.build, planning.ADAM, config=model.CONFIG)
    weights = sum(op.variable_bytes for op in found.costs.ops if op.is_trained) / 4
    steps = [_step(found, settings) for _, settings in _PLANS]
    memory = [max((one.memory for one in step.devices), key=lambda one: one.peak) for step in steps]
    limit = float(memory[0].limit or 0)
    host = sum(memory[0].by_role[role] for role in _HOST_ROLES) * planning.NODE
    assumed = (
        f"the model above, {ROWS} row of {model.LENGTH} words on each GPU, an expert takes one word of a row; V100 of "
        "32 GB; float32, Adam; with offload, host memory at the speed of PCIe 3 and updates by a CPU like the preset "
        "`cpu`"
    )
    comparisons = (
        Comparison(_FEATURES, "trains", _fits(float(memory[3].peak), limit), "", assumed),
        Comparison("without offload", "", _fits(float(memory[1].peak), limit), "", "as above"),
        Comparison("host memory of a node of 8 GPUs", "", gigabytes(host), "", "as above; without slots a third"),
    )
    values = {
        "weights": weights, "limit": limit, "with offload": float(memory[3].peak),
        "without offload": float(memory[1].peak),
    }  # fmt: skip
    rows: List[Sequence[str]] = [("plan", *planning.ROLES, "sum", "", "step")]
    for (name, _), one, step in zip(_PLANS, memory, steps):
        cells = [gigabytes(one.by_role.get(role, 0)) for role in planning.ROLES]
        fits = "does not fit" if one.lacks else "fits"
        rows.append((name, *cells, gigabytes(one.peak), fits, f"{step.seconds:.1f} s" if not one.lacks else ""))
    text = (_TEXT[0], _TEXT[1].format(weights / 1e12, gigabytes(memory[0].by_role["weights"])))
    table = Table(f"Memory of a GPU at its worst moment, of {gigabytes(limit)}:", tuple(rows))
    return Figure("M6-MoE-10T on 512 GPUs", "m6_experts", text, comparisons, (table,), values)


def _step(found: PlannedModel, settings: Mapping[str, str]) -> Prediction:
    strategy = planning.with_settings(found.strategy, settings)
    return planning.step(strategy, found, planning.gpus(GPUS, NETWORK), ROWS * GPUS)


def _fits(size: float, limit: float) -> str:
    return f"{'fits' if size <= limit else 'does not fit'}: {gigabytes(size)} of {gigabytes(limit)}"
