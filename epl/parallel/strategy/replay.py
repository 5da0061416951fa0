"""Trains a model by a strategy: from a file (`auto.plan_file`), or found by the planner.

    worker 0 reads or finds it -> all workers have its text
    forward pass of the model     must be the one that the strategy was made for
    configuration                 keys that the user left alone get the decided values
    TaskGraphs                    the scopes of the script must be the blocks; without scopes the blocks make them

What the user has set or written is never changed: if the strategy says otherwise, it is refused.
"""

import json
import logging
from typing import Any, Callable, Dict, NamedTuple, Sequence, Set, Tuple

from epl.cluster.cluster import Cluster
from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.view import GraphView
from epl.parallel.auto_partition.annotate import Partitioned, mark_ops, mark_stages, unmark_ops
from epl.parallel.auto_partition.partition import partition
from epl.parallel.auto_partition.section import section_of
from epl.parallel.plan import agreement
from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.sections import PartitionSection
from epl.parallel.plan.stages import stage_devices
from epl.parallel.plan.strategy import Block, ForwardOp, SplitChoices, Strategy, block_in_words
from epl.parallel.strategy import forward
from epl.parallel.strategy.record import blocks_of, marked_block
from epl.strategies.parallel_strategy import ParallelStrategy
from epl.strategies.replicate import Replicate
from epl.strategies.split import Split
from epl.utils.errors import EplError, LayoutError, PlanError

logger = logging.getLogger("epl")

# Given a model that is about to be differentiated, its objective, and what it is differentiated by.
FindStrategy = Callable[[Graph, Any, Sequence[Any]], Strategy]


def use_file(graph: Graph, ys: Any, path: str) -> None:
    """Annotates and configures a model as the strategy in a file says.

    Args:
      graph: the model, about to be differentiated.
      ys: its objective.
      path: of the file, as worker 0 finds it.

    Raises:
      PlanError: the file cannot be used, the strategy is that of another model, or the script says otherwise.
    """
    source = f"auto.plan_file {path!r}"
    told = _of_worker_0(lambda: _read(path))
    if told.error:
        raise PlanError(f"{source} cannot be used: {told.error}. `epl-plan --save FILE script.py` makes one.")
    _use(graph, ys, strategies.from_json(told.text), source)


def use_found(graph: Graph, ys: Any, xs: Sequence[Any], find: FindStrategy) -> None:
    """Annotates and configures a model as the planner says.

    The configuration is that of all graphs, so the planner decides once after each epl.init, and a model that is built
    again (`Estimator.train`) is trained by the same strategy.

    Args:
      graph: the model, about to be differentiated.
      ys: its objective.
      xs: what it is differentiated by.
      find: the planner; worker 0 calls it.

    Raises:
      PlanError: no plan is found, the script says otherwise, or it has another model than before.
    """
    env = Env.get()
    source = "the planner"
    if env.found_strategy is not None:
        source += ", which decides for one model after each epl.init (call it again before the next one),"
    else:
        told = _of_worker_0(lambda: _found(graph, ys, xs, find))
        if told.error:
            raise PlanError(told.error)
        env.found_strategy = strategies.from_json(told.text)
    _use(graph, ys, env.found_strategy, source)


def _use(graph: Graph, ys: Any, strategy: Strategy, source: str) -> None:
    env = Env.get()
    cluster = env.cluster
    assert cluster is not None
    view = GraphView(graph.tf_graph)
    found = forward.forward_ops(graph.tf_graph, view, ys)
    strategies.refuse_other_model(strategy, list(found.values()), source)
    _tell_other_job(strategy, cluster, source)
    _decide_settings(strategy, env.config, source)
    cluster = _laid_out(strategy, cluster, source)
    _annotate(graph, view, found, strategy, env.config, source)
    _refuse_other_devices(graph, strategy, cluster, source)
    graph.keep(Strategy, strategy)
    if strategy.choices:  # without any, the splits decide as they do without a strategy
        graph.keep(SplitChoices, _split_choices(list(found.values()), strategy))


class _Told(NamedTuple):
    """What worker 0 tells the others: a strategy as JSON, or why there is none."""

    text: str
    error: str


