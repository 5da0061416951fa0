"""The strategy: how a model is trained on the devices of a job, as a value that is saved and used again.

    Strategy    decisions: blocks of the forward pass, micro batches, recomputation, ZeRO, ... and where each came from
    Plan        what the rewriting does with them: devices, schedule, transfers (epl/parallel/plan/plan.py)

It lists the ops of the forward pass as they were before the rewriting, so that a strategy that was made for another
model is told from the model by the first op in which they differ. Names do not count in that: a model may be renamed.
"""

import hashlib
import json
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from epl.config.config import Config
from epl.config.keys import KEY_BY_NAME
from epl.parallel.plan import values
from epl.parallel.plan.sections import COLLECTIVES_INSIDE, InsideExchange
from epl.utils.errors import PlanError

FORMAT = "epl-strategy"
VERSION = 2
_OF_TEXTS = 1  # the version whose settings have their values as texts of JSON
OUTSIDE = -1  # the block of ops before the first scope, if that is a split, which does not hold them
SCOPES = "scopes"  # where blocks come from that the script annotates
DEFAULT_STRATEGY = "epl.set_default_strategy"  # where the block comes from if the script has no scopes, but this
NO_ANNOTATION = "default"  # where the block comes from if it has neither
OF_SCRIPT = (SCOPES, DEFAULT_STRATEGY, NO_ANNOTATION)  # all others are found, for a script that leaves blocks open
PLANNER = "planner"  # where blocks come from that a search has found

# The configuration keys that a strategy decides.
DECIDED_KEYS = (
    "pipeline.num_micro_batch",
    "pipeline.strategy",
    "gradient_checkpoint.type",
    "gradient_checkpoint.end_taskgraph",
    "zero.level",
    "offload.level",
    "optimizer.num_apply_group",
    "auto.balance",
)
# Keys that say which devices the blocks have; a strategy has them where they are not as by default.
LAYOUT_KEYS = (
    "cluster.colocate_split_and_replicate",
    "cluster.device_place_prefer_intra_node",
    "cluster.device_order",
)


class ForwardOp(NamedTuple):
    """An op that the objective needs.

    Attributes:
      name: its name, for people.
      type: op type.
      inputs: its data inputs: the place of the producer in the list of ops, with ":1" after it for its output 1.
      outputs: dtype and static shape of each, such as "float32[?,128]"; "float32" if the rank is not known.
      block: number of its block, or OUTSIDE.
    """

    name: str
    type: str
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    block: int


class Block(NamedTuple):
    """Ops that are placed together: a TaskGraph.

    Attributes:
      kind: "replicate" or "split".
      devices: of one model replica; 0: a split over all devices.
      outer: for a split in a scope of epl.replicate: the devices of that; else 0.
      ratios: of the parts of a split; () if they are as equal as they can be.
      scopes: the outermost name scopes of its ops, for people.
      stage: for a split in a scope of epl.replicate, and for the other ops of that scope: the number of the scope
        among those with splits, from 1; else 0.
    """

    kind: str
    devices: int
    outer: int
    ratios: Tuple[int, ...]
    scopes: Tuple[str, ...]
    stage: int = 0


class PlannedChoice(NamedTuple):
    """How an op of a split is computed; ops of a split without one are computed in full on every rank.

    Attributes:
      op: its place in the list of ops.
      placements: of its inputs and outputs, as a printed plan has them: "full, shard(1) -> shard(1)".
      inside: the collectives of the op itself; for predictions, the placements decide.
    """

    op: int
    placements: str
    inside: Tuple[InsideExchange, ...] = ()


class SplitChoices(NamedTuple):
    """State of a graph (`Graph.state_of`): the choices of a strategy, by the names that the ops have here.

    Attributes:
      placements: of the ops of splits; "" for an op that is computed in full.
    """

    placements: Dict[str, str]


class Setting(NamedTuple):
    """The decided value of a configuration key.

    Attributes:
      key: a key of `epl.Config`.
      value: as JSON; a file has the plain value.
      origin: where it came from, such as "default", "code" or "planner".
    """

    key: str
    value: str
    origin: str


