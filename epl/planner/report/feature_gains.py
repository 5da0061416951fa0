"""What each feature of a plan buys: the same plan without it, simulated.

    plan              2 stages, 1F1B, 8 micro batches, ZeRO v1     3.0 ms   1,200 MB
    without ZeRO      2 stages, 1F1B, 8 micro batches              2.8 ms   1,900 MB: lacks 300 MB
    without 1F1B      2 stages, GPipe, 8 micro batches, ZeRO v1    3.0 ms   1,700 MB

Each costs one simulation of a step; there are at most ten.
"""

import time
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence

from epl.config.config import Config
from epl.env import Env
from epl.parallel.plan.strategy import OUTSIDE, Block, Strategy, with_values
from epl.planner.machine import quantities
from epl.planner.prediction.layout import decided
from epl.planner.prediction.prediction import Prediction, predict
from epl.planner.search.planned_model import PlannedModel
from epl.profiler import tables
from epl.utils.errors import EplError

_MOST_SECONDS = 60.0  # after so long no further feature is simulated
_GPIPE = "PreferForward"


class FeatureGain(NamedTuple):
    """A plan without one of its features.

    Attributes:
      feature: the feature, as the plan has it.
      without: what is there in its place.
      seconds: of a step without it; None if that is not simulated.
      peak: the most bytes that a device holds without it; None as `seconds`.
      lacks: the most bytes that a device lacks without it; 0 if it fits.
      refusal: why it is not simulated; else "".
    """

    feature: str
    without: str
    seconds: Optional[float]
    peak: Optional[int]
    lacks: int
    refusal: str


class _Variant(NamedTuple):
    """A plan without a feature: its strategy, and the configuration it is simulated with."""

    feature: str
    without: str
    strategy: Strategy
    config: Config


def find_gains(
    strategy: Strategy, prediction: Prediction, model: PlannedModel, most_seconds: float = _MOST_SECONDS
) -> List[FeatureGain]:
    """What each feature of a plan buys.

    Args:
      strategy: the plan.
      prediction: of it.
      model: what it is simulated with.
      most_seconds: after so long the features that are left are not simulated.
    """
    end = time.monotonic() + most_seconds
    found = []
    for variant in _variants(strategy, prediction, Env.get().config):
        told = FeatureGain(variant.feature, variant.without, None, None, 0, "")
        if time.monotonic() > end:
            found.append(told._replace(refusal=f"the features before it took {most_seconds:.0f} s to simulate"))
            continue
        try:
            step = predict(variant.strategy, model.costs, model.machine, model.rows, variant.config)
        except EplError as error:
            found.append(told._replace(refusal=str(error)))
            continue
        lacks = max(one.memory.lacks for one in step.devices)
        found.append(told._replace(seconds=step.seconds, peak=peak_of(step), lacks=lacks))
    return found


def peak_of(prediction: Prediction) -> int:
    """The most bytes that a device of a plan holds."""
    return max(one.memory.peak for one in prediction.devices)


def rows_of_gains(gains: Sequence[FeatureGain], prediction: Prediction) -> List[List[str]]:
    """The rows of a table for people, with its titles first."""
    rows = [["feature", "without it", "step", "peak memory of a device", "so the feature"]]
    peak = peak_of(prediction)
    rows.append(["the plan", "", _seconds(prediction.seconds), _megabytes(peak), ""])
    for one in gains:
        if one.seconds is None or one.peak is None:
            rows.append([one.feature, one.without, "not simulated", one.refusal, ""])
            continue
        lacks = f", lacks {_megabytes(one.lacks)}" if one.lacks else ""
        rows.append([
            one.feature,
            one.without,
            f"{_seconds(one.seconds)} ({_change(one.seconds, prediction.seconds)})",
            f"{_megabytes(one.peak)} ({_change(one.peak, peak)}){lacks}",
            _in_words(one.seconds - prediction.seconds, one.peak - peak),
        ])  # fmt: skip
    return rows


def describe_gains(gains: Sequence[FeatureGain], prediction: Prediction) -> List[str]:
    """The gains in lines for a person."""
    return tables.aligned(rows_of_gains(gains, prediction), left=(0, 1, 2, 3, 4))


