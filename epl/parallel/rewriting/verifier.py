"""Checks of a rewritten graph, which must hold whatever the passes do. Tests run them after each pass.

They read the GraphDef and the tables of op types, and nothing that passes noted about their own work; except
`check_rewrite`, which also checks that every replica has the collectives that the passes noted.
"""

import re
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.view import GraphView
from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.utils import tf_compat

if TYPE_CHECKING:
    from epl.parallel.rewriting.context import RewriteContext

# Of a collective that is in no run with the others of its communicator, and so has no order among them.
ALONE_ATTR = "_epl_alone"

_CLONE = re.compile(r"(?:EPL_REPLICA_\d+/)?(?:EPL_MICRO_BATCH_\d+/)?")
_DEVICE_PART = re.compile(r"/(job|replica|task|device|cpu|gpu):([^/]*)", re.IGNORECASE)
_MOST_PROBLEMS = 20  # of one kind: a broken graph is broken everywhere


class VerificationError(RuntimeError):
    """A pass left the graph in a state that cannot run, or runs wrong."""


_LOCAL = "/job:localhost/replica:0/task:0"  # this process, in a session that has no other


def check_rewrite(rewrite: "RewriteContext", done: Sequence[str]) -> None:
    """Raises VerificationError if the graph is broken after a pass.

    Args:
      rewrite: the rewriting.
      done: names of the passes that have run.
    """
    copied = "clone_replicas" in done  # devices and copies are final
    devices = [
        rewrite.device(stage, replica)
        for replica in range(rewrite.local_replicas)
        for stage in range(len(rewrite.plan.stages))
    ]
    problems = verify(rewrite.tf_graph, devices if copied else None)
    if copied:
        problems += _missing_copies(rewrite)
    elif rewrite.view is not None and "select_ops" in done:
        problems += differences(rewrite.view, rewrite.new_view())
    if problems:
        raise VerificationError(
            "After pass {!r} the graph has {} problem(s):\n  {}".format(done[-1], len(problems), "\n  ".join(problems))
        )


def differences(view: GraphView, other: GraphView) -> List[str]:
    """The differences of two views of a graph, except the order of nodes: one kept up to date, and a new one."""
    problems = [f"{name!r} is in one view alone" for name in sorted(set(view.index) ^ set(other.index))]
    for name in set(view.index).intersection(other.index):
        mine, right = _facts(view, view.index[name]), _facts(other, other.index[name])
        if mine != right:
            problems.append(f"{mine} is in the view in place of {right}")
    return problems[:_MOST_PROBLEMS]


def _facts(view: GraphView, node: int) -> Tuple[object, ...]:
    """The contents of a node in a view. (TensorFlow writes control inputs once each, in the order of their names.)"""
    own = view.nodes[node]
    data = [name for name in own.input if name[0] != "^"]
    producers = {view.nodes[p].name for p in view.producers[node]}
    attrs = {key: value.SerializeToString(deterministic=True) for key, value in own.attr.items()}  # NaN equals NaN
    return own.name, view.types[node], data, producers, own.device, attrs


def verify(tf_graph: tf.Graph, devices: Optional[Sequence[str]] = None) -> List[str]:
    """The problems of a graph, one line each; see `verify_graph_def`."""
    return verify_graph_def(tf_compat.full_graph_def(tf_graph), devices)


def verify_graph_def(graph_def: tf.GraphDef, devices: Optional[Sequence[str]] = None) -> List[str]:
    """The problems of a graph, one line each.

    Args:
      graph_def: the graph.
      devices: the devices of the local session, without /device:CPU:0; None: devices are not checked.

    Returns:
      Problems: names that occur twice, inputs that do not exist, cycles other than those of loops, devices that the
      session does not have, loops of different copies that share a frame, collectives without one order on all ranks.
    """
    nodes = list(graph_def.node)
    index = {node.name: i for i, node in enumerate(nodes)}
    twice = [node.name for i, node in enumerate(nodes) if index[node.name] != i]
    problems = [f"{name!r} stands in the graph twice" for name in twice]
    producers, missing = _producers(nodes, index)
    problems += missing
    order, cycle = _topological_order(nodes, producers)
    problems += cycle
    if devices is not None:
        problems += _illegal_devices(nodes, devices)
    problems += _shared_frames(nodes, producers)
    if not cycle:
        problems += _disorder_of_collectives(nodes, producers, order)
    return problems


