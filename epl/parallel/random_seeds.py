"""Seeds of the copies of random ops: a copy with the seeds of its original would draw the same numbers."""

from typing import List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.clone import Edit

# Odd numbers without a common multiple in reach, so that the seeds of different ranks and micro batches do not meet.
_RANK_STEP = 0x3779B1
_MICRO_BATCH_STEP = 0x5BD1E995 % 0x7FFFFFFF


def own_seed(node: tf.NodeDef, rank: int = 0, micro_batch: int = 0) -> Optional[tf.AttrValue]:
    """The second seed of a random op for a replica or a micro batch; None for ops without seeds."""
    if "seed2" not in node.attr:
        return None
    seed, seed2 = node.attr["seed"].i, node.attr["seed2"].i
    if seed == 0 and seed2 == 0:
        return None
    return tf.AttrValue(i=(seed2 + rank * _RANK_STEP + micro_batch * _MICRO_BATCH_STEP) % 0x7FFFFFFF or 1)


def seed_edit(node: tf.NodeDef, micro_batch: int) -> Edit:
    """What differs in the copy of a random op for a micro batch."""
    seed = own_seed(node, micro_batch=micro_batch)
    attrs: List[Tuple[str, tf.AttrValue]] = [] if seed is None else [("seed2", seed)]
    return Edit(None, attrs)
