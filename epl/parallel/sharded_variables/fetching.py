"""The values that a run gives for sharded variables and tensors computed from shards: those of one device.

the user fetches v        fetched instead                               also run
v: "fc/kernel" [10, 8]    all-gather of "EPL_SPLIT/fc/kernel" [10, 4]   the same on the other ranks of this process
"""

import contextlib
import threading
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir import op_types
from epl.ir.graph import Graph
from epl.parallel.sharded_variables.savers import value_of
from epl.parallel.sharded_variables.variables import SCOPE
from epl.parallel.sharding.placements import PARTIAL
from epl.parallel.sharding.replicated_rows import GivenCopies
from epl.parallel.sharding.resharding import Resharder
from epl.parallel.sharding.shard_owner import ShardedTensor, ShardOwner
from epl.parallel.sharding.sharded_variables import ShardedVariables
from epl.utils import tf_compat
from epl.utils.errors import FeedError


class FetchValue(NamedTuple):
    """The value that a run gives for a tensor of the user.

    Attributes:
      tensor: has the value.
      others: collectives of the other ranks of this process that it needs.
    """

    tensor: tf.Tensor
    others: Tuple[tf.Operation, ...] = ()


class ShardFetches:
    """The values that runs of one graph give for sharded tensors; each is built when it is first fetched.

    Attributes:
      values: by tensor, those that were fetched so far.
      reads: full value of a variable -> collectives of the other ranks of this process that it needs.
      gathered: values that need collectives which the plan does not have.
    """

    def __init__(self, graph: Graph, variables: ShardedVariables) -> None:
        self._graph = graph
        self._variables = variables
        self._lock = threading.Lock()  # only one of several threads opens the communicators of a value
        self.values: Dict[tf.Tensor, FetchValue] = {}
        self.reads: Dict[tf.Tensor, Tuple[tf.Operation, ...]] = {}
        self.gathered: Set[tf.Tensor] = set()

    def fetch_value(self, tensor: tf.Tensor) -> FetchValue:
        """The value that a fetch of a tensor gives: that of one device."""
        owners = self._variables.owners.values()
        of_shard = next((owner.values[tensor] for owner in owners if tensor in owner.values), tensor)
        if of_shard not in self.values:
            with self._lock:  # built by the first thread that fetches it
                if of_shard not in self.values:
                    self.values[of_shard] = self._make(of_shard)
        return self.values[of_shard]

    def shown(self) -> Dict[tf.Tensor, tf.Tensor]:
        """Value -> the tensor that it is the value of."""
        return {value.tensor: tensor for tensor, value in self.values.items()}

    def request(
        self, fetches: Sequence[tf.Tensor], targets: Sequence[tf.Operation], feeds: Iterable[tf.Tensor]
    ) -> Tuple[List[tf.Tensor], List[tf.Operation]]:
        """The fetches and targets that replace those of the user in a run.

        Raises:
          FeedError: a tensor that is fed is computed from shards.
        """
        for tensor in feeds:
            self.refuse_feed(tensor)
        values = [self.fetch_value(tensor) for tensor in fetches]
        needed = [op for value in values for op in value.others]
        return [value.tensor for value in values], [self._variables.replacement_op(op) for op in targets] + needed

    def _make(self, tensor: tf.Tensor) -> FetchValue:
        for owner in self._variables.owners.values():
            value = owner.value_of(tensor)
            if isinstance(value, ShardedTensor):
                return self._gather(tensor, value, owner)
            if value is not None:
                return FetchValue(value)
        graph, written = self._graph.tf_graph, self._variables.replacement_op(tensor.op)
        if written is not tensor.op and written.type in op_types.WRITES and written.outputs:
            return self._gather_variable(
                tensor, written.inputs[0].op.name, lambda prefix: graph.get_tensor_by_name(f"{prefix}{written.name}:0")
            )
        if written is not tensor.op and written.outputs:  # the shape of the variable, its rows, whether it has a value
            return FetchValue(written.outputs[tensor.value_index])
        name = self._variables.shard_read(tensor)
        if name is None:
            return FetchValue(tensor)
        waits = tensor.op.control_inputs

        def local(prefix: str) -> tf.Tensor:
            with tf.control_dependencies(self._in_rank(waits, prefix)):
                return tf.identity(value_of(graph, f"{prefix}{name}"))

        read = self._gather_variable(tensor, name, local)
        if not waits:  # else it has the value after an assignment, for example
            self.reads[read.tensor] = read.others
        return read

    def _in_rank(self, ops: Sequence[tf.Operation], prefix: str) -> List[tf.Operation]:
        """The ops of the rank with a prefix that do what `ops` do on the first rank."""
        rewrite = self._graph.rewritten
        assert rewrite is not None and rewrite.view is not None
        if not prefix:
            return list(ops)
        cloned = rewrite.view.names(rewrite.cloned)
        found: List[tf.Operation] = []
        stack, seen = list(ops), set(ops)
        while stack:
            op = stack.pop()
            if op.name in cloned:
                found.append(self._graph.tf_graph.get_operation_by_name(prefix + op.name))
                continue
            new = {tensor.op for tensor in op.inputs}.union(op.control_inputs) - seen
            seen |= new
            stack.extend(new)
        return found

    def _gather_variable(self, tensor: tf.Tensor, name: str, local: Callable[[str], tf.Tensor]) -> FetchValue:
        placement = self._variables.variables[name].placement
        return self._gather(tensor, ShardedTensor(local, placement, name), self._variables.owner_of(name))

    def _gather(self, tensor: tf.Tensor, value: ShardedTensor, owner: ShardOwner) -> FetchValue:
        """The full value of a tensor with shards on the ranks; the fetched `tensor` gives the communicator its name.

        The gather has a communicator of its own, and waits for no other collective. Opening the communicator may wait
        for a process that writes a checkpoint and needs this process's shard first: the thread that answers must be
        able to read variables meanwhile.
        """
        rewrite, group = self._graph.rewritten, owner.group
        assert rewrite is not None  # a run asks
        stage = rewrite.stage_of.get(value.op, 0)
        communicators = group.opened(f"shown/{tensor.name}", stage)
        made: List[tf.Tensor] = []
        others: List[tf.Operation] = []
        with late_ops(self._graph):
            for copy in range(rewrite.local_replicas):
                prefix, rank = rewrite.prefix(copy), group.rank + copy
                resharder = Resharder(communicators.at(rank), communicators.place(rank).rank, communicators.name)
                self._note_replicated_rows(owner.resharder, resharder, prefix)
                with tf.device(rewrite.device(stage, copy)), tf.name_scope(SCOPE + "/shown/"):
                    full = tf.identity(value.local(prefix))  # not the reference of a variable
                    if value.placement.is_shard:
                        full = resharder.gather(full, value.placement)
                    elif value.placement == PARTIAL:
                        full = resharder.sum_partial(full)
                    made.append(full if value.on_rank is None else value.on_rank(resharder, prefix, full))
                others += resharder.collectives if copy else []
        if resharder.collectives:
            self.gathered.add(made[0])
        return FetchValue(made[0], tuple(others))

    def _note_replicated_rows(self, of_steps: Resharder, resharder: Resharder, prefix: str) -> None:
        """Tells a new resharder which ranks have copies of rows, for the rank whose ops have a prefix."""
        copied = of_steps.replicated_rows
        if copied is not None and copied.switches:
            primaries = self._graph.tf_graph.get_tensor_by_name(prefix + copied.switches[0].name)
            resharder.replicated_rows = GivenCopies(resharder.ranks, copied.in_one_process, primaries)

    def refuse_feed(self, tensor: tf.Tensor) -> None:
        """Raises FeedError for a tensor that no op takes in full any more."""
        name, owner = self._variables.shard_read(tensor), None
        for one in self._variables.owners.values():
            one.refuse_feed(tensor)
            owner = one if tensor in one.values else owner
        owner = owner if name is None else self._variables.owner_of(name)
        if owner is not None:
            raise FeedError(
                "{!r} is fed, and each of {} devices has a part of it ({}): what takes it takes the parts. A variable "
                "gets a value by `v.load(value, session)`, or by running `v.assign(value)` with the full value; in "
                "place of another tensor, build a placeholder into the model.".format(
                    tensor.name, owner.ranks, owner.setting
                )
            )


@contextlib.contextmanager
def late_ops(graph: Graph) -> Iterator[None]:
    """Ops that are made inside are added after the rewriting, by one thread at a time."""
    tf_graph = graph.tf_graph
    with graph.late_lock, tf_compat.unfinalized(tf_graph), tf_graph.as_default(), tf.control_dependencies(None):
        with graph.building_own_ops():
            yield
