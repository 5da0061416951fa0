"""Private TensorFlow 1.15. The names of `__all__` are those of tf2.py, with the same meaning."""

from typing import Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

import tensorflow as tf_api
import tensorflow.compat.v1 as tf
from tensorflow.python import pywrap_tensorflow as c_api  # bulk import of clones
from tensorflow.python.framework import c_api_util
from tensorflow.python.keras import backend, callbacks
from tensorflow.python.keras.optimizer_v2 import optimizer_v2
from tensorflow.python.ops import nn, nn_impl, resource_variable_ops, variables
from tensorflow.python.training import checkpoint_management, monitored_session, training
from tensorflow_estimator.python.estimator import training as estimator_training

from epl.utils.tf_compat.bulk_import import import_options, imported, wrapping_operations
from epl.utils.tf_compat.tensors import OutputType, output_type

__all__ = [
    "ASSIGN_MODULES", "CALLBACK_MODULES", "CPU_ADDS_ROWS_IN_ORDER", "EVALUATION_LISTENERS", "KERAS_BACKENDS",
    "KERAS_OPTIMIZERS", "NN_MODULES", "RUN_CONFIGS", "TRAINING_EXECUTORS", "TRAIN_MODULES", "VARIABLE_CLASSES", "c_api",
    "c_operation", "executes_eagerly", "feeds_by_reference", "feeds_by_tensor", "frames_of", "has_keras_of_graphs",
    "import_nodes", "is_keras_3_model", "keep_when_optimized", "last_op_id", "name_latest_checkpoint", "num_functions",
    "num_nodes", "op_def", "op_names", "ops_between", "output_types", "set_devices", "turn_off_v2_behavior",
    "unknown_keras", "untouched_names", "v2_behavior", "without_devices",
]  # fmt: skip

# Whether kernels for the CPU add rows with equal indices in the order of the rows.
CPU_ADDS_ROWS_IN_ORDER = True

# In graph mode; a variable that wraps another one is not among them.
VARIABLE_CLASSES: Tuple[type, ...] = (variables.RefVariable, resource_variable_ops.ResourceVariable)
# The modules in which Keras keeps its variables.
KERAS_BACKENDS: Tuple[Any, ...] = (backend,)
# The base classes of the Keras optimizers whose gradients are recorded.
KERAS_OPTIMIZERS: Tuple[type, ...] = (optimizer_v2.OptimizerV2,)
# The modules under which users find tf.assign.
ASSIGN_MODULES: Tuple[Any, ...] = (tf, tf_api)
# The modules in which Keras finds what configures callbacks.
CALLBACK_MODULES: Tuple[Any, ...] = (callbacks,)
# The modules under which users and layers find tf.nn.moments.
NN_MODULES: Tuple[Any, ...] = (tf.nn, tf_api.nn, nn, nn_impl)
# The modules under which users find tf.train.MonitoredTrainingSession.
TRAIN_MODULES: Tuple[Any, ...] = (
    tf.train,
    tf_api.train,
    monitored_session,
    training,  # where an Estimator finds it
)
# How an Estimator is configured, who trains it, and who evaluates it when a checkpoint was written.
RUN_CONFIGS: Tuple[type, ...] = (tf.estimator.RunConfig,)
TRAINING_EXECUTORS: Tuple[type, ...] = (estimator_training._TrainingExecutor,)
EVALUATION_LISTENERS: Tuple[type, ...] = (estimator_training._NewCheckpointListenerForEvaluate,)

# Writes the file `checkpoint` of a directory; the public name of the same function warns that it is deprecated.
name_latest_checkpoint = checkpoint_management.update_checkpoint_state_internal


class LazyOperations(Dict[str, tf.Operation]):
    """The `_nodes_by_name` of a graph with operations that exist in the C graph but have no Python object yet.

    Two fifths of the cost of a clone is its Python wrapper (`Operation`), but Python code needs almost no clone. An
    operation of `unwrapped` gets its wrapper when its name is first looked up.
    """

    def __init__(self, graph: tf.Graph, known: Dict[str, tf.Operation]) -> None:
        super().__init__(known)
        self._graph = graph
        self.unwrapped: Set[str] = set()

    def __missing__(self, name: str) -> tf.Operation:
        if name not in self.unwrapped:
            raise KeyError(name)
        self.unwrapped.discard(name)
        c_op = c_operation(self._graph, name)
        with wrapping_operations(self._graph):
            return tf.Operation(c_op, self._graph)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.unwrapped


