"""Comparisons between the processes of a job: settings, plans, graphs and collectives must be equal.

    first session that trains      join the job              Job.join, or a job of this process alone
    (split, ZeRO: earlier)         versions, configuration   `meet`, once after each epl.init
    transform                      the plan                  `compare_plans`: its hash; the plan only if that differs
                                   the user's graph          `compare_graphs`: a digest; its ops only if it differs
    end of transform               the collectives           `compare_facts`

Every process sends its own text and receives those of all, so all of them raise the same error, within a second.
Processes that only serve a model of others take part in the first comparison only, as their own graph does not run.
"""

import json
from typing import Any, Dict, List, NoReturn, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph
from epl.ops import native
from epl.ops.job import Job
from epl.parallel.plan import plan as plans
from epl.parallel.plan.graph_difference import OpFacts, facts_of, first_difference, in_words
from epl.parallel.plan.graph_digest import GraphDigest, OpDigest
from epl.utils.errors import PlanError, PlanMismatchError
from epl.utils.version import VERSION

# Settings that may differ between processes: devices, timeouts, messages.
OWN_KEYS = frozenset(
    [
        "cluster.run_visible_devices",
        "communication.start_timeout",
        "communication.stall_warning",
        "communication.timeout",
        "amp.debug_log",
    ]
)


# ---- The processes of the job


def meet() -> Job:
    """Joins the job of this process and compares versions and configuration, once after each `epl.init`.

    Blocks until all processes of the job do the same. Call it before a graph gets a name (`Env.new_graph_name`): a
    worker with other settings may not name it at all.

    Raises:
      JobError: a process did not join in time; the message names it.
      PlanMismatchError: the processes have different versions or configurations.
    """
    env = Env.get()
    job = Job.join() or _job_of_one(env.config)
    if env.met is not job and env.cluster is not None and env.cluster.worker_num > 1:
        _compare_settings(job, env.config)
        env.met = job
    return job


def _job_of_one(config: Config) -> Job:
    """Starts a job of this process alone, as collectives need a job."""
    return Job.start(
        hosts=["localhost:0"],
        process=0,
        start_timeout=config.communication.start_timeout,
        stall_warning=config.communication.stall_warning,
        timeout=config.communication.timeout,
    )


def is_imagined() -> bool:
    """Whether the other processes are not there, as this one only makes a plan."""
    job = Job.current()
    return job is not None and job.is_imagined


def process_server() -> Any:
    """The ProcessServer of the current job; None as long as no model has spanned processes."""
    server = Env.get().process_server
    return None if server is None or server.service.over else server


def refuse_missing_workers(name: str, owners: Sequence[int]) -> None:
    """Raises PlanError if the owner of a replica serves another model: it would never join the run of this one.

    Args:
      name: name of the plan.
      owners: the owners of the replicas.
    """
    server = process_server()
    gone = sorted(server.serving & set(owners)) if server is not None else []
    if gone:
        raise PlanError(
            "A model of this script spans processes, and worker(s) {} that serve it have left the script: the model "
            "of {} needs them to run replicas. Train it in a job of its own, or before the other one.".format(
                ", ".join(map(str, gone)), name
            )
        )


def refuse_local_session() -> NoReturn:
    """Raises PlanError for a session that lacks the devices of other workers."""
    raise PlanError(
        "The stages of the model lie in several workers, and the session was opened before they were annotated: it "
        "has this worker's devices alone, or there is none yet. Open the session after the model is built; "
        "epl.explain() and estimates work within it."
    )


# ---- The comparisons


def compare_plans(plan: plans.Plan) -> None:
    """Raises PlanMismatchError unless all processes have the same plan."""
    mine = plans.compared(plan)
    hashes = _exchange("hash of the plan of " + plan.name, plans.plan_hash(mine))
    if len({other for _, other in hashes}) == 1:
        return
    for worker, text in _exchange("plan of " + plan.name, plans.to_json(mine)):
        difference = plans.first_difference(mine, plans.from_json(text))
        if difference is not None:
            raise PlanMismatchError(
                "Worker {} and worker {} built different models: {}. Every worker runs the same script with the same "
                "model; only its data may differ.".format(_cluster().worker_index, worker, difference)
            )


