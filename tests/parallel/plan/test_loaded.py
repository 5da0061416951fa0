"""A plan that was written replaces the search, in another process too; a model that does not fit it is refused."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph
from epl.parallel import transformation
from epl.parallel.plan import plan as plans
from epl.parallel.plan.loaded import use_plan
from epl.parallel.plan.sections import SplitSection, ZeroSection
from tests.parallel.in_process import error_text
from tests.parallel.plan.planned_models import CASES, Layers, begin, no_search
from tests.parity.launching import ROOT, environment

JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jobs", "train_from_plan.py")


def planned():
    transformation.transform()
    return Graph.get().rewritten.plan


@pytest.mark.timeout(180)
def test_another_process_trains_alike_from_the_plan(init, tmp_path):
    trained = {}
    for case in CASES:
        begin(case)
        trained[case] = Layers(case).train()
        (tmp_path / (case + ".json")).write_text(plans.to_json(planned()), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, JOB, str(tmp_path)], env=environment(PYTHONPATH=ROOT), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, universal_newlines=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for case, values in trained.items():
        with np.load(str(tmp_path / (case + ".npz"))) as other:
            for at, value in enumerate(values):
                np.testing.assert_array_equal(other[f"arr_{at}"], value, case)


MISFITS = {
    "split": "The model does not fit the plan that it is to be built from: 'matmul0' cannot be computed as ",
    "zero": "from: the variable 'kernel0' of the shape [16, 16] lies on 2 ranks, and the plan cuts dimension 0 into "
            "[128, 128]",
    "recompute": "may not be recomputed",
    "pipeline": "from: the objective does not need ",
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_a_model_that_does_not_fit_is_refused(init, case):
    begin(case)
    Layers(case)
    plan = planned()

    def build():
        begin(case)
        Layers(case, **({"width": 16} if case in ("split", "zero") else {"layers": 2}))
        planned()

    with use_plan(plan):
        assert MISFITS[case] in error_text(build)


def test_a_plan_without_the_section_is_refused(init):
    begin("zero")
    Layers("zero")
    plan = planned()._replace(features=())
    begin("zero")
    with use_plan(plan):
        text = error_text(Layers, "zero")
    assert "the model has what a ZeroSection decides, and the plan has no such section" in text


def test_what_differs_beside_decisions_is_refused_too(init):
    begin("zero")
    Layers("zero")
    plan = planned()._replace(reduce_method="sum")
    begin("zero")
    with use_plan(plan):
        Layers("zero")
        text = error_text(planned)
    assert "plan.reduce_method is 'mean' here and 'sum' there (here: the model as it is built; there: the plan)" in text


def test_another_decision_than_the_searchs_is_followed(init):
    begin("zero")
    expected = Layers("zero").train()
    plan = planned()
    zero = plans.section(plan, ZeroSection)
    one = next(one for one in zero.variables if one.variable == "kernel0")
    other = one._replace(sizes=(64, 192))
    variables = tuple(other if variable is one else variable for variable in zero.variables)
    with no_search(), use_plan(plan._replace(features=(zero._replace(variables=variables),))):
        begin("zero")
        values = Layers("zero").train()
    assert other in plans.section(Graph.get().rewritten.plan, ZeroSection).variables
    for value, one in zip(values, expected):
        np.testing.assert_allclose(value, one, rtol=1e-5, atol=1e-6)


def test_the_plan_of_a_split_has_its_choices_and_variables(init):
    begin("split")
    Layers("split")
    split = plans.section(planned(), SplitSection)
    assert split.groups == ((0, 1),)
    assert {choice.op for choice in split.ops} >= {f"matmul{layer}" for layer in range(4)}
    kernels = [one for one in split.variables if one.variable.startswith("kernel")]
    assert [(one.bytes, sum(one.sizes)) for one in kernels] == [(256 * 256 * 4, 256)] * 4


@pytest.mark.parametrize("case", list(CASES))
def test_processes_do_not_compare_names_of_ops(init, case):
    """A summary that one worker alone builds before the model shifts them."""
    begin(case)
    Layers(case)
    mine = planned()
    begin(case)
    for layer in range(4):
        tf.no_op(name=f"matmul{layer}")
    Layers(case)
    other = plans.renamed(planned(), mine.name)
    assert case in ("zero", "pipeline") or mine.features != other.features
    assert plans.first_difference(plans.compared(mine), plans.compared(other)) is None


def test_two_optimizers_of_one_loss_are_recomputed_as_planned(init):
    def build():
        begin("recompute")
        model = Layers("recompute", layers=8)
        variables = tf.trainable_variables()
        tf.train.GradientDescentOptimizer(0.1).minimize(model.loss, var_list=variables[:8])
        return planned()

    plan = build()
    with use_plan(plan):
        assert plans.first_difference(plans.renamed(build(), plan.name), plan) is None
