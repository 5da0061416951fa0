"""Measures what a GPU reaches of the numbers of a preset: rates by kind and dtype, bandwidth, the start of a kernel.

python3 benchmarks/gpu/rates.py [--json FILE]    needs PyTorch with CUDA, and neither TensorFlow nor EPL

Contractions are the layers of BERT-Large, and of ResNet-50 on 64 pictures of 224 x 224, forward and backward, each
measured by itself on random numbers.
"""

import argparse
import json
import statistics
from typing import Any, Callable, Dict, List, Sequence, Tuple

import timing
import torch
import torch.nn.functional as functional

TOKENS = 8192
MATMULS = ((1024, 1024), (1024, 4096), (4096, 1024), (1024, 30522))  # inputs and outputs of a layer
PICTURES = 64
# Sides of the picture, channels in and out, side of the kernel, stride.
CONVOLUTIONS = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (28, 128, 128, 3, 1),
    (28, 512, 128, 1, 1), (14, 256, 256, 3, 1), (14, 1024, 256, 1, 1), (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1),
)  # fmt: skip
DEPTHWISE = ((112, 64), (56, 128), (28, 256), (14, 512))  # side and channels, as in a MobileNet
NORMS = ((112, 64), (56, 64), (56, 256), (28, 512), (14, 1024), (7, 2048))  # side and channels, as in ResNet-50
NORM_FLOPS = 8, 11  # of an element, forward and backward, as epl/parallel/costs/ops.py counts them
ELEMENTS = 1 << 26  # of a tensor whose bandwidth counts
LONGER = 1 << 23  # elements of a tensor to which a number is added in some 25 us
COPIES = 4  # sets of data that a measurement takes in turn

Rate = Tuple[str, float]  # of what, FLOP/s or bytes/s


