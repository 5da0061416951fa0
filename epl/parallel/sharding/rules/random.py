"""Rules of random ops: each rank draws the numbers of its shard.

The seeds of an op are attributes, the same on every rank, and would give equal shards. So the op's own generator draws
a seed in each step, and the shard is a function of that seed and the rank. Ops that are a function of given seeds
(StatelessRandomUniform, ...) have no rule: their shards would not be those of the unsplit program.
"""

from typing import Any, Iterator, List, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import Placement
from epl.parallel.sharding.rules.common import Labels, dimensions, labelled, own_shape
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, OpInfo, rule


@rule("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal")
def _random(op: OpInfo) -> Iterator[Choice]:
    if op.outputs[0].shape is None:
        return

    def emitter(outputs: Tuple[Placement, ...]) -> Emit:
        def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
            shape = own_shape(emission, op.outputs[0], inputs[0], outputs[0])
            return [_draw(op, shape, _seed(emission, op), inputs[1:])]

        return emit

    inputs: List[Labels] = [[]] * len(op.inputs)
    yield from labelled(op, inputs, [dimensions(op.outputs[0])], emitter=emitter, created=True)


def _seed(emission: Emission, op: OpInfo) -> tf.Tensor:
    """A pair of integers: one drawn by the generator that the op would use, and the rank."""
    drawn = tf.raw_ops.RandomUniformInt(
        shape=tf.constant([], tf.int32), minval=0, maxval=2**31 - 1, seed=op.attrs["seed"], seed2=op.attrs["seed2"]
    )
    return tf.stack([drawn, emission.own(range(emission.ranks), tf.int32)])


def _draw(op: OpInfo, shape: tf.Tensor, seed: tf.Tensor, limits: Any) -> tf.Tensor:
    dtype = op.outputs[0].dtype
    if op.type == "RandomUniformInt":
        return tf.random.stateless_uniform(shape, seed, limits[0], limits[1], dtype)
    if op.type == "RandomUniform":
        return tf.random.stateless_uniform(shape, seed, dtype=dtype)
    if op.type == "RandomStandardNormal":
        return tf.random.stateless_normal(shape, seed, dtype=dtype)
    return tf.random.stateless_truncated_normal(shape, seed, dtype=dtype)
