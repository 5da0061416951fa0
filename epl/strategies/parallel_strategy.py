"""What `replicate` and `split` have in common: a scope whose ops form one TaskGraph."""

from typing import Any, Optional

from epl.env import Env
from epl.utils.errors import AnnotationError


class ParallelStrategy:
    """A context manager; ops created inside belong to its TaskGraph.

    Attributes:
      device_count: devices of one model replica (`replicate`) or of the shards (`split`); None means 1.
      name: for messages.
      index: position among the explicit scopes, None before it is entered.
    """

    name_of_kind = ""

    def __init__(self, device_count: Optional[int] = None, name: Optional[str] = None) -> None:
        if device_count is not None and (isinstance(device_count, bool) or not isinstance(device_count, int)):
            raise AnnotationError(
                "epl.{}(device_count={!r}): expected a whole number of devices, got {}.".format(
                    self.name_of_kind, device_count, type(device_count).__name__
                )
            )
        if device_count is not None and device_count < 1:
            raise AnnotationError(
                f"epl.{self.name_of_kind}(device_count={device_count}): expected at least one device."
            )
        self.device_count = device_count
        self.name = name or type(self).__name__
        self.index: Optional[int] = None

    def __enter__(self) -> "ParallelStrategy":
        env = Env.get()
        if not env.is_ready:
            raise AnnotationError(f"{self} was entered before epl.init(). Call epl.init() first, then annotate.")
        if env.config.auto.auto_parallel:
            raise AnnotationError(
                "auto.auto_parallel is on and {} was entered: the partition is found automatically, so use no strategy "
                "scope at the same time, or set auto.auto_parallel to False.".format(self)
            )
        env.strategy_context.enter(self)
        return self

    def __exit__(self, *unused: Any) -> None:
        Env.get().strategy_context.exit(self)

    def __repr__(self) -> str:
        return f"epl.{self.name_of_kind}(device_count={self.device_count}, name={self.name!r})"
