"""Whale: ResNet-50 with 100,000 and 1,000,000 classes, data parallel and with the head split."""

from typing import Dict, List, Sequence, Tuple

from benchmarks.papers import planning
from benchmarks.papers.figure import Comparison, Figure, Table, compared, gigabytes, milliseconds
from benchmarks.papers.many_classes import model
from epl.planner.prediction.prediction import Prediction
from epl.planner.search.planned_model import PlannedModel

GPUS = (8, 16, 32)
ROWS, NETWORK = 32, "eth-50"  # of the table of published values
ALL_ROWS, NETWORKS = (32, 64, 128), ("eth-25", "eth-50", "eth-100")
FEW, MANY = 100_000, 1_000_000

_TEXT = (
    'Whale, slides of USENIX ATC 2022, "Hybrid Strategy" (b) and (c): the convolutions in `wh.replicate(total_gpu)`, '
    "the dense layer and the softmax in `wh.split(total_gpu)`. With 100,000 classes this hybrid has 1.13 to 2.43 times "
    "the speed of data parallelism; with 1,000,000 classes data parallelism runs out of memory, and the hybrid keeps "
    "95% of its speed per GPU from 8 to 32 GPUs. The slides name neither the rows of a batch, nor the network, nor the "
    "optimizer, nor which V100 it was.",
)
_ASSUMED = (
    f"{ROWS} rows on each GPU, {NETWORK} between nodes of {planning.NODE} V100 of 32 GB with NVLink, float32, Adam; "
    "which ratio belongs to which number of GPUs"
)


def figure() -> Figure:
    """Simulates both numbers of classes."""
    few = planning.planned(lambda: model.build(FEW, True), planning.ADAM, config=model.CONFIG)
    gains, slowest = _gains(few)
    many = planning.planned(lambda: model.build(MANY, True), planning.ADAM, config=model.CONFIG)
    ends = [_both(many, count, NETWORK, ROWS)[1] for count in (GPUS[0], GPUS[-1])]
    plain, hybrid = _both(many, GPUS[-1], NETWORK, ROWS)
    scaling = ends[0].seconds / ends[1].seconds
    own = [gains[NETWORK, ROWS, count] for count in GPUS]
    memory = plain.devices[0].memory
    comparisons = (
        compared(f"{FEW:,} classes, 8 GPUs: hybrid / data parallel", 1.13, own[0], _ASSUMED),
        Comparison(f"{FEW:,} classes, 16 GPUs", "", f"{own[1]:.2f}", "", "as above"),
        compared(f"{FEW:,} classes, 32 GPUs", 2.43, own[2], "as above"),
        Comparison(
            f"{MANY:,} classes, 32 GPUs: data parallel",
            "out of memory",
            f"does not fit: {gigabytes(memory.peak)} of {gigabytes(memory.limit or 0)}"
            if memory.lacks
            else f"fits: {gigabytes(memory.peak)} of {gigabytes(memory.limit or 0)}",
            "",
            "as above; with momentum, which has one slot, it would fit: see the last table",
        ),
        compared(f"{MANY:,} classes, hybrid: speed per GPU, 32 / 8 GPUs", 0.95, scaling, "as above"),
    )
    values = {
        **{f"gain {count}": gain for count, gain in zip(GPUS, own)},
        "data parallel lacks": float(memory.lacks),
        "hybrid lacks": float(max(one.devices[0].memory.lacks for one in (hybrid, *ends))),
        "scaling": scaling,
    }
    return Figure(
        "ResNet-50 with very many classes", "many_classes", _TEXT, comparisons,
        (_gain_table(gains), slowest, _memory_table(many)), values,
    )  # fmt: skip


def _both(found: PlannedModel, count: int, network: str, rows: int) -> Tuple[Prediction, Prediction]:
    """A step of data parallelism, and one of the hybrid; `rows`: of each GPU."""
    machine = planning.gpus(count, network)
    strategies = planning.data_parallel(found.strategy), found.strategy
    steps = [planning.step(one, found, machine, rows * count) for one in strategies]
    return steps[0], steps[1]


def _gains(found: PlannedModel) -> Tuple[Dict[Tuple[str, int, int], float], Table]:
    """The gain by network, rows and GPUs; what the time of both is made of, for the assumed network and rows."""
    gains: Dict[Tuple[str, int, int], float] = {}
    parts: List[Sequence[str]] = [("GPUs", "strategy", "step", "computes", "only communicates", "bytes reduced")]
    for network in NETWORKS:
        for rows in ALL_ROWS:
            for count in GPUS:
                both = _both(found, count, network, rows)
                gains[network, rows, count] = both[0].seconds / both[1].seconds
                if (network, rows) == (NETWORK, ROWS):
                    parts += [_cells(count, *named) for named in zip(("data parallel", "hybrid"), both)]
    return gains, Table(f"Where the time goes, with {ROWS} rows on each GPU and {NETWORK}:", tuple(parts))


def _cells(count: int, name: str, step: Prediction) -> Sequence[str]:
    one = step.devices[0]
    reduced = sum(each.bytes for each in step.traffic if each.collective == "all-reduce")
    return (str(count), name, *map(milliseconds, (step.seconds, one.busy, one.exposed)), gigabytes(reduced))


def _gain_table(gains: Dict[Tuple[str, int, int], float]) -> Table:
    heads = ("network", "rows on each GPU", *(f"{count} GPUs" for count in GPUS))
    rows = [
        (network, str(rows), *(f"{gains[network, rows, count]:.2f}" for count in GPUS))
        for network in NETWORKS
        for rows in ALL_ROWS
    ]
    return Table(
        f"Hybrid / data parallel with {FEW:,} classes, by what was not published. The gain is the all-reduce of 0.8 GB "
        "of gradients of the head, so it shrinks with rows, which hide it, and with the bandwidth:",
        (heads, *rows),
    )


def _memory_table(found: PlannedModel) -> Table:
    rows: List[Sequence[str]] = [("optimizer", "rows on each GPU", "data parallel", "", "hybrid", "")]
    for name, slots in (("Adam", planning.ADAM), ("momentum", planning.MOMENTUM)):
        model_of = planning.with_slots(found, slots)
        for count in ALL_ROWS:
            steps = _both(model_of, GPUS[-1], NETWORK, count)
            cells = [words for step in steps for words in _fit(step)]
            rows.append((name, str(count), *cells))
    return Table(
        f"Memory of a GPU with {MANY:,} classes on 32 GPUs, of {gigabytes(32 * 2**30)} (workspaces of cuDNN and what "
        "CUDA itself takes are not counted):",
        tuple(rows),
    )


def _fit(step: Prediction) -> Sequence[str]:
    memory = step.devices[0].memory
    return gigabytes(memory.peak), "does not fit" if memory.lacks else "fits"
