"""The ops of a stage as one rank computes them for one micro batch, and the pieces into which they are folded.

    op            0    1    2    3    4    5         positions within the stage, in the order of the forward pass
    forward       [ piece 0 ] [ piece 1    ]         a piece ends where something is exchanged
    backward      [ piece 0 ] [ piece 1    ]         in the opposite order: piece 1, then piece 0
    kept          ----------  -------------          bytes of piece p stay until the backward pass of piece p is done

A piece is one op of the simulated program. Its temporary memory is what its ops hold at their worst moment beyond the
buffers of the program.
"""

from typing import Collection, List, NamedTuple, Sequence, Tuple

import numpy as np

Piece = Tuple[int, int]  # positions from, up to


class StageWork(NamedTuple):
    """The ops of a stage; all arrays are by position.

    Attributes:
      threads: ops that run at the same time.
      producers: the positions of the ops of the stage that each op takes from.
      once: whether it runs once in a step, not for each micro batch.
      forward, backward: seconds.
      outputs: bytes.
      kept: bytes that stay from the forward pass until the backward pass.
      again: bytes that the backward pass computes a second time, and keeps then.
      recomputed: whether the op runs a second time.
      gradients: bytes of the gradient of the outputs; 0 if there is none.
      last: the last position that takes an output; its own if none does.
    """

    threads: int
    producers: Tuple[Tuple[int, ...], ...]
    once: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    outputs: np.ndarray
    kept: np.ndarray
    again: np.ndarray
    recomputed: np.ndarray
    gradients: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.forward)

    def forward_seconds(self, piece: Piece, is_first: bool) -> float:
        """Seconds of the forward pass of a piece; `is_first`: of the first micro batch."""
        return self._seconds(self.forward if is_first else np.where(self.once, 0.0, self.forward), piece)

    def backward_seconds(self, piece: Piece) -> float:
        """Seconds of the backward pass of a piece."""
        return self._seconds(self.backward, piece)

    def recompute_seconds(self, piece: Piece) -> float:
        """Seconds in which a piece is computed a second time."""
        return self._seconds(np.where(self.recomputed, self.forward, 0.0), piece)

    def _seconds(self, times: np.ndarray, piece: Piece) -> float:
        """The sum of the times; with several threads the larger of their share and the longest chain of ops."""
        begin, end = piece
        total = float(times[begin:end].sum())
        if self.threads == 1:
            return total
        finished = [0.0] * (end - begin)
        for at in range(begin, end):
            before = max([finished[one - begin] for one in self.producers[at] if one >= begin], default=0.0)
            finished[at - begin] = before + float(times[at])
        return max(total / self.threads, max(finished, default=0.0))

    def held_by(self, values: np.ndarray, piece: Piece) -> int:
        """The sum of some bytes over a piece."""
        return int(round(float(values[piece[0] : piece[1]].sum())))

    def forward_temporary(self, pieces: Sequence[Piece]) -> List[int]:
        """By piece, the bytes that its forward pass holds at its worst moment beyond what it keeps."""
        return self._temporary(self.kept, self._alive(np.where(self.recomputed, 0.0, self.outputs - self.kept)), pieces)

    def recompute_temporary(self, piece: Piece) -> int:
        """Bytes that the second run of a piece holds at its worst moment beyond what it keeps."""
        alive = self._alive(np.where(self.recomputed, self.outputs - self.again, 0.0))
        return self._temporary(self.again, alive, [piece])[0]

    def _temporary(self, kept: np.ndarray, alive: np.ndarray, pieces: Sequence[Piece]) -> List[int]:
        total = np.concatenate([[0.0], np.cumsum(kept)])
        found = []
        for begin, end in pieces:
            held = alive[begin:end] + total[begin + 1 : end + 1] - total[end]
            found.append(max(0, int(round(float(held.max())))) if end > begin else 0)
        return found

    def backward_temporary(self, pieces: Sequence[Piece], weights: np.ndarray) -> List[int]:
        """By piece, the bytes that its backward pass holds at its worst moment beyond its buffers.

        Args:
          pieces: the pieces.
          weights: by position, the bytes of the gradients of variables that are complete there.
        """
        alive = self._alive(self.gradients)
        kept = np.concatenate([[0.0], np.cumsum(self.kept + self.again)])
        made = np.concatenate([[0.0], np.cumsum(weights)])
        found = []
        for begin, end in pieces:
            still_kept = kept[begin + 1 : end + 1] - kept[end]
            not_yet_made = made[begin:end] - made[begin]
            held = alive[begin:end] + still_kept - not_yet_made
            found.append(max(0, int(round(float(held.max())))) if end > begin else 0)
        return found

    def _alive(self, sizes: np.ndarray) -> np.ndarray:
        """By position, the sum of the sizes that are alive there: each from its own position up to its last use."""
        gone = np.bincount(self.last + 1, weights=sizes, minlength=len(self) + 1)
        return np.cumsum(sizes - gone[:-1])


def pieces_of(cuts: Collection[int], length: int) -> List[Piece]:
    """The pieces between some positions, in order; one if there are no cuts."""
    inner = sorted({cut for cut in cuts if 0 < cut < length})
    return list(zip([0, *inner], [*inner, length]))


def even_cuts(sizes: np.ndarray, count: int) -> List[int]:
    """Positions that cut a stage into at most `count` pieces of about equal bytes."""
    total = np.cumsum(sizes)
    if not len(total) or total[-1] <= 0:
        return []
    return sorted({int(np.searchsorted(total, total[-1] * part / count)) + 1 for part in range(1, count)})
