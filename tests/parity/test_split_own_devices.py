"""A split on devices of its own, beside the replicated code on others: it trains as one device does."""
from typing import Any, Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, compare, topology_name
from tests.parity.scripts import splits
from tests.parity.test_split import of_worker_0

ACROSS = {'cluster__device_place_prefer_intra_node': False}  # each process has devices of both
# Devices of each process; of the replicated code and of the split in a model replica.
SHARED = ((1, 3), (1, 2), {})
IN_PROCESSES = ((2, 2), (2, 2), ACROSS)
AS_MANY = ((1, 4), (2, 2), {})
TWO_REPLICAS = ((2, 3), (1, 2), {})
# Replicated, split, and replicated code again, on devices of its own.
THREE = ('experts', 'seven_experts')


def _name(value: Any) -> str:
    return topology_name(value) if isinstance(value, tuple) else 'across' if value else ''


def _placements(in_short: int) -> Any:
    """The first so many places; the others in long runs."""
    places = [SHARED, IN_PROCESSES, AS_MANY, TWO_REPLICAS]
    later = [pytest.param(*place, marks=pytest.mark.long) for place in places[in_short:]]
    return pytest.mark.parametrize('topology,apart,config', places[:in_short] + later, ids=_name)


@_placements(2)
def test_features_and_a_head(oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any) -> None:
    oracle.check(topology, splits.train, name='head', optimizer='adam', apart=apart, **config)


@_placements(1)
@pytest.mark.parametrize('name', [
    'experts', *[pytest.param(name, marks=pytest.mark.long) for name in (
        'blocks', 'decayed', 'loss_outside', 'resource_head', 'scaled_by_a_loss', 'seven_experts', 'small_table')]])
def test_models(
        oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any, name: str) -> None:
    if name in THREE:
        topology = (topology[0], topology[1] + apart[0])
    oracle.check(topology, splits.train, name=name, optimizer='momentum', apart=apart, **config)


@_placements(1)
def test_the_norm_is_that_of_all_variables(
        oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any) -> None:
    answers = oracle.check(topology, splits.train, name='head', clip=0.1, apart=apart, **config)
    norms = oracle.plain(splits.train, name='head', clip=0.1).results['norm']
    for answer in answers:
        np.testing.assert_allclose(answer.results['norm'], norms, rtol=1e-6)


@_placements(1)
def test_checkpoints_are_those_of_one_device(
        oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any) -> None:
    """Each continues from the checkpoint of the other; slots included."""
    reference = oracle.plain(splits.saved)
    answers = oracle.plan(topology, splits.saved, apart=apart, **config)
    compare(reference, of_worker_0(answers))
    further = oracle.plain(splits.saved, path=reference.results['path'])
    compare(further, [oracle.plain(splits.saved, path=answers[0].results['path'])], 1e-5)
    planned = oracle.plan(topology, splits.saved, path=reference.results['path'], apart=apart, **config)
    compare(further, of_worker_0(planned), 1e-5)


@_placements(1)
def test_evaluation_gives_what_one_device_gives(
        oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int], config: Any) -> None:
    expected = oracle.plain(splits.evaluated).results
    for answer in oracle.plan(topology, splits.evaluated, apart=apart, **config):
        logits, found, best, *rest = answer.results['found'][0]
        wanted, wanted_found, wanted_best, *wanted_rest = expected['found'][0]
        np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found, wanted_found, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(best[1], wanted_best[1])
        for value, other in zip(rest, wanted_rest):
            np.testing.assert_allclose(value, other, rtol=1e-6)
        np.testing.assert_allclose(answer.results['predicted'][0], expected['predicted'][0], rtol=1e-5, atol=1e-5)


def test_ratios_and_micro_batches(oracle: Oracle) -> None:
    """Replicated code and split are stages: with micro batches they are a pipeline."""
    oracle.check((1, 3), splits.train, name='head', optimizer='momentum', apart=(1, 2), ratios=[3, 1],
                 pipeline__num_micro_batch=2)


@pytest.mark.long
@pytest.mark.parametrize('topology,apart', [((2, 2), (2, 2)), ((3, 1), (1, 2))], ids=_name)
def test_processes_without_devices_of_both_are_refused(
        oracle: Oracle, topology: Tuple[int, int], apart: Tuple[int, int]) -> None:
    for answer in oracle.failing_plan(topology, splits.train, name='head', apart=apart):
        assert 'on devices of its own in other processes than those of the code beside it' in answer.error
