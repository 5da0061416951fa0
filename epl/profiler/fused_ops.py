"""Names of the ops that TensorFlow makes when it optimizes a step: ops of oneDNN, and ops that do the work of several.

    _MklNativeFusedMatMul  ->  _FusedMatMul  ->  MatMul, and an op per element for each of its `fused_ops`
        as it ran              plain_type        main_type

oneDNN computes the ops of TensorFlow 2 on CPUs, under names of its own. What they cost is in `step_flops.py`.
"""

import re
from typing import Dict

_ONEDNN = re.compile(r"_Mkl(?:Native)?(.+)$")

# Fused op, by its plain type -> the op that does the main work.
_MAIN_TYPES: Dict[str, str] = {
    "_FusedMatMul": "MatMul",
    "_FusedBatchMatMulV2": "BatchMatMulV2",
    "_FusedConv2D": "Conv2D",
    "_FusedConv3D": "Conv3D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedBatchNormEx": "FusedBatchNormV3",
    "_FusedBatchNormGradEx": "FusedBatchNormGradV3",
    "Conv2DWithBias": "Conv2D",
    "Conv2DBackpropFilterWithBias": "Conv2DBackpropFilter",
    "PadWithConv2D": "Conv2D",
    "PadWithFusedConv2D": "Conv2D",
}


def plain_type(op_type: str) -> str:
    """The type of an op without the name of oneDNN, if it has that: MatMul for _MklMatMul."""
    match = _ONEDNN.match(op_type)
    if match is None:
        return op_type
    fused = "_" + match.group(1)
    return fused if fused in _MAIN_TYPES else match.group(1)


def main_type(plain: str) -> str:
    """The op type that does the main work of a fused op; any other type is its own."""
    return _MAIN_TYPES.get(plain, plain)