def _of_worker_0(tell: Callable[[], _Told]) -> _Told:
    """What worker 0 tells: what is wrong is an error of all workers."""
    env = Env.get()
    cluster = env.cluster
    assert cluster is not None
    if cluster.worker_num > 1:
        agreement.meet()  # before a search, which may take longer than a worker waits for one that does not join
    told = tell() if cluster.worker_index == 0 else _Told("", "")
    if cluster.worker_num > 1:
        text = agreement.from_worker_0(f"strategy of {env.new_shards_name()}", json.dumps(told))
        told = _Told(*json.loads(text))
    return told


def _read(path: str) -> _Told:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        strategies.from_json(text)
    except OSError as error:
        return _Told("", error.strerror or str(error))
    except ValueError as error:  # damaged, or no text at all
        return _Told("", str(error).rstrip("."))
    return _Told(text, "")


def _found(graph: Graph, ys: Any, xs: Sequence[Any], find: FindStrategy) -> _Told:
    try:
        return _Told(strategies.to_json(find(graph, ys, xs)), "")
    except EplError as error:
        return _Told("", str(error))


def _split_choices(ops: Sequence[ForwardOp], strategy: Strategy) -> SplitChoices:
    """The choices of the strategy by the names of this model; without effect for ops in no split."""
    texts = {one.op: one.placements for one in strategy.choices}
    return SplitChoices({op.name: texts.get(number, "") for number, op in enumerate(ops)})


def _tell_other_job(strategy: Strategy, cluster: Cluster, source: str) -> None:
    if not _is_made_for(strategy, cluster) and cluster.worker_index == 0:
        logger.warning(
            "The strategy of %s was made for %d worker(s) x %d %s device(s), and the job has %d x %d %s: "
            "what it decided may not be the best here.",
            source, strategy.workers, strategy.devices, strategy.device_type,
            cluster.worker_num, cluster.gpu_num_per_worker, cluster.device_type,
        )  # fmt: skip


def _is_made_for(strategy: Strategy, cluster: Cluster) -> bool:
    """Whether a strategy was made for the devices of a job."""
    made_for = strategy.workers, strategy.devices, strategy.device_type
    return made_for == (cluster.worker_num, cluster.gpu_num_per_worker, cluster.device_type)


def _refuse_other_devices(graph: Graph, strategy: Strategy, cluster: Cluster, source: str) -> None:
    """Raises PlanError if a strategy that was made for another job does not fit the devices of this one."""
    if _is_made_for(strategy, cluster):
        return
    try:
        stage_devices(graph.taskgraphs, cluster)
    except LayoutError:
        raise PlanError(_for_other_devices(strategy, cluster, source)) from None


def _for_other_devices(strategy: Strategy, cluster: Cluster, source: str) -> str:
    own = f"{cluster.worker_num}x{cluster.gpu_num_per_worker}"
    return (
        f"The strategy of {source} was made for {strategy.workers}x{strategy.devices} devices (workers x devices "
        f"of each), and its {len(strategy.blocks)} block(s) do not fit the {own} of the job. Start as many devices "
        f"as it was made for, or make one for these: epl-plan --devices {own} --save FILE script.py."
    )


def _decide_settings(strategy: Strategy, config: Config, source: str) -> None:
    for setting in strategy.settings:
        value = json.loads(setting.value)
        provenance = config.provenance(setting.key)
        if not config.is_open(setting.key) and config.get(setting.key) != value:
            raise PlanError(
                "{} is {!r} (from {}), and the strategy of {} has {!r}. Leave the key out, so that the strategy "
                "decides, or make a strategy of the script as it is.".format(
                    setting.key, config.get(setting.key), provenance, source, value
                )
            )
        config.decide(setting.key, value)
    stages = config.pipeline.num_stages
    if config.is_set("pipeline.num_stages") and stages not in (None, -1, len(strategy.blocks)):
        raise PlanError(
            "pipeline.num_stages is {} (from {}), and the strategy of {} has {} block(s). Leave "
            "the key out, or make another strategy.".format(
                stages, config.provenance("pipeline.num_stages"), source, len(strategy.blocks)
            )
        )  # fmt: skip


