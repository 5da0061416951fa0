"""Models that mixed precision refuses, and a warning where `amp.level` has no effect."""

import logging

from epl.config.config import Config
from epl.ir.graph import Graph
from epl.parallel.plan.gradient_groups import find_trained_by_hand
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")


def warn_of_precision(graph: Graph, config: Config) -> None:
    """Warns if `amp.level` has no effect."""
    if config.amp.level and not graph.replacements:
        logger.warning(
            "amp.level is %r and has no effect: %s.",
            config.amp.level,
            "no op of the model computes in half precision"
            if graph.gradient_calls
            else "tf.gradients was not called for variables of the model",
        )


def refuse_unskipped(graph: Graph, config: Config) -> None:
    """Raises PlanError for updates by hand, which a dynamic loss scale cannot skip: EPL knows only optimizers' updates.

    In a model that also has an optimizer, such writes are allowed: adversarial training, for example, undoes them.
    """
    if not config.amp.level or not graph.replacements or config.amp.loss_scale != "dynamic" or graph.apply_calls:
        return
    by_hand = find_trained_by_hand(graph)
    if by_hand:
        raise PlanError(
            "amp.loss_scale is 'dynamic', and the gradient of {} is written into a variable without apply_gradients "
            "({} in all): a step whose gradients overflow could not be skipped. Apply the gradients by an optimizer, "
            "or set amp.loss_scale to a number.".format(by_hand[0], len(by_hand))
        )
