"""`gradient_checkpoint.check_gradients`: a copy of the backward pass stays without recomputation, for comparison.

    f1 --> f2 --> ...            gradient --+
    |      |                                +--> largest difference / largest value
    b1'<-- b2'<-- ...  EPL_CHECK/gradient --+

The comparison runs only in the first step of a session; `check_run.py` fetches it. Gradients that come through a loop
are not compared: the backward loop pops the values that the forward loop pushed on stacks, and can do so only once.
"""

import logging
from typing import Dict, FrozenSet, List, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir.clone import Edit, clone_nodes
from epl.ir.control_flow import depths_of
from epl.ir.dataflow import batch_nodes, data_inputs, shown_variables, viewed_variables
from epl.ir.gradient_boundary import variables_by_gradient
from epl.ir.view import GraphView
from epl.parallel.plan.stages import stage_of_op
from epl.parallel.recompute.segments import BackwardPass, Segment
from epl.parallel.rewriting.context import GradientCheck, RewriteContext
from epl.utils import tf_compat

logger = logging.getLogger("epl")

PREFIX = "EPL_CHECK/"
_FIRST_NAMES = 5  # of a long list in a message


def keep_plain(
    rewrite: RewriteContext, view: GraphView, backward: BackwardPass, segments: Sequence[Segment], ends: Set[int]
) -> List[GradientCheck]:
    """Clones the backward pass before it is changed, and adds the comparisons.

    Args:
      rewrite: the rewriting.
      view: the graph before recomputation.
      backward: the backward pass, with its forward pass.
      segments: the segments that will be recomputed.
      ends: the nodes that pass gradients on.
    """
    changed = view.descendants([use.consumer for segment in segments for use in segment.uses]) & backward.nodes
    once = _only_once(rewrite.tf_graph, view, changed)
    clonable = changed - view.descendants(once)
    prefix = PREFIX[:-1] + (f"_{len(rewrite.gradient_checks)}/" if rewrite.gradient_checks else "/")
    plain = Edit(None, None)
    clone_nodes(rewrite.tf_graph, view, clonable, [prefix], lambda copy, node: plain)
    copies = _copy_variables(rewrite, view, clonable, prefix)
    variables = variables_by_gradient(rewrite.graph)
    checks, left_out = [], []
    for end in sorted(ends):
        for producer, output in data_inputs(view, end):
            name = f"{view.nodes[producer].name}:{output}"
            if producer in clonable:
                checks.append(_compare(rewrite, variables.get(name, name), name, prefix, copies))
            elif producer in changed:
                left_out.append(variables.get(name, name))
    if left_out:
        logger.warning(
            "gradient_checkpoint.check_gradients does not compare %d gradient(s) (%s%s): they come through a loop or "
            "an op with state, which cannot run twice.",
            len(left_out),
            ", ".join(left_out[:_FIRST_NAMES]),
            ", ..." if left_out[_FIRST_NAMES:] else "",
        )
    return checks


def _copy_variables(rewrite: RewriteContext, view: GraphView, clonable: Set[int], prefix: str) -> FrozenSet[str]:
    """Connects the clones to copies of variables, which are fed: no optimizer waits for clones. Returns their names."""
    shown = shown_variables(view)
    stateful = {op_type for op_type in set(view.types) if tf_compat.is_stateful(rewrite.tf_graph, op_type)}
    # A value that depends on the data of the step cannot be read before it.
    viewed = viewed_variables(view).keys() - view.descendants(batch_nodes(view, stateful))
    copies: Dict[str, tf.Tensor] = {}
    for node in sorted(clonable):
        for position, (producer, output) in enumerate(data_inputs(view, node)):
            if producer not in viewed or producer in clonable:
                continue
            name = f"{view.nodes[producer if output else shown.get(producer, producer)].name}:{output}"
            if name not in copies:
                source = rewrite.tf_graph.get_tensor_by_name(name)
                with rewrite.building("check_gradients", stage_of_op(source.op, rewrite.plan.stages)):
                    copies[name] = tf.raw_ops.DeepCopy(x=source)
            tf_compat.set_input(rewrite.operation(prefix + view.nodes[node].name), position, copies[name])
    return frozenset(copy.name for copy in copies.values())


def _only_once(tf_graph: tf.Graph, view: GraphView, nodes: Set[int]) -> Set[int]:
    stateful = {op_type for op_type in {view.types[node] for node in nodes} if tf_compat.is_stateful(tf_graph, op_type)}
    depths = depths_of(view)
    return {node for node in nodes if depths[node][0] > 0 or view.types[node] in stateful}


def _compare(rewrite: RewriteContext, variable: str, name: str, prefix: str, copies: FrozenSet[str]) -> GradientCheck:
    gradient = rewrite.tf_graph.get_tensor_by_name(name)
    expected = rewrite.tf_graph.get_tensor_by_name(prefix + name)
    with rewrite.building("check_gradients", stage_of_op(gradient.op, rewrite.plan.stages)):
        difference = _difference(gradient, expected)
    return GradientCheck(variable, gradient.op.name, difference.name, copies)


def _difference(seen: tf.Tensor, expected: tf.Tensor) -> tf.Tensor:
    """The largest difference relative to the largest value; infinite where only one of the two is NaN."""
    if not seen.dtype.is_floating:  # the rows of a sparse gradient
        return tf.cast(tf.reduce_any(tf.not_equal(seen, expected)), tf.float64)
    seen, expected = tf.cast(seen, tf.float64), tf.cast(expected, tf.float64)
    same = tf.equal(seen, expected) | (tf.is_nan(seen) & tf.is_nan(expected))
    zero = tf.zeros_like(expected)
    select = tf.raw_ops.Select
    largest = tf.reduce_max(select(condition=tf.is_finite(expected), x=tf.abs(expected), y=zero))
    apart = tf.abs(seen - expected)
    apart = select(condition=tf.is_nan(apart), x=zero + float("inf"), y=apart)
    apart = tf.reduce_max(select(condition=same, x=zero, y=apart))  # reduce_max ignores NaN
    return select(condition=tf.equal(apart, 0), x=apart, y=apart / largest)
