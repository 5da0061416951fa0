"""Remembers what set-up has done, so that a second run does only what changed.

A stamp is the hash of everything a step depends on, kept in the virtual environment that the step worked on.
"""

import hashlib
import json
import os
from typing import Any, Dict, Iterable

FILE = "epl-set-up.json"


class Stamps:
    """The stamps of one virtual environment, written through to its file."""

    def __init__(self, venv: str) -> None:
        self._path = os.path.join(venv, FILE)
        self._values: Dict[str, Any] = {}
        try:
            with open(self._path) as source:
                self._values = json.load(source)
        except (OSError, ValueError):
            pass  # none yet, or cut short by a crash: everything is done again

    def get(self, step: str) -> Any:
        """What was last set for the step, or None."""
        return self._values.get(step)

    def set(self, step: str, value: Any) -> None:
        """Notes that the step has been done for `value`."""
        self._values[step] = value
        part = self._path + ".part"
        with open(part, "w") as target:
            json.dump(self._values, target, indent=1, sort_keys=True)
        os.replace(part, self._path)


def of_texts(texts: Iterable[str]) -> str:
    """A hash of texts, in their order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()


def of_files(paths: Iterable[str]) -> str:
    """A hash of the files' names and contents; the order of `paths` does not matter."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as source:
            data = source.read()
        digest.update(("%s:%d:" % (path, len(data))).encode() + data)
    return digest.hexdigest()
