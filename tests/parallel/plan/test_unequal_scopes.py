"""Scopes of `epl.replicate` with different numbers of devices: which devices they have, and what is refused."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan.plan import BatchPart
from epl.parallel.plan.stages import plan_batch_parts, plan_stages
from epl.parallel.plan.unequal_scopes import FirstOfGroup, split_taskgraphs
from epl.parallel.split.groups import plan_split
from epl.utils.errors import LayoutError, NotAvailableError, PlanError

NAME = "/job:worker/replica:0/task:{}/device:CPU:{}"
COLOCATED = {"cluster__colocate_split_and_replicate": True}


def annotate(*counts):
    """Opens a scope of epl.replicate for each number, of epl.split for a negative one."""
    for count in counts:
        with epl.split(-count) if count < 0 else epl.replicate(count):
            tf.constant(1.0)


def planned():
    """By stage, the numbers of its devices by rank; and the ranks of each group."""
    graph = Graph.get()
    stages, _ = plan_stages(graph, Env.get().cluster)
    split = plan_split(graph)
    return [[int(name.split(":")[-1]) for name in stage.devices] for stage in stages], split.groups


@pytest.mark.parametrize(
    "devices, counts, config, stages, groups",
    [
        (2, [2, 1], {}, [[0, 1]], ((0, 1),)),
        (2, [1, 2, 1], {}, [[0, 1]], ((0, 1),)),
        (4, [2, 1], COLOCATED, [[0, 1, 2, 3]], ((0, 1), (2, 3))),
        (4, [4, 2], {}, [[0, 1, 2, 3]], ((0, 1), (2, 3))),
        (4, [4, 1], {}, [[0, 1, 2, 3]], ((0, 1, 2, 3),)),
        (2, [2, 1, -2], COLOCATED, [[0, 1]], ((0, 1),)),
        (3, [2, 1], {}, [[0, 1], [2, 2]], ((0, 1),)),
        (3, [1, 2], {}, [[0, 0], [1, 2]], ((0, 1),)),
        (6, [2, 1], {}, [[0, 1, 3, 4], [2, 2, 5, 5]], ((0, 1), (2, 3))),
        (6, [4, 2], {}, [[0, 1, 2, 3], [4, 4, 5, 5]], ((0, 1), (2, 3))),
        (5, [2, 1, 2], {}, [[0, 1], [2, 2], [3, 4]], ((0, 1),)),
    ],
)
def test_devices_of_scopes(init, devices, counts, config, stages, groups):
    init(devices, annotate=False, **config)
    annotate(*counts)
    assert planned() == (stages, groups)


@pytest.mark.parametrize("devices, counts", [(2, [2, 1]), (3, [1, 2])])
def test_the_ranks_of_the_largest_scope_divide_a_batch(init, devices, counts):
    init(devices, annotate=False)
    annotate(*counts)
    parts = plan_batch_parts(Graph.get(), Env.get().cluster)
    assert parts == (BatchPart(0, 0, 2), BatchPart(0, 1, 2))


def test_the_smaller_scopes_are_on_the_first_rank_of_each_group(init):
    init(4, annotate=False)
    annotate(4, 2, 4)
    (one,) = split_taskgraphs(Graph.get())
    assert one.index == 1 and one.outer is None
    assert isinstance(one.strategy, FirstOfGroup) and one.strategy.ratios == (1, 0)
    assert str(one.strategy) == "{} on the first of each 2 devices".format(Graph.get().taskgraphs[1].strategy)


def test_the_layout_all_is_shared(init):
    init(4, annotate=False)
    Env.get().use(epl.Cluster(layout="all"))
    annotate(2, 1)
    assert planned() == ([[0, 1, 2, 3]], ((0, 1), (2, 3)))


@pytest.mark.parametrize(
    "smaller, stages",
    [([[0]], [[0, 1]]), ([[2]], [[0, 1], [2, 2]])],
)
def test_a_specific_layout_says_whether_devices_are_shared(init, smaller, stages):
    init(3, annotate=False)
    layout = [[[NAME.format(0, device) for device in names] for names in scope] for scope in ([[0, 1]], smaller)]
    Env.get().use(epl.Cluster(layout={"specific": layout}))
    annotate(2, 1)
    assert planned() == (stages, ((0, 1),))


def test_a_specific_layout_gives_the_first_device_of_a_group(init):
    init(2, annotate=False)
    Env.get().use(epl.Cluster(layout={"specific": [[[NAME.format(0, 0), NAME.format(0, 1)]], [[NAME.format(0, 1)]]]}))
    annotate(2, 1)
    with pytest.raises(LayoutError, match="or the first of each 2, which are .*CPU:0"):
        planned()


@pytest.mark.parametrize(
    "devices, counts, config, error, text",
    [
        (4, [4, 2, 1], {}, PlanError, "its scopes of epl.replicate have 1 and 2 and 4 devices. They may have two"),
        (3, [3, 2], COLOCATED, PlanError, "have 2 and 3 devices. They may have two different numbers"),
        (
            4,
            [2, 1],
            {},
            LayoutError,
            "Set cluster.colocate_split_and_replicate to True to have .* on the first of each",
        ),
        (
            3,
            [2, 1],
            COLOCATED,
            LayoutError,
            r"epl.replicate\(2\) puts one replica of the model on 2 devices together, and the job has 3",
        ),
        (4, [4, 2, -4], COLOCATED, PlanError, r"a split next to them is over the same groups. Write epl.split\(2\)"),
    ],
)
def test_what_does_not_fit_is_refused(init, devices, counts, config, error, text):
    init(devices, annotate=False, **config)
    annotate(*counts)
    with pytest.raises(error, match=text):
        planned()


def test_a_split_in_a_scope_is_refused_next_to_another_number(init):
    init(4, annotate=False)
    with epl.replicate(1):
        tf.constant(1.0)
        with epl.split(2):
            tf.constant(1.0)
    annotate(2)
    with pytest.raises(PlanError, match="a scope with a split in it has as many devices as all others"):
        planned()


def test_ranks_that_would_share_a_gpu_are_refused(init, monkeypatch):
    init(3, annotate=False)
    monkeypatch.setattr(type(Env.get().cluster), "device_type", "GPU")
    annotate(2, 1)
    with pytest.raises(NotAvailableError, match="A GPU cannot work for several ranks"):
        planned()


def test_next_to_a_split_on_devices_of_its_own_each_rank_has_a_copy(init):
    init(5, annotate=False)
    annotate(2, 1, -2)
    stages, _ = planned()
    assert stages == [[0, 1], [2, 2], [3, 4]]
    assert [one.index for one in split_taskgraphs(Graph.get())] == [2]


def test_a_scope_is_entered_again(init):
    init(2, annotate=False)
    small = epl.replicate(1)
    for scope in (small, epl.replicate(2), small):
        with scope:
            tf.constant(1.0)
    assert [one.index for one in split_taskgraphs(Graph.get())] == [0]
