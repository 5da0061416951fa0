"""Which tensors hold a batch that devices divide: the decision for `epl.replicate(n)`, n > 1, and for uneven rows.

A data source (an iterator, a queue) is read once for the n devices of a process, or with uneven rows or
`epl.local_rows` for all of them, and each device gets its rows. Outputs whose first dimension is open are cut; scalars,
and tensors of `epl.keep_whole`, go to all devices in full. `epl.runtime.feeds` cuts feeds, as with `epl.replicate(1)`.

A batch whose size is a constant of the graph cannot be divided: it is refused by name and line. To find out,
TensorFlow's shape inference runs on a copy of the model with batches of another size.
"""

import logging
import re
from typing import Container, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir import op_types
from epl.ir.dataflow import has_open_rows
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
from epl.parallel.plan.plan import proportions
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.parallel.sharding.row_dimensions import find_dimensions
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

logger = logging.getLogger("epl")

_TRIAL_ROWS = 1031  # a prime: no constant of a model is a multiple of it by chance
_RANDOM = frozenset(
    ["RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal"]
)
_FAILED_OP = re.compile(r"(?:for|[Nn]ode) '(?:\{\{node )?([^'}]+)")  # TensorFlow 2 puts the name in {{node ...}}


class BatchDivision(NamedTuple):
    """How the batch of one data source is divided.

    Attributes:
      source: name of the data source.
      dense: positions of the outputs that are cut by rows.
      sparse: names of the DeserializeSparse ops whose sparse tensors are cut by dense rows.
    """

    source: str
    dense: Tuple[int, ...]
    sparse: Tuple[str, ...]


def find(rewrite: RewriteContext) -> Tuple[BatchDivision, ...]:
    """The data sources of the training step whose batches are divided; () if every replica reads its own.

    Raises:
      PlanError: a batch whose size is built into the graph, or no batch at all.
    """
    if not rewrite.plan.batch_parts or _has_own_graphs(rewrite):
        return ()
    view = GraphView(rewrite.tf_graph)
    divisions = tuple(_divide(rewrite, op) for op in _sources(rewrite, view))
    objectives = [view.index[y.op.name] for call in rewrite.graph.gradient_calls for y in call.ys]
    forward = view.ancestors(objectives)
    cut = {division.source: division.dense for division in divisions if division.dense}
    _refuse_constant_rows(rewrite, view, forward, cut)
    _refuse_known_placeholders(rewrite, view, forward)
    _warn_of_random_data(rewrite, view, forward)
    return divisions


def _has_own_graphs(rewrite: RewriteContext) -> bool:
    """Whether each worker builds the graph for its own number of rows, by `epl.local_rows`, and divides nothing."""
    may_differ = Env.get().asked_local_rows and rewrite.config.communication.allow_different_graphs
    return may_differ and all(part.parts == 1 for part in rewrite.plan.batch_parts)


def _sources(rewrite: RewriteContext, view: GraphView) -> List[tf.Operation]:
    """The data sources of the training step, in the order of the script."""
    boundaries = boundary_nodes(view, [*rewrite.graph.gradient_calls, *rewrite.graph.apply_calls])
    roots = boundaries | find_training_writes(rewrite.tf_graph, view, view.writes(), boundaries)
    roots.update(view.index[output.tensor.partition(":")[0]] for output in rewrite.plan.outputs)
    shared = set(view.of_types(op_types.SHARED_STATE))
    needed = view.ancestors(roots, shared.__contains__)
    readers = op_types.DATA_SOURCES - op_types.STAGING - {"IteratorGetNextAsOptional"}
    return [rewrite.operation(view.nodes[node].name) for node in view.of_types(readers) if node in needed]


def _divide(rewrite: RewriteContext, source: tf.Operation) -> BatchDivision:
    whole = {tensor.name for tensor in rewrite.graph.whole_inputs}
    outputs = [tensor for tensor in source.outputs if tensor.name not in whole]
    if not outputs:
        return BatchDivision(source.name, (), ())
    dense = tuple(tensor.value_index for tensor in outputs if has_open_rows(tensor))
    sparse = tuple(op.name for tensor in outputs for op in deserialized(tensor))
    if not dense and not sparse:
        _refuse_source(rewrite, source, outputs)
    if tf_compat.control_flow_context_of(source) is not None:
        raise PlanError(
            "{} divides the batches of {!r} ({}), which reads them in a loop or in a branch of tf.cond. Read the data "
            "outside of it; a feedable iterator (tf.data.Iterator.from_string_handle) reads one dataset or "
            "another.".format(divider(rewrite), source.name, user_line(source))
        )
    _refuse_beside_cut(rewrite, source, outputs)
    return BatchDivision(source.name, dense, sparse)


