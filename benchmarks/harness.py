"""Interleaved measuring, ratios, the printed table and the result files.

Owns how seconds become verdicts. What is measured is left to the ``*_benchmark.py`` modules, how processes run to
``benchmarks/groups.py``.
"""

import json
import os
import platform
import statistics
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from benchmarks import control, environment, groups

RESULTS = os.path.join(environment.ROOT, "benchmarks", "results")


class Row(NamedTuple):
    what: str
    ratios: List[float]
    at_least: Optional[float]
    at_most: Optional[float]


class Result(NamedTuple):
    name: str
    conditions: List[str]
    rows: List[Row]
    details: Dict[str, Any]
    missing: List[str]


def row(what: str, ratios: Sequence[float], at_least: Optional[float] = None, at_most: Optional[float] = None) -> Row:
    """Returns a row; without a target it is information only."""
    return Row(what, list(ratios), at_least, at_most)


def met(line: Row) -> Optional[bool]:
    """Returns whether the median meets the target, of which both ends may be given; None without a target."""
    median = statistics.median(line.ratios)
    if line.at_least is None and line.at_most is None:
        return None
    return (line.at_least is None or median >= line.at_least) and (line.at_most is None or median <= line.at_most)


def passed(result: Result) -> bool:
    """Returns whether all contenders ran and all targets are met."""
    return not result.missing and all(met(line) is not False for line in result.rows)


def start_all(starters: Dict[str, Callable[[], groups.Group]], missing: List[str]) -> Dict[str, groups.Group]:
    """Starts the contenders one after the other.

    One that cannot start is noted in ``missing``, and the rest go on; a peer that cannot be built is tried once.
    """
    started: Dict[str, groups.Group] = {}
    unavailable: List[str] = []
    try:
        for name, start in starters.items():
            if name.split(",")[0] in unavailable:
                continue
            try:
                started[name] = start()
            except environment.PeerUnavailableError as error:
                missing.append("%s: %s" % (name, error))
                unavailable.append(name.split(",")[0])
            except (groups.GroupError, OSError) as error:
                missing.append("%s: %s" % (name, error))
    except BaseException:
        for group in started.values():
            group.close()
        raise
    return started


def interleave(
    contenders: Dict[str, groups.Group], rounds: int, missing: List[str], **request: object
) -> Dict[str, List[float]]:
    """Returns the wall seconds per contender and round; a group takes as long as its slowest worker.

    See `interleave_replies` for the arguments.
    """
    replies = interleave_replies(contenders, rounds, missing, **request)
    return {
        name: [max(reply["seconds"] for reply in of_round) for of_round in of_group]
        for name, of_group in replies.items()
    }


def interleave_replies(
    contenders: Dict[str, groups.Group], rounds: int, missing: List[str], **request: object
) -> Dict[str, List[List[control.Message]]]:
    """Lets the contenders work in turn, round by round.

    Odd rounds go through them backwards, so that none always comes first.

    Args:
        contenders: the groups; one that fails is noted in ``missing`` and removed.
        rounds: how often each is measured.
        missing: receives what failed.
        **request: what each is asked.

    Returns:
        Per contender and round the answers of its workers.
    """
    replies: Dict[str, List[List[control.Message]]] = {name: [] for name in contenders}
    for index in range(rounds):
        for name in list(contenders)[:: -1 if index % 2 else 1]:
            try:
                with contenders[name].awake():
                    replies[name].append(contenders[name].ask(**request))
            except groups.GroupError as error:
                missing.append(str(error))
                contenders.pop(name).close()
                replies.pop(name)
    return replies


def ratios(numerators: Sequence[float], denominators: Sequence[float], factor: float = 1.0) -> List[float]:
    """Returns the ratio of each round."""
    return [factor * numerator / denominator for numerator, denominator in zip(numerators, denominators)]


def table(result: Result) -> str:
    """Returns the printed form of a result."""
    lines = ["", result.name] + ["  " + condition for condition in result.conditions]
    cells = [("", "ratio", "min - max", "target", "")] + [_cells(line) for line in result.rows]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    for what, ratio, spread, target, verdict in cells:
        lines.append(
            "  %s  %s  %s  %s  %s"
            % (what.ljust(widths[0]), ratio.rjust(widths[1]), spread.rjust(widths[2]), target.ljust(widths[3]), verdict)
        )
    lines += ["  NOT MEASURED: " + reason for reason in result.missing]
    return "\n".join(line.rstrip() for line in lines)


def write(result: Result) -> str:
    """Writes the result with its raw figures and returns the path of the file."""
    os.makedirs(RESULTS, exist_ok=True)
    path = os.path.join(RESULTS, result.name.split()[0] + ".json")
    content = dict(
        result._asdict(),
        machine=machine(),
        passed=passed(result),
        rows=[dict(line._asdict(), median=statistics.median(line.ratios), met=met(line)) for line in result.rows],
    )
    with open(path, "w") as file:
        json.dump(content, file, indent=1)
    return path


def machine() -> str:
    """Returns one line that says what the figures were measured on."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / 2.0**20
    return "%d x %s, %.0f GiB, %s" % (os.cpu_count() or 1, names[0] if names else model, memory, platform.platform())


def _cells(line: Row) -> Sequence[str]:
    ends = [(">=", line.at_least), ("<=", line.at_most)]
    target = " ".join("%s %.3g" % (sign, end) for sign, end in ends if end is not None)
    verdict = {None: "", True: "pass", False: "MISS"}[met(line)]
    return (
        line.what,
        "%.3g" % statistics.median(line.ratios),
        "%.3g - %.3g" % (min(line.ratios), max(line.ratios)),
        target,
        verdict,
    )
