"""The planner and `zero.level` decide alike: which variables are cut, which gradients are reduced to shards."""

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epl.ir.graph import Graph
from epl.parallel.plan import plan as plans
from epl.parallel.plan.sections import ZeroSection
from epl.parallel.strategy import record
from epl.planner.prediction.prediction import prepare
from epl.planner.search.planned_model import planned_model
from tests.parallel.in_process import init, rewritten  # noqa: F401

SIZES = st.one_of(st.integers(1, 5), st.sampled_from([7, 16, 64]))
SHAPES = st.lists(st.lists(SIZES, max_size=3), min_size=1, max_size=6)
TABLES = st.lists(st.tuples(SIZES, SIZES), max_size=2)


def _loss(shapes, tables, resource):
    """A product of means of all variables and of rows of tables."""
    x = tf.placeholder(tf.float32, [None, 4], "x")
    ids = tf.cast(x[:, 0], tf.int32)
    loss = tf.reduce_mean(x)
    for number, shape in enumerate(shapes):
        loss *= tf.reduce_mean(tf.get_variable(f"v{number}", shape, use_resource=resource) * tf.reduce_sum(x))
    for number, shape in enumerate(tables):
        table = tf.get_variable(f"table{number}", shape, use_resource=resource)
        loss *= tf.reduce_mean(tf.nn.embedding_lookup(table, ids))
    return loss


def _decided(shapes, tables, resource):
    """The names of the variables that are cut, and which buckets are reduced to shards: by the plan, by the planner."""
    with record.recording():
        tf.train.GradientDescentOptimizer(0.1).minimize(_loss(shapes, tables, resource))
        plan = rewritten().plan
    graph = Graph.get()
    found = graph.state_of(record.ForwardPass)
    model = planned_model(graph, found)
    step = prepare(model.strategy, model.costs, model.machine, model.rows)
    variables = step.plans.stages[0][0].variables
    cut = {found.ops[one.op].name for one in variables if one.in_parts}
    section = plans.section(plan, ZeroSection)
    by_plan = set() if section is None else {one.variable for one in section.variables if one.sizes}
    scattered = [
        sorted(one.collective == "reduce-scatter" for one in step.plans.cuts[0].buckets),
        sorted(one.scattered for group in plan.groups for one in group.transfers),
    ]
    return by_plan, cut, scattered


@settings(
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each call of `init` begins a new graph
)
@given(SHAPES, TABLES, st.integers(2, 4), st.booleans())
def test_the_variables_that_are_cut(init, shapes, tables, ranks, resource):  # noqa: F811
    init(ranks, zero__level="v1", auto__machine=f"{ranks}*v100-16")
    by_plan, by_planner, _ = _decided(shapes, tables, resource)
    assert by_planner == by_plan


@pytest.mark.parametrize("level", ["v0", "v1", "v2"])
@pytest.mark.parametrize("clips", [False, True])
def test_the_gradients_that_are_reduced_to_shards(init, level, clips):  # noqa: F811
    init(2, zero__level=level, communication__clip_after_allreduce=clips, auto__machine="2*v100-16")
    by_plan, by_planner, (planned, predicted) = _decided([(8, 16), (4, 4)], [], False)
    assert by_planner == by_plan == {"v0", "v1"}
    assert predicted == planned and any(planned) == (level != "v0" and not clips)
