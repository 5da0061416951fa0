"""The fenced blocks of the pages."""

import os
import re
from typing import List, Tuple

DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "docs")


def of_page(name: str) -> List[Tuple[str, str]]:
    """(language, text) of each block of a page of docs/."""
    with open(os.path.join(DOCS, name), encoding="utf-8") as source:
        return re.findall(r"^```([^\n`]*)\n(.*?)^```$", source.read(), re.MULTILINE | re.DOTALL)
