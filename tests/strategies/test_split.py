"""The arguments of epl.split."""

from fractions import Fraction

import numpy as np
import pytest

import epl
from epl.utils.errors import AnnotationError


@pytest.mark.parametrize(
    "ratios, whole",
    [
        ([3, 1], (3, 1)),
        ((6, 2), (3, 1)),
        ([0.75, 0.25], (3, 1)),
        ([0.7, 0.3], (7, 3)),
        ([Fraction(1, 3), 1], (1, 3)),
        (np.array([1.5, 3.0]), (1, 2)),
        (np.array([2, 4]), (1, 2)),
        ([2, 0], (1, 0)),
        ([0, 0.5, 0.25], (0, 2, 1)),
    ],
)
def test_ratios_are_whole_numbers_as_exact_as_they_are_written(ratios, whole):
    assert epl.split(ratios=ratios).ratios == whole


def test_ratios_come_third_and_say_how_many_devices_there_are():
    assert epl.split(2, "head", [3, 1]).name == "head"
    assert epl.split(ratios=[3, 1, 1]).device_count == 3
    assert epl.split(4).ratios == () and epl.split().device_count is None


def test_ratios_are_printed_if_there_are_any():
    assert str(epl.split(2, "head")) == "epl.split(device_count=2, name='head')"
    assert str(epl.split(2, "head", [3, 1])) == "epl.split(device_count=2, name='head', ratios=[3, 1])"


@pytest.mark.parametrize(
    "ratios",
    [3, "31", {3: 1}, [], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")], [True, 2], [1, None]],
    ids=str,
)
def test_ratios_are_numbers_from_0_up(ratios):
    with pytest.raises(AnnotationError, match="expected a list of numbers from 0 up, one for each device"):
        epl.split(2, ratios=ratios)


def test_there_is_a_ratio_for_each_device():
    with pytest.raises(AnnotationError, match=r"device_count=3, ratios=\[2, 1\]\) has 2 ratios for 3 device"):
        epl.split(3, ratios=[2, 1])
