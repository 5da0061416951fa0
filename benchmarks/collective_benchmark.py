"""An all-reduce alone between two processes, through TensorFlow sessions, against Horovod."""

from typing import Dict, List

from benchmarks import environment, groups, harness

PROCESSES = 2
# Bytes, label, all-reduces per turn.
SIZES = [
    (4 << 10, "4 KB", 100),
    (256 << 10, "256 KB", 50),
    (4 << 20, "4 MB", 20),
    (64 << 20, "64 MB", 3),
]


def run(quick: bool) -> harness.Result:
    """Measures seconds per all-reduce of float32 at each size."""
    sizes = SIZES[:2] if quick else SIZES
    rounds = 3 if quick else 11
    elements = [str(size // 4) for size, _, _ in sizes]

    def horovod(variables: Dict[str, str]) -> groups.Group:
        environment.ensure()
        return groups.start_horovod("collective", ["horovod"] + elements, PROCESSES, variables)

    missing: List[str] = []
    contenders = harness.start_all(
        {
            "horovod": lambda: horovod({}),
            "horovod, allocator set": lambda: horovod(groups.ALLOCATOR),
            "epl": lambda: groups.start_epl("collective", ["epl"] + elements, PROCESSES),
        },
        missing,
    )
    rows: List[harness.Row] = []
    details: Dict[str, Dict[str, List[float]]] = {}
    try:
        for size, label, steps in sizes:
            steps = min(steps, 10) if quick else steps
            seconds = harness.interleave(contenders, rounds, missing, elements=size // 4, steps=steps, warm_up=2)
            details[label] = {name: [value / steps for value in values] for name, values in seconds.items()}
            for peer in seconds:
                if "epl" in seconds and peer != "epl":
                    rows.append(
                        harness.row(
                            "%s: EPL against %s" % (label, peer.capitalize()),
                            harness.ratios(seconds[peer], seconds["epl"]),
                            at_least=1.0,
                        )
                    )
    finally:
        for group in contenders.values():
            group.close()
    conditions = [
        "sum of float32 between 2 processes of one machine, one all-reduce per session.run; ratio of speeds",
        "each library as its own launcher starts it, in alternating pairs of processes",
        "allocator set: with the settings of malloc that epl-launch gives to its workers",
    ]
    return harness.Result("all-reduce (speed)", conditions, rows, {"seconds_per_all_reduce": details}, missing)
