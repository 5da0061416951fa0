"""How the benchmarks of memory find bounds, sizes and reasons; what runs is in `test_workers.py`."""

import contextlib

import pytest

from benchmarks import groups, largest_model_benchmark, memory_benchmark


def test_recomputed_layers_keep_their_inputs_masks_and_one_layer():
    # One row of 128 tokens, 64 wide, one head: 128 x 64 floats, masks of 2 x (128 x 64) and 128 x 128 bytes.
    kept = 128 * 64 * 4 + 2 * 128 * 64 + 128 * 128
    assert memory_benchmark.recomputed_share([10, 64, 1], 1e6) == pytest.approx((10 * kept + 1e5) / 1e6)


def test_refusal_is_one_line():
    reason = "ZeRO v1: {'steps': 1} failed\nTraceback\nepl.utils.errors.PlanError: zero.level: not here."
    assert memory_benchmark.refusal(reason) == "ZeRO v1: refused: zero.level: not here."
    reason = "ZeRO v1 ended with code 1\n[worker 0] epl.utils.errors.PlanError: not here.\nepl-launch: ending"
    assert memory_benchmark.refusal(reason) == "ZeRO v1: refused: not here."
    assert memory_benchmark.refusal("a\nb") == "a\nb"


@pytest.mark.parametrize("limit, layers", [(100, 9), (99, 8), (45, 3), (5, 1)])
def test_most_layers_are_found_on_a_line(limit, layers):
    assert largest_model_benchmark.fitting({4: 50, 2: 30, 40: 1000}, limit) == layers


class _Group:
    """Estimates 10 bytes for a layer, and takes 20."""

    def __init__(self, layers):
        self._layers = layers

    def ask(self, estimate=False, **_):
        return [{"peak": {"device": (10.0 if estimate else 20.0) * self._layers}}]


@pytest.fixture
def tried(monkeypatch):
    """The numbers of layers that are tried, with groups that are no processes."""
    layers = []

    @contextlib.contextmanager
    def running(_, sizes):
        layers.append(sizes[0])
        yield _Group(sizes[0])

    monkeypatch.setattr(largest_model_benchmark, "_running", running)
    return layers


def test_a_size_that_holds_more_than_estimated_is_followed_by_the_next_smaller_one(tried):
    found = largest_model_benchmark.largest(memory_benchmark.PLAIN, [64, 4], (1, 2), 60.0)
    assert tried == [1, 2, 6, 5, 4, 3]
    assert found == largest_model_benchmark.Largest(3, 6, 30.0, 60.0)


def test_a_limit_that_no_size_keeps_is_told_with_what_was_estimated_and_traced(tried):
    with pytest.raises(groups.GroupError) as error:
        largest_model_benchmark.largest(memory_benchmark.PLAIN, [64, 4], (1, 2), 15.0)
    assert str(error.value) == (
        "plain TensorFlow: no size was found that trains in 15 bytes. Estimated bytes: "
        "1 layers 10, 2 layers 20; traced: 1 layers 20"
    )
    assert 0 not in tried
