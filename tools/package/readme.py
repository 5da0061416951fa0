"""The README as a package index shows it: its links to files of the checkout lead to the project's page there."""

import os
import re

PROJECT = "https://github.com/alibaba/EasyParallelLibrary"
PAGES = PROJECT + "/blob/main/"


def for_package_index(root: str) -> str:
    """The text of README.md below the folder `root`, with absolute links."""
    with open(os.path.join(root, "README.md"), encoding="utf-8") as source:
        return absolute_links(source.read())


def absolute_links(text: str) -> str:
    """Markdown whose links to files of the checkout are absolute; those within the page stay as they are."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", lambda link: f"]({PAGES}{link.group(1)})", text)
