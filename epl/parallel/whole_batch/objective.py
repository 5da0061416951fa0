"""Puts the loss of all rows in place of that of a replica's rows, when it is differentiated (`replicate.batch: all`).

    rows --> mask * loss --> sum --.                 rows --> mask * loss --> sum --> SUMS --.
    rows --> mask ---------> sum --'--> divide  =>   rows --> mask ---------> sum --> SUMS --'--> copy of divide

`epl/parallel/sharding/row_lowering.py` decides: what can be computed on rows stays as it is, and a loss that mixes no
rows has no copy. Copies take the place of the user's ops in fetches, and where later ops take their values. The number
of rows that the result has may not change: a matrix of all pairs of rows is that of a replica where it is fetched.
Losses that share ops share copies and collectives: one that is differentiated twice is added up once.

On replica r the loss is L_r, and the loss of all rows is J = sum of w_r L_r, with the weights w_r of the replicas. The
gradients of weights that replica r computes are multiplied by w_r, and added up. So they are to be those of J, divided
by w_r, and so is each gradient in the backward pass. Behind a sum y = sum of x_r that all replicas take, that is

    1 / w_r * dJ/dx_r = 1 / w_r * sum over s of w_s * (gradient of L_s by y)

which the marker of the backward pass becomes (synchronise.py).
"""

from typing import Any, ContextManager, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.colocation import in_taskgraph, phase_of, taskgraph_index
from epl.ir.dataflow import data_inputs
from epl.ir.gradient import Gradient
from epl.ir.gradient_boundary import boundary, variable_name
from epl.ir.graph import Graph
from epl.ir.replacements import Replacement
from epl.ir.view import GraphView
from epl.parallel.feature import GradientsRequest
from epl.parallel.replication.replica_rows import sources_of
from epl.parallel.replication.wholes import Values, Wholes, gathered
from epl.parallel.sharding.row_dimensions import find_dimensions, without_rows
from epl.parallel.sharding.row_flow import PARTIAL_SUM, ROWS, SAME, Flow, Output, RowFlow
from epl.parallel.sharding.row_lowering import RowLowering
from epl.parallel.whole_batch import markers
from epl.utils import tf_compat
from epl.utils.containers import as_list
from epl.utils.errors import FeedError, NotAvailableError
from epl.utils.source_line import user_place

KEY = 'replicate.batch "all"'
_MEAN = Flow(PARTIAL_SUM, -1, 0, has_data=True)
_SCOPE = "epl_all_rows/"


class Built(NamedTuple):
    """What stands for all rows in a graph, each built once: losses that share ops share its collectives.

    Attributes:
      copies: name of an op -> by output, its copy.
      wholes: (name of an op, output) -> the value of all rows.
      counts: (name of an op, output, dimension) -> the number of all rows.
    """

    copies: Dict[str, List[Values]]
    wholes: Dict[Tuple[str, int], tf.Tensor]
    counts: Dict[Tuple[str, int, int], tf.Tensor]


class WholeBatch(NamedTuple):
    """What was built in a graph: `Graph.state_of`.

    Attributes:
      losses: names of what was differentiated by variables.
      sources: of each loss, names of tensors, and whether they were taken to have rows of the batch, or random numbers.
      built: the copies and wholes.
    """

    losses: Tuple[str, ...] = ()
    sources: Tuple[Tuple[str, Flow], ...] = ()
    built: Built = Built({}, {}, {})


