"""The devices of a job: its processes, the local devices of each, and the virtual devices of a model on them.

This module names devices, chooses between GPUs and virtual CPU devices, and makes the configuration with which a
session sees them (`config_proto`). The processes come from `epl/cluster/tf_config.py`, the rules of layouts from
`epl/cluster/device_layouts.py`. Nothing here makes a session or touches a GPU. The module assumes that all processes
have the same number of devices; the collective core compares the numbers when the job starts.

With W processes of N devices each, the device i of the worker w has the rank w * N + i. `cluster.device_order` numbers
the devices of each process anew: all but `local_device` count them in that order.
"""

import warnings
from typing import Any, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster import device_layouts, tf_config
from epl.cluster.device_layouts import LayoutSpec, Slices, Slot, VirtualDevice
from epl.config.config import Config
from epl.env import Env
from epl.utils import gpu_info
from epl.utils.errors import ClusterError, LayoutError


class Cluster:
    """The devices of this job, as every process sees them.

    As a context manager (`with epl.Cluster(...) as cluster:`) it becomes the cluster of the environment, and stays so.
    It is one class because scripts of EPL read all of its attributes from this object.
    """

    def __init__(
        self,
        worker_hosts: Optional[tf_config.Hosts] = None,
        ps_hosts: Optional[tf_config.Hosts] = None,
        job_name: str = "worker",
        worker_index: int = 0,
        layout: LayoutSpec = "all",
        config: Optional[Config] = None,
    ) -> None:
        """Finds the processes and the local devices.

        Args:
          worker_hosts: `host:port` of each worker, as a sequence or separated by commas; by default those of
            TF_CONFIG; without TF_CONFIG the tasks of srun or mpirun; without these the job is this process alone.
          ps_hosts: more processes, which become the last workers.
          job_name: "worker" or "ps": whose index `worker_index` is.
          worker_index: this process among `worker_hosts` or `ps_hosts`.
          layout: "all" (every device, for every TaskGraph), "auto" or None (by the TaskGraphs, once they are known),
            {"specific": [[[device, ...], ...], ...]} (names by TaskGraph, replica, device) or {"aware_row": n}.
          config: the configuration; by default that of `epl.init`.

        Raises:
          ClusterError: the description of the processes is incomplete, or a device does not exist (`ValueError`).
          LayoutError: the layout is unknown or does not fit the devices.
        """
        self._config = config or _current_config()
        self._layout = device_layouts.parse_layout(layout)
        job = _find_job(worker_hosts, ps_hosts, job_name, worker_index)
        if self._layout.name == "aware_row":
            job = tf_config.rows_by_machine(job)
        self._hosts = job.hosts
        self._worker_index = job.worker_index
        self._device_type, self._devices_per_worker = _local_devices(self._config)
        self._order = _order_of_devices(self._config, self._devices_per_worker)
        self._virtual_devices: List[VirtualDevice] = []
        if self._layout.name != "auto":
            self._virtual_devices = self._name_slices(self._fixed_slices())

    @property
    def hosts(self) -> List[str]:
        """The address of every worker, host and port, by worker index."""
        return list(self._hosts)

    @property
    def machines(self) -> List[str]:
        """The machine of every worker, which is its host without the port, by worker index."""
        return [tf_config.machine_of(host) for host in self._hosts]

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The hosts in TensorFlow's form, in the order of `hosts`."""
        return tf.train.ClusterSpec({"worker": self.hosts})

    @property
    def worker_num(self) -> int:
        """The number of processes."""
        return len(self._hosts)

    @property
    def worker_index(self) -> int:
        """The index of this process."""
        return self._worker_index

    @property
    def device_type(self) -> str:
        """ "GPU", or "CPU" when virtual CPU devices are used in place of GPUs."""
        return self._device_type

    @property
    def gpu_num_per_worker(self) -> int:
        """The number of devices of each process, virtual CPU devices included."""
        return self._devices_per_worker

    @property
    def total_gpu_num(self) -> int:
        """The number of devices of the job, virtual CPU devices included."""
        return self.worker_num * self._devices_per_worker

    @property
    def local_ranks(self) -> List[int]:
        """The ranks of the devices of this process, among all devices of the job."""
        first = self._worker_index * self._devices_per_worker
        return list(range(first, first + self._devices_per_worker))

    @property
    def layout(self) -> device_layouts.DeviceLayout:
        """The layout, parsed."""
        return self._layout

    @property
    def available_devices(self) -> List[str]:
        """The names of the devices of this process. Scripts divide the batch of a process by how many there are."""
        return [self._name(Slot(self._worker_index, device)) for device in range(self._devices_per_worker)]

    @property
    def all_devices(self) -> List[str]:
        """The names of all devices of the job, by rank."""
        return [self._name(slot) for slot in device_layouts.device_order(self.worker_num, self._devices_per_worker)]

    @property
    def virtual_devices(self) -> List[VirtualDevice]:
        """The virtual devices; with the layout "auto" those of the model that was built last, once it has gradients."""
        return list(self._virtual_devices)

    def generate_virtual_devices(self, num_device_per_taskgraph: Sequence[int]) -> List[VirtualDevice]:
        """Returns the virtual device of each TaskGraph of a model, and keeps them as `virtual_devices`.

        Several models may be built in one process: each call returns the devices of its own model.

        Args:
          num_device_per_taskgraph: devices of one model replica, by TaskGraph. A layout other than "auto" does not
            read the numbers, only how many TaskGraphs there are.

        Raises:
          LayoutError: the devices of the job are not a multiple of those of a model replica, or the layout has another
            number of virtual devices than the model has TaskGraphs.
        """
        _check_numbers(num_device_per_taskgraph)
        if self._layout.name == "auto":
            prefer_intra_node = self._config.cluster.device_place_prefer_intra_node
            self._virtual_devices = self._name_slices(
                device_layouts.generate_virtual_devices(
                    num_device_per_taskgraph, self.worker_num, self._devices_per_worker, prefer_intra_node
                )
            )
            return self.virtual_devices
        if len(self._virtual_devices) == 1:
            return self._virtual_devices * len(num_device_per_taskgraph)
        if len(self._virtual_devices) != len(num_device_per_taskgraph):
            raise LayoutError(
                f"the layout {self._layout.name} has {len(self._virtual_devices)} virtual devices, and the model has "
                f"{len(num_device_per_taskgraph)} TaskGraph(s). Expected one virtual device for each TaskGraph, or one "
                "for all."
            )
        return self.virtual_devices

    def local_device(self, index: int) -> str:
        """Returns the name of a device of this process in its own session, such as "/device:CPU:1"."""
        if not 0 <= index < self._devices_per_worker:
            raise ClusterError(f"this process has {self._devices_per_worker} device(s), and no device {index}.")
        return f"/device:{self._device_type}:{index}"

    def current_worker_chief_gpu(self) -> str:
        """Returns the name in the job of the first device of this process, be it a GPU or a virtual CPU device."""
        return self._name(Slot(self._worker_index, 0))

    def current_worker_cpu(self) -> str:
        """Returns the name in the job of the first CPU device of this process."""
        return f"/job:worker/replica:0/task:{self._worker_index}/device:CPU:0"

    def config_proto(self, base: Optional[tf.ConfigProto] = None, allow_growth: bool = True) -> tf.ConfigProto:
        """Returns a session configuration with which the devices of this process exist.

        Args:
          base: the user's own configuration, which is not modified; its settings are kept.
          allow_growth: take GPU memory as it is needed, unless `base` reserves a fraction of it.

        Raises:
          TypeError: `base` is no ConfigProto.
          ClusterError: `base` shows the session other GPUs than those of the cluster.
        """
        if base is not None and not isinstance(base, tf.ConfigProto):
            raise TypeError(f"expected a tf.ConfigProto as the configuration of a session, got {type(base).__name__}.")
        proto = tf.ConfigProto()
        if base is not None:
            proto.CopyFrom(base)
        proto.allow_soft_placement = True
        if self._device_type == "CPU":
            proto.device_count["CPU"] = max(proto.device_count["CPU"], self._devices_per_worker)
            # A session that sees GPUs allocates their memory, even if the plan places no op there.
            if base is None or "GPU" not in base.device_count:
                proto.device_count["GPU"] = 0
            _optimize_less(proto.graph_options.rewrite_options)
            return proto
        self._show_gpus(proto)
        if not proto.gpu_options.per_process_gpu_memory_fraction:
            proto.gpu_options.allow_growth = proto.gpu_options.allow_growth or allow_growth
        return proto

    def describe(self) -> str:
        """Returns the cluster in words: hosts, devices, virtual devices."""
        return "\n".join(
            [
                f"{self.worker_num} worker(s) x {self._devices_per_worker} {self._device_type} device(s), "
                f"this is worker {self._worker_index}, layout {self._layout.name}",
                "hosts: " + ", ".join(self._hosts),
                device_layouts.describe(self._virtual_devices),
            ]
        )

    def __repr__(self) -> str:
        return f"epl.Cluster({self.describe()})"

    def __enter__(self) -> "Cluster":
        Env.get().use(self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        """Leaves the cluster in place: ops that are built after the block still run on it."""

    def _show_gpus(self, proto: tf.ConfigProto) -> None:
        visible = self._config.cluster.run_visible_devices
        asked = proto.gpu_options.visible_device_list.replace(" ", "")
        if asked and visible and asked != visible:
            raise ClusterError(
                f'the session asks for gpu_options.visible_device_list "{asked}", and cluster.run_visible_devices is '
                f'"{visible}". Set only the configuration key.'
            )
        if asked and len(asked.split(",")) != self._devices_per_worker:
            raise ClusterError(
                f'the session asks for gpu_options.visible_device_list "{asked}", and EPL counts on '
                f"{self._devices_per_worker} GPU(s). Set the configuration key cluster.run_visible_devices instead."
            )
        if "GPU" in proto.device_count and proto.device_count["GPU"] < self._devices_per_worker:
            raise ClusterError(
                f"the session asks for device_count GPU={proto.device_count['GPU']}, and EPL counts on "
                f"{self._devices_per_worker} GPU(s). Set the configuration key cluster.run_visible_devices instead."
            )
        if visible:
            proto.gpu_options.visible_device_list = visible

    def _fixed_slices(self) -> Tuple[Slices, ...]:
        """Returns the devices by TaskGraph and replica, for layouts that do not depend on the model."""
        if self._layout.name == "all":
            return device_layouts.all_slices(self.worker_num, self._devices_per_worker)
        if self._layout.name == "aware_row":
            return device_layouts.aware_row_slices(self._layout.argument, self.machines, self._devices_per_worker)
        slices = self._parse_specific(self._layout.argument)
        device_layouts.check_specific(slices)
        return slices

    def _parse_specific(self, names: Any) -> Tuple[Slices, ...]:
        nested = isinstance(names, (list, tuple)) and all(
            isinstance(replicas, (list, tuple)) and all(isinstance(replica, (list, tuple)) for replica in replicas)
            for replicas in names
        )
        if not nested or not names:
            raise LayoutError(
                f"the layout specific needs device names in three levels, by TaskGraph, replica and device, such as "
                f'[[["{self.all_devices[0]}"]]]; got {names!r}.'
            )
        return tuple(tuple(tuple(self._slot(name) for name in replica) for replica in replicas) for replicas in names)

    def _slot(self, name: Any) -> Slot:
        """Returns the device that a user names; "GPU" also names the virtual CPU device that is used in its place."""
        try:
            spec = tf.DeviceSpec.from_string(name)
        except (ValueError, AttributeError):
            raise LayoutError(f"the layout specific has {name!r}, which is not the name of a device.") from None
        worker = spec.task
        if worker is None and self.worker_num == 1:
            worker = 0
        known = (
            spec.job in (None, "worker")
            and spec.device_type in ("GPU", self._device_type)
            and worker is not None
            and worker < self.worker_num
            and spec.device_index is not None
            and spec.device_index < self._devices_per_worker
        )
        if not known:
            raise LayoutError(
                f"the layout specific has {name!r}, which is no device of this job. Its devices are "
                f"{', '.join(self.all_devices)}."
            )
        return Slot(worker, self._order.index(spec.device_index))

    def _name_slices(self, slices: Tuple[Slices, ...]) -> List[VirtualDevice]:
        return [
            VirtualDevice(
                index,
                tuple(tuple(self._name(slot) for slot in replica) for replica in replicas),
                self._worker_index,
                device_layouts.local_indices(slices[0], replicas, self._worker_index),
            )
            for index, replicas in enumerate(slices)
        ]

    def _name(self, slot: Slot) -> str:
        return f"/job:worker/replica:0/task:{slot.worker}/device:{self._device_type}:{self._order[slot.device]}"


def _current_config() -> Config:
    return Env.get().config or Config()


def _find_job(
    worker_hosts: Optional[tf_config.Hosts], ps_hosts: Optional[tf_config.Hosts], job_name: str, worker_index: int
) -> tf_config.JobHosts:
    if worker_hosts:
        return tf_config.from_arguments(worker_hosts, ps_hosts, job_name, worker_index)
    if ps_hosts:
        raise ClusterError(f"epl.Cluster got ps_hosts={ps_hosts!r} without worker_hosts; give both, or set TF_CONFIG.")
    job = tf_config.from_environment()
    if (job_name, worker_index) != ("worker", 0) and worker_index != job.worker_index:
        raise ClusterError(
            f"epl.Cluster got job_name={job_name!r}, worker_index={worker_index!r} without worker_hosts, and by "
            f"TF_CONFIG or the scheduler this process is worker {job.worker_index} of {len(job.hosts)}. Give "
            "worker_hosts as well, or leave worker_index out."
        )
    return job


def _check_numbers(num_device_per_taskgraph: Any) -> None:
    numbers = num_device_per_taskgraph
    if not isinstance(numbers, (list, tuple)) or not all(isinstance(n, int) for n in numbers):
        raise LayoutError(
            f"generate_virtual_devices got {numbers!r}; expected the number of devices of each TaskGraph of one model "
            "replica, such as [1, 1]."
        )


def _optimize_less(options: Any) -> None:
    """Leaves out what takes time before a first step and gives nothing on CPUs; what the user has set is kept.

    The memory optimizer has no GPU whose tensors it could swap, the shape optimizer replaces products of shapes by
    sizes, and the second pass of the others finds next to nothing: docs/profiling.md, "Time to the first step".
    """
    if options.shape_optimization == options.DEFAULT:
        options.shape_optimization = options.OFF
    if options.memory_optimization == options.DEFAULT_MEM_OPT:
        options.memory_optimization = options.NO_MEM_OPT
    if options.meta_optimizer_iterations == options.DEFAULT_NUM_ITERS:
        options.meta_optimizer_iterations = options.ONE


def _local_devices(config: Config) -> Tuple[str, int]:
    """Returns the type and the number of the devices of this process, by the configuration.

    Raises:
      ClusterError: the configuration asks for GPUs that TensorFlow cannot use or that do not exist.
    """
    wanted = config.cluster.device_type
    gpus = 0 if wanted == "cpu" else _usable_gpus(config)
    if gpus:
        return "GPU", gpus
    if wanted == "gpu":
        cause = "CUDA_VISIBLE_DEVICES leaves none of them, or the driver has none"
        if not tf.test.is_built_with_cuda():
            cause = "this TensorFlow is built without CUDA: install tensorflow-gpu==1.15.5"
        raise ClusterError(
            f"cluster.device_type is gpu ({config.provenance('cluster.device_type')}), and no GPU can be used: {cause}."
            ' Set it to "cpu" to train on virtual CPU devices.'
        )
    if config.cluster.run_visible_devices:
        warnings.warn(
            f"cluster.run_visible_devices = {config.cluster.run_visible_devices} has no effect: no GPU is used.",
            stacklevel=4,
        )
    return "CPU", config.cluster.num_virtual_devices or 1


def _order_of_devices(config: Config, count: int) -> List[int]:
    """Returns the devices of a process in the order in which plans take them.

    Raises:
      ClusterError: `cluster.device_order` does not name each device once.
    """
    given = config.cluster.device_order
    order = [int(index) for index in given.split(",")] if given else list(range(count))
    if sorted(order) != list(range(count)):
        raise ClusterError(
            f"cluster.device_order = {given} ({config.provenance('cluster.device_order')}) does not name the devices "
            f"of a process, 0 to {count - 1}, each once: name all of them, or leave the key out."
        )
    return order


def _usable_gpus(config: Config) -> int:
    """Returns how many GPUs this process uses: the visible ones, or those of them that the configuration picks."""
    present = gpu_info.visible_gpu_count() if tf.test.is_built_with_cuda() else 0
    picked = config.cluster.run_visible_devices
    if not picked or not present:
        return present
    indices = [int(index) for index in picked.split(",")]
    if max(indices) >= present:
        raise ClusterError(
            f"cluster.run_visible_devices = {picked} ({config.provenance('cluster.run_visible_devices')}) names the "
            f"GPU {max(indices)}, and {present} GPU(s) are visible, counted from 0."
        )
    return len(indices)