def matmuls(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of layers of BERT-Large: the product, and the gradients of its inputs and of its weights."""
    found = []
    for width, outputs in MATMULS:
        sets = [(_random(dtype, TOKENS, width), _random(dtype, width, outputs)) for _ in range(COPIES)]
        gradients = [_random(dtype, TOKENS, outputs) for _ in range(COPIES)]
        flops = 2.0 * TOKENS * width * outputs
        calls: Dict[str, List[Callable[[], Any]]] = {
            "forward": [lambda x=x, w=w: x @ w for x, w in sets],
            "inputs": [lambda g=g, w=w: g @ w.t() for g, (_, w) in zip(gradients, sets)],
            "weights": [lambda g=g, x=x: x.t() @ g for g, (x, _) in zip(gradients, sets)],
        }
        found += [
            (f"{TOKENS} x {width} x {outputs}, {name}", flops / timing.seconds(work)) for name, work in calls.items()
        ]
    return found


def batch_matmuls(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of the products of attention with 16 heads of 64, on rows of 128 and of 512 tokens."""
    found = []
    for length in (128, 512):
        shape = (TOKENS // length * 16, length, 64)
        pairs = [(_random(dtype, *shape), _random(dtype, *shape)) for _ in range(COPIES)]
        flops = 2.0 * shape[0] * length * length * 64
        work = [lambda q=q, k=k: torch.bmm(q, k.transpose(1, 2)) for q, k in pairs]
        found.append((f"{shape[0]} of {length} x 64 x {length}", flops / timing.seconds(work)))
    return found


def convolutions(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of layers of ResNet-50, forward, and backward to inputs and weights together."""
    return [rate for side, *layer in CONVOLUTIONS for rate in _convolution(dtype, side, *layer)]


def depthwise(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of depthwise convolutions of 3 x 3."""
    return [rate for side, width in DEPTHWISE for rate in _convolution(dtype, side, width, width, 3, 1, width)]


def _convolution(
    dtype: torch.dtype, side: int, inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1
) -> List[Rate]:
    out = side // stride
    flops = 2.0 * PICTURES * out * out * inputs // groups * outputs * kernel * kernel
    sets = [
        (
            _random(dtype, PICTURES, inputs, side, side).contiguous(memory_format=torch.channels_last),
            _random(dtype, outputs, inputs // groups, kernel, kernel).contiguous(memory_format=torch.channels_last),
            _random(dtype, PICTURES, outputs, out, out).contiguous(memory_format=torch.channels_last),
        )
        for _ in range(COPIES)
    ]
    padding = kernel // 2

    def backward(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> None:
        torch.ops.aten.convolution_backward(
            g, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [inputs > 3, True, False]
        )

    name = f"{side} x {side}, {inputs} to {outputs}, {kernel} x {kernel}"
    forward = [lambda x=x, w=w: functional.conv2d(x, w, None, stride, padding, 1, groups) for x, w, _ in sets]
    gradients = [lambda one=one: backward(*one) for one in sets]
    return [
        (f"{name}, forward", flops / timing.seconds(forward)),
        (f"{name}, backward", (2 if inputs > 3 else 1) * flops / timing.seconds(gradients)),
    ]


def batch_norms(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of batch norm in training."""
    return [rate for side, width in NORMS for rate in _batch_norm(dtype, side, width)]


def _batch_norm(dtype: torch.dtype, side: int, width: int) -> List[Rate]:
    scale, offset = torch.rand(width, device="cuda"), torch.rand(width, device="cuda")
    sets = [
        _random(dtype, PICTURES, width, side, side).contiguous(memory_format=torch.channels_last) for _ in range(COPIES)
    ]

    def forward(x: torch.Tensor) -> Any:
        return torch.ops.aten.cudnn_batch_norm(x, scale, offset, None, None, True, 0.0, 1e-3)

    _, mean, deviation, reserved = forward(sets[0])

    def backward(x: torch.Tensor) -> None:
        torch.ops.aten.cudnn_batch_norm_backward(x, x, scale, None, None, mean, deviation, 1e-3, reserved)

    found = []
    for name, call, flops in zip(("forward", "backward"), (forward, backward), NORM_FLOPS):
        work = [lambda x=x, call=call: call(x) for x in sets]
        found.append((f"{side} x {side}, {width}, {name}", flops * sets[0].numel() / timing.seconds(work)))
    return found


def rearrangements() -> List[Rate]:
    """Bytes per second of transposes and of changes of the dtype, read and written."""
    matrices = [_random(torch.float32, 8192, 8192) for _ in range(2)]
    heads = [_random(torch.float32, 32, 512, 16, 64) for _ in range(COPIES)]
    by_heads = timing.seconds([lambda x=x: x.transpose(1, 2).contiguous() for x in heads])
    return [
        ("matrix transposed", 8.0 * 8192**2 / timing.seconds([lambda x=x: x.t().contiguous() for x in matrices])),
        ("heads transposed", 8.0 * heads[0].numel() / by_heads),
        ("float32 to float16", 6.0 * 8192**2 / timing.seconds([lambda x=x: x.half() for x in matrices])),
    ]


def bandwidths() -> List[Rate]:
    """Bytes per second of elementwise ops on 256 MiB, read and written."""
    sets = [(_random(torch.float32, ELEMENTS), _random(torch.float32, ELEMENTS)) for _ in range(2)]
    size = 4.0 * ELEMENTS
    return [
        ("copy", 2 * size / timing.seconds([lambda a=a, b=b: b.copy_(a) for a, b in sets])),
        ("relu", 2 * size / timing.seconds([lambda a=a: torch.relu(a) for a, _ in sets])),
        ("add", 3 * size / timing.seconds([lambda a=a, b=b: a + b for a, b in sets])),
        ("sum", size / timing.seconds([lambda a=a: a.sum() for a, _ in sets])),
    ]


def kernel_seconds() -> Dict[str, float]:
    """Seconds that a kernel costs beside its work: in a graph of them, and more where each is started by itself.

    The first is the time of kernels that do next to nothing. The second is the difference between rows of longer
    kernels, which hide how long Python takes to start one.
    """

    def seconds(elements: int, count: int, as_graph: bool) -> float:
        x = torch.ones(elements, device="cuda")

        def row() -> None:
            for _ in range(count):
                x.add_(1.0)

        row()
        if not as_graph:
            return timing.seconds([row]) / count
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            row()
        return timing.seconds([graph.replay]) / count

    longer = seconds(LONGER, 100, False) - seconds(LONGER, 100, True)
    return {"in a graph": seconds(16, 1000, True), "more if started by itself": longer}


def pinned_copies() -> List[Rate]:
    """Bytes per second between the memory of the host and that of the GPU."""
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    to_device = timing.seconds([lambda: device.copy_(host, non_blocking=True)])
    to_host = timing.seconds([lambda: host.copy_(device, non_blocking=True)])
    return [("to the GPU", host.numel() / to_device), ("to the host", host.numel() / to_host)]


def _random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.rand(shape, device="cuda").sub_(0.5).to(dtype)


def _told(kind: str, rates: Sequence[Rate], unit: float) -> Dict[str, Any]:
    values = sorted(value / unit for _, value in rates)
    print(f"{kind:40} median {statistics.median(values):7.1f}   {values[0]:7.1f} to {values[-1]:7.1f}", flush=True)
    return {"kind": kind, "rates": [(name, value / unit) for name, value in rates]}


def main() -> None:
    """Prints a table, and writes all values."""
    parser = argparse.ArgumentParser(description="Measure what a GPU reaches of the numbers of its preset.")
    parser.add_argument("--json", help="a file for all values")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; TFLOP/s")
    found = []
    torch.backends.cudnn.benchmark = True
    for name, dtype, tensor_float, kinds in (
        ("float32 as TF32", torch.float32, True, (matmuls, batch_matmuls, convolutions)),
        ("float32", torch.float32, False, (matmuls, batch_matmuls, convolutions, depthwise, batch_norms)),
        ("float16", torch.float16, True, (matmuls, batch_matmuls, convolutions, depthwise, batch_norms)),
        ("bfloat16", torch.bfloat16, True, (matmuls, batch_matmuls, convolutions, depthwise)),
        ("float64", torch.float64, True, (matmuls, batch_matmuls)),
    ):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tensor_float
        for kind in kinds:
            found.append(_told(f"{kind.__name__.replace('_', ' ')}, {name}", kind(dtype), 1e12))
    found.append(_told("elementwise, GB/s", bandwidths(), 1e9))
    found.append(_told("transposes and casts, GB/s", rearrangements(), 1e9))
    found.append(_told("host and GPU, pinned, GB/s", pinned_copies(), 1e9))
    free, whole = torch.cuda.mem_get_info()
    kernels = kernel_seconds()
    for name, value in kernels.items():
        print(f"{'a kernel, us, ' + name:40} {1e6 * value:14.2f}")
    print(f"{'memory, GiB':40} {whole / 2**30:14.2f}, free {free / 2**30:.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rates": found, "kernels": kernels, "memory": whole}, file, indent=1)


if __name__ == "__main__":
    main()