class Strategy(NamedTuple):
    """The decisions for one model.

    Attributes:
      model: fingerprint of the forward pass: op types, shapes, edges.
      workers, devices, device_type: the job it was made for: processes, devices of each, "CPU" or "GPU".
      blocks_origin: what made the blocks: what the script annotates, or what found them: a policy, or the planner.
      blocks: the TaskGraphs.
      choices: of the ops of splits that are computed on shards.
      settings: the decided configuration keys.
      ops: the forward pass, in the order of the script.
    """

    model: str
    workers: int
    devices: int
    device_type: str
    blocks_origin: str
    blocks: Tuple[Block, ...]
    choices: Tuple[PlannedChoice, ...]
    settings: Tuple[Setting, ...]
    ops: Tuple[ForwardOp, ...]


def strategy_key(config: Config) -> str:
    """The key that asks for a strategy when a model is differentiated; "" if none does."""
    if config.auto.plan_file:
        return "auto.plan_file"
    if config.auto.planner == "search":
        return "auto.planner"
    return "auto.balance" if config.asked("auto.balance") == "speed" else ""


def fingerprint(ops: Sequence[ForwardOp]) -> str:
    """A hash of a forward pass without its names and blocks, in hexadecimal digits."""
    text = json.dumps([_computation(op) for op in ops])
    return hashlib.sha256(text.encode()).hexdigest()


def strategy_hash(strategy: Strategy) -> str:
    """A hash of all decisions, equal for equal strategies only."""
    return hashlib.sha256(to_json(strategy).encode()).hexdigest()


def to_json(strategy: Strategy) -> str:
    """The strategy as text; `from_json` reads it. Equal strategies give equal texts."""
    entries = {"format": FORMAT, "version": VERSION, **json.loads(values.to_json(strategy))}
    entries["settings"] = [{**one, "value": json.loads(one["value"])} for one in entries["settings"]]
    ops = [json.dumps(op, sort_keys=True) for op in entries.pop("ops")]  # a line each
    head = json.dumps(entries, indent=1, sort_keys=True)
    return "{},\n {}: [\n  {}\n ]\n}}\n".format(head[: -len("\n}")], '"ops"', ",\n  ".join(ops))


