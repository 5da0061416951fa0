"""Numbers with units, as machine files have them: "16 GB", "15.7 TFLOP/s", or a plain number in the base unit."""

import difflib
import math
import re
from decimal import Decimal
from typing import Any, Dict, Iterable, NamedTuple

_NUMBER = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?:\s*(\S.*))?", re.ASCII)
_BITS = re.compile(r"b(ps|/s)$")  # bits, not bytes
_LONGEST = 40  # characters of a value that a message repeats
_SI = {"": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15"}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class Unit(NamedTuple):
    """What a number counts.

    Attributes:
      base: the unit of a plain number.
      factors: unit -> how many of the base unit it is, exactly.
      example: a value as a file has it.
    """

    base: str
    factors: Dict[str, Decimal]
    example: str


def _scaled(base: str) -> Dict[str, Decimal]:
    return {prefix + base: Decimal(factor) for prefix, factor in _SI.items()}


def _binary(base: str) -> Dict[str, Decimal]:
    return {prefix + base: Decimal(factor) for prefix, factor in _BINARY.items()}


BYTES = Unit("B", dict(_scaled("B"), **_binary("B")), "16 GB")
BYTES_PER_SECOND = Unit(
    "B/s",
    dict(
        dict(_scaled("B/s"), **_binary("B/s")),
        **{unit: factor / 8 for unit, factor in _scaled("bit/s").items() if unit != "bit/s"},
    ),
    "12 GB/s",
)
FLOPS = Unit("FLOP/s", _scaled("FLOP/s"), "15.7 TFLOP/s")
SECONDS = Unit("s", {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}, "5 us")
_NO_TIME = 0.5e-9
FRACTION = Unit("", {"": Decimal(1), "%": Decimal("0.01")}, "0.9")


def parse(value: Any, unit: Unit) -> float:
    """A value of a file in the base unit.

    Args:
      value: a number, or a text of a number and a unit.
      unit: what it counts.

    Raises:
      ValueError: it is neither; the message, without a subject, says what it is and what was expected.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(value, value, unit)
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"is {shown(value)}, no number; expected one such as {unit.example}.")
    number, name = match.group(1), match.group(2) or unit.base
    if name not in unit.factors:
        raise ValueError(
            f"has the unknown unit {shown(name)}{did_you_mean(_BITS.sub('bit/s', name), unit.factors)} "
            f"Expected one of {', '.join(filter(None, unit.factors))}."
        )
    size = _finite(number, value, unit)
    # Decimal, so that "5 us" is the float 5e-06.
    return float(Decimal(number) * unit.factors[name]) if size else size


def _finite(number: Any, value: Any, unit: Unit) -> float:
    try:
        size = float(number)
    except OverflowError:
        size = math.inf
    if not math.isfinite(size):
        raise ValueError(f"is {shown(value)}, no finite number; expected one such as {unit.example}.")
    return size


def shown(value: Any) -> str:
    """A value of a file as a message repeats it: in full if it is short."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return "a number of more than {} digits".format(_LONGEST)
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence on an unknown name: the known one that looks most like it, if one does."""
    known = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower()[:_LONGEST], known, n=1, cutoff=0.5)
    return f"; did you mean {known[near[0]]}?" if near else "."


def show(value: float, unit: Unit) -> str:
    """A value for a person, with the unit in which it is 1 or more: 1.57e13 -> 15.7 TFLOP/s.

    Bytes of memory are shown in the unit in which they are round: 17179869184 -> 16 GiB. Times of less than half a
    nanosecond are what rounding leaves of zero.
    """
    if unit is SECONDS and abs(value) < _NO_TIME:
        return "0 ns"
    units = [(factor, name) for name, factor in unit.factors.items() if "bit" not in name]
    if unit is BYTES:
        binary = [pair for pair in units if "i" in pair[1]]
        units = binary if value and value % 2**20 == 0 else [pair for pair in units if "i" not in pair[1]]
    else:
        units = [pair for pair in units if "i" not in pair[1]]
    fitting = [pair for pair in sorted(units) if value >= float(pair[0])] or sorted(units)[:1]
    return "{:.4g} {}".format(value / float(fitting[-1][0]), fitting[-1][1])
