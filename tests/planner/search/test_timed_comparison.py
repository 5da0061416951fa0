"""Which candidates are simulated, and in which order, when time is short; and how it is estimated what is promising."""

from types import SimpleNamespace

import pytest

from epl.planner.machine.collective_costs import CollectiveCosts
from epl.planner.search import search_time
from epl.planner.search.candidate_estimate import CandidateEstimate
from epl.planner.search.candidates import PlanCandidate
from epl.planner.search.comparison import PlanOutcome, best
from epl.planner.search.search_time import SearchTime
from epl.planner.search.timed_comparison import TimedComparison
from epl.utils.errors import PlanError
from tests.planner.prediction.hand_made import HandCosts, Layer, machine, stages, strategy

COSTS = HandCosts([Layer(1e-3, 2e-3, weight=1000, output=1e3, kept=True)] * 4)
# Number of stages, and about how long a step takes.
PLANS = [(1, 9.0), (1, 8.0), (2, 7.0), (2, 3.0), (2, 5.0), (4, 6.0), (4, 4.0)]


class Simulated:
    """Candidates with known steps; it notes the order in which they are simulated."""

    def __init__(self, others=(), at_interrupt=None):
        begins = {1: (), 2: (2,), 4: (1, 2, 3)}
        self.order, self.others, self.at_interrupt = [], others, at_interrupt
        self.strategies = [
            strategy(COSTS, devices=4, zero__level=f"v{number}", **stages(COSTS, *begins[count]))
            for number, (count, _) in enumerate(PLANS)
        ]
        candidates = [PlanCandidate(str(number), one) for number, one in enumerate(self.strategies)]
        self.found = TimedComparison(candidates, self.simulate, self.refuse, self.estimate)

    def refuse(self, one):
        if self.strategies.index(one) in self.others:
            raise PlanError("other batches")

    def estimate(self, one):
        return False, PLANS[self.strategies.index(one)][1]

    def simulate(self, one):
        self.refuse(one)
        number = self.strategies.index(one)
        self.order.append(number)
        if number == self.at_interrupt:
            raise KeyboardInterrupt
        return PlanOutcome(PLANS[number][1], ())


def test_always_there_are_plans_of_one_block_and_the_most_promising_of_each_number_of_stages():
    simulated = Simulated()
    simulated.found.simulate_always(SearchTime(0.0))
    assert sorted(simulated.order) == [0, 1, 3, 6]
    simulated.found.simulate_others(SearchTime(0.0))
    found = simulated.found.compared("no time")
    assert [one.candidate.name for one in found] == [str(number) for number in range(len(PLANS))]
    assert [one.refusal for one in found if one.outcome is None] == ["not simulated: no time"] * 3
    assert simulated.found.left == 3 and best(found).candidate.name == "3"


def test_others_come_in_the_order_of_their_promise_and_none_twice():
    simulated = Simulated()
    simulated.found.simulate_always(SearchTime(0.0))
    simulated.found.simulate_others(SearchTime(None))
    assert simulated.order[4:] == [4, 5, 2] and len(set(simulated.order)) == len(PLANS)
    simulated.found.simulate_others(SearchTime(None))
    assert len(simulated.order) == len(PLANS) and simulated.found.left == 0


def test_none_begins_that_may_end_too_late(monkeypatch):
    simulated = Simulated()
    simulated.found.simulate_always(SearchTime(0.0))
    now = [0.0]
    monkeypatch.setattr(search_time, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ends, simulate = SearchTime(10.0), simulated.found._simulate

    def four_seconds(one):
        now[0] += 4.0
        return simulate(one)

    simulated.found._simulate = four_seconds
    simulated.found.simulate_others(ends)
    assert simulated.order[4:] == [4, 5] and now == [8.0]


def test_what_is_refused_takes_no_time_and_another_one_stands_for_its_stages():
    simulated = Simulated(others=(3, 6))
    simulated.found.simulate_always(SearchTime(0.0))
    assert sorted(simulated.order) == [0, 1, 4, 5]
    assert [one.refusal for one in simulated.found.compared("")][3] == "other batches"


def test_ctrl_c_ends_the_search_with_the_best_so_far():
    simulated = Simulated(at_interrupt=5)
    simulated.found.simulate_always(SearchTime(0.0))
    endless = SearchTime(None, may_stop=True)
    simulated.found.simulate_others(endless)
    assert endless.is_over() and endless.left() == 0.0 and simulated.found.left == 2
    assert endless.in_words() == "Ctrl-C ended the search"
    assert best(simulated.found.compared("")).candidate.name == "3"
    with pytest.raises(KeyboardInterrupt):
        Simulated(at_interrupt=5).found.simulate_others(SearchTime(None))


def test_ctrl_c_ends_what_is_always_there_once_one_plan_is_known():
    simulated, endless = Simulated(at_interrupt=3), SearchTime(None, may_stop=True)
    simulated.found.simulate_always(endless)
    assert simulated.order == [0, 3] and endless.interrupted
    simulated.found.simulate_others(endless)
    assert simulated.order == [0, 3] and best(simulated.found.compared("")).candidate.name == "0"
    with pytest.raises(KeyboardInterrupt):
        Simulated(at_interrupt=0).found.simulate_always(endless)
    with pytest.raises(KeyboardInterrupt):
        Simulated(at_interrupt=3).found.simulate_always(SearchTime(None))


def test_the_time_of_a_search_has_parts():
    assert SearchTime(1000.0).left(0.5) == pytest.approx(500.0, abs=60.0) and not SearchTime(1000.0).is_over(0.5)
    assert SearchTime(0.0).is_over() and SearchTime(0.0).in_words() == "auto.budget, 0 s, was used up"
    assert (
        not SearchTime(None).is_over() and SearchTime(None).in_words() == "" and SearchTime(None).left() == float("inf")
    )


def test_estimates_know_bubbles_memory_and_recomputation():
    where = machine([["a"] * 4], bandwidth=1e12, latency=0.0)
    estimate = CandidateEstimate(COSTS, CollectiveCosts(where), 64)

    def seconds(*begins, **settings):
        return estimate(strategy(COSTS, devices=4, **settings, **stages(COSTS, *begins)))[1]

    few, many = [seconds(1, 2, 3, pipeline__num_micro_batch=count) for count in (4, 16)]
    assert many < few
    assert seconds(gradient_checkpoint__type="auto") > seconds()
