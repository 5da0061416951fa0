"""A data-parallel training step against Horovod, plain TensorFlow, and two processes that do not communicate.

Also with two devices in one process, against MirroredStrategy of TensorFlow.
"""

from typing import Callable, Dict, List

from benchmarks import environment, groups, harness

PROCESSES = 2
HOROVOD_ALLOCATOR = "horovod, allocator set"
DEVICES = 2  # of one process
EPL_DEVICES = "epl, 1 process"
MIRRORED = "mirrored"


def run(quick: bool) -> harness.Result:
    """Measures seconds per step; all contenders run the same script on the same batches."""
    sizes = ["2", "2", "128"] if quick else ["4", "12", "256"]
    rounds, steps = (3, 2) if quick else (9, 4)
    missing: List[str] = []
    contenders = harness.start_all(_starters(sizes), missing)
    try:
        losses = _first_losses(contenders, missing)
        seconds = harness.interleave(contenders, rounds, missing, steps=steps, warm_up=1)
    finally:
        for group in contenders.values():
            group.close()
    rows = _rows(seconds) + _device_rows(seconds)
    for ours, peer, label in (("epl", "horovod", "Horovod"), (EPL_DEVICES, MIRRORED, "MirroredStrategy")):
        if ours in losses and peer in losses:
            rows.append(
                harness.row(
                    "same training: |loss of EPL / loss of %s - 1| after 5 steps" % label,
                    [abs(losses[ours] / losses[peer] - 1)],
                    at_most=1e-3,
                )
            )
    return harness.Result(
        "training-step (throughput in samples per second)",
        _conditions(sizes),
        rows,
        {
            "seconds_per_step": {name: [value / steps for value in values] for name, values in seconds.items()},
            "losses_after_5_steps": losses,
        },
        missing,
    )


def _starters(sizes: List[str]) -> Dict[str, Callable[[], groups.Group]]:
    def horovod(variables: Dict[str, str]) -> groups.Group:
        environment.ensure()
        return groups.start_horovod("training", ["horovod"] + sizes, PROCESSES, variables)

    return {
        "plain": lambda: groups.start_plain("training", ["plain"] + sizes, groups.ALLOCATOR),
        "independent": lambda: groups.start_side_by_side(
            "training", ["plain"] + sizes, PROCESSES, groups.ALLOCATOR, name="independent"
        ),
        "horovod": lambda: horovod({}),
        HOROVOD_ALLOCATOR: lambda: horovod(groups.ALLOCATOR),
        "epl": lambda: groups.start_epl("training", ["epl"] + sizes, PROCESSES),
        EPL_DEVICES: lambda: groups.start_epl(
            "training", ["epl", *sizes, str(DEVICES)], 1, name=EPL_DEVICES, devices=DEVICES
        ),
        MIRRORED: lambda: groups.start_plain(
            "training",
            ["mirrored", *sizes, str(DEVICES)],
            dict(groups.ALLOCATOR, MALLOC_ARENA_MAX=str(DEVICES)),
            name=MIRRORED,
        ),
    }


def _first_losses(contenders: Dict[str, groups.Group], missing: List[str]) -> Dict[str, float]:
    """Returns the loss after 5 steps from the start, the mean over the processes."""
    losses = {}
    for name in list(contenders):
        try:
            with contenders[name].awake():
                replies = contenders[name].ask(steps=1, warm_up=4)
        except groups.GroupError as error:
            missing.append(str(error))
            contenders.pop(name).close()
            continue
        losses[name] = sum(reply["loss"] for reply in replies) / len(replies)
    return losses


def _rows(seconds: Dict[str, List[float]]) -> List[harness.Row]:
    rows = []
    for peer in ("horovod", HOROVOD_ALLOCATOR):
        if "epl" in seconds and peer in seconds:
            rows.append(
                harness.row(
                    "EPL against " + peer.capitalize(), harness.ratios(seconds[peer], seconds["epl"]), at_least=1.0
                )
            )
    for name, label in (("epl", "EPL"), ("horovod", "Horovod"), (HOROVOD_ALLOCATOR, HOROVOD_ALLOCATOR.capitalize())):
        if name not in seconds:
            continue
        if "plain" in seconds:
            rows.append(
                harness.row(
                    "%s, 2 processes, against plain TensorFlow, 1 process (bound: 2)" % label,
                    harness.ratios(seconds["plain"], seconds[name], factor=PROCESSES),
                )
            )
        if "independent" in seconds:
            rows.append(
                harness.row(
                    "%s against 2 plain processes that do not communicate (bound: 1)" % label,
                    harness.ratios(seconds["independent"], seconds[name]),
                )
            )
    return rows


def _device_rows(seconds: Dict[str, List[float]]) -> List[harness.Row]:
    """Rows of one process with several devices."""
    rows = []
    if EPL_DEVICES in seconds and MIRRORED in seconds:
        ratios = harness.ratios(seconds[MIRRORED], seconds[EPL_DEVICES])
        rows.append(
            harness.row("EPL, 1 process x %d devices, against MirroredStrategy" % DEVICES, ratios, at_least=1.0)
        )
    for name, label in ((EPL_DEVICES, "EPL"), (MIRRORED, "MirroredStrategy")):
        if name in seconds and "plain" in seconds:
            rows.append(
                harness.row(
                    "%s, 1 process x %d devices, against plain TensorFlow, 1 device (bound: %d)"
                    % (label, DEVICES, DEVICES),
                    harness.ratios(seconds["plain"], seconds[name], factor=DEVICES),
                )
            )
    return rows


def _conditions(sizes: List[str]) -> List[str]:
    return [
        "BERT, %s layers, hidden %s, sequence 128, vocabulary 8,192, micro batch %s per process, Adam, float32"
        % (sizes[1], sizes[2], sizes[0]),
        "every process has 1 intra-op thread and 1 inter-op thread for each device; contenders take turns in one run, "
        "the others are stopped",
        "allocator set: the settings of malloc that epl-launch gives to its workers; plain TensorFlow and "
        "MirroredStrategy have them too",
    ]
