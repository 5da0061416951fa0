"""Scripts of other features with recomputation, and a record that something was recomputed."""

from typing import Any

import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts import accumulation, pipelines


def pipeline(ctx: Context, **arguments: Any) -> None:
    """A model of blocks; one stage is data parallelism."""
    pipelines.train(ctx, **arguments)
    _record(ctx)


def micro_steps(ctx: Context, **arguments: Any) -> None:
    """Gradient accumulation."""
    accumulation.train(ctx, **arguments)
    _record(ctx)


def _record(ctx: Context) -> None:
    ctx.record(recomputed=sum("EPL_RECOMPUTE/" in op.name for op in tf.get_default_graph().get_operations()))
