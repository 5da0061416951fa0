"""Collectives that a run leaves out which feeds `by_hand`: a write by hand, or a run that only shows values.

          .--> collective --.
value --> switch            merge --> result
  by_hand ^ '---------------'
"""

from typing import Callable, List, Tuple

import tensorflow.compat.v1 as tf

from epl.ops.op_types import COLLECTIVE_OP_TYPES
from epl.parallel.rewriting.context import RewriteContext
from epl.utils import tf_compat


def unless_by_hand(
    rewrite: RewriteContext, value: tf.Tensor, build: Callable[[tf.Tensor], tf.Tensor]
) -> Tuple[tf.Tensor, List[tf.Operation]]:
    """What collectives make of a value; in a run by hand, the value itself.

    Args:
      rewrite: learns of the collectives.
      value: of replica 0.
      build: adds the collectives, which take what it is given.

    Returns:
      The result, of unknown shape; the collectives.
    """
    by_hand = rewrite.switch_by_hand()
    before = tf_compat.last_op_id(rewrite.tf_graph)
    sent, known = tf.raw_ops.Switch(data=value, pred=by_hand)
    result = tf.raw_ops.Merge(inputs=[build(sent), known]).output
    made = [op for op in tf_compat.ops_since(rewrite.tf_graph, before) if op.type in COLLECTIVE_OP_TYPES]
    names = {op.name for op in made}
    rewrite.of_all_rows |= names
    rewrite.collectives |= names
    return result, made
