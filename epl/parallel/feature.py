"""What core code asks of a feature of training: one object each, in the order of `epl/parallel/features.py`.

    tf.gradients     annotate -> before_gradients -> [TensorFlow] -> after_gradients -> returned_gradient -> boundary
    apply_gradients  around_apply( boundary -> around_optimizer( [the optimizer] ) )
    first run        refuse -> plan -> passes
    each run         rewrite_run -> around_run( [the plan] )

A feature overrides what it needs; the defaults do nothing. What it knows of a graph it keeps by `Graph.keep`. Planner
and passes ask no feature: what they need of ranks and gradients they read from what features have kept, by its
interface (`epl/parallel/plan/replica_groups.py`, `scattered_gradients.py`).
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.config.config import Config
from epl.ir.gradient import Gradient
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.plan.gradient_groups import BoundaryGroup
from epl.parallel.plan.plan import Stage
from epl.parallel.plan.sections import Section
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass

Pair = Tuple[Optional[Gradient], Any]


class GradientsRequest(NamedTuple):
    """One call of tf.gradients, as the features have changed it so far.

    Attributes:
      asked_for: the `ys` that the user has given.
      xs: by what is differentiated, as the user means it.
      arguments: of TensorFlow's function, by name.
      is_outermost: whether no other call of tf.gradients is in progress, as of a custom gradient.
      dtypes: by x, the type to which its gradient is to be converted; None for those that stay. () converts none.
      seed_scale: what the gradients of `ys` themselves are multiplied by; None: by nothing.
      last_op: number of the last op that was there before the differentiation.
    """

    asked_for: Any
    xs: List[Any]
    arguments: Dict[str, Any]
    is_outermost: bool
    dtypes: Sequence[Optional[tf.DType]] = ()
    seed_scale: Optional[tf.Tensor] = None
    last_op: int = 0


class ApplyRequest(NamedTuple):
    """One call of apply_gradients, as the features have changed it so far.

    Attributes:
      pairs: (gradient, variable), as the optimizer is to get them.
      changed: whether some gradient is another than tf.gradients returned: clipped, for example.
      args, kwargs: what else it is given.
    """

    pairs: List[Pair]
    changed: bool
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]


Apply = Callable[[ApplyRequest], Any]


class RunRequest(NamedTuple):
    """What a Session.run is asked for, as the features have changed it so far.

    Attributes:
      session: the session.
      fetches, targets: tensors whose values are asked for, and ops to run.
      feeds: values by tensor.
      read: gives values of tensors that need variables alone, as they are before the run.
    """

    session: tf.Session
    fetches: List[tf.Tensor]
    targets: List[tf.Operation]
    feeds: Dict[tf.Tensor, Any]
    read: Callable[[Sequence[tf.Tensor]], List[Any]]


Run = Callable[[RunRequest], List[Any]]


class Feature:
    """One feature of training.

    Attributes:
      origin: what asks for it; the ops follow from it that it adds while the user builds.
      passes: what it does to the graph; in order by what they require and provide.
    """

    origin: OpOrigin
    passes: Tuple[Pass, ...] = ()

    # ---- While the user builds the model

    def annotate(self, ys: Any, xs: Sequence[Any]) -> None:
        """The default graph, annotated or not, is about to be differentiated."""

    def before_gradients(self, graph: Graph, request: GradientsRequest) -> GradientsRequest:
        """What is differentiated in place of what was asked for. For outermost calls alone."""
        return request

    def after_gradients(
        self, graph: Graph, request: GradientsRequest, gradients: List[Optional[Gradient]]
    ) -> List[Optional[Gradient]]:
        """The gradients, given those that TensorFlow has computed. For outermost calls alone."""
        return gradients

    def returned_gradient(self, graph: Graph, request: GradientsRequest, x: Any, gradient: Gradient) -> Gradient:
        """What is given back as the gradient by `x`."""
        return gradient

    def note_gradient(self, graph: Graph, variable: str, gradient: Gradient) -> None:
        """The gradient of a variable is given back through this boundary."""

    def around_apply(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Calls `apply` with what is applied; before the boundaries of these gradients."""
        return apply(request)

    def around_optimizer(self, graph: Graph, request: ApplyRequest, apply: Apply) -> Any:
        """Calls `apply`, the optimizer, with what it is to see; after the boundaries of these gradients."""
        return apply(request)

    def missing_after_plan(self, graph: Graph, config: Config) -> str:
        """What a training step would lack that is built after the graph was rewritten, in words; "" if nothing."""
        return ""

    # ---- When the graph is planned

    def refuse(self, graph: Graph, config: Config) -> None:
        """Raises an EplError for what cannot be done, before stages are known; warns of what has no effect."""

    def complete(self, graph: Graph) -> None:
        """What can be done only when the whole graph is built: before it is planned."""

    def refuse_plan(
        self, graph: Graph, config: Config, stages: Sequence[Stage], groups: Sequence[BoundaryGroup]
    ) -> None:
        """Raises an EplError for what cannot be done with these stages and groups of gradients."""

    def plan(self, rewrite: RewriteContext) -> Optional[Section]:
        """What the plan is to say of the feature; None if it is not in use. Nothing is changed: its passes do that."""
        return None

    # ---- While it runs

    def changes_runs(self, graph: Graph) -> bool:
        """Whether runs of one replica on one device are not TensorFlow's own."""
        return False

    def rewrite_run(self, graph: Graph, request: RunRequest) -> RunRequest:
        """What runs in place of what was asked for."""
        return request

    def around_run(self, graph: Graph, request: RunRequest, run: Run) -> List[Any]:
        """Calls `run` with what runs, as all features have rewritten it; gives the values of its fetches."""
        return run(request)
