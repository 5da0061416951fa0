"""Damaged machine files: each is read, or refused with MachineError; no other exception leaves the reader."""

import json
import random

import pytest

from epl.planner.machine.files import from_json, read_machine, to_json
from epl.utils.errors import MachineError
from tests.planner.machine.machine_texts import YAML

# What a slip of the hand, an editor or an attacker writes in the place of something right.
_JUNK = [
    "", "0", "-1", "1e999", "nan", ".inf", "null", "~", "true", "[]", "{}", "[[]]", "- ", ": ", "? ", "&a ", "*a ",
    "!!int ", "|", ">", "#", '"', "'", "\t", "\0", "\x85", "\u2028", "\ud7ff", "%YAML 1.1\n", "---\n", "...\n", "<<: ",
    "99999999*cpu", "9x9*cpu", "1" * 50, "cpu", "\\U00110000", '"\\x', "{a: b}", "[1, 2", "2020-01-01", "0o7", "1:30",
    "16 GB", "5 us",
]  # fmt: skip
_PLAIN_JUNK = [
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 10**400, "", "x", "cpu", "5 GB", "5 us", "4*cpu", [], {}, [[]],
    [1], ["cpu"], {"a": 1}, {"preset": "cpu"}, {"peak": 1, "fraction": 2}, {"link": "shm"}, "a" * 10000,
]  # fmt: skip


def damaged(text, draw):
    """A text with one to three damages."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        length = draw.choice([0, 0, 1, 3, 10, 80])
        kind = draw.randrange(4)
        if kind == 0:
            text = text[:at] + draw.choice(_JUNK) + text[at + length :]
        elif kind == 1:
            start = draw.randrange(len(text) + 1)
            text = text[:at] + text[start : start + length] + text[at:]
        elif kind == 2:
            lines = text.split("\n")
            first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[first], lines[second] = lines[second], lines[first]
            text = "\n".join(lines)
        else:
            text = text[:at] + chr(draw.choice([draw.randrange(128), draw.randrange(0xD800)])) + text[at + 1 :]
    return text


def damaged_value(plain, draw):
    """A JSON value in which one part is another one, is missing, or has another name."""
    if isinstance(plain, (dict, list)) and plain and draw.random() < 0.85:
        keys = list(plain) if isinstance(plain, dict) else list(range(len(plain)))
        key = draw.choice(keys)
        chance = draw.random()
        plain = dict(plain) if isinstance(plain, dict) else list(plain)
        if chance < 0.05:
            del plain[key]
        elif chance < 0.1 and isinstance(plain, dict):
            plain[draw.choice(["x", "", "preset", "links", "cpu", key + "s"])] = plain.pop(key)
        else:
            plain[key] = damaged_value(plain[key], draw)
        return plain
    return draw.choice(_PLAIN_JUNK)


def read_or_refuse(read, *arguments):
    """Whether a machine is read; it is described and written, too."""
    try:
        machine = read(*arguments)
    except MachineError as error:
        assert len(str(error)) < 3000  # a message is for people, whatever the file has
        return False
    assert machine.num_devices > 0 and machine.describe()
    assert from_json(to_json(machine)) == machine
    return True


def fuzz(path, texts):
    """How many of some damaged texts are read, the others being refused."""
    found = 0
    for text in texts:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        found += read_or_refuse(read_machine, str(path))
    return found


def yaml_texts(count):
    draw = random.Random(1)
    return (damaged(YAML, draw) for _ in range(count))


def json_texts(count, tmp_path):
    (tmp_path / "good.yaml").write_text(YAML)
    good = to_json(read_machine(str(tmp_path / "good.yaml")))
    draw = random.Random(2)
    for number in range(count):
        yield damaged(good, draw) if number % 3 == 0 else json.dumps(damaged_value(json.loads(good), draw))


@pytest.mark.parametrize("count", [60, pytest.param(4000, marks=pytest.mark.long)])
def test_damaged_yaml_is_read_or_refused(tmp_path, count):
    assert 0 < fuzz(tmp_path / "m.yaml", yaml_texts(count)) < count


@pytest.mark.parametrize("count", [300, pytest.param(6000, marks=pytest.mark.long)])
def test_damaged_json_is_read_or_refused(tmp_path, count):
    assert 0 < fuzz(tmp_path / "m.json", json_texts(count, tmp_path)) < count


def test_damaged_short_forms_are_read_or_refused():
    draw = random.Random(3)
    texts = [damaged("4x8*v100-32+8*p100-16,eth-50", draw) for _ in range(1000)]
    assert 0 < sum(read_or_refuse(read_machine, text) for text in texts) < 1000
