"""Simulates published figures and writes docs/papers.md: ``make papers``.

Owns the command line and the page; each figure is a folder next to this file: model.py, figure.py.
"""

import argparse
import importlib
import os
import sys
from typing import List

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "../..")))

# Below the line above, since this file is run as a script.
from benchmarks.papers.figure import Figure
from epl.utils.whole_file import write_whole

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
FIGURES = ("many_classes", "bert_pipeline", "m6_dense", "m6_experts", "unequal_gpus", "alexnet")
PAGE = os.path.join(ROOT, "docs", "papers.md")
_START = "<!-- {}: made by make papers -->"


def main() -> int:
    """Computes the chosen figures and puts their sections into the page."""
    parser = argparse.ArgumentParser(description="Predict published figures, and write docs/papers.md.")
    parser.add_argument("--only", action="append", choices=FIGURES, help="one of them; repeatable (default: all)")
    options = parser.parse_args()
    for name in options.only or FIGURES:
        found = compute(name)
        print(found.section(), flush=True)
        with open(PAGE, encoding="utf-8") as file:
            page = file.read()
        write_whole(PAGE, with_section(page, found))
    print(f"{os.path.relpath(PAGE)} is written.")
    return 0


def compute(name: str) -> Figure:
    """A figure, by the name of its folder."""
    found: Figure = importlib.import_module(f"benchmarks.papers.{name}.figure").figure()
    return found


def section_of(page: str, name: str) -> str:
    """The section of a figure in the page.

    Raises:
      ValueError: the page has none.
    """
    start, end = _bounds(page, name)
    return page[start:end]


def with_section(page: str, figure: Figure) -> str:
    """The page with a new section of a figure."""
    start, end = _bounds(page, figure.folder)
    return page[:start] + figure.section() + page[end:]


def _bounds(page: str, name: str) -> List[int]:
    mark = _START.format(name) + "\n"
    at = page.find(mark)
    if at < 0:
        raise ValueError(f"docs/papers.md has no line {mark.strip()!r}, after which the section of the figure begins.")
    start = at + len(mark)
    end = page.find("\n<!--", start)
    return [start, len(page) if end < 0 else end]


if __name__ == "__main__":
    sys.exit(main())
