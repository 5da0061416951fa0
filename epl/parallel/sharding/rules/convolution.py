"""Rules of convolutions and pooling: cut over images, positions, input channels (leaves partial sums) or outputs."""

import math
from typing import Iterator, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharding.placements import REPLICATED, Placement, shard
from epl.parallel.sharding.rules.common import (
    Labels,
    filled,
    labelled,
    never_empty,
    own_shape,
    replaced,
    text_attr,
)
from epl.parallel.sharding.rules.halos import cut_positions
from epl.parallel.sharding.rules.registry import Choice, Emission, Emit, OpInfo, rule, shard_choices

# What a pool takes for pixels beyond the image. The mean is over those that are there, whatever they are.
_BEYOND = {"MaxPool": -math.inf, "MaxPool3D": -math.inf}


def _positions(op: OpInfo) -> List[int]:
    """The dimensions of a batch of images that are neither images nor channels; none if channels have two."""
    if text_attr(op, "data_format") == "NCHW_VECT_C":
        return []
    first = 2 if text_attr(op, "data_format").startswith("NC") else 1
    return list(range(first, first + len(op.inputs[0].shape or ()) - 2))


def _image(op: OpInfo, channels: Optional[str], positions: int = 2) -> Labels:
    """Labels of a batch of images."""
    if text_attr(op, "data_format").startswith("NC"):
        return ["n", channels] + [None] * positions
    return ["n"] + [None] * positions + [channels]


@rule("Conv2D", "Conv3D")
def _convolution(op: OpInfo) -> Iterator[Choice]:
    positions = 3 if op.type == "Conv3D" else 2
    kernel = [None] * positions + ["in", "out"]
    image, result = _image(op, "in", positions), _image(op, "out", positions)
    yield from never_empty(labelled(op, [image, kernel], [result], summed=["in"]))
    yield from cut_positions(op, _positions(op), op.inputs[1].shape or [None] * positions, 0.0)


@rule("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def _transposed_convolution(op: OpInfo) -> Iterator[Choice]:
    """Inputs: the shape of the result, the kernel [..., result channels, image channels], images."""
    positions = 3 if op.type == "Conv3DBackpropInputV2" else 2
    kernel: Labels = [None] * positions + ["out", "in"]

    def emitter(outputs: Tuple[Placement, ...]) -> Emit:
        placement = outputs[0]

        def emit(emission: Emission, op: OpInfo, inputs: List[tf.Tensor]) -> List[tf.Tensor]:
            if placement.is_shard and placement.dim == 0:
                shape = replaced(inputs[0], 0, tf.shape(inputs[2])[0])
            else:
                shape = own_shape(emission, op.outputs[0], inputs[0], filled(placement))
            return emission.same([shape] + inputs[1:])

        return emit

    images, results = _image(op, "in", positions), _image(op, "out", positions)
    return never_empty(labelled(op, [[], kernel, images], [results], summed=["in"], emitter=emitter))


@rule("DepthwiseConv2dNative")
def _depthwise(op: OpInfo) -> Iterator[Choice]:
    """Every channel gives `multiplier` channels of the result, next to each other."""
    yield from labelled(op, [_image(op, None), [None] * 4], [_image(op, None)])
    kernel = op.inputs[1].shape
    if set(op.attrs.get("dilations") or [1]) == {1}:  # kernels for CPUs take no notice of others
        yield from cut_positions(op, _positions(op), kernel or [None] * 2, 0.0)
    if kernel is None or kernel[2] is None or kernel[3] is None:
        return
    channels = _image(op, "c").index("c")
    for sizes in shard_choices(op, kernel[2]):
        result = [size * kernel[3] for size in sizes]
        yield from never_empty([Choice((shard(channels, sizes), shard(2, sizes)), (shard(channels, result),))])


@rule("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D")
def _pool(op: OpInfo) -> Iterator[Choice]:
    image = _image(op, "c", 3 if op.type.endswith("3D") else 2)
    window = list(op.attrs["ksize"])
    labels = [label if size == 1 else None for label, size in zip(image, window)]
    yield from never_empty(labelled(op, [labels], [labels]))
    # A pool over channels mixes those of several shards, so that channels are not cut.
    positions = _positions(op)
    beyond = _BEYOND.get(op.type) if op.inputs[0].dtype.is_floating else None
    yield from cut_positions(op, positions, [window[dim] for dim in positions], beyond)


@rule("MaxPoolV2")
def _pool_v2(op: OpInfo) -> Iterator[Choice]:
    """The window is an input; TensorFlow pools over positions alone."""
    image = _image(op, "c")
    return never_empty(labelled(op, [image, [], []], [image]))


@rule("LRN")
def _local_response(op: OpInfo) -> Iterator[Choice]:
    """Channels are normalised by their neighbours, so they are not cut."""
    return labelled(op, [["n", "h", "w", None]], [["n", "h", "w", None]])


# ---- Batch norm


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(op: OpInfo) -> Iterator[Choice]:
    """Cut over channels; over images and positions only if the op computes no statistics of them."""
    image: Labels = [dim if label is None else label for dim, label in enumerate(_image(op, "c"))]
    vectors: List[Labels] = [["c"] if tensor.shape != (0,) else [] for tensor in op.inputs[1:]]
    for choice in labelled(op, [image] + vectors, [image]):
        placement = choice.inputs[0]
        if placement.dim == image.index("c"):
            # Only the gradient op of the shard takes the outputs that are reserved for it.
            reserved = (REPLICATED,) * (len(op.outputs) - 5)
            outputs = (placement,) + (shard(0, placement.sizes),) * 4 + reserved
            yield from never_empty([choice._replace(outputs=outputs)])
        elif not op.attrs.get("is_training", True):
            outputs = (placement,) + (REPLICATED,) * (len(op.outputs) - 1)
            yield from never_empty([choice._replace(outputs=outputs)])
