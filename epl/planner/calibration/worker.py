"""What each worker of a calibration does: all time collectives together, then each times ops, at the same time.

In training all of them compute, and take caches, memory bandwidth and the halves of cores from each other: on two such
halves an op of one worker takes 1.5 times as long as alone. The times of worker 0 count.

`calibrate.py` starts the workers by `epl.run`, as training would be started: each has its share of the cores.
"""

import time
from typing import Dict, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.parallel.plan.agreement import meet
from epl.planner.calibration.collective_timing import groups_of, time_collectives
from epl.planner.calibration.device_fit import MeasuredDeviceOps, TimedOp
from epl.planner.calibration.link_fit import TimedCollective
from epl.planner.calibration.op_samples import OpSample, narrow_matmuls, ops_of_kinds, tiny_ops
from epl.planner.profile.local_device import device_memory, device_model, local_device
from epl.planner.profile.op_timing import MeasuredDevice, measure
from epl.strategies.context import StrategyContext

# Dtype -> (rows of its samples on a CPU, seconds of each op). CPUs compute half precision up to 100 times slower.
_DTYPES = {tf.float32: (8, 0.1), tf.float64: (2, 0.03), tf.bfloat16: (1, 0.02), tf.float16: (1, 0.02)}
_ROWS_OF_A_GPU = 32
_TINY_SECONDS = 0.02
_OPS_SECONDS = 45.0  # after so long no further dtype is begun


class Measured(NamedTuple):
    """What was measured.

    Attributes:
      model: name of the processor.
      is_gpu: whether the devices are GPUs.
      memory: bytes of one device.
      memory_source: where they come from.
      ops: times of ops on one device.
      collectives: "inside" a process and "between" processes -> times of collectives.
    """

    model: str
    is_gpu: bool
    memory: int
    memory_source: str
    ops: MeasuredDeviceOps
    collectives: Dict[str, List[TimedCollective]]


def measure_here(share: float) -> Optional[Measured]:
    """Measures in a worker of a job; worker 0 returns what was found, the others None.

    Args:
      share: of the usual time that is spent, above 0; 1 is about a minute.
    """
    config = Config()
    cluster = Cluster(config=config)
    Env.get().init(config, cluster, StrategyContext())
    device = local_device(cluster)
    collectives: Dict[str, List[TimedCollective]] = {}
    groups = groups_of(cluster.worker_num, len(cluster.local_ranks))
    if groups:
        job = meet()
        sessions = cluster.config_proto(device.session_config())
        for number, (where, ranks) in enumerate(groups):
            _say(cluster, f"collectives {where} processes, {len(ranks)} devices")
            times = time_collectives(cluster, job, sessions, ranks, f"{number}", share)
            collectives.setdefault(where, []).extend(times)
        job.stop()
    if not device.is_gpu:  # of which each worker has its own
        device = device._replace(memory=device.memory / cluster.worker_num)
    ops = _time_ops(cluster, device, share)
    if cluster.worker_index > 0:
        return None
    return Measured(device_model(cluster), device.is_gpu, *device_memory(cluster), ops, collectives)


def _time_ops(cluster: Cluster, device: MeasuredDevice, share: float) -> MeasuredDeviceOps:
    begin = time.monotonic()
    tiny = _timed(tiny_ops(), device, share * _TINY_SECONDS)
    others: List[TimedOp] = []
    narrow: List[TimedOp] = []
    for dtype, (rows, seconds) in _DTYPES.items():
        if time.monotonic() - begin > share * _OPS_SECONDS and others:
            _say(cluster, f"ops in {dtype.name}: left out, as there is no time left; they count as float32")
            continue
        _say(cluster, f"ops in {dtype.name}")
        given = (_ROWS_OF_A_GPU if device.is_gpu else rows, dtype == tf.float32 and share >= 1)
        others += _timed(ops_of_kinds(dtype, *given), device, share * seconds)
        if dtype == tf.float32:
            narrow = _timed(narrow_matmuls(*given), device, share * seconds)
    return MeasuredDeviceOps(tiny, others, narrow)


def _timed(samples: List[OpSample], device: MeasuredDevice, seconds: float) -> List[TimedOp]:
    """Samples with their times; those that do not run here are left out."""
    found = measure([sample.op for sample in samples], device, seconds)
    return [TimedOp(samples[number], one.forward) for number, one in found if one.forward is not None]


def _say(cluster: Cluster, what: str) -> None:
    if cluster.worker_index == 0:
        print(what, flush=True)
