"""Whale: data parallelism on V100 and P100 together, with rows by the speed of each GPU."""

from typing import Callable, Dict, List, NamedTuple, Sequence

import tensorflow.compat.v1 as tf

from benchmarks.papers import planning
from benchmarks.papers.bert_pipeline import model as bert
from benchmarks.papers.figure import Comparison, Figure, Table, compared, milliseconds
from benchmarks.papers.many_classes import model as resnet
from epl.planner.machine.files import read_machine
from epl.planner.prediction.prediction import predict
from epl.planner.search.speed_balance import balanced, with_balance

MACHINE = "8*v100-32+8*p100-16,eth-50"
PUBLISHED = (1.3, 1.4)

_TEXT = (
    'Whale, slides of USENIX ATC 2022, "Hardware-aware" (a) and (b): on 8 V100 of 32 GB and 8 P100 of 16 GB, data '
    "parallelism with more rows on the faster GPUs is 1.3 to 1.4 times as fast as with equal rows, at the same global "
    "batch, and a pipeline with stages cut by speed is 1.2 times as fast. The slides name neither the models of each "
    "bar, nor rows, nor the network.",
    f'The machine here is `{MACHINE}`; "with rows by speed" is `auto.balance` "speed". The bound is the sum of the '
    "speeds over 16 times that of the slowest, from how long each kind of GPU computes on equal rows.",
)


class _Case(NamedTuple):
    """A model: its name, how to build it, the slots of its optimizer, rows of each GPU."""

    name: str
    build: Callable[[], tf.Tensor]
    slots: Dict[str, float]
    rows: int


_CASES = (
    _Case("ResNet-50", lambda: resnet.build(1000, False), planning.MOMENTUM, 64),
    _Case("BERT-Large", lambda: bert.build(1), planning.ADAM, 24),
)


def figure() -> Figure:
    """Simulates data parallelism with both models."""
    comparisons: List[Comparison] = []
    values: Dict[str, float] = {}
    table: List[Sequence[str]] = [
        ("model", "rows on each", "equal rows", "rows by speed", "V100, P100", "gain of computing alone", "bound")
    ]
    for case in _CASES:
        found = planning.planned(case.build, case.slots)
        machine, rows = read_machine(MACHINE), 16 * case.rows
        even = with_balance(planning.for_job(found.strategy, 2, 8), "even")
        by_speed = balanced(with_balance(even, "speed"), found.costs, machine, rows)
        steps = [predict(one, found.costs, machine, rows) for one in (even, by_speed)]
        busy = [[one.busy for one in step.devices] for step in steps]
        bound = (max(busy[0]) / min(busy[0]) + 1) / 2
        computing = max(busy[0]) / max(busy[1])
        gain = steps[0].seconds / steps[1].seconds
        values.update({f"{case.name} gain": gain, f"{case.name} computing": computing, f"{case.name} bound": bound})
        nearest = min(max(gain, PUBLISHED[0]), PUBLISHED[1])
        assumed = f"{case.rows} rows on each GPU; float32"
        row = compared(f"{case.name}, data parallel: rows by speed / equal rows", nearest, gain, assumed)
        comparisons.append(row._replace(published="{} to {}".format(*PUBLISHED)))
        each = ", ".join(str(one.rows) for one in sorted(steps[1].devices, key=lambda one: -one.rows))
        times = [milliseconds(step.seconds) for step in steps]
        table.append((case.name, str(case.rows), *times, each, f"{computing:.2f}", f"{bound:.2f}"))
    comparisons.append(
        Comparison(
            "BERT-Large, pipeline: stages by speed / equal stages",
            "1.2",
            "not predicted",
            "",
            "the planner does not cut stages by the speed of their devices yet",
        )
    )
    tables = (Table("What the gain is made of:", tuple(table)),)
    return Figure("Data parallelism on unequal GPUs", "unequal_gpus", _TEXT, tuple(comparisons), tables, values)
