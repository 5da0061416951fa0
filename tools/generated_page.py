"""The command line of the tools that write a page of docs/ from a table."""

import argparse
import os
import sys
from typing import Callable, List, Optional


def main(tool: str, page: str, render: Callable[[], str], about: Optional[str], argv: Optional[List[str]]) -> int:
    """Writes or checks a page.

    Args:
      tool: file name of the tool.
      page: path of the page.
      render: gives its text.
      about: what the tool does, for --help.
      argv: command line without the program; None: that of the process.

    Returns:
      The exit code: 1 where a page that is only checked is stale.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is stale")
    parser.add_argument("--output", default=page, help=f"the page (default: docs/{os.path.basename(page)})")
    options = parser.parse_args(argv)
    text = render()
    if not options.check:
        with open(options.output, "w", encoding="utf-8") as stream:
            stream.write(text)
        return 0
    try:
        with open(options.output, encoding="utf-8") as stream:
            written = stream.read()
    except FileNotFoundError:
        written = ""
    if written == text:
        return 0
    print(f"{options.output} is stale. Run: python tools/{tool}", file=sys.stderr)
    return 1
