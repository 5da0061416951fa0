"""The annotated model of one tf.Graph: TaskGraphs, gradient calls, apply calls and output collections.

It records what the user did, in order. Decisions about it belong to the plan (epl.parallel).
"""

import bisect
import contextlib
import threading
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
)

import tensorflow.compat.v1 as tf

from epl.ir.gradient import Boundary, Gradient
from epl.ir.inserted_ops import InsertedOps, OpOrigin
from epl.ir.replacements import Replacement
from epl.ir.taskgraph import PHASE_ATTR, TASKGRAPH_ATTR, TaskGraph
from epl.utils import tf_compat
from epl.utils.errors import PlanError

if TYPE_CHECKING:
    from epl.parallel.inference import DevicePlacement
    from epl.parallel.rewriting.context import RewriteContext
    from epl.runtime.session import GraphRunner
    from epl.strategies.parallel_strategy import ParallelStrategy

_State = TypeVar("_State")
# The attribute of a tf.Graph that has its record: this has tensors, which have the tf.Graph, so that both end together.
_RECORD = "_epl_graph"
_OF_SHARDS = OpOrigin("sharded variables", "shards")  # where no feature says more


def first_tensor(gradient: Gradient) -> tf.Tensor:
    """The gradient itself, or the values of a sparse one."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


class GraphKeys:
    """Collections of tensors whose values are merged over micro batches and replicas when they are fetched.

    GLOBAL: over all replicas of the job; LOCAL: over those of this process. CONCAT joins along axis 0, MEAN and SUM
    keep the shape.

    WHOLE_INPUTS are no outputs, but inputs of the model that hold no rows of a batch: see `epl.keep_whole`.
    """

    GLOBAL_CONCAT_OBJECTS = "global_concat_objects"
    GLOBAL_MEAN_OBJECTS = "global_mean_objects"
    GLOBAL_SUM_OBJECTS = "global_sum_objects"
    LOCAL_CONCAT_OBJECTS = "local_concat_objects"
    LOCAL_MEAN_OBJECTS = "local_mean_objects"
    LOCAL_SUM_OBJECTS = "local_sum_objects"
    ALL_COLLECTION_KEYS = [
        GLOBAL_CONCAT_OBJECTS,
        GLOBAL_MEAN_OBJECTS,
        GLOBAL_SUM_OBJECTS,
        LOCAL_CONCAT_OBJECTS,
        LOCAL_MEAN_OBJECTS,
        LOCAL_SUM_OBJECTS,
    ]
    WHOLE_INPUTS = "whole_inputs"


class GradientCall(NamedTuple):
    """One call of tf.gradients.

    Attributes:
      ys: the tensors that are differentiated: the objective.
      boundaries: (variable op name, gradient as returned to the user) for every x that is a variable. The gradient is
        an identity; the plan may replace its input by the aggregated gradient, which all its consumers then get.
      seeds: the gradients of `ys` themselves, where the backward pass begins.
    """

    ys: Tuple[tf.Tensor, ...]
    boundaries: Tuple[Tuple[str, Gradient], ...]
    seeds: Tuple[tf.Tensor, ...]


class ApplyCall(NamedTuple):
    """One outermost call of an optimizer's apply_gradients.

    Attributes:
      boundaries: as in GradientCall.
      changed: whether the user has changed a gradient after tf.gradients: clipped it, for example.
    """

    boundaries: Tuple[Tuple[str, Gradient], ...]
    changed: bool


class Beginning(NamedTuple):
    """The first default strategy of a graph.

    Attributes:
      strategy: a `Replicate`.
      amid_ops: whether the graph already had ops when it was set, so that it was set while a model was being built.
      is_inherited: whether it was set in an earlier graph, and none in this one.
    """

    strategy: "ParallelStrategy"
    amid_ops: bool
    is_inherited: bool


class Graph:
    """The record of one tf.Graph; `Graph.get()` returns that of the default graph.

    It is one class because all of it is recorded in the order of the user's calls and looked up by the tf.Graph; what
    features decide lies in classes of their own, which `keep` attaches.
    """

    _tf_graphs = weakref.WeakKeyDictionary()  # type: ignore  # those with a record -> None; Env alone empties it
    _changed = weakref.WeakSet()  # type: ignore  # forgotten tf.Graphs that have ops of a plan

    def __init__(self, tf_graph: tf.Graph) -> None:
        self._tf_graph = weakref.ref(tf_graph)
        self._taskgraphs: List[TaskGraph] = []
        self.default_strategy: Optional["ParallelStrategy"] = None  # for ops outside an explicit scope
        self.beginning: Optional[Beginning] = None
        self.gradient_calls: List[GradientCall] = []
        self.apply_calls: List[ApplyCall] = []
        self.moved_boundaries: Dict[str, Boundary] = {}  # of tf.gradients, replaced in the calls by `inner` ones
        self.inner_boundaries: Set[str] = set()  # ops by name: in a branch that not every run takes
        self.run_gradients: List[Gradient] = []  # boundaries before those, which run in every run
        self.local_variables: Set[str] = set()  # by name: replicas have different values
        self.replacements: Dict[str, Replacement] = {}  # by the name of the user's tensor
        self.common_branches: List[Any] = []  # control-flow contexts of branches that all replicas take together
        self.inserted = InsertedOps(tf_graph)
        self.shard_ops: List[tf.Operation] = []  # created in `building_shards`
        self.own_ops: Set[tf.Operation] = set()  # created in `building_own_ops`
        self.late_lock = threading.Lock()  # among threads: one adds ops after the rewriting
        self.rewritten: Optional["RewriteContext"] = None  # set once by epl.parallel.transformation
        self.device_placement: Optional["DevicePlacement"] = None  # set by epl.parallel.inference
        self.failure: Optional[Exception] = None  # the error that ended a rewriting
        self.runner: Optional["GraphRunner"] = None  # set by epl.runtime.runs
        self.parallel_information: Dict[str, Any] = {}
        self._states: Dict[type, object] = {}
        self._said: Set[str] = set()
        self._collections: Dict[str, List[tf.Tensor]] = {key: [] for key in GraphKeys.ALL_COLLECTION_KEYS}
        self.whole_inputs: List[tf.Tensor] = []
        self._ids_at_creation: Dict[int, int] = {}
        # Openings and closings of scopes: id of the last op before, TaskGraph of the scope (-1 at a closing).
        self._scopes: List[Tuple[int, int]] = []

    @property
    def tf_graph(self) -> tf.Graph:
        """The user's tf.Graph."""
        graph = self._tf_graph()
        if graph is None:
            raise RuntimeError("The tf.Graph of this epl.Graph no longer exists.")
        return graph

    @property
    def exists(self) -> bool:
        """Whether the user's tf.Graph still exists."""
        return self._tf_graph() is not None

    @classmethod
    def get(cls, may_create: bool = False) -> Optional["Graph"]:
        """The Graph of the default tf.Graph, or None; with `may_create` it is created."""
        return cls.of(tf.get_default_graph(), may_create)

    @classmethod
    def of(cls, tf_graph: tf.Graph, may_create: bool = False) -> Optional["Graph"]:
        """The Graph of `tf_graph`, or None; with `may_create` it is created."""
        graph: Optional[Graph] = getattr(tf_graph, _RECORD, None)
        if graph is None and may_create:
            graph = cls(tf_graph)
            setattr(tf_graph, _RECORD, graph)
            cls._tf_graphs[tf_graph] = None
        return graph

    @classmethod
    def all(cls) -> List["Graph"]:
        """The Graphs that are alive."""
        return [getattr(tf_graph, _RECORD) for tf_graph in list(cls._tf_graphs)]

    @classmethod
    def forget_all(cls) -> None:
        """Drops the records of all graphs (for another `epl.init`)."""
        for tf_graph in list(cls._tf_graphs):
            tf_compat.set_attr_scope(tf_graph, TASKGRAPH_ATTR, None)
            if getattr(tf_graph, _RECORD).has_ops_of_plan:
                cls._changed.add(tf_graph)
            delattr(tf_graph, _RECORD)
        cls._tf_graphs.clear()

    def state_of(self, kind: Type[_State]) -> Optional[_State]:
        """The state that a feature keeps of this graph, by its class; None if there is none."""
        found = self._states.get(kind)
        assert found is None or isinstance(found, kind)
        return found

    def keep(self, kind: Type[_State], state: _State) -> _State:
        """Keeps the state of a feature for `state_of`, replacing an earlier one of that class; returns it."""
        self._states[kind] = state
        return state

    def says_first(self, what: str) -> bool:
        """Whether this is the first call with `what`: for messages that are logged once."""
        first = what not in self._said
        self._said.add(what)
        return first

    @property
    def has_ops_of_plan(self) -> bool:
        """Whether EPL has added ops to the tf.Graph: replicas, collectives, shards of variables."""
        changed = self.failure is not None or bool(self.shard_ops)
        return changed or (self.rewritten is not None and bool(self.rewritten.added))

    @property
    def was_trained_before_init(self) -> bool:
        """Whether the tf.Graph has ops of a plan from before the last `epl.init`."""
        return self._tf_graph() in self._changed

    def refuse_earlier_model(self) -> None:
        """Raises PlanError for a second model in a tf.Graph that was rewritten before `epl.init` was called again.

        The replicas and collectives of the first model would be treated as ops of the user.
        """
        if self.was_trained_before_init:
            raise PlanError(
                "The tf.Graph has a model that was trained before epl.init was called again, with its replicas or "
                "parts of variables; a second model cannot be trained next to it. Build the second one in a tf.Graph "
                "of its own: `with tf.Graph().as_default():` around it, or no `with graph.as_default()` and no `with "
                "tf.Session()` around epl.init, which then begins a new default graph."
            )

    def restored(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor to fetch for the value of `tensor`: its replacement in the same type, or the tensor itself."""
        found = self.replacements.get(tensor.name)
        return tensor if found is None or found.restored is None else self.restored(found.restored)

    def halves(self) -> Dict[str, Replacement]:
        """The replacements that compute in half precision, by the name of the user's tensor."""
        return {name: one for name, one in self.replacements.items() if one.is_half}

    # ---- TaskGraphs

    @property
    def taskgraphs(self) -> List[TaskGraph]:
        """The TaskGraphs, in the order of annotation. The last one of several is left out while it has no op."""
        return self._taskgraphs[: -1 if len(self._taskgraphs) > 1 and self._is_last_empty() else None]

    def begin(self, beginning: Beginning) -> None:
        """Begins a new graph with the default strategy of an earlier one."""
        self.beginning = beginning._replace(is_inherited=True)
        self.default_strategy = beginning.strategy
        self.open_taskgraph(beginning.strategy)

    def set_default_strategy(self, strategy: "ParallelStrategy") -> None:
        """Ops outside an explicit scope belong to `strategy` from now on; see `StrategyContext.set_default`."""
        self._drop_empty_taskgraph()
        first = self.beginning
        position = next((t.index for t in self._taskgraphs if first is not None and t.strategy is first.strategy), None)
        if first is None or position is None:
            self.beginning = Beginning(strategy, tf_compat.last_op_id(self.tf_graph) > 0, False)
        elif first.is_inherited:
            if first.amid_ops or self._says_again(first.strategy, strategy):
                self._taskgraphs[position] = self._taskgraphs[position]._replace(strategy=strategy)
                first = first._replace(strategy=strategy)
            self.beginning = first._replace(is_inherited=False)
        self.default_strategy = strategy
        self.open_taskgraph(strategy)

    def _says_again(self, inherited: "ParallelStrategy", strategy: "ParallelStrategy") -> bool:
        """Whether a model function repeats the default strategy that its script has set before.

        That is so if both have equal numbers of devices, and the graph has no weights yet (also no frozen ones), only
        inputs and global steps: these ops would otherwise be a stage of their own.
        """
        steps = self.tf_graph.get_collection(tf.GraphKeys.GLOBAL_STEP)
        weights = [
            v for v in self.tf_graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) if not any(v is s for s in steps)
        ]
        return not weights and (inherited.device_count or 1) == (strategy.device_count or 1)

    def replace_taskgraphs(self, strategies: Sequence[Any]) -> None:
        """Replaces the TaskGraphs by one for each strategy; new ops belong to the last one."""
        self._taskgraphs = [TaskGraph(index, strategy, None) for index, strategy in enumerate(strategies)]
        self._ids_at_creation.clear()
        self._scopes.clear()
        tf_compat.set_attr_scope(self.tf_graph, TASKGRAPH_ATTR, tf.AttrValue(i=len(strategies) - 1))

    def open_taskgraph(self, strategy: "ParallelStrategy", outer: Optional["ParallelStrategy"] = None) -> None:
        """Ops created from now on belong to the TaskGraph of `strategy`, in the scope of `outer` or in none.

        The same strategy object continues its TaskGraph. A TaskGraph without an op is dropped when the next is opened.
        """
        self._drop_empty_taskgraph()
        for taskgraph in self._taskgraphs:
            if taskgraph.strategy is strategy and taskgraph.outer is outer:
                index = taskgraph.index
                break
        else:
            index = len(self._taskgraphs)
            self._taskgraphs.append(TaskGraph(index, strategy, outer))
            self._ids_at_creation[index] = tf_compat.last_op_id(self.tf_graph)
        tf_compat.set_attr_scope(self.tf_graph, TASKGRAPH_ATTR, tf.AttrValue(i=index))
        self._scopes.append((tf_compat.last_op_id(self.tf_graph), index))

    def close_taskgraph(self) -> None:
        """Ends `open_taskgraph`: new ops belong to the TaskGraph of the outer scope, or to the last one with an op."""
        self._drop_empty_taskgraph()
        if self._taskgraphs and self._taskgraphs[-1].outer is not None:
            self.open_taskgraph(self._taskgraphs[-1].outer)
        else:
            mark = tf.AttrValue(i=self._taskgraphs[-1].index) if self._taskgraphs else None
            tf_compat.set_attr_scope(self.tf_graph, TASKGRAPH_ATTR, mark)
        self._scopes.append((tf_compat.last_op_id(self.tf_graph), -1))

    def scope_of(self, op: tf.Operation) -> Optional[TaskGraph]:
        """The TaskGraph whose scope was open when an op was created; None if none was, whatever the op's mark is."""
        position = bisect.bisect_left(self._scopes, (tf_compat.op_id(op), -1)) - 1
        index = self._scopes[position][1] if position >= 0 else -1
        return self._taskgraphs[index] if 0 <= index < len(self._taskgraphs) else None

    def _drop_empty_taskgraph(self) -> None:
        if self._taskgraphs and self._is_last_empty():
            self._taskgraphs.pop()

    def _is_last_empty(self) -> bool:
        return self._ids_at_creation.get(self._taskgraphs[-1].index) == tf_compat.last_op_id(self.tf_graph)

    @contextlib.contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Ops created inside are marked with `phase`."""
        before = tf_compat.set_attr_scope(self.tf_graph, PHASE_ATTR, tf.AttrValue(s=phase.encode()))
        try:
            yield
        finally:
            tf_compat.set_attr_scope(self.tf_graph, PHASE_ATTR, before)

    def building_shards(self) -> ContextManager[None]:
        """Ops created inside are EPL's: they create shards of variables or compute with them, and differ by rank."""
        return self._building(self.shard_ops.extend)

    def building_own_ops(self) -> ContextManager[None]:
        """Ops created inside are EPL's, although they compute the values of the user's ops."""
        return self._building(self.own_ops.update)

    @contextlib.contextmanager
    def _building(self, note: Callable[[List[tf.Operation]], None]) -> Iterator[None]:
        with contextlib.ExitStack() as opened:
            opened.enter_context(tf_compat.noting_ops(self.tf_graph, note))
            if not self.inserted.is_open:
                opened.enter_context(self.inserted.following(_OF_SHARDS))
            yield

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keeps an error inside for every later run to raise: a partly changed graph must not run."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    # ---- Output collections

    def add_to_collection(self, tensors: Sequence[tf.Tensor], key: str) -> None:
        """Registers tensors to be merged by the method of `key`; see `epl.add_to_collection`."""
        if key not in self._collections:
            raise KeyError(f"Unknown collection {key!r}; the keys are {GraphKeys.ALL_COLLECTION_KEYS}.")
        for tensor in tensors:
            for other, members in self._collections.items():
                if other != key and any(member is tensor for member in members):
                    raise ValueError(
                        "{} is in collection {!r} already and cannot be in {!r} as well: it has one merged value. "
                        "Wrap one of the two in tf.identity.".format(tensor.name, other, key)
                    )
            if not any(member is tensor for member in self._collections[key]):
                self._collections[key].append(tensor)

    def get_collection(self, key: str) -> List[tf.Tensor]:
        """The tensors registered under `key`, in order."""
        if key not in self._collections:
            raise KeyError(f"Unknown collection {key!r}; the keys are {GraphKeys.ALL_COLLECTION_KEYS}.")
        return list(self._collections[key])

    def keep_whole(self, tensors: Sequence[tf.Tensor]) -> None:
        """Registers tensors that every replica gets in full; see `epl.keep_whole`."""
        self.whole_inputs += [one for one in tensors if not any(one is other for other in self.whole_inputs)]

    def __repr__(self) -> str:
        return "epl.Graph(taskgraphs={}, gradient_calls={}, apply_calls={}, planned={})".format(
            len(self.taskgraphs), len(self.gradient_calls), len(self.apply_calls), self.rewritten is not None
        )
