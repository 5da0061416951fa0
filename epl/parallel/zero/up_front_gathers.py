"""ZeRO's up-front gathers, at the beginning of a step: small weights are packed, one collective for each pack.

    v0, v1      [b0 w1 b1 w2 ...]   w0      [b7 w8 ...]   w5        packs of small ones in the order of their first use

A pack costs one more copy of its weights and saves a collective per weight. The weights of different optimizers are in
different packs: an optimizer may run before the other's variables are initialized. A weight from which another variable
is initialized or assigned is in no pack and is gathered first, because that value must not wait for the other variable.
`v2` gathers block by block: `gather_per_use.py`.
"""

from typing import Callable, Collection, Hashable, Iterable, List, Sequence, Set

import tensorflow.compat.v1 as tf

from epl.ir.view import ancestor_ops
from epl.parallel.costs.shapes import num_elements
from epl.parallel.plan import zero_decisions
from epl.parallel.sharded_variables.variables import beside, initializer_of
from epl.parallel.sharding.packed import Member, all_gather
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.zero.variables import ZeroVariable


def packs(
    variables: Sequence[ZeroVariable],
    group: Callable[[ZeroVariable], Hashable],
    alone: Collection[ZeroVariable] = (),
) -> List[List[ZeroVariable]]:
    """The variables of each collective, in the order of the first variable of each.

    Args:
      variables: the variables, in their order.
      group: variables for which it returns different values are in different packs.
      alone: variables that go into no pack; they are the first.
    """
    first = [[variable] for variable in variables if variable in alone]
    others = [variable for variable in variables if variable not in alone]
    kinds = [(group(one), one.made.variable.dtype.base_dtype, one.made.variable.device) for one in others]
    found = zero_decisions.packs([size_of(one) for one in others], kinds)
    return first + [[others[number] for number in pack] for pack in found]


def size_of(variable: ZeroVariable) -> int:
    """Bytes of the full variable."""
    return num_elements(variable.made.full_shape) * variable.made.variable.dtype.base_dtype.size


def values_of_writes(variables: Iterable[ZeroVariable]) -> Set[tf.Operation]:
    """The ops that compute initial and assigned values of variables."""
    values = [initializer_of(one.made.variable).inputs[1] for one in variables]
    values += [tensor for one in variables for op in one.writes() for tensor in op.inputs[1:]]
    return ancestor_ops(tensor.op for tensor in values)


def gather_pack(pack: Sequence[ZeroVariable], resharder: Resharder) -> List[tf.Tensor]:
    """The full values of variables of one dtype and device, by one collective after the earlier ones of `resharder`."""
    first = pack[0].made
    with beside(first.old.op), tf.device(first.variable.device), tf.name_scope("pack"):
        own = [resharder.hide_size(one.made.variable.read_value(), one.made.placement) for one in pack]
        return all_gather(own, [Member(one.made.full_shape, one.made.placement) for one in pack], resharder)
