"""Devices and links that a machine may name without describing them, each number with its source.

A peak is of a vendor's data sheet; the fraction is what programs reach of it. "Assumed" stands where nothing was
published or measured.
"""

import textwrap
from typing import Dict, List, Optional, Sequence, Tuple

from epl.planner.machine import quantities
from epl.planner.machine.machine import Device, Interconnect, OpRate, Sources, Speed
from epl.planner.machine.op_kinds import CONTRACTION, Kind

_TERA = 1e12
_GIGA = 1e9
_GIB = 2**30
_WIDTH = 118  # characters of a line of sources

# What GPUs reach of the peak of their cores, of their memory, and of their tensor cores, where nothing was measured.
_CORES = 0.9
_TENSOR_CORES = 0.66
_ASSUMED = "fraction assumed"
_V100_REACHED = (
    "fractions: 0.9 assumed; float16 by tensor cores 83 of 125 TFLOP/s, measured in Markidis et al., NVIDIA Tensor "
    "Core Programmability, Performance & Precision, 2018; depthwise convolutions by cores, float16 at twice the rate"
)
_IS_TF32 = "float32 is TF32, in which NVIDIA's TensorFlow computes it, and has {} TFLOP/s with NVIDIA_TF32_OVERRIDE=0"
_MEASURED = "measured with benchmarks/gpu/rates.py on one H100, PyTorch 2.11"


def _gpu(
    name: str,
    sheet: str,
    reached: str,
    rates: Dict[str, Dict[str, Tuple[float, float]]],
    bandwidth: Tuple[float, float, str],
    memory: int,
) -> Device:
    """A GPU.

    Args:
      name: of the preset.
      sheet: the data sheet.
      reached: what is to be known of rates and their fractions.
      rates: kind of ops -> dtype -> TFLOP/s, and the fraction that they reach.
      bandwidth: GB/s of its memory, the fraction that is reached, and where that is from.
      memory: GiB.
    """
    speeds = [
        OpRate(kind, dtype, Speed(_flops(peak), part))
        for kind, of_dtypes in rates.items()
        for dtype, (peak, part) in of_dtypes.items()
    ]
    sources = (
        ("flops", f"{sheet}; {reached}"),
        ("bandwidth", f"{sheet}; {bandwidth[2]}"),
        ("memory", f"{sheet}, whose GB of memory are GiB"),
        ("launch_overhead", "assumed: the launch of a CUDA kernel"),
        ("threads", "TensorFlow computes on one stream of a GPU"),
    )
    return Device(name, tuple(speeds), Speed(bandwidth[0] * _GIGA, bandwidth[1]), memory * _GIB, 5e-6, 1, sources)


def _flops(teraflops: float) -> float:
    return float(round(teraflops * _TERA))


_V100 = "data sheet NVIDIA Tesla V100 SXM2"
_V100_RATES = {
    CONTRACTION: {"float32": (15.7, _CORES), "float16": (125.0, _TENSOR_CORES), "float64": (7.8, _CORES)},
    Kind.DEPTHWISE: {"float32": (15.7, _CORES), "float16": (31.4, _CORES)},
}
_V100_BANDWIDTH = (900.0, _CORES, _ASSUMED)
_A100 = "data sheet NVIDIA A100 SXM4"
_A100_REACHED = (
    "depthwise convolutions: white paper NVIDIA A100 Tensor Core GPU Architecture; "
    + _IS_TF32.format(19.5)
    + "; fraction of tensor cores assumed as on a V100, 0.9 of cores assumed"
)
_A100_RATES = {
    CONTRACTION: {
        "float32": (156.0, _TENSOR_CORES), "float16": (312.0, _TENSOR_CORES), "bfloat16": (312.0, _TENSOR_CORES),
        "float64": (19.5, _TENSOR_CORES),
    },
    Kind.DEPTHWISE: {"float32": (19.5, _CORES), "float16": (78.0, _CORES)},
}  # fmt: skip
_H100_REACHED = (
    "without sparsity: white paper NVIDIA H100 Tensor Core GPU Architecture; "
    + _IS_TF32.format("67 x 0.78")
    + f"; fractions {_MEASURED}, where no dimension is narrow: matmuls of BERT-Large, and 3 x 3 convolutions of "
    "ResNet-50 (float32 0.48, half precision 0.53, float64 as tensor cores of a V100, assumed); batch norm measured; "
    "depthwise convolutions by cores, 0.9 assumed"
)
_H100_RATES = {
    CONTRACTION: {
        "float32": (494.7, 0.6), "float16": (989.4, 0.62), "bfloat16": (989.4, 0.62), "float64": (67.0, 0.9),
    },
    Kind.CONVOLUTION: {
        "float32": (494.7, 0.48), "float16": (989.4, 0.53), "bfloat16": (989.4, 0.53),
        "float64": (67.0, _TENSOR_CORES),
    },
    Kind.DEPTHWISE: {"float32": (67.0, _CORES), "float16": (133.8, _CORES)},
    Kind.NORM: {"float32": (1.6, 1.0), "float16": (3.1, 1.0), "bfloat16": (3.1, 1.0)},
}  # fmt: skip