def _refuse_beside_cut(rewrite: RewriteContext, source: tf.Operation, outputs: Sequence[tf.Tensor]) -> None:
    """Raises PlanError for an output that is not cut but may hold rows, next to one that is cut."""
    for tensor in outputs:
        is_ragged = tensor.dtype == tf.variant and tensor.consumers() and not deserialized(tensor)
        known_first = bool(tensor.shape.ndims) and tf.dimension_value(tensor.shape[0]) is not None
        if is_ragged or (known_first and not tensor.shape.is_fully_defined() and tensor.dtype != tf.variant):
            raise PlanError(
                "{} divides the batches of {!r} ({}) by rows, and cannot tell those of {!r}: {}. Give batches the rows "
                "first, in dense or sparse tensors; or, if it holds no rows, call epl.keep_whole for it.".format(
                    divider(rewrite),
                    source.name,
                    user_line(source),
                    tensor.name,
                    "it is a ragged tensor" if is_ragged else f"its shape is {tensor.shape}",
                )
            )


def deserialized(tensor: tf.Tensor) -> List[tf.Operation]:
    """The ops that deserialize sparse tensors from `tensor`, a part of a dataset's element."""
    if tensor.dtype != tf.variant:
        return []
    return [op for op in tensor.consumers() if op.type == "DeserializeSparse"]


def _refuse_source(rewrite: RewriteContext, source: tf.Operation, outputs: Sequence[tf.Tensor]) -> None:
    known = next((tensor for tensor in outputs if tensor.shape.ndims), None)
    if known is None:
        raise PlanError(
            "{} divides batches by rows, and what {!r} ({}) reads has no rows: {}. Let it read batches, or {}, with "
            "which each device reads data of its own.".format(
                divider(rewrite),
                source.name,
                user_line(source),
                ", ".join(f"{t.name!r} of shape {t.shape}" for t in outputs),
                otherwise(rewrite),
            )
        )
    raise PlanError(
        "{} divides batches by rows, and the rows of {!r} ({}), of shape {}, are built into the graph. Leave the first "
        "dimension open: Dataset.batch without drop_remainder, tf.train.batch with allow_smaller_final_batch=True; or "
        "{}, with which each device reads a batch of that size.".format(
            divider(rewrite), known.name, user_line(source), known.shape, otherwise(rewrite)
        )
    )


def divider(rewrite: RewriteContext) -> str:
    """What asks for the division of batches, for messages."""
    plan = rewrite.plan
    if plan.row_shares:
        return f'auto.balance "{proportions(plan.row_shares)}"'
    return "epl.local_rows" if Env.get().asked_local_rows else plan.stages[0].strategy


def otherwise(rewrite: RewriteContext) -> str:
    """What divides no batch, for messages."""
    if rewrite.plan.row_shares:
        return 'set auto.balance to "even" and write epl.replicate(1)'
    return "write epl.replicate(1)" + (" without epl.local_rows" if Env.get().asked_local_rows else "")


def _refuse_constant_rows(
    rewrite: RewriteContext, view: GraphView, forward: Set[int], cut: Mapping[str, Sequence[int]]
) -> None:
    """Raises PlanError if the forward pass accepts batches of one size only; `cut`: by op, the outputs with rows."""
    error = _trial_error(rewrite, view, forward, cut, _TRIAL_ROWS)
    if error is None:
        return
    reads = view.descendants([view.index[name] for name in cut])
    found = _FAILED_OP.search(error)
    failed = found.group(1) if found else ""
    refused = rewrite.operation(failed) if failed in view.index and view.index[failed] in reads else None
    raise PlanError(
        "{} divides the batches of {} among devices, and the model counts on batches of one size: {}{}. Compute "
        "sizes from the batch (tf.shape(x)[0], -1 in tf.reshape), or {}, with which each device reads a batch of the "
        "script's own size.".format(
            divider(rewrite),
            ", ".join(repr(name) for name in cut),
            "" if refused is None else f"{refused.name!r} ({user_line(refused)}) ",
            f"does not take {_TRIAL_ROWS} rows: {error}",
            otherwise(rewrite),
        )
    )