def _laid_out(strategy: Strategy, cluster: Cluster, source: str) -> Cluster:
    """The devices of the job, laid out anew where the strategy decides how, and the script has not.

    Raises:
      PlanError: the strategy orders the devices of other processes, or of a script that has laid them out.
    """
    env = Env.get()
    decided = [one.key for one in strategy.settings if one.key in strategies.LAYOUT_KEYS]
    if "cluster.device_order" in decided and strategy.devices != cluster.gpu_num_per_worker:
        raise PlanError(_for_other_devices(strategy, cluster, source))
    if "cluster.device_order" in decided and cluster.layout.name != "auto":
        raise PlanError(
            f"The strategy of {source} orders the devices (cluster.device_order), and the script lays them out itself "
            f"(epl.Cluster, layout {cluster.layout.name!r}). Leave the layout out, or make a strategy of the script as "
            "it is."
        )
    if cluster.layout.name == "auto" and any(not env.config.is_set(key) for key in decided):
        layout = "all" if env.config.cluster.colocate_split_and_replicate else None
        cluster = Cluster(cluster.hosts, worker_index=cluster.worker_index, layout=layout, config=env.config)
        env.use(cluster)
    return cluster


def _annotate(
    graph: Graph, view: GraphView, found: Dict[int, ForwardOp], strategy: Strategy, config: Config, source: str
) -> None:
    """Makes the TaskGraphs of the blocks; those of the script must be equal to them."""
    alone = [block[:2] for block in blocks_of(graph.taskgraphs)] == [("replicate", 1)]
    is_asked = config.auto.auto_parallel or config.auto.planner == "search"  # for blocks that are found
    leaves_blocks = is_asked or strategy.blocks_origin not in strategies.OF_SCRIPT
    is_free = not graph.taskgraphs or (leaves_blocks and alone)
    if not is_free:
        _refuse_other_scopes(graph, found, strategy, source)
        return
    nested = next((block for block in strategy.blocks if block.outer), None)
    if nested is not None:
        raise PlanError(
            "The strategy of {} has {} in a scope of epl.replicate({}), which only scopes in the script can say. "
            "Write the scopes.".format(source, block_in_words(nested), nested.outer)
        )
    if len(strategy.blocks) > 1 and any(op.block == strategies.OUTSIDE for op in strategy.ops):
        raise PlanError(
            "The strategy of {} has ops before its first scope, {}, and further scopes after it, which only scopes in "
            "the script can say. Write the scopes.".format(source, block_in_words(strategy.blocks[0]))
        )
    graph.keep(Partitioned, Partitioned())
    kinds = [_strategy_of(block) for block in strategy.blocks]
    if len(kinds) == 1:
        if graph.taskgraphs:
            graph.replace_taskgraphs(kinds)
        else:
            graph.open_taskgraph(kinds[0])
        if kinds[0].name_of_kind == "split":  # ops without a mark are outside
            unmark_ops(graph.tf_graph, view)
            mark_ops(graph.tf_graph, {here.name: 0 for here, op in zip(found.values(), strategy.ops) if op.block == 0})
        return
    blocks = {node: op.block for node, op in zip(found, strategy.ops)}

    def planned(needed: Set[int]) -> Tuple[str, Dict[int, int]]:
        return strategy.blocks_origin, {node: blocks.get(node, 0) for node in needed}

    roots = [view.nodes[node].name for node in found]
    cluster = Env.get().cluster
    assert cluster is not None
    divided = partition(graph.tf_graph, view, roots, len(kinds), cluster.device_type.lower(), planned)
    if strategy.blocks_origin != strategies.SCOPES:
        graph.keep(PartitionSection, section_of(view, divided))
    mark_stages(graph, view, divided, kinds)


def _strategy_of(block: Block) -> ParallelStrategy:
    if block.kind == "replicate":
        return Replicate(block.devices)
    return Split(block.devices or None, ratios=block.ratios or None)


def _refuse_other_scopes(graph: Graph, found: Dict[int, ForwardOp], strategy: Strategy, source: str) -> None:
    """Raises PlanError unless the scopes of the script are the blocks."""
    own = list(blocks_of(graph.taskgraphs))
    wanted = [block._replace(scopes=()) for block in strategy.blocks]
    if own != wanted:
        raise PlanError(
            "The script has {}, and the strategy of {} has {}. What a script annotates is never changed: take the "
            "scopes out, so that the strategy decides, or make a strategy of this script.".format(
                " and ".join(map(block_in_words, own)), source, " and ".join(map(block_in_words, wanted))
            )
        )
    for here, there in zip(found.values(), strategy.ops):
        block = marked_block(graph, here.name)
        if block != there.block:
            raise PlanError(
                "{!r} is in TaskGraph {} of the script, and in block {} of the strategy of {}. What a script annotates "
                "is never changed: take the scopes out, or make a strategy of this script.".format(
                    here.name, block, there.block, source
                )
            )
