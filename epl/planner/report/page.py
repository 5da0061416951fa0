"""The page of a simulated plan: a summary, its decisions, what devices do, memory, traffic, candidates, assumptions.

One file: styles and pictures are inside, it asks nothing from anywhere, and needs no script. It follows the light or
dark colours of the reader, and fits a phone.
"""

import html
from typing import Dict, Iterable, List, Sequence

from epl.parallel.plan.strategy import block_in_words
from epl.planner.machine import quantities
from epl.planner.prediction.describe import costs_of_rows, flops_in_words, name_in_words
from epl.planner.prediction.prediction import Prediction
from epl.planner.prediction.schedule_grid import find_grid
from epl.planner.report import pictures
from epl.planner.report.feature_gains import rows_of_gains
from epl.planner.report.simulated_plan import SimulatedPlan
from epl.planner.search.reasons import Alternative, alternative_in_words

_STYLE = """
:root{--ink:#1d2733;--paper:#fff;--soft:#eef1f5;--line:#d5dbe3;--a:#2f6fb5;--b:#7aa6d8;--c:#d98b2b;--d:#b34a4a;--e:#5b9a68;
--f:#8d6cab}
@media(prefers-color-scheme:dark){:root{--ink:#dfe6ee;--paper:#161b22;--soft:#222a35;--line:#38424f;--a:#5b9be0;--b:#3f6ea3;
--c:#e0a04a;--d:#e07a7a;--e:#7dbf8b;--f:#b79ad6}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:1rem;font:15px/1.45 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}tr.chosen td{font-weight:600}
svg{display:block;width:100%;margin:.2rem 0 .8rem}
.lane{fill:var(--soft)}.forward,.part0{fill:var(--a)}.backward{fill:var(--b)}.recompute{fill:var(--f)}.update{fill:var(--e)}
.collective,.part1{fill:var(--c)}.transfer{fill:var(--d)}.part2{fill:var(--soft)}.part3{fill:var(--d)}.part4{fill:var(--e)}
.part5{fill:var(--f)}.memory{fill:var(--b);stroke:var(--a)}.limit{stroke:var(--d);stroke-width:2;stroke-dasharray:6 4}
svg text{fill:var(--paper);font:11px system-ui,sans-serif}
.axis{display:flex;justify-content:space-between;font-size:.75rem;margin:-.6rem 0 .8rem}
.key span{display:inline-block;margin-right:1rem}
.key i{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem}
pre{overflow-x:auto;background:var(--soft);padding:.6rem}p.bad{color:var(--d);font-weight:600}
"""
_KINDS = (
    ("forward", "--a"), ("backward", "--b"), ("recompute", "--f"), ("update", "--e"), ("collective", "--c"),
    ("transfer", "--d"),
)  # fmt: skip


