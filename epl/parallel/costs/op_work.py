"""What ops compute, forward and backward, as runs of ops; a call of a function as the runs of its body.

    MatMul             forward  MatMul                    backward  MatMul, MatMul; keeps its inputs
    PartitionedCall    forward  the ops of its body       backward  their backward ops; keeps what those keep
    While              the same, times the turns of the loop
    a Defun by name    backward: TensorFlow computes the body again, and keeps the arguments alone

Where a body cannot be read, the call counts by its arguments and results alone.
"""

from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from epl.parallel.costs import backward
from epl.parallel.costs import functions as costs_functions
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.forward_nodes import is_free, read_nodes
from epl.parallel.costs.functions import Argument, CallBody, FunctionCall, FunctionLibrary
from epl.parallel.costs.kept import Homes, kept_tensors
from epl.parallel.costs.ops import KeptInside, OpRun, OpWork
from epl.parallel.costs.shapes import TensorType


class _BodyWork(NamedTuple):
    """What one run of a body computes; `arguments` and `results` are positions of those that are kept."""

    forward: Tuple[OpRun, ...]
    backward: Tuple[OpRun, ...]
    arguments: Tuple[int, ...]
    results: Tuple[int, ...]
    inside: Tuple[KeptInside, ...]
    is_known: bool
    unbounded: Tuple[str, ...]


def find_works(ops: Iterable[Signature], library: FunctionLibrary) -> Dict[Signature, OpWork]:
    """What ops compute; equal ops are looked at once."""
    found: Dict[Signature, OpWork] = {}
    plain: List[Signature] = []
    for op in dict.fromkeys(ops):
        call = library.call(op)
        if is_free(op):
            found[op] = OpWork((), ())
        elif call is None:
            plain.append(op)
        else:
            try:
                found[op] = _of_call(op, call, library)
            except ValueError:  # TensorFlow or the body refuses these arguments
                plain.append(op)
    for op, one in backward.differentiate(plain).items():
        found[op] = OpWork((backward.own_run(op),), one.runs, one.kept_inputs, one.kept_outputs, (), one.is_known)
    return found


def _of_call(op: Signature, call: FunctionCall, library: FunctionLibrary) -> OpWork:
    if call.is_gradient:
        return _of_gradient(op, call.functions[0], library)
    if call.is_loop:
        return _of_loop(op, call, library)
    wanted = op.wanted[call.first :]
    arguments = costs_functions.arguments_of(op, call.first)
    works = [_work_of(library, library.body(name, arguments), wanted, op.used) for name in call.functions]
    work = max(works, key=_weight)  # one branch runs; the one with most work counts
    if call.by_type and work.backward:
        return _computed_again(op, call.functions[0], work, library)
    kept = tuple(at + call.first for at in work.arguments)
    return OpWork(work.forward, work.backward, kept, work.results, work.inside, work.is_known, work.unbounded)


def _computed_again(op: Signature, name: str, work: _BodyWork, library: FunctionLibrary) -> OpWork:
    """A function whose gradient is SymbolicGradient, or a function of its own, of the arguments."""
    again = work.forward + work.backward
    gradient = library.gradient_of(name)
    if gradient is not None:
        arguments = costs_functions.arguments_of(op, 0) + [Argument(one) for one in op.outputs]
        again = _work_of(library, library.body(gradient, arguments), (), ()).forward
    return OpWork(work.forward, again, tuple(range(len(op.inputs))), (), (), work.is_known, work.unbounded)


def _of_gradient(op: Signature, name: str, library: FunctionLibrary) -> OpWork:
    """The op SymbolicGradient: arguments of a function and gradients of its results -> gradients of the arguments."""
    count = library.num_arguments(name)
    body = library.body(name, costs_functions.arguments_of(op, 0)[:count])
    work = _work_of(library, body, [_has_gradient(one) for one in op.inputs[:count]], [True] * len(body.results))
    forward = work.forward + work.backward
    is_wanted = any(op.wanted) and any(op.used)
    return OpWork(forward, forward if is_wanted else (), (), (), (), not is_wanted, work.unbounded)


