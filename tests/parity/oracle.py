"""The oracle: the same user script plain and under a plan must give the same losses and the same variables.

Equal means: the largest difference in a tensor is at most ``TOLERANCE`` of its largest value (float32). Where gradients
cancel out, plain TensorFlow comes that close to itself only: with AVX-512, the Adam slot of a bias differs by 0.9e-6
between one batch and the mean of its two halves. So a value that misses is measured by that difference, and may be
``NOISE`` times as far off as plain TensorFlow is from itself, ``NOISY_TOLERANCE`` at most. Replicas, local ones and
those of other processes, must hold the same variables as each other to the last bit.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import pytest

from tests.parity import context
from tests.parity.pool import Answer, Pool, ScriptFailed, Topology

TOLERANCE = 1e-6
NOISE = 3.0
NOISY_TOLERANCE = 5e-6
NOT_OF_ONE_DEVICE = "that of one device on all rows"
# (workers, devices): one process with two devices, and two such processes; then, in the long tests, two processes with
# one device, and four devices.
TOPOLOGIES = [(1, 2), (2, 2), *(pytest.param(topology, marks=pytest.mark.long) for topology in [(2, 1), (1, 4)])]

Script = Callable[..., None]


def topology_name(topology: Sequence[int]) -> str:
    """Returns "2x1" for two workers with one device each, "1x4-by2" with epl.replicate(2)."""
    return "%dx%d" % tuple(topology[:2]) + "".join("-by%d" % number for number in topology[2:])


every_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=topology_name)


class Oracle:
    """Runs scripts and compares what they recorded."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def plain(self, script: Script, **arguments: Any) -> Answer:
        """Runs on one device, on the batch of all replicas."""
        return self._good(Topology(context.PLAIN, 1, 1), script, arguments)[0]

    def by_hand(self, topology: Sequence[int], script: Script, **arguments: Any) -> Answer:
        """Runs on one device, one tower per replica, gradients averaged."""
        return self._good(Topology(context.BY_HAND, 1, topology[0] * topology[1]), script, arguments)[0]

    def plan(self, topology: Sequence[int], script: Script, **arguments: Any) -> List[Answer]:
        """Runs under a plan; a script that fails fails the test. A third number of the topology is `together`."""
        return self._good(Topology(context.PLAN, *topology), script, arguments)

    def failing_plan(self, topology: Sequence[int], script: Script, **arguments: Any) -> List[Answer]:
        """Runs a script that is expected to fail; the answers tell how."""
        return self._pool.run(Topology(context.PLAN, *topology), script, arguments)

    def _good(self, topology: Topology, script: Script, arguments: Dict[str, Any]) -> List[Answer]:
        answers = self._pool.run(topology, script, arguments)
        errors = [
            "---- worker %d\n%s" % (worker, answer.error) for worker, answer in enumerate(answers) if answer.error
        ]
        if errors:
            raise ScriptFailed("%s under %s\n%s" % (script.__name__, topology, "\n".join(errors)))
        return answers

    def check(
        self,
        topology: Sequence[int],
        script: Script,
        reference: Optional[Answer] = None,
        tolerance: float = TOLERANCE,
        own: Sequence[str] = (),
        told: str = "",
        **arguments: Any,
    ) -> List[Answer]:
        """Runs the script plain and under a plan, and compares; returns what the plan's processes answered.

        The plan does not say that the step is not that of one device; or it says what is `told`, where the numbers are
        equal because of the samples alone.
        """
        reference = reference or self.plain(script, **arguments)
        answers = self.plan(topology, script, **arguments)
        by_hand = Topology(context.BY_HAND, 1, topology[0] * topology[1])
        compare_with_noise(reference, answers, lambda: self._pool.run(by_hand, script, arguments)[0], tolerance, own)
        if not own:
            check_told(answers, told)
        return answers


def compare_with_noise(
    reference: Answer,
    answers: List[Answer],
    again: Callable[[], Answer],
    tolerance: float = TOLERANCE,
    own: Sequence[str] = (),
) -> None:
    """Compares; what misses is measured by how far plain TensorFlow is from itself.

    `again`: runs plain TensorFlow on the samples of the reference, in other parts.
    """
    try:
        compare(reference, answers, tolerance, own)
    except AssertionError:
        other = again()
        if other.error:
            raise
        compare(reference, answers, tolerance, own, noise_of(reference, other))


def check_told(answers: List[Answer], told: str = "") -> None:
    """Fails if a plan says that its step is not that of one device, but for what is `told`."""
    lines = [line for answer in answers for line in answer.log.splitlines() if NOT_OF_ONE_DEVICE in line]
    assert [line for line in lines if not told or told not in line] == []


