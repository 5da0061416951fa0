"""Training that EPL has no part in is refused by name: it would train one device, or each worker a model of its own.

| What trains | Where it is seen |
| --- | --- |
| an optimizer of Keras 3, or of the newer Keras 2 | it is given gradients, or to `compile` |
| a model of Keras 3 | `compile`, `fit` or `train_on_batch` |
| a `tf.GradientTape` or an optimizer in a `tf.function` | it differentiates by variables, or applies |
| gradients of a tape, or of a `tf.function`, that no optimizer of the graph gets | the first run |
| a `tf.distribute.Strategy` | its scope is entered, or epl.init is called inside |
"""

from typing import Any, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph
from epl.utils import tf_compat
from epl.utils.errors import PlanError


class Unfollowed:
    """How gradients of variables were computed that EPL cannot follow to where they are used: `Graph.state_of`."""

    def __init__(self, how: str) -> None:
        self.how = how


def annotated_graph_around() -> Optional[Graph]:
    """The annotated graph that is built in, also inside of a function body; None: there is none."""
    tf_graph = tf.get_default_graph()
    while tf_compat.is_function_graph(tf_graph):
        tf_graph = tf_compat.outer_graph(tf_graph)
    graph = Graph.of(tf_graph)
    return graph if graph is not None and graph.taskgraphs else None


def refuse_apply_in_function() -> None:
    """Raises PlanError inside of a function body: what is applied there cannot be aggregated from outside of it."""
    if tf_compat.is_function_graph(tf.get_default_graph()) and annotated_graph_around() is not None:
        raise PlanError(
            "apply_gradients was called inside a function body (tf.function, or tf.cond with control flow v2). Call it "
            "in the graph itself; tf.disable_control_flow_v2() makes tf.cond part of the graph."
        )


def note_tape(sources: Any) -> None:
    """Notes that a tape differentiates by variables.

    Raises:
      PlanError: it does so inside of a function body.
    """
    graph = annotated_graph_around()
    names = [variable_name(one) for one in tf.nest.flatten(sources)]
    if graph is None or not any(names):
        return
    if tf_compat.is_function_graph(tf.get_default_graph()):
        raise PlanError(
            f"tf.GradientTape differentiates by the variable {next(filter(None, names))!r} inside a tf.function, which "
            "trains without EPL: the devices would not be averaged. Build the training step in the graph itself, by "
            "minimize of a tf.compat.v1.train optimizer or by tf.gradients, and run it by tf.compat.v1.Session."
        )
    graph.keep(Unfollowed, Unfollowed("tf.GradientTape"))


def note_gradients_in_function(xs: Sequence[Any]) -> None:
    """Notes that tf.gradients differentiates by variables inside of a function body."""
    if tf_compat.is_function_graph(tf.get_default_graph()) and any(variable_name(one) for one in xs):
        graph = annotated_graph_around()
        if graph is not None:
            graph.keep(Unfollowed, Unfollowed("tf.gradients inside a tf.function"))


def refuse_unfollowed(graph: Graph) -> None:
    """Raises PlanError if gradients of variables are used that EPL cannot follow, and there is more than one device."""
    unfollowed = graph.state_of(Unfollowed)
    cluster = Env.get().cluster
    if unfollowed is None or graph.apply_calls or cluster is None or cluster.total_gpu_num == 1:
        return
    raise PlanError(
        f"The gradients of variables are those of {unfollowed.how}, and no optimizer of the graph gets them: what is "
        "written with them would not be averaged over the devices. Use tf.gradients in the graph itself, or give the "
        "gradients to apply_gradients of an optimizer, before the first Session.run."
    )


def refuse_keras(owner: Any) -> None:
    """Raises PlanError for an optimizer or a model of a Keras whose training EPL does not know."""
    if annotated_graph_around() is None:
        return
    kind = type(owner)
    name = f"{kind.__module__}.{kind.__name__}"
    if tf_compat.is_keras_3_model(owner):
        raise PlanError(
            f"{name} is a model of Keras 3, which trains in a tf.function of its own: EPL has no part in it. Build it "
            "with tf.keras of the package tf_keras, with TF_USE_LEGACY_KERAS=1; or train its output in the graph, by "
            "an optimizer of tf.compat.v1.train and tf.compat.v1.Session."
        )
    raise PlanError(
        f"{name} is an optimizer of Keras 3 or of the newer Keras 2, which EPL does not know: its updates would not be "
        f"the same on all devices. Use one of tf.compat.v1.train, or tf.compat.v1.keras.optimizers.{kind.__name__} "
        "with TF_USE_LEGACY_KERAS=1 and the package tf_keras."
    )


def refuse_strategy(strategy: Any) -> None:
    """Raises PlanError for a distribution strategy; not for the one that stands for none."""
    if Env.get().is_ready and not tf_compat.is_default_strategy(strategy):
        raise PlanError(
            f"The scope of tf.distribute.{type(strategy).__name__} is used with EPL: both would replicate the model. "
            "Remove the strategy, and annotate the model, by `with epl.replicate(1):` around it."
        )


def refuse_current_strategy() -> None:
    """Raises PlanError inside of the scope of a distribution strategy."""
    if tf.distribute.has_strategy():
        refuse_strategy(tf.distribute.get_strategy())
