"""How long the prediction itself takes: CPU time of one thread, on the machine that EPL is developed on."""

import pytest

from epl.planner.prediction.prediction import predict
from tests.planner.prediction.hand_made import HandCosts, Layer, machine, stages, strategy
from tests.yardstick import cpu_seconds

LAYERS = 3333  # of three ops each


@pytest.mark.long
@pytest.mark.parametrize(
    "nodes, num_stages, settings, most",
    [
        (8, 1, {}, 1.0),
        (8, 8, {"pipeline__num_micro_batch": 16}, 1.0),
        (8, 1, {"zero__level": "v1"}, 1.0),
        (64, 1, {}, 10.0),
        (64, 8, {"pipeline__num_micro_batch": 32, "gradient_checkpoint__type": "auto"}, 10.0),
    ],
)
def test_ten_thousand_ops_on_64_and_512_devices(nodes, num_stages, settings, most):
    costs = HandCosts([Layer(1e-4, 2e-4, weight=40_000, output=1e4, kept=True)] * LAYERS)
    where = machine([["a"] * 8] * nodes, bandwidth=1e10, latency=1e-5, network=(1e-5, 1e9))
    begins = [LAYERS * stage // num_stages for stage in range(1, num_stages)]
    planned = strategy(costs, devices=8, workers=nodes, **settings, **stages(costs, *begins))
    taken = cpu_seconds(lambda: predict(planned, costs, where, nodes * 8 * 64), rounds=2)
    print(f"{taken:.2f} s")
    assert taken <= most
