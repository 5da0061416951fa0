"""Savers of sharded variables: the checkpoints of a split model are those of the unsplit one.

A tf.train.Saver knows the variables of rank 0 of this process. Its ops are completed here, whenever the Saver was made:

    SaveV2      "fc/kernel": v                            "fc/kernel" 10 8 0,10:0,4 : v
                                                    =>    "fc/kernel" 10 8 0,10:4,4 : EPL_REPLICA_1/v
    RestoreV2   "fc/kernel" -> assign v                   the same slices -> assign v, assign EPL_REPLICA_1/v

So a checkpoint holds a full tensor in several slices, as TensorFlow itself writes partitioned variables, and any
program can read full tensors or other slices from it. `checkpoint_parts.py` is for ranks in other processes.
"""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.parallel.sharded_variables.checkpoint_parts import CheckpointParts
from epl.parallel.sharded_variables.initial_values import local_shapes, slice_spec
from epl.parallel.sharded_variables.late_writes import build_assign
from epl.parallel.sharded_variables.variables import SCOPE, wait_instead
from epl.parallel.sharding.resharding import hidden
from epl.parallel.sharding.sharded_variables import ShardInfo
from epl.utils import tf_compat

_HAND_ON = frozenset(["Identity", "ReadVariableOp", "Reshape"])


class Slice(NamedTuple):
    """A variable op of this graph that holds a slice of a full variable.

    Attributes:
      variable: name of the op.
      full_name: name of the full variable in checkpoints.
      spec: the slice, in TensorFlow's notation; of an empty one, as `slice_spec` gives it.
      empty: the shape of the slice if it has no elements, else (). No checkpoint has an empty slice.
    """

    variable: str
    full_name: str
    spec: str
    empty: Tuple[int, ...]


def slices_of(
    variables: Mapping[str, ShardInfo], ranks: Sequence[Tuple[str, int]], before: Mapping[str, str]
) -> Dict[str, List[Slice]]:
    """The slices that this process holds.

    Args:
      variables: name of a variable op of the first rank in this process -> the shard that it holds.
      ranks: (prefix of the copy, rank) of the ranks in this process; the prefix of the first is "".
      before: op of a full variable, which Savers made before the split know -> op of its shard.

    Returns:
      Name of a variable op -> its slices, those of the first rank first.
    """
    found = {
        name: [
            Slice(
                prefix + name,
                info.full_name,
                slice_spec(info.full_shape, info.placement, rank),
                () if shape[info.placement.dim] else shape,
            )
            for prefix, rank in ranks
            for shape in local_shapes(info.full_shape, info.placement)[rank : rank + 1]
        ]
        for name, info in variables.items()
    }
    found.update({full: found[name] for full, name in before.items()})
    return found


def complete_savers(
    tf_graph: tf.Graph, slices: Mapping[str, Sequence[Slice]], after: int = 0, parts: Optional[CheckpointParts] = None
) -> Dict[tf.Operation, tf.Operation]:
    """Makes the ops of Savers write and restore all slices of a variable.

    To be called before a session has seen the ops of the Saver: a session does not see later changes.

    Args:
      tf_graph: the graph; new ops go to the default name scope.
      slices: as `slices_of` gives them.
      after: ops up to this number are completed already (`tf_compat.last_op_id` at that time).
      parts: given on worker 0 if other processes hold further slices; asks them.

    Returns:
      Ops that write checkpoints -> the ops that have replaced them.
    """
    new = tf_compat.ops_since(tf_graph, after)
    replaced = {}
    with tf_graph.as_default(), tf.name_scope(SCOPE + "/save/"), tf.control_dependencies(None):
        for op in [op for op in new if op.type == "SaveV2"]:
            completed = _completed_save(op, slices, parts)
            if completed is not None:
                wait_instead({op: completed})
                replaced[op] = completed
        _complete_restores([op for op in new if op.type in op_types.PLAIN_ASSIGNS], slices)
    return replaced


def _completed_save(
    op: tf.Operation, slices: Mapping[str, Sequence[Slice]], others: Optional[CheckpointParts]
) -> Optional[tf.Operation]:
    """The save op with an entry for each slice; None if it saves no sharded variable."""
    names, specs = (tf_compat.static_value(tensor) for tensor in op.inputs[1:3])
    if names is None or specs is None:
        return None
    entries: List[Tuple[bytes, bytes, tf.Tensor]] = []
    wanted: List[Tuple[str, str]] = []
    for name, spec, tensor in zip(names, specs, op.inputs[3:]):
        variable = _source(tensor, op_types.VARIABLES)
        parts = slices.get(variable.name, ()) if variable is not None else ()
        if not parts:
            entries.append((_key(name), spec, tensor))
            continue
        key = _key(name)
        wanted.append((key.decode(), parts[0].full_name))
        once: Dict[str, Slice] = {}  # by slice, the first of the ranks that hold it
        for part in [part for part in parts if not part.empty]:
            once.setdefault(part.spec, part)
        entries += [(key, part.spec.encode(), value_of(op.graph, part.variable)) for part in once.values()]
    if not wanted:
        return None
    with tf.device(op.device), tf.control_dependencies(op.control_inputs):
        filename = op.inputs[0]
        if others is None:
            return _save(filename, entries)
        own = others.own_prefix(filename)
        return others.merged(filename, own, _save(own, entries) if entries else None, wanted)


