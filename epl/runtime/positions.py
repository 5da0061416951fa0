"""Positions of input that a script saves (`make_saveable_from_iterator`, `CheckpointInputPipelineHook`), by worker.

Each worker reads rows of its own, so each keeps a file beside the checkpoint that worker 0 writes:

    model.ckpt-20.index                          variables; for plain TensorFlow the position of worker 0, too
    model.ckpt-20.input-00000-of-00002.index     position of worker 0
    model.ckpt-20.input-00001-of-00002.index     position of worker 1

A restore takes the position of its own worker. Without one, or with those of another number of workers, it leaves the
input as it is, and says so.
"""

import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.sharded_variables.fetching import late_ops

logger = logging.getLogger("epl")

_FILE = "{}.input-{:05d}-of-{:05d}"
_RESTORE = "DeserializeIterator"


class PositionOps(NamedTuple):
    """The ops of one Saver that saves positions.

    Attributes:
      path: of the file of this worker, to be fed.
      save, restore: write and read the positions.
      others: name of the op that restores all but positions.
      written: the files of this worker that are kept, oldest first.
    """

    path: tf.Tensor
    save: tf.Operation
    restore: tf.Operation
    others: str
    written: List[str]


class SavedPositions:
    """The ops of a graph's Savers, by the name of their restore op."""

    def __init__(self) -> None:
        self.by_saver: Dict[str, PositionOps] = {}


def save(saver: Any, session: tf.Session, checkpoint: str) -> None:
    """Writes the positions of this worker beside a checkpoint, if the Saver saves any and there are other workers."""
    cluster = Env.get().cluster
    if cluster is None or cluster.worker_num == 1:
        return
    ops = _ops(saver, session)
    if ops is None:
        return
    own = _FILE.format(checkpoint, cluster.worker_index, cluster.worker_num)
    session.run(ops.save, {ops.path: own})
    if own in ops.written:
        ops.written.remove(own)
    ops.written.append(own)
    kept = saver.saver_def.max_to_keep
    while kept and len(ops.written) > kept:
        for name in tf.gfile.Glob(ops.written.pop(0) + ".*"):
            tf.gfile.Remove(name)


def restore(original: Callable[..., None], saver: Any, session: tf.Session, checkpoint: str) -> None:
    """`Saver.restore`: positions are those of this worker."""
    cluster = Env.get().cluster
    ops = _ops(saver, session)
    found = [] if ops is None else tf.gfile.Glob(checkpoint + ".input-*-of-*.index")
    if ops is None or cluster is None or (cluster.worker_num == 1 and not found):
        original(saver, session, checkpoint)
        return
    name = saver.saver_def.restore_op_name
    saver.saver_def.restore_op_name = ops.others
    try:
        original(saver, session, checkpoint)
    finally:
        saver.saver_def.restore_op_name = name
    own = _FILE.format(checkpoint, cluster.worker_index, cluster.worker_num)
    if own + ".index" in found:
        session.run(ops.restore, {ops.path: own})
    else:
        _say_missing(checkpoint, found, cluster)


def _say_missing(checkpoint: str, found: List[str], cluster: Cluster) -> None:
    others = sorted({int(name.rpartition("-of-")[2][: -len(".index")]) for name in found})
    logger.warning(
        "The checkpoint %r has no position of the input for worker %d of %d%s: its input stays where it is, so that "
        "rows may be read again or left out. Call Saver.save in every worker, and go on with as many workers as then.",
        checkpoint,
        cluster.worker_index,
        cluster.worker_num,
        f", but those of {others[-1]} worker(s)" if others else "",
    )


def saves_positions(saver: Any, tf_graph: tf.Graph) -> bool:
    """Whether a Saver, which is built, saves positions of input."""
    return saver.saver_def is not None and bool(_restores(saver, tf_graph)[0])


def _restores(saver: Any, tf_graph: tf.Graph) -> Tuple[List[tf.Operation], List[tf.Operation]]:
    """The ops of a Saver that restore positions, and the others."""
    name = saver.saver_def.restore_op_name
    stack = [tf_graph.get_operation_by_name(name)] if name else []
    positions: List[tf.Operation] = []
    others: List[tf.Operation] = []
    seen = set()
    while stack:
        op = stack.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "NoOp":
            stack.extend(op.control_inputs)
        else:
            (positions if op.type == _RESTORE else others).append(op)
    return positions, others


def _ops(saver: Any, session: tf.Session) -> Optional[PositionOps]:
    """The ops for the positions of a Saver in a training graph, which are built once; None if there are none."""
    graph = Graph.of(session.graph)
    if graph is None or not graph.taskgraphs or saver.saver_def is None:
        return None
    made = graph.state_of(SavedPositions)
    if made is None:
        made = SavedPositions()
        graph.keep(SavedPositions, made)
    name = saver.saver_def.restore_op_name
    if name not in made.by_saver:
        positions, others = _restores(saver, session.graph)
        if not positions:
            return None
        made.by_saver[name] = _build(graph, positions, others)
    return made.by_saver[name]


def _build(graph: Graph, positions: List[tf.Operation], others: List[tf.Operation]) -> PositionOps:
    keys = [_key(op) for op in positions]
    whole = [""] * len(keys)
    with late_ops(graph), tf.name_scope("EPL_POSITIONS"), tf.device("/cpu:0"):
        path = tf.placeholder(tf.string, [])
        states = [tf.raw_ops.SerializeIterator(resource_handle=op.inputs[0]) for op in positions]
        save_op = tf.raw_ops.SaveV2(prefix=path, tensor_names=keys, shape_and_slices=whole, tensors=states)
        read = tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=keys, shape_and_slices=whole, dtypes=[tf.variant] * len(keys)
        )
        moves = [
            tf.raw_ops.DeserializeIterator(resource_handle=op.inputs[0], serialized=state)
            for op, state in zip(positions, read)
        ]
        return PositionOps(path, save_op, tf.group(*moves), tf.group(*others).name, [])


def _key(position: tf.Operation) -> str:
    """The key of a position in the checkpoint, from the op that restores it."""
    value = position.inputs[1]
    while value.op.type == "Identity":
        value = value.op.inputs[0]
    names = tf.get_static_value(value.op.inputs[1])
    return str(tf.compat.as_text(names[value.value_index]))
