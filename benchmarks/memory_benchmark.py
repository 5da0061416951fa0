"""What each feature saves of the memory of a step of BERT-base, and what it costs in time."""

import re
from typing import Any, Callable, Dict, List, NamedTuple

from benchmarks import groups, harness
from benchmarks.models import bert

RANKS = 2
STAGES = 2
MICRO_BATCHES = 4
GROUPS = 8
THREADS = 2  # as in benchmarks/workers/memory.py
# Layers, hidden size, rows of a process.
SIZES = [12, 768, 4]
QUICK_SIZES = [2, 64, 4]
# Of BERT-base with its optimizer; each holds 3 GB. Where both sides have several ranks, it is one more.
PROCESSES_AT_ONCE = 3
# A part of the state may be larger by this, as not everything is divided.
STATE_MARGIN = 0.05
ACTIVATIONS_MARGIN = 1.1
# The forward pass, a third of a step, runs twice: 4/3, and what the order of the ops costs.
RECOMPUTED_TIME = 1.4


class Variant(NamedTuple):
    """A contender: a script and what is asked of EPL by the environment, in `ranks` processes."""

    name: str
    library: str
    optimizer: str
    stages: int
    ranks: int
    config: Dict[str, str]


def epl_variant(name: str, optimizer: str = "adam", stages: int = 1, ranks: int = 1, **config: str) -> Variant:
    """Returns a contender with EPL; keys of the configuration as section__key."""
    variables = {"EPL_" + key.replace("__", "_").upper(): value for key, value in config.items()}
    if stages > 1:
        variables["EPL_CLUSTER_NUM_VIRTUAL_DEVICES"] = str(stages)
    return Variant(name, "epl", optimizer, stages, ranks, variables)


PLAIN = Variant("plain TensorFlow", "plain", "adam", 1, 1, {})
PLAIN_OPS = Variant("AdamW of plain ops", "plain", "adamw", 1, 1, {})
REPLICAS = epl_variant("data parallel, %d ranks" % RANKS, ranks=RANKS)
COLLECTION = epl_variant("gradient checkpoint, collection", gradient_checkpoint__type="collection")
AUTO = epl_variant("gradient checkpoint, auto", gradient_checkpoint__type="auto")
PIPELINE = epl_variant(
    "1F1B, %d stages x %d micro batches" % (STAGES, MICRO_BATCHES),
    stages=STAGES,
    pipeline__num_micro_batch=str(MICRO_BATCHES),
    pipeline__strategy="PreferBackward",
)
ZERO = [epl_variant("ZeRO " + level, ranks=RANKS, zero__level=level) for level in ("v0", "v1", "v2")]
# What is compared with what; the features of a list take turns with what stands before it.
COMPARED = [
    (
        PLAIN,
        [
            COLLECTION,
            AUTO,
            PIPELINE,
            epl_variant("AMP, bfloat16", amp__level="O1", amp__dtype="bfloat16", amp__loss_scale="1"),
            epl_variant("offload v0", offload__level="v0"),
        ],
    ),
    (PLAIN_OPS, [epl_variant("grouped apply, %d groups" % GROUPS, "adamw", optimizer__num_apply_group=str(GROUPS))]),
    (REPLICAS, ZERO),
]


def run(quick: bool) -> harness.Result:
    """Measures steps in turns, and what each holds in a traced step after them."""
    sizes = QUICK_SIZES if quick else SIZES
    rounds = 2 if quick else 3
    missing: List[str] = []
    rows: List[harness.Row] = []
    details: Dict[str, Any] = {}
    for peer, features in COMPARED:
        started = harness.start_all({peer.name: groups_of(peer, sizes)}, missing)
        try:
            for chosen in _chunks(features, PROCESSES_AT_ONCE - peer.ranks):
                found = _measure(started, chosen, sizes, rounds, missing) if started else {}
                for feature in chosen:
                    if feature.name in found and peer.name in found:
                        details[feature.name] = {peer.name: found[peer.name], feature.name: found[feature.name]}
                        rows += _rows(peer, feature, found[peer.name], found[feature.name], sizes, quick)
        finally:
            for group in started.values():
                group.close()
    conditions = [
        "BERT for SQuAD, %d layers, hidden %d, dropout, sequence %d, %d rows per process, float32"
        % (sizes[0], sizes[1], bert.SEQUENCE, sizes[2]),
        "Adam of TensorFlow, but for grouped apply; %d threads for ops per process" % THREADS,
        "memory: largest sum of what the ops of a traced step hold and of variables, per rank or stage",
        "activations: the same without variables and constants",
        "AMP with float16 is left out: products of matrices take some 100 times as long on a CPU",
    ]
    return harness.Result(
        "memory (bytes, seconds per step)", conditions, rows, details, [refusal(reason) for reason in missing]
    )


