"""Options of other launchers, and those of epl-launch that mean the same: mpirun, horovodrun, torchrun, deepspeed."""

from typing import Dict

# Spellings of --num_workers. Each worker then has one device, as the processes of these launchers do.
NUM_WORKERS = ("-np", "-n")
# The same, but counted on each machine.
PER_MACHINE = ("--nproc_per_node", "--nproc-per-node")

_MACHINES = (
    "-H HOST:SLOTS,... starts workers on several machines by ssh; without it give --machine_rank, --machine_list"
)
_RANK = "--machine_rank is the index of the worker that starts here"
_ADDRESSES = "--machine_list has the address of every worker, worker 0 first"
_HOSTFILE = "--hostfile has the machines, -H names them on the command line"
_DEVICES = "--gpu_per_worker is the number of devices of each worker"
_NEEDLESS = "epl-launch needs nothing of the kind; leave it out"

# Option -> what to do instead.
INSTEAD: Dict[str, str] = {
    "--nnodes": _MACHINES,
    "--num_nodes": _MACHINES,
    "--hosts": _MACHINES,
    "--host": _MACHINES,
    "--node_rank": _RANK,
    "--node-rank": _RANK,
    "--rank": _RANK,
    "--master_addr": _ADDRESSES,
    "--master-addr": _ADDRESSES,
    "--master_port": _ADDRESSES,
    "--master-port": _ADDRESSES,
    "--rdzv_endpoint": _ADDRESSES,
    "--rdzv-endpoint": _ADDRESSES,
    "-hostfile": _HOSTFILE,
    "--host-file": _HOSTFILE,
    "-machinefile": _HOSTFILE,
    "--machinefile": _HOSTFILE,
    "--gpus": _DEVICES,
    "--num_gpus": _DEVICES,
    "--gpus-per-node": _DEVICES,
    "--output-filename": "--log_dir is the directory of the logs",
    "--log-dir": "--log_dir is the directory of the logs",
    "--start-timeout": "--env EPL_COMMUNICATION_START_TIMEOUT=SECONDS says how long workers wait for each other",
    "--allow-run-as-root": _NEEDLESS,
    "--oversubscribe": _NEEDLESS,
    "--standalone": _NEEDLESS,
    "--tag-output": _NEEDLESS,
    "--rdzv_backend": _NEEDLESS,
    "--rdzv-backend": _NEEDLESS,
    "--rdzv_id": _NEEDLESS,
    "--rdzv-id": _NEEDLESS,
}
