"""Gradient accumulation: with one stage, a training step takes `pipeline.num_micro_batch` runs, the micro steps.

    run 0 .. M-2                                run M-1
    gradient ---> assign or add ---> sum        gradient --+
                                                    sum ---+--> / M --> apply, global step + 1

It is built while apply_gradients is recorded, around the optimizer's own call, which goes into the branch of a tf.cond
that the last micro step takes. Gradients that the user changes on the way (clips, for example) are added up where
tf.gradients returned them, so that the change is made to the sum. What replicas must agree on is in the record
(`epl.ir.accumulation`); that they do is left to the passes.

Counters and sums need no initializer: a counter that was never written is 0, and the first micro step overwrites the
sums. So they are in no collection and in no checkpoint, and a new session begins a new training step.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.accumulation import Accumulation, Held
from epl.ir.boundary import boundary, source_of, variable_name
from epl.ir.graph import Gradient, Graph, first_tensor
from epl.parallel.stages import plan_stages
from epl.runtime import gradient_sums
from epl.runtime.gradient_sums import Storage
from epl.utils import tf_compat
from epl.utils.errors import EplError, PlanError

_HOST = "/device:CPU:0"  # of what decides about control flow

Pair = Tuple[Optional[Gradient], Any]
Boundary = Tuple[str, Gradient]
Steps = NamedTuple("Steps", [("count", int), ("mean_of", int)])
Steps.__doc__ = """Micro steps of a training step.

Attributes:
  count: how many.
  mean_of: what their sum is divided by: the same, or 1 with the reduction method "sum".
"""

_Late = NamedTuple("_Late", [("place", int), ("source", Gradient), ("storage", Storage)])
_Late.__doc__ = """A gradient that is added up where it is applied.

Attributes:
  place: its index among the pairs.
  source: the gradient of this run.
  storage: where the sum is kept.
"""


def steps_of(graph: Graph) -> Steps:
    """The micro steps of a training step of this graph, as annotated so far; a pipeline does its step in one run."""
    config = Env.get().config
    count = config.pipeline.num_micro_batch
    if count > 1 and not _is_one_stage(graph):
        count = 1
    return Steps(count, 1 if config.communication.gradients_reduce_method == "sum" else count)


def _is_one_stage(graph: Graph) -> bool:
    cluster = Env.get().cluster
    if len(graph.taskgraphs) == 1 or cluster is None:
        return len(graph.taskgraphs) == 1
    try:
        return len(plan_stages(graph, cluster)[0]) == 1
    except EplError:
        return False  # the plan will be refused for it


def returned_gradients(graph: Graph) -> Dict[str, Boundary]:
    """(Variable, gradient) that tf.gradients has returned to the user, by the name of the gradient's op."""
    own = {name for accumulation in graph.accumulations for name in accumulation.boundaries}
    found = {first_tensor(bound[1]).op.name: bound for call in graph.gradient_calls for bound in call.boundaries}
    found = {name: bound for name, bound in found.items() if name not in own}
    for accumulation in graph.accumulations:
        found.update(accumulation.replaced)
    return found


def accumulated_apply(
    graph: Graph, pairs: Sequence[Pair], changed: bool, steps: Steps, apply: Callable[[List[Pair]], Any]
) -> tf.Operation:
    """Adds gradients up over several runs, and applies their mean in the last one.

    Args:
      graph: what is known of the default graph.
      pairs: what the user gives to apply_gradients.
      changed: whether some gradient is another than tf.gradients returned.
      steps: the runs.
      apply: applies and records pairs.

    Returns:
      The training op of one run.

    Raises:
      PlanError: the steps cannot be counted.
    """
    train_ops = tf.get_collection_ref(tf.GraphKeys.TRAIN_OP)
    user_scope = graph.tf_graph.get_name_scope()

    def apply_as_user(means: List[Pair]) -> tf.Operation:
        """Under the names that the ops have without accumulation: variables are named by them."""
        with tf.name_scope(user_scope + "/" if user_scope else None):
            result = apply(means)
        return tf.group(*[value for value in tf.nest.flatten(result) if value is not None])

    before = len(train_ops)
    with tf.name_scope("epl_accumulation"), control_flow_v1():
        early = _early(graph, pairs, changed)
        accumulation = _find_or_make(graph, early, steps)
        accumulation = _hold(graph, accumulation, early, steps)
        train_op = _build(graph, accumulation, pairs, early, steps, apply_as_user)
    train_ops[before:] = [train_op] if len(train_ops) > before else []
    return train_op


