"""The resharder of a split in the stages of a pipeline: each pass of each stage has collectives of its own.

    stage 0   forward     a/0 ─▶ b/0 ─▶ a/1 ─▶ b/1 ─▶ ...       collective/micro batch
    stage 1   forward     c/0 ─▶ c/1 ─▶ ...
              backward    d/0 ─▶ d/1 ─▶ ...

A pass is a stream: a communicator in which the collectives of one micro batch follow those of the one before, whatever
other passes do meanwhile. So all ranks of a group run those of a communicator in the same order, under any schedule.
What is done once per step (norms of gradients) has a stream in each stage, too. Between the micro batches order is made
by the pass that clones them.
"""

import contextlib
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from epl.ops.communicator import Communicator
from epl.parallel.sharding.resharding import CollectiveStream, Resharder


class StagePass(NamedTuple):
    """What is built at a time.

    Attributes:
      stage: of the pipeline.
      backward: whether gradients are computed.
      call: how many calls of tf.gradients were complete before.
    """

    stage: int
    backward: bool
    call: int


class StageResharder(Resharder):
    """Moves tensors between the ranks of a split group, in a stream for each pass of each stage.

    Attributes:
      of_passes: the streams of the passes that have collectives.
    """

    def __init__(
        self,
        communicator: Communicator,
        rank: int,
        key: str,
        fp16_scale: Optional[int],
        open_stream: Callable[[int, str], Communicator],
        current: Callable[[], StagePass],
    ) -> None:
        """Starts with no collective.

        Args:
          communicator, rank, key, fp16_scale: as those of Resharder; the communicator is for what stage 0 does once a
            step.
          open_stream: gives the communicator of a stage for what is named.
          current: the pass whose ops are being built.
        """
        super().__init__(communicator, rank, key, fp16_scale)
        self._open_stream = open_stream
        self._current = current
        self._once = False
        self._once_a_step: Dict[int, CollectiveStream] = {}  # by stage
        self.of_passes: Dict[StagePass, CollectiveStream] = {}

    @property
    def streams(self) -> List[CollectiveStream]:
        """All streams."""
        return [*super().streams, *self._once_a_step.values(), *self.of_passes.values()]

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """What is built inside is done once per step, and not for each micro batch."""
        before, self._once = self._once, True
        try:
            yield
        finally:
            self._once = before

    def _stream(self) -> CollectiveStream:
        current = self._current()
        if not self._once:
            if current not in self.of_passes:
                kind = "backward" if current.backward else "forward"
                self.of_passes[current] = CollectiveStream(self._open_stream(current.stage, kind + str(current.call)))
            return self.of_passes[current]
        if current.stage == 0:
            return super()._stream()
        if current.stage not in self._once_a_step:
            self._once_a_step[current.stage] = CollectiveStream(self._open_stream(current.stage, "once"))
        return self._once_a_step[current.stage]
