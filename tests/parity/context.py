"""What a user script of the oracle sees: its share of the samples, the annotations, and where it puts its results.

A script is a function ``script(ctx, ...)`` that builds a model, trains it and records losses and variables. The same
script runs plain (one device, the global batch), by hand (one device, one tower per replica, averaged gradients) and
under a plan; it asks ``ctx`` for whatever differs. How processes are started is left to ``pool.py``, comparing results
to ``oracle.py``.
"""

import contextlib
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

PLAIN = "plain"  # one device, the batch of all replicas at once, EPL not imported
BY_HAND = "by hand"  # one device, a tower per replica with its own statistics, gradients averaged; EPL not imported
PLAN = "plan"  # EPL

GLOBAL_BATCH = 16
STEPS = 6

ModelFunction = Callable[..., tf.Tensor]


def clone_name(name: str, replica: int) -> str:
    """Returns the name that a local replica's copy of ``name`` has in the graph."""
    return name if replica == 0 else "EPL_REPLICA_%d/%s" % (replica, name)


class Context:
    """One run of one script in one process.

    Attributes:
        mode: PLAIN, BY_HAND or PLAN.
        workers: processes of the job.
        devices: devices of each process; in BY_HAND mode the towers of the one process.
        together: n of epl.replicate(n): a process reads one batch for so many of its replicas, if it has as many.
        stages: of the model; a script of a pipeline sets both.
        worker: index of this process.
        results: what the script recorded; a list per name.
    """

    def __init__(self, mode: str, workers: int, devices: int, together: int, worker: int, directory: str) -> None:
        self.mode = mode
        self.workers = workers
        self.devices = devices
        self.together = together
        self.stages = 1
        self.worker = worker
        self.directory = directory
        self.results: Dict[str, List[Any]] = {}

    # ---- The job.

    @property
    def local_replicas(self) -> int:
        return self.devices // self.stages

    @property
    def replicas(self) -> int:
        return self.workers * self.local_replicas

    @property
    def planned(self) -> bool:
        return self.mode == PLAN

    @property
    def batch(self) -> int:
        """Rows that the script reads at once."""
        if self.mode == PLAIN:
            return GLOBAL_BATCH
        return GLOBAL_BATCH // self.replicas * min(self.together, self.local_replicas)

    @property
    def process_batch(self) -> int:
        """Rows that this process consumes in one step."""
        return GLOBAL_BATCH if self.mode != PLAN else GLOBAL_BATCH // self.workers

    def init(self, annotate: bool = True, **config: Any) -> None:
        """Calls ``epl.init``; keys are written ``section__key``. A no-op without a plan."""
        if not self.planned:
            return
        import epl

        epl.init(epl.Config({key.replace("__", "."): value for key, value in config.items()}))
        if annotate:
            epl.set_default_strategy(epl.replicate(self.together))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The model's annotation, for scripts that use a scope and not a default strategy."""
        if not self.planned:
            yield
            return
        import epl

        with epl.replicate(self.together):
            yield

    # ---- The samples.

    def mine(self, rows: np.ndarray) -> np.ndarray:
        """Returns this process's rows of one step's global batch: contiguous, in the order of the replicas."""
        return rows[self.worker * self.process_batch : (self.worker + 1) * self.process_batch]

    def step_rows(self, rows: np.ndarray, step: int) -> np.ndarray:
        """Returns what this process feeds in a step, of ``rows`` that hold all steps one after the other."""
        return self.mine(rows[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH])

    def stream(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows that this process reads in all steps, in order."""
        return np.concatenate([self.step_rows(rows, step) for step in range(len(rows) // GLOBAL_BATCH)])

    # ---- The model.

    def towers(
        self, model: ModelFunction, inputs: Sequence[tf.Tensor], sizes: Optional[Sequence[Any]] = None
    ) -> List[tf.Tensor]:
        """Returns the loss of the model; in BY_HAND mode one loss per replica, on its rows and its own statistics.

        `sizes` are the rows of the replicas, equal by default.
        """
        if self.mode != BY_HAND:
            return [model(*inputs)]
        first: Dict[str, tf.Variable] = {}
        pieces = [tf.split(tensor, self.replicas if sizes is None else sizes) for tensor in inputs]
        losses = []
        for replica in range(self.replicas):
            with tf.variable_scope(
                tf.get_variable_scope(), custom_getter=_shared(first, clone_name("", replica))
            ), tf.name_scope(clone_name("", replica) or None):
                losses.append(model(*[piece[replica] for piece in pieces]))
        return losses

    def minimize(self, losses: List[tf.Tensor], optimizer: tf.train.Optimizer) -> tf.Operation:
        """Returns the training op of the mean of the losses, with UPDATE_OPS before it."""
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            if len(losses) == 1:
                return optimizer.minimize(losses[0], global_step=tf.train.get_or_create_global_step())
            pairs = self.gradients(losses, optimizer)
            return optimizer.apply_gradients(pairs, global_step=tf.train.get_or_create_global_step())

    def gradients(self, losses: List[tf.Tensor], optimizer: tf.train.Optimizer) -> List[Tuple[Any, tf.Variable]]:
        """Returns what `optimizer` applies: the mean over the losses of each variable's gradient, and the variable."""
        towers = [optimizer.compute_gradients(loss) for loss in losses]
        if len(towers) == 1:
            return towers[0]
        return [
            (tf.add_n([tf.convert_to_tensor(g) for g, _ in same]) / len(same), same[0][1])
            for same in zip(*towers)
            if same[0][0] is not None
        ]

    # ---- The results.

    def temporary_directory(self) -> str:
        """Returns a new directory of this process."""
        return tempfile.mkdtemp(dir=self.directory)

    def record(self, **values: Any) -> None:
        """Appends each value to the list of its name."""
        for name, value in values.items():
            self.results.setdefault(name, []).append(value)

    def record_checkpoint(self, path: str) -> None:
        """Records where a checkpoint is, and the variables in it."""
        reader = tf.train.load_checkpoint(path)
        self.results["variables"] = [{name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}]
        self.results["path"] = path

    @contextlib.contextmanager
    def saving_session(self, path: str = "", steps: int = STEPS) -> Iterator[tf.Session]:
        """A monitored session, of so many steps, that begins with a checkpoint, if there is one.

        The checkpoint that it writes is recorded, by the worker that writes it.
        """
        restore = tf.train.Saver()
        scaffold = tf.train.Scaffold(init_fn=(lambda _, sess: restore.restore(sess, path)) if path else None)
        directory = self.temporary_directory()
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=directory, scaffold=scaffold, save_summaries_steps=None, save_checkpoint_steps=steps
        ) as sess:
            yield sess
        written = tf.train.latest_checkpoint(directory)
        if written:
            self.record_checkpoint(written)

    def record_variables(self, sess: tf.Session, variables: Optional[Sequence[tf.Variable]] = None) -> None:
        """Records every global variable, as the user fetches it, and as it stands on each further local replica."""
        variables = list(tf.global_variables() if variables is None else variables)
        names = [variable.name.partition(":")[0] for variable in variables]
        self.results["variables"] = [dict(zip(names, sess.run(variables)))]
        if not self.planned:
            return
        replicas = []
        for replica in range(1, self.local_replicas):
            values = {}
            for variable in variables:
                name = variable.op.name
                value = _replica_value(sess.graph, clone_name(name, replica))
                if value is not None and not hasattr(variable, "_epl_full"):  # not a part: each rank has its own of it
                    values[name] = value
            replicas.append(sess.run(values))
        self.results["replicas"] = replicas


