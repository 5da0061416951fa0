"""What of a model's forward pass matters to a step: where data and gradients flow, and who takes what.

    op        x ----> MatMul ----> Tanh ...        x, MatMul, Tanh depend on data: once in each micro batch
              w -> Read -^                         w, Read depend on variables alone: once in each step

Ops are given by number, in the order of the forward pass; the backward pass runs in the opposite order.
"""

from typing import Dict, FrozenSet, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from epl.ir import op_types
from epl.ir.dataflow import ALIASES
from epl.parallel.plan.strategy import OUTSIDE, Strategy
from epl.planner.simulator.model_costs import ModelCosts, ModelOp
from epl.utils.errors import PlanError

Output = Tuple[int, int]  # op, and which of its outputs

_ALIASES = ALIASES | {"IdentityN"}  # of which other ops take the first output: of a function with a gradient of its own
_LOOKUPS = frozenset(["Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"])


class TrainedVariable(NamedTuple):
    """A variable that a step trains.

    Attributes:
      op: its number.
      bytes: of the full variable.
      dtype: of its gradient, by name.
      uses: the ops of its stage that compute with it, in their order; its gradient is complete when the backward pass
        has come to the first. () if only other stages do.
      rows: the lookups that are all that takes it, as (indices, result): its gradient is sparse then; else ().
    """

    op: int
    bytes: int
    dtype: str
    uses: Tuple[int, ...]
    rows: Tuple[Tuple[Output, Output], ...]


class StageOps(NamedTuple):
    """The ops of a stage; a position is that of an op among them.

    Attributes:
      ops: their numbers, in order.
      index: the same as an array.
      position: by op.
      producers: by position, the positions of the ops of the stage that it takes from.
      memory, last_use: `ModelFacts.memory_of` and `ModelFacts.last_use` as positions.
      from_data, has_gradient: as in `ModelFacts`.
      leaves: whether another stage takes an output, or one that shares its memory.
    """

    ops: Tuple[int, ...]
    index: np.ndarray
    position: Dict[int, int]
    producers: Tuple[Tuple[int, ...], ...]
    memory: np.ndarray
    last_use: np.ndarray
    from_data: np.ndarray
    has_gradient: np.ndarray
    leaves: np.ndarray


class ModelFacts(NamedTuple):
    """What matters of a model.

    Attributes:
      ops: of the forward pass.
      stage_of: by op.
      from_data: whether an op depends on data, by op.
      has_gradient: whether a gradient flows through the outputs of an op, by op.
      memory_of: by op, the op of its stage that has made the memory of its outputs: for a reshape, that of its input.
      last_use: by op, the last op of its stage that takes an output of it, also as a reshape; itself if none does.
      variables: the trained ones, by number of the op.
      crossing: (stage, later stage) -> the outputs that the later one takes.
      takers: (stage, later stage) -> each such output -> (op, position) of the inputs that take it.
      stages: the ops of each.
    """

    ops: Sequence[ModelOp]
    stage_of: Tuple[int, ...]
    from_data: Tuple[bool, ...]
    has_gradient: Tuple[bool, ...]
    memory_of: Tuple[int, ...]
    last_use: Tuple[int, ...]
    variables: Tuple[TrainedVariable, ...]
    crossing: Dict[Tuple[int, int], Tuple[Output, ...]]
    takers: Dict[Tuple[int, int], Dict[Output, List[Tuple[int, int]]]]
    stages: Tuple[StageOps, ...]