def lower(graph: Graph, request: GradientsRequest) -> GradientsRequest:
    """The call of tf.gradients on losses of all rows.

    Raises:
      NotAvailableError: the rows cannot be followed, or the call is one that is not proved.
    """
    cluster = Env.get().cluster
    assert cluster is not None
    if Env.get().config.replicate.batch != "all" or cluster.total_gpu_num == 1:
        return request
    ys = [y for y in as_list(request.arguments["ys"]) if isinstance(y, tf.Tensor)]
    view = GraphView(graph.tf_graph)
    nodes = _forward_nodes(graph.tf_graph, view, ys)
    sources = row_sources(graph, view, nodes, ys)
    flow = RowFlow(graph.tf_graph, view, nodes, sources)
    none: Set[int] = set()
    lowering = RowLowering(graph.tf_graph, view, flow, nodes, sources, none, none, frozenset(), averages=True)
    by_variables = any(variable_name(x) is not None for x in request.xs)
    state = graph.state_of(WholeBatch) or WholeBatch()
    wholes = _Wholes(graph.tf_graph, view, lowering, state.built)
    made: Dict[str, tf.Tensor] = {}
    with graph.building_own_ops(), tf.control_dependencies(None), tf.device(None), tf.name_scope(_SCOPE):
        for y in ys:
            output = view.index[y.op.name], y.value_index
            _refuse_unknown(graph.tf_graph, view, lowering, nodes, y)
            if by_variables:
                _refuse_vector(y, lowering.of(output))
            # The mean over the replicas is that of all rows for a mean alone.
            is_averaged = not by_variables or lowering.of(output) in (SAME, _MEAN)
            made[y.name] = wholes.of_replicas(output, [y])[0] if is_averaged else wholes.whole(output, [y])
    if by_variables:
        known = state.sources + tuple(pair for pair in _by_name(view, sources).items() if pair not in state.sources)
        losses = state.losses + tuple(y.name for y in ys)
        graph.keep(WholeBatch, WholeBatch(losses, known, wholes.built()))
    if all(made[y.name] is y for y in ys):
        return request
    _refuse_call(request, by_variables)
    copies = wholes.copies()
    graph.replacements.update((one.name, Replacement(one, copy, copy)) for one, copy, keeps in copies if keeps)
    graph.replacements.update((y.name, Replacement(y, made[y.name], made[y.name])) for y in ys if made[y.name] is not y)
    moved = {one.name: copy for one, copy, _ in copies}
    moved.update(made)
    arguments = dict(request.arguments)
    for name in ("ys", "xs", "stop_gradients"):
        if arguments.get(name) is not None:
            arguments[name] = [_moved(one, moved) for one in as_list(arguments[name])]
    return request._replace(arguments=arguments)


def after_losses(request: GradientsRequest, gradients: List[Optional[Gradient]]) -> List[Optional[Gradient]]:
    """The gradients, of which the first one waits for losses that have copies."""
    asked_for = as_list(request.asked_for)
    losses = [one.op for one in as_list(request.arguments["ys"]) if not any(one is y for y in asked_for)]
    found = list(gradients)
    for at, gradient in enumerate(gradients):
        if losses and gradient is not None:
            with tf.control_dependencies(losses):
                found[at] = boundary(gradient)
            break
    return found


def connect(graph: Graph) -> None:
    """Lets the user's other ops take the values of all rows in place of those of a replica, and wait for them."""
    wholes = [one for one in graph.replacements.values() if not one.is_half]
    replaced = {one.original.op: one.computed.op for one in wholes}
    for one in wholes:
        for consumer in set(one.original.consumers()) - replaced.keys() - graph.own_ops:
            for position, tensor in enumerate(consumer.inputs):
                if tensor is one.original:
                    tf_compat.set_input(consumer, position, one.computed)
    waiting = {op for original in replaced for op in tf_compat.control_outputs(original)}
    for op in waiting - replaced.keys() - graph.own_ops:
        controls = [replaced.get(before, before) for before in op.control_inputs]
        tf_compat.remove_control_inputs(op)
        tf_compat.add_control_inputs(op, dict.fromkeys(controls))


def refuse_fed(graph: Graph, feeds: Iterable[tf.Tensor]) -> None:
    """Raises FeedError for a tensor that is no longer computed: what took it takes that of all rows."""
    for tensor in feeds:
        if tensor.name in graph.replacements:
            raise FeedError(
                "{!r} is fed, and computed from all rows (replicate.batch): what takes it takes that. Feed a "
                "tf.placeholder_with_default in its place, or leave replicate.batch out.".format(tensor.name)
            )