def _shared(first: Dict[str, tf.Variable], prefix: str) -> Callable[..., tf.Variable]:
    """Returns a custom getter: trainable variables are those in `first`, the others stand under the prefix."""

    def getter(getter: Callable[..., tf.Variable], name: str, *args: Any, **kwargs: Any) -> tf.Variable:
        if kwargs.get("trainable", True):
            if name not in first:
                first[name] = getter(name, *args, **kwargs)
            return first[name]
        kwargs["reuse"] = False
        return getter(prefix + name, *args, **kwargs)

    return getter


def _replica_value(graph: tf.Graph, name: str) -> Optional[tf.Tensor]:
    """Returns what reads the variable of that name, or None where training does not need a copy of it."""
    try:
        operation = graph.get_operation_by_name(name)
    except KeyError:
        return None
    if operation.type != "VarHandleOp":
        return operation.outputs[0]
    for consumer in operation.outputs[0].consumers():
        if consumer.type == "ReadVariableOp" and not consumer.control_inputs:
            return consumer.outputs[0]
    # Nothing but loops and optimizer kernels use it; the graph may be finalized already.
    finalized = graph.finalized
    graph._unsafe_unfinalize()  # pylint: disable=protected-access
    with graph.as_default(), tf.device(operation.device), tf.control_dependencies(None):
        value = tf.raw_ops.ReadVariableOp(resource=operation.outputs[0], dtype=operation.get_attr("dtype"))
    if finalized:
        graph.finalize()
    return value
