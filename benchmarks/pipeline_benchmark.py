"""A step of a pipeline against its schedule's own bound and against one device; the memory of its schedules."""

from typing import Any, Callable, Dict, List

from benchmarks import groups, harness
from epl.parallel.plan.schedule_generators import generate
from epl.parallel.plan.schedule_simulator import bubble_bound, simulate

STAGES = 2
MICRO_BATCHES = [4, 8]
SCHEDULE = "PreferBackward"
# Rows of a micro batch, width and layers per stage: passes of several milliseconds in the first, in which the time of a
# Session.run is little, activations 16 times as large as the weights in the second.
STEP_SIZES = ["128", "512", "4"]
MEMORY_SIZES = ["1024", "128", "4"]
NEAR_BOUND = 1.25
# Besides activations there are weights, gradients and what the passes in progress hold.
MEMORY_MARGIN = 0.15


def run(quick: bool) -> harness.Result:
    """Measures steps in turns with the passes of the stages alone, then one traced step per schedule."""
    step_sizes, memory_sizes = (["8", "32", "2"], ["64", "16", "2"]) if quick else (STEP_SIZES, MEMORY_SIZES)
    missing: List[str] = []
    replies = _measure_steps(step_sizes, 3 if quick else 9, 2 if quick else 4, missing)
    peaks = _measure_memory(memory_sizes, 1 if quick else 3, missing)
    rows = []
    if not missing:
        for micro_batches in MICRO_BATCHES:
            rows += _step_rows(micro_batches, replies, quick)
        rows += _memory_rows(peaks, quick)
    conditions = [
        "perceptron, %d stages on as many virtual CPU devices of one process, one thread per device" % STAGES,
        "step: %s rows per micro batch, width %s, %s layers per stage; memory: %s, %s, %s"
        % tuple(step_sizes + memory_sizes),
        "bound: the schedule on paper, with the times of the passes of each stage alone in this run",
        "memory: peak of what the ops of a traced step held on a device, weights left out",
    ]
    return harness.Result(
        "pipeline (seconds per step, bytes)",
        conditions,
        rows,
        {
            "replies": replies,
            "peak_bytes": peaks,
        },
        missing,
    )


def _starter(kind: str, micro_batches: int, sizes: List[str], schedule: str) -> Callable[[], groups.Group]:
    arguments = [kind, str(STAGES), str(micro_batches)] + sizes + [schedule]
    return lambda: groups.start_plain("pipeline", arguments, groups.ALLOCATOR, name=kind)


def _measure_steps(sizes: List[str], rounds: int, steps: int, missing: List[str]) -> Dict[str, Any]:
    """Returns what the contenders answered in each round."""
    starters = {"stages": _starter("stages", 1, sizes, SCHEDULE)}
    for micro_batches in MICRO_BATCHES:
        for kind in ("pipeline", "accumulation"):
            starters["%s, %d" % (kind, micro_batches)] = _starter(kind, micro_batches, sizes, SCHEDULE)
    contenders = harness.start_all(starters, missing)
    try:
        replies = harness.interleave_replies(contenders, rounds, missing, steps=steps, warm_up=1)
    finally:
        for group in contenders.values():
            group.close()
    found: Dict[str, Any] = {
        name: [dict(reply, seconds=reply["seconds"] / steps) for (reply,) in of_group]
        for name, of_group in replies.items()
    }
    return found


def _step_rows(micro_batches: int, replies: Dict[str, Any], quick: bool) -> List[harness.Row]:
    schedule = generate(SCHEDULE, list(range(STAGES)), micro_batches)
    courses = [simulate(schedule, reply["forward"], reply["backward"]) for reply in replies["stages"]]
    pipeline, one_device = (
        [reply["seconds"] for reply in replies["%s, %d" % (kind, micro_batches)]]
        for kind in ("pipeline", "accumulation")
    )
    idle = bubble_bound(STAGES, micro_batches)
    bound = STAGES * (1 - idle)
    label = "%d micro batches: " % micro_batches
    return [
        harness.row(
            label + "step / bound of the schedule",
            harness.ratios(pipeline, [c.total_s for c in courses]),
            at_most=None if quick else NEAR_BOUND,
        ),
        harness.row(
            label + "idle time of the schedule with these stages / with equal ones (%.3g)" % idle,
            [max(course.bubble) / idle for course in courses],
        ),
        harness.row(
            label + "speed against accumulation on one device (bound: %.3g)" % bound,
            harness.ratios(one_device, pipeline),
            at_least=None if quick else bound / NEAR_BOUND,
        ),
    ]


def _measure_memory(sizes: List[str], rounds: int, missing: List[str]) -> Dict[str, Any]:
    """Returns the peaks of each device by schedule and round."""
    peaks: Dict[str, Any] = {}
    for schedule in ("PreferBackward", "PreferForward"):
        started = harness.start_all({schedule: _starter("pipeline", max(MICRO_BATCHES), sizes, schedule)}, missing)
        try:
            replies = harness.interleave_replies(started, rounds, missing, memory=True)
        finally:
            for group in started.values():
                group.close()
        peaks[schedule] = [reply["peak_bytes"] for (reply,) in replies.get(schedule, [])]
    return peaks


def _memory_rows(peaks: Dict[str, Any], quick: bool) -> List[harness.Row]:
    rows = []
    micro_batches = max(MICRO_BATCHES)
    for stage in range(STAGES):
        share = (STAGES - stage) / micro_batches
        device = "CPU:%d" % stage
        one_by_one, all_first = ([peak[device] for peak in peaks[name]] for name in ("PreferBackward", "PreferForward"))
        what = "stage %d, %d micro batches: peak memory of PreferBackward / PreferForward (activations: %.3g)"
        rows.append(
            harness.row(
                what % (stage, micro_batches, share),
                harness.ratios(one_by_one, all_first),
                at_most=None if quick else share + MEMORY_MARGIN,
            )
        )
    return rows
