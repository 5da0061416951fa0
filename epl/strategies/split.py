"""`epl.split`: tensor model parallelism for the ops inside."""

from fractions import Fraction
from math import gcd, isfinite
from numbers import Real
from typing import Any, Mapping, Optional, Sequence, Tuple

from epl.strategies.parallel_strategy import ParallelStrategy
from epl.utils.errors import AnnotationError


class Split(ParallelStrategy):
    """The ops inside form one TaskGraph that is sharded over devices. See `split`.

    Attributes:
      ratios: of the parts, by device, as whole numbers; () if they are as equal as they can be. A device with 0 has
        empty parts.
      choices: (pattern of op names, placements as text) of the ops whose choice is given.
    """

    name_of_kind = "split"

    def __init__(
        self,
        device_count: Optional[int] = None,
        name: Optional[str] = None,
        ratios: Optional[Sequence[float]] = None,
        *,
        choices: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.choices = () if choices is None else _pairs(choices)
        self.ratios = () if ratios is None else _whole_ratios(ratios)
        super().__init__(len(self.ratios) if device_count is None and ratios is not None else device_count, name)
        if ratios is not None and len(self.ratios) != self.device_count:
            raise AnnotationError(
                "epl.split(device_count={}, ratios={!r}) has {} ratios for {} device(s). Give one for each device, in "
                "the order of the devices.".format(self.device_count, ratios, len(self.ratios), self.device_count)
            )

    def __repr__(self) -> str:
        ratios = f", ratios={list(self.ratios)}" if self.ratios else ""
        return f"{super().__repr__()[:-1]}{ratios})"


def _pairs(choices: Any) -> Tuple[Tuple[str, str], ...]:
    if not isinstance(choices, Mapping) or not all(isinstance(one, str) for pair in choices.items() for one in pair):
        raise AnnotationError(
            "epl.split(choices={!r}): expected a dict from names of ops to the placements of their outputs, such as "
            '{{"fc1/MatMul": "shard(1)", "fc2/MatMul": "partial"}}.'.format(choices)
        )
    return tuple(choices.items())


def _whole_ratios(ratios: Any) -> Tuple[int, ...]:
    """The ratios as whole numbers without a common divisor, as exact as they are written."""
    if isinstance(ratios, (str, bytes, dict, set)) or not hasattr(ratios, "__iter__"):
        raise _wrong_ratios(ratios)
    exact = []
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, Real) or not isfinite(ratio) or ratio < 0:
            raise _wrong_ratios(ratios)
        exact.append(Fraction(ratio) if isinstance(ratio, (int, Fraction)) else Fraction(repr(float(ratio))))
    if not any(exact):
        raise _wrong_ratios(ratios)
    scale = 1
    for one in exact:
        scale *= one.denominator // gcd(scale, one.denominator)
    whole = [int(one * scale) for one in exact]
    common = 0
    for number in whole:
        common = gcd(common, number)
    return tuple(number // common for number in whole)


def _wrong_ratios(ratios: object) -> AnnotationError:
    return AnnotationError(
        "epl.split(ratios={!r}): expected a list of numbers from 0 up, one for each device and not all of them 0, such "
        "as [3, 1] for a part on the first device that is three times as large as the second, or [1, 0] for all on the "
        "first device.".format(ratios)
    )


def split(
    device_count: Optional[int] = None,
    name: Optional[str] = None,
    ratios: Optional[Sequence[float]] = None,
    *,
    choices: Optional[Mapping[str, str]] = None,
) -> Split:
    """Annotates ops to be sharded over `device_count` devices, as if they ran on one.

    Args:
      device_count: number of shards; None: of all devices of the job, or as many as there are ratios.
      name: for messages.
      ratios: numbers from 0 up, one for each device: how large the parts are in relation to each other. A device with 0
        has no part: with [1, 0] the first device computes the ops for the batches of both. None: as equal as they can
        be. Batches are not cut by them; each device has the rows that it is fed.
      choices: how ops are cut, where EPL is not to choose. Maps names of ops, or patterns such as "block_*/MatMul", to
        the placements of their outputs ("full", "partial", "shard(1)" for a cut along dimension 1), or to those of
        inputs and outputs as the printed plan has them, "full, shard(1) -> shard(1)".

    Returns:
      A context manager.

    Raises:
      AnnotationError: not a positive whole number of devices, or ratios that are not one number for each, at least one
        of them above 0, or choices that are no dict of texts. What no op can do is a PlanError in tf.gradients.
    """
    return Split(device_count, name, ratios, choices=choices)
