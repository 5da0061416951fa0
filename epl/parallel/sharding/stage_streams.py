"""The resharder of a split in the stages of a pipeline: each pass of each stage has a stream of collectives of its own.

    stage 0   forward     a/0 ─▶ b/0 ─▶ a/1 ─▶ b/1 ─▶ ...       collective/micro batch
    stage 1   forward     c/0 ─▶ c/1 ─▶ ...
              backward    d/0 ─▶ d/1 ─▶ ...

In the communicator of a stream, the collectives of one micro batch follow those of the micro batch before, whatever
other passes do. So all ranks of a group run the collectives of a communicator in the same order, under any schedule.
Collectives that run once per step (norms of gradients) have a stream in each stage, too. The rewriting pass that clones
micro batches orders their collectives.
"""

import contextlib
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from epl.ops.communicator import Communicator
from epl.parallel.sharding.resharding import CollectiveStream, Resharder


class StagePass(NamedTuple):
    """A pass of a stage whose ops are built together.

    Attributes:
      stage: of the pipeline.
      backward: whether it computes gradients.
      call: how many calls of tf.gradients were complete before it.
    """

    stage: int
    backward: bool
    call: int


class StageResharder(Resharder):
    """Reshards tensors for one rank of a split group, with one stream for each pass of each stage.

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
          communicator, rank, key, fp16_scale: as in Resharder; the communicator is for collectives of stage 0 that run
            once a step.
          open_stream: gives the communicator of a stage for a stream of the given name.
          current: gives the pass whose ops are being built.
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
        """Ops built inside run once per step, not once per micro batch."""
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
