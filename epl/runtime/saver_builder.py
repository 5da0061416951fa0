"""`MemoryEfficientBuilder`: a Saver writes the variables in pieces, one after another."""

import uuid
from typing import Any, Iterator, List, Sequence

import tensorflow.compat.v1 as tf

from epl.utils import tf_compat

_MEBIBYTE = 1 << 20


class MemoryEfficientBuilder(tf_compat.SaverBuilder):
    """For `tf.train.Saver(builder=MemoryEfficientBuilder())`: saving takes little memory beside the variables.

    TensorFlow copies all variables to host memory at once and then writes them. Here a piece is copied when the piece
    before is on disk. Each piece is a data file of the one checkpoint, which loads as any other.
    """

    def __init__(self, sharded_size: int = 50 * _MEBIBYTE) -> None:
        """Takes the bytes that a piece has at most; a larger variable is a piece of its own.

        Raises:
          ValueError: not a positive number of bytes.
        """
        super().__init__()
        if isinstance(sharded_size, bool) or not isinstance(sharded_size, int) or sharded_size < 1:
            raise ValueError(f"sharded_size is {sharded_size!r}: expected a positive number of bytes.")
        self._sharded_size = sharded_size

    def _AddSaveOps(self, filename_tensor: tf.Tensor, saveables: Sequence[Any]) -> tf.Tensor:  # noqa: N802  TensorFlow's
        pieces = list(self._pieces(saveables))
        prefixes: List[tf.Tensor] = []
        written: List[tf.Operation] = []
        with tf.device("/cpu:0"):
            beginning = tf.strings.join([filename_tensor, f"_temp_{uuid.uuid4().hex}/part"])
            for index, piece in enumerate(pieces):
                prefixes.append(self.sharded_filename(beginning, index, tf.constant(len(pieces))))
                written = [_write(prefixes[-1], piece, written)]
            with tf.control_dependencies(written):
                merged = tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=prefixes, destination_prefix=filename_tensor, delete_old_dirs=True
                )
            with tf.control_dependencies([merged]):
                return tf.identity(filename_tensor)

    def _AddShardedSaveOps(self, filename_tensor: tf.Tensor, per_device: Sequence[Any]) -> tf.Tensor:  # noqa: N802
        """What `sharded=True` asks for: pieces, too."""
        return self._AddSaveOps(filename_tensor, [saveable for _, group in per_device for saveable in group])

    def _pieces(self, saveables: Sequence[Any]) -> Iterator[List[Any]]:
        piece: List[Any] = []
        size = 0
        for saveable in saveables:
            more = _bytes_of(saveable)
            if piece and size + more > self._sharded_size:
                yield piece
                piece, size = [], 0
            piece.append(saveable)
            size += more
        if piece:
            yield piece


def _bytes_of(saveable: Any) -> int:
    """Of what is a variable; 0 for anything else (a table), whose size is not known."""
    shape, kind = getattr(saveable.op, "shape", None), getattr(saveable.op, "dtype", None)
    count = shape.num_elements() if shape is not None else None
    return count * kind.base_dtype.size if count and kind is not None else 0


def _write(prefix: tf.Tensor, saveables: Sequence[Any], before: Sequence[tf.Operation]) -> tf.Operation:
    specs = [spec for saveable in saveables for spec in saveable.specs]
    values = []
    with tf.control_dependencies(before):
        for spec in specs:
            with tf.device(spec.device):  # so that the copy to the host is of what has waited
                values.append(tf.identity(spec.tensor))
    write = tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[spec.name for spec in specs],
        shape_and_slices=[spec.slice_spec for spec in specs],
        tensors=values,
    )
    tf_compat.add_control_inputs(
        write, before
    )  # of the op itself, too: sharded_variables/savers.py may replace its values
    return write