def groups_of(variant: Variant, sizes: List[int]) -> Callable[[], groups.Group]:
    """Returns what starts the processes of a contender; sizes: layers, hidden size, rows of a process."""
    arguments = [variant.library, variant.optimizer, str(variant.stages)] + [str(size) for size in sizes]
    if variant.ranks > 1:
        return lambda: groups.start_epl("memory", arguments, variant.ranks, variant.config, variant.name)
    return lambda: groups.start_plain("memory", arguments, dict(groups.ALLOCATOR, **variant.config), variant.name)


def _chunks(features: List[Variant], processes: int) -> List[List[Variant]]:
    """Returns the features in order, in lists of no more processes."""
    at_once = max(1, processes // features[0].ranks)
    return [features[first : first + at_once] for first in range(0, len(features), at_once)]


def _measure(
    started: Dict[str, groups.Group], features: List[Variant], sizes: List[int], rounds: int, missing: List[str]
) -> Dict[str, Any]:
    """Returns by contender the seconds per step of each round, and by device what it holds.

    Args:
        started: the contender that runs already; removed if it fails.
        features: those that it is measured with; they are started and ended.
        sizes: of the model.
        rounds: steps of each.
        missing: receives what failed.
    """
    contenders = harness.start_all({feature.name: groups_of(feature, sizes) for feature in features}, missing)
    contenders.update(started)
    try:
        harness.interleave(contenders, 1, missing, steps=1, warm_up=0)
        seconds = harness.interleave(contenders, rounds, missing, steps=1, warm_up=0)
        held = harness.interleave_replies(contenders, 1, missing, bytes=True)
    finally:
        for name in set(started) - set(contenders):
            del started[name]
        for name in set(contenders) - set(started):
            contenders[name].close()
    return {name: {"seconds": seconds[name], "held": _by_device(replies)} for name, (replies,) in held.items()}


def _by_device(replies: List[Dict[str, Any]]) -> Dict[str, Dict[str, float]]:
    """Returns what each device of each rank holds in a traced step."""
    return {
        "rank %d, %s" % (rank, device): {
            "peak": peak,
            "persistent": reply["persistent"][device],
            "activations": peak - reply["persistent"][device],
        }
        for rank, reply in enumerate(replies)
        for device, peak in reply["peak"].items()
    }


def _rows(
    peer: Variant, feature: Variant, before: Dict[str, Any], after: Dict[str, Any], sizes: List[int], quick: bool
) -> List[harness.Row]:
    """Returns the rows of a feature. Of several ranks the one that holds most counts, of stages each by itself."""
    label = "%s / %s: " % (feature.name, peer.name)
    alone, devices = _most(before["held"]), after["held"]
    bound_of_time = None
    if feature.stages > 1:
        rows = [
            harness.row("%speak of stage %d" % (label, stage), [devices[device]["peak"] / alone["peak"]])
            for stage, device in enumerate(sorted(devices))
        ]
    else:
        rows = [harness.row(label + "peak", [_most(devices)["peak"] / alone["peak"]])]
    if feature in (COLLECTION, AUTO):
        bound, bound_of_time = recomputed_share(sizes, alone["activations"]), RECOMPUTED_TIME
        rows.append(
            harness.row(
                label + "activations (formula: %.3g)" % bound,
                [_most(devices)["activations"] / alone["activations"]],
                at_most=None if quick else ACTIVATIONS_MARGIN * bound,
            )
        )
    if feature in ZERO:
        bound = 1.0 / RANKS
        rows.append(
            harness.row(
                label + "bytes of variables (bound: %.3g)" % bound,
                [_most(devices)["persistent"] / alone["persistent"]],
                at_most=None if quick else bound + STATE_MARGIN,
            )
        )
    return rows + [
        harness.row(
            label + "step time",
            harness.ratios(after["seconds"], before["seconds"]),
            at_most=None if quick else bound_of_time,
        )
    ]


def _most(devices: Dict[str, Dict[str, float]]) -> Dict[str, float]:
    """Returns the most that any device holds of each."""
    return {kind: max(held[kind] for held in devices.values()) for kind in ("peak", "persistent", "activations")}


def refusal(reason: str) -> str:
    """Returns why a contender is missing: in one line, if EPL refuses what was asked of it."""
    refused = re.findall(r"^(?:\[worker \d+\] )?epl\.utils\.errors\.\w+: (.*)", reason, re.MULTILINE)
    name = re.split(r": \{| ended with code", reason)[0]
    return "%s: refused: %s" % (name, refused[-1]) if refused else reason


def recomputed_share(sizes: List[int], activations: float) -> float:
    """Returns what is left of the activations when each layer is recomputed from its input.

    That is the inputs of all layers, the masks of dropout as a byte each, and one whole layer.

    Args:
        sizes: layers, hidden size, rows.
        activations: bytes of those of all layers.
    """
    layers, hidden, rows = sizes
    tokens = rows * bert.SEQUENCE
    masks = tokens * (2 * hidden + hidden // 64 * bert.SEQUENCE)
    return (layers * (4.0 * tokens * hidden + masks) + activations / layers) / activations