def _build(
    graph: Graph,
    accumulation: Accumulation,
    pairs: Sequence[Pair],
    early: Dict[str, Boundary],
    steps: Steps,
    apply: Callable[[List[Pair]], tf.Operation],
) -> tf.Operation:
    """The two branches of a run, and the counting."""
    held = [accumulation.held[name] for name in early]
    late = _late(graph, pairs, early)
    counters, checks = [accumulation.counter], []
    if early:
        own, position = _counter()
        counters.append(own)
        checks.append(_check_runs(accumulation.position, position))
    is_first, is_last = _first_and_last(accumulation.position, steps)

    def last() -> tf.Operation:
        return apply(_with_means(pairs, late, steps))

    def not_last() -> tf.Operation:
        with tf.control_dependencies(_begun(accumulation.counter, held, late)):
            writes = [gradient_sums.write(one.storage, one.total) for one in held]
            return tf.group(*(writes + ([_add(late, is_first)] if late else [])))

    with tf.control_dependencies(checks):
        done = tf.cond(is_last, last, not_last, name="micro_step")
    _refuse_loop(done.op)
    _note_late(graph, accumulation, pairs, late, counters)
    reduced = tuple(one.reduced for one in held if one.reduced is not None)
    if reduced:
        graph.apply_calls[-1] = graph.apply_calls[-1]._replace(boundaries=reduced)
    with tf.control_dependencies([done]), tf.device(_HOST):
        following = (accumulation.position + 1) % steps.count
        advanced = [tf.raw_ops.AssignVariableOp(resource=counter, value=following) for counter in counters]
        return tf.group(*advanced, name="train_op")


# ---- Counting


def _counter() -> Tuple[tf.Tensor, tf.Tensor]:
    """A variable that counts micro steps, and its value: 0 before it was ever written."""
    with _at_start(), tf.device(_HOST):
        handle = gradient_sums.new_variable(tf.int64, [])
        position = tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
            lambda: tf.constant(0, tf.int64),
        )
        position.set_shape([])
        return handle, tf.identity(tf.maximum(position, 0), name="position")


def _begun(counter: tf.Tensor, held: Sequence[Held], late: Sequence[_Late]) -> List[tf.Operation]:
    """Marks the counter until the micro step is done: after one that failed half-way the training step begins anew.

    It is marked when there are gradients, so that a run which finds no more data leaves everything as it was.
    """
    firsts = [one.total[0] for one in held[:1]] + [first_tensor(one.source) for one in late[:1]]
    with tf.control_dependencies(firsts), tf.device(_HOST):
        return [tf.raw_ops.AssignVariableOp(resource=counter, value=tf.constant(-1, tf.int64))]


def _first_and_last(position: tf.Tensor, steps: Steps) -> Tuple[tf.Tensor, tf.Tensor]:
    with _at_start(), tf.device(_HOST):
        return tf.equal(position, 0), tf.equal(position, steps.count - 1)


def _check_runs(position: tf.Tensor, own: tf.Tensor) -> tf.Operation:
    """Optimizers that share gradients count together: one that was left out in a run must not go on."""
    with _at_start(), tf.device(_HOST):
        text = (
            "An optimizer did not run in each micro step of its training step, and shares gradients that are changed "
            "(clipped together, for example) with another optimizer. Run both in the same Session.run, or change and "
            "apply the gradients of each apart."
        )
        together = tf.logical_or(tf.equal(position, 0), tf.equal(position, own))
        return tf.raw_ops.Assert(condition=together, data=[tf.constant(text)], summarize=3)


def _find_or_make(graph: Graph, early: Dict[str, Boundary], steps: Steps) -> Accumulation:
    """The record of those that share gradients in `early`, else a new one."""
    sharing = [accumulation for accumulation in graph.accumulations if not early.keys().isdisjoint(accumulation.held)]
    if len(sharing) > 1:
        raise PlanError(
            "apply_gradients was given gradients that are changed together ({}, for example), and two earlier calls "
            "count their micro steps apart with some of them. With pipeline.num_micro_batch > 1, change the gradients "
            "of all optimizers together, or those of each apart.".format(next(iter(early.values()))[0])
        )
    if sharing:
        return sharing[0]
    counter, position = _counter()
    storage = frozenset([counter.op.name])
    accumulation = Accumulation(steps.count, counter, position, (), frozenset(), storage, {}, {})
    graph.accumulations.append(accumulation)
    return accumulation


# ---- Gradients that are changed between tf.gradients and apply_gradients


