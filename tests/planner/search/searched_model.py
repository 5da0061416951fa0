"""Searches a plan for 10,000 ops on 64 devices, in a process of its own, and prints what that took as JSON.

    python -m tests.planner.search.searched_model LAYERS budget=SECONDS | steps=N

The clock of the search is the CPU time of the process, as it would be on the quiet core of the yardstick.
"""

import hashlib
import json
import os
import resource
import sys
import time
from types import SimpleNamespace

import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan import strategy as strategies
from epl.planner.search import block_search, search_time
from epl.planner.search.decision import SearchResult, find_strategy
from tests.yardstick import quiet_seconds

_WORKERS, _DEVICES, _ROWS = 8, 8, 8192


def skipping(layers: int, width: int = 64) -> tf.Tensor:
    """Dense layers with a skip connection around each second one: 7.5 ops for each."""
    x = hidden = tf.placeholder(tf.float32, [None, width])
    for number in range(layers):
        hidden = tf.layers.dense(hidden, width if number % 2 else 2 * width, tf.nn.relu, name=f"layer{number}")
        if number % 2:
            x = hidden = hidden + x
    return tf.reduce_mean(tf.square(hidden))


def main() -> None:
    """Runs one search."""
    layers, (key, value) = int(sys.argv[1]), sys.argv[2].split("=")
    hosts = [f"w{number}.invalid:1" for number in range(_WORKERS)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}})
    config = {
        "auto.planner": "search", "auto.machine": f"{_WORKERS}x{_DEVICES}*v100-16,eth-100", "auto.rows": _ROWS,
        f"auto.{key}": int(value), "cluster.device_type": "cpu", "cluster.num_virtual_devices": _DEVICES,
    }  # fmt: skip
    epl.init(epl.Config(config))
    loss = skipping(layers)
    graph = Graph.get(may_create=True)
    scale = quiet_seconds()
    clock = SimpleNamespace(monotonic=lambda: scale * time.process_time())
    search_time.time = block_search.time = clock  # type: ignore[attr-defined]
    begin = clock.monotonic()
    strategy = find_strategy(graph, loss, tf.trainable_variables())
    taken = clock.monotonic() - begin
    found = graph.state_of(SearchResult)
    text = strategies.to_json(strategy)
    told = {
        "ops": len(strategy.ops),
        "taken": taken,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "chosen": found.chosen.candidate.name,
        "seconds": found.chosen.outcome.seconds,
        "simulated": sum(one.outcome is not None for one in found.compared),
        "by_blocks": found.by_blocks,
        "left_out": found.left_out,
        "hash": hashlib.sha256(text.encode()).hexdigest(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
