"""What an op of a traced step is for: against what the plan says, and against the actions of the schedule."""

import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.plan.schedule import BACKWARD
from epl.profiler import actions, step_stats
from epl.profiler.roles import Role, RoleKind, Roles
from tests.parallel.in_process import Linear
from tests.parallel.pipelines import Chain, begin, rewritten, stage


def roles_of_a_step(fetch, feed):
    """Op -> role, of all that runs in the second step."""
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(fetch, feed)
        ran = step_stats.trace(sess, fetch, feed)
        roles = Roles(sess.graph)
    return {execution.op: roles.of(execution.op, execution.device, execution.op_type) for execution in ran}


@pytest.fixture(scope="module")
def once():
    """What is made once for all tests."""
    return {}


@pytest.fixture
def pipeline(init, once):
    """A pipeline of two stages, two micro batches and two replicas: the RewriteContext, actions, roles."""
    if not once:
        begin(init, 2, 4, gradient_checkpoint__type="collection")
        model = Chain(3, stage=StagesOfTwo())
        tf.add_to_collection("checkpoints", model.hidden[2])
        train_op = model.minimize()
        rewrite = rewritten()
        once["parts"] = rewrite, actions.of_ops(rewrite), roles_of_a_step(train_op, model.feed(8))
    return once["parts"]


class StagesOfTwo:
    """The first two layers share a stage."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls != 2:
            self.last = stage()
        return self.last


def test_actions_of_the_schedule_have_their_stage_micro_batch_and_pass(pipeline):
    _, action_of, roles = pipeline
    checked = set()
    for op, action in action_of.items():
        if op in roles:
            role = roles[op]
            assert (role.stage, role.micro_batch) == (action.stage, action.micro_batch), op
            assert role.kind == (RoleKind.BACKWARD if action.kind == BACKWARD else RoleKind.FORWARD), op
            checked.add((role.replica, action))
    assert len(checked) == 2 * 2 * 2 * 2  # replicas, stages, micro batches, passes


def test_what_is_recomputed_and_what_the_plan_adds_is_told_apart(pipeline):
    rewrite, _, roles = pipeline
    copies = {copy for names in rewrite.recomputed.values() for copy in names}
    recomputed = {op for op, role in roles.items() if role.kind == RoleKind.RECOMPUTE}
    assert recomputed and {op.split("EPL_RECOMPUTE")[1] for op in recomputed} <= {
        copy.split("EPL_RECOMPUTE")[1] for copy in copies
    }
    assert {role.micro_batch for op, role in roles.items() if op in recomputed} == {0, 1}
    added = [role for op, role in roles.items() if "/EPL_PLAN/" in "/" + op and role.kind != RoleKind.COLLECTIVE]
    assert added and {role.kind for role in added} == {RoleKind.PLAN}
    assert {role.replica for role in added} == {0, 1}


def test_collectives_have_their_communicator_and_updates_their_stage(pipeline):
    rewrite, _, roles = pipeline
    transfers = {transfer.communicator for group in rewrite.plan.groups for transfer in group.transfers}
    found = {role.communicator for role in roles.values() if role.kind == RoleKind.COLLECTIVE}
    assert found == transfers
    updates = {(role.replica, role.stage) for op, role in roles.items() if "ApplyGradientDescent" in op}
    assert updates == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_replicas_of_one_stage(init):
    init(2)
    model = Linear()
    roles = roles_of_a_step(model.minimize(), model.feed())
    assert roles["EPL_REPLICA_1/out"] == Role(RoleKind.FORWARD, 1, None, None, "")
    assert roles["gradients/out_grad/MatMul_1"] == Role(RoleKind.BACKWARD, 0, None, None, "")
    assert [role.kind for op, role in roles.items() if op.endswith("ApplyGradientDescent")] == [RoleKind.UPDATE] * 2


def test_a_graph_that_epl_does_not_know_has_no_passes(init):
    init(2, annotate=False)
    model = Linear()
    roles = roles_of_a_step(model.minimize(), model.feed())
    assert set(roles.values()) == {Role(RoleKind.OTHER, 0, None, None, "")}
