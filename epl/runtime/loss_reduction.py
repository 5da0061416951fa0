"""A loss that is a sum over the rows of a batch: the mean over the replicas does not give what one device gives."""

import logging
from typing import Any

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan.unequal_scopes import split_taskgraphs

logger = logging.getLogger("epl")


def say_who_divides(graph: Graph, ys: Any) -> None:
    """Warns once if a loss of `tf.losses` with Reduction.SUM, as canned Estimators have it, is trained by the mean.

    Args:
      graph: of the model; the cluster knows its virtual devices.
      ys: what is differentiated.
    """
    env = Env.get()
    assert env.cluster is not None
    devices = env.cluster.virtual_devices
    replicas = len(devices[0].all_devices) if devices else 1  # those of epl.replicate(n) have a part of a batch each
    is_split = bool(split_taskgraphs(graph))
    if replicas == 1 or is_split or env.config.communication.gradients_reduce_method != "mean":
        return
    losses = graph.tf_graph.get_collection_ref(tf.GraphKeys.LOSSES)
    for loss in ys if isinstance(ys, (list, tuple)) else [ys]:
        is_sum = isinstance(loss, tf.Tensor) and loss.op.type == "Sum" and any(one is loss for one in losses)
        if is_sum and env.says_first("sum of losses"):
            logger.warning(
                "The loss %r is a sum over the rows of a batch (Reduction.SUM, the default of canned Estimators), and "
                "gradients are the mean over %d devices: they are %d times smaller than on one device with all the "
                'rows. Set communication.gradients_reduce_method to "sum" for the same, or choose '
                "loss_reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE. This is said once.",
                loss.name, replicas, replicas,
            )  # fmt: skip
