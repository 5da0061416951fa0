"""Every fragment of the project's documents runs as it is printed, and trains as one device does."""

import os
from typing import Any, List, Tuple

import numpy as np
import pytest

from tests.parity.oracle import Oracle, topology_name
from tests.seeds import fragments
from tests.seeds.fragments import FRAGMENTS, TABLE

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
long = pytest.mark.long


def _jobs() -> List[Any]:
    """Each fragment on 1, 2, 4 and 8 devices of a process and on two workers, where a replica fits into these."""
    jobs = []
    for name, entry in FRAGMENTS.items():
        for topology in [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1)]:
            if entry.stages != 1 and topology in [(1, 1), (2, 1)]:
                continue  # tests/runtime/test_spanning.py has stages in several workers
            marks = [long] if topology in [(1, 1), (1, 4)] else []
            job_id = "{}-{}".format(name, topology_name(topology))
            jobs.append(pytest.param(name, topology, id=job_id, marks=marks))
    return jobs


@pytest.mark.parametrize("name, topology", _jobs())
def test_it_trains_as_one_device_does(oracle: Oracle, name: str, topology: Tuple[int, int]) -> None:
    entry = FRAGMENTS[name]
    reference = oracle.plain(fragments.train, name=name).results
    answers = oracle.plan(topology, fragments.train, name=name)
    losses = np.mean([answer.results["loss"] for answer in answers], axis=0)
    if name == "config_micro_batches":  # four runs are one step: the first four see the initial weights
        np.testing.assert_allclose(losses[0], reference["loss"][0], rtol=entry.checked)
        return
    np.testing.assert_allclose(losses, reference["loss"], rtol=entry.checked)
    seen, expected = answers[0].results["variables"][0], reference["variables"][0]
    for variable, value in expected.items():
        scale = max(float(np.max(np.abs(value))), 1e-3)
        np.testing.assert_allclose(seen[variable], value, atol=10 * entry.checked * scale, err_msg=variable)


def test_the_table_names_every_fragment() -> None:
    named = {name for names in TABLE.values() for name in names}
    assert named - set(FRAGMENTS) == {name for name in named if os.path.exists(os.path.join(ROOT, name))}
    assert set(FRAGMENTS) <= named
