"""Runs with `gradient_checkpoint`: refuses feeds of recomputed tensors, and checks gradients in the first step.

With `gradient_checkpoint.check_gradients` the first training step of a session is checked, the others cost nothing.
The graph contains the comparisons (`epl/parallel/recompute/check_graph.py`). They are fetched in the same run as the
user's fetches, as another run would have other data.
"""

from typing import Any, Dict, List, Optional, Sequence, Set

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.ir.view import ancestor_ops
from epl.parallel.feature import Run, RunRequest
from epl.parallel.rewriting.context import GradientCheck, RewriteContext
from epl.utils.errors import FeedError, PlanError

TOLERANCE = 1e-5  # of the largest value of a gradient


def run(graph: Graph, request: RunRequest, run_step: Run) -> List[Any]:
    """Runs a step; the first training step also runs the comparisons.

    Args:
      graph: the annotated model.
      request: fetches, targets and feeds of the run.
      run_step: runs a request.

    Returns:
      The values of the fetches.

    Raises:
      PlanError: a gradient differs from the plain one.
      FeedError: a tensor is fed that the backward pass computes again, from something else.
    """
    rewrite = recomputing(graph)
    if rewrite is None:
        return run_step(request)
    session, fetches, targets = request.session, request.fetches, request.targets
    _refuse_feeds(rewrite, targets, fetches, request.feeds)
    checks = _due(rewrite, _done(session), targets, fetches)
    if not checks:
        return run_step(request)
    tensor = session.graph.get_tensor_by_name
    copies = [tensor(name) for name in sorted(frozenset().union(*[check.copies for check in checks]))]
    feeds = {**request.feeds, **dict(zip(copies, request.read(copies) if copies else []))}
    compared = fetches + [tensor(check.difference) for check in checks]
    values = run_step(request._replace(fetches=compared, feeds=feeds))
    _done(session).update(check.gradient for check in checks)
    differences = values[len(fetches) :]
    for check, difference in zip(checks, differences):
        if not difference <= TOLERANCE:
            raise PlanError(
                "The gradient of {} with gradient_checkpoint differs from the plain one by {:.3g} of its largest "
                "value, more than {:g} ({} of {} gradients differ). An op does not give the same when it is "
                "computed again; keep what it gives: tf.add_to_collection('checkpoints', tensor).".format(
                    check.variable,
                    float(difference),
                    TOLERANCE,
                    int(np.sum([not value <= TOLERANCE for value in differences])),
                    len(checks),
                )
            )
    return values[: len(fetches)]


def recomputing(graph: Optional[Graph]) -> Optional[RewriteContext]:
    """The rewriting of a graph that recomputes; None for others, whose runs need no check."""
    rewrite: Optional[RewriteContext] = None if graph is None else graph.rewritten
    return rewrite if rewrite is not None and rewrite.recomputed else None


def _refuse_feeds(
    rewrite: RewriteContext, targets: Sequence[tf.Operation], fetches: Sequence[tf.Tensor], feeds: Dict[tf.Tensor, Any]
) -> None:
    fed = [tensor for tensor in feeds if tensor.op.name in rewrite.recomputed]
    if not fed:
        return
    needed = _needed(targets, fetches)
    for tensor in fed:
        if not needed.isdisjoint(rewrite.recomputed[tensor.op.name]):
            raise FeedError(
                "{!r} was fed in a step that computes it again (gradient_checkpoint.type is {!r}), from other values. "
                "Keep it: tf.add_to_collection('checkpoints', tensor) with type 'collection', or make it a "
                "placeholder.".format(tensor.name, rewrite.config.gradient_checkpoint.type)
            )


def _due(
    rewrite: RewriteContext, done: Set[str], targets: Sequence[tf.Operation], fetches: Sequence[tf.Tensor]
) -> List[GradientCheck]:
    """The comparisons for gradients that this run computes and the session has not compared before."""
    waiting = [check for check in rewrite.gradient_checks if check.gradient not in done]
    if not waiting:
        return []
    needed = _needed(targets, fetches)
    return [check for check in waiting if check.gradient in needed]


def _done(session: tf.Session) -> Set[str]:
    """The gradients that a session has compared; kept on the session object."""
    done: Set[str] = vars(session).setdefault("_epl_checked", set())
    return done


def _needed(targets: Sequence[tf.Operation], fetches: Sequence[tf.Tensor]) -> Set[str]:
    """Names of the ops that a run needs."""
    return {op.name for op in ancestor_ops([*targets, *[tensor.op for tensor in fetches]])}
