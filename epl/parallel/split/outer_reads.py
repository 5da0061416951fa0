"""Reads of a variable outside of its split: by a moving average, a layer with tied weights, a summary.

The readers take the full value, gathered from all ranks. Gradients pass back through a bridge: each rank has the
gradient of its own batch, and their mean is the gradient of the variable, as everywhere outside of a split.
"""

from typing import Collection, Dict

import tensorflow.compat.v1 as tf

from epl.parallel.sharded_variables.variables import beside
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.sharded_variables import Shard
from epl.parallel.split.bridges import out_of_split
from epl.utils import tf_compat


def gather_outer_reads(
    made: Shard, resharder: Resharder, inside: Collection[tf.Operation]
) -> Dict[tf.Tensor, tf.Tensor]:
    """Gives the readers outside of the split the gathered variable in place of the one that the shard has replaced.

    Args:
      made: the shard that has replaced the variable.
      resharder: of this rank; its earlier collectives run first.
      inside: the ops of the split, which read the shard.

    Returns:
      Value that was read -> the gathered value that its readers take now.
    """
    given = {}
    for old, new in made.reads:
        consumers = [op for op in old.consumers() if op not in inside]
        if not consumers:
            continue
        with beside(old.op), tf.device(new.device):
            part = resharder.hide_size(new, made.placement)
            whole = resharder.gather_entered(part, made.placement)
            whole = out_of_split(whole, resharder)
        for consumer in consumers:
            for index, tensor in enumerate(consumer.inputs):
                if tensor is old:
                    tf_compat.set_input(consumer, index, whole)
        given[old] = whole
    return given
