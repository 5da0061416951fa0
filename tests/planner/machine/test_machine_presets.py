"""The presets: complete, with sources, readable by name, and what they are known for."""

import os

import pytest

from epl.planner.machine.files import from_json, read_machine, to_json
from epl.planner.machine.op_kinds import RATED, Kind
from epl.planner.machine.presets import DEFAULT_LINKS, DEVICES, LINKS, describe_presets

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_device_is_a_machine_that_can_be_written(name):
    machine = read_machine(f"2*{name}")
    assert from_json(to_json(machine)) == machine and machine.nodes[0].levels[0].link == DEFAULT_LINKS[name]


@pytest.mark.parametrize("entry", list(DEVICES.values()) + list(LINKS.values()), ids=lambda entry: entry.name)
def test_every_number_has_a_source(entry):
    known = {key for key, text in entry.sources if text}
    numbers = {"latency", "bandwidth"} if entry.name in LINKS else {"flops", "bandwidth", "memory", "launch_overhead"}
    assert known == {""} or numbers <= known


def test_peaks_are_those_of_the_data_sheets():
    peaks = {name: [rate.flops.peak for rate in DEVICES[name].rates[:2]] for name in DEVICES if name != "cpu"}
    assert peaks["p100-16"] == [9.3e12, 18.7e12]
    assert peaks["v100-16"] == peaks["v100-32"] == [15.7e12, 125e12]
    assert peaks["a100-40"] == peaks["a100-80"] == [156e12, 312e12]
    assert peaks["h100-80"] == [494.7e12, 989.4e12]
    assert [DEVICES[name].bandwidth.peak / 1e9 for name in sorted(peaks)] == [1555, 2039, 3350, 732, 900, 900]
    assert DEVICES["v100-32"].memory == 32 * 2**30 and DEVICES["cpu"].memory is None


def test_what_is_reached_is_told_apart_from_the_peak():
    device = DEVICES["v100-32"]
    assert device.rate(Kind.MATMUL).reached() == pytest.approx(14.13e12) and device.bandwidth.reached == pytest.approx(
        810e9
    )
    assert LINKS["nvlink2"].bandwidth.peak == 150e9 and LINKS["nvlink2"].bandwidth.reached == pytest.approx(120e9)


def test_rates_are_of_kinds_of_ops_of_the_cost_tables():
    kinds = {value for key, value in vars(Kind).items() if not key.startswith("_")}
    assert set(RATED) - kinds == {"contraction"}


def test_all_presets_are_told():
    text = describe_presets()
    lines = {line.split("  ")[0]: line for line in text.split("\nSources\n")[0].split("\n")}
    assert set(DEVICES) | set(LINKS) <= set(lines)
    assert lines["v100-32"].split() == "v100-32 15.7 x 0.9 125 x 0.66 32 GiB 900 x 0.9 nvlink2".split()
    assert lines["cpu"].split() == "cpu 0.1 as float32 no limit 10 shm".split()
    assert lines["eth-50"].split() == "eth-50 6.25 x 0.9 14 us all of a node".split()
    sources = [
        name for line in text.split("\nSources\n")[1].split("\n") if line[2] != " " for name in line[2:].split(", ")
    ]
    assert sorted(sources) == sorted(list(DEVICES) + list(LINKS))


def test_the_page_has_this_table():
    with open(os.path.join(ROOT, "docs", "machines.md"), encoding="utf-8") as page:
        assert f"```text\n{describe_presets()}\n```" in page.read()
