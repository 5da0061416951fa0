"""What is recorded of gradient accumulation: one record for the apply_gradients calls that count micro steps together.

A training step takes several runs, the micro steps. Gradients are added up in all of them and applied in the last one.
`epl.parallel.accumulation.apply` builds that; passes find here where replicas must agree.
"""

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Boundary, Gradient
from epl.ir.graph import Graph


class AccumulatedGradient(NamedTuple):
    """A gradient that everything after its boundary sees added up.

    Attributes:
      storage: handles of the variables that keep it between runs.
      total: what they are to keep: the sum up to this run.
      reduced: boundary after which, in the last micro step, the mean is one over all replicas; None if that is done
        later.
    """

    storage: Tuple[tf.Tensor, ...]
    total: Tuple[tf.Tensor, ...]
    reduced: Optional[Boundary]


class AccumulationRecord(NamedTuple):
    """Calls of apply_gradients that count micro steps together: one, unless several share gradients.

    Attributes:
      steps: micro steps of one training step.
      counter: handle of the variable that counts them.
      position: the number of this run in its training step, from 0; an identity that may be given another source.
      sources: the gradients of this run, as boundaries that may be given another source.
      boundaries: names of the recorded boundaries that lie in the branch of the last micro step.
      accumulated: for gradients that are changed between tf.gradients and apply_gradients, by the name of their
        boundary.
    """

    steps: int
    counter: tf.Tensor
    position: tf.Tensor
    sources: Tuple[Gradient, ...]
    boundaries: FrozenSet[str]
    accumulated: Dict[str, AccumulatedGradient]


class Accumulations:
    """The records of one graph, in the order in which they were begun."""

    def __init__(self) -> None:
        self.records: List[AccumulationRecord] = []


def accumulations_of(graph: Graph) -> List[AccumulationRecord]:
    """The records of a graph, which may be added to."""
    found = graph.state_of(Accumulations) or graph.keep(Accumulations, Accumulations())
    return found.records
