"""Items of containers are exchanged, whatever the container."""

from collections import OrderedDict, defaultdict, namedtuple

import pytest

from epl.utils.containers import map_items

Pair = namedtuple("Pair", ["one", "two"])


@pytest.mark.parametrize(
    "value, expected",
    [
        (3, 6),
        ([1, (2, "a")], [2, (4, "aa")]),
        (Pair(1, [2]), Pair(2, [4])),
        ({1, 2}, {2, 4}),
        (frozenset([1]), frozenset([2])),
        (OrderedDict([(2, 1), (1, {3})]), OrderedDict([(4, 2), (2, {6})])),
        ({1: 2}.keys(), [2]),
        ({1: 2}.values(), [4]),
    ],
    ids=str,
)
def test_containers_are_of_their_kind(value, expected):
    found = map_items(lambda item: 2 * item, value)
    assert found == expected and type(found) is type(expected)


def test_a_dictionary_keeps_what_its_class_adds():
    assert map_items(str, defaultdict(list, {1: 2}))["new"] == []


def test_an_iterator_is_taken_no_further_than_asked():
    assert next(map_items(str, iter([1]))) == "1"
    endless = map_items(str, iter(lambda: 0, 1))
    assert next(endless) == "0"
