"""Converts NamedTuples to JSON and back, by their annotations; and finds the first difference of two of them.

    Stage((0,), "epl.split(2)", ("cpu:0",))    {"taskgraphs": [0], "strategy": "epl.split(2)", "devices": ["cpu:0"]}
    if several classes are possible            {"kind": "ZeroSection", "level": "v1", ...}

A field is an int, float, str or bool, a NamedTuple, a tuple of any of these, or an Optional or a Union of NamedTuples.
A text may leave out fields with defaults: those that were added after it was written.
"""

import functools
import json
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union, get_type_hints

_KIND = "kind"  # the key for the class, if an annotation allows several
_LABELS = (_KIND, "variable", "op", "tensor")  # keys that name an entry of a list, if it has one


def to_json(value: Any) -> str:
    """A NamedTuple as text; `from_json` reads it."""
    return json.dumps(_plain(type(value), value), indent=1, sort_keys=True)


def from_json(kind: Any, text: str) -> Any:
    """The NamedTuple of class `kind` that `to_json` wrote.

    Raises:
      ValueError: the text is not of this class; the message says where.
    """
    return _value(kind, json.loads(text), kind.__name__)


def first_difference(name: str, mine: Any, other: Any) -> Optional[str]:
    """The first difference of two NamedTuples of one class, in words, or None.

    Args:
      name: name of the values, for the message.
      mine: the value of this process.
      other: the value of another process.
    """
    return _difference(name, _plain(type(mine), mine), _plain(type(other), other))


def _plain(annotation: Any, value: Any) -> Any:
    """A value as a JSON value."""
    if _is_namedtuple(annotation):
        return {field: _plain(hint, getattr(value, field)) for field, hint in _hints(annotation).items()}
    if _is_tuple(annotation):
        return [_plain(hint, item) for hint, item in zip(_items(annotation, len(value)), value)]
    classes = _classes(annotation)
    if len(classes) > 1:
        return {_KIND: type(value).__name__, **_plain(type(value), value)}
    return _plain(classes[0], value) if classes and value is not None else value


def _value(annotation: Any, plain: Any, where: str) -> Any:
    """The value that `_plain` converted to `plain`."""
    classes = _classes(annotation)
    if plain is None and classes and type(None) in annotation.__args__:
        return plain
    if len(classes) > 1:
        rest = dict(plain)
        name = rest.pop(_KIND, None)
        found = {one.__name__: one for one in classes}
        if name not in found:
            raise ValueError(f"{where} is of the kind {name!r}, not one of {', '.join(sorted(found))}.")
        return _value(found[name], rest, f"{where}[{name}]")
    if classes:
        return _value(classes[0], plain, where)
    if _is_namedtuple(annotation):
        fields = _hints(annotation)
        if not isinstance(plain, dict) or not set(fields) - set(annotation._field_defaults) <= set(plain) <= set(
            fields
        ):
            raise ValueError(f"{where} needs the fields {', '.join(fields)}.")
        return annotation(**{field: _value(fields[field], one, f"{where}.{field}") for field, one in plain.items()})
    if _is_tuple(annotation):
        if not isinstance(plain, list):
            raise ValueError(f"{where} is {plain!r}, not a list.")
        hints = _items(annotation, len(plain))
        return tuple(_value(hint, item, f"{where}[{at}]") for at, (hint, item) in enumerate(zip(hints, plain)))
    if type(plain) is not annotation:
        raise ValueError(f"{where} is {plain!r}, not {'an' if annotation is int else 'a'} {annotation.__name__}.")
    return plain


def _is_namedtuple(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


@functools.lru_cache(maxsize=None)
def _hints(kind: Any) -> Dict[str, Any]:
    """The annotations of the fields of a NamedTuple."""
    return dict(get_type_hints(kind))


def _is_tuple(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in (tuple, Tuple)


def _items(annotation: Any, count: int) -> List[Any]:
    """The annotations of the items of a tuple."""
    hints = list(annotation.__args__)
    return hints[:1] * count if hints[-1] is Ellipsis else hints


def _classes(annotation: Any) -> List[Any]:
    """The classes of a Union without None; none for other annotations."""
    if getattr(annotation, "__origin__", None) is not Union:
        return []
    return [one for one in annotation.__args__ if one is not type(None)]


def _difference(where: str, mine: Any, other: Any) -> Optional[str]:
    if isinstance(mine, dict) and isinstance(other, dict):
        return _first(_difference(f"{where}.{key}", mine[key], other.get(key)) for key in _keys(mine))
    if isinstance(mine, list) and isinstance(other, list):
        labels = _labels(mine)
        if labels != _labels(other):
            labels = list(range(max(len(mine), len(other))))
        found = _first(_difference(f"{where}[{label}]", m, o) for label, m, o in zip(labels, mine, other))
        if found is None and len(mine) != len(other):
            found = f"{where} has {len(mine)} entries here and {len(other)} there"
        return found
    return f"{where} is {mine!r} here and {other!r} there" if mine != other else None


def _labels(entries: List[Any]) -> List[Any]:
    """The labels of the entries of a list: names if each entry has one, else numbers."""
    if entries and all(isinstance(entry, dict) for entry in entries):
        for key in _LABELS:
            if all(key in entry for entry in entries):
                return [entry[key] for entry in entries]
    return list(range(len(entries)))


def _keys(mine: Dict[str, Any]) -> List[str]:
    """The keys of an entry, names first, so that a difference is described by name."""
    return sorted(mine, key=lambda key: (key != "workers" and key not in _LABELS, key))


def _first(differences: Iterable[Optional[str]]) -> Optional[str]:
    return next((difference for difference in differences if difference is not None), None)
