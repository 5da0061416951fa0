"""Lists of machines in the forms of Slurm and MPI."""

import pytest

from epl.utils import host_lists
from epl.utils.host_lists import HostSlots


@pytest.mark.parametrize(
    "text, nodes",
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-10,2],gpu", ["node08", "node09", "node10", "node2", "gpu"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
    ],
)
def test_slurm_lists(text, nodes):
    assert host_lists.expand_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "a[", "a[]", "a[x]", "a[3-1]", "a,,b", "a]b", "a,", "a[1-99999999]"])
def test_what_is_no_slurm_list(text):
    with pytest.raises(ValueError):
        host_lists.expand_nodes(text)


@pytest.mark.parametrize("text, counts", [("2", [2]), ("2(x3),1", [2, 2, 2, 1])])
def test_counts(text, counts):
    assert host_lists.expand_counts(text) == counts


@pytest.mark.parametrize("text", ["", "2(x)", "two", "1,"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError):
        host_lists.expand_counts(text)


def test_hosts_with_slots_in_each_form():
    text = "a:2, b\nc slots=3 max_slots=4  # last\n\n[fe80::1]:1"
    assert host_lists.parse_hosts(text) == [
        HostSlots("a", 2),
        HostSlots("b", None),
        HostSlots("c", 3),
        HostSlots("[fe80::1]", 1),
    ]


@pytest.mark.parametrize("text", ["", "# nothing", "a:x", "a:0", "a b", "a:1:2", "a slots=0"])
def test_what_is_no_list_of_hosts(text):
    with pytest.raises(ValueError):
        host_lists.parse_hosts(text)


@pytest.mark.parametrize(
    "text, count, machines",
    [("a:2,b:2", 3, ["a", "a", "b"]), ("a,b", 4, ["a", "a", "b", "b"]), ("a,b:2", 3, ["a", "b", "b"])],
)
def test_tasks_fill_the_slots(text, count, machines):
    assert host_lists.fill(host_lists.parse_hosts(text), count) == machines


def test_too_few_slots():
    with pytest.raises(ValueError, match="3 slot.s. for 4 tasks"):
        host_lists.fill(host_lists.parse_hosts("a:2,b:1"), 4)


@pytest.mark.parametrize("cyclic, machines", [(False, ["a", "a", "b"]), (True, ["a", "b", "a"])])
def test_tasks_of_a_step(cyclic, machines):
    assert host_lists.deal(["a", "b"], [2, 1], cyclic) == machines
