"""Runs any of the programs."""

from typing import Any

from tests.behaviour.programs import agents, images, language
from tests.behaviour.programs.base import PROGRAMS
from tests.parity.context import Context

__all__ = ["PROGRAMS", "run"]
_FAMILIES = (agents, images, language)  # each puts its programs into the table
CLIP = ("electra", "maddpg", "xlnet", "tacotron")  # clip the gradients of all rows


def run(ctx: Context, name: str, **config: Any) -> None:
    """Runs a program under a configuration."""
    ctx.stages = config.get("pipeline__num_stages", 1)
    if name in CLIP:
        config.setdefault("communication__clip_after_allreduce", True)
    ctx.init(**config)
    PROGRAMS[name](ctx)
