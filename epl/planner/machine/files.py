"""Reads machines: from a YAML or JSON file, from JSON, or from the short form; writes them as YAML or JSON.

8*v100-32+8*p100-16,eth-50      two nodes that differ, and the network between them
4x8*v100-32,eth-100             four nodes of eight devices
8*v100-32                       one node
cpu                             one device
"""

import importlib.util
import json
import os
from typing import Any, Dict

from epl.planner.machine.machine import Machine, to_plain
from epl.planner.machine.plain_form import from_plain
from epl.planner.machine.quantities import shown
from epl.utils import plain_files
from epl.utils.errors import MachineError


def read_machine(text: str) -> Machine:
    """The machine that a user names: the path of a file that ends in .yaml, .yml or .json, or the short form.

    Raises:
      MachineError: the file cannot be read, or what it says is wrong.
    """
    ending = plain_files.ending_of(text)
    if ending in plain_files.YAML + plain_files.JSON:
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
        from epl.utils.yaml_text import write_yaml
    except ImportError:
        raise _yaml_needed(f"the file of machine {machine.name}") from None
    return write_yaml(to_plain(machine))


def check_name(path: str) -> None:
    """Checks that a machine can be written to a file of this name.

    Raises:
      MachineError: the name has another ending than a machine file, or PyYAML is needed and not installed.
    """
    ending = plain_files.ending_of(path)
    if ending not in plain_files.YAML + plain_files.JSON:
        raise MachineError(f"{shown(path)} is no name for it: a machine file ends in .yaml, .yml or .json.")
    if ending in plain_files.YAML and importlib.util.find_spec("yaml") is None:
        raise _yaml_needed(path)


def text_for(machine: Machine, path: str) -> str:
    """A machine as the text of a file of this name.

    Raises:
      MachineError: as `check_name`.
    """
    check_name(path)
    return to_json(machine) if plain_files.ending_of(path) in plain_files.JSON else to_yaml(machine)


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
    try:
        return plain_files.parse(text, ending, "machine file")
    except plain_files.YamlNeededError:
        raise _yaml_needed(file) from None
    except ValueError as error:
        raise MachineError(f"{file} {error}.") from None


def _yaml_needed(what: str) -> MachineError:
    return MachineError(
        f"{what} is YAML, which needs PyYAML; run pip install PyYAML, or write the machine as JSON in a file that ends "
        "in .json."
    )
