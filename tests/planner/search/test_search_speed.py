"""A whole search of 10,000 ops on 64 devices: its time, its memory, and what it finds in less time."""

import json
import subprocess
import sys

import pytest

LAYERS = 1333
MOST_MEMORY = 2e9


def searched(layers, limit):
    """What `searched_model.py` says of a search."""
    command = [sys.executable, "-m", "tests.planner.search.searched_model", str(layers), limit]
    done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print("{}: {}".format(limit, {key: value for key, value in found.items() if key != "hash"}))
    return found


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_ten_thousand_ops_on_64_devices_in_a_minute_and_in_five_seconds():
    whole, short = [searched(LAYERS, f"budget={seconds}") for seconds in (60, 5)]
    assert whole["ops"] > 9900
    assert whole["taken"] <= 60.0
    assert max(whole["memory"], short["memory"]) <= MOST_MEMORY
    assert short["seconds"] <= 1.1 * whole["seconds"]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_same_seed_and_steps_find_the_same_bytes_in_another_process():
    first, second = [searched(LAYERS // 4, "steps=200") for _ in range(2)]
    assert first["hash"] == second["hash"]
    assert first["left_out"] == ""