def import_nodes(
    graph: tf.Graph,
    graph_def: bytes,
    names: Iterable[str],
    inputs: List[Tuple[str, int, tf.Tensor]],
    controls: List[Tuple[str, tf.Operation]],
) -> None:
    """Adds the nodes of `graph_def` to `graph` in one call of the C API, without Python objects for them.

    Args:
      graph: the graph to extend; its lock is held while it changes.
      graph_def: serialized; nodes with their final names, none of which may be in the graph.
      names: the names of these nodes.
      inputs: (name, output index, tensor): the tensor for a data input that names a node outside of `graph_def`.
      controls: (name, operation): the same for control inputs.

    Raises:
      ValueError: TensorFlow refused a node; the error has TensorFlow's text.
    """
    scoped_options = import_options(c_api, inputs, controls)
    operations = graph._nodes_by_name
    if not isinstance(operations, LazyOperations):
        operations = graph._nodes_by_name = LazyOperations(graph, operations)
    with graph._mutation_lock():
        imported(c_api, graph, graph_def, scoped_options.options)
        operations.unwrapped.update(names)


def untouched_names(graph: tf.Graph) -> Set[str]:
    """Names of the ops without a Python object: nobody can have changed them since they were imported."""
    operations = graph._nodes_by_name
    return operations.unwrapped if isinstance(operations, LazyOperations) else set()


def num_nodes(graph: tf.Graph) -> int:
    """Ops in the graph, those without a Python object included."""
    return len(graph._nodes_by_name) + len(untouched_names(graph))


def op_names(graph: tf.Graph) -> Set[str]:
    """Names of all ops in the graph, those without a Python object included."""
    return untouched_names(graph).union(graph._nodes_by_name)


def ops_between(graph: tf.Graph, before: int, last: int) -> List[tf.Operation]:
    """The ops created after op number `before`, up to op number `last`."""
    by_id = graph._nodes_by_id
    return [by_id[i] for i in range(before + 1, last + 1) if i in by_id]


def last_op_id(graph: tf.Graph) -> int:
    """The number of the op that was created last in `graph`; 0 if there is none. It grows with every op."""
    return graph._last_id if hasattr(graph, "_last_id") else graph.version


def c_operation(graph: tf.Graph, name: str) -> Any:
    """The op of that name for the C API; it makes no Python object."""
    return c_api.TF_GraphOperationByName(graph._c_graph, name)


def output_types(graph: tf.Graph, name: str) -> List[OutputType]:
    """Sizes and dtype of every output of the op of that name; it makes no Python object of the op."""
    if name not in untouched_names(graph):
        return [output_type(output) for output in graph.get_operation_by_name(name).outputs]
    c_op = c_operation(graph, name)
    found = []
    for output in [c_api_util.tf_output(c_op, at) for at in range(c_api.TF_OperationNumOutputs(c_op))]:
        sizes, is_unknown = c_api.TF_GraphGetTensorShapeHelper(graph._c_graph, output)
        shape = None if is_unknown else tuple(None if size == -1 else size for size in sizes)
        found.append((shape, tf.as_dtype(c_api.TF_OperationOutputType(output))))
    return found


def set_devices(graph: tf.Graph, devices: Iterable[Tuple[str, str]]) -> None:
    """Sets the devices of (name, device) pairs, without making Python objects for the ops."""
    c_graph = graph._c_graph
    for name, device in devices:
        c_api.SetRequestedDevice(c_graph, c_api.TF_GraphOperationByName(c_graph, name), device)


def num_functions(graph: tf.Graph) -> int:
    """A number that grows with every function that is added to the graph."""
    return c_api.TF_GraphNumFunctions(graph._c_graph)


def op_def(graph: tf.Graph, op_type: str) -> Any:
    """The OpDef of an op type."""
    return graph._get_op_def(op_type)


def frames_of(op: tf.Operation) -> Sequence[Any]:
    """The calls that created an op, the innermost last, each with `filename` and `lineno`."""
    return op._traceback or []


def keep_when_optimized(op: tf.Operation) -> None:
    """Nothing is to be done: where a tensor is fed whose source an op waits for, the graph is not optimized."""


def without_devices(context: Any) -> None:
    """Makes a context that has not looked for devices believe that there are none."""
    context._physical_devices, context._visible_device_list, context._memory_growth_map = [], [], {}


def feeds_by_tensor(feeds: Any) -> Any:
    """The feeds that `BaseSession._do_run` is given, by tensor."""
    return feeds


def feeds_by_reference(do_run: Callable[..., Any]) -> Callable[..., Any]:
    """`BaseSession._do_run`, which takes feeds by tensor."""
    return do_run


def has_keras_of_graphs() -> bool:
    """Whether `tf.keras` and `tf.layers` build graphs."""
    return True


def unknown_keras() -> List[Tuple[Any, str]]:
    """What trains in a Keras that EPL does not know, where that is imported: (class or module, name of a function)."""
    return []


def is_keras_3_model(owner: Any) -> bool:
    """Whether an object is a model of Keras 3."""
    del owner
    return False


def turn_off_v2_behavior() -> None:
    """Nothing is to be done: TensorFlow 1.15 builds graphs by itself."""


def executes_eagerly() -> bool:
    """Whether ops run as they are called."""
    return tf.executing_eagerly()


def v2_behavior() -> List[str]:
    """The behaviours of TensorFlow 2 that are on and that EPL does not know, in words; but for eager execution."""
    return []
