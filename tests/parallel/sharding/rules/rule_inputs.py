"""What ops take that are checked by rule_harness.py: sizes, and how the numbers are made."""

from typing import Any, Callable, NamedTuple, Tuple

import numpy as np


class Input(NamedTuple):
    """A tensor that an op takes.

    Attributes:
      shape: its sizes; "B", "3B": the batch, or so many times it; "?5": a size that the rule does not see.
      make: numbers of a shape from a generator.
      constant: whether the rule sees its value.
      variable: whether the op takes the variable itself, a resource.
    """

    shape: Tuple[Any, ...]
    make: Callable[[np.random.RandomState, Tuple[int, ...]], np.ndarray]
    constant: bool = False
    variable: bool = False


def floats(*shape: Any, dtype: Any = np.float32) -> Input:
    """Numbers around 0."""
    return Input(shape, lambda random, sizes: random.uniform(-1, 1, sizes).astype(dtype))


def positive(*shape: Any) -> Input:
    """Numbers between 0.1 and 0.9."""
    return Input(shape, lambda random, sizes: random.uniform(0.1, 0.9, sizes).astype(np.float32))


def tied(*shape: Any) -> Input:
    """Numbers many of which are equal."""
    return Input(shape, lambda random, sizes: random.randint(-2, 3, sizes).astype(np.float32))


def integers(*shape: Any, low: int = 0, high: int = 8, dtype: Any = np.int32) -> Input:
    """Integers of a range."""
    return Input(shape, lambda random, sizes: random.randint(low, high, sizes).astype(dtype))


def booleans(*shape: Any) -> Input:
    """Either value, equally often."""
    return Input(shape, lambda random, sizes: random.uniform(0, 1, sizes) < 0.5)


def imaginary(*shape: Any) -> Input:
    """Complex numbers with odd parts, so not 0."""

    def make(random: np.random.RandomState, sizes: Tuple[int, ...]) -> np.ndarray:
        real, imag = 2 * random.randint(-5, 5, (2,) + sizes) + 1
        return (real + 1j * imag).astype(np.complex64)

    return Input(shape, make)


def variable(*shape: Any) -> Input:
    """A variable, with numbers around 0."""
    return floats(*shape)._replace(variable=True)


def constant(value: Any, dtype: Any = None) -> Input:
    """A constant."""
    array = np.asarray(value, dtype)
    array = array.astype({"int64": np.int32, "float64": np.float32}.get(array.dtype.name, array.dtype)) \
        if dtype is None else array  # fmt: skip
    return Input(array.shape, lambda random, sizes: array, True)


def hidden(value: Any) -> Input:
    """A value that the rule does not see."""
    return constant(value)._replace(constant=False)
