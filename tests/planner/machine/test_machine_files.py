"""Machines from files and from the short form: what is read, what is refused and with which words, JSON and back."""

import builtins
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings

from epl.planner.machine.files import check_name, from_json, read_machine, to_json, to_yaml
from epl.planner.machine.machine import Measurement, Speed
from epl.planner.machine.plain_form import from_plain
from epl.utils.errors import MachineError
from epl.utils.yaml_text import parse_yaml
from tests.planner.machine import machines
from tests.planner.machine.machine_texts import YAML

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


@pytest.fixture
def read(tmp_path):
    """Reads a text as a file of this name."""

    def read_text(text, name="m.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_machine(str(path))

    return read_text


def refusal(read, text, name="m.yaml"):
    """The message with which a text is refused, without the folder of the file."""
    with pytest.raises(MachineError) as error:
        read(text, name)
    return str(error.value)[str(error.value).index(name) :]


# What is read.


def test_a_file_says_which_device_sits_where(read):
    machine = read(YAML)
    assert machine.name == "mixed" and machine.num_devices == 8 + 3 * 4 + 2 * 8
    assert [device.name for device in machine.placed_devices()[8:12]] == ["small", "small", "own", "own"]
    assert [len(node.devices) for node in machine.nodes] == [8, 4, 4, 4, 8, 8]
    assert [level.link for level in machine.nodes[0].levels] == ["fast", "slow"]
    assert machine.nodes[0].levels[0].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert machine.nodes[1].levels[0].groups == ((0, 2), (1, 3))
    assert {node.network for node in machine.nodes} == {"net"}


def test_a_device_has_rates_of_its_own_or_of_its_preset(read):
    big, small, own, _ = read(YAML).devices
    assert big.rate("matmul").reached() == pytest.approx(0.9 * 15.7e12) and big.memory == 32 * 2**30
    assert small.memory == 12 * 10**9 and "memory" not in dict(small.sources)
    assert own.rate("matmul", "float16").reached() == pytest.approx(82.5e12)
    assert own.rate("matmul", "int32").reached() == own.rate("matmul").reached() == 100e9
    assert own.rate("convolution") is None and own.rate("softmax") is None
    assert own.bandwidth == Speed(900e9, 0.9) and (own.threads, own.shared_by) == (4, 0) and own.memory is None
    assert own.sources == (("", "measured by hand"),)


def test_a_rate_says_with_what_width_half_of_it_is_left(read):
    machine = read("""
        devices:
          own: {flops: {matmul: {float32: {peak: 100 GFLOP/s, fraction: 0.8, half_width: 80}}},
                bandwidth: 10 GB/s, launch_overhead: 1 us}
        nodes: [own]
    """)
    rate = machine.devices[0].rate("matmul")
    assert rate.reached() == pytest.approx(80e9) and rate.reached(80) == pytest.approx(40e9)
    assert from_json(to_json(machine), "again") == machine
    rate = "{matmul: {float32: {peak: 1e9, fraction: 1, half_width: few}}}"
    assert refusal(read, f"nodes: [own]\ndevices: {{own: {{preset: cpu, flops: {rate}}}}}").startswith(
        "m.yaml: devices.own.flops.matmul.float32.half_width is 'few'; expected a whole number from 0 to "
    )
    rate = "{softmax: {float32: {peak: 1e9, fraction: 1, half_width: 8}}}"
    assert "ops of the kind softmax have no narrowest dimension; expected it for contraction, matmul" in refusal(
        read, f"nodes: [own]\ndevices: {{own: {{preset: cpu, flops: {rate}}}}}"
    )


def test_one_name_stands_for_all_contractions_that_have_no_rate_of_their_own():
    (device,) = read_machine("v100-32").devices
    assert device.rate("batch matmul", "float16").reached() == pytest.approx(82.5e12)
    assert device.rate("depthwise convolution", "float16").reached() == pytest.approx(0.9 * 31.4e12)


def test_a_link_has_its_numbers(read):
    links = {link.name: link for link in read(YAML).links}
    assert links["net"].bandwidth == Speed(6.25e9) and links["net"].shared_by == 0
    assert links["net"].latency == 15e-6 and links["net"].sources == (("latency", "ping"),)
    assert links["slow"].shared_by == 4 and links["slow"].bandwidth == Speed(15754000000.0, 0.76)


def test_a_text_file_of_another_editor_is_read(read):
    assert read(b"\xef\xbb\xbfnodes: [cpu]\r\n").num_devices == 1
    assert read(b'\xef\xbb\xbf{"nodes": ["cpu"]}\r\n', "m.json").num_devices == 1


def test_the_name_is_that_of_the_file_by_default(read):
    assert read("nodes: [cpu]", "lab.yml").name == "lab"


@pytest.mark.parametrize(
    "text, devices, network",
    [
        ("8*v100-32+8*p100-16,eth-50", [8, 8], "eth-50"),
        ("4x8*v100-32,eth-100", [8, 8, 8, 8], "eth-100"),
        ("2x2*cpu + cpu, eth-10", [2, 2, 1], "eth-10"),
        ("8*v100-32", [8], ""),
        ("2*cpu", [2], ""),
        ("cpu", [1], ""),
    ],
)
def test_the_short_form(text, devices, network):
    machine = read_machine(text)
    assert [len(node.devices) for node in machine.nodes] == devices and machine.name == text
    assert {node.network for node in machine.nodes} == {network}


def test_devices_of_a_node_have_the_link_of_their_preset():
    machine = read_machine("8*v100-32+8*p100-16+a100-80,eth-50")
    assert [[level.link for level in node.levels] for node in machine.nodes] == [["nvlink2"], ["pcie3"], []]


def test_the_file_of_the_page_is_read(read):
    with open(os.path.join(ROOT, "docs", "machines.md"), encoding="utf-8") as page:
        (text,) = re.findall(r"^```yaml\n(.*?)^```$", page.read(), re.MULTILINE | re.DOTALL)
    machine = read(text)
    assert machine.name == "cluster-1" and [node.network for node in machine.nodes] == ["net"] + 3 * ["eth-25"] + 2 * [
        "net"
    ]


def test_a_device_with_the_name_of_a_preset_has_only_what_the_file_says(read):
    own = "devices: {cpu: {flops: {}, bandwidth: 1 GB/s, launch_overhead: 1 us}}\nnodes: [2*cpu]"
    assert "nodes[0] has 2 devices (cpu) and no links between them" in refusal(read, own)
    changed = read("devices: {cpu: {preset: v100-32, threads: 2}}\nnodes: [2*cpu]")
    assert changed.nodes[0].levels[0].link == "nvlink2" and changed.devices[0].threads == 2


# What is refused: a word of the file above is replaced.


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("flops:", "flop:", "devices.own has the unknown key 'flop'; did you mean flops?"),
        ("network:", "netwerk:", "m.yaml has the unknown key 'netwerk'; did you mean network? Expected one of format"),
        ("matmul:", "matmull:", "devices.own.flops has the unknown key 'matmull'; did you mean matmul?"),
        ("float16:", "float_16:", "devices.own.flops.matmul has the unknown key 'float_16'; did you mean float16?"),
        ("12 GB}", "12 gb}", "devices.small.memory has the unknown unit 'gb'; did you mean GB?"),
        ("900 GB/s", "900 Gb/s", "devices.own.bandwidth.peak has the unknown unit 'Gb/s'; did you mean Gbit/s?"),
        ("big: v100-32", "big: v100-31", "devices.big names the unknown preset of a device 'v100-31'; did you mean"),
        ("nvlink2", "nvlnk2", "links.fast names the unknown preset of a link 'nvlnk2'; did you mean nvlink2?"),
        ("8*big", "8*bigg", "nodes[0].devices names the unknown device 'bigg'; did you mean big?"),
        ("2x8*v100-32", "2x8*v100-33", "nodes[2] names the unknown device 'v100-33'; did you mean v100-32?"),
        ("network: net", "network: nett", "network names the unknown link 'nett'; did you mean net?"),
        ("66%", "166%", "float16.fraction is '166%'; expected the share of the peak that is reached, above 0 and up"),
        ("66%", "0", "devices.own.flops.matmul.float16.fraction is '0'; expected a number above 0, such as 0.9."),
        ("15 us", "nan", "links.net.latency is 'nan', no number; expected one such as 5 us."),
        ("15 us", "-15 us", "links.net.latency is '-15 us'; expected a number of at least 0, such as 5 us."),
        ("5 us\n", "\n", "devices.own.launch_overhead is '', no number; expected one such as 5 us."),
        ("50 Gbit/s", "1e999", "links.net.bandwidth is '1e999', no finite number; expected one such as 12 GB/s."),
        ("12 GB}", "0.5}", "devices.small.memory is '0.5', less than a byte; expected bytes such as 16 GB, or none."),
        ("    launch_overhead: 5 us\n", "", "devices.own lacks the key launch_overhead; add it, such as"),
        (", shared_by: all", "", "links.net lacks the key shared_by; add it, such as shared_by: 1, or all"),
        (", fraction: 0.9}", "}", "devices.own.bandwidth lacks the key fraction; add it, such as fraction: 0.9."),
        ("{float32: 100 GFLOP/s, ", "{", "devices.own.flops.matmul lacks the key float32; add it, such as float32:"),
        ("threads: 4", "threads: 4.5", "devices.own.threads is '4.5'; expected a whole number from 1 to 999999999."),
        ("shared_by: all\n", "shared_by: 0\n", "is '0'; expected a whole number from 1 to 999999999, or all."),
        ("count: 3", "count: 0", "nodes[1].count is '0'; expected a whole number from 1 to 999999999."),
        ("count: 3", "count: 30000", "nodes[1] has 120000 devices or more; expected at most 65536 in all nodes."),
        ("8*big", "99999999*big", "nodes[0].devices has 99999999 devices or more; expected at most 65536 in all"),
        ("8*big", "0*big", "nodes[0].devices is '0*big'; expected devices such as 8*v100-32."),
        ("8*big", "2x8*big", "nodes[0].devices is '2x8*big'; expected devices such as 8*v100-32."),
        ("2x8*", "0x8*", "nodes[2] is '0x8*v100-32'; expected devices such as 8*v100-32, or 4x8*v100-32 for 4 nodes."),
        ("[1, 3]", "[1, 9]", "nodes[1].links[0].groups[1] names device 9, which is not there: the node has devices 0"),
        ("[1, 3]", "[1, 2]", "groups[1] is [1, 2]; expected two or more devices, each in one group of the list and"),
        ("[1, 3]", "[1]", "groups[1] is [1]; expected two or more devices, each in one group of the list and once."),
        ("[1, 3]", "[]", "nodes[1].links[0].groups[1] is an empty list; expected a list such as [0, 1]."),
        ("[[0, 2], [1, 3]]", "7", "nodes[1].links[0].groups is '7'; expected a list such as [[0, 1], [2, 3]]."),
        ("every: 4", "every: 3", "nodes[0].links[0].every is 3; expected 2 or more that divides the 8 devices of the"),
        ("every: 4", "every: 4, groups: [[0, 1]]", "nodes[0].links[0] has both every and groups; expected one of"),
        ("every: 4}, slow", "every: 4}, {link: slow, groups: [[0, 1]]}", "links[1] cuts the group [0, 1, 2, 3] of"),
        (", slow]", "]", "nodes[0].links leave devices 0 and 4 of the node without a link; end the list with a link"),
        (", links: [{link: fast, groups: [[0, 2], [1, 3]]}, slow]", "", "nodes[1] has 4 devices (small, own) and no"),
        ("network: net\n", "", "nodes are 6 nodes, and node 0 has no link to the others; give a network, such as"),
        ("big: v100-32", "b*g: v100-32", "devices has the name 'b*g'; expected a letter, then letters, digits,"),
        ("big: v100-32", "big: [v100-32]", "devices.big is a list; expected a mapping such as {preset: v100-32,"),
        ("{preset: p100-16, memory: 12 GB}", "", "devices.small.preset is ''; expected a text such as v100-32."),
        ("matmul: {", "matmul: 100 GFLOP/s # {", "devices.own.flops.matmul is '100 GFLOP/s'; expected a mapping such"),
        ("source: measured by hand", "source: {flop: me}", "devices.own.source has the unknown key 'flop'; did you"),
        ("name: mixed", "name: [mixed]", "name is a list; expected a text such as cluster-1."),
        ("name: mixed", "version: 2", "version is '2'; expected 1: this EPL reads no other form of machine files."),
        ("name: mixed", "format: epl-plan", "format is 'epl-plan'; expected epl-machine: this EPL reads no other form"),
        ("  small:", "  big:", "m.yaml is no YAML: line 4, column 3: the key 'big' stands twice in one mapping."),
        ("nodes:\n", "nodes: [\n", "m.yaml is no YAML: line 19, column 3: expected the node content"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_refused_by_place(read, old, new, words):
    assert old in YAML
    assert words in refusal(read, YAML.replace(old, new, 1))


@pytest.mark.parametrize(
    "text, name, words",
    [
        ("", "m.yaml", "m.yaml is empty; expected the nodes of a machine, such as nodes: [8*v100-32]."),
        ("# later", "m.yaml", "m.yaml is empty; expected the nodes of a machine, such as nodes: [8*v100-32]."),
        ("{}", "m.json", "m.json is empty; expected the nodes"),
        ("[1]", "m.json", "m.json is a list; expected a mapping such as {nodes: [8*v100-32]}."),
        ("nodes: {}", "m.yaml", "nodes is a mapping; expected a list such as [8*v100-32]."),
        ("links: {}", "m.yaml", "m.yaml lacks the key nodes; add it, such as nodes: [8*v100-32]."),
        ('{"nodes": [5]}', "m.json", "nodes[0] is 5; expected a mapping such as {devices: 8*v100-32, links: nvlink2}."),
        ('{"nodes": [{"devices": "cpu", "count": NaN}]}', "m.json", "nodes[0].count is nan; expected a whole number"),
        ('{"nodes": [{"devices": "cpu", "count": true}]}', "m.json", "nodes[0].count is true; expected a whole number"),
        ('{"devices": {"a": {"preset": "cpu", "memory": null}}}', "m.json", "devices.a.memory is null, no number"),
        (
            '{"nodes": ["cpu"], "nodes": []}',
            "m.json",
            "m.json is no JSON: the key 'nodes' stands twice in one mapping.",
        ),
        ('{\n"nodes": [}', "m.json", "m.json is no JSON: line 2, column 11: Expecting value. Correct it there."),
        ("nodes: &a [*a]", "m.yaml", "m.yaml is no YAML: line 1, column 8: found unconstructable recursive node."),
        ("a: b\x07", "m.yaml", "m.yaml is no YAML: unacceptable character"),
        (b"nodes: [\xff]", "m.yaml", "m.yaml is no text in UTF-8: byte 8 cannot be read; save it as UTF-8."),
    ],
)
def test_a_damaged_file_is_refused(read, text, name, words):
    assert words in refusal(read, text, name)


@pytest.mark.parametrize("name", ["m.json", "m.yaml"])
def test_deep_nesting_is_refused(read, name):
    assert f"{name} is nested too deeply; expected a machine file." in refusal(read, "[" * 5000, name)


@pytest.mark.parametrize(
    "text, words",
    [
        ("8*v100-33", "nodes[0] names the unknown device 'v100-33'; did you mean v100-32?"),
        ("8*v100-32+8*p100-16", "nodes are 2 nodes, and node 0 has no link to the others; give a network"),
        ("8*v100-32,eth-51", "network names the unknown link 'eth-51'; did you mean eth-50?"),
        ("8*v100-32,", "network is ''; expected a text such as eth-50."),
        ("8*v100-32,eth-50,eth-50", "is no machine; expected devices and, if there are several nodes, their network"),
        ("", "'' is no machine; expected devices"),
        ("8v100-32", "nodes[0] is '8v100-32'; expected devices such as 8*v100-32, or 4x8*v100-32 for 4 nodes."),
        ("cpu++cpu", "nodes[1] is ''; expected devices"),
        ("999999999x999999999*cpu,eth-10", "devices or more; expected at most 65536"),
        ("machines/lab.txt", "'machines/lab.txt' is no machine: a machine file ends in .yaml, .yml or .json."),
        ("lab.yaml", "the machine file 'lab.yaml' cannot be read: "),
        ("la\0b.yaml", "cannot be read: "),
    ],
)
def test_a_wrong_short_form_or_path_is_refused(text, words):
    with pytest.raises(MachineError) as error:
        read_machine(text)
    assert words in str(error.value)


def test_yaml_without_pyyaml_says_what_to_install(read, monkeypatch):
    def importing(name, *arguments):
        if name == "yaml":
            raise ImportError(name)
        return real(name, *arguments)

    real = builtins.__import__
    monkeypatch.delitem(sys.modules, "epl.utils.yaml_text", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)
    assert "is YAML, which needs PyYAML; run pip install PyYAML" in refusal(read, "nodes: [cpu]")
    assert read('{"nodes": ["cpu"]}', "m.json").num_devices == 1


def test_a_machine_is_read_without_tensorflow_and_without_yaml():
    code = (
        "import sys, epl_launch; epl_launch.leave_out_package_import()\n"
        "from epl.planner.machine.files import read_machine\n"
        "from epl.planner.machine.collective_costs import CollectiveCosts\n"
        "CollectiveCosts(read_machine('2x2*cpu,eth-10')).cost('all-reduce', range(4), 1e6)\n"
        "print(sorted({'tensorflow', 'numpy', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], universal_newlines=True) == "[]\n"


# JSON and back.


@given(machines.machines())
@settings(max_examples=40)
def test_json_gives_the_same_machine(machine):
    assert from_json(to_json(machine)) == machine


@given(machines.machines())
@settings(max_examples=20)
def test_written_yaml_gives_the_same_machine(machine):
    assert from_plain(parse_yaml(to_yaml(machine)), "machine", "m") == machine


MEASURED = """
measurements:
- {of: shm, what: all-reduce, devices: 2, bytes: 1 MB, seconds: 3 ms, spread: 5%, runs: 9, fitted: 3.1 ms}
"""


def test_measurements_stay_in_the_file_and_change_no_number(read):
    machine = read("nodes: [2*cpu]" + MEASURED)
    assert machine.measurements == (Measurement("shm", "all-reduce", 2, 1e6, 3e-3, 0.05, 9, 3.1e-3),)
    assert from_json(to_json(machine)) == machine
    assert machine.digest() == read("nodes: [2*cpu]").digest()


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("of: shm", "of: shn", "measurements[0].of names the unknown device or link 'shn'; did you mean shm?"),
        ("runs: 9", "runs: 0", "measurements[0].runs is '0'; expected a whole number from 1"),
        ("3 ms", "-3 ms", "measurements[0].seconds is '-3 ms'; expected a number of at least 0"),
        (", fitted: 3.1 ms", "", "measurements[0] lacks the key fitted; add it, such as fitted: 3.1 ms."),
        ("what:", "wat:", "has the unknown key 'wat'; did you mean what?"),
    ],
)
def test_a_wrong_measurement_is_refused(read, old, new, words):
    assert words in refusal(read, "nodes: [2*cpu]" + MEASURED.replace(old, new, 1))


@pytest.mark.parametrize("name", ["m.txt", "m", "yaml"])
def test_no_machine_is_written_to_a_file_of_another_name(name):
    with pytest.raises(MachineError) as error:
        check_name(name)
    assert "a machine file ends in .yaml, .yml or .json." in str(error.value)


def test_yaml_and_json_give_the_same_machine(read):
    machine = read(YAML)
    assert read(to_json(machine), "m.json") == read(to_json(machine), "other.yaml") == machine


def test_the_digest_is_of_the_numbers_alone(read):
    machine = read(YAML)
    assert read(YAML.replace("mixed", "other").replace("by hand", "twice")).digest() == machine.digest()
    assert read(YAML.replace("15 us", "16 us")).digest() != machine.digest()
    assert hash(machine) == hash(read(YAML))


def test_a_machine_is_described_for_people(read):
    lines = read(YAML).describe().split("\n")
    assert lines[:4] == [
        "machine mixed: 6 nodes, 36 devices",
        "  node 0: 8 x big, fast between [0-3] [4-7], slow, network net",
        "  nodes 1 to 3, each: 2 x small + 2 x own, fast between [0 2] [1 3], slow, network net",
        "  nodes 4 to 5, each: 8 x v100-32, nvlink2, network net",
    ]
    own = "  own: no memory limit, 810 GB/s (0.9 of 900 GB/s), 5 us per op, 4 ops at a time"
    assert f"{own}, cores shared by all devices of a node" in lines
    assert "    matmul: float32 100 GFLOP/s, float16 82.5 TFLOP/s (0.66 of 125 TFLOP/s)" in lines
    assert "  net: 6.25 GB/s, 15 us latency, shared by all devices" in lines
    assert "  slow: 11.97 GB/s (0.76 of 15.75 GB/s), 5.7 us latency, one for 4 devices" in lines
