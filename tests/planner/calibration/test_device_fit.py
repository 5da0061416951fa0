"""The numbers of a device are found again from times that the cost model makes up."""

import pytest
import tensorflow.compat.v1 as tf

from epl.planner.calibration.device_fit import MeasuredDeviceOps, TimedOp, device_seconds, fit_device
from epl.planner.calibration.op_samples import narrow_matmuls, ops_of_kinds, tiny_ops
from epl.planner.machine.machine import HALF_WIDTH, Device, OpRate, Speed
from epl.planner.machine.op_kinds import Kind
from epl.planner.profile.op_timing import OpTime

DEVICE = Device(
    "made up",
    (
        OpRate(Kind.MATMUL, "float32", Speed(100e9)), OpRate(Kind.MATMUL, "float64", Speed(40e9)),
        OpRate(Kind.CONVOLUTION, "float32", Speed(80e9)), OpRate(Kind.SOFTMAX, "float32", Speed(2e9)),
        OpRate(Kind.SOFTMAX, "float64", Speed(1e9)), OpRate(Kind.POOL, "float32", Speed(1e9)),
    ),
    Speed(20e9),
    None,
    2e-6,
    1,
    (),
)  # fmt: skip
NARROW = narrow_matmuls(8, True)


@pytest.fixture(scope="module")
def samples():
    return ops_of_kinds(tf.float32, 8, True) + ops_of_kinds(tf.float64, 2, False)


def fitted(samples, factor=lambda sample: 1.0, given=DEVICE):
    def timed(some):
        return [TimedOp(one, OpTime(device_seconds(one, given) * factor(one), 0.05, 9)) for one in some]

    measured = MeasuredDeviceOps(timed(tiny_ops()), timed(samples), timed(NARROW))
    return fit_device("cpu", measured, 10**9, "a test", "2026-01-02")


@pytest.mark.parametrize("half_width", [0, 90, 400])
def test_matmuls_of_few_rows_tell_how_much_slower_they_are(samples, half_width):
    rates = [rate._replace(half_width=half_width) if rate.kind == Kind.MATMUL else rate for rate in DEVICE.rates]
    device, measurements = fitted(samples, given=DEVICE._replace(rates=tuple(rates)))
    assert device.rate(Kind.MATMUL).half_width == pytest.approx(half_width, abs=1)
    assert device.rate(Kind.MATMUL).reached() == pytest.approx(100e9, rel=0.02)
    assert device.rate(Kind.CONVOLUTION).half_width == HALF_WIDTH == device.rate(Kind.MATMUL, "float64").half_width
    matmuls = [one for one in measurements if one.what.startswith("matmul float32")]
    assert all(one.fitted == pytest.approx(one.seconds, rel=0.02) for one in matmuls)


def test_matmuls_that_take_as_long_with_few_rows_have_a_width(samples):
    few = {id(one) for one in NARROW}
    device, _ = fitted(samples, lambda one: 8.0 if id(one) in few else 1.0)
    assert 400 < device.rate(Kind.MATMUL).half_width < 10000


def test_a_device_is_found_again(samples):
    device, measurements = fitted(samples)
    assert device.launch_overhead == pytest.approx(2e-6, rel=0.01)
    assert device.bandwidth.reached == pytest.approx(20e9, rel=0.01)
    for rate in DEVICE.rates:
        assert device.rate(rate.kind, rate.dtype).reached() == pytest.approx(rate.flops.reached, rel=0.02), rate
    known = tuple(rate.kind for rate in DEVICE.rates)
    assert all(one.fitted == pytest.approx(one.seconds, rel=0.05) for one in measurements if one.what.startswith(known))
    assert len(measurements) == len(samples) + len(tiny_ops()) + len(NARROW)
    assert dict(device.sources)["launch_overhead"] == (
        "epl-plan --calibrate: measured 2026-01-02, median of 9 ops, spread 0%"
    )


def test_kinds_that_the_bandwidth_explains_have_no_rate(samples):
    device, _ = fitted(samples)
    kinds = {rate.kind for rate in device.rates}
    assert Kind.ELEMENTWISE not in kinds and Kind.REDUCTION not in kinds
    assert kinds >= {Kind.MATMUL, Kind.BATCH_MATMUL, Kind.SOFTMAX}


def test_one_slow_layer_of_a_kind_does_not_decide(samples):
    slow = {one.layer for one in samples if one.cost.kind == Kind.MATMUL}.pop()
    device, _ = fitted(samples, lambda one: 10.0 if one.layer == slow else 1.0)
    assert device.rate(Kind.MATMUL).reached() == pytest.approx(100e9, rel=0.02)


def test_a_slow_gradient_counts_as_much_as_it_takes(samples):
    def factor(sample):
        return 4.0 if sample.op.type == "Conv2DBackpropFilter" else 1.0

    device, _ = fitted(samples, factor)
    assert device.rate(Kind.CONVOLUTION).reached() == pytest.approx(80e9 * 3 / 6, rel=0.05)


def test_a_dtype_that_is_slow_where_float32_is_not_has_a_rate(samples):
    def factor(sample):
        return 30.0 if sample.cost.kind == Kind.ELEMENTWISE and sample.dtype == "float64" else 1.0

    device, measurements = fitted(samples, factor)
    assert device.rate(Kind.ELEMENTWISE, "float64").reached() < device.rate(Kind.ELEMENTWISE).reached() / 10
    float32 = [one for one in measurements if one.what.startswith("elementwise float32")]
    assert all(one.fitted == pytest.approx(one.seconds, rel=0.05) for one in float32)
