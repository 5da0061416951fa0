"""How long ops take on a device: overhead, and FLOPs or bytes, whichever takes longer."""

import pytest

from epl.parallel.costs.op_times import OpTimes, times_on
from epl.parallel.costs.ops import OpCost
from epl.planner.machine.machine import Device, OpRate, Speed
from epl.planner.machine.op_kinds import Kind

RATES = (OpRate(Kind.MATMUL, "float32", Speed(2e9, 0.5)), OpRate(Kind.MATMUL, "float16", Speed(8e9)))
DEVICE = Device("a", RATES, Speed(1e9), None, 1e-3, 1, ())


def cost(kind, flops=0.0, size=0.0, narrowest=0, dtype="float32"):
    return OpCost(kind, flops, size, narrowest, dtype)


@pytest.mark.parametrize(
    "one, seconds",
    [
        (cost(Kind.FREE, 1e9, 1e9), 0.0),
        (cost(Kind.MATMUL, 3e9, 1e9), 3.001),
        (cost(Kind.MATMUL, 3e9, 4e9), 4.001),
        (cost(Kind.MATMUL, 16e9, 0, dtype="float16"), 2.001),
        (cost(Kind.MATMUL, 3e9, 0, dtype="int32"), 3.001),
        (cost(Kind.MATMUL, 3e9, 0, narrowest=40), 6.001),
        (cost(Kind.ELEMENTWISE, 9e9, 1e9), 1.001),
        (cost(Kind.REARRANGE, 0, 1e9), 3.001),
    ],
)
def test_the_time_of_an_op(one, seconds):
    assert OpTimes(DEVICE).seconds(one) == pytest.approx(seconds)
    assert OpTimes(DEVICE).work_seconds(one) == pytest.approx(max(0.0, seconds - 1e-3))


def test_gpus_compute_half_precision_at_its_own_rate():
    times = times_on("GPU")
    full, half = (times.work_seconds(cost(Kind.MATMUL, 1e12, 0, dtype=dtype)) for dtype in ("float32", "float16"))
    assert full / half == pytest.approx(82.5 / 14.13, rel=1e-3)


def test_an_unknown_type_of_device_is_an_error():
    with pytest.raises(KeyError):
        times_on("tpu")
