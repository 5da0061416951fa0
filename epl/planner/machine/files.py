"""Reads machines: from a YAML or JSON file, from JSON, or from the short form; writes them as YAML or JSON.

8*v100-32+8*p100-16,eth-50      two nodes that differ, and the network between them
4x8*v100-32,eth-100             four nodes of eight devices
8*v100-32                       one node
cpu                             one device
"""

import importlib.util
import json
import os
from typing import Any, Dict, List, Tuple

from epl.planner.machine.machine import Machine, to_plain
from epl.planner.machine.plain_form import from_plain
from epl.planner.machine.quantities import shown
from epl.utils.errors import MachineError

_YAML = (".yaml", ".yml")
_JSON = (".json",)


def read_machine(text: str) -> Machine:
    """The machine that a user names: the path of a file that ends in .yaml, .yml or .json, or the short form.

    Raises:
      MachineError: the file cannot be read, or what it says is wrong.
    """
    ending = os.path.splitext(text)[1].lower()
    if ending in _YAML + _JSON:
        return _read_file(text, ending)
    if os.sep in text:
        raise MachineError(f"{shown(text)} is no machine: a machine file ends in .yaml, .yml or .json.")
    return _short_form(text)


def to_json(machine: Machine) -> str:
    """A machine as text; `from_json` reads it, and so does `read_machine` from a file that ends in .json."""
    return json.dumps(to_plain(machine), indent=1)


def to_yaml(machine: Machine) -> str:
    """A machine as text that `read_machine` reads from a file that ends in .yaml.

    Raises:
      MachineError: PyYAML is not installed.
    """
    try:
        from epl.planner.machine.yaml_text import write_yaml
    except ImportError:
        raise _yaml_needed(f"the file of machine {machine.name}") from None
    return write_yaml(to_plain(machine))


def check_name(path: str) -> None:
    """Checks that a machine can be written to a file of this name.

    Raises:
      MachineError: the name has another ending than a machine file, or PyYAML is needed and not installed.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in _YAML + _JSON:
        raise MachineError(f"{shown(path)} is no name for it: a machine file ends in .yaml, .yml or .json.")
    if ending in _YAML and importlib.util.find_spec("yaml") is None:
        raise _yaml_needed(path)


def text_for(machine: Machine, path: str) -> str:
    """A machine as the text of a file of this name.

    Raises:
      MachineError: as `check_name`.
    """
    check_name(path)
    return to_json(machine) if os.path.splitext(path)[1].lower() in _JSON else to_yaml(machine)


def from_json(text: str, file: str = "machine") -> Machine:
    """The machine of a text in the form of a JSON file.

    Args:
      text: the text.
      file: what messages call it.

    Raises:
      MachineError: what it says is wrong.
    """
    return from_plain(_parse(text, file, ".json"), file, _name_of(file))


def _short_form(text: str) -> Machine:
    nodes, *rest = text.split(",")
    if len(rest) > 1 or not text.strip():
        raise MachineError(
            f"{shown(text)} is no machine; expected devices and, if there are several nodes, their network after a "
            "comma, such as 8*v100-32+8*p100-16,eth-50, or the path of a machine file."
        )
    plain: Dict[str, Any] = {"nodes": nodes.split("+")}
    if rest:
        plain["network"] = rest[0]
    return from_plain(plain, f"machine {shown(text)}", text)


def _read_file(path: str, ending: str) -> Machine:
    try:
        with open(path, "rb") as source:
            content = source.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise MachineError(f"the machine file {shown(path)} cannot be read: {error}.") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MachineError(
            f"{path} is no text in UTF-8: byte {error.start} cannot be read; save it as UTF-8."
        ) from None
    return from_plain(_parse(text, path, ending), path, _name_of(path))


def _name_of(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _parse(text: str, file: str, ending: str) -> Any:
    if not text.strip():
        return None
    try:
        return _parse_json(text) if ending in _JSON else _parse_yaml(text, file)
    except RecursionError:
        raise MachineError(f"{file} is nested too deeply; expected a machine file.") from None
    except (ValueError, OverflowError) as error:
        form = "JSON" if ending in _JSON else "YAML"
        raise MachineError(f"{file} is no {form}: {error}. Correct it there.") from None


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} stands twice in one mapping")
        found[key] = value
    return found


def _parse_yaml(text: str, file: str) -> Any:
    try:
        from epl.planner.machine.yaml_text import parse_yaml
    except ImportError:
        raise _yaml_needed(file) from None
    return parse_yaml(text)


def _yaml_needed(what: str) -> MachineError:
    return MachineError(
        f"{what} is YAML, which needs PyYAML; run pip install PyYAML, or write the machine as JSON in a file that ends "
        "in .json."
    )
