"""Private TensorFlow that is the same in every version, and what is made of that which differs (tf1.py, tf2.py)."""

import contextlib
import copy
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto as TensorShapeProto  # for annotations
from tensorflow.python.client import (
    device_lib,  # names of GPUs
)
from tensorflow.python.client import session as session_module
from tensorflow.python.distribute import (
    distribute_lib,  # the strategy that stands for none
    one_device_strategy,  # what both of its classes have in common
)
from tensorflow.python.eager import context as eager_context  # the settings of tf.config
from tensorflow.python.framework import (
    c_api_util,  # scoped C buffers
    func_graph,
    function,
    kernels,  # which kernels are registered
    ops,  # whether `with graph.as_default()` is open
)
from tensorflow.python.ops import (
    control_flow_state,
    control_flow_util,
    gradients_util,
    variable_scope,
)
from tensorflow.python.saved_model import builder_impl
from tensorflow.python.training import saver
from tensorflow.python.util import deprecation
from tensorflow.python.util import nest as tf_nest

from epl.utils.tf_compat.chosen import (
    EVALUATION_LISTENERS,
    KERAS_BACKENDS,
    c_api,
    c_operation,
    import_nodes,
    last_op_id,
    op_def,
    ops_between,
    without_devices,
)

BaseSession = session_module.BaseSession
SaverBuilder = saver.BaseSaverBuilder
gradients_util_module = gradients_util
ControlFlowState = control_flow_state._ControlFlowState
GradLoopState = control_flow_state._GradLoopState
VariableStore = variable_scope._VariableStore
# TensorFlow's own code calls its deprecated functions: used around calls that the user did not make.
silent_deprecations = deprecation.silence
DISTRIBUTION_STRATEGY: type = tf.distribute.Strategy.__mro__[-2]  # what those of both APIs derive from
SAVED_MODEL_BUILDERS: Tuple[type, ...] = (builder_impl.SavedModelBuilder, builder_impl._SavedModelBuilder)
FUNCTION_GRAPHS: Tuple[type, ...] = (func_graph.FuncGraph, function._FuncGraph)


def gradient_function(op: tf.Operation) -> Optional[Callable[..., Any]]:
    """The function that gives the gradients by the inputs of an op, given those of its outputs; None: it has none."""
    try:
        return ops.get_gradient_function(op)
    except LookupError:
        return None


GRADIENT_OP_TYPE = "_gradient_op_type"  # attribute that names another gradient function than that of the op type


def call_gradient_function(
    op: tf.Operation, shape_of: Callable[[tf.Tensor], Optional[Sequence[Optional[int]]]]
) -> Tuple[List[Any], List[Tuple[tf.Tensor, tf.Tensor]]]:
    """Calls the gradient function of an op in a scratch graph, which may take tensors of the graph of the op.

    Args:
      op: the op.
      shape_of: the shape of a tensor of its graph; None if it is not known.

    Returns:
      The gradients by its inputs, in the scratch graph; and each tensor that it takes, with what stands for it there.

    Raises:
      ValueError: it creates a variable. What else it raises is its own.
    """
    gradient = ops.get_gradient_function(op)
    with op.graph.as_default():
        scratch = _ScratchGraph("gradient", shape_of)
    with scratch.as_default(), tf.variable_creator_scope(_refuse_variable):
        seeds = [tf.placeholder(tensor.dtype.base_dtype, shape_of(tensor)) for tensor in op.outputs]
        made = gradient(op, *seeds)
    return list(made) if isinstance(made, (list, tuple)) else [made], list(scratch.captures)


def _refuse_variable(create: Callable[..., Any], **arguments: Any) -> Any:
    raise ValueError("A gradient function creates a variable, which would be one of the graph of its op.")


