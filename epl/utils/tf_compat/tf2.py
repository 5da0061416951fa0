"""Private TensorFlow 2 in graph mode. The names of `__all__` are those of tf1.py, with the same meaning."""

import functools
import importlib
import importlib.util
import os
import sys
from typing import Any, Callable, FrozenSet, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import tensorflow as tf_api
import tensorflow.compat.v1 as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.client import pywrap_tf_session as c_api  # bulk import of clones
from tensorflow.python.eager import context as eager_context  # whether something ran eagerly
from tensorflow.python.framework import ops  # whether the default graph has been built in
from tensorflow.python.ops import nn, nn_impl, ref_variable, resource_variable_ops
from tensorflow.python.training import monitored_session, training
from tensorflow.python.util import deprecation

from epl.utils.errors import GraphModeError
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


def _with_monitored_sessions(modules: Iterable[Any]) -> Iterator[Any]:
    """Those that have MonitoredTrainingSession, each once: two names may be one module."""
    known: Set[int] = set()
    for module in modules:
        if hasattr(module, "MonitoredTrainingSession") and id(module) not in known:
            known.add(id(module))
            yield module


def _class_in(module: str, name: str) -> Tuple[type, ...]:
    """The class `name` of a module that this environment may lack."""
    try:
        return (getattr(importlib.import_module(module), name),)
    except ImportError:
        return ()


_FIRST_ID = 2  # of the ops of a graph
# Whether kernels for the CPU add rows with equal indices in the order of the rows. Those that scatter 1,024 rows
# or more take several threads.
CPU_ADDS_ROWS_IN_ORDER = False

# In graph mode; a variable that wraps another one is not among them.
VARIABLE_CLASSES: Tuple[type, ...] = (ref_variable.RefVariable, resource_variable_ops.ResourceVariable)
# Keras 3 builds no graphs. Where `tf.keras` would be it, this setting makes it tf_keras, which is Keras 2. TensorFlow
# reads it at its import, and once more when `tf.keras` or `tf.layers` is first used.
_SETTING = "TF_USE_LEGACY_KERAS"


def _keras_of_graphs() -> Optional[str]:
    """The package of the Keras 2 that `tf.keras` is; None: there is none."""
    keras = sys.modules.get("keras")
    if keras is not None and keras.__version__.startswith("2."):
        return "keras"
    is_keras_3 = vars(tf.keras).get("_tfll_keras_version") == "keras_3"
    if is_keras_3 or importlib.util.find_spec("tf_keras") is None:
        return None
    return "tf_keras" if os.environ.setdefault(_SETTING, "1") in ("1", "true", "True") else None