def from_json(text: str) -> Strategy:
    """The strategy that `to_json` wrote.

    Raises:
      ValueError: the text is none; the message says what was seen, and where in it.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f'it has no entry "format": "{FORMAT}"')
    if found.get("version") not in (VERSION, _OF_TEXTS):
        raise ValueError(
            f"it is of version {found.get('version')!r} of the format, and this EPL reads versions {_OF_TEXTS} and "
            f"{VERSION}"
        )
    rest = {key: value for key, value in found.items() if key not in ("format", "version")}
    if found["version"] != _OF_TEXTS and isinstance(rest.get("settings"), list):
        rest["settings"] = [
            {**one, "value": json.dumps(one["value"])} if isinstance(one, dict) and "value" in one else one
            for one in rest["settings"]
        ]
    strategy: Strategy = values.from_json(Strategy, json.dumps(rest))
    _check(strategy)
    return strategy


def _check(strategy: Strategy) -> None:
    if not strategy.blocks:
        raise ValueError("it has no blocks")
    for number, block in enumerate(strategy.blocks):
        if block.kind not in ("replicate", "split"):
            raise ValueError(f"Strategy.blocks[{number}].kind is {block.kind!r}, not 'replicate' or 'split'")
        if any(ratio < 0 for ratio in block.ratios) or (block.ratios and not any(block.ratios)):
            raise ValueError(f"Strategy.blocks[{number}].ratios is {list(block.ratios)}, not ratios of parts")
        if block.devices < 0 or (block.kind == "replicate" and block.devices == 0):
            raise ValueError(f"Strategy.blocks[{number}].devices is {block.devices}, not a number of devices")
        if block.outer and block.stage < 1:
            raise ValueError(f"Strategy.blocks[{number}].stage is {block.stage}, not the number of its epl.replicate")
    for number, setting in enumerate(strategy.settings):
        if setting.key not in DECIDED_KEYS + LAYOUT_KEYS:
            raise ValueError(f"Strategy.settings[{number}].key is {setting.key!r}, which no strategy decides")
        try:
            value = json.loads(setting.value)
        except ValueError:
            raise ValueError(f"Strategy.settings[{number}].value is {setting.value!r}, not JSON") from None
        try:
            KEY_BY_NAME[setting.key].type.convert(value)
        except ValueError as error:
            raise ValueError(f"{setting.key} is {value!r}, not legal: {error}") from None
    for number, choice in enumerate(strategy.choices):
        if not 0 <= choice.op < len(strategy.ops):
            raise ValueError(f"Strategy.choices[{number}].op is {choice.op}, and there are {len(strategy.ops)} ops")
        for place, one in enumerate(choice.inside):
            where = f"Strategy.choices[{number}].inside[{place}]"
            if one.collective not in COLLECTIVES_INSIDE:
                allowed = ", ".join(COLLECTIVES_INSIDE)
                raise ValueError(f"{where}.collective is {one.collective!r}, not one of {allowed}")
            if not (one.share >= 0 and one.held >= 0):  # neither is NaN
                raise ValueError(f"{where} has a share of {one.share} and holds {one.held}, not numbers of at least 0")
    for number, op in enumerate(strategy.ops):
        if not OUTSIDE <= op.block < len(strategy.blocks):
            raise ValueError(f"Strategy.ops[{number}].block is {op.block}, and there are {len(strategy.blocks)} blocks")
    if fingerprint(strategy.ops) != strategy.model:
        raise ValueError("its ops are not those of its fingerprint, Strategy.model: it was changed by hand")


def refuse_other_model(strategy: Strategy, ops: Sequence[ForwardOp], source: str) -> None:
    """Raises PlanError unless the forward pass is the one that the strategy was made for.

    Args:
      strategy: the strategy.
      ops: the forward pass of the model; its blocks do not count.
      source: where the strategy is from, for the message.
    """
    for place, (here, there) in enumerate(zip(ops, strategy.ops)):
        if _computation(here) != _computation(there):
            where = (
                "outside of all scopes"
                if there.block == OUTSIDE
                else f"in block {there.block} ({block_in_words(strategy.blocks[there.block])})"
            )
            raise PlanError(
                "The strategy of {} was made for another model. They differ first in op {} of the forward pass: it is "
                "{} here and {} there, {}. Make a strategy for this model.".format(
                    source, place, _op_in_words(here), _op_in_words(there), where
                )
            )
    if len(ops) != len(strategy.ops):
        longer = max(ops, strategy.ops, key=len)
        raise PlanError(
            "The strategy of {} was made for another model: the forward pass has {} ops here and {} there; the first "
            "that one of them lacks is {}. Make a strategy for this model.".format(
                source, len(ops), len(strategy.ops), _op_in_words(longer[min(len(ops), len(strategy.ops))])
            )
        )


def differences(mine: Strategy, other: Strategy) -> List[str]:
    """What differs between two strategies, in lines for a person: decisions first, then what they were made for."""
    lines = []
    settings = [{one.key: one for one in strategy.settings} for strategy in (mine, other)]
    for key in DECIDED_KEYS + LAYOUT_KEYS:
        unset = json.dumps(KEY_BY_NAME[key].default) if key in LAYOUT_KEYS else "null"
        here, there = [json.loads(found[key].value if key in found else unset) for found in settings]
        if here != there:
            lines.append(f"{key}: {here!r} -> {there!r}")
    for number in range(max(len(mine.blocks), len(other.blocks))):
        words = [block_in_words(one.blocks[number]) if number < len(one.blocks) else "none" for one in (mine, other)]
        if words[0] != words[1]:
            lines.append("block {}: {} -> {}".format(number, *words))
    if mine.model == other.model:
        moved = [op.name for op, there in zip(mine.ops, other.ops) if op.block != there.block]
        if moved:
            lines.append(f"{len(moved)} ops in other blocks, {moved[0]!r} first")
        choices = [{one.op: one.placements for one in strategy.choices} for strategy in (mine, other)]
        for number, op in enumerate(mine.ops):
            words = [found.get(number, "full") for found in choices]
            if words[0] != words[1]:
                lines.append("{!r}: {} => {}".format(op.name, *words))
    for what in ("workers", "devices", "device_type", "model"):
        here, there = getattr(mine, what), getattr(other, what)
        if here != there:
            lines.append(f"{what}: {here} -> {there}")
    return lines


def describe(strategy: Strategy, blocks_from: str = "") -> List[str]:
    """The decisions in lines for a person.

    Args:
      strategy: the strategy.
      blocks_from: where a model has the blocks from, if not from where the strategy had them.
    """
    counts = Counter(op.block for op in strategy.ops)
    lines = [
        "strategy {} for {} worker(s) x {} {}, blocks from {}".format(
            strategy_hash(strategy)[:12], strategy.workers, strategy.devices, strategy.device_type,
            blocks_from or strategy.blocks_origin,
        )
    ]  # fmt: skip
    for number, block in enumerate(strategy.blocks):
        lines.append(f"block {number}: {block_in_words(block)}, {counts[number]} ops")
    if strategy.choices:
        lines.append(f"{len(strategy.choices)} ops of splits computed on shards, as listed above")
    lines += [f"{one.key} = {one.value}   ({one.origin})" for one in strategy.settings]
    return lines


def block_in_words(block: Block) -> str:
    """A block as its annotation, with the first of its name scopes."""
    ratios = f", ratios={list(block.ratios)}" if block.ratios else ""
    scopes = ", ".join(block.scopes[:3]) + (", ..." if len(block.scopes) > 3 else "")
    return f"epl.{block.kind}({block.devices or None}{ratios})" + (f" on {scopes}" if scopes else "")


def settings_of(get: Callable[[str], Any], provenance: Callable[[str], str]) -> Tuple[Setting, ...]:
    """The decided keys, given `Config.get` and `Config.provenance`."""
    other_layout = [key for key in LAYOUT_KEYS if get(key) != KEY_BY_NAME[key].default]
    return tuple(Setting(key, json.dumps(get(key)), provenance(key)) for key in (*DECIDED_KEYS, *other_layout))


def with_values(strategy: Strategy, values: Mapping[str, Any], origin: str = "") -> Strategy:
    """The strategy with other values of some of its keys.

    Args:
      strategy: the strategy.
      values: by key.
      origin: where they come from; "": from where the values before them come. A value that stays keeps its own.
    """
    made = []
    for one in strategy.settings:
        value = json.dumps(values[one.key]) if one.key in values else one.value
        made.append(one if value == one.value else Setting(one.key, value, origin or one.origin))
    known = {one.key for one in made}
    made += [Setting(key, json.dumps(values[key]), origin) for key in LAYOUT_KEYS if key in values and key not in known]
    return strategy._replace(settings=tuple(made))


def _computation(op: ForwardOp) -> Tuple[Any, ...]:
    return op.type, op.inputs, op.outputs


def _op_in_words(op: ForwardOp) -> str:
    return "{} {!r} -> {}".format(op.type, op.name, ", ".join(op.outputs) or "nothing")


def scopes_of(names: Sequence[str], most: int = 8) -> Tuple[str, ...]:
    """The outermost name scopes of ops, in order; one level deeper if all ops are in a single scope."""
    depth = 1
    while True:
        found: Dict[str, None] = {}
        for name in names:
            scopes = name.split("/")[:-1]
            found.setdefault("/".join(scopes[:depth]) if scopes else name, None)
        deepest = max((name.count("/") for name in names), default=0)
        if len(found) > 1 or depth >= deepest:
            return tuple(found)[:most]
        depth += 1
