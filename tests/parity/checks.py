"""What several tests look at in the same way: checkpoints of one device and of a plan, and evaluation of a split."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from tests.parity.oracle import Oracle, Script, compare
from tests.parity.pool import Answer
from tests.parity.scripts import splits

CONTINUED = 1e-5  # two runs, one after the other


class Continued(NamedTuple):
    """What was compared.

    Attributes:
        path: of the checkpoint that the plan has written.
        answer: of one device that goes on.
    """

    path: str
    answer: Answer


def of_worker_0(answers: List[Answer]) -> List[Answer]:
    """The answers, with the checkpoint that worker 0 alone has written."""
    for answer in answers:
        answer.results["variables"] = answers[0].results["variables"]
    return answers


def continue_from_each_other(
    oracle: Oracle,
    topology: Sequence[int],
    script: Script,
    plan: Dict[str, Any],
    again: Optional[Dict[str, Any]] = None,
    **arguments: Any,
) -> Continued:
    """One device and a plan train, and each continues from the checkpoint of the other; slots included.

    Args:
        oracle: runs the script.
        topology: of the plan.
        script: records its checkpoint and the variables in it; it begins with that at `path`, if there is one.
        plan: arguments of the plan.
        again: those of the plan that continues, if they are others.
        arguments: of all runs, where the plan has no others.
    """
    reference = oracle.plain(script, **arguments)
    answers = oracle.plan(topology, script, **dict(arguments, **plan))
    compare(reference, of_worker_0(answers))
    assert sorted(answers[0].results["variables"][0]) == sorted(reference.results["variables"][0])
    path, own = answers[0].results["path"], reference.results["path"]
    further = oracle.plain(script, path=own, **arguments)
    compare(further, [oracle.plain(script, path=path, **arguments)], CONTINUED)
    continued = oracle.plan(topology, script, path=own, **dict(arguments, **(plan if again is None else again)))
    compare(further, of_worker_0(continued), CONTINUED)
    return Continued(path, further)


def check_evaluation(oracle: Oracle, topology: Sequence[int], **plan: Any) -> None:
    """What is fetched in evaluation under a plan is what one device gives."""
    compare_evaluation(oracle.plain(splits.evaluated), oracle.plan(topology, splits.evaluated, **plan))


def compare_evaluation(reference: Answer, answers: Sequence[Answer]) -> None:
    """The same, of what has run already."""
    expected = reference.results
    for answer in answers:
        logits, found, best, *rest = answer.results["found"][0]
        wanted, wanted_found, wanted_best, *wanted_rest = expected["found"][0]
        np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found, wanted_found, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(best[1], wanted_best[1])
        for value, other in zip(rest, wanted_rest):
            np.testing.assert_allclose(value, other, rtol=1e-6)
        np.testing.assert_allclose(answer.results["predicted"][0], expected["predicted"][0], rtol=1e-5, atol=1e-5)
