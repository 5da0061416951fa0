"""Two machines over a link with a rate and a delay: hierarchical and flat collectives, exposed communication."""

import os
import shutil
import subprocess
import sys
from typing import Dict, List, NamedTuple, Tuple

from benchmarks import environment, harness
from epl.planner.machine.collective_algorithms import FLAT, HIERARCHICAL
from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.machine.plain_form import from_plain

MACHINES, WORKERS = 2, 2  # workers on each machine
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
TRANSPORTS = ("gloo", "hierarchical")  # flat: what "auto" is between machines
NEVER_SLOWER = 0.95
# Where the model says 2, 1.5 are reached.
PART_OF_MODEL = 0.75


class Network(NamedTuple):
    name: str
    rate: float  # bits per second
    delay: float  # seconds, in one direction
    sizes: Tuple[int, ...]  # bytes


NETWORKS = (
    Network("200 Mbit/s, 0.1 ms", 200e6, 0.1e-3, (4 << 10, 256 << 10, 4 << 20, 16 << 20)),
    Network("200 Mbit/s, 2 ms", 200e6, 2e-3, (4 << 10, 256 << 10, 4 << 20, 16 << 20)),
    Network("1 Gbit/s, 0.1 ms", 1e9, 0.1e-3, (4 << 10, 256 << 10, 4 << 20, 16 << 20)),
)


def run(quick: bool) -> harness.Result:
    """Measures each kind on each network; the speed of flat collectives is 1."""
    networks = [network._replace(sizes=(4 << 10, 256 << 10)) for network in NETWORKS[:1]] if quick else NETWORKS
    missing: List[str] = []
    rows: List[harness.Row] = []
    details: Dict[str, Dict[str, List[float]]] = {}
    for network in networks:
        try:
            times = _measure(network, 4 if quick else 13)
        except (OSError, subprocess.CalledProcessError) as error:
            missing.append("%s: %s" % (network.name, error))
            continue
        details[network.name] = {"%s %d %s" % key: seconds for key, seconds in times.items()}
        for kind in KINDS:
            for size in network.sizes:
                flat, hierarchical = (times[kind, size, transport] for transport in TRANSPORTS)
                model = _model(network, kind, size)
                rows.append(
                    harness.row(
                        "%s, %s of %d KB (model %.2f)" % (network.name, kind, size >> 10, model),
                        harness.ratios(flat, hierarchical),
                        at_least=None if quick else max(NEVER_SLOWER, PART_OF_MODEL * model),
                    )
                )
    try:
        rows += _exposed(details, quick)
    except (OSError, subprocess.CalledProcessError) as error:
        missing.append("exposed communication: %s" % error)
    conditions = [
        "%d machines of %d workers with one rank each; speed of hierarchical collectives against flat ones"
        % (MACHINES, WORKERS),
        "two network namespaces, between them a link in user space (benchmarks/network_link.py); float32",
        "until the slowest worker is done; the collectives take turns",
        "target: never slower by more than 5%, and three quarters of what the planner's model says",
        "exposed communication: traced steps of data parallelism (benchmarks/workers/overlap.py)",
    ]
    return harness.Result("network (speed)", conditions, rows, {"seconds": details}, missing)


def _exposed(details: Dict[str, Dict[str, List[float]]], quick: bool) -> List[harness.Row]:
    """What of the communication of a data-parallel step its computation does not cover."""
    worker = os.path.join(environment.ROOT, "benchmarks", "workers", "overlap.py")
    network, found = NETWORKS[-1], {}
    for buckets in (5, 1):
        printed = _next_to(network, [sys.executable, worker, "{other}", str(buckets)])
        steps = [line.split()[1:] for line in printed.splitlines() if line.startswith("step ")]
        found[buckets] = [(float(exposed), float(last)) for exposed, last in steps]
        details["exposed, last of %d buckets" % buckets] = {
            name: list(seconds) for name, seconds in zip(("exposed", "last"), zip(*found[buckets]))
        }
    several, one = found[5], found[1]
    return [
        harness.row(
            network.name + ": exposed communication of 5 buckets / that of the last bucket",
            [exposed / last for exposed, last in several],
            at_most=None if quick else 1.05,
        ),
        harness.row(
            network.name + ": exposed communication of 5 buckets / of 1 bucket",
            harness.ratios([exposed for exposed, _ in several], [exposed for exposed, _ in one]),
        ),
    ]


def _next_to(network: Network, command: List[str]) -> str:
    """Runs a command next to the link; returns what it prints."""
    for tool in ("unshare", "nsenter", "ip", "make"):
        if shutil.which(tool) is None:
            raise OSError(tool + " is not there")
    link = [sys.executable, os.path.join(environment.ROOT, "benchmarks", "network_link.py")]
    whole = ["unshare", "-rn"] + link + [str(network.rate), str(network.delay)] + command
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def _measure(network: Network, rounds: int) -> Dict[Tuple[str, int, str], List[float]]:
    """Seconds of each round, by kind, bytes and transport."""
    core = os.path.join(environment.ROOT, "csrc")
    subprocess.run(["make", "-s", "-C", core, "BUILD=build", "build/release/test_core"], check=True)
    bench = [os.path.join(core, "build", "release", "test_core"), "bench", "--seconds"]
    options = {
        "--processes": str(MACHINES * WORKERS),
        "--namespaces": "/proc/self/ns/net,{other}",
        "--rounds": str(rounds + 2),  # two are to warm up
        "--transports": ",".join(TRANSPORTS),
        "--kinds": ",".join(KINDS),
        "--bytes": ",".join(str(size) for size in network.sizes),
    }
    for option, value in options.items():
        bench += [option, value]
    printed = _next_to(network, bench)
    times = {}
    for line in printed.splitlines():
        words = line.split()
        if words[:1] == ["seconds"]:
            times[words[1], int(words[2]), words[3]] = [float(word) for word in words[4:]]
    return times


def _model(network: Network, kind: str, size: int) -> float:
    """How many times as fast hierarchical collectives are by the model of the planner."""
    link = {"latency": network.delay, "bandwidth": network.rate / 8, "shared_by": "all"}
    nodes = [{"devices": "%d*cpu" % WORKERS, "network": "net", "count": MACHINES}]
    machine = from_plain({"links": {"net": link}, "nodes": nodes}, network.name, network.name)
    flat, hierarchical = (
        CollectiveCosts(machine, transport).cost(kind.replace("_", "-"), list(range(MACHINES * WORKERS)), size).seconds
        for transport in (FLAT, HIERARCHICAL)
    )
    return flat / hierarchical