class _ScratchGraph(func_graph.FuncGraph):
    """The body of a function that is never called; what it takes from outside gets the shapes that are known."""

    def __init__(self, name: str, shape_of: Callable[[tf.Tensor], Optional[Sequence[Optional[int]]]]) -> None:
        super().__init__(name)
        self._shape_of = shape_of

    def capture(self, tensor: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
        taken = super().capture(tensor, name)
        if taken is not tensor and taken.dtype.base_dtype != tf.resource:
            shape = self._shape_of(tensor)
            if shape is not None:
                taken.set_shape(shape)
        return taken


def is_strategy_of_one_device(strategy: Any) -> bool:
    """Whether a tf.distribute.Strategy is a OneDeviceStrategy, or the one that stands for none."""
    kinds = (one_device_strategy.OneDeviceExtended, distribute_lib._DefaultDistributionExtended)
    return isinstance(strategy.extended, kinds)


def is_function_graph(graph: tf.Graph) -> bool:
    """Whether `graph` is the body of a function, not a graph that a session runs."""
    return isinstance(graph, FUNCTION_GRAPHS)


def default_graph_is_chosen() -> bool:
    """Whether the default graph is that of an open `with graph.as_default()`, or of a session in a `with`."""
    return not ops._default_graph_stack.is_cleared()


def flatten_feeds(feed_dict: Any) -> Iterator[Tuple[Any, Any]]:
    """The (key, value) pairs of a feed dict after TensorFlow's expansion of nested keys and sparse tensors."""
    for key, value in tf_nest.flatten_dict_items(feed_dict).items():
        for tensor_type, _, feed_fn, _ in session_module._REGISTERED_EXPANSIONS:
            if isinstance(key, tensor_type):
                for pair in feed_fn(key, value):
                    yield pair
                break
        else:
            yield key, value


class unfinalized:
    """Lets a pass add ops to a graph that its owner has finalized; the graph is finalized again at the end."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        self._finalized = self._graph._finalized
        self._graph._finalized = False

    def __exit__(self, *unused: object) -> None:
        self._graph._finalized = self._finalized


class control_flow_context:
    """Ops created inside belong to the given control-flow context (of a `tf.cond`), as if built in its branch.

    The context does not list them: it is exported with the user's graph, which does not contain them.
    """

    def __init__(self, graph: tf.Graph, context: Any) -> None:
        self._graph = graph
        self._context = context

    def __enter__(self) -> None:
        self._saved = self._graph._get_control_flow_context()
        self._listed = []
        context = self._context
        while context is not None:
            self._listed.append((context, set(context._values), dict(context._external_values)))
            context = context.outer_context
        self._graph._set_control_flow_context(self._context)

    def __exit__(self, *unused: object) -> None:
        self._graph._set_control_flow_context(self._saved)
        for context, values, external_values in self._listed:
            context._values, context._external_values = values, external_values


def control_flow_context_of(op: tf.Operation) -> Any:
    """The control-flow context that `op` was built in, or None."""
    return op._get_control_flow_context()


def predicates_of(op: tf.Operation) -> List[Tuple[Any, tf.Tensor]]:
    """Each branch of a `tf.cond` around an op, from the inside out: its control-flow context and its predicate."""
    found = []
    context = op._get_control_flow_context()
    while context is not None:
        if context.IsCondContext():
            found.append((context, context.pred))
        context = context.outer_context
    return found


def set_predicate(context: Any, predicate: tf.Tensor) -> None:
    """Makes gradients of ops in the branch of a `tf.cond` use another tensor as its predicate."""
    context._pred = predicate


def current_context(graph: tf.Graph) -> Any:
    """The control-flow context that ops are built in now, or None."""
    return graph._get_control_flow_context()


def output_context_of(op: tf.Operation) -> Any:
    """The control-flow context in which the outputs of `op` are used: if it leaves a loop, the context around that."""
    return control_flow_util.GetOutputContext(op)


class listed_in_context:
    """Ops created inside belong to the given control-flow context, which lists them: they may be differentiated."""

    def __init__(self, graph: tf.Graph, context: Any) -> None:
        self._graph = graph
        self._context = context

    def __enter__(self) -> None:
        self._saved = self._graph._get_control_flow_context()
        self._graph._set_control_flow_context(self._context)

    def __exit__(self, *unused: object) -> None:
        self._graph._set_control_flow_context(self._saved)


def set_input(op: tf.Operation, position: int, tensor: tf.Tensor) -> None:
    """Makes an op take another tensor of the same dtype at a position."""
    op._update_input(position, tensor)


def add_control_inputs(op: tf.Operation, before: Iterable[tf.Operation]) -> None:
    """Makes an op also wait for other ops."""
    op._add_control_inputs(list(before))


def remove_control_inputs(op: tf.Operation) -> None:
    """Removes all control inputs of an op."""
    op._remove_all_control_inputs()


def set_attr(op: tf.Operation, name: str, value: tf.AttrValue) -> None:
    """Sets an attribute of an op."""
    op._set_attr(name, value)


def clear_attr(op: tf.Operation, name: str) -> None:
    """Removes an attribute of an op."""
    op._clear_attr(name)


def set_device(op: tf.Operation, device: str) -> None:
    """Places an op on a device, by its name; "" for any."""
    op._set_device(device)


def is_reference(dtype: tf.DType) -> bool:
    """Whether a tensor of that dtype is the memory of a variable."""
    return dtype._is_ref_dtype


def control_outputs(op: tf.Operation) -> List[tf.Operation]:
    """The ops that wait for `op`."""
    return op._control_outputs


def is_loop_invariant(tensor: tf.Tensor) -> bool:
    """Whether a tensor in a loop has the value of one outside of it."""
    return control_flow_util.GetLoopConstantEnter(tensor) is not None


def set_attr_scope(graph: tf.Graph, name: str, value: Any) -> Any:
    """Marks every op created in `graph` from now on; None ends it. Returns the previous mark."""
    scopes = graph._attr_scope_map
    before = scopes.get(name)
    if value is None:
        scopes.pop(name, None)
    else:
        scopes[name] = value
    return before


def attr_scope(graph: tf.Graph, name: str) -> Any:
    """The mark of ops that are created in `graph` now, or None."""
    return graph._attr_scope_map.get(name)


def stored_variables() -> Dict[str, Any]:
    """The variables that `tf.get_variable` has made in the default graph, by the names it was called with."""
    return variable_scope._get_default_variable_store()._vars


def op_id(op: tf.Operation) -> int:
    """The creation number of `op` in its graph."""
    return op._id


def dependencies_in_effect(graph: tf.Graph, most: int) -> List[Any]:
    """Those `tf.control_dependencies` around the caller that name more than `most` ops."""
    return [one for one in graph._control_dependencies_stack if len(one.control_inputs) > most]


class replaced_dependencies:
    """Ops created inside wait for `op` in place of what the given `tf.control_dependencies` name."""

    def __init__(self, dependencies: Sequence[Any], op: tf.Operation) -> None:
        self._named = [(one, one._control_inputs_val) for one in dependencies]
        self._op = op

    def __enter__(self) -> None:
        for one, _ in self._named:
            one._control_inputs_val = [self._op]

    def __exit__(self, *unused: object) -> None:
        for one, named in self._named:
            one._control_inputs_val = named


def function_of(owner: Any, name: str) -> Callable[..., Any]:
    """`owner.name`, without the warning that some modules of TensorFlow print when a name is looked up."""
    return getattr(getattr(owner, "_tfmw_wrapped_module", owner), name)


def replace_function(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Sets `owner.name` to `wrapper` and returns what was there. Used by `epl.runtime.hooks` alone."""
    original = function_of(owner, name)
    setattr(owner, name, wrapper)
    return original


def ops_since(graph: tf.Graph, last_id: int) -> List[tf.Operation]:
    """The ops created after op number `last_id`."""
    return ops_between(graph, last_id, last_op_id(graph))


@contextlib.contextmanager
def noting_ops(graph: tf.Graph, note: Callable[[List[tf.Operation]], None]) -> Iterator[None]:
    """Gives the ops that are created inside to `note`, also when the block ends by an error."""
    before = last_op_id(graph)
    try:
        yield
    finally:
        note(ops_since(graph, before))


def is_in_while(context: Any) -> bool:
    """Whether a control-flow context is, or lies in, the body of a while loop."""
    while context is not None:
        if context.IsWhileContext():
            return True
        context = context.outer_context
    return False


def gpus(config: tf.ConfigProto) -> List[Tuple[str, int]]:
    """The GPUs that sessions see: (model, bytes that can be allocated). It creates a CUDA context on each."""
    return [
        (device.physical_device_desc.partition("name: ")[2].partition(",")[0] or "GPU", int(device.memory_limit))
        for device in device_lib.list_local_devices(config)
        if device.device_type == "GPU"
    ]


def session_config(session: Any) -> tf.ConfigProto:
    """The configuration that a session was made with."""
    return session._config


def default_jit() -> bool:
    """Whether `tf.config` was told to compile with XLA. To read all that it was told would read TF_XLA_FLAGS, too."""
    return bool(eager_context.context()._optimizer_jit)


def default_session_config() -> tf.ConfigProto:
    """The configuration of a session that is made without one: what `tf.config` was told.

    It names no GPUs, unless the script has chosen among them, and TensorFlow lists none for it: that would create a
    CUDA context on each.
    """
    told = copy.copy(eager_context.context())
    if told._physical_devices is None:
        without_devices(told)
        config = told.config
        config.device_count.clear()
        return config
    config = told.config
    gpus = told.list_physical_devices("GPU")
    if told.get_visible_devices("GPU") == gpus and not any(gpu in told._virtual_device_map for gpu in gpus):
        config.device_count.pop("GPU")
        config.gpu_options.visible_device_list = ""
    return config


def full_graph_def(graph: tf.Graph, add_shapes: bool = False) -> tf.GraphDef:
    """The GraphDef of everything that is in the graph. (`Graph.as_graph_def` shows a user his own graph.)"""
    return graph._as_graph_def(add_shapes=add_shapes)[0]


def serialized_graph_def(graph: tf.Graph) -> bytes:
    """The GraphDef of everything that is in the graph, in wire format."""
    with graph._lock, c_api_util.tf_buffer() as buffer:
        c_api.TF_GraphToGraphDef(graph._c_graph, buffer)
        return c_api.TF_GetBuffer(buffer)


def serialized_nodes(graph: tf.Graph, names: Iterable[str]) -> Iterator[bytes]:
    """The NodeDefs of ops, in wire format, without making Python objects for the ops."""
    for name in names:
        with c_api_util.tf_buffer() as buffer:
            c_api.TF_OperationToNodeDef(c_operation(graph, name), buffer)
            yield c_api.TF_GetBuffer(buffer)


def add_functions(graph: tf.Graph, library: Any) -> None:
    """Adds the functions of a FunctionDefLibrary to the graph."""
    if library.function:
        import_nodes(graph, tf.GraphDef(library=library).SerializeToString(), [], [], [])


def outer_graph(graph: Any) -> tf.Graph:
    """The graph in which a function body is being built."""
    return graph.outer_graph if isinstance(graph, func_graph.FuncGraph) else graph._outer_graph


def is_stateful(graph: tf.Graph, op_type: str) -> bool:
    """Whether ops of a type keep state, or read anything except their inputs."""
    return op_def(graph, op_type).is_stateful


def has_kernel(op_type: str, type_attr: str, dtype: tf.DType, device_type: str) -> bool:
    """Whether a kernel for "CPU" or "GPU" is registered that computes in a type, given by an attribute of the op."""
    for kernel in kernels.get_registered_kernels_for_op(op_type).kernel:
        if kernel.device_type == device_type:
            own = [one.allowed_values.list.type for one in kernel.constraint if one.name == type_attr]
            if not own or dtype.as_datatype_enum in own[0]:
                return True
    return False


def static_value(tensor: tf.Tensor) -> Any:
    """What `tf.get_static_value` gives: the value of a tensor that is known without a run, or None.

    TensorFlow lets nobody feed a tensor whose value was asked for. The user may still do so here.
    """
    graph = tensor.graph
    graph.prevent_feeding = lambda _: None
    try:
        return tf.get_static_value(tensor)
    finally:
        del graph.prevent_feeding


def evaluate_constant(tensor: tf.Tensor) -> Any:
    """The value of a tensor that TensorFlow can compute while it builds the graph; None if it cannot."""
    return c_api.TF_TryEvaluateConstant_wrapper(tensor.graph._c_graph, tensor._as_tf_output())


def abandon(session: tf.Session) -> None:
    """Makes the end of a session wait for no process: those that it would tell are gone. It can no longer run."""
    session._session = None


def save_path(hook: tf.train.CheckpointSaverHook) -> str:
    """The path of the checkpoints that the hook writes, without the number of the step."""
    return hook._save_path


def tell_keras(variable: tf.Variable) -> None:
    """Has Keras initialize a variable with its own."""
    for backend in KERAS_BACKENDS:
        backend.track_variable(variable)


def keras_session() -> tf.Session:
    """The session of Keras."""
    return KERAS_BACKENDS[0].get_session()


def set_run_options(keras_function: Any, options: Any, metadata: Any) -> Tuple[Any, Any]:
    """Has a function of Keras run with other options and metadata; returns those that it had."""
    before = keras_function.run_options, keras_function.run_metadata
    keras_function.run_options, keras_function.run_metadata = options, metadata
    keras_function._callable_fn = None  # made with the options of its time
    return before


def saver_of(creator: tf.train.ChiefSessionCreator) -> tf.train.Saver:
    """The Saver with which sessions are restored."""
    return creator._scaffold.saver


def evaluates(hook: tf.train.SessionRunHook) -> bool:
    """Whether tf.estimator.train_and_evaluate evaluates when the hook has written a checkpoint."""
    listeners = getattr(hook, "_listeners", ())
    return any(isinstance(one, EVALUATION_LISTENERS) for one in listeners)


def eval_spec(executor: Any) -> Any:
    """How tf.estimator.train_and_evaluate is to evaluate."""
    return executor._eval_spec


def metric_variables(tf_graph: tf.Graph) -> List[Any]:
    """The variables of tf.metrics, and those of Keras that replicas of a strategy would add up when they are read."""
    of_keras = [variable for backend in KERAS_BACKENDS for variable in backend._GRAPH_VARIABLES.get(tf_graph, ())]
    summed = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    added_up = [one for one in of_keras if (one.synchronization, one.aggregation) == summed]
    return list(tf_graph.get_collection_ref(tf.GraphKeys.METRIC_VARIABLES)) + added_up