def compare_graphs(name: str, graph: Graph, digest: GraphDigest) -> None:
    """Raises PlanMismatchError unless the graphs of all processes compute and update the model alike.

    Args:
      name: name of the plan.
      graph: the annotated model.
      digest: the digest of its graph, as the user built it.
    """
    tops = _exchange("digest of the graph of " + name, digest.top)
    first, top = tops[0]
    others = [worker for worker, other in tops if other != top]
    if not others:
        return
    pair = (first, others[0])  # the same in all processes, so all raise the same error
    own = _cluster().worker_index
    listed = dict(_exchange("ops of the graph of " + name, json.dumps(digest.ops()) if own in pair else ""))
    chosen = first_difference(*[[OpDigest(*op) for op in json.loads(listed[worker])] for worker in pair])
    facts = facts_of(digest, graph.tf_graph, chosen[pair.index(own)]) if own in pair else None
    told = dict(_exchange("first difference of the graph of " + name, json.dumps(facts)))
    read = [json.loads(told[worker]) for worker in pair]
    raise PlanMismatchError(
        "Worker {} and worker {} compute different models: {}. Every worker runs the same script with the same model; "
        "only its data may differ. If the difference is meant (a constant that is data, for example), set "
        "communication.allow_different_graphs to True in every worker.".format(
            pair[1], pair[0], in_words(pair, [None if one is None else OpFacts(*one) for one in read])
        )
    )


def compare_facts(name: str, what: str, mine: Dict[str, str]) -> None:
    """Raises PlanMismatchError unless all processes have the same facts.

    Args:
      name: name of the plan.
      what: the kind of facts, for keys and messages.
      mine: the facts of this process, by name.
    """
    text = "\n".join(f"{key}\t{mine[key]}" for key in sorted(mine))
    for worker, other in _exchange(f"{what} of {name}", text):
        if other != text:
            theirs = dict(line.split("\t", 1) for line in other.split("\n") if line)
            for key in sorted(set(mine) | set(theirs)):
                if mine.get(key) != theirs.get(key):
                    raise PlanMismatchError(
                        "Worker {} and worker {} have different {}: {!r} is {} here and {} there.".format(
                            _cluster().worker_index, worker, what, key, mine.get(key), theirs.get(key)
                        )
                    )


def from_worker_0(what: str, text: str) -> str:
    """Broadcasts a text from worker 0 to every process of a job of several; all call it, after `meet`.

    Args:
      what: names the text, the same in all processes, used once.
      text: the text; only that of worker 0 counts.
    """
    return _exchange(what, text)[0][1]


def of_worker_0(plan: plans.Plan, what: str, text: str) -> str:
    """Broadcasts a text from worker 0 to every process.

    Args:
      plan: the plan of the graph.
      what: the kind of text, for the key.
      text: the text; only that of worker 0 counts.
    """
    return text if plan.workers == 1 else from_worker_0(f"{what} of {plan.name}", text)


def _compare_settings(job: Job, config: Config) -> None:
    """Compares versions, then the configuration."""
    versions = {"EPL": VERSION, "TensorFlow": tf.VERSION, "the native core": str(native.ABI_VERSION)}
    settings = {name: [value, config.provenance(name)] for name, value in config.to_dict().items()}
    own = json.dumps([versions, settings], sort_keys=True)
    for worker, text in _exchange("versions and configuration", own):
        their_versions, their_settings = json.loads(text)
        for name, version in versions.items():
            if their_versions.get(name) != version:
                raise PlanMismatchError(
                    "The version of {} is {} here (worker {}) and {} there (worker {}). Install the same versions for "
                    "every worker.".format(name, version, job.process, their_versions.get(name), worker)
                )
        for name in config.to_dict():
            (value, source), (other, other_source) = settings[name], their_settings[name]
            if value != other and name not in OWN_KEYS:
                raise PlanMismatchError(
                    "{} is {!r} here (worker {}, from {}) and {!r} there (worker {}, from {}). Give every worker the "
                    "same configuration, in the script and in the environment.".format(
                        name, value, job.process, source, other, worker, other_source
                    )
                )


def _exchange(key: str, text: str) -> List[Tuple[int, str]]:
    """Sends a text to the other processes and returns theirs, by worker; only of those that still run the script."""
    job, server = Job.current(), process_server()
    assert job is not None
    if server is not None and server.service.job is job:  # serving processes exchange only through it
        given = server.service.exchange(key, text)
        return [(worker, other) for worker, other in enumerate(given) if other is not None]
    return [(worker, data.decode()) for worker, data in enumerate(job.exchange(key, text.encode()))]


def _cluster() -> Cluster:
    cluster = Env.get().cluster
    assert cluster is not None
    return cluster
