"""From the annotated model to the graph that trains on all devices: plan, then passes."""

from epl.parallel.plan.plan import Plan
from epl.parallel.transformation import TransformReport, transform

__all__ = ["Plan", "TransformReport", "transform"]
