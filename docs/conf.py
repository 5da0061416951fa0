"""How Sphinx makes the site of the documentation: `make docs`.

The sources are the Markdown files that GitHub shows, where they are: docs/, README.md, the READMEs of examples. So
Sphinx reads the checkout from its root. What only a site needs is added here: the tree of its pages, from the lists of
links that the index pages have.
"""

import os
import re
import sys
from typing import Any, List

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)  # for autodoc
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from epl.utils import errors  # noqa: E402
from epl.utils.version import VERSION  # noqa: E402

project = "EPL"
author = "the EPL contributors"
copyright = "the EPL contributors, Apache 2.0"
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/**README.md"]
# Folders that Sphinx need not search.
exclude_patterns = [".*", "benchmarks", "build", "csrc", "dist", "epl", "experiments", "stubs", "tests", "tools"]
exclude_patterns += ["examples/**/output"]
nitpicky = True

# Markdown. Anchors of headings are those of GitHub.
myst_heading_anchors = 4

# Docstrings. Single backticks mark code in them, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autoclass_content = "both"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Types of TensorFlow and others, whose documentation is not searched, and types that EPL uses inside.
nitpick_ignore_regex = [
    ("py:.*", r"(tf|tensorflow|google|numpy|np)\..*"),
    ("py:class", r"(epl\.(\w+\.)+)?(StrategyContext|ParallelStrategy|Role)"),
]

html_theme = "furo"
html_title = f"EPL {VERSION}"
html_extra_path = ["site"]  # index.html, which leads to the first page
html_copy_source = False

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)"]

# Page -> the links on it that are its children: a pattern with the groups title and path.
TREE = {
    "docs/index": r"^- \[([^\]]*)\]\(([^)#]+\.md)\)",
    "docs/decisions/README": r"^\| \[([^\]]*)\]\((\w+\.md)\)",
    "examples/bert/README": r"\[(data)\]\((data/README\.md)\)",
    "examples/moe/README": r"\[(data)\]\((data/README\.md)\)",
}


def add_tree(app: Any, page: str, source: List[str]) -> None:
    """Adds a link to the glossary to each page, and to an index page a hidden `toctree` for each of its sections.

    The latter gives the site its sidebar.
    """
    source[0] += "\n\n---\n\n[Glossary](/docs/glossary.md)\n"
    if page not in TREE:
        return
    trees = []
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        titles = {path: title for title, path in re.findall(TREE[page], section, re.MULTILINE)}
        if titles:
            entries = "\n".join(f"{title} <{path}>" for path, title in titles.items())
            caption = section.split("\n")[0].lstrip("# ")
            trees.append(f'\n\n```{{toctree}}\n:hidden:\n:caption: "{caption}"\n\n{entries}\n```\n')
    source[0] += "".join(trees)


def find_error(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Leads from an error under `Raises` of a docstring, which names the class alone, to its entry."""
    target = node.get("reftarget", "")
    if node.get("reftype") != "exc" or not hasattr(errors, target):
        return None
    name = f"{errors.__name__}.{target}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "exc", name, node, content)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_tree)
    app.connect("missing-reference", find_error)
