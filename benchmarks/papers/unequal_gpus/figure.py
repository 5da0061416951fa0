"""Whale: V100 and P100 together, with rows by the speed of each GPU, and with stages cut for their GPUs."""

from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import tensorflow.compat.v1 as tf

from benchmarks.papers import planning
from benchmarks.papers.bert_pipeline import model as bert
from benchmarks.papers.figure import Comparison, Figure, Table, compared, milliseconds
from benchmarks.papers.many_classes import model as resnet
from epl.ir.graph import Graph
from epl.parallel.auto_partition.partition import places_in_chain
from epl.parallel.plan.strategy import Strategy
from epl.parallel.strategy import record
from epl.planner.machine.files import read_machine
from epl.planner.prediction.prediction import Prediction, predict
from epl.planner.search.candidates import in_stages
from epl.planner.search.planned_model import PlannedModel
from epl.planner.search.speed_balance import balanced, with_balance
from epl.planner.search.stage_search import StageSearch

MACHINE = "8*v100-32+8*p100-16,eth-50"
PUBLISHED = (1.3, 1.4)
PIPELINE = 1.2
STAGES = (2, 4, 8)
_ROWS_OF_MICRO_BATCH = 8  # of each pipeline
_OF_TABLE = 4  # stages, in the table of published values

_TEXT = (
    'Whale, slides of USENIX ATC 2022, "Hardware-aware" (a) and (b): on 8 V100 of 32 GB and 8 P100 of 16 GB, data '
    "parallelism with more rows on the faster GPUs is 1.3 to 1.4 times as fast as with equal rows, at the same global "
    "batch, and a pipeline with stages cut by speed is 1.2 times as fast. The slides name neither the models of each "
    "bar, nor rows, nor the network.",
    f'The machine here is `{MACHINE}`; "with rows by speed" is `auto.balance` "speed". The bound is the sum of the '
    "speeds over 16 times that of the slowest, from how long each kind of GPU computes on equal rows. The pipeline is "
    "cut by the search for [stages](planner.md#stages-cut-for-their-devices), against stages of equally many layers.",
)


class _Case(NamedTuple):
    """A model: its name, how to build it, the slots of its optimizer, rows of each GPU."""

    name: str
    build: Callable[[], tf.Tensor]
    slots: Dict[str, float]
    rows: int


class _Pipeline(NamedTuple):
    """A pipeline, and a step of it."""

    strategy: Strategy
    step: Prediction


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
    found, places = _bert_in_a_chain()
    pipelines = {count: _pipelines(found, places, count) for count in STAGES}
    gains = {count: equal.step.seconds / cut.step.seconds for count, (equal, cut) in pipelines.items()}
    values.update({f"pipeline {count}": gain for count, gain in gains.items()})
    assumed = (
        f"{_OF_TABLE} stages of {16 // _OF_TABLE} GPUs, {4 * _OF_TABLE} micro batches of {_ROWS_OF_MICRO_BATCH} rows; "
        "float32"
    )
    name = "BERT-Large, pipeline: stages cut for their GPUs / equal stages"
    comparisons.append(compared(name, PIPELINE, gains[_OF_TABLE], assumed))
    tables = (Table("The parts of the gain:", tuple(table)), _pipeline_table(pipelines))
    return Figure("Unequal GPUs", "unequal_gpus", _TEXT, tuple(comparisons), tables, values)


def _bert_in_a_chain() -> Tuple[PlannedModel, List[int]]:
    """BERT-Large in stages of equally many layers, and the place of each op in the chain that is cut into stages."""
    losses: List[tf.Tensor] = []

    def build() -> tf.Tensor:
        losses.append(bert.build(max(STAGES)))
        return losses[0]

    found = planning.planned(build, planning.ADAM)
    graph = Graph.of(tf.get_default_graph())
    forward = record.forward_pass(graph, losses[0], tf.trainable_variables())
    places = places_in_chain(graph.tf_graph, forward.view, [forward.view.nodes[node].name for node in forward.nodes])
    return found, [places[node] for node in forward.nodes]


def _pipelines(found: PlannedModel, places: Sequence[int], count: int) -> List[_Pipeline]:
    """Stages of equally many layers, and stages cut for their devices."""
    machine, devices = read_machine(MACHINE), 16 // count
    rows = _ROWS_OF_MICRO_BATCH * devices * 4 * count
    base = planning.with_settings(planning.for_job(found.strategy, 2, 8), {"pipeline.num_micro_batch": 4 * count})
    base = base._replace(settings=tuple(one._replace(origin="code") for one in base.settings))
    blocks = [op.block * count // max(STAGES) for op in base.ops]
    search = StageSearch(planning.data_parallel(base), found.costs, machine, rows, places)
    aware = search.candidates(lambda one: one.blocks[0].devices == devices, [count])[0].strategy
    return [
        _Pipeline(one, predict(one, found.costs, machine, rows))
        for one in (in_stages(base, blocks, count, devices), aware)
    ]


def _pipeline_table(pipelines: Dict[int, List[_Pipeline]]) -> Table:
    rows: List[Sequence[str]] = [("stages", "GPUs of each", "layers, equal", "step", "layers, cut", "step", "gain")]
    for count, both in pipelines.items():
        cells = [words for one in both for words in (_layers(one.strategy), milliseconds(one.step.seconds))]
        gain = both[0].step.seconds / both[1].step.seconds
        rows.append((str(count), str(16 // count), *cells, f"{gain:.2f}"))
    return Table("Layers of BERT-Large in each stage; the first half of the stages is on V100:", tuple(rows))


def _layers(strategy: Strategy) -> str:
    """The layers of each stage; each has one erf."""
    counts = [0] * len(strategy.blocks)
    for op in strategy.ops:
        counts[op.block] += op.type == "Erf"
    return " ".join(map(str, counts))
