"""Runs any of the programs."""

from typing import Any

from tests.behaviour.programs import agents, images, language, sequences
from tests.behaviour.programs.base import PROGRAMS
from tests.parity.context import Context

__all__ = ["PROGRAMS", "run"]
_FAMILIES = (agents, images, language, sequences)  # each puts its programs into the table
_CLIPS = {"communication__clip_after_allreduce": True}  # clips the gradients of all rows
_CONFIG = {
    "electra": _CLIPS,
    "maddpg": _CLIPS,
    "xlnet": _CLIPS,
    "tacotron": _CLIPS,
    "crf": _CLIPS,
    "contrib_crf": _CLIPS,
    "translation": _CLIPS,
    "sampled_neighbours": _CLIPS,
    "tensor2tensor": {"replicate__batch": "all"},
}


def run(ctx: Context, name: str, **config: Any) -> None:
    """Runs a program under a configuration."""
    ctx.stages = config.get("pipeline__num_stages", 1)
    ctx.init(**{**_CONFIG.get(name, {}), **config})
    PROGRAMS[name](ctx)
