"""What the cores of its own bring a worker: a data-parallel step under `epl-launch --bind_cores` and without."""

from typing import Callable, Dict, List

from benchmarks import groups, harness

WORKERS = 2
# Devices of each worker, and how many threads it has.
CASES = [(1, "default"), (2, "default"), (1, "one"), (2, "one")]


def run(quick: bool) -> harness.Result:
    """Measures seconds per step of the training step of benchmark a; bound and unbound workers take turns."""
    sizes = ["2", "2", "128"] if quick else ["4", "12", "256"]
    rounds, steps = (2, 1) if quick else (9, 4)
    rows: List[harness.Row] = []
    details: Dict[str, object] = {}
    missing: List[str] = []
    for devices, threads in CASES:
        starters = {switch: _starter(sizes, devices, threads, switch) for switch in ("on", "off")}
        contenders = harness.start_all(starters, missing)
        try:
            seconds = harness.interleave(contenders, rounds, missing, steps=steps, warm_up=1)
        finally:
            for group in contenders.values():
                group.close()
        label = "%d workers x %d device(s), %s" % (WORKERS, devices, _THREADS[threads])
        details[label] = {switch: [value / steps for value in values] for switch, values in seconds.items()}
        if len(seconds) == 2:
            rows.append(harness.row(label + ": bound against unbound", harness.ratios(seconds["off"], seconds["on"])))
    return harness.Result(
        "cores (throughput of a training step)",
        [
            "BERT of benchmark a: %s layers, hidden %s, micro batch %s per device" % (sizes[1], sizes[2], sizes[0]),
            "bound: epl-launch --bind_cores on; unbound: --bind_cores off; they take turns, the other is stopped",
        ],
        rows,
        {"seconds_per_step": details},
        missing,
    )


_THREADS = {"default": "threads as TensorFlow takes them", "one": "one thread per device"}


def _starter(sizes: List[str], devices: int, threads: str, switch: str) -> Callable[[], groups.Group]:
    arguments = ["epl", *sizes, str(devices), *(["default"] if threads == "default" else [])]
    return lambda: groups.start_epl(
        "training", arguments, WORKERS, name=switch, devices=devices, options=["--bind_cores", switch]
    )
