"""Which tensors hold a batch that the devices of one replica divide: the decision for `epl.replicate(n)`, n > 1.

A data source (an iterator, a queue) is read once for the n devices of a process, and each of them gets its rows.
Outputs whose first dimension is open are cut; scalars, and tensors of `epl.keep_whole`, go to all devices in full.
`epl.runtime.feeds` cuts feeds, as with `epl.replicate(1)`.

A batch whose size is a constant of the graph cannot be divided: it is refused by name and line. To find out,
TensorFlow's shape inference runs on a copy of the model with batches of another size.
"""

import logging
import re
from typing import Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.dataflow import has_open_rows
from epl.ir.gradient_boundary import boundary_nodes
from epl.ir.view import GraphView
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
_FAILED_OP = re.compile(r"(?:for|[Nn]ode) '([^']+)'")


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
    if not rewrite.plan.batch_parts:
        return ()
    view = GraphView(rewrite.tf_graph)
    divisions = tuple(_divide(rewrite, op) for op in _sources(rewrite, view))
    objectives = [view.index[y.op.name] for call in rewrite.graph.gradient_calls for y in call.ys]
    forward = view.ancestors(objectives)
    _refuse_constant_rows(rewrite, view, forward, divisions)
    _refuse_known_placeholders(rewrite, view)
    _warn_of_random_data(rewrite, view, forward)
    return divisions


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
            "another.".format(_strategy(rewrite), source.name, user_line(source))
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
                    _strategy(rewrite),
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
            "{} divides batches by rows, and what {!r} ({}) reads has no rows: {}. Let it read batches, or write "
            "epl.replicate(1), with which each device reads data of its own.".format(
                _strategy(rewrite),
                source.name,
                user_line(source),
                ", ".join(f"{t.name!r} of shape {t.shape}" for t in outputs),
            )
        )
    raise PlanError(
        "{} divides batches by rows, and the rows of {!r} ({}), of shape {}, are built into the graph. Leave the first "
        "dimension open: Dataset.batch without drop_remainder, tf.train.batch with allow_smaller_final_batch=True; or "
        "write epl.replicate(1), with which each device reads a batch of that size.".format(
            _strategy(rewrite), known.name, user_line(source), known.shape
        )
    )


def _strategy(rewrite: RewriteContext) -> str:
    return rewrite.plan.stages[0].strategy


def _refuse_constant_rows(
    rewrite: RewriteContext, view: GraphView, forward: Set[int], divisions: Sequence[BatchDivision]
) -> None:
    """Raises PlanError if the forward pass accepts batches of one size only."""
    cut = {division.source: division for division in divisions if division.dense}
    if not cut:
        return
    batches = {
        rewrite.operation(name).outputs[position].name for name, one in cut.items() for position in one.dense
    }  # fmt: skip
    reads = view.descendants([view.index[name] for name in cut])
    graph_def = tf.GraphDef(versions=view.graph_def.versions, library=view.graph_def.library)
    names: Dict[str, str] = {}
    for node in sorted(forward):
        op = rewrite.operation(view.nodes[node].name)
        if op.name in cut:
            continue
        _add_to_trial(graph_def, op, cut, batches, names)
    try:
        tf_compat.import_nodes(tf.Graph(), graph_def.SerializeToString(), [n.name for n in graph_def.node], [], [])
    except ValueError as error:
        found = _FAILED_OP.search(str(error))
        failed = found.group(1) if found else ""
        refused = rewrite.operation(failed) if failed in view.index and view.index[failed] in reads else None
        raise PlanError(
            "{} divides the batches of {} among devices, and the model counts on batches of one size: {}{}. Compute "
            "sizes from the batch (tf.shape(x)[0], -1 in tf.reshape), or write epl.replicate(1), with which each "
            "device reads a batch of the script's own size.".format(
                _strategy(rewrite),
                ", ".join(repr(name) for name in cut),
                "" if refused is None else f"{refused.name!r} ({user_line(refused)}) ",
                f"does not take {_TRIAL_ROWS} rows: {error}",
            )
        ) from None


def _add_to_trial(
    graph_def: tf.GraphDef, op: tf.Operation, cut: Dict[str, BatchDivision], batches: Set[str], names: Dict[str, str]
) -> None:
    """Adds an op, with placeholders of `_TRIAL_ROWS` rows in place of the batches that it reads."""
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
                shape = tf.TensorShape([_TRIAL_ROWS]).concatenate(shape[1:])
            node.attr["shape"].shape.CopyFrom(shape.as_proto())
        copy.input.append(names[tensor.name])


def _refuse_known_placeholders(rewrite: RewriteContext, view: GraphView) -> None:
    """Raises PlanError for placeholders that share a number of rows that is a constant of the graph."""
    objectives = [y.name for call in rewrite.graph.gradient_calls for y in call.ys]
    dimensions = find_dimensions(rewrite.tf_graph, view, objectives)
    if dimensions is None:
        return
    whole = {tensor.name for tensor in rewrite.graph.whole_inputs}
    known: Dict[int, List[str]] = {}
    for name, numbers in dimensions.sizes.items():
        if numbers and name not in dimensions.open and name not in whole and numbers[0] not in dimensions.no_rows:
            known.setdefault(numbers[0], []).append(name)
    for names in known.values():
        if len(names) > 1:
            tensor = rewrite.tf_graph.get_tensor_by_name(names[0])
            raise PlanError(
                "{} divides batches by rows, and those of {!r} ({}), of shape {}, and {!r} are built into the graph. "
                "Give the placeholders the first dimension None, or write epl.replicate(1), with which each device is "
                "fed a batch of that size.".format(
                    _strategy(rewrite), tensor.name, user_line(tensor.op), tensor.shape, names[1]
                )
            )


def _warn_of_random_data(rewrite: RewriteContext, view: GraphView, forward: Iterable[int]) -> None:
    """Warns once that random numbers of a constant shape are not divided."""
    for node in sorted(set(view.of_types(_RANDOM)).intersection(forward)):
        op = rewrite.operation(view.nodes[node].name)
        shape = tf.get_static_value(op.inputs[0])
        if shape is not None and shape.size:
            logger.warning(
                "%s divides what is read and fed. %r (%s) makes random numbers of the constant shape %s: each device "
                "has all of these, and its own.", _strategy(rewrite), op.name, user_line(op), shape.tolist(),
            )  # fmt: skip
            return
