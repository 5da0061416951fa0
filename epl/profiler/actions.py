"""The forward and backward passes of a pipeline in a traced step: which op belongs to which, and when each ran.

    for device in actions.spans(step_stats.trace(session, train_op, feed), actions.of_ops(rewrite)).values():
        print(device)      # [0F0 12..40, 0F1 41..70, 0B0 90..120, ...], microseconds since the first op

The user's ops, and what TensorFlow recorded while differentiating, decide to which action an op belongs. The result of
the rewriting does not: so a test can compare the two.
"""

from typing import Callable, Dict, List, NamedTuple, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.gradient_boundary import tensors_of
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, Phase
from epl.parallel.plan.schedule import BACKWARD, FORWARD, Action
from epl.parallel.plan.stages import stage_of_taskgraph
from epl.parallel.rewriting.context import RewriteContext
from epl.profiler.step_stats import Execution


class Span(NamedTuple):
    """From the start of the first op of an action to the end of its last one.

    Attributes:
      action: stage, kind and micro batch.
      start_us, end_us: since the first op of the step.
      ops: executions counted.
    """

    action: Action
    start_us: float
    end_us: float
    ops: int


def of_ops(rewrite: RewriteContext) -> Dict[str, Action]:
    """The action of each op of every replica and micro batch, by name.

    Ops of no action are left out: variables and ops that depend on them alone; placeholders, data sources and their
    inputs; ops that the gradients do not need (the loss itself), or that follow the gradients; ops that the plan added.
    Also left out are preparations of the backward pass (shapes, counters of loops), which fit either action, and ops
    that TensorFlow moves to the device of their input when it runs a graph: those into a branch or out of a loop.
    """
    nodes = {node.name: node for node in rewrite.tf_graph.as_graph_def().node}  # the user's graph
    stages = stage_of_taskgraph(rewrite.plan.stages)
    backward = _backward(nodes, {seed.op.name for training in rewrite.trainings for seed in training.seeds})
    prepared = _of_backward_phase(nodes) - backward
    moved = {name for name, node in nodes.items() if node.op in op_types.SWITCHES | op_types.EXITS}
    sources = {name for name, node in nodes.items() if node.op in op_types.DATA_SOURCES | op_types.PLACEHOLDERS}
    inputs = _reached(sources, lambda name: [_producer_of(text) for text in nodes[name].input])
    ends = {
        tensor.op.name for training in rewrite.trainings for _, g in training.boundaries for tensor in tensors_of(g)
    }
    needed = _reached(ends, lambda name: [_producer_of(text) for text in nodes[name].input])
    left_out = inputs | prepared | moved
    result = {}
    for name in rewrite.micro_batched:
        if name not in needed or name in left_out:
            continue
        taskgraph = nodes[name].attr[TASKGRAPH_ATTR].i if TASKGRAPH_ATTR in nodes[name].attr else 0
        kind = BACKWARD if name in backward else FORWARD
        for micro_batch in range(rewrite.plan.num_micro_batch):
            for replica in range(rewrite.local_replicas):
                copy = rewrite.prefix(replica) + rewrite.micro_prefix(micro_batch) + name
                result[copy] = Action(stages[taskgraph], kind, micro_batch)
    return result


def _producer_of(text: str) -> str:
    """The name of the op that an input of a NodeDef names."""
    return text.lstrip("^").partition(":")[0]


def _backward(nodes: Dict[str, tf.NodeDef], seeds: Set[str]) -> Set[str]:
    """The ops that depend on the gradient of the objective and that TensorFlow made while differentiating."""
    consumers: Dict[str, List[str]] = {}
    for name in _of_backward_phase(nodes):
        for text in nodes[name].input:
            consumers.setdefault(_producer_of(text), []).append(name)
    return _reached(seeds, lambda name: consumers.get(name, []))


def _of_backward_phase(nodes: Dict[str, tf.NodeDef]) -> Set[str]:
    return {
        name
        for name, node in nodes.items()
        if PHASE_ATTR in node.attr and node.attr[PHASE_ATTR].s == Phase.BACKWARD.encode()
    }


def _reached(start: Set[str], following: Callable[[str], List[str]]) -> Set[str]:
    seen = set(start)
    stack = list(start)
    while stack:
        new = [name for name in following(stack.pop()) if name not in seen]
        seen.update(new)
        stack.extend(new)
    return seen


def spans(trace: Sequence[Execution], action_of: Dict[str, Action]) -> Dict[str, List[Span]]:
    """Per device, the actions that ran there, by start.

    Args:
      trace: the executions.
      action_of: the result of `of_ops`.
    """
    first = min(execution.start_ns for execution in trace)
    by_device: Dict[str, Dict[Action, List[Execution]]] = {}
    for execution in trace:
        action = action_of.get(execution.op)
        if action is not None:
            by_device.setdefault(execution.device, {}).setdefault(action, []).append(execution)
    return {
        device: sorted(
            (
                Span(
                    action,
                    (min(execution.start_ns for execution in members) - first) / 1e3,
                    (max(execution.end_ns for execution in members) - first) / 1e3,
                    len(members),
                )
                for action, members in found.items()
            ),
            key=lambda span: (span.start_us, span.end_us),
        )
        for device, found in by_device.items()
    }
