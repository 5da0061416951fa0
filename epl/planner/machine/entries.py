"""Entries of a machine file, read strictly: what is unknown, missing or of another form is an error that says where."""

import re
from typing import Any, Dict, NamedTuple, Sequence, Tuple

from epl.planner.machine import quantities
from epl.planner.machine.machine import Sources, Speed
from epl.planner.machine.quantities import Unit, did_you_mean, shown
from epl.utils.errors import MachineError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)


class EntryPlace(NamedTuple):
    """Where an entry is: the file, and the keys that lead to it."""

    file: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.path}" if self.path else self.file

    def at(self, key: Any) -> "EntryPlace":
        """The place of an entry of this one."""
        step = f"[{key}]" if isinstance(key, int) else str(key) if not self.path else f".{key}"
        return self._replace(path=self.path + step)


def mapping(plain: Any, place: EntryPlace, keys: Sequence[str], example: str) -> Dict[str, Any]:
    """An entry that is a mapping and has no key but `keys`."""
    if not isinstance(plain, dict):
        raise MachineError(f"{place} is {shown(plain)}; expected a mapping such as {example}.")
    for key in plain:
        if key not in keys:
            raise MachineError(
                f"{place} has the unknown key {shown(key)}{did_you_mean(key, keys)} Expected one of {', '.join(keys)}."
            )
    return plain


def named(plain: Any, place: EntryPlace, example: str) -> Dict[str, Any]:
    """An entry that is a mapping from names of the user's."""
    if not isinstance(plain, dict):
        raise MachineError(f"{place} is {shown(plain)}; expected a mapping such as {example}.")
    for name in plain:
        if _NAME.fullmatch(name) is None:
            raise MachineError(
                f"{place} has the name {shown(name)}; expected a letter, then letters, digits, '.', '-' and '_', 64 "
                "characters at most, such as v100-32."
            )
    return plain


def required(plain: Dict[str, Any], place: EntryPlace, key: str, example: str) -> Any:
    """The value of a key that must be there."""
    if key not in plain:
        raise MachineError(f"{place} lacks the key {key}; add it, such as {key}: {example}.")
    return plain[key]


def text(plain: Any, place: EntryPlace, example: str) -> str:
    """An entry that is a text of one or more characters."""
    if not isinstance(plain, str) or not plain.strip():
        raise MachineError(f"{place} is {shown(plain)}; expected a text such as {example}.")
    return plain.strip()


def quantity(plain: Any, place: EntryPlace, unit: Unit, zero: bool = False) -> float:
    """An entry that is a number above 0, or from 0 on, in the base unit."""
    try:
        value = quantities.parse(plain, unit)
    except ValueError as error:
        raise MachineError(f"{place} {error}") from None
    if value < 0 or (value == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise MachineError(f"{place} is {shown(plain)}; expected a number {least}, such as {unit.example}.")
    return value


def speed(plain: Any, place: EntryPlace, unit: Unit) -> Speed:
    """An entry that is a rate: a number, or a peak with the fraction that is reached."""
    if not isinstance(plain, dict):
        return Speed(quantity(plain, place, unit))
    entry = mapping(plain, place, Speed._fields, "{" + f"peak: {unit.example}, fraction: 0.9" + "}")
    peak = quantity(required(entry, place, "peak", unit.example), place.at("peak"), unit)
    fraction = quantity(required(entry, place, "fraction", "0.9"), place.at("fraction"), quantities.FRACTION)
    if fraction > 1:
        raise MachineError(
            f"{place.at('fraction')} is {shown(entry['fraction'])}; expected the share of the peak that is reached, "
            "above 0 and up to 1."
        )
    return Speed(peak, fraction)


def count(plain: Any, place: EntryPlace, least: int = 1, also: str = "") -> int:
    """An entry that is a whole number from `least` on; a YAML file gives it as a text. `also`: what else may stand."""
    found = str(plain) if isinstance(plain, (int, str)) and not isinstance(plain, bool) else ""
    if _DIGITS.fullmatch(found) is None or int(found) < least:
        raise MachineError(f"{place} is {shown(plain)}; expected a whole number from {least} to 999999999{also}.")
    return int(found)


def items(plain: Any, place: EntryPlace, example: str) -> Sequence[Any]:
    """An entry that is a list with one or more items."""
    if not isinstance(plain, list) or not plain:
        what = "an empty list" if plain == [] else shown(plain)
        raise MachineError(f"{place} is {what}; expected a list such as {example}.")
    return plain


def sources(plain: Dict[str, Any], place: EntryPlace, keys: Sequence[str]) -> Sources:
    """Where the numbers of an entry come from: `source` is a text for all of them, or a text for each key."""
    found = plain.get("source")
    if found is None:
        return ()
    place = place.at("source")
    if not isinstance(found, dict):
        return (("", text(found, place, "a data sheet by name")),)
    mapping(found, place, [key for key in keys if key not in ("preset", "source")], "{memory: a data sheet by name}")
    return tuple((key, text(source, place.at(key), "a data sheet by name")) for key, source in found.items())


def replaced_sources(old: Sources, new: Sources, given: Sequence[str]) -> Sources:
    """The sources of an entry that changes keys of a preset: what the file gives has no source of the preset's."""
    if [key for key, _ in new] == [""]:
        new = tuple((key, new[0][1]) for key in given)
    known: Dict[str, str] = {key: source for key, source in old if key not in given}
    return tuple(dict(known, **dict(new)).items())


def chosen(name: str, place: EntryPlace, known: Sequence[str], what: str) -> str:
    """`name`, which must be one of `known`."""
    if name not in known:
        raise MachineError(
            f"{place} names the unknown {what} {shown(name)}{did_you_mean(name, known)} "
            f"Expected one of {', '.join(known)}."
        )
    return name


_TERM = re.compile(r"(?:(?:([0-9]{1,9})x)?([0-9]{1,9})\*)?([A-Za-z][A-Za-z0-9_.-]{0,63})", re.ASCII)


def term(plain: Any, place: EntryPlace, of_nodes: bool) -> Tuple[int, int, str]:
    """(nodes, devices of each, name of the kind) of a text such as 4x8*v100-32, 8*v100-32 or cpu.

    Args:
      plain: the entry.
      place: where it is.
      of_nodes: whether a number of nodes may stand first.
    """
    match = _TERM.fullmatch(plain.replace(" ", "")) if isinstance(plain, str) else None
    nodes, devices = (1, 1) if match is None else (int(match.group(1) or 1), int(match.group(2) or 1))
    if match is None or not nodes or not devices or (match.group(1) and not of_nodes):
        example = "8*v100-32, or 4x8*v100-32 for 4 nodes" if of_nodes else "8*v100-32"
        raise MachineError(f"{place} is {shown(plain)}; expected devices such as {example}.")
    return nodes, devices, match.group(3)
