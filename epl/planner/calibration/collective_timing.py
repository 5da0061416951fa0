"""Times collectives between the devices of a job, each by itself; runs in every worker of the job.

collective 0 --> collective 1 --> ... --> collective n - 1      on every rank
seconds of one = (seconds of all - seconds of the first) / (n - 1), of the rank that takes longest
"""

import json
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.ops.communicator import Communicator
from epl.ops.job import Job
from epl.planner.calibration.link_fit import TimedCollective
from epl.planner.machine.collective_algorithms import transport_between
from epl.planner.profile.op_timing import summary

KIB = 1024
_ITEM = 4  # bytes of a float32
# Bytes of the full tensor: (collectives in a run, runs).
SIZES = {4 * KIB: (16, 15), 64 * KIB: (16, 11), 1024 * KIB: (8, 9), 8192 * KIB: (4, 7), 32768 * KIB: (3, 5)}

# Builds a collective of one rank: communicator, what the rank has before, rank, key.
_Build = Callable[[Communicator, tf.Tensor, int, str], tf.Tensor]
_BUILDERS: Dict[str, _Build] = {
    "all-reduce": lambda group, tensor, rank, key: group.all_reduce(tensor, rank, key),
    "reduce-scatter": lambda group, tensor, rank, key: group.reduce_scatter(tensor, rank, key),
    "all-gather": lambda group, tensor, rank, key: group.all_gather(tensor, rank, key, equal_rows=True),
    "broadcast": lambda group, tensor, rank, key: group.broadcast(tensor, rank, key),
    "all-to-all": lambda group, tensor, rank, key: group.all_to_all(tensor, rank, key),
}
_OF_PARTS = "all-gather"  # each rank has a part of the full tensor before


def groups_of(workers: int, devices: int) -> List[Tuple[str, Tuple[int, ...]]]:
    """The groups of ranks that are measured: (where, ranks); "inside" a process and "between" processes.

    Two devices, and all of them: how a time grows with the devices tells whether they share the link.
    """
    inside, between = range(devices), range(0, workers * devices, devices)
    found = []
    for where, ranks in (("inside", inside), ("between", between)):
        for count in sorted({2, len(ranks)}):
            if count <= len(ranks) and len(ranks) > 1:
                found.append((where, tuple(ranks[:count])))
    return found


def time_collectives(
    cluster: Cluster, job: Job, config: tf.ConfigProto, ranks: Sequence[int], name: str, share: float
) -> List[TimedCollective]:
    """Times all collectives at all sizes between some devices; every worker of the job calls it.

    Args:
      cluster: devices of the workers, all with as many.
      job: the workers.
      config: of the sessions, with the devices of this process.
      ranks: the devices.
      name: of the group, the same in all workers.
      share: of the usual number of runs that is done, above 0.

    Returns:
      The times, the same in all workers.
    """
    devices = len(cluster.local_ranks)
    owners = [rank // devices for rank in ranks]
    takes_part = cluster.worker_index in owners
    transport = transport_between(cluster.device_type, hierarchical=False)
    group = Communicator(f"calibrate {name}", owners, transport) if takes_part else None
    found = []
    for collective, build in _BUILDERS.items():
        for nbytes, (copies, runs) in SIZES.items():
            runs = max(2, round(share * runs))
            part = nbytes // _ITEM // len(ranks)  # elements
            has = part * (1 if collective == _OF_PARTS else len(ranks))
            own: List[float] = []
            if group is not None:
                places = [cluster.local_device(ranks[rank] % devices) for rank in group.local_ranks]
                own = _time(group, places, build, f"{collective} {nbytes}", has, copies, runs, config)
            # Also a barrier: nothing is timed while something else is.
            parts = job.exchange(f"{name} {collective} {nbytes}", json.dumps(own).encode())
            rounds = zip(*(values for values in (json.loads(part.decode()) for part in parts) if values))
            found.append(
                TimedCollective(
                    collective, len(ranks), part * len(ranks) * _ITEM, summary([max(one) for one in rounds])
                )
            )
    if group is not None:
        group.close()
    return found


def _time(
    group: Communicator,
    places: Sequence[str],
    build: _Build,
    key: str,
    elements: int,
    copies: int,
    runs: int,
    config: tf.ConfigProto,
) -> List[float]:
    """Seconds of one collective, of several runs, on the ranks of this process."""
    with tf.Graph().as_default() as graph:
        first, last = [], []
        for place, rank in zip(places, group.local_ranks):
            with tf.device(place):
                tensor = tf.Variable(tf.ones([elements]), trainable=False, use_resource=False)
                made: List[Any] = []
                for number in range(copies):
                    with tf.control_dependencies(made[-1:]):
                        made.append(build(group, tensor, rank, f"{key} {number}").op)
                first.append(made[0])
                last.append(made[-1])
        ends = [tf.group(*first), tf.group(*last)]
        with tf.Session(graph=graph, config=config) as session:
            session.run(tf.global_variables_initializer())
            calls = [session.make_callable(end) for end in ends]
            for call in calls:
                call()
            return [_run(calls, copies) for _ in range(runs)]


def _run(calls: Sequence[Callable[[], Any]], copies: int) -> float:
    begin = time.perf_counter()
    calls[0]()
    middle = time.perf_counter()
    calls[1]()
    end = time.perf_counter()
    return max((end - middle) - (middle - begin), 1e-9) / (copies - 1)
