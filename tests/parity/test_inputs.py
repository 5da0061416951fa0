"""However the samples arrive, the plan computes what one device computes on all of them."""

from typing import Any, Tuple

import pytest

from tests.parity.oracle import Oracle, every_topology, topology_name
from tests.parity.scripts import inputs

# Where processes do not matter, one that has both devices and processes tells enough.
some_topologies = pytest.mark.parametrize("topology", [(1, 2), (2, 2)], ids=topology_name)


@every_topology
def test_one_shot_iterator(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = oracle.check(topology, inputs.one_shot)
    assert all(len(answer.results["loss"]) == 6 for answer in answers)


@some_topologies
def test_one_shot_iterator_outside_of_the_scope(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.one_shot, scoped=True)


@every_topology
def test_initializable_iterator(oracle: Oracle, topology: Tuple[int, int]) -> None:
    answers = oracle.check(topology, inputs.initializable)
    assert not any("missing_end" in answer.results for answer in answers)


@some_topologies
def test_iterator_with_known_shapes(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.initializable, shapes_known=True)


@every_topology
def test_reinitializable_iterator(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.reinitializable)


@some_topologies
def test_generator(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.generator)


@every_topology
def test_queue_runners(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.queue_runners)


@some_topologies
def test_file_queue(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.file_queue)


@pytest.mark.grid
@every_topology
@pytest.mark.parametrize("first_dimension", ["unknown", "known"])
def test_feed_is_cut_by_rows(oracle: Oracle, topology: Tuple[int, int], first_dimension: str) -> None:
    oracle.check(topology, inputs.fed, first_dimension=first_dimension)


@some_topologies
def test_feed_of_one_replica_goes_to_all_with_one_warning(oracle: Oracle, topology: Tuple[int, int]) -> None:
    for answer in oracle.check(topology, inputs.fed_whole):
        warnings = [line for line in answer.log.splitlines() if "scale" in line]
        assert len(warnings) == 1, answer.log


@pytest.mark.grid
@pytest.mark.parametrize("topology", [(1, 2), (1, 4)], ids=topology_name)
@pytest.mark.parametrize("script", [inputs.fed_uneven, inputs.fed_odd_ids])
def test_uneven_rows_weigh_in_the_mean(oracle: Oracle, topology: Tuple[int, int], script: Any) -> None:
    oracle.check(topology, script)


@every_topology
def test_variables_that_are_written_by_what_is_fed(oracle: Oracle, topology: Tuple[int, int]) -> None:
    oracle.check(topology, inputs.fed_updates)