def find_facts(strategy: Strategy, costs: ModelCosts, stage_of_block: Sequence[int]) -> ModelFacts:
    """The facts of a model.

    Args:
      strategy: its strategy.
      costs: of the same model.
      stage_of_block: by block.

    Raises:
      ValueError: the costs are those of another model.
      PlanError: data flows from a stage to an earlier one.
    """
    ops = costs.ops
    if [op.type for op in ops] != [op.type for op in strategy.ops]:
        raise ValueError(
            f"the costs are of {len(ops)} ops and the strategy is of {len(strategy.ops)} ops of another model"
        )
    stage_of = tuple(0 if op.block == OUTSIDE else stage_of_block[op.block] for op in strategy.ops)
    from_data: List[bool] = []
    trained: List[bool] = []
    memory_of: List[int] = []
    last_use = list(range(len(ops)))
    crossing: Dict[Tuple[int, int], Dict[Output, List[Tuple[int, int]]]] = {}
    for number, op in enumerate(ops):
        producers = [producer for producer, _ in op.inputs]
        from_data.append(op.by_rows or any(from_data[p] for p in producers))
        trained.append(op.is_trained or any(trained[p] for p in producers))
        shares = op.type in _ALIASES and bool(producers) and stage_of[producers[0]] == stage_of[number]
        memory_of.append(memory_of[producers[0]] if shares else number)
        for position, (producer, output) in enumerate(op.inputs):
            own, other = stage_of[producer], stage_of[number]
            if own == other:
                last_use[producer] = last_use[memory_of[producer]] = number
            elif own < other:
                crossing.setdefault((own, other), {}).setdefault((producer, output), []).append((number, position))
            else:
                raise PlanError(
                    f"data flows from stage {own} back to stage {other}: {ops[producer].name!r} -> {op.name!r}. "
                    "Stages follow the data flow of the model."
                )
    floating = [any(_is_floating(text) for text in op.outputs) for op in strategy.ops]
    has_gradient = tuple(flows and (is_float or op.is_trained) for flows, is_float, op in zip(trained, floating, ops))
    facts = ModelFacts(
        ops,
        stage_of,
        tuple(from_data),
        has_gradient,
        tuple(memory_of),
        tuple(last_use),
        _variables(strategy, ops, from_data, stage_of),
        {stages: tuple(outputs) for stages, outputs in crossing.items()},
        crossing,
        (),
    )
    return facts._replace(stages=tuple(_stage_ops(facts, stage) for stage in range(max(stage_of_block) + 1)))


def _stage_ops(facts: ModelFacts, stage: int) -> StageOps:
    ops = tuple(op for op, own in enumerate(facts.stage_of) if own == stage)
    position = {op: at for at, op in enumerate(ops)}
    inputs = [facts.ops[op].inputs for op in ops]
    leaving = {op for stages, sent in facts.crossing.items() if stages[0] == stage for op, _ in sent}
    leaving |= {facts.memory_of[op] for op in leaving}
    return StageOps(
        ops,
        np.asarray(ops, int),
        position,
        tuple(tuple({position[one] for one, _ in taken if one in position}) for taken in inputs),
        np.asarray([position[facts.memory_of[op]] for op in ops], int),
        np.asarray([position[facts.last_use[op]] for op in ops], int),
        np.asarray([facts.from_data[op] for op in ops], bool),
        np.asarray([facts.has_gradient[op] for op in ops], bool),
        np.asarray([op in leaving for op in ops], bool),
    )


def source_of(ops: Sequence[ModelOp], output: Output) -> Output:
    """The variable that an output is a read of; else the output itself."""
    op = ops[output[0]]
    if op.type in op_types.READS and len(op.inputs) == 1 and ops[op.inputs[0][0]].variable_bytes:
        return op.inputs[0]
    return output


def _variables(
    strategy: Strategy, ops: Sequence[ModelOp], from_data: Sequence[bool], stage_of: Sequence[int]
) -> Tuple[TrainedVariable, ...]:
    uses: Dict[int, Set[int]] = {number: set() for number, op in enumerate(ops) if op.is_trained}
    lookups: Dict[int, List[Tuple[Output, Output]]] = {number: [] for number in uses}
    weights_of: Dict[int, FrozenSet[int]] = {}  # op that depends on variables alone -> the trained ones
    for number, op in enumerate(ops):
        if op.is_trained:
            weights_of[number] = frozenset([number])
            continue
        taken = [weights_of.get(producer, frozenset()) for producer, _ in op.inputs]
        if not from_data[number]:
            weights_of[number] = frozenset().union(*taken)
            continue
        for at, variables in enumerate(taken):
            for variable in variables:
                uses[variable].add(number)
                if op.type in _LOOKUPS and at == 0 and source_of(ops, op.inputs[0])[0] == variable:
                    lookups[variable].append((op.inputs[1], (number, 0)))
    found = []
    for number, takers in uses.items():
        text = strategy.ops[number].outputs[0] if strategy.ops[number].outputs else ""
        sparse = lookups[number] if len(lookups[number]) == len(takers) else []
        found.append(
            TrainedVariable(
                number,
                ops[number].variable_bytes,
                text.partition("[")[0] if _is_floating(text) else "float32",
                tuple(sorted(taker for taker in takers if stage_of[taker] == stage_of[number])),
                tuple(sparse),
            )
        )
    return tuple(found)


def _is_floating(text: str) -> bool:
    return text.startswith(("float", "bfloat"))
