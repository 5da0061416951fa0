"""Monitored sessions and Estimators of several workers: worker 0 writes the checkpoints, and the others find them.

A script may give each worker a directory of its own, as it gets one from `epl-launch`, or all of them the same:

    worker 0   model/0/  model.ckpt-20.*  checkpoint        written by worker 0
    worker 1   model/1/  checkpoint ----> model/0/model.ckpt-20

When the training ends, the other workers wait until worker 0 has written its last checkpoint, and name it in the file
`checkpoint` of their directory. What TensorFlow finds there (evaluation, prediction, export, the next training) is the
model that was trained, on every worker.
"""

import inspect
import json
import logging
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.parallel.transformation import ToldByWorkers
from epl.runtime import metric_sums
from epl.utils import tf_compat
from epl.utils.errors import PlanError

logger = logging.getLogger("epl")

# What makes tf.train.MonitoredTrainingSession write; the count of steps is an event file, too.
_WRITING_OPTIONS = (
    "save_checkpoint_secs", "save_checkpoint_steps", "save_summaries_secs", "save_summaries_steps",
    "log_step_count_steps",
)  # fmt: skip
_DISTRIBUTION = ("train_distribute", "eval_distribute", "experimental_distribute", "device_fn")  # of a RunConfig
_PATIENCE_S = 120.0  # until worker 0 begins to write its last checkpoint
_WRITING_S = 1800.0  # until it has written it
_POLL_S = 0.1
_UNSEEN = (
    "Worker 0 writes the checkpoints of the job, the last one as {!r}, and worker {} does not see it. There an "
    "Estimator evaluates, predicts and exports initial values, or those of an earlier checkpoint. Give all workers a "
    "directory on a file system that they share, or do this on worker 0 alone "
    "(epl.Env.get().cluster.worker_index == 0)."
)


class CheckpointPaths(NamedTuple):
    """The checkpoints of a monitored session that trains; worker 0 tells the others of its own.

    Attributes:
      directory: where the session looks for one; "" if nowhere.
      saves_as: path of those that are written, without the number of the step; "" if none is.
      begins_with: path of that from which the training goes on; "" if there is none.
    """

    directory: str
    saves_as: str
    begins_with: str


def training_session(
    original: Callable[..., Any], master: str = "", is_chief: bool = True, *args: Any, **kwargs: Any
) -> Any:
    """`MonitoredTrainingSession`: every worker is the chief of its own local session; worker 0 alone writes.

    A session of no chief waits for the chief to initialize its variables, which in another process it never does. That
    of a trial of a plan writes nothing, and begins with initial values.
    """
    cluster = Env.get().cluster
    graph = Graph.get()
    if Env.get().trial is not None:
        given = inspect.signature(original).bind(master, True, *args, **kwargs).arguments
        _write_nothing(given)
        given["checkpoint_dir"] = None
        return original(**given)
    if cluster is None or cluster.worker_num == 1 or graph is None or not graph.taskgraphs:
        return original(master, is_chief, *args, **kwargs)
    given = inspect.signature(original).bind(master, is_chief, *args, **kwargs).arguments
    own = _checkpoints(given)
    if not is_chief:
        given["chief_only_hooks"] = None
    given["is_chief"] = True
    trains_first = graph.rewritten is None and bool(graph.gradient_calls or graph.apply_calls)
    if trains_first:
        graph.keep(ToldByWorkers, ToldByWorkers(own=json.dumps(own)))
    if cluster.worker_index == 0:
        _say_who_evaluates(given)
    else:
        _write_nothing(given)
        if trains_first and own.saves_as:
            given["hooks"] += [_NamesLastCheckpoint(graph, own, cluster.worker_index)]
        if not own.begins_with:  # a file `checkpoint` may name one that is gone
            given["checkpoint_dir"] = None
    return original(**given)


def _checkpoints(given: Dict[str, Any]) -> CheckpointPaths:
    """Those of a call of MonitoredTrainingSession with these arguments."""
    directory = given.get("checkpoint_dir") or ""
    path = next((tf_compat.save_path(h) for h in _hooks(given) if isinstance(h, tf.train.CheckpointSaverHook)), "")
    intervals = [given[name] for name in _WRITING_OPTIONS[:2] if name in given]
    if not path and directory and (any(intervals) or not intervals):
        path = os.path.join(directory, "model.ckpt")
    begins_with = tf.train.latest_checkpoint(directory) if directory else None
    return CheckpointPaths(_absolute(directory), _absolute(path), _absolute(begins_with or ""))


def _hooks(given: Dict[str, Any]) -> List[tf.train.SessionRunHook]:
    return [*(given.get("chief_only_hooks") or ()), *(given.get("hooks") or ())]


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path and "://" not in path else path


def _write_nothing(given: Dict[str, Any]) -> None:
    """What worker 0 alone writes, and what listens to it, is left out of the arguments of MonitoredTrainingSession."""
    given["chief_only_hooks"] = None
    given["hooks"] = [hook for hook in given.get("hooks") or () if not isinstance(hook, tf.train.CheckpointSaverHook)]
    given.update(dict.fromkeys(_WRITING_OPTIONS))


def _say_who_evaluates(given: Dict[str, Any]) -> None:
    env = Env.get()
    if any(tf_compat.evaluates(hook) for hook in _hooks(given)) and env.says_first("who evaluates"):
        logger.warning(
            "tf.estimator.train_and_evaluate: worker 0 evaluates and exports after each checkpoint, and the others "
            "wait for it in their next step, for communication.timeout at most. At the end each of them evaluates "
            "once, for the result of the call. This is said once."
        )


