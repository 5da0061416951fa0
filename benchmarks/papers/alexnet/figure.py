"""FlexFlow: AlexNet on two GPUs, the convolutions by rows and the dense layers on one of them."""

import os
from functools import partial
from typing import Dict, List, Sequence, Tuple

from benchmarks.papers import planning
from benchmarks.papers.alexnet import model
from benchmarks.papers.figure import Comparison, Figure, Table, milliseconds
from epl.planner.machine.files import read_machine
from epl.planner.machine.machine import Speed

MACHINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine.json")
CASES = ((32, 10.0), (32, 1.2), (256, 100.0))  # rows of both devices, GB/s between them
NAMES = {"parallel": "data parallel", "one": "dense layers on one device", "split": "dense layers split"}

_TEXT = (
    "FlexFlow's simulator, in a report on it (SoSe 2020, section 6.1): after 25,000 proposals the strategy for AlexNet "
    "on two GPUs has the convolutions and pooling on both, by rows, and the dense layers on GPU 0. The report names "
    "neither the GPUs, nor the link, nor the rows, nor how much faster it is.",
    "The machine here has two devices of 8 TFLOP/s ([machine.json](../benchmarks/papers/alexnet/machine.json)). Three "
    "strategies of EPL are compared; the third, dense layers split over both devices, is not in the report.",
)


def figure() -> Figure:
    """Simulates three strategies on three links."""
    seconds: Dict[Tuple[int, float], Dict[str, float]] = {case: {} for case in CASES}
    for dense in model.DENSE:
        found = planning.planned(partial(model.build, dense), planning.MOMENTUM, 2, model.config(dense))
        for rows, bandwidth in CASES:
            machine = read_machine(MACHINE)
            links = tuple(one._replace(bandwidth=Speed(bandwidth * 1e9)) for one in machine.links)
            step = planning.step(found.strategy, found, machine._replace(links=links), rows)
            seconds[rows, bandwidth][dense] = step.seconds
    table: List[Sequence[str]] = [("rows", "link", *NAMES.values(), "data parallel / the fastest")]
    for (rows, bandwidth), times in seconds.items():
        gain = times["parallel"] / min(times.values())
        words = [milliseconds(times[dense]) for dense in model.DENSE]
        table.append((str(rows), f"{bandwidth:g} GB/s", *words, f"{gain:.2f}"))
    slow = seconds[CASES[0]]
    gain = slow["parallel"] / slow["one"]
    comparisons = (
        Comparison(
            "convolutions by rows and dense layers on one device, against data parallel", "faster",
            f"{gain:.2f} times as fast", "", "8 TFLOP/s, 10 GB/s in each direction, 32 rows, float32, momentum",
        ),
    )  # fmt: skip
    values = {
        f"{rows} {bandwidth:g} {dense}": time
        for (rows, bandwidth), times in seconds.items()
        for dense, time in times.items()
    }
    tables = (Table("By link and rows:", tuple(table)),)
    return Figure("AlexNet on two GPUs", "alexnet", _TEXT, comparisons, tables, values)
