"""Who reads a variable outside of its split: a moving average, a layer with tied weights, a summary.

They get the whole value, gathered from all ranks. What they are differentiated by goes back: each rank has gradients by
its own batch, whose mean is the gradient of the variable, as everywhere outside of a split.
"""

from typing import Collection, Dict

import tensorflow.compat.v1 as tf

from epl.parallel.sharded_variables.variables import beside
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.sharded_variables import Shard
from epl.parallel.split.bridges import out_of_split
from epl.utils import tf_compat


def give_whole(made: Shard, resharder: Resharder, inside: Collection[tf.Operation]) -> Dict[tf.Tensor, tf.Tensor]:
    """Gives the readers outside of the split the whole variable in place of the one that is no more.

    Args:
      made: a variable that has become a shard.
      resharder: of this rank; its collectives so far come first.
      inside: the ops of the split, which read the shard.

    Returns:
      Value that was read -> what its readers take now.
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
