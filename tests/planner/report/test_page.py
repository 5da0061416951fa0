"""The page of a plan: it has the numbers of the simulation, asks nothing from anywhere, and shows its pictures."""

import html
import json
import re
import shutil
import subprocess

import pytest

from epl.planner.prediction import describe
from epl.planner.prediction.prediction import predict
from epl.planner.report import page, pictures
from epl.planner.report.feature_gains import find_gains
from epl.planner.report.pictures import Interval
from epl.planner.report.simulated_plan import SimulatedPlan
from epl.planner.search.candidates import PlanCandidate
from epl.planner.search.comparison import Compared, PlanOutcome
from epl.planner.search.decision import SearchResult
from epl.planner.search.planned_model import PlannedModel
from epl.planner.search.reasons import Alternative, Reason
from epl.profiler.origins import GraphOrigins, InsertedFacts, SourceFacts
from tests.planner.prediction import hand_made

REASONS = (
    Reason("zero.level", '"v1"', "planner", Alternative('"v0"', "other <plan>", 3.0, 1.5, (), "")),
    Reason("blocks", "1", "scopes"),
)


ORIGINS = GraphOrigins(
    (InsertedFacts("replicas", "clone_replicas", 1200),),
    (SourceFacts(0, "/a/long/path/of/a/script/that/is/wider/than/a/phone/train.py", 3, 40, 700),),
    700,
    700,
)


def plans():
    """Plans by name: data parallel, a pipeline, one that does not fit, one that is not simulated, and a search."""
    costs = hand_made.HandCosts([hand_made.Layer(weight=1 << 20, output=1000.0, kept=True)] * 4)
    pipeline = dict(hand_made.stages(costs, 2), pipeline__num_micro_batch=4)
    found = {}
    for name, settings, memory in (("data parallel", {}, None), ("pipeline", pipeline, None), ("too large", {}, 1000)):
        kind = hand_made.device(bandwidth=1e9, memory=memory)
        machine = hand_made.machine(devices=[kind], bandwidth=1e6)
        strategy = hand_made.strategy(costs, devices=2, **settings)
        model = PlannedModel(strategy, costs, machine, 8, None, ("a batch has <8> rows",))
        found[name] = SimulatedPlan(strategy, model, predict(strategy, costs, machine, 8), "", None)
    base = found["data parallel"]
    found["not simulated"] = base._replace(model=None, prediction=None, refusal="it is <new>")
    taken = Compared(PlanCandidate("this one", base.strategy), PlanOutcome(1.5, ()), "")
    others = [
        Compared(PlanCandidate("larger", base.strategy), PlanOutcome(1.0, (("gpu", 2e9),)), ""),
        Compared(PlanCandidate("other", base.strategy), None, "it is refused"),
    ]
    found["searched"] = base._replace(search=SearchResult((others[0], taken, others[1]), taken), reasons=REASONS)
    gains = find_gains(base.strategy, base.prediction, base.model)
    found["data parallel"] = base._replace(gains=tuple(gains), origins=ORIGINS)
    return found


@pytest.fixture(scope="module", params=["data parallel", "pipeline", "too large", "not simulated", "searched"])
def plan(request):
    return plans()[request.param]


def _pictures(plan):
    """How many: shares, timeline and memory of each class of devices, and the schedule of a pipeline."""
    if plan.prediction is None:
        return 0
    return 3 * len(plan.prediction.devices) + any(one.stage for one in plan.prediction.devices)


def test_page_asks_nothing_and_escapes_texts(plan):
    text = page.page(plan, "my <script>.py")
    assert "my &lt;script&gt;.py" in text and "<script" not in text
    assert not re.search(r"https?:|//|@import|url\(|src=|href=", text.replace("<!DOCTYPE", ""))
    assert len(text) < 100e3


def test_page_has_the_numbers_of_the_simulation(plan):
    text = html.unescape(page.page(plan, "title"))
    if plan.prediction is None:
        assert "Not simulated: it is <new>" in text
        return
    for one in plan.prediction.devices:
        assert one.name in text and f"{one.memory.peak / 1e6:,.1f} MB" in text
        for lines in (describe.describe(plan.prediction), [text]):
            assert any(page._seconds(one.busy) in line for line in lines)
    assert page._seconds(plan.prediction.seconds) in text
    assert ("It does not fit" in text) == (not plan.fits)
    assert text.count("<svg") == _pictures(plan)
    assert "a batch has <8> rows" in text


