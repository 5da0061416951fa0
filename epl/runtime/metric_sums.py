"""Metrics of all workers: each evaluates its share of the rows, and the metric variables are added up at the end.

    worker 0   rows 0, 2, 4, ... --> total 31, count 40 --.
                                                          +--> total 58, count 79 in both --> value
    worker 1   rows 1, 3, 5, ... --> total 27, count 39 --'

Nothing is exchanged before, so workers may make different numbers of runs. The values travel by the control plane of
the job: the graph needs no collective, and one that trains nothing works as well.
"""

import io
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.ops.job import Job
from epl.parallel.plan import agreement
from epl.parallel.replication import metric_variables
from epl.parallel.rewriting.training_writes import find_training_writes
from epl.utils import tf_compat
from epl.utils.errors import AnnotationError, PlanError

_KEY = "metrics of all workers (epl.sum_metrics)"


def sum_metrics(session: Any, variables: Optional[Sequence[tf.Variable]] = None) -> None:
    """Adds the metric variables of all workers up; afterwards each worker has the sums, and values are of all rows.

    Call it in every worker, once at the end of an evaluation in which each worker has taken its share of the rows, and
    read the values after it. The next evaluation begins with the initializers of the variables, as the first one.

    Args:
      session: of this evaluation, a monitored one too.
      variables: those to add up, which a script only adds to; by default those of tf.metrics and of Keras metrics.

    Raises:
      AnnotationError: before `epl.init`.
      ValueError: there are no metric variables.
      PlanError: a variable is not only added to, or is global; another worker adds up others, or serves a model.
    """
    env = Env.get()
    if not env.is_ready or env.cluster is None:
        raise AnnotationError("epl.sum_metrics was called before epl.init(). Call epl.init() first.")
    graph = session.graph
    chosen = list(tf_compat.metric_variables(graph) if variables is None else variables)
    if not chosen:
        raise ValueError(
            "epl.sum_metrics found no metric variables in the graph of the session: tf.metrics and tf.keras.metrics "
            "make some. Give the variables that the script adds to itself: epl.sum_metrics(session, variables)."
        )
    refusal = _refusal(graph, chosen)
    if env.cluster.worker_num > 1:
        server = agreement.process_server()
        if server is not None and server.serving:
            raise PlanError(
                "epl.sum_metrics was called in a job in which worker(s) {} serve a model that spans processes, and do "
                "not run the script: it would wait for their metrics for ever. Read the values of the metrics in this "
                "worker, without epl.sum_metrics.".format(", ".join(map(str, sorted(server.serving))))
            )
    if refusal is not None:
        if env.cluster.worker_num > 1:
            _of_all_workers({})  # which the others refuse
        raise refusal
    if env.cluster.worker_num == 1:
        return
    if hasattr(session, "run_step_fn"):  # without the hooks of a monitored session
        session = session.run_step_fn(lambda step_context: step_context.session)
    names = [variable.op.name for variable in chosen]
    totals = _of_all_workers(dict(zip(names, session.run(chosen))))
    for variable in chosen:  # one by one, as several may begin with one tensor
        initializer = variable.initializer
        session.run(initializer, {initializer.inputs[1]: totals[variable.op.name]})


class SumMetricsHook(tf.train.SessionRunHook):
    """Adds the metrics of all workers up at the end of `Estimator.evaluate`, which every worker calls on its share.

        estimator.evaluate(input_fn_of_this_worker, hooks=[epl.SumMetricsHook()])

    The hook is for `evaluate` alone: in `tf.estimator.train_and_evaluate` worker 0 evaluates by itself.
    """

    def end(self, session: tf.Session) -> None:
        """All rows of this worker are counted; the values are read after this."""
        sum_metrics(session)


def refuse_in_training(hooks: Sequence[tf.train.SessionRunHook]) -> None:
    """Raises PlanError for a SumMetricsHook in `train_and_evaluate` of several workers."""
    if any(isinstance(hook, SumMetricsHook) for hook in hooks):
        raise PlanError(
            "epl.SumMetricsHook is among the hooks of an EvalSpec, and in tf.estimator.train_and_evaluate worker 0 "
            "evaluates alone while the others wait in a training step: it would wait for their metrics for ever. Give "
            "the EvalSpec all rows and no such hook; or train first, then call Estimator.evaluate with the hook in "
            "every worker."
        )


def _refusal(graph: tf.Graph, variables: Sequence[tf.Variable]) -> Optional[PlanError]:
    """The error for variables that are not only added to, or that a training step makes those of worker 0."""
    view = GraphView(graph)
    planned = Graph.of(graph)
    rewritten = None if planned is None else planned.rewritten
    added = frozenset() if rewritten is None else rewritten.added
    writes = find_training_writes(graph, view, view.writes(), ())
    names = [variable.op.name for variable in variables]
    of_script = {write for write in writes if view.nodes[write].name not in added}
    sums = metric_variables.find(graph, view, of_script, frozenset(names)).sums
    sums -= {variable.op.name for variable in graph.get_collection_ref(tf.GraphKeys.GLOBAL_VARIABLES)}
    others = [name for name in names if name not in sums]
    if others:
        return PlanError(
            "epl.sum_metrics can add up no other variables than those to which a script adds what it computes from the "
            "batch, as tf.metrics.mean does. {} {} otherwise, global, or used together with such a "
            "variable: what the workers have does not add up to that of all rows. Leave the metric out "
            "(epl.sum_metrics(session, variables)), or compute it in one worker on all rows.".format(
                ", ".join(map(repr, others)), "is written" if len(others) == 1 else "are written"
            )
        )
    return None


def _of_all_workers(own: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """The sums of the values of all workers, by name."""
    job = Job.join()
    if job is None:
        raise PlanError("The job has ended (Job.stop, or epl.init for other workers): evaluate before it ends.")
    told = [_read(part) for part in job.exchange(_KEY, _written(own))]
    for worker, values in enumerate(told):
        shapes, others = _shapes(own), _shapes(values)
        if shapes != others:
            one = sorted(name for name in {**shapes, **others} if shapes.get(name) != others.get(name))[0]
            raise PlanError(
                "epl.sum_metrics adds up other variables in worker {} than in worker {}: {!r} is {} there and {} here. "
                "Build the same metrics in all workers.".format(
                    worker, job.process, one, others.get(one, "missing"), shapes.get(one, "missing")
                )
            )
    return {name: sum(values[name] for values in told) for name in own}


def _shapes(values: Dict[str, np.ndarray]) -> Dict[str, str]:
    return {name: f"{value.dtype} {list(value.shape)}" for name, value in values.items()}


def _written(values: Dict[str, np.ndarray]) -> bytes:
    stream = io.BytesIO()
    names: List[str] = list(values)
    np.savez(stream, np.array(names), *values.values())
    return stream.getvalue()


def _read(data: bytes) -> Dict[str, np.ndarray]:
    arrays = np.load(io.BytesIO(data), allow_pickle=False)
    return {str(name): arrays[f"arr_{at}"] for at, name in enumerate(arrays["arr_0"], 1)}
