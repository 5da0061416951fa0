"""Scripts of other features with weights in host memory, and a record of where variables are and what is copied."""

from typing import Any

import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.scripts import accumulation, amp, optimizers, pipelines, splits

_VARIABLES = ("VariableV2", "VarHandleOp")


def pipeline(ctx: Context, **arguments: Any) -> None:
    """A model of blocks; one stage is data parallelism."""
    pipelines.train(ctx, **arguments)
    _record(ctx)


def micro_steps(ctx: Context, **arguments: Any) -> None:
    """Gradient accumulation."""
    accumulation.train(ctx, **arguments)
    _record(ctx)


def half(ctx: Context, **arguments: Any) -> None:
    """Mixed precision."""
    amp.train(ctx, **arguments)
    _record(ctx)


def split(ctx: Context, **arguments: Any) -> None:
    """A model of which layers are split."""
    splits.train(ctx, **arguments)
    _record(ctx)


def optimizer(ctx: Context, name: str, **config: Any) -> None:
    """A script of `optimizers`, which has no place for configuration keys."""
    init = ctx.init
    ctx.init = lambda **own: init(**dict(config, **own))  # type: ignore[assignment]
    getattr(optimizers, name)(ctx)
    _record(ctx)


def _record(ctx: Context) -> None:
    if not ctx.planned:
        return
    from epl.utils import tf_compat  # not in the process of a plain run

    nodes = tf_compat.full_graph_def(tf.get_default_graph()).node
    ctx.record(
        copies=sum("EPL_OFFLOAD/" in node.name for node in nodes),
        places=sorted({node.device for node in nodes if node.op in _VARIABLES}),
    )
