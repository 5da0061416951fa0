"""Loaded plans: models are rewritten by an existing plan, without a search.

    plan = from_json(text)               # of an earlier run of the same script
    with use_plan(plan):
        build and first run of the model     split, ZeRO, recomputation, automatic stages: as in the plan

Each feature asks `given` before it decides. When the graph is planned, the new plan must be equal to the loaded one: a
model or a configuration that does not fit is refused with the first difference.
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
    """A model that is built and first run inside, in this thread, is rewritten by this plan.

    Args:
      plan: the plan of an earlier run of the same script, from `from_json`.
    """
    _in_use.plans.append(plan)
    try:
        yield
    finally:
        _in_use.plans.pop()


def in_use() -> Optional[Plan]:
    """The loaded plan that is in use in this thread, or None."""
    return _in_use.plans[-1] if _in_use.plans else None


def given(kind: Type[_Section]) -> Optional[_Section]:
    """A feature's section of the loaded plan, by its class; None if no plan is in use, so that the feature decides.

    Raises:
      PlanError: a plan is in use and lacks the section.
    """
    if not _in_use.plans:
        return None
    found = plans.section(_in_use.plans[-1], kind)
    if found is None:
        raise misfit(f"the model has what a {kind.__name__} decides, and the plan has no such section")
    return found


def misfit(why: str) -> PlanError:
    """The error for a model that the plan in use does not fit."""
    return PlanError(f"The model does not fit the plan that it is to be built from: {why}.")


def refuse_other_plan(plan: Plan) -> None:
    """Raises PlanError if a plan is in use and differs from the plan of the model."""
    if not _in_use.plans:
        return
    difference = plans.first_difference(plan, plans.renamed(_in_use.plans[-1], plan.name))
    if difference is not None:
        raise misfit(f"{difference} (here: the model as it is built; there: the plan)")