def _save(prefix: tf.Tensor, entries: Sequence[Tuple[bytes, bytes, tf.Tensor]]) -> tf.Operation:
    return tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=_strings(name for name, _, _ in entries),
        shape_and_slices=_strings(spec for _, spec, _ in entries),
        tensors=[tensor for _, _, tensor in entries],
    )


def _complete_restores(assigns: Iterable[tf.Operation], slices: Mapping[str, Sequence[Slice]]) -> None:
    found: Dict[tf.Operation, List[Tuple[int, tf.Operation, Sequence[Slice]]]] = {}
    for op in assigns:
        parts = slices.get(op.inputs[0].op.name, ())
        restore = _source(op.inputs[1], op_types.CHECKPOINT_READS) if parts else None
        if restore is not None and restore.type == "RestoreV2":
            found.setdefault(restore, []).append((_output_index(op.inputs[1]), op, parts))
    for restore, entries in found.items():
        _complete_restore(restore, entries)


def _complete_restore(restore: tf.Operation, entries: Sequence[Tuple[int, tf.Operation, Sequence[Slice]]]) -> None:
    """Lets a restore op read the slices of the first rank; a new op reads the slices of the other ranks."""
    names, specs = (tf_compat.static_value(tensor) for tensor in restore.inputs[1:3])
    own_names = list(names)
    own_specs = None if specs is None else list(specs)
    further: List[Tuple[bytes, Slice, tf.Operation]] = []
    for index, assign, parts in entries:
        own_names[index] = _key(names[index])
        if own_specs is not None:  # specs that are not known are the slice of this rank already
            own_specs[index] = parts[0].spec.encode()
        if parts[0].empty:
            with tf.device(assign.device):
                tf_compat.set_input(assign, 1, _emptied(assign.inputs[1], parts[0].empty))
        further += [(own_names[index], part, assign) for part in parts[1:]]
    with tf.device(restore.device):
        tf_compat.set_input(restore, 1, _strings(own_names))
        if own_specs is not None:
            tf_compat.set_input(restore, 2, _strings(own_specs))
        if not further:
            return
        dtypes = [restore.outputs[0].graph.get_operation_by_name(part.variable).get_attr("dtype")
                  for _, part, _ in further]  # fmt: skip
        values = tf.raw_ops.RestoreV2(
            prefix=restore.inputs[0],
            tensor_names=_strings(name for name, _, _ in further),
            shape_and_slices=_strings(part.spec.encode() for _, part, _ in further),
            dtypes=dtypes,
        )
    for value, (_, part, assign) in zip(values, further):
        value = _emptied(value, part.empty) if part.empty else value
        written = build_assign(restore.graph.get_operation_by_name(part.variable), value)
        for waiting in tf_compat.control_outputs(assign):
            tf_compat.add_control_inputs(waiting, [written])


def _emptied(value: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """The empty slice, given what was read in its place; the variable has another static shape."""
    return hidden(tf.slice(value, [0] * len(shape), shape), shape.index(0))


def _source(tensor: tf.Tensor, types: Any) -> Optional[tf.Operation]:
    """The op of one of `types` whose output reaches `tensor` unchanged."""
    while tensor.op.type in _HAND_ON:
        tensor = tensor.op.inputs[0]
    return tensor.op if tensor.op.type in types else None


def _output_index(tensor: tf.Tensor) -> int:
    """The index of a tensor in the outputs of its source."""
    while tensor.op.type in _HAND_ON:
        tensor = tensor.op.inputs[0]
    return tensor.value_index


def _key(name: bytes) -> bytes:
    """The key in the single-device program's checkpoint: TensorFlow derives keys from the names of ops."""
    return name.replace(SCOPE.encode() + b"/", b"", 1)


def value_of(tf_graph: tf.Graph, name: str) -> tf.Tensor:
    """The value of a variable, given by the name of its op."""
    op = tf_graph.get_operation_by_name(name)
    if op.type in op_types.REF_VARIABLES:
        return op.outputs[0]
    with tf.device(op.device):
        return tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=op.get_attr("dtype"))


def _strings(values: Iterable[bytes]) -> tf.Tensor:
    return tf.constant(np.asarray(list(values), object), tf.string)
