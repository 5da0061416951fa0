"""A published figure next to what the simulator predicts, as a section of docs/papers.md."""

import textwrap
from typing import Dict, List, NamedTuple, Sequence, Tuple

_WIDTH = 124  # of a line of text in the pages

HEADER = ("", "published", "predicted", "gap", "what was not published and assumed")


class Comparison(NamedTuple):
    """A row of the table of a figure, in words.

    Attributes:
      what: it is.
      published, predicted: the values.
      gap: between them; "" where no number was published.
      assumed: what was not published.
    """

    what: str
    published: str
    predicted: str
    gap: str
    assumed: str


class Table(NamedTuple):
    """A further table of a figure.

    Attributes:
      title: what it says, a sentence.
      rows: of cells; the first are the heads of the columns.
    """

    title: str
    rows: Tuple[Sequence[str], ...]


class Figure(NamedTuple):
    """A figure.

    Attributes:
      title: of the section.
      folder: in benchmarks/papers.
      text: paragraphs: what was published, and what is simulated.
      comparisons: the table "published, predicted, gap".
      tables: what else the simulator says.
      values: what the tests look at, by name.
    """

    title: str
    folder: str
    text: Tuple[str, ...]
    comparisons: Tuple[Comparison, ...]
    tables: Tuple[Table, ...]
    values: Dict[str, float]

    def section(self) -> str:
        """The section of the page, in Markdown."""
        parts = [f"## {self.title}"]
        parts += ["\n".join(textwrap.wrap(one, _WIDTH, break_on_hyphens=False)) for one in self.text]
        parts.append(_markdown([HEADER, *self.comparisons]))
        for table in self.tables:
            parts += ["\n".join(textwrap.wrap(table.title, _WIDTH, break_on_hyphens=False)), _markdown(table.rows)]
        return "\n\n".join(parts) + "\n"


def compared(what: str, published: float, predicted: float, assumed: str, unit: str = "") -> Comparison:
    """A row of two numbers, with the gap in percent of the published one."""
    gap = f"{100 * (predicted / published - 1):+.0f}%"
    return Comparison(what, f"{published:g}{unit}", f"{predicted:.2f}{unit}", gap, assumed)


def milliseconds(seconds: float) -> str:
    """Seconds for a table."""
    return f"{1e3 * seconds:,.0f} ms"


def gigabytes(size: float) -> str:
    """Bytes for a table."""
    return f"{size / 1e9:,.1f} GB"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines: List[str] = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)