def _variants(strategy: Strategy, prediction: Prediction, config: Config) -> Iterator[_Variant]:
    """The plan without each of its features in turn."""
    values = decided(strategy)
    stages = 1 + max(one.stage for one in prediction.devices)
    ranks = sum(len(one.ranks) for one in prediction.devices if one.stage == 0)
    micro_batches = int(values["pipeline.num_micro_batch"])
    kinds = list(dict.fromkeys(f"epl.{block.kind}({block.devices or ''})" for block in strategy.blocks))
    replicas = with_values(_in_one_block(strategy), {"gradient_checkpoint.end_taskgraph": -1})
    if stages > 1:
        whole = with_values(replicas, {"pipeline.num_micro_batch": 1})
        yield _Variant(f"pipeline of {stages} stages", "all of the model on each device", whole, config)
    elif kinds != ["epl.replicate(1)"]:
        yield _Variant(" and ".join(kinds), "epl.replicate(1): all of the model on each device", replicas, config)
    if micro_batches > 1:
        one = with_values(strategy, {"pipeline.num_micro_batch": 1})
        yield _Variant(f"{micro_batches} micro batches", "all rows of a step at once", one, config)
    if stages > 1 and micro_batches > 1 and values["pipeline.strategy"] != _GPIPE.lower():
        gpipe = with_values(strategy, {"pipeline.strategy": _GPIPE})
        yield _Variant(
            f"schedule {values['pipeline.strategy']}", "all forward passes first, as GPipe does", gpipe, config
        )
    if values["zero.level"] and ranks > 1:
        off = with_values(strategy, {"zero.level": ""})
        yield _Variant(f"ZeRO {values['zero.level']}", "variables and slots in full on each device", off, config)
    if values["offload.level"]:
        off = with_values(strategy, {"offload.level": ""})
        yield _Variant(f"offload {values['offload.level']}", "variables and slots on the devices", off, config)
    if values["gradient_checkpoint.type"]:
        off = with_values(strategy, {"gradient_checkpoint.type": ""})
        yield _Variant("gradient checkpoint", "activations are kept", off, config)
    if values["auto.balance"] != "even" and ranks > 1:
        even = with_values(strategy, {"auto.balance": "even"})
        yield _Variant(f"rows {values['auto.balance']}", "as many rows for each replica", even, config)
    if int(values["optimizer.num_apply_group"]) > 1:
        one = with_values(strategy, {"optimizer.num_apply_group": 1})
        yield _Variant(f"{values['optimizer.num_apply_group']} groups of updates", "one group", one, config)
    if ranks > 1 and config.communication.max_splits > 1:
        late = "all gradients in one bucket, after the backward pass"
        yield _Variant("gradients overlap backward", late, strategy, _but(config, "communication.max_splits", 1))
    if ranks > 1 and config.communication.fp16:
        yield _Variant("gradients in float16", "in float32", strategy, _but(config, "communication.fp16", False))


def _in_one_block(strategy: Strategy) -> Strategy:
    """The strategy with all of the model on each device."""
    return strategy._replace(
        blocks=(Block("replicate", 1, 0, (), ()),),
        choices=(),
        ops=tuple(op._replace(block=0) if op.block != OUTSIDE else op for op in strategy.ops),
    )


def _but(config: Config, key: str, value: Any) -> Config:
    other = config.copy()
    other.set(key, value)
    return other


def _in_words(seconds: float, peak: int) -> str:
    """What a feature gains and costs, given how much more a step takes without it."""
    more = (("time", seconds), ("memory", float(peak)))
    gained = " and ".join(what for what, change in more if change > 0)
    paid = " and ".join(what for what, change in more if change < 0)
    words = [f"gains {gained}" if gained else "", f"costs {paid}" if paid else ""]
    return ", ".join(filter(None, words)) or "no difference"


def _seconds(seconds: float) -> str:
    return quantities.show(seconds, quantities.SECONDS)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _change(value: float, before: float) -> str:
    return f"{100 * (value - before) / before:+.1f}%" if before else "no change"