def noise_of(reference: Answer, by_hand: Answer) -> Dict[str, float]:
    """Returns by name how far plain TensorFlow is from itself, as a part of the largest value of the variable."""
    expected, seen = reference.results["variables"][0], by_hand.results["variables"][0]
    return {
        name: _difference(seen[name], value) / _scale(value)
        for name, value in expected.items()
        if name in seen and np.shape(seen[name]) == np.shape(value)
    }


def compare(
    reference: Answer,
    answers: List[Answer],
    tolerance: float = TOLERANCE,
    own: Sequence[str] = (),
    noise: Optional[Dict[str, float]] = None,
) -> None:
    """Compares losses (mean over processes) and variables, and the replicas with each other.

    Variables with a word of `own` in their names differ between replicas: each is compared with that of its tower.
    A variable with `noise` may differ by more, see above.

    Raises:
        AssertionError: names every value that differs, and by how much.
    """
    problems: List[str] = []
    expected = reference.results
    losses = np.mean([answer.results["loss"] for answer in answers], axis=0)
    _near(problems, "loss", losses, np.array(expected["loss"]), tolerance)
    variables = _of_user(expected["variables"][0])
    for worker, answer in enumerate(answers):
        seen = _of_user(answer.results["variables"][0])
        if sorted(seen) != sorted(variables):
            problems.append("worker %d has the variables %s, expected %s" % (worker, sorted(seen), sorted(variables)))
        elif worker == 0:
            for name in seen:
                allowed = min(NOISE * (noise or {}).get(name, 0.0), NOISY_TOLERANCE)
                _near(problems, name, seen[name], variables[name], max(tolerance, allowed))
    problems += replica_differences(answers, own)
    copies = [copy for answer in answers for copy in answer.results["variables"] + answer.results.get("replicas", [])]
    for replica, copy in enumerate(copies):
        for name in copy:
            if any(word in name for word in own):
                tower = context.clone_name(name, replica)
                _near(problems, tower, copy[name], expected["variables"][0][tower], tolerance)
    if len(expected["loss"]) < 5:
        problems.append("the script made %d steps; at least 5 are needed" % len(expected["loss"]))
    assert not problems, "\n".join(problems)


def with_mean_statistics(by_hand: Answer, replicas: int) -> Answer:
    """Returns the answer with the mean of the towers' own variables, such as moving averages, in place of each."""
    variables = dict(by_hand.results["variables"][0])
    for name in [name for name in variables if context.clone_name(name, 1) in variables]:
        towers = [context.clone_name(name, replica) for replica in range(replicas)]
        variables.update(dict.fromkeys(towers, np.mean([variables[tower] for tower in towers], axis=0)))
    return by_hand._replace(results={**by_hand.results, "variables": [variables]})


def replica_differences(answers: List[Answer], ignore: Sequence[str] = ()) -> List[str]:
    """Returns a line for each variable that is not equal, bit for bit, on all replicas of all processes."""
    problems = []
    first = answers[0].results["variables"][0]
    for worker, answer in enumerate(answers):
        copies = answer.results["variables"] + answer.results.get("replicas", [])
        for replica, copy in enumerate(copies):
            for name, value in copy.items():
                if any(word in name for word in ignore):
                    continue
                if not np.array_equal(value, first[name]):
                    problems.append(
                        "%s differs between replica 0 of worker 0 and replica %d of worker %d:\n%s\n%s"
                        % (name, replica, worker, first[name], value)
                    )
    return problems


def _of_user(variables: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    # By hand every tower's statistics stand in the graph; those of replica 0 are what a user sees.
    return {name: value for name, value in variables.items() if not name.startswith("EPL_REPLICA_")}


def _near(problems: List[str], name: str, seen: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    seen, expected = np.asarray(seen, np.float64), np.asarray(expected, np.float64)
    if seen.shape != expected.shape:
        problems.append("%s has shape %s, expected %s" % (name, seen.shape, expected.shape))
        return
    difference = _difference(seen, expected)
    bound = tolerance * _scale(expected)
    if not difference <= bound:  # also when it is not a number
        problems.append(
            "%s differs by %.3g, more than %.3g:\n%s\nexpected\n%s" % (name, difference, bound, seen, expected)
        )


def _difference(seen: np.ndarray, expected: np.ndarray) -> float:
    seen, expected = np.asarray(seen, np.float64), np.asarray(expected, np.float64)
    return float(np.max(np.abs(seen - expected))) if expected.size else 0.0


def _scale(values: np.ndarray) -> float:
    """Returns the largest value, or what counts in its place where all are tiny."""
    return max(float(np.max(np.abs(values))) if np.size(values) else 0.0, 1e-3)
