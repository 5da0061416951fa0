"""Which ops of a stage the backward pass computes a second time, by `gradient_checkpoint.type`.

"collection": the checkpoints of the script divide a stage into segments. "auto": the division is that of
`recompute/division.py`, which divides a model for real, with the places where few bytes are alive as candidates for
cuts.
"""

from typing import NamedTuple, Sequence, Tuple

import numpy as np

from epl.parallel.recompute.candidates import cut_candidates
from epl.parallel.recompute.division import Chain, Division, fewest_flops, least_peak
from epl.utils.errors import PlanError

COLLECTION = "collection"  # a value of gradient_checkpoint.type


class StageRecomputation(NamedTuple):
    """What a stage computes a second time; arrays are by position in the stage.

    Attributes:
      starts: positions where segments begin.
      recomputed: whether the op runs a second time.
      freed: whether its outputs do not stay until the backward pass, so that it runs again if that needs them.
    """

    starts: Tuple[int, ...]
    recomputed: np.ndarray
    freed: np.ndarray


def divide_stage(
    may_be_recomputed: np.ndarray,
    outputs: np.ndarray,
    kept: np.ndarray,
    flops: np.ndarray,
    last: np.ndarray,
    producers: Sequence[Sequence[int]],
    leaves: np.ndarray,
    is_last_stage: bool,
    budget: int,
) -> StageRecomputation:
    """The division of a stage; all arrays are by position.

    Args:
      may_be_recomputed: whether an op may run a second time.
      outputs: bytes of its outputs.
      kept: bytes of them that the backward pass reads.
      flops: of the op.
      last: the last position that takes an output.
      producers: the positions that each op takes from.
      leaves: whether another stage takes an output.
      is_last_stage: the last segment of the last stage is not recomputed.
      budget: bytes of activations (`gradient_checkpoint.memory_budget`); 0: as few as possible.

    Raises:
      PlanError: the stage needs more than the budget.
    """
    members = np.flatnonzero(may_be_recomputed)
    recomputed = np.zeros(len(outputs), bool)
    freed = np.zeros(len(outputs), bool)
    if not len(members):
        return StageRecomputation((), recomputed, freed)
    place = np.searchsorted(members, np.arange(len(outputs)))  # of each position: the first member from it on
    last_member = np.maximum(np.searchsorted(members, last[members], side="right") - 1, place[members])
    chain = Chain(
        [int(round(float(size))) for size in outputs[members]],
        [int(at) for at in last_member],
        [bool(size > 0) for size in kept[members]],
        [float(one) for one in flops[members]],
    )
    division = _divide(chain, is_last_stage, budget)
    starts = [0, *division.cuts]
    segment = np.searchsorted(np.asarray(starts), np.arange(len(members)), side="right") - 1
    # What another segment or stage takes is kept.
    freed[members] = ~np.isin(segment, division.whole) & (segment[last_member] == segment) & ~leaves[members]
    return StageRecomputation(
        tuple(int(members[start]) for start in starts), _recomputed(freed, kept, producers), freed
    )  # fmt: skip


def divide_at_checkpoints(
    may_be_recomputed: np.ndarray,
    kept: np.ndarray,
    producers: Sequence[Sequence[int]],
    memory: Sequence[int],
    checkpoints: np.ndarray,
    leaves: np.ndarray,
    is_last_stage: bool,
) -> StageRecomputation:
    """The division of a stage at the checkpoints of a script; all arrays are by position.

    An op is in the segment after the last checkpoint that it depends on, as in `recompute/segments.py`.

    Args:
      may_be_recomputed: whether an op may run a second time.
      kept: bytes of its outputs that the backward pass reads.
      producers: the positions that each op takes from.
      memory: the position of the op that has made the memory of its outputs.
      checkpoints: whether the script names it one.
      leaves: whether another stage takes an output.
      is_last_stage: the last segment of the last stage is not recomputed.
    """
    count = len(kept)
    number = np.zeros(count, int)  # of the segment
    after = np.cumsum(checkpoints) * checkpoints
    stays = checkpoints | leaves
    for at in range(count):
        number[at] = max((max(number[one], after[one]) for one in producers[at]), default=0)
        if may_be_recomputed[at]:
            for one in producers[at]:
                stays[one] |= number[one] != number[at]  # another segment takes it
    for at in np.flatnonzero(stays):
        stays[memory[at]] = True
    members = np.flatnonzero(may_be_recomputed)
    freed = may_be_recomputed & ~stays
    if is_last_stage and len(members):
        freed &= number < number[members].max()
    highest = np.maximum.accumulate(number[members])
    starts = members[np.flatnonzero(np.diff(highest, prepend=-1))]
    return StageRecomputation(tuple(map(int, starts)), _recomputed(freed, kept, producers), freed)


def _recomputed(freed: np.ndarray, kept: np.ndarray, producers: Sequence[Sequence[int]]) -> np.ndarray:
    """What runs a second time: what the backward pass reads, and what that is computed from."""
    recomputed = freed & (kept > 0)
    for at in range(len(kept) - 1, -1, -1):
        if recomputed[at]:
            for producer in producers[at]:
                recomputed[producer] |= freed[producer]
    return recomputed


def _divide(chain: Chain, is_last_stage: bool, budget: int) -> Division:
    candidates = cut_candidates(chain)
    division = fewest_flops(chain, candidates, budget, is_last_stage) if budget else None
    if division is None:
        division = least_peak(chain, candidates, is_last_stage)
    if 0 < budget < division.peak:
        raise PlanError(
            f"gradient_checkpoint.memory_budget is {budget} bytes, and the activations of one micro batch in a stage "
            f"take at least {division.peak} bytes, whatever is recomputed. Allow for that much, or set the budget to 0."
        )
    return division
