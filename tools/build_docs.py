#!/usr/bin/env python
"""Builds the site of the documentation (`html`), or asks whether its links to other sites work (`linkcheck`).

Sphinx runs in an environment of its own, `.venv-docs`, so that `.venv` stays free of it; docs/conf.py configures it.
Every warning is an error.
"""

import argparse
import os
import subprocess
import sys
from typing import List, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from tools.layered_environment import BuildError, LayeredEnvironment  # noqa: E402

OLDEST_PYTHON = (3, 7)
ENVIRONMENT = LayeredEnvironment(
    directory=os.path.join(ROOT, ".venv-docs"),
    requirements=os.path.join(ROOT, "requirements", "docs.txt"),
    probe="import furo, myst_parser, sphinx",
)


def build(builder: str, output: str) -> int:
    """Runs Sphinx.

    Args:
      builder: `html` or `linkcheck`.
      output: folder for what it writes.

    Returns:
      The exit code: not 0 after a warning or a broken link.

    Raises:
      BuildError: the environment cannot be made.
    """
    if sys.version_info < OLDEST_PYTHON:
        raise BuildError(
            "The site needs Python %d.%d or newer, and this is %d.%d: its theme and its reader of Markdown have no "
            "release for it. Make another environment: VENV=.venv37 PYTHON=python3.7 make docs"
            % (OLDEST_PYTHON + sys.version_info[:2])
        )
    if not ENVIRONMENT.is_ready():
        print("installing Sphinx into %s (once)" % ENVIRONMENT.directory, flush=True)
        ENVIRONMENT.make()
    # All pages are read each time (-E): Sphinx would not repeat the warnings of a page that has not changed.
    command = [ENVIRONMENT.python, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", builder]
    command += ["-c", os.path.join(ROOT, "docs"), "-d", output.rstrip("/") + ".doctrees", ROOT, output]
    return subprocess.call(command, cwd=ROOT, env=dict(os.environ, CUDA_VISIBLE_DEVICES="", PYTHONPATH=""))


def main(argv: Optional[List[str]] = None) -> int:
    """Builds; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("builder", choices=["html", "linkcheck"])
    parser.add_argument("--output", help="folder (default: build/site, build/links)")
    options = parser.parse_args(argv)
    default = {"html": "site", "linkcheck": "links"}[options.builder]
    output = os.path.abspath(options.output or os.path.join(ROOT, "build", default))
    try:
        code = build(options.builder, output)
    except BuildError as error:
        print(f"build_docs: {error}", file=sys.stderr)
        return 1
    if code == 0 and options.builder == "html":
        print(f"The site is in {output}: open index.html, or run make docs-serve.")
    return code


if __name__ == "__main__":
    sys.exit(main())
