"""The plans that a search always looks at: data parallel with what saves memory, and pipelines of every depth.

    settings   what the user has set stays; the others take each value in turn
    blocks     the scopes of the script, if it has some; else one block, or 2 to D stages, D devices of the job

Candidates stand in the order of their simplicity, so that a choice between equals takes the simpler one.
"""

import json
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.strategy import Block, Strategy

PLANNER = strategies.PLANNER  # the origin of what the search decides
_LEFT_ALONE = ("default", PLANNER)  # origins of settings that it may decide
_ANNOTATED = (strategies.SCOPES, strategies.DEFAULT_STRATEGY)
# Micro batches for each stage of a pipeline: more shrink the bubble, and cost a launch of every op each.
MICRO_BATCHES = (1, 2, 4, 8)
WORTH = 0.01  # a plan is taken in place of a simpler one if it is faster by more than this part

# Given a number of stages: the block of each op of the strategy, or None if the model has no so many stages.
StagesOf = Callable[[int], Optional[Sequence[int]]]


class PlanCandidate(NamedTuple):
    """A strategy to be compared with others.

    Attributes:
      name: what it is, for people.
      strategy: its decisions.
    """

    name: str
    strategy: Strategy


def candidates(base: Strategy, rows: int, stages_of: StagesOf) -> List[PlanCandidate]:
    """All candidates for a model and a job, the simplest first.

    Args:
      base: the strategy of the script as it is.
      rows: of the global batch; each replica needs one for each of its micro batches.
      stages_of: finds stages, if the script has no scopes.
    """
    found: Dict[Strategy, str] = {base: "the script as it is"}
    for name, blocks in _all_blocks(base, stages_of):
        for settings in _all_settings(len(blocks.blocks), _replicas(blocks)):
            candidate = with_settings(blocks, settings)
            if candidate is not None and _has_rows(candidate, rows):
                found.setdefault(candidate, _named(name, settings))
    return [PlanCandidate(name, strategy) for strategy, name in found.items()]


def is_left_alone(strategy: Strategy, key: str) -> bool:
    """Whether the planner may decide a key."""
    return any(one.key == key and one.origin in _LEFT_ALONE for one in strategy.settings)


def has_scopes(strategy: Strategy) -> bool:
    """Whether the script decides the blocks: one scope of epl.replicate(1) alone leaves them to the planner."""
    return strategy.blocks_origin in _ANNOTATED and not is_data_parallel(strategy)


def is_data_parallel(strategy: Strategy) -> bool:
    """Whether all of the model is in one epl.replicate(1)."""
    return len(strategy.blocks) == 1 and strategy.blocks[0][:3] == ("replicate", 1, 0)


def _all_blocks(base: Strategy, stages_of: StagesOf) -> Iterator[Tuple[str, Strategy]]:
    """(name, strategy with these blocks), with the settings of the script."""
    if has_scopes(base):
        yield "the scopes of the script", base
        return
    if is_data_parallel(base):
        yield "data parallel", base
    devices = base.workers * base.devices
    for count in range(2, devices + 1):
        blocks = stages_of(count) if devices % count == 0 else None
        if blocks is not None:
            yield f"{count} stages", in_stages(base, blocks, count)


def in_stages(base: Strategy, blocks: Sequence[int], count: int, devices: int = 1) -> Strategy:
    """A strategy with its ops in so many blocks, given the block of each op, and the devices of each block."""
    names: List[List[str]] = [[] for _ in range(count)]
    for op, block in zip(base.ops, blocks):
        names[block].append(op.name)
    return base._replace(
        blocks_origin=PLANNER,
        blocks=tuple(Block("replicate", devices, 0, (), strategies.scopes_of(one)) for one in names),
        ops=tuple(op._replace(block=block) for op, block in zip(base.ops, blocks)),
    )


def _all_settings(stages: int, replicas: int) -> Iterator[Mapping[str, object]]:
    """The decided keys that differ from their defaults."""
    saving: List[Mapping[str, object]] = [{}, {"gradient_checkpoint.type": "auto"}]
    levels = ("v0", "v1", "v2") if stages == 1 else ("v0", "v1")
    for level in levels if replicas > 1 else ():
        saving += [{"zero.level": level}, {"zero.level": level, "gradient_checkpoint.type": "auto"}]
    for settings in saving:
        yield settings  # with the micro batches of the script
        for count in MICRO_BATCHES if stages > 1 else ():  # one stage would take a run for each of them
            yield dict(settings, **{"pipeline.num_micro_batch": stages * count})


def with_settings(strategy: Strategy, settings: Mapping[str, object]) -> Optional[Strategy]:
    """The strategy with values of keys; None if the user has set one of them to something else."""
    made = strategies.with_values(strategy, settings, PLANNER)
    changed = [one for one, other in zip(strategy.settings, made.settings) if one.value != other.value]
    return made if all(one.origin in _LEFT_ALONE for one in changed) else None


def _has_rows(strategy: Strategy, rows: int) -> bool:
    """Whether all micro batches of all replicas can have equally many rows."""
    values = {one.key: json.loads(one.value) for one in strategy.settings}
    return bool(rows % (values["pipeline.num_micro_batch"] * _replicas(strategy)) == 0)


def _replicas(strategy: Strategy) -> int:
    """The replicas of a model whose stages have devices of their own."""
    return max(1, strategy.workers * strategy.devices // max(1, sum(block.devices for block in strategy.blocks)))


def _named(blocks: str, settings: Mapping[str, object]) -> str:
    words = [blocks]
    if "pipeline.num_micro_batch" in settings:
        words.append(f"{settings['pipeline.num_micro_batch']} micro batches")
    if "zero.level" in settings:
        words.append(f"ZeRO {settings['zero.level']}")
    if "gradient_checkpoint.type" in settings:
        words.append("gradient checkpoint")
    return ", ".join(words)