def _early(graph: Graph, pairs: Sequence[Pair], changed: bool) -> Dict[str, Boundary]:
    """The boundaries of tf.gradients that must be added up, not the gradients that are applied."""
    returned = returned_gradients(graph)
    found = upstream(returned, [first_tensor(gradient).op for gradient, _ in pairs if gradient is not None])
    held = {name for accumulation in graph.accumulations for name in accumulation.held}
    return found if changed or held & set(found) else {}


def upstream(returned: Dict[str, Boundary], ops: Sequence[tf.Operation]) -> Dict[str, Boundary]:
    """Those of `returned` that `ops` are computed from."""
    first_id = min([tf_compat.op_id(first_tensor(gradient).op) for _, gradient in returned.values()] or [0])
    found = {}
    seen: Set[tf.Operation] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op in seen or tf_compat.op_id(op) < first_id:
            continue
        seen.add(op)
        if op.name in returned:
            found[op.name] = returned[op.name]
        else:
            stack.extend(tensor.op for tensor in op.inputs)
    return {name: found[name] for name in returned if name in found}


def _hold(graph: Graph, accumulation: Accumulation, early: Dict[str, Boundary], steps: Steps) -> Accumulation:
    """Makes everything behind the boundaries `early` compute with the mean up to this run."""
    names = [name for name in early if name not in accumulation.held]
    if not names:
        return accumulation
    _refuse_branches([early[name] for name in names])
    is_first, is_last = _first_and_last(accumulation.position, steps)
    with _at_start():
        sources = [boundary(source_of(early[name][1])) for name in names]
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
        held={name: Held(*values) for name, values in zip(names, zip(storage, totals, reduced))},
        storage=[handle.op.name for kept in storage for handle in kept],
        replaced={name: (early[name], bound[1]) for name, bound in zip(names, reduced) if bound is not None},
    )


def _for_all_reduce(is_last: tf.Tensor, means: List[Gradient]) -> Tuple[List[Gradient], List[Gradient]]:
    """The gradients behind a branch that the last micro step takes, and the boundaries in that branch."""
    inner: List[Gradient] = []

    def last() -> List[Gradient]:
        inner.extend(boundary(mean) for mean in means)
        return inner

    def not_last() -> List[Gradient]:
        return [boundary(mean) for mean in means]

    return tf.cond(is_last, last, not_last, name="all_reduce", strict=True), inner


def _give_source(bound: Gradient, source: Gradient) -> None:
    if isinstance(bound, tf.IndexedSlices):
        bound.values.op._update_input(0, source.values)
        bound.indices.op._update_input(0, source.indices)
    else:
        bound.op._update_input(0, source)


# ---- Gradients that are applied as tf.gradients returned them, or that come from elsewhere


def _late(graph: Graph, pairs: Sequence[Pair], early: Dict[str, Boundary]) -> List[_Late]:
    """Those of the pairs that `early` has no part in; in the order in which the backward pass computes them."""
    returned = returned_gradients(graph)
    found = []
    for place, (gradient, variable) in enumerate(pairs):
        if gradient is None or (early and upstream(early, [first_tensor(gradient).op])):
            continue
        direct = first_tensor(gradient).op.name in returned
        source = boundary(source_of(gradient) if direct else gradient)
        parts = gradient_sums.parts_of(source)
        found.append(_Late(place, source, _storage(variable_name(variable), parts, graph)))
    return sorted(found, key=lambda one: readiness(one.source))


def _with_means(pairs: Sequence[Pair], late: Sequence[_Late], steps: Steps) -> List[Pair]:
    """The pairs with the mean over all micro steps in place of this one's gradient."""
    result = list(pairs)
    for one in late:
        with _beside(one.storage):
            total = gradient_sums.total(one.storage, gradient_sums.parts_of(one.source))
            mean = gradient_sums.gradient_of(gradient_sums.mean_of(total, steps.mean_of), one.source)
        result[one.place] = (mean, pairs[one.place][1])
    return result


def _add(late: Sequence[_Late], is_first: tf.Tensor) -> tf.Tensor:
    def write() -> tf.Operation:
        return tf.group(*[gradient_sums.write(one.storage, gradient_sums.parts_of(one.source)) for one in late])

    def add() -> tf.Operation:
        added = []
        for one in late:
            with _beside(one.storage):
                added.append(gradient_sums.add(one.storage, gradient_sums.parts_of(one.source)))
        return tf.group(*added)

    return tf.cond(is_first, write, add, name="first")


