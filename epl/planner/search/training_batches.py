"""On which batches a strategy trains: a search takes a candidate only if they are those of the script as it is.

    one stage         a run of the training op is one micro batch of each replica
    several stages    a run is a step: it cuts what is fed into micro batches, and reads a batch for each of them

Rows that are fed may be cut in any way. A batch that is read, or built in, or normalized, counts as it is:

    script as it is       4 replicas x 1 micro batch      4 batches in a step
    2 stages              2 replicas x 2 micro batches    the same
    2 stages              2 replicas x 4 micro batches    8 batches: refused
"""

from fractions import Fraction
from typing import NamedTuple, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.plan.strategy import Strategy
from epl.planner.machine.machine import Machine
from epl.planner.prediction.layout import decided, lay_out
from epl.planner.search.planned_model import PlannedModel
from epl.planner.search.speed_balance import is_open, with_balance
from epl.utils.errors import PlanError


class OtherBatchesError(PlanError):
    """A strategy would train on other batches than the script as it is."""


class TrainingBatches(NamedTuple):
    """How a strategy takes batches.

    Attributes:
      of_workers: the replicas of the model that each worker has.
      micro_batches: of a replica, in a run of the training op.
      runs: of the training op, for an update.
    """

    of_workers: Tuple[int, ...]
    micro_batches: int
    runs: int

    @property
    def replicas(self) -> int:
        """The replicas of all workers."""
        return sum(self.of_workers)

    @property
    def parts(self) -> Tuple[Fraction, ...]:
        """The part of the replicas that each worker has, and of what it reads or feeds in what is trained."""
        return tuple(Fraction(count, self.replicas) for count in self.of_workers)


def training_batches(strategy: Strategy, model: PlannedModel, machine: Machine) -> TrainingBatches:
    """How a strategy of a model takes batches on a machine.

    Raises:
      PlanError, LayoutError, MachineError, NotAvailableError: it has no layout there; as `lay_out`.
    """
    even = with_balance(strategy, "even") if is_open(strategy) else strategy
    micro_batches = int(decided(strategy)["pipeline.num_micro_batch"])
    found = lay_out(even, machine, strategy.workers * strategy.devices * micro_batches)
    owners = [device // strategy.devices for device in found.stages[0]]
    of_workers = tuple(owners.count(worker) for worker in range(strategy.workers))
    is_pipeline = len(found.stages) > 1
    return TrainingBatches(of_workers, micro_batches if is_pipeline else 1, 1 if is_pipeline else micro_batches)


def may_cut_rows(graph: Graph, model: PlannedModel) -> bool:
    """Whether a plan may cut the rows of a run as it likes.

    All of them are fed, by placeholders that leave their number open, and no batch norm computes with those of a part.
    """
    types = {op.type for op in model.strategy.ops}
    is_fed = any(op.type == "Placeholder" and op.outputs[0].partition("[")[2] != "]" for op in model.strategy.ops)
    has_norm = any("BatchNorm" in one for one in types) or bool(graph.tf_graph.get_collection(tf.GraphKeys.UPDATE_OPS))
    return is_fed and model.costs.rows is None and not types & op_types.DATA_SOURCES and not has_norm


def refuse_other_batches(batches: TrainingBatches, own: TrainingBatches, are_cut: bool) -> None:
    """Refuses a strategy that would train on other batches than the script as it is.

    Args:
      batches: how the strategy takes batches.
      own: how the script as it is does.
      are_cut: whether a plan may cut the rows of a run as it likes.

    Raises:
      OtherBatchesError: it would.
    """
    if batches.runs != own.runs:
        raise OtherBatchesError(
            f"an update would take {batches.runs} run(s) of the training op, and {own.runs} in the script as it is."
        )
    is_same = batches.replicas * batches.micro_batches == own.replicas * own.micro_batches
    if Env.get().asked_local_rows:  # the replicas of a worker divide what it reads
        is_same = batches.micro_batches == own.micro_batches
    if batches.parts != own.parts or not (are_cut or is_same):
        raise OtherBatchesError(
            "{} replica(s) x {} micro batch(es) would train on other batches than the {} x {} of the script as it "
            "is.".format(batches.replicas, batches.micro_batches, own.replicas, own.micro_batches)
        )
