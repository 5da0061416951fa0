"""Seeds of the copies of random ops: a copy with the seeds of its original would draw the same numbers."""

from typing import Optional, Union

import tensorflow.compat.v1 as tf

from epl.ir import node_wire

# Odd numbers without a small common multiple, so that the seeds of different ranks and micro batches differ.
_RANK_STEP = 0x3779B1
_MICRO_BATCH_STEP = 0x5BD1E995 % 0x7FFFFFFF


def own_seed(node: Union[tf.NodeDef, node_wire.Node], rank: int = 0, micro_batch: int = 0) -> Optional[tf.AttrValue]:
    """The second seed of a random op for a replica or a micro batch; None for ops without seeds."""
    if "seed2" not in node.attr:
        return None
    seed, seed2 = node.attr["seed"].i, node.attr["seed2"].i
    if seed == 0 and seed2 == 0:
        return None
    return tf.AttrValue(i=(seed2 + rank * _RANK_STEP + micro_batch * _MICRO_BATCH_STEP) % 0x7FFFFFFF or 1)