def _moved(tensor: Any, moved: Dict[str, tf.Tensor]) -> Any:
    return moved.get(tensor.name, tensor) if isinstance(tensor, tf.Tensor) else tensor


def row_sources(graph: Graph, view: GraphView, nodes: Set[int], ys: Sequence[tf.Tensor]) -> Dict[Output, Flow]:
    """Where rows begin among nodes, as feeds are cut for the losses `ys`."""
    found = sources_of(graph, view, nodes)
    fed = nodes.intersection(view.user_placeholders())
    dimensions = find_dimensions(graph.tf_graph, view, [y.name for y in ys]) if fed else None
    for name in () if dimensions is None else without_rows(dimensions):
        output = view.index[name.partition(":")[0]], 0
        if output in found and output[0] in fed:
            found[output] = SAME
    return found


def sources_now(graph: Graph, state: WholeBatch) -> Dict[str, Flow]:
    """Where rows begin for all losses together, in the graph as it is now."""
    view = GraphView(graph.tf_graph)
    ys = [graph.tf_graph.get_tensor_by_name(name) for name in state.losses]
    return _by_name(view, row_sources(graph, view, _forward_nodes(graph.tf_graph, view, ys, is_planned=True), ys))


def _by_name(view: GraphView, sources: Dict[Output, Flow]) -> Dict[str, Flow]:
    return {f"{view.nodes[node].name}:{at}": flow for (node, at), flow in sources.items()}


class _Wholes(Wholes):
    """Builds the wholes of values by markers; what losses before have built is taken from there."""

    def __init__(self, tf_graph: tf.Graph, view: GraphView, lowering: RowLowering, before: Built) -> None:
        super().__init__(tf_graph, view, lowering)
        self._before = before
        at = view.index
        self._own = {at[name]: copies for name, copies in before.copies.items() if at[name] in lowering.found}
        self._wholes = {(at[name], output): whole for (name, output), whole in before.wholes.items()}
        self._counts = {((at[name], output), dim): count for (name, output, dim), count in before.counts.items()}

    def built(self) -> Built:
        """What was built before, and now."""
        nodes = self._view.nodes
        return Built(
            {**self._before.copies, **{nodes[node].name: copies for node, copies in self._own.items()}},
            {(nodes[node].name, output): whole for (node, output), whole in self._wholes.items()},
            {(nodes[node].name, output, dim): count for ((node, output), dim), count in self._counts.items()},
        )

    def whole(self, output: Output, now: Values) -> tf.Tensor:
        """In the stage of what a replica has."""
        with self._in_stage_of(output):
            return super().whole(output, now)

    def _count(self, rows: Output, now: Values, dim: int) -> tf.Tensor:
        """In the stage of the rows, whichever stage asks for their number first."""
        with self._in_stage_of(rows):
            return super()._count(rows, now, dim)

    def _in_stage_of(self, output: Output) -> ContextManager[None]:
        op = self._tf_graph.get_operation_by_name(self._view.nodes[output[0]].name)
        return in_taskgraph(op.graph, taskgraph_index(op))

    def _sum(self, values: Values) -> tf.Tensor:
        return markers.marked(values[0], markers.SUMS)

    def _mean(self, values: Values, rows: Values) -> tf.Tensor:
        """One sum of the values, times the rows, and of the rows."""
        (tensor,) = values
        wide = tensor.dtype if tensor.dtype in (tf.float32, tf.float64) else tf.float32
        weight = tf.cast(rows[0], wide)
        # The mean of no rows is no number; times 0, it is to be 0.
        total = tf.math.multiply_no_nan(tf.reshape(tf.cast(tensor, wide), [-1]), weight)
        sums = self._sum([tf.concat([total, [weight]], 0)])
        return tf.reshape(tf.cast(sums[:-1] / sums[-1], tensor.dtype), tensor.shape)

    def _concat(self, values: Values, dim: int) -> tf.Tensor:
        return gathered(values[0], dim, lambda rows: markers.marked(rows, markers.ROWS))

    def _first(self, values: Values) -> tf.Tensor:
        raise NotImplementedError("A loss keeps the random numbers of each replica.")

    def _copy(self, op: tf.Operation, inputs: Sequence[tf.Tensor], replica: int) -> List[tf.Tensor]:
        """On the device of the op."""
        with tf.device(op.device), in_taskgraph(op.graph, taskgraph_index(op)):
            return super()._copy(op, inputs, replica)

    def copies(self) -> List[Tuple[tf.Tensor, tf.Tensor, bool]]:
        """The outputs of the user's ops, their copies, and whether these have as many elements."""
        return [
            (output, copy, (node, at) not in self._lowering.mixed_sizes)
            for node, copies in self._own.items()
            for at, (output, (copy,)) in enumerate(zip(self._ops(node)[0].outputs, copies))
        ]


