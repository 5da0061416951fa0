"""Numbers with units: what they mean, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.planner.machine.quantities import BYTES, BYTES_PER_SECOND, FLOPS, FRACTION, SECONDS, parse, show


@pytest.mark.parametrize(
    "text, unit, value",
    [
        ("16 GB", BYTES, 16e9),
        ("16GiB", BYTES, 2**34),
        (5, BYTES, 5.0),
        ("15.7 TFLOP/s", FLOPS, 15.7e12),
        ("12 GB/s", BYTES_PER_SECOND, 12e9),
        ("50 Gbit/s", BYTES_PER_SECOND, 6.25e9),
        ("5 us", SECONDS, 5e-6),
        (" 1.5e-3 ", SECONDS, 1.5e-3),
        ("66%", FRACTION, 0.66),
        ("-.5", FRACTION, -0.5),
    ],
)
def test_a_number_has_the_unit_that_it_says_or_the_base_unit(text, unit, value):
    assert parse(text, unit) == value


@pytest.mark.parametrize("value", ["", "fast", "nan", "inf GB", None, True, [], {}, "٣"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="no number; expected one such as 16 GB"):
        parse(value, BYTES)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "1e400", "9" * 400])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="no finite number"):
        parse(value, BYTES)


def test_a_number_too_small_for_a_float_is_zero():
    assert parse("1e-99999999999999999999 GB", BYTES) == 0


@pytest.mark.parametrize(
    "text, unit, near",
    [
        ("16 gb", BYTES, "GB"),
        ("5 usec", SECONDS, "us"),
        ("12 GB", BYTES_PER_SECOND, "GB/s"),
        ("50 Gb/s", BYTES_PER_SECOND, "Gbit/s"),
        ("50 Gbps", BYTES_PER_SECOND, "Gbit/s"),
        ("15.7 TFLOPS", FLOPS, "TFLOP/s"),
    ],
)
def test_an_unknown_unit_is_refused_with_the_nearest(text, unit, near):
    with pytest.raises(ValueError, match=f"unknown unit '.*'; did you mean {near}\\?"):
        parse(text, unit)


@pytest.mark.parametrize("text", ["1 000", "0x10", "1_0"])
def test_what_looks_like_no_unit_is_refused_without_a_guess(text):
    with pytest.raises(ValueError, match="unknown unit '.*'. Expected one of B, kB, MB"):
        parse(text, BYTES)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (15.7e12, FLOPS, "15.7 TFLOP/s"),
        (0.0, SECONDS, "0 ns"),
        (5e-6, SECONDS, "5 us"),
        (3.388e-20, SECONDS, "0 ns"),
        (-1e-18, SECONDS, "0 ns"),
        (2**35, BYTES, "32 GiB"),
        (12e9, BYTES, "12 GB"),
        (6.25e9, BYTES_PER_SECOND, "6.25 GB/s"),
        (3.5e18, FLOPS, "3500 PFLOP/s"),
    ],
)
def test_a_value_is_shown_in_the_unit_that_fits(value, unit, text):
    assert show(value, unit) == text


@given(st.sampled_from([BYTES, BYTES_PER_SECOND, FLOPS, SECONDS]), st.floats(1e-9, 1e18))
def test_what_is_shown_is_read_again(unit, value):
    assert parse(show(value, unit), unit) == pytest.approx(value, rel=1e-3)
