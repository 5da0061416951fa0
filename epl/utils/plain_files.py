"""Files of mappings, lists and texts that people write, in YAML or JSON: no key stands twice in one mapping."""

import json
import os
from typing import Any, Dict, List, Tuple

YAML = (".yaml", ".yml")
JSON = (".json",)


class YamlNeededError(Exception):
    """The file is YAML, and PyYAML is not installed."""


def ending_of(path: str) -> str:
    """The ending of a file's name in lower case, such as ".json"."""
    return os.path.splitext(path)[1].lower()


def parse(text: str, ending: str, what: str) -> Any:
    """The mappings, lists, texts and, in JSON, numbers of a file.

    Args:
      text: what the file holds.
      ending: that of its name, one of `YAML` and `JSON`.
      what: the kind of file that is expected, for messages.

    Returns:
      What it says; None for an empty file.

    Raises:
      ValueError: it is neither; the message names the form, says where, and what to do.
      YamlNeededError: PyYAML is not installed.
    """
    if not text.strip():
        return None
    form = "JSON" if ending in JSON else "YAML"
    try:
        return _parse_json(text) if ending in JSON else _parse_yaml(text)
    except RecursionError:
        raise ValueError(f"is nested too deeply; expected a {what}") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is no {form}: {error}. Correct it there") from None


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one mapping")
        found[key] = value
    return found


def _parse_yaml(text: str) -> Any:
    try:
        from epl.utils.yaml_text import parse_yaml
    except ImportError:
        raise YamlNeededError from None
    return parse_yaml(text)
