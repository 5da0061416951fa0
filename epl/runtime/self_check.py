"""What `epl-launch --check` asks of the installed EPL: what is built in, and how long an all-reduce of each pair takes.

As a program it prints one line of JSON: `python -m epl.runtime.self_check facts`, or `pairs` in each worker of a job.
epl/launcher/check.py starts it and words the findings.
"""

import itertools
import json
import statistics
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ops import native
from epl.ops.communicator import Communicator
from epl.parallel.plan.agreement import meet
from epl.planner.machine.collective_algorithms import transport_between
from epl.strategies.context import StrategyContext
from epl.utils import gpu_info
from epl.utils.errors import EplError

_BYTES = 1000 * 1000
_RUNS = 5


def facts() -> Dict[str, Any]:
    """What is built into EPL and TensorFlow here.

    Returns:
      "native": why the native libraries cannot be used, or None; "transports": their names; "missing": what the others
      need, in words; "cuda": whether TensorFlow is built with CUDA; "gpus": how many this process sees.
    """
    why_not = native.why_not()
    return {
        "native": why_not,
        "transports": [] if why_not else native.require().transports(),
        "missing": "" if why_not else native.require().missing_transports(),
        "cuda": tf.test.is_built_with_cuda(),
        "gpus": gpu_info.visible_gpu_count(),
    }


def time_pairs() -> List[Dict[str, Any]]:
    """Times an all-reduce of 1 MB between every pair of workers, one pair after the other.

    Returns:
      For each pair "workers" (two indices), "transport", "ms" (the median of 5 runs, on the slower worker) and "error"
      (a text, or None). The same in every worker.

    Raises:
      EplError: the workers cannot meet, or one is lost.
    """
    config = Config()
    cluster = Cluster(config=config)
    Env.get().init(config, cluster, StrategyContext())
    job = meet()
    pairs = []
    for pair in itertools.combinations(range(cluster.worker_num), 2):
        own: Optional[Dict[str, Any]] = None
        if cluster.worker_index in pair:
            own = _try_pair(cluster, pair)
        # Also a barrier: no pair is timed while another one is.
        parts = job.exchange("pair {} {}".format(*pair), json.dumps(own).encode())
        ends = [json.loads(parts[worker].decode()) for worker in pair]
        errors = [end["error"] for end in ends if end["error"]]
        slower = max(end["ms"] for end in ends)
        pairs.append(dict(ends[0], workers=list(pair), ms=slower, error=errors[0] if errors else None))
    return pairs


def _try_pair(cluster: Cluster, pair: Tuple[int, ...]) -> Dict[str, Any]:
    transport = transport_between(cluster.device_type, hierarchical=False)
    try:
        communicator = Communicator("check {} {}".format(*pair), pair, transport)
        milliseconds, wrong = _time(cluster, communicator)
    except (EplError, tf.errors.OpError) as error:
        return {"transport": transport, "ms": 0.0, "error": str(error)}
    found = f"the sum is wrong by up to {wrong}" if wrong else None
    return {"transport": communicator.transport, "ms": milliseconds, "error": found}


def _time(cluster: Cluster, communicator: Communicator) -> Tuple[float, float]:
    """The median time of a run in milliseconds, and the largest error of the sum 1 + 2."""
    (rank,) = communicator.local_ranks
    with tf.Graph().as_default() as graph, tf.device(cluster.local_device(0)):
        total = communicator.all_reduce(tf.fill([_BYTES // 4], rank + 1.0), rank, "sum")
        wrong = tf.reduce_max(tf.abs(total - 3.0))
        with tf.Session(graph=graph, config=cluster.config_proto()) as session:
            session.run(wrong)
            times = []
            errors = []
            for _ in range(_RUNS):
                begin = time.perf_counter()
                errors.append(float(session.run(wrong)))
                times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times), max(errors)


if __name__ == "__main__":
    print(json.dumps({"facts": facts, "pairs": time_pairs}[sys.argv[1]]()))
