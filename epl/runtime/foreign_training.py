"""Training that EPL has no part in is refused by name: it would train one device, or each worker a model of its own.

| What trains | Where it is seen |
| --- | --- |
| an optimizer of Keras 3, or of the newer Keras 2 | it is given gradients, or to `compile` |
| a model of Keras 3 | `compile`, `fit` or `train_on_batch` |
| a `tf.GradientTape` or an optimizer in a `tf.function` | it differentiates by variables, or applies |
| gradients of a tape, or of a `tf.function`, that no optimizer of the graph gets | a run writes weights with them |
| a `tf.distribute.Strategy` of several devices | its scope is entered, or epl.init is called inside |

A job of one device replicates nothing: there all of the last two train as they do without EPL.

    gradient of w --> statistics --> write of v             analysis: left alone
    gradient of w --> write of v;  v --> write of w         training: refused, in the run that writes w
"""

from typing import Any, Iterable, List, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph, first_tensor
from epl.ir.view import GraphView, functions_of
from epl.utils import tf_compat
from epl.utils.errors import PlanError


class Unfollowed:
    """Gradients of variables that EPL cannot follow to where they are used: `Graph.state_of`."""

    def __init__(self) -> None:
        self.how = ""  # what computes them
        self.variables: Set[str] = set()  # names of the ops
        self.gradients: Set[str] = set()  # names of ops, and parts of the names of functions
        self._writes: Tuple[int, List[str]] = (-1, [])  # of a version of the graph

    def add(self, how: str, variables: Iterable[Optional[str]], gradients: Iterable[str]) -> None:
        """Notes a call that differentiates by variables."""
        self.how = how
        self.variables.update(name for name in variables if name is not None)
        self.gradients.update(gradients)

    def writes(self, tf_graph: tf.Graph) -> List[str]:
        """Names of the ops that write one of the variables from the gradients, through other variables as well."""
        if self._writes[0] != tf_graph.version:
            view = GraphView(tf_graph)
            own = {view.index[name] for name in self.variables if name in view.index}
            all_writes = view.writes()
            reached: Set[int] = set()
            more = {node for node in range(len(view.nodes)) if self._is_gradient(view, node)}
            while more:
                reached |= view.descendants(more)
                written = {one for node in all_writes if node in reached for one in view.variable_inputs(node)}
                more = written - own - reached
            found = [node for node in all_writes if node in reached and own.intersection(view.variable_inputs(node))]
            self._writes = tf_graph.version, [view.nodes[node].name for node in found]
        return self._writes[1]

    def _is_gradient(self, view: GraphView, node: int) -> bool:
        if view.nodes[node].name in self.gradients:
            return True
        called = functions_of(view.nodes[node]) - {view.types[node]}
        return any(f"_{part}_" in f"_{name}_" for name in called for part in self.gradients)


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


def refuse_tape_in_function(sources: Any) -> None:
    """Raises PlanError for a tape that differentiates by variables inside of a function body."""
    names = [variable_name(one) for one in tf.nest.flatten(sources)]
    is_inside = tf_compat.is_function_graph(tf.get_default_graph())
    if is_inside and any(names) and annotated_graph_around() is not None:
        raise PlanError(
            f"tf.GradientTape differentiates by the variable {next(filter(None, names))!r} inside a tf.function, which "
            "trains without EPL: the devices would not be averaged. Build the training step in the graph itself, by "
            "minimize of a tf.compat.v1.train optimizer or by tf.gradients, and run it by tf.compat.v1.Session."
        )


def note_tape(sources: Any, gradients: Any) -> None:
    """Notes the gradients that a tape has computed, of those that are by variables."""
    graph = annotated_graph_around()
    if graph is None or tf_compat.is_function_graph(tf.get_default_graph()):
        return
    pairs = zip(map(variable_name, tf.nest.flatten(sources)), tf.nest.flatten(gradients))
    for name, gradient in pairs:
        if name is not None and gradient is not None:
            _unfollowed(graph).add("tf.GradientTape", [name], [first_tensor(gradient).op.name])


def note_gradients_in_function(xs: Sequence[Any]) -> None:
    """Notes that tf.gradients differentiates by variables inside of a function body."""
    names = [variable_name(one) for one in xs]
    function: Any = tf.get_default_graph()
    graph = annotated_graph_around()
    if graph is None or not any(names) or not tf_compat.is_function_graph(function):
        return
    while tf_compat.is_function_graph(tf_compat.outer_graph(function)):
        function = tf_compat.outer_graph(function)
    _unfollowed(graph).add("tf.gradients inside a tf.function", names, [function.name])


def _unfollowed(graph: Graph) -> Unfollowed:
    return graph.state_of(Unfollowed) or graph.keep(Unfollowed, Unfollowed())


def refuse_unfollowed(graph: Graph, wanted: Optional[Sequence[Any]]) -> None:
    """Raises PlanError for a run that writes variables from gradients that EPL cannot follow, on several devices.

    Args:
      graph: the graph.
      wanted: the tensors and ops that the run is asked for; None: any.
    """
    unfollowed = graph.state_of(Unfollowed)
    cluster = Env.get().cluster
    if unfollowed is None or graph.apply_calls or cluster is None or cluster.total_gpu_num == 1:
        return
    writes = unfollowed.writes(graph.tf_graph)
    if not writes or (wanted is not None and not _runs(graph.tf_graph, wanted, writes)):
        return
    raise PlanError(
        f"The gradients of variables are those of {unfollowed.how}, and no optimizer of the graph gets them: what is "
        f"written with them, by {writes[0]!r}, would not be averaged over the devices. Use tf.gradients in the graph "
        "itself, or give the gradients to apply_gradients of an optimizer, before the first Session.run."
    )


def _runs(tf_graph: tf.Graph, wanted: Sequence[Any], writes: Sequence[str]) -> bool:
    """Whether a run of what is wanted runs one of the writes."""
    view = GraphView(tf_graph)
    roots = {view.index[getattr(one, "op", one).name] for one in wanted}
    return not view.ancestors(roots).isdisjoint(view.index[name] for name in writes)


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
    """Raises PlanError for a distribution strategy that would replicate what EPL replicates."""
    cluster = Env.get().cluster if Env.get().is_ready else None
    if cluster is None or cluster.total_gpu_num == 1 or tf_compat.is_strategy_of_one_device(strategy):
        return
    raise PlanError(
        f"The scope of tf.distribute.{type(strategy).__name__} is used with EPL: both would replicate the model. "
        "Remove the strategy, and annotate the model, by `with epl.replicate(1):` around it."
    )


def refuse_current_strategy() -> None:
    """Raises PlanError inside of the scope of a distribution strategy."""
    if tf.distribute.has_strategy():
        refuse_strategy(tf.distribute.get_strategy())
