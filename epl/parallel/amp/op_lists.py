"""Op types of automatic mixed precision: which compute in half precision, and which must not.

| list | meaning |
| --- | --- |
| ALLOW | fast and safe in half precision: always computed in it |
| DENY | needs the range or the sums of float32: stays in float32, and so do the ops of INFER after it |
| INFER | safe if its inputs are: in half precision between two ops of half precision, if not after an op of DENY |
| CLEAR | does not round: has the type of its neighbours |
| PRESERVE | keeps its type, even if it is in another list |

Ops in no list compute in float32. This module is tables only; `op_selection.py` uses them.
"""

ALLOW = frozenset(
    [
        "BatchMatMul", "BatchMatMulV2", "BlockLSTM", "BlockLSTMGrad", "BlockLSTMGradV2", "BlockLSTMV2", "Conv2D",
        "Conv2DBackpropFilter", "Conv2DBackpropInput", "CudnnRNN", "CudnnRNNBackprop", "CudnnRNNBackpropV2",
        "CudnnRNNBackpropV3", "CudnnRNNV2", "CudnnRNNV3", "Einsum", "FusedConv2DBiasActivation", "GRUBlockCell",
        "GRUBlockCellGrad", "LSTMBlockCell", "LSTMBlockCellGrad", "MatMul",
    ]  # fmt: skip
)  # fmt: skip

DENY = frozenset(
    [
        "Exp", "Expm1", "L2Loss", "Log", "Log1p", "LogSoftmax", "Mean", "Pow", "SaveV2", "Softmax",
        "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "Sum",
    ]  # fmt: skip
)  # fmt: skip

INFER = frozenset(
    [
        "Add", "AddN", "AddV2", "AvgPool", "AvgPool3D", "AvgPool3DGrad", "AvgPoolGrad", "BiasAdd", "BiasAddGrad",
        "BiasAddV1", "Elu", "EluGrad", "Erf", "Erfc", "FusedBatchNormGradV2", "FusedBatchNormGradV3",
        "FusedBatchNormV2", "FusedBatchNormV3", "Inv", "LeakyRelu", "LeakyReluGrad", "Mul", "Prod", "RealDiv",
        "Reciprocal", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Softplus", "SoftplusGrad", "Sqrt", "Sub", "Tanh",
        "TanhGrad",
    ]  # fmt: skip
)  # fmt: skip

CLEAR = frozenset(
    [
        "Abs", "ArgMax", "ArgMin", "BatchToSpace", "BatchToSpaceND", "BroadcastTo", "Ceil", "CheckNumerics",
        "ClipByValue", "Concat", "ConcatV2", "DepthToSpace", "DynamicPartition", "DynamicStitch", "EnsureShape",
        "Equal", "ExpandDims", "Fill", "Floor", "Gather", "GatherNd", "GatherV2", "Greater", "GreaterEqual",
        "Identity", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "Max", "MaxPool", "MaxPool3D", "MaxPoolGrad",
        "MaxPoolGradGrad", "MaxPoolGradV2", "MaxPoolV2", "Maximum", "Min", "Minimum", "MirrorPad", "MirrorPadGrad",
        "Neg", "NotEqual", "OneHot", "OnesLike", "Pack", "Pad", "PadV2", "PreventGradient", "Rank", "Relu", "Relu6",
        "Relu6Grad", "ReluGrad", "Reshape", "ResizeNearestNeighbor", "ResizeNearestNeighborGrad", "Reverse",
        "ReverseSequence", "ReverseV2", "Round", "Select", "SelectV2", "Shape", "ShapeN", "Sign", "Size", "Slice",
        "Snapshot", "SpaceToBatch", "SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Squeeze", "StopGradient",
        "StridedSlice", "StridedSliceGrad", "Tile", "TopK", "TopKV2", "Transpose", "Unpack", "Where", "ZerosLike",
    ]  # fmt: skip
)  # fmt: skip

# State, constants, and the ops of branches and loops: loop variables stay float32.
PRESERVE = frozenset(
    [
        "AutoReloadVariable", "ConcatV2", "Const", "Enter", "Exit", "Mean", "Merge", "NextIteration", "NoOp",
        "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "ReadVariableOp", "RefEnter", "RefExit",
        "RefIdentity", "RefMerge", "RefNextIteration", "RefSwitch", "StackPopV2", "StackPushV2", "StackV2", "Switch",
        "TensorArrayConcatV3", "TensorArrayGatherV3", "TensorArrayReadV3", "TensorArrayScatterV3",
        "TensorArraySplitV3", "TensorArrayV3", "TensorArrayWriteV3", "VarHandleOp", "Variable", "VariableV2",
    ]  # fmt: skip
)  # fmt: skip

# The attribute that names the type in which an op computes, where it is not "T".
TYPE_ATTR = {"Cast": "DstT", "Gather": "Tparams", "GatherNd": "Tparams", "GatherV2": "Tparams"}

# Op types whose gradients use other kernels, which must exist in half precision, too.
GRADIENT_KERNELS = {
    "AvgPool": ("AvgPoolGrad",),
    "AvgPool3D": ("AvgPool3DGrad",),
    "BatchMatMul": ("BatchMatMul",),
    "BatchMatMulV2": ("BatchMatMulV2", "Sum"),
    "BatchToSpace": ("SpaceToBatch",),
    "BatchToSpaceND": ("SpaceToBatchND",),
    "BiasAdd": ("BiasAddGrad",),
    "BlockLSTM": ("BlockLSTMGrad",),
    "BlockLSTMV2": ("BlockLSTMGradV2",),
    "Add": ("Sum",),
    "AddV2": ("Sum",),
    "Conv2D": ("Conv2DBackpropFilter", "Conv2DBackpropInput"),
    "CudnnRNN": ("CudnnRNNBackprop",),
    "CudnnRNNV2": ("CudnnRNNBackpropV2",),
    "CudnnRNNV3": ("CudnnRNNBackpropV3",),
    "DepthToSpace": ("SpaceToDepth",),
    "Elu": ("EluGrad",),
    "FusedBatchNormV2": ("FusedBatchNormGradV2",),
    "FusedBatchNormV3": ("FusedBatchNormGradV3",),
    "GatherNd": ("ScatterNd",),
    "GatherV2": ("UnsortedSegmentSum",),
    "GRUBlockCell": ("GRUBlockCellGrad",),
    "LeakyRelu": ("LeakyReluGrad",),
    "LSTMBlockCell": ("LSTMBlockCellGrad",),
    "MaxPool": ("MaxPoolGrad",),
    "MaxPool3D": ("MaxPool3DGrad",),
    "MaxPoolV2": ("MaxPoolGradV2",),
    "MirrorPad": ("MirrorPadGrad",),
    "Mul": ("Mul", "Sum"),
    "RealDiv": ("RealDiv", "Neg", "Mul", "Sum"),
    "Relu": ("ReluGrad",),
    "Relu6": ("Relu6Grad",),
    "ResizeNearestNeighbor": ("ResizeNearestNeighborGrad",),
    "Selu": ("SeluGrad",),
    "Sigmoid": ("SigmoidGrad",),
    "Slice": ("Pad",),
    "Softplus": ("SoftplusGrad",),
    "SpaceToBatch": ("BatchToSpace",),
    "SpaceToBatchND": ("BatchToSpaceND",),
    "SpaceToDepth": ("DepthToSpace",),
    "Sqrt": ("SqrtGrad",),
    "StridedSlice": ("StridedSliceGrad",),
    "Sub": ("Sum", "Neg"),
    "Tanh": ("TanhGrad",),
    "Tile": ("Sum",),
}
