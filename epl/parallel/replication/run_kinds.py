"""Collectives that tell apart workers whose runs are of different kinds, before either waits in vain.

    worker 0 has assigned a value:  "values of the variables" --.
                                                                +-- one communicator: the ranks disagree, both fail
    worker 1 trains:                the gate of the step ------'

A training step begins with the gates of its gradients. What runs without gradients and needs all workers has
collectives in other communicators: where one worker does it alone, each would wait where the other never comes, up to
`communication.timeout`. So it comes to the communicators of the gates first.
"""

import tensorflow.compat.v1 as tf

from epl.parallel.plan.communicators import gate_communicator
from epl.parallel.rewriting.context import RewriteContext
from epl.parallel.rewriting.pass_manager import Pass, names
from epl.parallel.rewriting.verifier import ALONE_ATTR
from epl.utils import tf_compat

# Messages contain these keys.
VARIABLES = "values of the variables (first training step of a session, or after an initializer, restore or assignment)"
OUTPUTS = "values of all workers without a training step (an evaluation)"


def run(rewrite: RewriteContext) -> None:
    """Adds a collective of each kind beside each gate; fills `rewrite.run_kinds`."""
    if len(set(rewrite.plan.owners)) == 1:
        return
    for name, stage in {gate_communicator(rewrite.plan, group): group.stage for group, _ in rewrite.new_groups}.items():
        communicator = rewrite.communicator(name, stage)
        for kind in (VARIABLES, OUTPUTS):
            for copy in range(rewrite.local_replicas):
                with rewrite.building("run_kinds", stage), tf.device(rewrite.device(stage, copy)):
                    op = communicator.all_reduce(tf.zeros([], tf.float64), rewrite.base_rank + copy, kind).op
                tf_compat.set_attr(op, ALONE_ATTR, tf.AttrValue(b=True))
                rewrite.run_kinds.setdefault(kind, []).append(op.name)


PASS = Pass(
    "tell_run_kinds",
    run,
    "replicas",
    provides=names("run_kinds"),
    after=names("clone_replicas"),
)
