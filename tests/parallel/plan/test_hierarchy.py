"""`communication.hierarchy`: where collectives are hierarchical, and what is refused."""

from types import SimpleNamespace

import pytest

from epl.config.config import Config
from epl.parallel.plan.communicators import transport_of_job
from epl.parallel.plan.hierarchy import plan_hierarchy, transport_on
from epl.planner.machine.files import read_machine
from epl.utils.errors import PlanError


def config(hierarchy="auto", machine=""):
    return Config({"communication.hierarchy": hierarchy, "auto.machine": machine})


def cluster(machines, device_type="CPU", devices=1):
    return SimpleNamespace(
        machines=list(machines), worker_num=len(machines), device_type=device_type, gpu_num_per_worker=devices
    )


@pytest.mark.parametrize(
    "machines, hierarchy, machine, words",
    [
        ("aabb", "auto", "", "2 machines of 2 workers are hierarchical: shm is faster than a worker's share of eth-10"),
        ("abab", "auto", "", "2 machines of 2 workers are hierarchical"),
        ("aabb", "auto", "2x2*cpu,eth-100", "2 workers are flat: shm is no faster than a worker's share of eth-100"),
        ("aabb", "on", "2x2*cpu,eth-100", '2 workers are hierarchical: communication.hierarchy is "on"'),
        ("aabb", "off", "", '2 workers are flat: communication.hierarchy is "off"'),
        ("aabb", "auto", "2*cpu", "2 workers are hierarchical: shm is faster than a worker's share of eth-10"),
        ("aab", "auto", "", "1 to 2 workers are flat: the machines have unequal numbers of workers"),
    ],
)
def test_the_plan_tells_the_choice_and_why(machines, hierarchy, machine, words):
    section = plan_hierarchy(config(hierarchy, machine), cluster(machines))
    (line,) = section.describe()
    assert words in line
    transport = transport_of_job(config(hierarchy, machine), cluster(machines))
    assert transport == ("hierarchical" if section.hierarchical else "auto")


@pytest.mark.parametrize("machines, device_type", [("aaaa", "CPU"), ("ab", "CPU"), ("aabb", "GPU")])
def test_nothing_is_told_where_it_makes_no_difference(machines, device_type):
    assert plan_hierarchy(config(), cluster(machines, device_type)) is None
    assert transport_of_job(config(), cluster(machines, device_type)) == ("nccl" if device_type == "GPU" else "auto")


@pytest.mark.parametrize(
    "machines, device_type, words",
    [
        ("aab", "CPU", "the workers of the job are 2 on a, 1 on b. Hierarchical collectives need several machines"),
        ("a", "CPU", "the workers of the job are 1 on a"),
        ("aabb", "GPU", "the devices are GPUs, whose collectives NCCL does"),
    ],
)
def test_on_is_refused_where_it_cannot_be_done(machines, device_type, words):
    with pytest.raises(PlanError, match=words):
        plan_hierarchy(config("on"), cluster(machines, device_type))


@pytest.mark.parametrize(
    "machine, workers, devices, hierarchy, transport",
    [
        ("2x4*cpu,eth-10", 8, 1, "auto", "hierarchical"),
        ("2x4*cpu,eth-10", 4, 2, "auto", "hierarchical"),
        ("2x4*cpu,eth-10", 2, 4, "auto", "auto"),  # one process on each
        ("2x4*cpu,eth-10", 6, 1, "on", "auto"),  # 4 and 2: the plan is refused
        ("2x4*cpu,eth-100", 8, 1, "auto", "auto"),
        ("2x4*cpu,eth-100", 8, 1, "on", "hierarchical"),
        ("2x4*cpu,eth-10", 8, 1, "off", "auto"),
        ("2x4*v100-32,eth-10", 8, 1, "auto", "nccl"),
    ],
)
def test_a_simulated_job_has_the_transport_of_its_plan(machine, workers, devices, hierarchy, transport):
    assert transport_on(read_machine(machine), workers, devices, hierarchy) == transport
