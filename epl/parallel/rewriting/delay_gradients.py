"""Lets gradients wait for late reads of their variable, so that the reads come before the update.

    gradient --> boundary      =>      gradient --> boundary                  Exit --> identity --> boundary
                                           ^ late readers                                 ^ late readers

An Exit belongs to its loop while it runs and cannot wait for ops outside: an identity after it waits instead.
"""

from typing import Mapping, Sequence

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.clone import SAME, clone_nodes
from epl.ir.dataflow import data_inputs
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR
from epl.ir.view import GraphView
from epl.parallel.rewriting.context import RewriteContext
from epl.utils import tf_compat


def delay_gradients(rewrite: RewriteContext, view: GraphView, late: Mapping[int, Sequence[str]], scope: str) -> None:
    """Adds the waits.

    Args:
      rewrite: the rewriting.
      view: view of the graph; it is not updated.
      late: node that computes a gradient -> names of the ops that it waits for, which may be newer than the view.
      scope: name scope of the identities.
    """
    left = []
    for node, names in sorted(late.items()):
        if view.types[node] in op_types.EXITS:
            left.append((node, _identity(view, node, names, scope)))
        else:
            op = rewrite.remember(rewrite.operation(view.nodes[node].name))
            tf_compat.add_control_inputs(op, [rewrite.operation(name) for name in names])
    clone_nodes(rewrite.tf_graph, view, [], [], lambda copy, node: SAME, [identity for _, identity in left])
    for node, identity in left:
        waiting = rewrite.operation(identity.name).outputs[0]
        for taker in set(view.consumers()[node]):
            for position, (producer, _) in enumerate(data_inputs(view, taker)):
                if producer == node:
                    op = rewrite.remember(rewrite.operation(view.nodes[taker].name))
                    tf_compat.set_input(op, position, waiting)


def _identity(view: GraphView, node: int, names: Sequence[str], scope: str) -> tf.NodeDef:
    of = view.nodes[node]
    identity = tf.NodeDef(name=f"{scope}/late/{of.name}", op="Identity")
    identity.input.extend([of.name] + ["^" + name for name in names])
    for name in ("T", TASKGRAPH_ATTR, PHASE_ATTR):
        if name in of.attr:
            identity.attr[name].CopyFrom(of.attr[name])
    return identity
