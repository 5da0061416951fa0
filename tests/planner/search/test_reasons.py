"""Why a strategy is as it is: the origin of each decision, and the best candidate that decides it otherwise."""

from epl.planner.search.candidates import PlanCandidate
from epl.planner.search.comparison import Compared, PlanOutcome
from epl.planner.search.reasons import describe_reason, find_reasons, with_origins
from tests.planner.prediction import hand_made

COSTS = hand_made.HandCosts([hand_made.Layer()] * 4)


def _compared(name, seconds, lacks=0.0, begins=(), refusal="", **settings):
    """A candidate of some settings; the script has decided none of them."""
    values = {"zero__level": "", "gradient_checkpoint__type": "", "pipeline__num_micro_batch": 1, **settings}
    made = hand_made.strategy(COSTS, devices=4, **hand_made.stages(COSTS, *begins), **values)
    made = made._replace(settings=tuple(one._replace(origin="default") for one in made.settings))
    outcome = None if refusal else PlanOutcome(seconds, (("gpu 0", lacks),) if lacks else ())
    return Compared(PlanCandidate(name, made), outcome, refusal)


def _reasons(*compared, chosen=0):
    found = find_reasons(compared[chosen].candidate.strategy, compared, compared[chosen])
    return {one.decision: one for one in found}


PLAIN = _compared("plain", 2.0)


def test_runner_up_is_the_fastest_that_fits_and_decides_otherwise():
    found = _reasons(
        PLAIN,
        _compared("v1", 3.0, zero__level="v1"),
        _compared("v0", 2.5, zero__level="v0"),
        _compared("checkpoint", 2.1, gradient_checkpoint__type="auto"),
    )
    zero = found["zero.level"]
    assert (zero.value, zero.runner_up.value, zero.runner_up.candidate) == ("off", '"v0"', "v0")
    assert (zero.runner_up.seconds, zero.runner_up.slower, zero.faster) == (2.5, 0.5, None)
    assert found["gradient_checkpoint.type"].runner_up.candidate == "checkpoint"
    assert 'instead "v0": 2.5 s, 25.0% more (v0)' in describe_reason(zero)


def test_a_faster_plan_that_does_not_fit_is_told_next_to_one_that_fits():
    taken = _compared("v1", 3.0, zero__level="v1")
    zero = _reasons(taken, _compared("plain", 2.0, lacks=5e9), _compared("v0", 3.5, zero__level="v0"))["zero.level"]
    assert zero.runner_up.candidate == "v0"
    assert zero.faster.candidate == "plain" and zero.faster.lacks == (("gpu 0", 5e9),)
    assert "33.3% less, gpu 0 lacks 5 GB" in describe_reason(zero)


def test_without_one_that_fits_it_is_the_one_that_lacks_least_and_then_the_first_refusal():
    taken = _compared("v1", 3.0, zero__level="v1")
    lacking = [_compared("plain", 4.0, lacks=5e9), _compared("v0", 5.0, lacks=1e9, zero__level="v0")]
    assert _reasons(taken, *lacking)["zero.level"].runner_up.candidate == "v0"
    refused = _compared("v0", 0.0, refusal="it is refused", zero__level="v0")
    zero = _reasons(taken, refused)["zero.level"]
    assert zero.runner_up.seconds is None and "not simulated, it is refused" in describe_reason(zero)


def test_what_would_train_on_other_batches_is_no_alternative():
    other = _compared("v1", 3.0, refusal="other batches", zero__level="v1")._replace(has_other_batches=True)
    zero = _reasons(PLAIN, other)["zero.level"]
    assert (zero.origin, zero.runner_up) == ("default", None)


def test_boundaries_are_compared_among_plans_of_as_many_blocks():
    found = _reasons(
        _compared("two", 2.0, begins=(2,)),
        _compared("two others", 2.2, begins=(3,)),
        _compared("three", 2.1, begins=(1, 3)),
        PLAIN._replace(outcome=PlanOutcome(2.3, ())),
    )
    assert found["block boundaries"].runner_up.candidate == "two others"
    assert found["blocks"].value == "2" and found["blocks"].runner_up.candidate == "three"
    assert found["kind of block"].runner_up is None  # all are epl.replicate(1)


def test_origins():
    found = _reasons(PLAIN, _compared("v1", 3.0, zero__level="v1"))
    assert found["zero.level"].origin == "planner"  # it has compared the default with others
    assert found["pipeline.num_micro_batch"].origin == "default"
    assert found["blocks"].origin == "scopes"
    searched = _reasons(PLAIN, _compared("2 stages", 3.0, begins=(2,)))
    assert searched["blocks"].origin == "planner"  # scopes that the planner may change are no decision of the script
    found = find_reasons(PLAIN.candidate.strategy, source="auto.plan_file 'a.json'")
    origins = {one.decision: one.origin for one in found}
    assert origins["blocks"] == "auto.plan_file 'a.json'" and origins["zero.level"] == "default"


def test_a_strategy_says_of_what_it_keeps_whether_it_was_compared():
    compared = [PLAIN, _compared("v1", 3.0, zero__level="v1")]
    origins = {one.key: one.origin for one in with_origins(PLAIN, compared).settings}
    assert origins["zero.level"] == "planner" and set(origins.values()) == {"planner", "default"}
    assert with_origins(PLAIN, compared).blocks_origin == "scopes"
    assert with_origins(PLAIN, [PLAIN, _compared("2 stages", 3.0, begins=(2,))]).blocks_origin == "planner"