def _note_late(
    graph: Graph,
    accumulation: Accumulation,
    pairs: Sequence[Pair],
    late: Sequence[_Late],
    counters: Sequence[tf.Tensor],
) -> None:
    """Records what is applied in the last micro step, in place of what tf.gradients returned."""
    returned = returned_gradients(graph)
    applied = dict(graph.apply_calls[-1].boundaries)
    replaced = {}
    for one in late:
        gradient, variable = pairs[one.place]
        name = first_tensor(gradient).op.name
        bound = applied.get(variable_name(variable) or "")
        if name in returned and bound is not None:
            replaced[name] = (returned[name], bound)
    _update(
        graph,
        accumulation,
        sources=tuple(one.source for one in late),
        held={},
        storage=[handle.op.name for one in late for handle in one.storage] + [c.op.name for c in counters],
        replaced=replaced,
        boundaries=[first_tensor(gradient).op.name for _, gradient in graph.apply_calls[-1].boundaries],
    )


# ---- Shared by both


def _storage(variable: Optional[str], parts: gradient_sums.Parts, graph: Graph) -> Storage:
    """Where the sum of a gradient is kept: beside its variable."""
    op = parts[0].op if variable is None else graph.tf_graph.get_operation_by_name(variable)
    with _at_start(), graph.tf_graph.colocate_with(op, ignore_existing=True):
        return gradient_sums.new_storage(parts)


def _beside(storage: Storage) -> Any:
    return storage[0].graph.colocate_with(storage[0].op, ignore_existing=True)


def _at_start() -> Any:
    """Ops made inside wait for nothing but their inputs, and are in no branch."""
    return tf.control_dependencies(None)


def readiness(gradient: Gradient) -> int:
    """Creation number of the op that computes a gradient: backward ops are created in the order in which they run."""
    op = first_tensor(gradient).op
    while op.type == "Identity":
        op = op.inputs[0].op
    return tf_compat.op_id(op)


def _refuse_branches(bounds: Sequence[Boundary]) -> None:
    for variable, gradient in bounds:
        if tf_compat.control_flow_context_of(first_tensor(gradient).op) is not None:
            raise PlanError(
                "The gradient of {} is computed by tf.gradients inside a tf.cond or tf.while_loop, and changed before "
                "it is applied. With pipeline.num_micro_batch > 1, call tf.gradients outside of it.".format(variable)
            )


def _refuse_loop(op: tf.Operation) -> None:
    if tf_compat.is_in_while(tf_compat.control_flow_context_of(op)):
        raise PlanError(
            "apply_gradients was called inside a tf.while_loop. With pipeline.num_micro_batch > 1 one Session.run is "
            "one micro step: apply gradients once per run, outside of the loop."
        )


@contextlib.contextmanager
def control_flow_v1() -> Iterator[None]:
    """tf.cond makes ops of the graph itself, in which gradients can be given another source."""
    enabled = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        if enabled:
            tf.enable_control_flow_v2()


def _update(
    graph: Graph,
    accumulation: Accumulation,
    sources: Tuple[Gradient, ...],
    held: Dict[str, Held],
    storage: Sequence[str],
    replaced: Dict[str, Tuple[Boundary, Gradient]],
    boundaries: Sequence[str] = (),
) -> Accumulation:
    """Adds to a record of `graph`; where gradients were replaced, the recorded calls of tf.gradients follow."""
    (index,) = [i for i, one in enumerate(graph.accumulations) if one.counter is accumulation.counter]
    known = graph.accumulations[index]
    inner = [first_tensor(gradient).op.name for _, gradient in replaced.values()]
    graph.accumulations[index] = known._replace(
        sources=known.sources + sources,
        held=dict(known.held, **held),
        storage=known.storage.union(storage),
        boundaries=known.boundaries.union(boundaries, inner),
        replaced=dict(known.replaced, **{name: bound for name, (bound, _) in replaced.items()}),
    )
    for name, (bound, gradient) in replaced.items():
        _replace_in_calls(graph, name, (bound[0], gradient))
    return graph.accumulations[index]


def _replace_in_calls(graph: Graph, name: str, new: Boundary) -> None:
    for i, call in enumerate(graph.gradient_calls):
        names = [first_tensor(gradient).op.name for _, gradient in call.boundaries]
        if name in names:
            others = tuple(bound for bound in call.boundaries if first_tensor(bound[1]).op.name != name)
            graph.gradient_calls[i] = call._replace(boundaries=others + (new,))
            return
    last = graph.gradient_calls[-1]  # it took the place of another already
    graph.gradient_calls[-1] = last._replace(boundaries=last.boundaries + (new,))
