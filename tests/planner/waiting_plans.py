"""Plans of waiting layers whose steps are both simulated and run.

python -m tests.planner.waiting_plans predict NAME    prints the seconds of the simulated step
python -m tests.planner.waiting_plans measure NAME    prints the seconds of the steps that ran
"""

import json
import os
import sys
import tempfile

from tests.planner.recorded_script import recorded_graph, simulated_seconds
from tests.planner.waiting_layers import WaitingPlan, WaitingProfile, build, train, write_machine

COLOCATED = {"cluster__colocate_split_and_replicate": True}
EACH = 0.003  # seconds per row and layer, forward
EIGHT = (EACH,) * 8
HALVES = ((EACH,) * 4, (EACH,) * 4)
QUARTERS = ((EACH,) * 2,) * 4
UNEQUAL = ((EACH,) * 2, (EACH,) * 6)


def _whole(name, workers, devices, **config):
    return _plan(name, (EIGHT,), ("replicate(1)",), workers, devices, config)


def _plan(name, layers, annotations, workers, devices, config):
    keys = tuple((key.replace("__", "."), value) for key, value in config.items())
    return WaitingPlan(name, layers, annotations, keys, workers, devices, rows=32)


def _stages(name, layers, workers, devices, micro_batches, strategy="PreferBackward", **config):
    config.update(pipeline__num_micro_batch=micro_batches, pipeline__strategy=strategy)
    return _plan(name, layers, ("replicate(1)",) * len(layers), workers, devices, config)


PLANS = {
    plan.name: plan
    for plan in (
        _whole("one device", 1, 1),
        _whole("data parallel, 2 devices", 1, 2),
        _whole("data parallel, 4 devices", 1, 4),
        _whole("data parallel, 2 processes", 2, 1),
        _whole("data parallel, 4 processes", 4, 1),
        _whole("data parallel, 2 processes x 2 devices", 2, 2),
        _whole("accumulation", 1, 2, pipeline__num_micro_batch=4),
        _whole("ZeRO v1, 2 devices", 1, 2, zero__level="v1"),
        _whole("ZeRO v1, 2 processes", 2, 1, zero__level="v1"),
        _whole("updates in groups", 1, 2, optimizer__num_apply_group=4),
        _whole("gradient checkpoint", 1, 2, gradient_checkpoint__type="auto"),
        _whole("rows 3:1, 2 processes", 2, 1, auto__balance="3:1"),
        _whole("rows 4:2:1:1, 4 devices", 1, 4, auto__balance="4:2:1:1"),
        _stages("GPipe, 2 stages", HALVES, 1, 2, 4, "PreferForward"),
        _stages("1F1B, 2 stages", HALVES, 1, 2, 4),
        _stages("1F1B, 4 stages", QUARTERS, 1, 4, 8),
        _stages("1F1B, unequal stages", UNEQUAL, 1, 2, 4),
        _stages("1F1B, 2 stages in 2 processes", HALVES, 2, 1, 4),
        _stages("1F1B, 4 stages in 4 processes", QUARTERS, 4, 1, 8),
        _stages("1F1B, 2 stages x 2 replicas", HALVES, 1, 4, 4),
        _stages("1F1B, 2 stages, gradient checkpoint", HALVES, 1, 2, 4, gradient_checkpoint__type="auto"),
        _plan(
            "replicate(2) before replicate(1)",
            HALVES,
            ("replicate(2)", "replicate(1)"),
            1,
            2,
            COLOCATED,
        ),
        _plan(
            "a split after replicate(1)",
            HALVES,
            ("replicate(1)", "split()"),
            1,
            2,
            COLOCATED,
        ),
    )
}


def measure(plan, steps=5):
    """The seconds of steps of a job that trains."""
    from epl.launcher.run import run

    os.environ["EPL_CLUSTER_DEVICE_TYPE"] = "cpu"
    told = run(train, plan.workers, plan.devices, args=(plan, steps))
    return max(
        [one[0] for one in told if one is not None], key=sum
    )  # a worker that runs stages for others tells nothing


def predict(plan):
    """The seconds of a simulated step, with the given times of the layers."""
    with tempfile.TemporaryDirectory() as folder:
        machine = os.path.join(folder, "machine.json")
        write_machine(machine, (1,) * plan.workers, plan.devices)
        settings = {
            "cluster.device_type": "cpu",
            "cluster.num_virtual_devices": str(plan.devices),
            "auto.rows": str(plan.rows),
            "auto.machine": machine,
        }
        graph = recorded_graph(settings, plan.workers, lambda device: WaitingProfile(), lambda: build(plan))
        return simulated_seconds(graph)


if __name__ == "__main__":
    what = {"predict": predict, "measure": measure}[sys.argv[1]]
    print(json.dumps(what(PLANS[sys.argv[2]])))
