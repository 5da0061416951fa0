"""Python containers whose elements are to be replaced."""

import copy
from collections import abc
from typing import Any, Callable, List


def as_list(values: Any) -> List[Any]:
    """A list of an argument that may be one value, several or None."""
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]


def map_items(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of a value; of a container, one of the same kind with `function` of all elements, keys included.

    An iterator stays one; a view of a dictionary becomes a list.
    """

    def inside(item: Any) -> Any:
        return map_items(function, item)

    if isinstance(value, dict):
        changed = copy.copy(value)  # of its class
        changed.clear()
        changed.update((inside(key), inside(item)) for key, item in value.items())
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(inside, value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(map(inside, value))
    if isinstance(value, (abc.KeysView, abc.ValuesView)):
        return list(map(inside, value))
    if isinstance(value, abc.Iterator):
        return map(inside, value)
    return function(value)
