"""Refuses variables of an `epl.split` that is opened after the first tf.gradients, which shards earlier variables."""

from typing import Container

import tensorflow.compat.v1 as tf

from epl.ir.colocation import phase_of
from epl.ir.graph import Graph
from epl.parallel.plan.unequal_scopes import split_taskgraphs
from epl.utils import tf_compat
from epl.utils.errors import PlanError
from epl.utils.source_line import user_line

_KEYS = (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.TRAINABLE_VARIABLES)


def refuse_late_variables(graph: Graph, lowered_through: int, held: Container[str], ranks: int) -> None:
    """Raises PlanError for a variable in a split TaskGraph that was made after the splits were lowered.

    Args:
      graph: the annotated model.
      lowered_through: creation number of the last op that existed when its splits were lowered.
      held: names of the ops of the variables that are shards.
      ranks: devices in a group.
    """
    split = {taskgraph.index: taskgraph.strategy for taskgraph in split_taskgraphs(graph)}
    for variable in [one for key in _KEYS for one in graph.tf_graph.get_collection(key)]:
        op = variable.op
        if tf_compat.op_id(op) <= lowered_through or op.name in held or phase_of(op) or variable.shape.ndims == 0:
            continue
        scope = graph.scope_of(op)
        if scope is not None and scope.index in split:
            raise PlanError(
                "{!r} ({}) is made in {}, after the tf.gradients that has lowered the splits of the model: it would "
                "stay whole on each of the {} devices. Open all scopes of epl.split that have variables before the "
                "first tf.gradients or minimize, or leave this one out.".format(
                    op.name, user_line(op), split[scope.index], ranks
                )
            )
