"""What a loss of all rows is not proved with, of what a plan decides: the pass and the planner ask here."""

from typing import List

from epl.parallel.plan.zero_decisions import DROPS


def not_proved_with(is_split: bool, zero: str, offload: bool) -> List[str]:
    """The names of what is there and must not be.

    Args:
      is_split: whether the model has an `epl.split`.
      zero: the level of ZeRO, "" without it.
      offload: whether weights lie in host memory.
    """
    beside = {"epl.split": is_split, f'zero.level "{DROPS}"': zero == DROPS, "offload.level": offload}
    return [what for what, is_there in beside.items() if is_there]
