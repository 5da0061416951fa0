"""Where gradients are added up over micro steps, and what is recorded of it.

    changed on the way:    gradient --> [sum so far] --> boundary of tf.gradients --> clip --> apply
    applied as they are:   gradient --> boundary of tf.gradients      [sum] --> apply

Gradients that the user changes between tf.gradients and apply_gradients are added up early, where tf.gradients returned
them, so that the change is made to the sum; the others late, where they are applied, which needs less memory. The runs,
and who counts them, are left to `epl.parallel.accumulation.apply`.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.gradient import Boundary, Gradient
from epl.ir.gradient_boundary import (
    boundary,
    inputs_for,
    readiness,
    returned_gradients,
    source_of,
    upstream,
    variable_name,
)
from epl.ir.graph import Graph, first_tensor
from epl.parallel.accumulation import sums as gradient_sums
from epl.parallel.accumulation.counters import HOST, at_start
from epl.parallel.accumulation.record import AccumulatedGradient, AccumulationRecord, accumulations_of
from epl.parallel.accumulation.sums import Storage
from epl.parallel.plan.replica_groups import replica_groups
from epl.utils import tf_compat
from epl.utils.errors import PlanError

Pair = Tuple[Optional[Gradient], Any]


class Steps(NamedTuple):
    """Micro steps of a training step.

    Attributes:
      count: how many.
      mean_of: what their sum is divided by: the same, or 1 with the reduction method "sum".
    """

    count: int  # type: ignore[assignment]  # hides a method of tuple
    mean_of: int


class Late(NamedTuple):
    """A gradient that is added up where it is applied.

    Attributes:
      place: its index among the pairs.
      source: the gradient of this run.
      storage: where the sum is kept.
    """

    place: int
    source: Gradient
    storage: Storage


# ---- Gradients that are changed between tf.gradients and apply_gradients


def early_boundaries(graph: Graph, pairs: Sequence[Pair], changed: bool) -> Dict[str, Boundary]:
    """The boundaries of tf.gradients that must be added up, not the gradients that are applied."""
    returned = returned_gradients(graph)
    found = upstream(returned, [first_tensor(gradient).op for gradient, _ in pairs if gradient is not None])
    accumulated = {name for accumulation in accumulations_of(graph) for name in accumulation.accumulated}
    return found if changed or accumulated & set(found) else {}


def hold(
    graph: Graph, accumulation: AccumulationRecord, early: Dict[str, Boundary], steps: Steps
) -> AccumulationRecord:
    """Makes everything after the boundaries `early` compute with the mean up to this run."""
    names = [name for name in early if name not in accumulation.accumulated]
    if not names:
        return accumulation
    _refuse_branches([early[name] for name in names])
    is_first, is_last = first_and_last(accumulation.position, steps)
    with at_start():
        sources = [_of_run(graph, early[name][0], source_of(early[name][1])) for name in names]
        parts = [gradient_sums.parts_of(source) for source in sources]
        storage = [_storage(early[name][0], part, graph) for name, part in zip(names, parts)]
        totals = tf.cond(
            is_first,
            lambda: [tuple(tf.identity(tensor) for tensor in part) for part in parts],
            lambda: [gradient_sums.total(kept, part, add_rows=False) for kept, part in zip(storage, parts)],
            strict=True,
        )
        means = [
            gradient_sums.gradient_of(gradient_sums.mean_of(total, steps.mean_of), source)
            for total, source in zip(totals, sources)
        ]
        reduced: List[Optional[Boundary]] = [None] * len(names)
        if Env.get().config.communication.clip_after_allreduce:
            means, inner = _for_all_reduce(is_last, means)
            reduced = [(early[name][0], gradient) for name, gradient in zip(names, inner)]
    for name, mean in zip(names, means):
        _give_source(early[name][1], mean)
    return _update(
        graph,
        accumulation,
        sources=tuple(sources),
        accumulated={name: AccumulatedGradient(*values) for name, values in zip(names, zip(storage, totals, reduced))},
        storage=[handle.op.name for kept in storage for handle in kept],
        replaced={name: (early[name], bound[1]) for name, bound in zip(names, reduced) if bound is not None},
    )


def _for_all_reduce(is_last: tf.Tensor, means: List[Gradient]) -> Tuple[List[Gradient], List[Gradient]]:
    """The gradients after a branch that the last micro step takes, and the boundaries in that branch."""
    inner: List[Gradient] = []

    def last() -> List[Gradient]:
        inner.extend(boundary(mean) for mean in means)
        return inner

    def not_last() -> List[Gradient]:
        return [boundary(mean) for mean in means]

    return tf.cond(is_last, last, not_last, name="all_reduce", strict=True), inner


def _give_source(bound: Gradient, source: Gradient) -> None:
    for op, tensor in inputs_for(bound, source):
        tf_compat.set_input(op, 0, tensor)


# ---- Gradients that are applied as tf.gradients returned them, or that come from elsewhere


def late_gradients(graph: Graph, pairs: Sequence[Pair], early: Dict[str, Boundary]) -> List[Late]:
    """Those of the pairs that `early` has no part in; in the order in which the backward pass computes them."""
    returned = returned_gradients(graph)
    found = []
    for place, (gradient, variable) in enumerate(pairs):
        if gradient is None or (early and upstream(early, [first_tensor(gradient).op])):
            continue
        direct = first_tensor(gradient).op.name in returned
        name = variable_name(variable)
        source = _of_run(graph, name, source_of(gradient) if direct else gradient)
        found.append(Late(place, source, _storage(name, gradient_sums.parts_of(source), graph)))
    return sorted(found, key=lambda one: readiness(one.source))


def with_means(pairs: Sequence[Pair], late: Sequence[Late], steps: Steps) -> List[Pair]:
    """The pairs with the mean over all micro steps in place of this one's gradient."""
    result = list(pairs)
    for one in late:
        with _beside(one.storage):
            total = gradient_sums.total(one.storage, gradient_sums.parts_of(one.source))
            mean = gradient_sums.gradient_of(gradient_sums.mean_of(total, steps.mean_of), one.source)
        result[one.place] = (mean, pairs[one.place][1])
    return result


