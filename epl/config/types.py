"""The types of configuration values: legal values in code, how the environment spells them, and their description.

A type raises a plain `ValueError` that says what it expected; `epl/config/config.py` adds the key and where the value
came from. `epl/config/keys.py` has the type of each key.
"""

import math
import numbers
import os
import re
from typing import Any, Optional, Sequence

import numpy as np

_TRUE_WORDS = ("true", "1", "yes")
_FALSE_WORDS = ("false", "0", "no")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INDEX = re.compile(r"[0-9]+")
_LARGEST_PROPORTION = 1000000  # its product with a number of rows is an int64


def _is_bool(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


class ValueType:
    """The set of values that a key takes.

    Attributes:
      name: the Python type, as the documentation shows it.
    """

    name = ""

    def convert(self, value: Any) -> Any:
        """Returns the canonical form of a value given in code, or raises `ValueError`."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """Returns the value that the text of an environment variable means, or raises `ValueError`."""
        return self.convert(text)

    def expected(self) -> str:
        """Returns the legal values in words, to follow "expected"."""
        raise NotImplementedError

    def expected_text(self) -> str:
        """Returns the legal values in words, as an environment variable spells them."""
        return self.expected()

    def show(self, value: Any) -> str:
        """Returns a canonical value as the documentation and the printed configuration show it."""
        return repr(value)

    def _refuse(self) -> ValueError:
        return ValueError(f"expected {self.expected()}")


class BoolType(ValueType):
    """True or False; words, but no numbers, in the environment."""

    name = "bool"

    def convert(self, value: Any) -> bool:
        if not _is_bool(value):
            raise self._refuse()
        return bool(value)

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word in _TRUE_WORDS:
            return True
        if word in _FALSE_WORDS:
            return False
        raise ValueError(f"expected {self.expected_text()}")

    def expected(self) -> str:
        return "True or False"

    def expected_text(self) -> str:
        return "one of {} (in upper or lower case)".format(", ".join(_TRUE_WORDS + _FALSE_WORDS))


class IntType(ValueType):
    """An integer of at least `minimum`; a bool is not one.

    With `unset`, that value and `None` both mean "not set", and are stored as `unset`.
    """

    name = "int"

    def __init__(self, minimum: int, unset: Optional[int] = None, maximum: Optional[int] = None) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._unset = unset

    def convert(self, value: Any) -> int:
        if self._unset is not None and value is None:
            return self._unset
        if _is_bool(value) or not isinstance(value, numbers.Integral):
            raise self._refuse()
        number = int(value)
        too_large = self._maximum is not None and number > self._maximum
        if (number < self._minimum or too_large) and number != self._unset:
            raise self._refuse()
        return number

    def parse(self, text: str) -> int:
        word = text.strip()
        if self._unset is not None and word.lower() in ("", "none"):
            return self._unset
        if not _INTEGER.fullmatch(word):
            raise self._refuse()
        return self.convert(int(word))

    def expected(self) -> str:
        words = f"an integer of at least {self._minimum}"
        if self._maximum is not None:
            words = f"an integer from {self._minimum} to {self._maximum}"
        return words if self._unset is None else f"{words}, or None or {self._unset} for unset"


class _AboveZeroType(ValueType):
    """A finite number above zero; an integer is accepted and stored as float."""

    name = "float"

    def convert(self, value: Any) -> float:
        if _is_bool(value) or not isinstance(value, numbers.Real):
            raise self._refuse()
        number = float(value)
        if not math.isfinite(number) or number <= 0:
            raise self._refuse()
        return number

    def parse(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self._refuse() from None
        return self.convert(number)


class SecondsType(_AboveZeroType):
    """A duration."""

    def expected(self) -> str:
        return "a number of seconds above 0"


class FractionType(_AboveZeroType):
    """A part of something: a number above 0, and up to 1."""

    def convert(self, value: Any) -> float:
        fraction = super().convert(value)
        if fraction > 1:
            raise self._refuse()
        return fraction

    def expected(self) -> str:
        return "a number above 0, and up to 1"


class ChoiceType(ValueType):
    """One of some words, in upper or lower case; stored in lower case, as EPL does.

    Attributes:
      choices: the words, spelled as the documentation does.
    """

    name = "str"

    def __init__(self, *choices: str) -> None:
        self.choices: Sequence[str] = choices

    def convert(self, value: Any) -> str:
        if not isinstance(value, str) or value.strip().lower() not in [word.lower() for word in self.choices]:
            raise self._refuse()
        return value.strip().lower()

    def expected(self) -> str:
        return "one of {} (in upper or lower case)".format(", ".join(f'"{word}"' for word in self.choices))

    def show(self, value: Any) -> str:
        return f'"{value}"'


class PathType(ValueType):
    """The path of a file; the empty string for none."""

    name = "str"

    def convert(self, value: Any) -> str:
        if not isinstance(value, (str, os.PathLike)):
            raise self._refuse()
        return str(value)

    def expected(self) -> str:
        return 'the path of a file, or "" for none'

    def show(self, value: Any) -> str:
        return f'"{value}"'


class MachineType(PathType):
    """A machine: the path of its file, or its short form, such as "8*v100-32"; the empty string for none."""

    def expected(self) -> str:
        return 'the path of a machine file, devices such as "8*v100-32", or "" for none'


class ExplainType(PathType):
    """The word "text", in upper or lower case; or the path of a file that ends in .html or .json; "" for none."""

    def convert(self, value: Any) -> str:
        path = super().convert(value)
        if path.strip().lower() in ("", "text"):
            return path.strip().lower()
        if not path.lower().endswith((".html", ".json")):
            raise self._refuse()
        return path

    def expected(self) -> str:
        return '"text", the path of a file that ends in .html or .json, or "" for none'


class DeviceListType(ValueType):
    """Indices of devices, separated by commas, each once; the empty string for all."""

    name = "str"

    def convert(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self._refuse()
        if not value.strip():
            return ""
        indices = [index.strip() for index in value.split(",")]
        if not all(_INDEX.fullmatch(index) for index in indices) or len(set(map(int, indices))) != len(indices):
            raise self._refuse()
        return ",".join(str(int(index)) for index in indices)

    def expected(self) -> str:
        return 'indices of devices, each once, separated by commas, such as "0,2", or "" for all'

    def show(self, value: Any) -> str:
        return f'"{value}"'


class BalanceType(ValueType):
    """A word, in upper or lower case; or whole numbers from 1 with colons between them, such as "5:3:1"."""

    name = "str"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self._refuse()
        word = value.strip().lower()
        if word in self._words:
            return word
        numbers_given = [number.strip() for number in word.split(":")]
        if not all(_INDEX.fullmatch(number) for number in numbers_given):
            raise self._refuse()
        if not all(1 <= int(number) <= _LARGEST_PROPORTION for number in numbers_given):
            raise self._refuse()
        return ":".join(str(int(number)) for number in numbers_given)

    def expected(self) -> str:
        words = " or ".join(f'"{word}"' for word in self._words)
        return (
            f"{words}, or a whole number from 1 to {_LARGEST_PROPORTION} for each replica of the job, with colons "
            'between them, such as "5:3:1"'
        )

    def show(self, value: Any) -> str:
        return f'"{value}"'


class LossScaleType(ValueType):
    """The word "dynamic" or a fixed number of at least 1, stored as float; a string may spell the number."""

    name = "str or float"

    def convert(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.parse(value)
        if _is_bool(value) or not isinstance(value, numbers.Real):
            raise self._refuse()
        scale = float(value)
        if not math.isfinite(scale) or scale < 1:
            raise self._refuse()
        return scale

    def parse(self, text: str) -> Any:
        if text.strip().lower() == "dynamic":
            return "dynamic"
        try:
            number = float(text)
        except ValueError:
            raise self._refuse() from None
        return self.convert(number)

    def expected(self) -> str:
        return '"dynamic" or a number of at least 1'

    def show(self, value: Any) -> str:
        return '"dynamic"' if value == "dynamic" else repr(value)
