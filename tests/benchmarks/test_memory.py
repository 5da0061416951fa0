"""How the benchmarks of memory find bounds, sizes and reasons; what runs is in `test_workers.py`."""
import pytest

from benchmarks import largest_model_benchmark, memory_benchmark


def test_recomputed_layers_keep_their_inputs_masks_and_one_layer():
    # One row of 128 tokens, 64 wide, one head: 128 x 64 floats, masks of 2 x (128 x 64) and 128 x 128 bytes.
    kept = 128 * 64 * 4 + 2 * 128 * 64 + 128 * 128
    assert memory_benchmark.recomputed_share([10, 64, 1], 1e6) == pytest.approx((10 * kept + 1e5) / 1e6)


def test_refusal_is_one_line():
    reason = "ZeRO v1: {'steps': 1} failed\nTraceback\nepl.utils.errors.PlanError: zero.level: not here."
    assert memory_benchmark.refusal(reason) == 'ZeRO v1: refused: zero.level: not here.'
    reason = 'ZeRO v1 ended with code 1\n[worker 0] epl.utils.errors.PlanError: not here.\nepl-launch: ending'
    assert memory_benchmark.refusal(reason) == 'ZeRO v1: refused: not here.'
    assert memory_benchmark.refusal('a\nb') == 'a\nb'


@pytest.mark.parametrize('limit, layers', [(100, 9), (99, 8), (45, 3), (5, 1)])
def test_most_layers_are_found_on_a_line(limit, layers):
    assert largest_model_benchmark.fitting({4: 50, 2: 30, 40: 1000}, limit) == layers
