"""Tables for a terminal."""

from epl.profiler.tables import aligned


def test_columns_are_as_wide_as_their_widest_cell():
    rows = [("name", "bytes", "at"), ("a", "1", ""), ("longer", "1000000", "x")]
    assert aligned(rows, left=(0, 2)) == ["name      bytes  at", "a             1", "longer  1000000  x"]
