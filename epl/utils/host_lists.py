"""Lists of machines as schedulers and users write them, and the machine of each task of a job.

Slurm          node[01-03,07],gpu1       2(x3),1           the list, and the tasks on each of its machines
MPI, ssh       node1:4,node2:4           node1 slots=4     commas or lines; a name, and how many tasks it takes
"""

import itertools
import re
from typing import List, NamedTuple, Optional, Sequence

_SLURM_PART = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_ENTRY = re.compile(r"(\[[^\]\s]+\]|[^:\s\[\]]+)(?::(\d{1,6})|\s+slots\s*=\s*(\d{1,6})(?:\s+max[-_]slots\s*=\s*\d+)?)?")
_LONGEST = 1 << 20  # machines of one list: more is a mistake


class HostSlots(NamedTuple):
    """A machine, and how many tasks it takes; None if the list does not say."""

    host: str
    slots: Optional[int]


def expand_nodes(text: str) -> List[str]:
    """The machines of a list in Slurm's form: "a[1-2,04]-x,b" -> a1-x, a2-x, a04-x, b.

    Raises:
      ValueError: the text is no such list.
    """
    nodes: List[str] = []
    for entry in _entries(text):
        choices: List[List[str]] = []
        at = 0
        while at < len(entry):
            match = _SLURM_PART.match(entry, at)
            if match is None or match.end() == at:
                raise ValueError(f"{text!r} is no list of machines such as node[1-3,07]")
            choices.append([match.group(1)])
            if match.group(2) is not None:
                choices.append(_numbers(match.group(2), text))
            at = match.end()
        nodes += ["".join(parts) for parts in itertools.product(*choices)]
    return nodes


def _entries(text: str) -> List[str]:
    """The parts of a text between the commas that stand in no bracket."""
    entries = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not entries or ",".join(entries) != text:
        raise ValueError(f"{text!r} is no list of machines such as node[1-3,07]")
    return entries


def _numbers(text: str, where: str) -> List[str]:
    numbers: List[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match.group(2) or match.group(1)) - int(match.group(1)) not in range(_LONGEST):
            raise ValueError(f"{part!r} in {where!r} is no range of numbers such as 01-12")
        first, last = match.group(1), match.group(2) or match.group(1)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> List[int]:
    """The numbers of a list in Slurm's form: "2(x3),1" -> 2, 2, 2, 1.

    Raises:
      ValueError: the text is no such list.
    """
    counts: List[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None or int(match.group(2) or 1) > _LONGEST:
            raise ValueError(f"{text!r} is no list of numbers of tasks such as 2(x3),1")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def parse_hosts(text: str) -> List[HostSlots]:
    """The machines of a list with slots, as `-H` and the files of hosts of MPI have it.

    Args:
      text: entries between commas or line ends: `host`, `host:slots` or `host slots=n`; `#` begins a comment.

    Raises:
      ValueError: an entry is of another form, or there is none.
    """
    hosts: List[HostSlots] = []
    for line in text.splitlines():
        for entry in line.partition("#")[0].split(","):
            if not entry.strip():
                continue
            match = _ENTRY.fullmatch(entry.strip())
            slots = None if match is None else match.group(2) or match.group(3)
            if match is None or (slots is not None and int(slots) == 0):
                raise ValueError(f"{entry.strip()!r} is neither host, nor host:slots, nor host slots=n")
            hosts.append(HostSlots(match.group(1), None if slots is None else int(slots)))
    if not hosts:
        raise ValueError("it names no host")
    return hosts


def fill(hosts: Sequence[HostSlots], count: int) -> List[str]:
    """The machine of each of `count` tasks, which fill the slots of one machine after the other.

    Machines without slots get an equal number of tasks if all are without, else one.

    Raises:
      ValueError: there are fewer slots than tasks.
    """
    unsaid = count // len(hosts) if all(host.slots is None for host in hosts) and count % len(hosts) == 0 else 1
    machines = [host.host for host in hosts for _ in range(unsaid if host.slots is None else host.slots)]
    if len(machines) < count:
        raise ValueError(f"its {len(hosts)} host(s) have {len(machines)} slot(s) for {count} tasks")
    return machines[:count]


def deal(hosts: Sequence[str], counts: Sequence[int], cyclic: bool) -> List[str]:
    """The machine of each task of a Slurm step.

    Args:
      hosts: the machines.
      counts: the tasks on each machine.
      cyclic: tasks go round the machines, instead of filling one after the other.

    Raises:
      ValueError: there are not as many counts as machines.
    """
    if len(hosts) != len(counts):
        raise ValueError(f"{len(hosts)} machine(s) and {len(counts)} number(s) of tasks do not go together")
    if not cyclic:
        return [host for host, count in zip(hosts, counts) for _ in range(count)]
    return [host for turn in range(max(counts)) for host, count in zip(hosts, counts) if turn < count]
