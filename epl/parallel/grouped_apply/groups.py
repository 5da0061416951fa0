"""Which writes update which variable in one call of apply_gradients, and groups of variables with equal bytes.

Nothing of the graph is changed here; `epl/parallel/grouped_apply/order_groups.py` does that. Optimizers are not known
by name: a write that takes a trained variable updates it, and so does one that takes a variable which the updates of
that variable alone read (its slots), or that needs the gradient of that variable alone.
"""

from typing import Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from epl.ir import op_types
from epl.ir.dataflow import data_descendants
from epl.ir.view import GraphView, variable_bytes
from epl.utils.linear_partition import cut_chain


class Update(NamedTuple):
    """How a variable is trained; nodes of a view.

    Attributes:
      variable: the trained variable.
      writes: what writes it and its slots.
      ops: the update rule: what the writes need as far as apply_gradients or the plan built it, and the nodes at its
        rim.
      bytes: of the variable; None if its shape is not known.
    """

    variable: int
    writes: Tuple[int, ...]
    ops: FrozenSet[int]
    bytes: Optional[int]


class GroupedUpdates(NamedTuple):
    """What one call of apply_gradients writes.

    Attributes:
      of_call: the updates, in the order in which the user gave the variables.
      left_out: trained variables for which no write was found, or one that writes others, too.
    """

    of_call: Tuple[Update, ...]
    left_out: Tuple[int, ...]


def find_updates(
    view: GraphView, gradients: Dict[int, int], others: Set[int], is_own: Callable[[int], bool]
) -> GroupedUpdates:
    """The updates of one call.

    Args:
      view: of the graph.
      gradients: node of a gradient that the call applies -> node of its variable, in the order of the user.
      others: nodes of the gradients of other calls: what is computed from those and only waits for this one is theirs.
      is_own: whether a node belongs to an update rule, and so is looked beyond.
    """
    roots = set(gradients)
    reached = view.descendants(roots)  # an optimizer may order its writes by control edges
    if others:
        reached -= data_descendants(view, others, roots) - data_descendants(view, roots, others)
    writes = [node for node in view.writes() if node in reached and is_own(node)]
    trained = set(gradients.values())
    taken = {write: trained.intersection(view.variable_inputs(write)) for write in writes}
    written: Dict[int, List[int]] = {}
    for write in writes:
        if len(taken[write]) == 1:
            written.setdefault(min(taken[write]), []).append(write)
    shared = {variable for variables in taken.values() if len(variables) > 1 for variable in variables}
    readers = _readers(view, written, is_own)
    for write in writes:
        if not taken[write]:
            owner = _owner(view, write, gradients, readers, is_own)
            if owner in written:
                written[owner].append(write)
    order = list(dict.fromkeys(gradients.values()))
    found = [variable for variable in order if variable in written and variable not in shared]
    updates = []
    for variable in found:
        ops = frozenset(_region(view, written[variable], is_own))
        updates.append(Update(variable, tuple(sorted(written[variable])), ops, variable_bytes(view, variable)))
    return GroupedUpdates(tuple(updates), tuple(variable for variable in order if variable not in found))


def _readers(view: GraphView, written: Dict[int, List[int]], is_own: Callable[[int], bool]) -> Dict[int, Set[int]]:
    """Variable -> the trained variables whose updates need it."""
    readers: Dict[int, Set[int]] = {}
    for variable, writes in written.items():
        for node in _region(view, writes, is_own):
            if view.types[node] in op_types.VARIABLES:
                readers.setdefault(node, set()).add(variable)
    return readers


def _owner(
    view: GraphView,
    write: int,
    gradients: Dict[int, int],
    readers: Dict[int, Set[int]],
    is_own: Callable[[int], bool],
) -> Optional[int]:
    """The trained variable of whose update the write of another variable is a part, if it is of one."""
    owners = set().union(*[readers.get(variable, set()) for variable in view.variable_inputs(write)])
    if not owners:  # what it writes is not read: a statistic of the gradient
        owners = {gradients[node] for node in _region(view, [write], is_own) if node in gradients}
    return owners.pop() if len(owners) == 1 else None


def _region(view: GraphView, writes: Sequence[int], is_own: Callable[[int], bool]) -> Set[int]:
    """What writes need, as far as it belongs to an update rule or reads a variable; and the nodes at its rim."""

    def stop(node: int) -> bool:
        return not is_own(node) and not is_read(view, node)

    return view.ancestors(writes, stop)


def is_read(view: GraphView, node: int) -> bool:
    """Whether a node gives the value of a variable as it is."""
    return view.types[node] in op_types.READS and bool(view.variable_inputs(node))


def balanced_groups(sizes: Sequence[Optional[int]], count: int) -> List[List[int]]:
    """Cuts a list into consecutive groups of which the largest is as small as possible.

    Exact (the linear partition problem). A size that is not known counts as the mean of the others.

    Args:
      sizes: bytes of each item.
      count: the number of groups; fewer if there are fewer items.

    Returns:
      The indices of each group.
    """
    known = [size for size in sizes if size is not None]
    mean = sum(known) / len(known) if known else 1.0
    weights = [max(1.0, mean if size is None else float(size)) for size in sizes]
    cuts = cut_chain(weights, [0] * (len(weights) - 1), min(count, len(weights)), slack=0.0)
    assert cuts is not None  # there are no more groups than items
    ends = list(cuts.starts[1:]) + [len(weights)]
    return [list(range(start, end)) for start, end in zip(cuts.starts, ends)]