# One thread of a CPU, as docs/auto_partition.md has it; other dtypes count as float32.
_CPU_RATES = {
    Kind.MATMUL: 100e9, Kind.BATCH_MATMUL: 40e9, Kind.CONVOLUTION: 100e9, Kind.DEPTHWISE: 1.8e9,
    Kind.TRANSCENDENTAL: 0.65e9, Kind.SLOW: 0.057e9, Kind.SEARCH: 0.7e9, Kind.SOFTMAX: 1.4e9,
    Kind.CROSS_ENTROPY: 0.85e9, Kind.NORM: 1.1e9, Kind.POOL: 1.5e9, Kind.RANDOM: 0.18e9,
}  # fmt: skip
_CPU_SOURCE = (
    "measured with RunMetadata FULL_TRACE, TensorFlow 1.15.5, one thread of an Intel Xeon at 2.5 GHz with AVX-512, "
    "sizes of BERT-base and ResNet-50 layers"
)

_DEVICES = (
    Device(
        "cpu",
        tuple(OpRate(kind, "float32", Speed(rate)) for kind, rate in _CPU_RATES.items()),
        Speed(10e9),
        None,
        3e-6,
        1,
        (("", _CPU_SOURCE),),
        "CPU",
        0,
    ),
    _gpu(
        "p100-16",
        "data sheet NVIDIA Tesla P100 for PCIe, 16 GB",
        _ASSUMED,
        {CONTRACTION: {"float32": (9.3, _CORES), "float16": (18.7, _CORES), "float64": (4.7, _CORES)}},
        (732.0, _CORES, _ASSUMED),
        16,
    ),
    _gpu("v100-16", _V100, _V100_REACHED, _V100_RATES, _V100_BANDWIDTH, 16),
    _gpu("v100-32", _V100, _V100_REACHED, _V100_RATES, _V100_BANDWIDTH, 32),
    _gpu("a100-40", _A100, _A100_REACHED, _A100_RATES, (1555.0, _CORES, _ASSUMED), 40),
    _gpu("a100-80", _A100, _A100_REACHED, _A100_RATES, (2039.0, _CORES, _ASSUMED), 80),
    _gpu(
        "h100-80",
        "data sheet NVIDIA H100 SXM5",
        _H100_REACHED,
        _H100_RATES,
        (3350.0, 0.88, f"fraction {_MEASURED}: elementwise ops"),
        80,
    ),
)  # fmt: skip
DEVICES: Dict[str, Device] = {device.name: device for device in _DEVICES}


def _link(
    name: str, latency: Tuple[float, str], gigabytes: Tuple[float, str], part: Tuple[float, str], shared_by: int
) -> Interconnect:
    """A link; latency in microseconds, GB/s and the fraction of them that is reached, each with its source."""
    sources: Sources = (("latency", latency[1]), ("bandwidth", f"{gigabytes[1]}; {part[1]}"))
    speed = Speed(float(round(gigabytes[0] * _GIGA)), part[0])
    return Interconnect(name, float(f"{latency[0]}e-6"), speed, shared_by, sources)