class _NamesLastCheckpoint(tf.train.SessionRunHook):
    """On another worker than 0: its directory has the last checkpoint of worker 0, by name."""

    def __init__(self, graph: Graph, own: CheckpointPaths, worker: int) -> None:
        self._graph = graph
        self._own = own
        self._worker = worker
        self._step: Optional[tf.Tensor] = None
        self._first = -1

    def begin(self) -> None:
        """The graph is complete and still open."""
        self._step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """The session has the values of worker 0."""
        if self._step is not None:
            self._first = session.run(self._step)

    def end(self, session: tf.Session) -> None:
        """Waits for the checkpoint of the last step; later hooks of worker 0 may still run."""
        told = told_by_worker_0(self._graph)
        if told is None or not told.saves_as or self._step is None:
            return
        step = session.run(self._step)
        last = f"{told.saves_as}-{step}"
        # Worker 0 writes its first checkpoint before its first step, which may be after this worker has ended.
        if not _becomes_latest(last, is_first=step == self._first):
            logger.warning(_UNSEEN.format(last, self._worker))
        elif os.path.dirname(last) != os.path.dirname(self._own.saves_as):
            directory = os.path.dirname(self._own.saves_as)
            tf.io.gfile.makedirs(directory)
            tf_compat.name_latest_checkpoint(directory, last)


def _becomes_latest(checkpoint: str, is_first: bool = False) -> bool:
    """Whether a checkpoint is the latest of its directory, now or soon.

    One that is not the first is not awaited in a directory without checkpoints: this worker does not see them.
    """
    directory, name = os.path.split(checkpoint)
    start = time.monotonic()
    while time.monotonic() - start < (_WRITING_S if _is_being_written(checkpoint) else _PATIENCE_S):
        state = tf.train.get_checkpoint_state(directory)
        if state is None and not is_first:
            return False
        if state is not None and os.path.basename(state.model_checkpoint_path) == name:
            return tf.io.gfile.exists(checkpoint + ".index")
        time.sleep(_POLL_S)
    return False


def _is_being_written(checkpoint: str) -> bool:
    """Whether TensorFlow's temporary files of a checkpoint are there."""
    try:
        return bool(tf.io.gfile.glob(checkpoint + "*temp*"))
    except tf.errors.NotFoundError:  # a folder of such files was removed while it was listed
        return True


def told_by_worker_0(graph: Graph) -> Optional[CheckpointPaths]:
    """What worker 0 told when the graph was rewritten; None if its session is no monitored one."""
    told = graph.state_of(ToldByWorkers)
    return CheckpointPaths(*json.loads(told.of_worker_0)) if told is not None and told.of_worker_0 else None


def restore_parts(graph: Graph, creator: tf.train.ChiefSessionCreator, session: tf.Session) -> None:
    """Restores the parts of this worker from the checkpoint that worker 0 begins with; whole variables are sent.

    For the first session of a graph.

    Raises:
      PlanError: this worker does not see that checkpoint, or has begun with another one.
    """
    facts, cluster, sharded = graph.state_of(ToldByWorkers), Env.get().cluster, graph.state_of(ShardedVariables)
    told = told_by_worker_0(graph)
    own_text = "" if facts is None else facts.own
    if facts is not None:
        graph.keep(ToldByWorkers, facts._replace(own=""))
    if not own_text or told is None or sharded is None or cluster is None or cluster.worker_index == 0:
        return
    own = CheckpointPaths(*json.loads(own_text))
    if told.begins_with == own.begins_with or (told.directory == own.directory and not told.begins_with):
        return
    if not told.begins_with or not tf.io.gfile.exists(told.begins_with + ".index"):
        raise PlanError(
            "Worker 0 begins with {}, and worker {} with {}: each has parts of the variables, which must be those of "
            "one checkpoint. Give all workers a checkpoint directory (model_dir) that they share.".format(
                f"the checkpoint {told.begins_with!r}" if told.begins_with else "no checkpoint",
                cluster.worker_index,
                f"{own.begins_with!r}" if own.begins_with else "none, as it does not see that one",
            )
        )
    tf_compat.saver_of(creator).restore(session, told.begins_with)


# ---- Estimators


def train_and_evaluate(original: Callable[..., Tuple[Any, Any]], executor: Any) -> Tuple[Any, Any]:
    """`tf.estimator.train_and_evaluate`: other workers than 0 evaluate once, when the training has ended."""
    cluster = Env.get().cluster
    if cluster is not None and cluster.worker_num > 1:
        metric_sums.refuse_in_training(tf_compat.eval_spec(executor).hooks)
    metrics, exported = original(executor)
    if metrics is not None or cluster is None or cluster.worker_index == 0:
        return metrics, exported
    estimator, spec = executor.estimator, tf_compat.eval_spec(executor)
    if estimator.latest_checkpoint() is None:  # a warning has said so
        return None, None
    return estimator.evaluate(spec.input_fn, spec.steps, spec.hooks, name=spec.name), []


def run_config(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    """`RunConfig`: an Estimator trains in a local session; by TF_CONFIG it would wait for a TensorFlow server."""
    if not Env.get().is_ready:
        original(config, *args, **kwargs)
        return
    given = dict(inspect.signature(original).bind(config, *args, **kwargs).arguments)
    dropped = [name for name in _DISTRIBUTION if given.pop(name, None) is not None]
    if dropped:
        logger.warning(
            "RunConfig was given %s, which EPL leaves out: it distributes the training itself, by the annotations.",
            ", ".join(dropped),
        )
    hidden = os.environ.get("TF_CONFIG")
    os.environ["TF_CONFIG"] = json.dumps({})
    try:
        original(**given)
    finally:
        if hidden is None:
            del os.environ["TF_CONFIG"]
        else:
            os.environ["TF_CONFIG"] = hidden
