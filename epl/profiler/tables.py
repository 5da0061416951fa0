"""Tables for a terminal: cells of a column have the same width."""

from typing import Collection, List, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> List[str]:
    """A line for each row, with two spaces between the columns.

    Args:
      rows: the cells, as many in each row; the first row has the titles.
      left: the columns that are aligned to the left; the others have numbers.
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
