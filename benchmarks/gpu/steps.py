"""Steps of ResNet-50 and BERT-Large on one GPU, to compare with what `epl-plan` simulates for its preset.

python3 benchmarks/gpu/steps.py    needs PyTorch with CUDA, and neither TensorFlow nor EPL

The models are those of benchmarks/papers/many_classes/model.py and benchmarks/papers/bert_pipeline/model.py, op by op:
none is fused, as TensorFlow 1.15 fuses none of these on a GPU. Batch norm and the losses are one op, as they are there;
the optimizer updates many variables in one kernel, which TensorFlow does not.
"""

import statistics
import time
from typing import Callable, List, Tuple

import torch
import torch.nn.functional as functional

PICTURES = 64
CLASSES, SIDE = 1000, 224
ROWS, LENGTH, MASKED = 32, 128, 20
LAYERS, WIDTH, HEADS, WORDS = 24, 1024, 16, 30522
STEPS = 15

Weights = List[torch.Tensor]
Step = Callable[[], torch.Tensor]


class _Model:
    """A model whose weights are made in its first pass; later passes take them in the same order."""

    def __init__(self) -> None:
        self.weights: Weights = []
        self._taken = 0

    def _begin(self) -> None:
        self._taken = 0

    def _take(self, *shape: int) -> torch.Tensor:
        if self._taken == len(self.weights):
            self.weights.append(torch.empty(shape, device="cuda").normal_(0, 0.02).requires_grad_())
        self._taken += 1
        return self.weights[self._taken - 1]


class _ResNet(_Model):
    """ResNet-50, the stride in the 3 x 3 convolution."""

    def loss(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self._begin()
        x = functional.max_pool2d(functional.relu(self._layer(pictures, 64, 7, 2)), 3, 2, 1)
        for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for block in range(blocks):
                stride = 2 if number and not block else 1
                shortcut = x if block else self._layer(x, 4 * width, 1, stride)
                y = functional.relu(self._layer(x, width, 1))
                y = functional.relu(self._layer(y, width, 3, stride))
                x = functional.relu(self._layer(y, 4 * width, 1) + shortcut)
        logits = x.mean([2, 3]) @ self._take(x.shape[1], CLASSES) + self._take(CLASSES)
        return functional.cross_entropy(logits, labels)

    def _layer(self, x: torch.Tensor, width: int, kernel: int, stride: int = 1) -> torch.Tensor:
        w = self._take(width, x.shape[1], kernel, kernel)
        y = functional.conv2d(x, w.contiguous(memory_format=torch.channels_last), None, stride, kernel // 2)
        return functional.batch_norm(y, None, None, self._take(width), self._take(width), True)


class _Bert(_Model):
    """BERT-Large with its masked words."""

    def loss(self, ids: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self._begin()
        x = self._normalized(functional.embedding(ids, self._take(WORDS, WIDTH)) + self._take(LENGTH, WIDTH))
        for _ in range(LAYERS):
            x = self._layer(x)
        masked = (places.unsqueeze(-1) == torch.arange(LENGTH, device="cuda")).to(x.dtype) @ x
        logits = masked.reshape(-1, WIDTH) @ self._take(WIDTH, WORDS) + self._take(WORDS)
        return functional.cross_entropy(logits, labels.reshape(-1))

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = [
            self._dense(x, WIDTH).reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2).contiguous()
            for _ in range(3)
        ]
        scores = torch.softmax(query @ key.transpose(2, 3) / (WIDTH / HEADS) ** 0.5, -1)
        context = (scores @ value).transpose(1, 2).reshape(-1, LENGTH, WIDTH)
        x = self._normalized(x + self._dense(context, WIDTH))
        hidden = self._dense(x, 4 * WIDTH)
        hidden = 0.5 * hidden * (1.0 + torch.erf(hidden / 2.0**0.5))
        return self._normalized(x + self._dense(hidden, WIDTH))

    def _dense(self, x: torch.Tensor, outputs: int) -> torch.Tensor:
        return x @ self._take(x.shape[-1], outputs) + self._take(outputs)

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean.detach()).square().mean(-1, keepdim=True)
        factor = torch.rsqrt(variance + 1e-12) * self._take(WIDTH)
        return x * factor + (self._take(WIDTH) - mean * factor)


def resnet() -> Step:
    """The step of ResNet-50 with momentum."""
    model = _ResNet()
    pictures = torch.rand(PICTURES, 3, SIDE, SIDE, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, [PICTURES], device="cuda")
    return _step(lambda: model.loss(pictures, labels), model.weights, lambda w: torch.optim.SGD(w, 1e-3, 0.9))


def bert() -> Step:
    """The step of BERT-Large with Adam."""
    model = _Bert()
    ids, places, labels = [
        torch.randint(below, [ROWS, length], device="cuda")
        for below, length in ((WORDS, LENGTH), (LENGTH, MASKED), (WORDS, MASKED))
    ]

    def adam(weights: Weights) -> torch.optim.Optimizer:
        return torch.optim.Adam(weights, 1e-4, fused=True, capturable=True)

    return _step(lambda: model.loss(ids, places, labels), model.weights, adam)


def _step(loss: Step, weights: Weights, optimizer: Callable[[Weights], torch.optim.Optimizer]) -> Step:
    loss()
    update = optimizer(weights)

    def step() -> torch.Tensor:
        update.zero_grad()
        found = loss()
        found.backward()
        update.step()
        return found

    return step


def measured(step: Step) -> Tuple[float, float]:
    """Milliseconds of a step started op by op, and of one that is one CUDA graph, so that no op waits for Python."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.synchronize()
    found = [_median(step)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    found.append(_median(graph.replay))
    return found[0], found[1]


def kernels(step: Step) -> int:
    """How many kernels a step has."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def _median(call: Callable[[], object]) -> float:
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Prints the steps of both models, in float32 as TF32 and in float32."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; milliseconds of a step")
    for name, build in (("ResNet-50, 64 pictures", resnet), ("BERT-Large, 32 rows of 128", bert)):
        for precision, tensor_float in (("float32 as TF32", True), ("float32", False)):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tensor_float
            torch.cuda.reset_peak_memory_stats()
            step = build()
            one_by_one, graph = measured(step)
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"{name}, {precision}: {one_by_one:.1f}, as one graph {graph:.1f}; {kernels(step)} kernels; "
                f"peak {peak:.1f} GiB",
                flush=True,
            )
            del step
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
