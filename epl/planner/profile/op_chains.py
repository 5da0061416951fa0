"""Copies of one op that run one after the other in a scratch graph: what is run to find how long one of them takes.

    variables --> copy 0 ==> copy 1 ==> ... ==> copy n - 1 --> keep          ==>  control edges

    seconds of one copy = (seconds up to keep - seconds up to copy 0) / (n - 1)

Inputs are variables, which no op computes in place. Neighbours take different ones, as many as do not fit into a cache
together, and outputs live until the end of the chain: ops that read and wrote the same bytes again and again would be
up to twice as fast as in a model.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, cast

import tensorflow.compat.v1 as tf

from epl.parallel.costs import backward
from epl.parallel.costs.backward import Signature
from epl.parallel.costs.ops import op_cost
from epl.parallel.costs.shapes import TensorType, num_bytes
from epl.utils import tf_compat
from epl.utils.op_errors import first_line

MOST_COPIES = 24
FEWEST_COPIES = 3
# Inputs of so many bytes drive each other out of the caches of a core, and mostly out of those that cores share, as in
# a step: with 16 MB, batched products with 8 MB of weights took 24% less time than with this.
_COLD_BYTES = 64e6
_MOST_COLD = 0.25  # of the memory, at most
_CHAIN_SECONDS = 20e-3  # about as long as one chain is to take
# Guesses for the number of copies alone.
_GUESSED_FLOPS, _GUESSED_BYTES, _GUESSED_OVERHEAD = 100e9, 10e9, 3e-6
# Inputs with indices: (their position, axis of the first input that they count).
_INDICES = {
    "Gather": (1, 0), "GatherV2": (1, 0), "ResourceGather": (1, 0), "SparseSoftmaxCrossEntropyWithLogits": (1, -1),
    "InTopK": (1, -1), "InTopKV2": (1, -1),
}  # fmt: skip


class NotMeasurableError(Exception):
    """An op cannot be run by itself; the message says why."""


class OpChain(NamedTuple):
    """Copies of an op, or of its backward pass.

    Attributes:
      first: is done when the first copy is.
      last: is done when all copies are.
      copies: how many there are.
      starts_alone: whether no other op runs before `first` is done.
    """

    first: tf.Operation
    last: tf.Operation
    copies: int
    starts_alone: bool


class ChainBuilder:
    """Builds chains in one scratch graph.

    Attributes:
      graph: the graph.
    """

    def __init__(self, device: str, memory: float) -> None:
        """An empty graph.

        Args:
          device: a device of TensorFlow; "" lets TensorFlow choose.
          memory: bytes that the tensors of a chain may take.
        """
        self.graph = tf.Graph()
        self._device = device
        self._memory = memory
        self._variables: Dict[Tuple[Any, ...], tf.Tensor] = {}
        self._count = 0

    def forward(self, op: Signature) -> OpChain:
        """Copies of an op.

        Raises:
          NotMeasurableError: the op does not run by itself, or has not enough memory.
        """
        copies, sets = self._copies(op, sum(map(num_bytes, op.outputs)))
        with self.graph.as_default(), tf.device(self._device):
            made: List[tf.Operation] = []
            for number in range(copies):
                made.append(self._copy(op, made[-1:], number % sets))
            alive = [tensor for one in made for tensor in one.outputs if not tf_compat.is_reference(tensor.dtype)]
            with tf.control_dependencies(made[-1:]):
                last = tf.identity_n(alive)[0].op if alive else tf.no_op()
        return OpChain(made[0], last, copies, True)

    def backward(self, op: Signature) -> Optional[OpChain]:
        """Copies of the ops that the gradient of an op needs; None if it has no gradient that is wanted.

        The op itself runs before, if its gradient reads its outputs.

        Raises:
          NotMeasurableError: as `forward`; or the op cannot be differentiated by itself.
        """
        if not (any(op.wanted) and any(op.used)):
            return None
        copies, sets = self._copies(op, sum(map(num_bytes, op.inputs)))
        with self.graph.as_default(), tf.device(self._device):
            forward = [self._copy(op, (), number) for number in range(sets)]
            gradient = tf_compat.gradient_function(forward[0])
            if gradient is None:
                return None
            ends: List[List[tf.Operation]] = []
            for number in range(copies):
                with tf.control_dependencies(ends[-1] if ends else None):
                    ends.append(_ends(self._differentiate(op, gradient, forward[number % sets]), op.wanted))
                if not ends[-1]:
                    return None
            # Where the gradient reads outputs, the op runs, too: all of them before the first copy is done.
            running = [one for one in forward if any(tensor.consumers() for tensor in one.outputs)]
            return OpChain(tf.group(*ends[0], *running), tf.group(*ends[-1]), copies, False)

    def _copies(self, op: Signature, written: float) -> Tuple[int, int]:
        """How many copies a chain gets, and how many sets of inputs they take in turn.

        Args:
          op: the op.
          written: bytes that each copy writes.
        """
        read = sum(map(num_bytes, [*op.inputs, *op.outputs]))  # outputs, or their gradients
        cold = min(_COLD_BYTES, _MOST_COLD * self._memory)
        fitting = (self._memory - max(read, cold)) / max(written, 1.0)
        if fitting < FEWEST_COPIES:
            raise NotMeasurableError(f"{FEWEST_COPIES} of it take more than the {self._memory / 1e6:.0f} MB there are")
        cost = op_cost(backward.node_of(op, "op"), op.inputs, op.outputs)
        guess = _GUESSED_OVERHEAD + cost.flops / _GUESSED_FLOPS + cost.bytes / _GUESSED_BYTES
        copies = int(min(max(_CHAIN_SECONDS / guess, FEWEST_COPIES), MOST_COPIES, fitting))
        return copies, int(min(max(cold / max(read, 1.0), 1), copies))

    def _copy(self, op: Signature, before: Sequence[tf.Operation], number: int) -> tf.Operation:
        """The op on the variables of a set, and on constants where its inputs are; it runs after `before`."""
        self._count += 1
        name = f"op{self._count}"
        graph_def = tf.GraphDef()
        graph_def.versions.producer = self.graph.graph_def_versions.producer
        node = backward.node_of(op, name)
        node.device = self._device
        inputs = []
        for position, (given, constant) in enumerate(zip(op.inputs, op.constants)):
            source = f"{name}_in{position}"
            node.input.append(source)
            if constant is None:
                inputs.append((source, 0, self._input(op, position, number)))
            else:
                value = tf.make_tensor_proto(constant, given.dtype.base_dtype, shape=given.shape)
                const = graph_def.node.add(name=source, op="Const")
                const.attr["dtype"].type = given.dtype.base_dtype.as_datatype_enum
                const.attr["value"].tensor.CopyFrom(value)
        controls = []
        for number, earlier in enumerate(before):
            node.input.append(f"^{name}_after{number}")
            controls.append((f"{name}_after{number}", earlier))
        graph_def.node.add().CopyFrom(node)
        names = [one.name for one in graph_def.node]
        try:
            tf_compat.import_nodes(self.graph, graph_def.SerializeToString(), names, inputs, controls)
        except (ValueError, tf.errors.OpError) as error:
            raise NotMeasurableError(first_line(error)) from None
        made = self.graph.get_operation_by_name(name)
        for tensor, known in zip(made.outputs, op.outputs):
            _check_shape(tensor, known)
            tensor.set_shape(tf.TensorShape(known.shape))
        return made

    def _input(self, op: Signature, position: int, number: int) -> tf.Tensor:
        """A variable with the elements of an input, or the handle of one if the op takes that."""
        given = op.inputs[position]
        if given.dtype.base_dtype != tf.resource:
            return self._variable(given, (position, number), _bound(op, position))
        variable = op.variables[position] if op.variables else None
        if variable is None:
            raise NotMeasurableError("an input is no tensor")
        return self._variable(variable, (position, number), 1, is_resource=True)

    def _variable(self, given: TensorType, role: Any, bound: int, is_resource: bool = False) -> tf.Tensor:
        """A variable with random elements; ops of equal inputs have it together.

        Args:
          given: shape and dtype.
          role: the inputs of one op differ in it.
          bound: whole numbers are below it.
          is_resource: whether its handle is returned, not its reference.
        """
        dtype, shape = given.dtype.base_dtype, given.shape
        if shape is None or None in shape:
            raise NotMeasurableError("the shape of an input is not known")
        key = (dtype, shape, role, bound, is_resource)
        if key not in self._variables:
            with tf.control_dependencies(None):
                made = tf.Variable(_random(dtype, shape, bound), trainable=False, use_resource=is_resource)
                self._variables[key] = made.op.outputs[0]
        return self._variables[key]

    def _seed(self, tensor: tf.Tensor, used: bool, at: int) -> Optional[tf.Tensor]:
        """The gradient that comes to an output: zeros where none does, as TensorFlow has it."""
        if not backward.has_gradient(tensor.dtype):
            return None
        if not used:
            return tf.zeros_like(tensor, optimize=False)
        shape = tensor.shape
        given = TensorType(None if shape.ndims is None else tuple(shape.as_list()), tensor.dtype)
        return tf.convert_to_tensor(self._variable(given, ("gradient", at), 1))

    def _differentiate(self, op: Signature, gradient: Any, forward: tf.Operation) -> List[Any]:
        seeds = [self._seed(tensor, op.used[at], at) for at, tensor in enumerate(forward.outputs)]
        try:
            found = gradient(forward, *seeds)
        except Exception as error:  # a gradient function that needs more of the graph than the op raises anything
            raise NotMeasurableError(f"it cannot be differentiated by itself: {error}") from None
        return list(found) if isinstance(found, (list, tuple)) else [found]


def _check_shape(tensor: tf.Tensor, known: TensorType) -> None:
    """Refuses an output whose size depends on values: these are made up, and the op would do more or less work."""
    found = tensor.shape
    if tf.TensorShape(known.shape).is_fully_defined() and found.as_proto() != tf.TensorShape(known.shape).as_proto():
        raise NotMeasurableError("the size of an output depends on values that are not known")


def _bound(op: Signature, position: int) -> int:
    """What the whole numbers of an input must be below."""
    where, axis = _INDICES.get(op.type, (None, 0))
    if where != position:
        return 1
    if op.type == "GatherV2" and op.constants[2] is not None:
        axis = int(op.constants[2][0])
    source = (op.variables[0] if op.variables else None) or op.inputs[0]
    size = (source.shape or ())[axis:][:1]
    if size in ((), (None,)):
        raise NotMeasurableError("the shape of an input is not known")
    return cast(int, size[0])


def _random(dtype: tf.DType, shape: Tuple[Optional[int], ...], bound: int) -> tf.Tensor:
    """Elements that no op fails at: floats from 0.1 to 1, whole numbers from 0 on and below `bound`."""
    if dtype.is_floating:
        return tf.random_uniform(shape, 0.1, 1.0, dtype)
    if dtype.is_integer:
        return tf.cast(tf.random_uniform(shape, 0, bound, tf.int64), dtype)
    if dtype.is_bool:
        return tf.random_uniform(shape) < 0.5
    raise NotMeasurableError(f"an input of {dtype.name} cannot be made up")


def _ends(gradients: Sequence[Any], wanted: Sequence[bool]) -> List[tf.Operation]:
    """The ops that compute the gradients that are wanted."""
    found: List[tf.Operation] = []
    for one, is_wanted in zip(gradients, wanted):
        if is_wanted and one is not None:
            parts = [one.values, one.indices] if isinstance(one, tf.IndexedSlices) else [one]
            found += [part.op for part in parts]
    return list(dict.fromkeys(found))