def test_pictures_have_axes_with_units():
    plan = plans()["data parallel"]
    text = page.page(plan, "title")
    marks = [page._seconds(plan.prediction.seconds * quarter / 4) for quarter in range(5)]
    assert text.count("".join(f"<span>{mark}</span>" for mark in marks)) == 2
    assert text.count("<span>height: 0 to ") == len(plan.prediction.devices)


def test_candidates_stand_in_order_with_reasons():
    text = page.page(plans()["searched"], "title")
    places = [text.index(f">{name}<") for name in ("this one", "larger", "other")]
    assert places == sorted(places)
    assert '<tr class="chosen"><td>this one' in text and "gpu lacks 2,000.0 MB" in text and "it is refused" in text


def test_decisions_have_origins_and_what_another_would_cost():
    text = page.page(plans()["searched"], "title")
    assert "<td>zero.level</td><td>&quot;v1&quot;</td><td>planner</td>" in text
    assert "<td>&quot;v0&quot;: 3 s, 100.0% more (other &lt;plan&gt;)</td>" in text
    assert "<td>blocks</td><td>1</td><td>scopes</td><td></td>" in text
    assert "instead, the best" not in page.page(plans()["pipeline"], "title")


def test_ops_have_their_origins():
    text = page.page(plans()["data parallel"], "title")
    assert '<td>replicas</td><td>clone_replicas</td><td class="n">1,200</td>' in text
    assert "train.py:3 to 40" in text


def test_a_large_plan_has_a_small_page():
    costs = hand_made.HandCosts([hand_made.Layer(weight=1 << 20, output=1000.0, kept=True)] * 64)
    stages = hand_made.stages(costs, *range(4, 64, 4))
    strategy = hand_made.strategy(costs, devices=8, workers=8, pipeline__num_micro_batch=64, **stages)
    machine = hand_made.machine([["a"] * 8] * 8, bandwidth=1e9, network=(0.0, 1e9))
    model = PlannedModel(strategy, costs, machine, 512, None, ())
    plan = SimulatedPlan(strategy, model, predict(strategy, costs, machine, 512), "", None)
    text = page.page(plan, "title")
    assert len(text) < 3e6 and text.count(">F63<") == 16 and "<h2>Schedule</h2>" in text


def test_features_have_what_the_plan_costs_without_them():
    plan = plans()["data parallel"]
    text = page.page(plan, "title")
    assert "<td>gradients overlap backward</td>" in text
    assert f">{page._seconds(plan.gains[0].seconds)} (+" in text
    assert "What each feature buys" not in page.page(plan._replace(gains=()), "title")


def test_narrow_intervals_are_joined():
    parts = [Interval(i * 0.1, i * 0.1 + 0.09, "forward", f"op{i}", 1) for i in range(50)]
    found = pictures.joined(parts, 1.0)
    assert sum(one.ops for one in found) == 50 and len(found) <= 5
    assert found[0].start == 0 and found[-1].end == pytest.approx(4.99)
    wide = [Interval(i * 10.0, i * 10.0 + 5, "forward", "op", 1) for i in range(3)]
    assert pictures.joined(wide, 1.0) == wide
    other = [parts[0], parts[1]._replace(kind="backward")]
    assert pictures.joined(other, 1.0) == other


def test_memory_over_time_ends_at_its_peak_and_begins_at_the_state(plan):
    if plan.prediction is None:
        return
    for row, one in enumerate(plan.prediction.devices):
        levels = pictures.levels(plan.prediction, row)
        assert max(size for _, size in levels) == one.memory.peak
        assert [seconds for seconds, _ in levels] == sorted(seconds for seconds, _ in levels)


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PROBE = """<!DOCTYPE html><body style="margin:0"><iframe id="f" width="{width}" height="900" style="border:0"></iframe>
<script>
const page = {page}; const frame = document.getElementById("f");
frame.onload = () => {{
  const root = frame.contentDocument.documentElement;
  const boxes = [...frame.contentDocument.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect());
  document.title = JSON.stringify({{sideways: root.scrollWidth - root.clientWidth, empty: boxes.filter(
    box => box.width < 50 || box.height < 10).length, pictures: boxes.length}});
}};
frame.srcdoc = page;</script></body>"""


@pytest.mark.grid
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: .ci/run installs it")
@pytest.mark.parametrize("width", [1280, 390])
def test_page_in_a_browser(plan, tmp_path, width):
    text = page.page(plan, "title")
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=json.dumps(text).replace("</", "<\\/")))
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
         "--virtual-time-budget=4000", "--dump-dom", probe.as_uri()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, universal_newlines=True,
    )  # fmt: skip
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout).group(1)))
    assert seen["sideways"] == 0 and seen["empty"] == 0
    assert seen["pictures"] == _pictures(plan)
