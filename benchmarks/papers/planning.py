"""Models of published figures on machines that are not there: each is built once, and simulated for any job.

build()  -->  decisions and costs of the model  -->  the same for other devices, micro batches, stages  -->  a step

Only the forward pass is built, and nothing runs, so that a model of any size takes the memory of its graph alone.
"""

import copy
import re
from typing import Any, Callable, Dict, Mapping, Optional

import tensorflow.compat.v1 as tf

import epl
from epl.ir.graph import Graph
from epl.parallel.plan.strategy import Block, Strategy, with_values
from epl.parallel.sharding.placements import balanced_sizes
from epl.parallel.strategy import record
from epl.planner.machine.files import read_machine
from epl.planner.machine.machine import Machine
from epl.planner.prediction.prediction import Prediction, predict
from epl.planner.search.planned_model import PlannedModel, planned_model

NODE = 8  # GPUs of a node, in all figures of Whale
ADAM = {"m": 1.0, "v": 1.0}  # slots of an optimizer, in sizes of the variable
MOMENTUM = {"Momentum": 1.0}
ROLES = ("weights", "slots", "gradients", "activations", "communication")  # of memory

_SIZES = re.compile(r"(shard\(\d+): ([0-9+]+)\)")


def planned(
    build: Callable[[], tf.Tensor],
    slots: Mapping[str, float],
    devices: int = NODE,
    config: Optional[Dict[str, Any]] = None,
) -> PlannedModel:
    """Builds a model, and reads its decisions and its costs.

    Args:
      build: builds the annotated model; its loss.
      slots: of the optimizer.
      devices: of the job that it is built for, one worker.
      config: further keys of `epl.Config`; they stay those of the process until the next model.
    """
    tf.reset_default_graph()
    job = {"cluster.device_type": "cpu", "cluster.num_virtual_devices": devices}
    epl.init(epl.Config({**job, **(config or {})}))
    loss = build()
    graph = Graph.of(tf.get_default_graph())
    variables = tf.trainable_variables()
    found = record.forward_pass(graph, loss, variables)
    if config:  # scopes that share devices: how each op is cut is decided when the model is differentiated
        tf.gradients(loss, variables)
    return planned_model(graph, found, dict(slots))


def gpus(count: int, network: str, kind: str = "v100-32") -> Machine:
    """A machine of nodes of 8 GPUs, or of one smaller node."""
    nodes = max(1, count // NODE)
    return read_machine(f"{nodes}x{NODE}*{kind},{network}" if nodes > 1 else f"{min(count, NODE)}*{kind}")


def step(strategy: Strategy, model: PlannedModel, machine: Machine, rows: int) -> Prediction:
    """A step of a strategy of a model, with all devices of a machine of equal nodes; `rows`: of the global batch."""
    job = for_job(strategy, len(machine.nodes), len(machine.nodes[0].devices))
    return predict(job, model.costs, machine, rows)


def for_job(strategy: Strategy, workers: int, devices: int) -> Strategy:
    """The strategy for another number of devices: what is cut over all of them is cut into as many parts."""

    def resized(text: str) -> str:
        def sizes(match: Any) -> str:
            total = sum(map(int, match.group(2).split("+")))
            parts = balanced_sizes(total, workers * devices)
            return f"{match.group(1)}: {'+'.join(map(str, parts or ()))})"

        return _SIZES.sub(sizes, text)

    if workers * devices == strategy.workers * strategy.devices:
        return strategy._replace(workers=workers, devices=devices)
    choices = tuple(one._replace(placements=resized(one.placements)) for one in strategy.choices)
    return strategy._replace(workers=workers, devices=devices, choices=choices)


def with_slots(model: PlannedModel, slots: Mapping[str, float]) -> PlannedModel:
    """The model with another optimizer."""
    costs = copy.copy(model.costs)
    costs.slots = dict(slots)
    return model._replace(costs=costs)


def with_settings(strategy: Strategy, values: Mapping[str, Any]) -> Strategy:
    """The strategy with other values of decided keys, which count as the user's."""
    return with_values(strategy, values, "code")


def in_fewer_stages(strategy: Strategy, stages: int) -> Strategy:
    """The strategy with neighbouring stages put together; they are a multiple of `stages`."""
    together = len(strategy.blocks) // stages
    ops = tuple(op._replace(block=op.block // together) for op in strategy.ops)
    return strategy._replace(blocks=strategy.blocks[::together], ops=ops)


def data_parallel(strategy: Strategy) -> Strategy:
    """The same model in one scope of epl.replicate(1)."""
    ops = tuple(op._replace(block=0) for op in strategy.ops)
    return strategy._replace(blocks=(Block("replicate", 1, 0, (), ()),), choices=(), ops=ops)
