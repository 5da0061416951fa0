"""What was measured of a model's ops on the device of this process: `auto.profile`.

measured(signature, device) --> in the file?  --> its seconds
                            `-> "measure": by itself, in a process of its own --> into the file
"""

import atexit
import datetime
import logging
import os
import time
from typing import Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.parallel.costs.backward import Signature
from epl.planner.machine.machine import Device
from epl.planner.profile import store
from epl.planner.profile.local_device import device_model, local_device
from epl.planner.profile.op_process import OpProcess
from epl.planner.profile.op_timing import MeasuredDevice

logger = logging.getLogger("epl")

CACHED, MEASURE = "cached", "measure"  # values of auto.profile
_SAVE_SECONDS = 5.0
_MOST_NAMED = 5  # ops that a note names


class OpProfile:
    """Measured times of ops on one device.

    Attributes:
      device: the kind of device of a plan's machine that stands for the device of this process.
    """

    def __init__(
        self, mode: str, device: Device, name: str, path: str, process: Optional[OpProcess], workers: int = 1
    ) -> None:
        """Reads the file; use `open_profile`.

        Args:
          mode: CACHED or MEASURE.
          device: the kind of device that stands for the one of this process.
          name: of the device in the file.
          path: of the file.
          process: what measures; None: nothing is measured.
          workers: among which the cores of `device` were divided when its ops were measured. The times of a device are
            those with all cores.
        """
        self.device = device
        self._workers = workers
        self._name = name
        self._path = path
        self._process = process if mode == MEASURE else None
        self._known: Dict[str, store.StoredOp] = store.read(path).get(name, {})
        self._new: Dict[str, store.StoredOp] = {}
        self._problems: Dict[str, Tuple[str, str]] = {}  # hash -> (op, why)
        self._missing: Dict[str, str] = {}
        self._saved = time.monotonic()
        atexit.register(self.close)

    def measured(self, op: Signature, device: Device) -> Optional[Tuple[float, float]]:
        """Seconds of one run of an op, forward and backward; None if they are not known.

        Args:
          op: the op.
          device: for which they are asked: what was measured is of `self.device` alone.
        """
        if device != self.device:
            return None
        key = store.hash_of(op)
        if key not in self._known and key not in self._problems:
            self._find(key, op)
        found = self._known.get(key)
        return None if found is None else (found.forward / self._workers, found.backward / self._workers)

    def notes(self) -> List[str]:
        """Which ops have no measured time, and why, for people."""
        found = []
        if self._missing:
            found.append(
                f"{len(self._missing)} ops are not in {self._path} ({_named(list(self._missing.values()))}): their "
                'times are computed; auto.profile "measure" measures them'
            )
        by_reason: Dict[str, List[str]] = {}
        for op, why in self._problems.values():
            by_reason.setdefault(why, []).append(op)
        for why, ops in by_reason.items():
            found.append(f"{_named(ops)} could not be measured, as {why}: times are computed")
        return found

    def close(self) -> None:
        """Ends what measures, and saves what it has found."""
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.close()
        self._save()

    def _find(self, key: str, op: Signature) -> None:
        text = describe(op)
        if self._process is None:
            self._missing[key] = text
            return
        found = self._process.measure(op)
        if found.forward is None or found.backward is None:
            self._problems[key] = (op.type, found.problem)
            return
        longer = max(found.forward, found.backward)
        today = datetime.date.today().isoformat()
        self._known[key] = self._new[key] = store.StoredOp(
            text, found.forward.seconds, found.backward.seconds, round(longer.spread, 4), today
        )
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        """Writes what is new; if that fails, this run goes on without."""
        new, self._new = self._new, {}
        self._saved = time.monotonic()
        if new:
            try:
                store.add(self._path, self._name, new)
            except OSError as error:
                logger.warning("Measured times of ops cannot be written to %s and are lost: %s.", self._path, error)


def open_profile(mode: str, cluster: Cluster, device: Device) -> Optional[OpProfile]:
    """The profile of the device of this process.

    Args:
      mode: the value of auto.profile; "": none.
      cluster: the devices of the job.
      device: the kind of device, of a plan's machine, that stands for the device of this process.
    """
    if not mode:
        return None
    place = local_device(cluster)
    workers = 1
    if device.type == "CPU" and device.shared_by != 1 and place.threads < (os.cpu_count() or 1):
        workers = cluster.machines.count(cluster.machines[cluster.worker_index])
    return OpProfile(mode, device, device_name(cluster, place), store.default_path(), OpProcess(place), workers)


def device_name(cluster: Cluster, place: MeasuredDevice) -> str:
    """What tells one device from another in the file: model, threads, TensorFlow."""
    return f"{device_model(cluster)}, {place.threads} thread(s), TensorFlow {tf.version.VERSION}"


def describe(op: Signature) -> str:
    """An op in words: MatMul [64,512] [512,512]."""
    return " ".join([op.type] + [str(list(one.shape or ())).replace(" ", "") for one in op.inputs])


def _named(ops: List[str]) -> str:
    different = list(dict.fromkeys(ops))
    rest = len(different) - _MOST_NAMED
    return ", ".join(different[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
