"""A plan that is there already: models are changed from it, and nothing is searched for.

    plan = from_json(text)               # of an earlier run of the same script
    with use_plan(plan):
        build and first run of the model     split, ZeRO, recomputation, automatic stages: as the plan says

Each feature asks `given` before it decides. When the graph is planned, what was made must be that plan: a model or a
configuration that does not fit is refused by the first difference.
"""

import contextlib
import threading
from typing import Iterator, List, Optional, Type, TypeVar

from epl.parallel.plan import plan as plans
from epl.parallel.plan.plan import Plan
from epl.utils.errors import PlanError

_Section = TypeVar("_Section")


class _InUse(threading.local):
    """The plans in use in this thread, the innermost last."""

    def __init__(self) -> None:
        self.plans: List[Plan] = []


_in_use = _InUse()


@contextlib.contextmanager
def use_plan(plan: Plan) -> Iterator[None]:
    """The model that is built and run first inside, in this thread, is changed from this plan.

    Args:
      plan: that of an earlier run of the same script, as `from_json` reads it.
    """
    _in_use.plans.append(plan)
    try:
        yield
    finally:
        _in_use.plans.pop()


def given(kind: Type[_Section]) -> Optional[_Section]:
    """The section that a feature is to follow, by its class; None: it decides itself.

    Raises:
      PlanError: a plan is in use, and has nothing of the feature.
    """
    if not _in_use.plans:
        return None
    found = plans.section(_in_use.plans[-1], kind)
    if found is None:
        raise misfit(f"the model has what a {kind.__name__} decides, and the plan has no such section")
    return found


def misfit(why: str) -> PlanError:
    """The error for a model that cannot be built as the plan in use says."""
    return PlanError(f"The model does not fit the plan that it is to be built from: {why}.")


def refuse_other_plan(plan: Plan) -> None:
    """Raises PlanError if a plan is in use, and the one that was made of the model is another."""
    if not _in_use.plans:
        return
    difference = plans.first_difference(plan, plans.renamed(_in_use.plans[-1], plan.name))
    if difference is not None:
        raise misfit(f"{difference} (here: the model as it is built; there: the plan)")