_NVLINK_LATENCY = (3.4, "NCCL, src/graph/tuning.cc: hwLat of NVLink, ring, Simple")
_NVLINK = "data sheet NVIDIA {}: {} GB/s, half of it in each direction"
_NCCL = "fraction: NCCL, src/graph/topo.h: {} of {} GB/s of {}"
_ETHERNET_LATENCY = (14.0, "NCCL, src/graph/tuning.cc: hwLat of the network, ring, Simple")
_ETHERNET_PART = (0.9, "fraction assumed: headers leave 0.95 with frames of 1500 bytes")

_LINKS = (
    Interconnect(
        "shm", 50e-6, Speed(2e9), 1, (("", "assumed: shared memory between processes of a machine, for CPU devices"),)
    ),
    _link(
        "pcie3",
        (5.7, "NCCL, src/graph/tuning.cc: hwLat of PCI, ring, Simple"),
        (15.754, "PCI Express 3.0: 16 lanes of 8 GT/s, 128 of 130 bits"),
        (0.76, _NCCL.format("12.0", "15.75", "16 lanes")),
        1,
    ),
    _link(
        "nvlink2", _NVLINK_LATENCY, (150, _NVLINK.format("Tesla V100", 300)), (0.8, _NCCL.format(20, 25, "a link")), 1
    ),
    _link("nvlink3", _NVLINK_LATENCY, (300, _NVLINK.format("A100", 600)), (0.8, _NCCL.format(20, 25, "a link")), 1),
    _link("nvlink4", _NVLINK_LATENCY, (450, _NVLINK.format("H100", 900)), (0.82, _NCCL.format(20.6, 25, "a link")), 1),
) + tuple(
    _link(f"eth-{speed}", _ETHERNET_LATENCY, (speed / 8, "the number in the name, in Gbit/s"), _ETHERNET_PART, 0)
    for speed in (10, 25, 50, 100)
)
LINKS: Dict[str, Interconnect] = {link.name: link for link in _LINKS}

# The link between devices of a kind in a node that names none.
DEFAULT_LINKS = {
    "cpu": "shm", "p100-16": "pcie3", "v100-16": "nvlink2", "v100-32": "nvlink2", "a100-40": "nvlink3",
    "a100-80": "nvlink3", "h100-80": "nvlink4",
}  # fmt: skip


def describe_presets() -> str:
    """All presets as tables for a person: devices, links, and the sources of their numbers."""
    devices = [("device", "TFLOP/s float32", "float16", "memory", "GB/s", "link in a node")]
    for device in DEVICES.values():
        memory = "no limit" if device.memory is None else quantities.show(device.memory, quantities.BYTES)
        rates = [_rate_words(device, dtype) for dtype in ("float32", "float16")]
        devices.append(
            (device.name, rates[0], rates[1], memory, _times(device.bandwidth, _GIGA), DEFAULT_LINKS[device.name])
        )
    links = [("link", "GB/s", "latency", "shared by")]
    for link in LINKS.values():
        latency = quantities.show(link.latency, quantities.SECONDS)
        links.append((link.name, _times(link.bandwidth, _GIGA), latency, str(link.shared_by or "all of a node")))
    lines = _table(devices) + [""] + _table(links)
    lines += ["", "A x B: peak, and the fraction of it that programs reach. Rates are of matmuls.", "", "Sources"]
    names: Dict[Sources, List[str]] = {}
    for name, sources in [(one.name, one.sources) for one in _DEVICES] + [(one.name, one.sources) for one in _LINKS]:
        names.setdefault(sources, []).append(name)
    for sources, known in names.items():
        lines.append("  " + ", ".join(known))
        for key, source in sources:
            words = f"{key}: {source}" if key else source
            lines += textwrap.wrap(words, _WIDTH, initial_indent="    ", subsequent_indent="      ")
    return "\n".join(lines)


def _rate_words(device: Device, dtype: str) -> str:
    found: Optional[Speed] = None
    for rate in device.rates:
        if rate.kind in (CONTRACTION, Kind.MATMUL) and rate.dtype == dtype:
            found = rate.flops
    return "as float32" if found is None else _times(found, _TERA)


def _times(speed: Speed, scale: float) -> str:
    peak = f"{speed.peak / scale:.4g}"
    return peak if speed.fraction == 1 else f"{peak} x {speed.fraction:.3g}"


def _table(rows: Sequence[Tuple[str, ...]]) -> List[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