def _trial_error(
    rewrite: RewriteContext,
    view: GraphView,
    forward: Set[int],
    cut: Mapping[str, Sequence[int]],
    rows: Optional[int],
) -> Optional[str]:
    """What TensorFlow's shape inference says against batches of so many rows; None if it takes them."""
    if not cut:
        return None
    batches = {rewrite.operation(name).outputs[position].name for name, dense in cut.items() for position in dense}
    graph_def = tf.GraphDef(versions=view.graph_def.versions, library=view.graph_def.library)
    names: Dict[str, str] = {}
    for node in sorted(forward):
        op = rewrite.operation(view.nodes[node].name)
        if op.name not in cut:
            _add_to_trial(graph_def, op, cut, batches, names, rows)
    try:
        tf_compat.import_nodes(tf.Graph(), graph_def.SerializeToString(), [n.name for n in graph_def.node], [], [])
    except ValueError as error:
        return str(error)
    return None


def _add_to_trial(
    graph_def: tf.GraphDef,
    op: tf.Operation,
    cut: Container[str],
    batches: Set[str],
    names: Dict[str, str],
    rows: Optional[int],
) -> None:
    """Adds an op, with placeholders of `rows` rows in place of the batches that it reads."""
    copy = graph_def.node.add()
    copy.CopyFrom(op.node_def)
    copy.device = ""
    for key in ("_class", "_output_shapes"):
        copy.attr.pop(key, None)
    del copy.input[:]
    for tensor in op.inputs:
        if tensor.op.name not in cut:
            copy.input.append(tensor.name)
            continue
        if tensor.name not in names:
            names[tensor.name] = f"EplBatch{len(names)}"
            node = graph_def.node.add(name=names[tensor.name], op="Placeholder")
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            shape = tensor.shape
            if tensor.name in batches and shape.ndims is not None:
                shape = tf.TensorShape([rows]).concatenate(shape[1:])
            node.attr["shape"].shape.CopyFrom(shape.as_proto())
        copy.input.append(names[tensor.name])


def _refuse_known_placeholders(rewrite: RewriteContext, view: GraphView, forward: Set[int]) -> None:
    """Raises PlanError for placeholders whose number of rows is a constant of the graph."""
    objectives = [y.name for call in rewrite.graph.gradient_calls for y in call.ys]
    dimensions = find_dimensions(rewrite.tf_graph, view, objectives)
    whole = {tensor.name for tensor in rewrite.graph.whole_inputs}
    if dimensions is None:
        if rewrite.plan.row_shares:
            _refuse_constant_feeds(rewrite, view, forward, whole)
        return
    known: Dict[int, List[str]] = {}
    for name, numbers in dimensions.sizes.items():
        if numbers and name not in dimensions.open and name not in whole and numbers[0] not in dimensions.no_rows:
            known.setdefault(numbers[0], []).append(name)
    for names in known.values():
        if len(names) > 1:
            tensor = rewrite.tf_graph.get_tensor_by_name(names[0])
            raise PlanError(
                "{} divides batches by rows, and those of {!r} ({}), of shape {}, and {!r} are built into the graph. "
                "Give the placeholders the first dimension None, or {}, with which each device is fed a batch of that "
                "size.".format(
                    divider(rewrite), tensor.name, user_line(tensor.op), tensor.shape, names[1], otherwise(rewrite)
                )
            )


def _refuse_constant_feeds(rewrite: RewriteContext, view: GraphView, forward: Set[int], whole: Container[str]) -> None:
    """Refuses a size of the batch that is built in between placeholders of open rows and the objective.

    All of them have the same number of rows where shape inference does not tell more. An error that does not depend on
    this number says nothing.
    """
    fed = [rewrite.operation(view.nodes[node].name) for node in view.user_placeholders() if node in forward]
    fed = [op for op in fed if has_open_rows(op.outputs[0]) and op.outputs[0].name not in whole]
    cut = {op.name: (0,) for op in fed if op.outputs[0].shape.ndims}
    if _trial_error(rewrite, view, forward, cut, None) is None:
        _refuse_constant_rows(rewrite, view, forward, cut)


def _warn_of_random_data(rewrite: RewriteContext, view: GraphView, forward: Iterable[int]) -> None:
    """Warns once that random numbers of a constant shape are not divided."""
    for node in sorted(set(view.of_types(_RANDOM)).intersection(forward)):
        op = rewrite.operation(view.nodes[node].name)
        shape = tf_compat.static_value(op.inputs[0])
        if shape is not None and shape.size:
            logger.warning(
                "%s divides what is read and fed. %r (%s) makes random numbers of the constant shape %s: each device "
                "has all of these, and its own.", divider(rewrite), op.name, user_line(op), shape.tolist(),
            )  # fmt: skip
            return