def _producers(nodes: Sequence[tf.NodeDef], index: Dict[str, int]) -> Tuple[List[List[int]], List[str]]:
    """Per node, its producers of data or control; and the inputs that name no node."""
    missing = []
    producers = []
    for node in nodes:
        found = []
        for name in node.input:
            producer = name[1:] if name[0] == "^" else name.partition(":")[0]
            if producer in index:
                found.append(index[producer])
            else:
                missing.append(f"{node.name!r} takes {name!r}, which does not exist")
        producers.append(found)
    return producers, missing[:_MOST_PROBLEMS]


def _topological_order(nodes: Sequence[tf.NodeDef], producers: List[List[int]]) -> Tuple[List[int], List[str]]:
    """An order with every node after its producers, without the back edges of loops; and a cycle, if any."""
    waits = [0] * len(nodes)
    consumers: List[List[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for producer in producers[i]:
            if not (node.op in op_types.MERGES and nodes[producer].op in op_types.NEXT_ITERATIONS):
                waits[i] += 1
                consumers[producer].append(i)
    ready = [i for i in range(len(nodes)) if not waits[i]]
    order = []
    while ready:
        i = ready.pop()
        order.append(i)
        for consumer in consumers[i]:
            waits[consumer] -= 1
            if not waits[consumer]:
                ready.append(consumer)
    if len(order) == len(nodes):
        return order, []
    return order, [_describe_cycle(nodes, producers, set(range(len(nodes))) - set(order))]


def _describe_cycle(nodes: Sequence[tf.NodeDef], producers: List[List[int]], stuck: Set[int]) -> str:
    """Describes one cycle among the nodes that wait for each other."""
    path = [min(stuck)]
    places = {path[0]: 0}
    while True:
        following = next(
            p
            for p in producers[path[-1]]
            if p in stuck and not (nodes[path[-1]].op in op_types.MERGES and nodes[p].op in op_types.NEXT_ITERATIONS)
        )
        if following in places:
            names = [nodes[i].name for i in path[places[following] :]]
            return "a cycle: {} needs itself".format(" <- ".join(names[:_MOST_PROBLEMS]))
        places[following] = len(path)
        path.append(following)


def _illegal_devices(nodes: Sequence[tf.NodeDef], devices: Sequence[str]) -> List[str]:
    own = [part for part in map(_device_parts, devices) if part is not None]
    legal = set(own) | {(process, "CPU:0") for process, _ in own} | {(_LOCAL, "CPU:0")}
    processes = {process for process, _ in legal}
    problems = []
    for node in nodes:
        found = _device_parts(node.device)
        is_legal = found is not None and (found in legal if found[1] else found[0] in processes)
        if node.device and not is_legal:
            names = sorted(f"{process if process != _LOCAL else ''}/device:{name}" for process, name in legal)
            problems.append("{!r} is on {!r}; the session has {}".format(node.name, node.device, ", ".join(names)))
    return problems[:_MOST_PROBLEMS]


def _device_parts(device: str) -> Optional[Tuple[str, str]]:
    """The process of a device, and its type and number, "" if it says none; None if it is no device."""
    matches = list(_DEVICE_PART.finditer(device))
    if "".join(match.group(0) for match in matches) != device:
        return None
    process = {"job": "localhost", "replica": "0", "task": "0"}
    name = ""
    for match in matches:
        kind, value = match.group(1).lower(), match.group(2)
        if kind in process:
            process[kind] = value
        else:
            type_name, _, number = (value if kind == "device" else f"{kind}:{value}").upper().partition(":")
            name = "{}:{}".format(type_name, "0" if number in ("", "*") else number)
    return "/job:{job}/replica:{replica}/task:{task}".format(**process), name


def _shared_frames(nodes: Sequence[tf.NodeDef], producers: List[List[int]]) -> List[str]:
    """Loops that TensorFlow would run as one: several copies enter a frame, or it has several conditions."""
    clones: Dict[bytes, Set[str]] = {}
    frame_of_merge: Dict[int, bytes] = {}
    conditions: Dict[bytes, Set[str]] = {}
    for node in nodes:
        if node.op in op_types.ENTERS:
            prefix = _CLONE.match(node.name)
            clones.setdefault(node.attr["frame_name"].s, set()).add(prefix.group(0) if prefix else "")
    for i, node in enumerate(nodes):
        if node.op in op_types.MERGES:
            for producer in producers[i]:
                if nodes[producer].op in op_types.ENTERS:
                    frame_of_merge[i] = nodes[producer].attr["frame_name"].s
    for i, node in enumerate(nodes):
        if node.op in op_types.SWITCHES:
            frames = [frame_of_merge[p] for p in producers[i] if p in frame_of_merge]
            for producer in producers[i]:
                if frames and nodes[producer].op == "LoopCond":
                    conditions.setdefault(frames[0], set()).add(nodes[producer].name)
    problems = [
        f"frame {frame.decode()!r} is entered by several copies: {sorted(prefixes)}"
        for frame, prefixes in sorted(clones.items())
        if len(prefixes) > 1
    ]
    problems += [
        f"frame {frame.decode()!r} has several loop conditions: {sorted(names)}"
        for frame, names in sorted(conditions.items())
        if len(names) > 1
    ]
    return problems[:_MOST_PROBLEMS]


def _disorder_of_collectives(
    nodes: Sequence[tf.NodeDef], producers: List[List[int]], order: Sequence[int]
) -> List[str]:
    """Collectives of one communicator that a rank may run in any order, or that ranks run in different orders."""
    bits: Dict[int, int] = {}
    before = [0] * len(nodes)  # per node, the collectives that it needs, as bits
    sequences: Dict[Tuple[str, int], List[int]] = {}
    for i in order:
        mask = 0
        for producer in producers[i]:
            mask |= before[producer]
        if nodes[i].op in COLLECTIVE_OP_TYPES and ALONE_ATTR not in nodes[i].attr:
            bits[i] = 1 << len(bits)
            mask |= bits[i]
            attrs = nodes[i].attr
            sequences.setdefault((attrs["communicator"].s.decode(), attrs["rank"].i), []).append(i)
        before[i] = mask
    problems = []
    facts: Dict[str, Dict[int, List[Tuple[str, str]]]] = {}
    for (communicator, rank), sequence in sorted(sequences.items()):
        # A collective has more collectives before it than its ancestors have; this sorts a total order.
        sequence.sort(key=lambda i: bin(before[i]).count("1"))
        for first, second in zip(sequence, sequence[1:]):
            if not before[second] & bits[first]:
                problems.append(
                    "{!r} and {!r} of rank {} have no order on communicator {!r}".format(
                        nodes[first].name, nodes[second].name, rank, communicator
                    )
                )
        keys = [nodes[i].attr["key"].s.decode() for i in sequence]
        for key in sorted({key for key in keys if keys.count(key) > 1}):
            problems.append(f"rank {rank} has key {key!r} several times on communicator {communicator!r}")
        facts.setdefault(communicator, {})[rank] = [(key, nodes[i].op) for key, i in zip(keys, sequence)]
    if not problems:  # without an order on each rank there is nothing to compare
        for communicator, by_rank in sorted(facts.items()):
            problems += _differences(communicator, by_rank)
    return problems[:_MOST_PROBLEMS]


def _differences(communicator: str, by_rank: Dict[int, List[Tuple[str, str]]]) -> List[str]:
    first = min(by_rank)
    for rank in sorted(by_rank):
        for place, (mine, theirs) in enumerate(zip(by_rank[first], by_rank[rank])):
            if mine != theirs:
                return [
                    "number {} on communicator {!r} is {} {!r} on rank {} and {} {!r} on rank {}".format(
                        place, communicator, mine[1], mine[0], first, theirs[1], theirs[0], rank
                    )
                ]
        if len(by_rank[first]) != len(by_rank[rank]):
            return [
                "communicator {!r} has {} collectives on rank {} and {} on rank {}".format(
                    communicator, len(by_rank[first]), first, len(by_rank[rank]), rank
                )
            ]
    return []


def _missing_copies(rewrite: "RewriteContext") -> List[str]:
    """Collectives of replica 0 that another local replica lacks, or has on a wrong communicator or rank."""
    problems = []
    nodes = {node.name: node for node in tf_compat.full_graph_def(rewrite.tf_graph).node}
    for name in sorted(rewrite.collectives):
        for replica in range(rewrite.local_replicas):
            copy = nodes.get(rewrite.prefix(replica) + name)
            rank = rewrite.base_rank + replica
            if copy is None:
                problems.append(f"rank {rank} has no copy of the collective {name!r}")
                continue
            wanted = rewrite.place_in(nodes[name].attr["communicator"].s.decode(), rank)
            seen = copy.attr["communicator"].s.decode(), copy.attr["rank"].i
            for what, is_there, is_wanted in zip(("communicator", "rank"), seen, wanted):
                if is_there != is_wanted:
                    problems.append(f"{copy.name!r} has {what} {is_there}, not {is_wanted}")
    return problems[:_MOST_PROBLEMS]
