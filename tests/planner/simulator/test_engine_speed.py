"""How many ops the engine simulates in a second of CPU time.

On a quiet core of the machine that EPL is developed on it does 120,000.
"""

import pytest

from epl.parallel.plan.schedule_generators import generate
from epl.planner.simulator.engine import simulate
from tests.planner.simulator.programs import program_of, program_of_schedule, timed
from tests.yardstick import cpu_seconds

OPS_PER_SECOND = 50000


def ops_per_second(program):
    rate = len(program.ops) / cpu_seconds(lambda: simulate(program, "temporary"), rounds=5)
    print(f"{rate:.0f} ops/s")
    return rate


@pytest.mark.long
def test_forward_and_backward_pass_of_10000_ops_on_one_device():
    count = 10000
    ops = [timed(1, size=100)] + [timed(1, number - 1, size=100) for number in range(1, count)]
    for number in range(count):
        ops.append(timed(2, count + number - 1, count - 1 - number, size=100))
    assert ops_per_second(program_of(*ops)) > OPS_PER_SECOND


@pytest.mark.long
def test_pipeline_of_64_devices_and_128_micro_batches():
    schedule = generate("PreferBackward", range(64), 128)
    program, number = program_of_schedule(schedule, [1e-3] * 64, [2e-3] * 64, 1e-4)
    program = program._replace(threads=(1,) * 64 + (64,))
    assert len(number) == 16384 and len(program.ops) == 16384 + 2 * 63 * 128
    assert ops_per_second(program) > OPS_PER_SECOND