def add_late(late: Sequence[Late], is_first: tf.Tensor) -> tf.Tensor:
    """Adds the gradients of this run to their sums; those of the first run are written over them."""

    def write() -> tf.Operation:
        return tf.group(*[gradient_sums.write(one.storage, gradient_sums.parts_of(one.source)) for one in late])

    def add() -> tf.Operation:
        added = []
        for one in late:
            with _beside(one.storage):
                added.append(gradient_sums.add(one.storage, gradient_sums.parts_of(one.source)))
        return tf.group(*added)

    return tf.cond(is_first, write, add, name="first")


def note_late(
    graph: Graph,
    accumulation: AccumulationRecord,
    pairs: Sequence[Pair],
    late: Sequence[Late],
    counters: Sequence[tf.Tensor],
) -> None:
    """Records what is applied in the last micro step, in place of what tf.gradients returned."""
    returned = returned_gradients(graph)
    applied = dict(graph.apply_calls[-1].boundaries)
    replaced = {}
    for one in late:
        gradient, variable = pairs[one.place]
        assert gradient is not None  # else it were not late
        name = first_tensor(gradient).op.name
        bound = applied.get(variable_name(variable) or "")
        if name in returned and bound is not None:
            replaced[name] = (returned[name], bound)
    _update(
        graph,
        accumulation,
        sources=tuple(one.source for one in late),
        accumulated={},
        storage=[handle.op.name for one in late for handle in one.storage] + [c.op.name for c in counters],
        replaced=replaced,
        boundaries=[first_tensor(gradient).op.name for _, gradient in graph.apply_calls[-1].boundaries],
    )


# ---- Shared by both


def first_and_last(position: tf.Tensor, steps: Steps) -> Tuple[tf.Tensor, tf.Tensor]:
    """Whether this run is the first, and the last, of its training step."""
    with at_start(), tf.device(HOST):
        return tf.equal(position, 0), tf.equal(position, steps.count - 1)


def _of_run(graph: Graph, variable: Optional[str], gradient: Gradient) -> Gradient:
    """The gradient of this run, as a boundary that may be given another source."""
    source = boundary(gradient)
    ranks = replica_groups(graph)
    if ranks is not None and variable is not None:
        ranks.note_gradient(variable, source)
    return source


def _storage(variable: Optional[str], parts: gradient_sums.Parts, graph: Graph) -> Storage:
    """Where the sum of a gradient is kept: beside its variable."""
    op = parts[0].op if variable is None else graph.tf_graph.get_operation_by_name(variable)
    with at_start(), graph.tf_graph.colocate_with(op, ignore_existing=True):
        return gradient_sums.new_storage(parts)


def _beside(storage: Storage) -> Any:
    return storage[0].graph.colocate_with(storage[0].op, ignore_existing=True)


def _refuse_branches(bounds: Sequence[Boundary]) -> None:
    for variable, gradient in bounds:
        if tf_compat.control_flow_context_of(first_tensor(gradient).op) is not None:
            raise PlanError(
                "The gradient of {} is computed by tf.gradients inside a tf.cond or tf.while_loop, and changed before "
                "it is applied. With pipeline.num_micro_batch > 1, call tf.gradients outside of it.".format(variable)
            )


def _update(
    graph: Graph,
    accumulation: AccumulationRecord,
    sources: Tuple[Gradient, ...],
    accumulated: Dict[str, AccumulatedGradient],
    storage: Sequence[str],
    replaced: Dict[str, Tuple[Boundary, Gradient]],
    boundaries: Sequence[str] = (),
) -> AccumulationRecord:
    """Adds to a record of `graph`; where gradients were replaced, the recorded calls of tf.gradients follow."""
    records = accumulations_of(graph)
    (index,) = [i for i, one in enumerate(records) if one.counter is accumulation.counter]
    known = records[index]
    inner = known.boundaries.union(boundaries, [first_tensor(gradient).op.name for _, gradient in replaced.values()])
    records[index] = known._replace(
        sources=known.sources + sources, accumulated=dict(known.accumulated, **accumulated), boundaries=inner
    )
    graph.run_gradients += sources
    graph.local_variables.update(storage)
    graph.inner_boundaries |= inner
    for name, (bound, gradient) in replaced.items():
        graph.moved_boundaries[name] = bound
        _replace_in_calls(graph, name, (bound[0], gradient))
    return records[index]


def _replace_in_calls(graph: Graph, name: str, new: Boundary) -> None:
    for i, call in enumerate(graph.gradient_calls):
        names = [first_tensor(gradient).op.name for _, gradient in call.boundaries]
        if name in names:
            others = tuple(bound for bound in call.boundaries if first_tensor(bound[1]).op.name != name)
            graph.gradient_calls[i] = call._replace(boundaries=others + (new,))
            return
    last = graph.gradient_calls[-1]  # it took the place of another already
    graph.gradient_calls[-1] = last._replace(boundaries=last.boundaries + (new,))