_KERAS = _keras_of_graphs()
# The modules in which Keras keeps its variables.
KERAS_BACKENDS: Tuple[Any, ...] = (importlib.import_module(f"{_KERAS}.src.backend"),) if _KERAS else ()
# The base classes of the Keras optimizers whose gradients are recorded: of `tf.keras`, and of the copy in TensorFlow.
KERAS_OPTIMIZERS: Tuple[type, ...] = (
    *(_class_in(f"{_KERAS}.src.optimizers.legacy.optimizer_v2", "OptimizerV2") if _KERAS else ()),
    *_class_in("tensorflow.python.keras.optimizer_v2.optimizer_v2", "OptimizerV2"),
)
_KERAS_3_TRAINER = "keras.src.trainers.trainer"
# What trains in a Keras that EPL does not know: module, class or "", and a function of it.
_UNKNOWN_KERAS = (
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),  # Keras 3
    (_KERAS_3_TRAINER, "Trainer", "compile"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "fit"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "train_on_batch"),
    # Keras 2, as a package of its own and in TensorFlow 2.15. (`apply_gradients` of Keras 3 calls `apply`.)
    ("tf_keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    ("tf_keras.src.optimizers", "", "convert_to_legacy_optimizer"),
    ("keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    ("keras.src.optimizers", "", "convert_to_legacy_optimizer"),
)
# The modules under which users find tf.assign.
ASSIGN_MODULES: Tuple[Any, ...] = (tf,)
# The modules in which Keras finds what configures callbacks.
CALLBACK_MODULES: Tuple[Any, ...] = (importlib.import_module(f"{_KERAS}.src.callbacks"),) if _KERAS else ()
# The modules under which users and layers find tf.nn.moments.
NN_MODULES: Tuple[Any, ...] = (tf.nn, nn, nn_impl)
# The modules under which users find tf.train.MonitoredTrainingSession.
TRAIN_MODULES: Tuple[Any, ...] = tuple(
    _with_monitored_sessions((tf.train, tf_api.train, tf_api.compat.v1.train, monitored_session, training))
)
_ESTIMATOR = "tensorflow_estimator.python.estimator."  # gone from the newer ones
RUN_CONFIGS: Tuple[type, ...] = _class_in(_ESTIMATOR + "run_config", "RunConfig")
TRAINING_EXECUTORS: Tuple[type, ...] = _class_in(_ESTIMATOR + "training", "_TrainingExecutor")
EVALUATION_LISTENERS: Tuple[type, ...] = _class_in(_ESTIMATOR + "training", "_NewCheckpointListenerForEvaluate")

# Writes the file `checkpoint` of a directory; the public name of the same function warns that it is deprecated.
name_latest_checkpoint = checkpoint_management.update_checkpoint_state_internal


def import_nodes(
    graph: tf.Graph,
    graph_def: bytes,
    names: Iterable[str],
    inputs: List[Tuple[str, int, tf.Tensor]],
    controls: List[Tuple[str, tf.Operation]],
) -> None:
    """Adds the nodes of `graph_def` to `graph` in one call of the C API.

    The maps of ops by name and by number lie in C++, where nothing can be made when it is looked up: each op gets its
    Python object at once.

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
    for name in names:
        c_api.TF_ImportGraphDefOptionsAddReturnOperation(scoped_options.options, name)
    with graph._mutation_lock():
        results = imported(c_api, graph, graph_def, scoped_options.options)
        with wrapping_operations(graph):
            for c_op in c_api.TF_ImportGraphDefResultsReturnOperations(results.results):
                tf.Operation._from_c_op(c_op, graph)
    _note_functions(graph, graph_def)


def _note_functions(graph: tf.Graph, graph_def: bytes) -> None:
    """Remembers the functions that `import_nodes` has added: neither Python nor the C API knows of them."""
    library = tf.GraphDef.FromString(graph_def).library
    if library.function:
        known: FrozenSet[str] = getattr(graph, "_epl_functions", frozenset())
        graph._epl_functions = known.union(one.signature.name for one in library.function)


def num_functions(graph: tf.Graph) -> int:
    """A number that grows with every function that is added to the graph."""
    return len(getattr(graph, "_epl_functions", frozenset()).union(graph._functions))


def untouched_names(graph: tf.Graph) -> Set[str]:
    """Names of the ops without a Python object: there are none."""
    del graph
    return set()


def num_nodes(graph: tf.Graph) -> int:
    """Ops in the graph."""
    return graph.num_operations()


def op_names(graph: tf.Graph) -> Set[str]:
    """Names of all ops in the graph.

    Those that are known from an earlier call are not asked for again: the map of ops by name lies in C++, and is copied
    with all its names when it is read.
    """
    known: Set[str] = getattr(graph, "_epl_names", set())
    graph._epl_names = known.union(op.name for op in graph.get_operations()[len(known) :])
    return graph._epl_names


def ops_between(graph: tf.Graph, before: int, last: int) -> List[tf.Operation]:
    """The ops created after op number `before`, up to op number `last`."""
    return graph.get_operations()[max(before - _FIRST_ID + 1, 0) : max(last - _FIRST_ID + 1, 0)]


def last_op_id(graph: tf.Graph) -> int:
    """The number of the op that was created last in `graph`; 0 if there is none. It grows with every op.

    The numbers of ops begin at 2 and have no gaps. The version of a graph counts its ops.
    """
    return graph.version + _FIRST_ID - 1 if graph.version else 0


def c_operation(graph: tf.Graph, name: str) -> Any:
    """The op of that name for the C API."""
    return graph._get_operation_by_name(name)._c_op


def output_types(graph: tf.Graph, name: str) -> List[OutputType]:
    """Sizes and dtype of every output of the op of that name."""
    return [output_type(output) for output in graph._get_operation_by_name(name).outputs]


def set_devices(graph: tf.Graph, devices: Iterable[Tuple[str, str]]) -> None:
    """Sets the devices of (name, device) pairs."""
    for name, device in devices:
        graph._get_operation_by_name(name)._set_device_from_string(device)


def op_def(graph: tf.Graph, op_type: str) -> Any:
    """The OpDef of an op type."""
    return graph.op_def_for_type(op_type)


def frames_of(op: tf.Operation) -> Sequence[Any]:
    """The calls that created an op, the innermost last, each with `filename` and `lineno`."""
    return list(op.traceback or [])


def keep_when_optimized(op: tf.Operation) -> None:
    """Keeps an identity from becoming a control edge from its source, which would run although its output is fed."""
    op._set_attr("_grappler_do_not_remove", tf.AttrValue(b=True))


def without_devices(context: Any) -> None:
    """Makes a context that has not looked for devices believe that there are none."""
    context._physical_devices, context._visible_device_list, context._memory_growth_map = [], [], {}
    context._pluggable_devices = []


def feeds_by_tensor(feeds: Any) -> Any:
    """The feeds that `BaseSession._do_run` is given, by tensor."""
    return {key.deref(): value for key, value in feeds.items()}


def feeds_by_reference(do_run: Callable[..., Any]) -> Callable[..., Any]:
    """`BaseSession._do_run`, which takes feeds by reference, for a caller that has them by tensor."""

    @functools.wraps(do_run)
    def run(session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *args: Any) -> Any:
        return do_run(session, handle, targets, fetches, {key.ref(): value for key, value in feeds.items()}, *args)

    return run


def has_keras_of_graphs() -> bool:
    """Whether `tf.keras` and `tf.layers` build graphs."""
    return _KERAS is not None


def unknown_keras() -> List[Tuple[Any, str]]:
    """What trains in a Keras that EPL does not know, where that is imported: (class or module, name of a function)."""
    found: List[Tuple[Any, str]] = []
    for module, owner, name in _UNKNOWN_KERAS:
        if module in sys.modules:
            holder = getattr(sys.modules[module], owner, None) if owner else sys.modules[module]
            if hasattr(holder, name):
                found.append((holder, name))
    return found


def is_keras_3_model(owner: Any) -> bool:
    """Whether an object is a model of Keras 3."""
    trainer = getattr(sys.modules.get(_KERAS_3_TRAINER), "Trainer", None)
    return trainer is not None and isinstance(owner, trainer)


def turn_off_v2_behavior() -> None:
    """Makes TensorFlow 2 build graphs as 1.15 does.

    Raises:
      GraphModeError: something was built or has run with the behaviour of TensorFlow 2.
    """
    if not executes_eagerly() and not v2_behavior():
        return
    context = eager_context.context_safe()
    if context is not None and context._initialized:
        raise GraphModeError("TensorFlow has executed eagerly before `import epl`. " + _REMEDY)
    if _begun_graph() is not None:
        raise GraphModeError("A graph was begun with the behaviour of TensorFlow 2 before `import epl`. " + _REMEDY)
    with deprecation.silence():
        tf.disable_v2_behavior()


def _begun_graph() -> Optional[tf.Graph]:
    """The default graph, if it has ops. `tf.get_default_graph` would create it, and eager execution be impossible."""
    graphs = ops._default_graph_stack
    graph = graphs.stack[-1] if graphs.stack else graphs._global_default_graph
    return graph if graph is not None and graph.version else None


_REMEDY = (
    "EPL rewrites graphs as TensorFlow 1.15 builds them. Write `import epl` above everything that uses TensorFlow, or "
    "right below `import tensorflow`: import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()"
)


def executes_eagerly() -> bool:
    """Whether ops run as they are called, or would outside of a `with graph.as_default()`."""
    return tf.executing_eagerly() or eager_context.default_execution_mode == eager_context.EAGER_MODE


def v2_behavior() -> List[str]:
    """The behaviours of TensorFlow 2 that are on and that EPL does not know, in words; but for eager execution."""
    on = {
        "control flow v2": tf.control_flow_v2_enabled(),
        "equality of tensors by value": tf.Tensor._USE_EQUALITY,
    }
    return [name for name, is_on in on.items() if is_on]
