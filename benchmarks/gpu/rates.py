"""Measures what a GPU reaches of the numbers of a preset: rates by kind and dtype, bandwidth, the start of a kernel.

python3 benchmarks/gpu/rates.py [--json FILE]    needs PyTorch with CUDA, and neither TensorFlow nor EPL

The layers are those of BERT-Large, and of ResNet-50 on 64 pictures of 224 x 224, each measured by itself on random
numbers: one set of data after the other, together more than the GPU's cache holds.
"""

import argparse
import json
import statistics
from typing import Any, Callable, Dict, List, Sequence, Tuple

import timing
import torch
import torch.nn.functional as functional

TOKENS = 8192
LAYERS = ((1024, 1024), (1024, 4096), (4096, 1024))  # inputs and outputs
OUTPUT_LAYERS = ((1024, 30522),)
PICTURES = 64
# Side of the picture, channels in and out, side of the kernel.
THREE_BY_THREE = ((56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (7, 512, 512, 3))
ONE_BY_ONE = ((56, 64, 256, 1), (28, 512, 128, 1), (14, 1024, 256, 1), (7, 512, 2048, 1))
DEPTHWISE = ((112, 64), (56, 128), (28, 256), (14, 512))  # side and channels, as in a MobileNet
NORMS = ((112, 64), (56, 64), (56, 256), (28, 512), (14, 1024), (7, 2048))  # side and channels
NORM_FLOPS = 8 + 11  # of an element, forward and backward, as epl/parallel/costs/ops.py counts them
ELEMENTS = 1 << 26  # of a tensor whose bandwidth counts
LONGER = 1 << 23  # elements of a tensor to which a number is added in some 25 us
CACHE = 50e6  # bytes
FEWEST_SETS, MOST_SETS = 2, 32

Rate = Tuple[str, float]  # of what, FLOP/s or bytes/s
Data = Tuple[torch.Tensor, ...]


def matmuls(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of the layers."""
    return [rate for layer in LAYERS for rate in _matmul(dtype, *layer)]


def output_layers(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of the layer that scores words, whose number is no multiple of 8."""
    return [rate for layer in OUTPUT_LAYERS for rate in _matmul(dtype, *layer)]


def _matmul(dtype: torch.dtype, width: int, outputs: int) -> List[Rate]:
    """The product, and the gradients of its inputs and of its weights."""
    sets = _sets(dtype, (TOKENS, width), (width, outputs), (TOKENS, outputs))
    calls: Dict[str, List[Callable[[], Any]]] = {
        "forward": [lambda x=x, w=w: x @ w for x, w, _ in sets],
        "inputs": [lambda g=g, w=w: g @ w.t() for _, w, g in sets],
        "weights": [lambda g=g, x=x: x.t() @ g for x, _, g in sets],
    }
    flops = 2.0 * TOKENS * width * outputs
    return [(f"{TOKENS} x {width} x {outputs}, {name}", flops / timing.seconds(work)) for name, work in calls.items()]


def batch_matmuls(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of the products of attention with 16 heads of 64, on rows of 128 and of 512 tokens."""
    found = []
    for length in (128, 512):
        shape = (TOKENS // length * 16, length, 64)
        flops = 2.0 * shape[0] * length * length * 64
        work = [lambda q=q, k=k: torch.bmm(q, k.transpose(1, 2)) for q, k in _sets(dtype, shape, shape)]
        found.append((f"{shape[0]} of {length} x 64 x {length}", flops / timing.seconds(work)))
    return found


def three_by_three(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of convolutions of 3 x 3, forward and backward together."""
    return [_convolution(dtype, *layer) for layer in THREE_BY_THREE]


def one_by_one(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of convolutions of 1 x 1, likewise."""
    return [_convolution(dtype, *layer) for layer in ONE_BY_ONE]


def depthwise(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of depthwise convolutions of 3 x 3, likewise."""
    return [_convolution(dtype, side, width, width, 3, width) for side, width in DEPTHWISE]


def _convolution(dtype: torch.dtype, side: int, inputs: int, outputs: int, kernel: int, groups: int = 1) -> Rate:
    pictures, weights = (PICTURES, inputs, side, side), (outputs, inputs // groups, kernel, kernel)
    sets = _channels_last(_sets(dtype, pictures, weights, (PICTURES, outputs, side, side)))
    padding = kernel // 2

    def backward(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> None:
        torch.ops.aten.convolution_backward(
            g, x, w, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], groups, [True, True, False]
        )

    forward = timing.seconds(
        [lambda x=x, w=w: functional.conv2d(x, w, None, 1, padding, 1, groups) for x, w, _ in sets]
    )
    both = forward + timing.seconds([lambda data=data: backward(*data) for data in sets])
    flops = 2.0 * PICTURES * side * side * inputs // groups * outputs * kernel * kernel
    return f"{side} x {side}, {inputs} to {outputs}, {kernel} x {kernel}", 3 * flops / both


def batch_norms(dtype: torch.dtype) -> List[Rate]:
    """FLOP/s of batch norm in training, forward and backward together."""
    return [_batch_norm(dtype, side, width) for side, width in NORMS]


def _batch_norm(dtype: torch.dtype, side: int, width: int) -> Rate:
    scale, offset = torch.rand(width, device="cuda"), torch.rand(width, device="cuda")
    shape = (PICTURES, width, side, side)
    sets = _channels_last(_sets(dtype, shape, shape))

    def forward(x: torch.Tensor) -> Any:
        return torch.ops.aten.cudnn_batch_norm(x, scale, offset, None, None, True, 0.0, 1e-3)

    _, mean, deviation, reserved = forward(sets[0][0])

    def backward(x: torch.Tensor, g: torch.Tensor) -> None:
        torch.ops.aten.cudnn_batch_norm_backward(x, g, scale, None, None, mean, deviation, 1e-3, reserved)

    both = timing.seconds([lambda x=x: forward(x) for x, _ in sets])
    both += timing.seconds([lambda data=data: backward(*data) for data in sets])
    return f"{side} x {side}, {width}", NORM_FLOPS * sets[0][0].numel() / both


def rearrangements() -> List[Rate]:
    """Bytes per second of transposes and of changes of the dtype, read and written."""
    matrices = [_random(torch.float32, 8192, 8192) for _ in range(2)]
    heads = [_random(torch.float32, 32, 512, 16, 64) for _ in range(4)]
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


def pinned_copies() -> List[Rate]:
    """Bytes per second between the memory of the host and that of the GPU."""
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    to_device = timing.seconds([lambda: device.copy_(host, non_blocking=True)])
    to_host = timing.seconds([lambda: host.copy_(device, non_blocking=True)])
    return [("to the GPU", host.numel() / to_device), ("to the host", host.numel() / to_host)]


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


def _sets(dtype: torch.dtype, *shapes: Sequence[int]) -> List[Data]:
    """Sets of random tensors, as many as no cache holds together."""
    one = tuple(_random(dtype, *shape) for shape in shapes)
    count = round(2 * CACHE / sum(tensor.numel() * tensor.element_size() for tensor in one)) + 1
    more = range(min(max(count, FEWEST_SETS), MOST_SETS) - 1)
    return [one] + [tuple(_random(dtype, *shape) for shape in shapes) for _ in more]


def _channels_last(sets: Sequence[Data]) -> List[Data]:
    return [tuple(one.contiguous(memory_format=torch.channels_last) for one in data) for data in sets]


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
    torch.backends.cudnn.benchmark = True
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; TFLOP/s")
    products, convolutions = (matmuls, output_layers, batch_matmuls), (three_by_three, one_by_one)
    found = []
    for name, dtype, tensor_float, kinds in (
        ("float32 as TF32", torch.float32, True, (*products, *convolutions)),
        ("float32", torch.float32, False, (*products, *convolutions, depthwise, batch_norms)),
        ("float16", torch.float16, True, (*products, *convolutions, depthwise, batch_norms)),
        ("bfloat16", torch.bfloat16, True, (*products, *convolutions, depthwise)),
        ("float64", torch.float64, True, products),
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
