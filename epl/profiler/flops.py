"""FlopsProfilerHook: how much a step computes, by name scope, op type or op."""

import logging
from typing import Any, Dict, Iterable, List, Sequence, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.profiler import output_files, step_flops
from epl.profiler.roles import RoleKind
from epl.profiler.step_flops import OpFlops, StepFlops
from epl.profiler.traced_runs import TracedRunsHook

logger = logging.getLogger("epl")

CMDS = ("scope", "op", "graph")
_PASSES = (RoleKind.FORWARD, RoleKind.BACKWARD, RoleKind.UPDATE)  # known where EPL recorded the model
_SMALLEST_SHARE = 0.01  # a scope with a smaller share is not listed
_LONGEST_LIST = 50  # of ops


class FlopsProfilerHook(TracedRunsHook):
    """Logs the FLOPs of the first run of a session: those of the model, each op once, and those of the whole step.

        tf.train.MonitoredTrainingSession(hooks=[FlopsProfilerHook("scope")])

    In a job of several workers, worker 0 logs them: the model is the same in all.
    """

    _partition_graphs = True

    def __init__(self, cmds: Union[str, Sequence[str]] = "scope") -> None:
        """Nothing is traced before the first run.

        Args:
          cmds: how the FLOPs of the model are listed: by "scope", "op" (type) or "graph" (single ops), or by several,
            as a list or separated by commas.

        Raises:
          ValueError: `cmds` is something else.
        """
        super().__init__(save_steps=1, max_steps=1)
        self._cmds = _checked(cmds)

    def before_run(self, run_context: Any) -> Any:
        """Asks for a trace of the first run, on worker 0."""
        if not output_files.is_first_worker():
            return None
        return super().before_run(run_context)

    def profile(self, session: tf.Session, metadata: tf.RunMetadata, run: int) -> None:
        """Logs the tables."""
        profile_step(session, metadata, self._cmds)


def profile_flops(sess: tf.Session, run_metadata: tf.RunMetadata, cmds: Union[str, Sequence[str]] = "scope") -> int:
    """Logs the FLOPs of a traced step, as `profile_step`.

    Args:
      sess, run_metadata, cmds: as for `profile_step`.

    Returns:
      The FLOPs of the model, which count each op once, as for one micro batch on one device.

    Raises:
      ValueError: unknown `cmds`, or the run was not traced as needed.
    """
    return int(step_flops.total(step_flops.of_model(profile_step(sess, run_metadata, cmds))))


def profile_step(
    sess: tf.Session, run_metadata: tf.RunMetadata, cmds: Union[str, Sequence[str]] = "scope"
) -> StepFlops:
    """Logs the FLOPs of a traced step.

    Args:
      sess: the session that ran it.
      run_metadata: of a run with `tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)`.
      cmds: as in `FlopsProfilerHook`.

    Returns:
      The FLOPs of every op; `step_flops.of_model` and `step_flops.total` sum them up.

    Raises:
      ValueError: unknown `cmds`, or the run was not traced in that way.
    """
    chosen = _checked(cmds)
    flops = step_flops.count(run_metadata, sess.graph)
    logger.info("%s", summary(flops))
    tables = {"scope": by_scope, "op": by_type, "graph": by_op}
    for cmd in chosen:
        logger.info("FLOPs of the model by %s:\n%s", cmd, "\n".join(tables[cmd](step_flops.of_model(flops))))
    return flops


def summary(flops: StepFlops) -> str:
    """The FLOPs of the model and of the step, in words."""
    kinds = {kind: step_flops.total(step_flops.of_model(flops, [kind])) for kind in _PASSES}
    parts = [f"{kind} {kinds[kind] / 1e9:.6f}" for kind in _PASSES if kinds[kind]]
    local = step_flops.total(flops.ops)
    again = step_flops.total(one for one in flops.ops if one.role.kind == RoleKind.RECOMPUTE)
    lines = [
        "FLOPs of the model: {:.6f} GFLOPs{}".format(
            step_flops.total(step_flops.of_model(flops)) / 1e9, " ({})".format(", ".join(parts)) if parts else ""
        ),
        "FLOPs of the step: {:.6f} GFLOPs in the job, {:.6f} in this session on {} device(s), {:.6f} of them "
        "recomputed".format(
            local * flops.scale / 1e9, local / 1e9, len({one.device for one in flops.ops}), again / 1e9
        ),
    ]
    return "\n".join(lines + ["note: " + note for note in flops.notes])


def by_scope(ops: Iterable[OpFlops]) -> List[str]:
    """Name scopes as a tree, the largest first."""
    scopes: Dict[Tuple[str, ...], float] = {}
    for one in ops:
        parts = tuple(one.op.split("/"))
        for depth in range(len(parts) + 1):
            scopes[parts[:depth]] = scopes.get(parts[:depth], 0.0) + one.flops
    whole = scopes.get((), 0.0)

    def lines(scope: Tuple[str, ...]) -> List[str]:
        inner = [s for s in children.get(scope, []) if scopes[s] >= _SMALLEST_SHARE * whole]
        own = ["{}{}".format("  " * len(scope), _row(scope[-1] if scope else "(all)", scopes[scope], whole))]
        return own + [line for s in sorted(inner, key=lambda s: (-scopes[s], s)) for line in lines(s)]

    children: Dict[Tuple[str, ...], List[Tuple[str, ...]]] = {}
    for scope in scopes:
        if scope:
            children.setdefault(scope[:-1], []).append(scope)
    return lines(()) if scopes else []


def by_type(ops: Iterable[OpFlops]) -> List[str]:
    """Op types, the largest first."""
    types: Dict[str, float] = {}
    for one in ops:
        types[one.op_type] = types.get(one.op_type, 0.0) + one.flops
    whole = sum(types.values())
    return [_row(name, types[name], whole) for name in sorted(types, key=lambda name: (-types[name], name))]


def by_op(ops: Iterable[OpFlops]) -> List[str]:
    """Single ops, the largest first."""
    found = sorted(ops, key=lambda one: (-one.flops, one.op))
    whole = step_flops.total(found)
    lines = [
        f"{_row(one.op, one.flops, whole)} {one.op_type} on {output_files.title_of_device(one.device)}"
        for one in found[:_LONGEST_LIST]
    ]
    rest = found[_LONGEST_LIST:]
    if rest:
        lines.append(_row(f"{len(rest)} more ops", step_flops.total(rest), whole))
    return lines


def _row(name: str, flops: float, whole: float) -> str:
    return f"{name}: {flops / 1e9:.6f} GFLOPs ({100.0 * flops / whole if whole else 0.0:.2f}%)"


def _checked(cmds: Union[str, Sequence[str]]) -> Tuple[str, ...]:
    chosen = [part.strip() for part in cmds.split(",")] if isinstance(cmds, str) else list(cmds)
    wrong = [cmd for cmd in chosen if cmd not in CMDS]
    if wrong or not chosen:
        raise ValueError(
            "cmds is {!r}: expected one of {}, or several of them with commas between.".format(cmds, ", ".join(CMDS))
        )
    return tuple(chosen)
