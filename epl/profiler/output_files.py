"""Where profiles are written: a folder, and names that differ between the workers of a job."""

import os
import re
from typing import Any, Dict, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env

DEFAULT_FOLDER = "epl_profile"


def make_folder(folder: str) -> str:
    """Creates the folder if it is missing; returns it. "" is the current one.

    Raises:
      OSError: it cannot be made.
    """
    os.makedirs(folder or os.curdir, exist_ok=True)
    return folder


def worker_of_device(device: str) -> int:
    """The worker of a device, as a session of this process names it: its own in a local session."""
    spec = tf.DeviceSpec.from_string(re.sub(r"/host$", "", device))
    return this_worker()[0] if spec.job in (None, "localhost") or spec.task is None else spec.task


def this_worker() -> Tuple[int, int]:
    """Index of this process, and how many there are; without `epl.init` it is alone."""
    cluster = Env.get().cluster
    return (0, 1) if cluster is None else (cluster.worker_index, cluster.worker_num)


def is_first_worker() -> bool:
    """Whether this process writes files that would be the same in all workers."""
    return this_worker()[0] == 0


def title_of_device(device: str) -> str:
    """A device for people: `CPU:0`, in a job of several workers `worker 1 CPU:0`."""
    local = re.sub(r"^.*/device:", "", device).strip("/").replace("/", " ")
    return f"worker {worker_of_device(device)} {local}" if this_worker()[1] > 1 else local


def origin_of_device(device: str) -> Dict[str, Any]:
    """The worker and the machine of a device, whose clock its times are of, as arguments of an event."""
    cluster = Env.get().cluster
    worker = worker_of_device(device)
    return {"worker": worker, "machine": "" if cluster is None else cluster.machines[worker]}


def file_part(title: str) -> str:
    """A title as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", title).strip("_")


def own_file(stem: str, ending: str) -> str:
    """The name of a file of this process: `<stem><ending>`, in a job of several workers `<stem>_worker_1<ending>`."""
    worker, count = this_worker()
    return "{}{}{}".format(stem, f"_worker_{worker}" if count > 1 else "", ending)
