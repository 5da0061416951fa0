"""Races of the script itself: a step reads and writes a variable, with no order between the read and the write.

    codebook --> gather --> loss             TensorFlow may run the gather before or after the assign: the numbers of
    codebook <-- assign <-- sums of rows     one script differ from run to run, on one device as well

The values of trained variables are read before their updates, as updates wait for gradients. Other writes are ordered
in the same way by order_step_writes.py: what the step reads of the variable comes first, where the script leaves it
open.
"""

from typing import AbstractSet, Dict, Iterable, List, NamedTuple, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import shown_variables
from epl.ir.view import GraphView
from epl.utils.source_line import user_line

# They take a variable, and do not look at its value.
_NO_READS = op_types.WRITES | op_types.STATE_QUERIES


class Race(NamedTuple):
    """A write, and the reads of the same variable that may run before or after it; nodes of a view.

    Attributes:
      variable, write: see above.
      reads: in order.
    """

    variable: int
    write: int
    reads: Tuple[int, ...]


def find_races(view: GraphView, writes: Iterable[int], step: AbstractSet[int]) -> List[Race]:
    """The races between writes and what a step reads.

    Args:
      view: of the graph, with all that orders the ops in its producers.
      writes: nodes that write variables.
      step: nodes that the step needs.
    """
    written = {write: set(view.variable_inputs(write)) for write in writes}
    variables: Set[int] = set().union(*written.values())
    readers = _readers(view, variables, step)
    found = []
    for write, of_write in sorted(written.items()):
        for variable in sorted(of_write):
            others = readers.get(variable, set())
            if others:
                others = others - view.ancestors([write])
            reads = tuple(read for read in sorted(others) if write not in view.ancestors([read]))
            if reads:
                found.append(Race(variable, write, reads))
    return found


def describe_race(tf_graph: tf.Graph, view: GraphView, race: Race) -> str:
    """A race in words, with the lines of the script."""
    variable, write, read = (view.nodes[node].name for node in (race.variable, race.write, race.reads[0]))
    return "{} writes `{}`, and {} reads it".format(
        user_line(tf_graph.get_operation_by_name(write)), variable, user_line(tf_graph.get_operation_by_name(read))
    )


def _readers(view: GraphView, variables: AbstractSet[int], step: AbstractSet[int]) -> Dict[int, Set[int]]:
    """The nodes of a step that read each variable; an identity of a reference shows the memory, its consumers read."""
    shows = {node: variable for node, variable in shown_variables(view).items() if variable in variables}
    shows.update((node, node) for node in variables)
    found: Dict[int, Set[int]] = {}
    for node, variable in shows.items():
        for consumer in view.consumers()[node]:
            if consumer in step and consumer not in shows and view.types[consumer] not in _NO_READS:
                if view.takes_data(consumer, node):
                    found.setdefault(variable, set()).add(consumer)
    return found