def _of_loop(op: Signature, call: FunctionCall, library: FunctionLibrary) -> OpWork:
    arguments = costs_functions.arguments_of(op, 0)
    condition, body = (library.body(name, arguments) for name in call.functions)
    turns = costs_functions.turns(condition, body)
    times = 1 if turns is None else turns
    is_wanted = any(op.wanted) and any(op.used)
    # A gradient that is wanted of one argument may flow through all others: each turn takes what the last one made.
    flows = [is_wanted and _has_gradient(one) for one in op.inputs]
    work = _work_of(library, body, flows, flows)
    checked = _work_of(library, condition, (), ())
    passed = set(costs_functions.passed_arguments(body).values())
    made = [body.types[body.arguments[at]][0] for at in work.arguments if at not in passed]
    made += [body.types[node][output] for node, output in (body.results[at] for at in work.results)]
    inside = [(one, float(times)) for one in made] + [(one, times * count) for one, count in work.inside]
    kept = tuple(at for at in work.arguments if at in passed)
    unbounded = work.unbounded + checked.unbounded + ((call.functions[1],) if turns is None else ())
    forward = _repeated(checked.forward + work.forward, times)
    return OpWork(
        forward, _repeated(work.backward, times), kept, (), tuple(inside), work.is_known, unbounded
    )  # fmt: skip


def _work_of(library: FunctionLibrary, body: CallBody, wanted: Sequence[bool], used: Sequence[bool]) -> _BodyWork:
    """What a body computes.

    Args:
      library: of the functions that it calls.
      body: the body.
      wanted: by argument, whether its gradient is needed; () for none.
      used: by result, whether a gradient comes to it; () for none.
    """
    view, types = body.view, body.types
    starts = [node for node, is_wanted in zip(body.arguments, wanted) if is_wanted]
    ends = [result for result, is_used in zip(body.results, used) if is_used]
    read = read_nodes(view, types, range(len(view)), starts, ends)
    nodes = read.of_node
    works = find_works([one.signature for one in nodes.values() if one.signature is not None], library)
    forward: List[OpRun] = []
    after: List[OpRun] = []
    inside: List[KeptInside] = []
    unbounded: List[str] = list(read.unbounded)
    is_known = True
    for one in nodes.values():
        after += _repeated([backward.addition(*each) for each in one.sums], one.runs)
        if one.signature is not None:
            work = works[one.signature]
            forward += _repeated(work.forward, one.runs)
            after += _repeated(work.backward, one.runs)
            inside += [(tensor, one.runs * count) for tensor, count in work.inside]
            unbounded += work.unbounded
            is_known = is_known and work.is_known
    places = {node: at for at, node in enumerate(body.arguments)}
    homes = Homes(view, types, nodes)
    results = {homes.of(result): at for at, result in enumerate(body.results)}
    kept = kept_tensors(view, homes, nodes, works)
    inside += [
        (types[node][output], float(count))
        for (node, output), count in kept.items()
        if node not in places and (node, output) not in results
    ]
    return _BodyWork(
        tuple(forward),
        tuple(after),
        tuple(sorted(places[node] for node, _ in kept if node in places)),
        tuple(sorted(results[tensor] for tensor in kept if tensor in results and tensor[0] not in places)),
        tuple(inside),
        is_known,
        tuple(dict.fromkeys(unbounded)),
    )


def _repeated(runs: Sequence[OpRun], times: float) -> Tuple[OpRun, ...]:
    return tuple(runs) if times == 1 else tuple(run._replace(times=run.times * times) for run in runs)


def _has_gradient(tensor: TensorType) -> bool:
    return tensor.dtype.base_dtype.name == "resource" or backward.has_gradient(tensor.dtype)


def _weight(work: _BodyWork) -> Tuple[float, float]:
    costs = [(run.times, run.cost()) for run in work.forward]
    return sum(times * cost.flops for times, cost in costs), sum(times * cost.bytes for times, cost in costs)
