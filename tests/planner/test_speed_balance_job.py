"""`auto.balance` "speed" in jobs whose processes are unequally fast: what it gains, and that it trains the same."""

import statistics

import pytest

from epl.launcher.run import run
from epl.planner.machine import files, presets
from epl.planner.machine.machine import Machine, MachineNode, OpRate
from tests.planner.waiting_layers import WaitingPlan, train

LAYERS = ((0.004,) * 8,)


def machine_file(path, speeds):
    """A machine of CPUs of these speeds, relative to each other."""
    cpu, link = presets.DEVICES["cpu"], presets.LINKS["shm"]
    kinds = {
        speed: cpu._replace(
            name=f"cpu-{speed}",
            rates=tuple(
                OpRate(rate.kind, rate.dtype, rate.flops._replace(peak=rate.flops.peak * speed)) for rate in cpu.rates
            ),
            bandwidth=cpu.bandwidth._replace(peak=cpu.bandwidth.peak * speed),
            launch_overhead=cpu.launch_overhead / speed,
        )
        for speed in speeds
    }
    nodes = tuple(MachineNode((kinds[speed].name,), (), link.name) for speed in speeds)
    path.write_text(files.to_json(Machine("unequal", tuple(kinds.values()), (link,), nodes)))
    return str(path)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("speeds", [(1, 2), (1, 1, 2, 4)])
def test_rows_by_speed_gain_what_they_can_and_train_the_same(tmp_path, monkeypatch, speeds):
    monkeypatch.setenv("EPL_CLUSTER_DEVICE_TYPE", "cpu")
    rows = 24 * len(speeds)
    config = (("auto.machine", machine_file(tmp_path / "machine.json", speeds)), ("auto.rows", rows))
    even = WaitingPlan("even", LAYERS, ("replicate(1)",), config, len(speeds), 1, rows, speeds)
    by_speed = even._replace(name="speed", config=(*config, ("auto.balance", "speed")))
    seconds, losses = {}, {}
    for plan in (even, by_speed):
        of_workers = run(train, plan.workers, plan.devices, args=(plan, 5))
        seconds[plan.name] = statistics.median(max(steps) for steps in zip(*[times for times, _, _ in of_workers]))
        weighed = [[count / rows * loss for loss in own] for _, own, count in of_workers]
        losses[plan.name] = [sum(step) for step in zip(*weighed)]
    gain = seconds["even"] / seconds["speed"]
    bound = sum(speeds) / (len(speeds) * min(speeds))
    print(f"even {seconds['even']:.3f} s, by speed {seconds['speed']:.3f} s, {gain / bound:.3f} of the bound")
    assert gain >= 0.93 * bound
    assert losses["speed"] == pytest.approx(losses["even"], rel=1e-5)