def page(plan: SimulatedPlan, title: str) -> str:
    """The page of a plan.

    Args:
      plan: the plan.
      title: what it is a plan of, such as the name of the script.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", *_summary(plan), *_decisions(plan)]
    if plan.prediction is not None:
        parts += [
            *_devices(plan.prediction),
            *_time(plan.prediction),
            *_schedule(plan.prediction),
            *_memory(plan.prediction),
        ]
        parts += [*_gains(plan, plan.prediction), *_traffic(plan.prediction)]
    parts += [*_candidates(plan), *_assumptions(plan)]
    parts += _origins(plan)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _summary(plan: SimulatedPlan) -> List[str]:
    strategy = plan.strategy
    job = f"{strategy.workers} worker(s) x {strategy.devices} device(s)"
    if plan.prediction is None or plan.model is None:
        return [f"<p>{job}.</p>", f'<p class="bad">Not simulated: {html.escape(plan.refusal)}</p>']
    found = plan.prediction
    lines = [
        f"<p>A step of {plan.model.rows} rows takes <b>{_seconds(found.seconds)}</b> on {job} of the machine "
        f"{html.escape(plan.model.machine.name)}: {plan.model.rows / (found.seconds or 1.0):.4g} rows per second; "
        f"{html.escape(flops_in_words(found))}. No schedule of this work takes less than "
        f"{_seconds(found.bound.seconds)} (compute "
        f"{_seconds(found.bound.compute)}, bubble {_seconds(found.bound.bubble)}, traffic "
        f"{_seconds(found.bound.traffic)}).</p>"
    ]
    if not plan.fits:
        lines.append(f'<p class="bad">It does not fit: {html.escape(plan.lacking())}</p>')
    return lines


def _decisions(plan: SimulatedPlan) -> List[str]:
    """Blocks, and all decisions: where each came from, and what deciding it otherwise would cost."""
    strategy = plan.strategy
    blocks = [
        [f"block {number}", block_in_words(block), plan.blocks_from] for number, block in enumerate(strategy.blocks)
    ]
    lines = ["<h2>Decisions</h2>", _table(["what", "decision", "from"], blocks)]
    rows = []
    for one in plan.reasons:
        others = [other for other in (one.runner_up, one.faster) if other is not None]
        value = one.value or "off"
        rows.append([one.decision, value, one.origin, *[_or_none(others, at) for at in range(2)]])
    titles = ["what", "decision", "from", "instead, the best that was compared", "faster, and does not fit"]
    used = 5 if any(one.faster for one in plan.reasons) else 4 if any(one.runner_up for one in plan.reasons) else 3
    return lines + [_table(titles[:used], [row[:used] for row in rows])]


def _or_none(others: Sequence[Alternative], at: int) -> str:
    return f"{others[at].value}: {alternative_in_words(others[at])}" if at < len(others) else ""


def _devices(found: Prediction) -> List[str]:
    rows = []
    for one in found.devices:
        lacks = f", lacks {_bytes(one.memory.lacks)}" if one.memory.lacks else ""
        limit = "no limit known" if one.memory.limit is None else f"of {_bytes(one.memory.limit)}"
        rows.append([
            one.name, str(len(one.devices)), str(one.rows), _seconds(one.busy), _seconds(one.exposed),
            _seconds(one.bubble), f"{_bytes(one.memory.peak)} {limit}{lacks}",
        ])  # fmt: skip
    titles = ["devices", "number", "rows", "busy", "exposed communication", "waiting", "peak memory"]
    lines = ["<h2>Devices</h2>", _table(titles, rows, numbers=range(1, 6))]
    return lines + _titled(found, [pictures.bar(pictures.shares(one, found.seconds)) for one in found.devices])


def _titled(found: Prediction, shown: Sequence[str]) -> List[str]:
    """A picture for each class of devices, with its name above it."""
    return [f"<div>{html.escape(one.name)}</div>{picture}" for one, picture in zip(found.devices, shown)]


def _time(found: Prediction) -> List[str]:
    key = "".join(f'<span><i style="background:var({colour})"></i>{kind}</span>' for kind, colour in _KINDS)
    path: Dict[str, float] = {}
    for one in found.critical_path:
        path[one.kind] = path.get(one.kind, 0.0) + one.end - one.start
    rows = [
        [kind, _seconds(seconds), f"{100 * seconds / (found.seconds or 1.0):.1f}%"] for kind, seconds in path.items()
    ]
    return [
        "<h2>Time</h2>", f'<p class="key">{key}</p>', *_titled(found, pictures.timelines(found)),
        pictures.time_axis(found.seconds),
        "<p>The critical path, by kind: ops of which each waited for the one before it, so that they set the time of "
        "the step.</p>", _table(["kind", "time", "part"], rows, (1, 2)),
    ]  # fmt: skip


def _schedule(found: Prediction) -> List[str]:
    grid = find_grid(found)
    if grid is None:
        return []
    words = "The passes of a replica, a row for each stage: F forward, B backward, with the micro batch."
    return ["<h2>Schedule</h2>", f"<p>{words}</p>", f'<div class="wide">{pictures.schedule(grid)}</div>']


def _memory(found: Prediction) -> List[str]:
    lines = ["<h2>Memory</h2>"]
    roles = list(dict.fromkeys(role for one in found.devices for role in one.memory.by_role))
    rows = [
        [one.name, f"{name_in_words(one.memory.at)} ({_seconds(one.memory.seconds)})", _bytes(one.memory.peak)]
        + [_bytes(one.memory.by_role.get(role, 0)) for role in roles]
        for one in found.devices
    ]
    lines.append(_table(["devices", "most at", "peak", *roles], rows, numbers=range(2, 3 + len(roles))))
    lines += _titled(found, [pictures.memory(found, row) for row in range(len(found.devices))])
    return [*lines, pictures.time_axis(found.seconds)]


def _gains(plan: SimulatedPlan, found: Prediction) -> List[str]:
    titles, *rows = rows_of_gains(plan.gains, found)
    return ["<h2>What each feature buys</h2>", _table(titles, rows, (2, 3))] if plan.gains else []


def _traffic(found: Prediction) -> List[str]:
    rows = [
        [one.in_words, one.collective, str(one.times), str(one.devices), _bytes(one.bytes), _seconds(one.seconds)]
        for one in found.traffic
    ]
    titles = ["decision", "what", "number", "devices of each", "bytes", "time"]
    lines = [f"<p>{html.escape(line)}.</p>" for line in costs_of_rows(found)]
    return ["<h2>Communication</h2>", _table(titles, rows, numbers=range(2, 6)) if rows else "<p>None.</p>", *lines]


def _candidates(plan: SimulatedPlan) -> List[str]:
    if plan.search is None:
        return []
    rows, marks = [], []
    for one in plan.search.in_order():
        time = "" if one.outcome is None else _seconds(one.outcome.seconds)
        lacks = [] if one.outcome is None else [f"{name} lacks {_bytes(size)}" for name, size in one.outcome.lacks]
        rows.append([one.candidate.name, time, one.refusal or ", ".join(lacks)])
        marks.append(one is plan.search.chosen)
    notes = [f"<p>{html.escape(one)}</p>" for one in plan.uncounted]
    return ["<h2>Candidates</h2>", _table(["plan", "time", "why not"], rows, (1,), marks), *notes]


def _origins(plan: SimulatedPlan) -> List[str]:
    """Ops that were added, by decision; and the lines that made those of the user."""
    if plan.origins is None:
        return []
    added = [[one.decision, one.step, f"{one.ops:,}"] for one in plan.origins.inserted]
    lines = [
        [str(one.taskgraph), f"{one.file}:{one.first} to {one.last}", f"{one.ops:,}"] for one in plan.origins.sources
    ]
    return [
        "<h2>Where ops come from</h2>",
        _table(["decision", "added by", "ops"], added, (2,)),
        _table(["TaskGraph", "lines", "ops"], lines, (2,)),
    ]


def _assumptions(plan: SimulatedPlan) -> List[str]:
    if plan.model is None:
        return []
    words = plan.model_assumptions() + ([] if plan.prediction is None else list(plan.prediction.assumptions))
    lines = ["<h2>Assumed</h2>", "<ul>" + "".join(f"<li>{html.escape(one)}</li>" for one in words) + "</ul>"]
    return lines + ["<h2>Machine</h2>", f"<pre>{html.escape(plan.model.machine.describe())}</pre>"]


def _table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), marked: Sequence[bool] = ()
) -> str:
    """A table; `numbers` are the columns aligned to the right, `marked` says which rows stand out."""

    def cell(tag: str, at: int, text: str) -> str:
        aligned = ' class="n"' if at in numbers else ""
        return f"<{tag}{aligned}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", at, text) for at, text in enumerate(titles))
    body = []
    for number, row in enumerate(rows):
        mark = ' class="chosen"' if number < len(marked) and marked[number] else ""
        body.append(f"<tr{mark}>" + "".join(cell("td", at, text) for at, text in enumerate(row)) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _seconds(seconds: float) -> str:
    return quantities.show(seconds, quantities.SECONDS)


def _bytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