# ---- What is differentiated, and what is refused.


def _forward_nodes(tf_graph: tf.Graph, view: GraphView, ys: Sequence[tf.Tensor], is_planned: bool = False) -> Set[int]:
    """What the losses are computed from; `is_planned`: but for weights in parts, which are built with the updates.

    Raises:
      NotAvailableError: it has gradients.
    """
    found: Set[int] = set()
    stack = [view.index[y.op.name] for y in ys]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        operation = tf_graph.get_operation_by_name(view.nodes[node].name)
        if phase_of(operation):
            if is_planned:
                continue
            raise NotAvailableError(
                f"{KEY} with gradients of gradients",
                f"The loss is computed from {operation.name!r}, which is made of gradients. Set replicate.batch to "
                '"each".',
            )
        found.add(node)
        if view.types[node] not in op_types.VARIABLES:
            stack += [one for one, _ in data_inputs(view, node)]
    return found


def _refuse_unknown(tf_graph: tf.Graph, view: GraphView, lowering: RowLowering, nodes: Set[int], y: tf.Tensor) -> None:
    output = view.index[y.op.name], y.value_index
    if not lowering.unknown(output):
        return
    node = output[0]
    while True:  # up to the op that is the reason
        before = [one for one, at in data_inputs(view, node) if one in nodes and lowering.unknown((one, at))]
        before = [one for one in before if lowering.unknown((one, 0)) == lowering.unknown((node, 0))]
        if not before:
            break
        nodes, node = nodes - {node}, before[0]
    op = tf_graph.get_operation_by_name(view.nodes[node].name)
    place = user_place(op)
    raise NotAvailableError(
        f"{KEY} with rows that EPL cannot follow",
        'The loss {!r} takes {!r} ({}{}): {}. Set replicate.batch to "each", or compute this in another way.'.format(
            y.name, op.name, op.type, "" if place is None else ", {}:{}".format(*place), lowering.unknown((node, 0))
        ),
    )


def _refuse_vector(y: tf.Tensor, flow: Flow) -> None:
    if flow.kind == ROWS or y.shape.ndims != 0:
        raise NotAvailableError(
            f"{KEY} with a loss that is no scalar",
            f"{y.name!r} has the shape {y.shape}. Differentiate its tf.reduce_mean or tf.reduce_sum.",
        )


def _refuse_call(request: GradientsRequest, by_variables: bool) -> None:
    """Raises NotAvailableError for calls of tf.gradients whose results would be wrong.

    Each gradient of the backward pass is divided by the weight of the replica, which the sum over replicas undoes for
    variables alone. And a step has the collectives of a loss because its first gradient waits for them
    (`after_losses`): where that is the one by a tensor, which no step needs, they stay out.
    """
    if not by_variables:
        raise NotAvailableError(
            f"{KEY} with gradients by tensors alone",
            'The objective mixes rows, and is differentiated by no variable. Set replicate.batch to "each".',
        )
    if any(variable_name(x) is None for x in request.xs):
        raise NotAvailableError(
            f"{KEY} with gradients by variables and by other tensors in one call",
            "The objective mixes rows. Call tf.gradients on the variables alone.",
        )
    if any(one is not None for one in as_list(request.arguments.get("grad_ys"))):
        raise NotAvailableError(f"{KEY} with grad_ys", "Multiply the loss by it before it is differentiated.")
