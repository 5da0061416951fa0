"""`debug.check_replicas`: every N training steps a digest of each variable is compared over all replicas.

    replica 0:  w 3f2a  b 91cc  --+
    replica 1:  w 3f2a  b 91cc  --+--> all equal, or which variable differs on which ranks
    replica 2:  w 3f2a  b 77e0  --+

The values are read to the memory of the host, some at a time. All processes compare the same digests, so that all end,
or warn, together.
"""

import hashlib
import json
import logging
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ops.job import Job
from epl.parallel.plan.plan import ranks_of
from epl.parallel.replication.check_replicas import ReplicaValues
from epl.parallel.rewriting.context import RewriteContext
from epl.utils.errors import ReplicaError

logger = logging.getLogger("epl")

Read = Callable[[Sequence[tf.Tensor]], List[np.ndarray]]
Digests = Dict[str, List[str]]  # variable -> digest of its value, by replica

_AT_A_TIME = 64 << 20  # bytes of values in host memory, if a variable is not larger
_FIRST_NAMES = 5


class ReplicaCheck:
    """Counts the training steps of a graph, and compares its replicas when it is time."""

    def __init__(self, rewrite: RewriteContext) -> None:
        """Takes what is compared from the graph; compares nothing if there is nothing."""
        found = rewrite.graph.state_of(ReplicaValues)
        self._tensors = {} if found is None else found.tensors
        self._rewrite = rewrite
        self._every = rewrite.config.debug.check_replicas
        self._steps = 0

    def step_done(self, read: Read) -> None:
        """A training step has ended; `read` gives values of the variables of this process.

        Raises:
          ReplicaError: replicas differ, and `debug.replicas_differ` is "error".
        """
        if not self._tensors:
            return
        self._steps += 1
        if self._steps % self._every:
            return
        digests = self._of_all_processes(self._own(read))
        different = {name: groups for name, groups in ((name, _groups(digests[name])) for name in digests) if groups}
        if not different:
            return
        message = _message(different, self._steps)
        if self._rewrite.config.debug.replicas_differ == "error":
            raise ReplicaError(message)
        logger.warning("%s", message)

    def _own(self, read: Read) -> Digests:
        graph = self._rewrite.tf_graph
        found: Digests = {name: [] for name in self._tensors}
        for some in _portions(self._tensors, graph):
            values = read([graph.get_tensor_by_name(tensor) for _, tensor in some])
            for (variable, _), value in zip(some, values):
                found[variable].append(hashlib.blake2b(np.ascontiguousarray(value), digest_size=8).hexdigest())
        return found

    def _of_all_processes(self, own: Digests) -> Digests:
        """The digests of all ranks, in their order."""
        plan = self._rewrite.plan
        if plan.workers == 1:
            return own
        job = Job.current()
        assert job is not None
        parts = job.exchange(f"replicas of {plan.name} after step {self._steps}", json.dumps(own).encode())
        by_rank: Dict[int, Dict[str, str]] = {}
        for process, part in enumerate(parts):
            digests = json.loads(part.decode())
            for place, rank in enumerate(ranks_of(plan, process)):
                by_rank[rank] = {name: digests[name][place] for name in digests}
        return {name: [by_rank[rank][name] for rank in sorted(by_rank)] for name in own}


def _portions(tensors: Dict[str, List[str]], graph: tf.Graph) -> Iterator[List[Tuple[str, str]]]:
    """(variable, tensor) of values that fit into `_AT_A_TIME` together."""
    portion: List[Tuple[str, str]] = []
    held = 0
    for variable, names in tensors.items():
        for name in names:
            tensor = graph.get_tensor_by_name(name)
            size = (tensor.shape.num_elements() or 0) * tensor.dtype.base_dtype.size
            if portion and held + size > _AT_A_TIME:
                yield portion
                portion, held = [], 0
            portion.append((variable, name))
            held += size
    if portion:
        yield portion


def _groups(digests: Sequence[str]) -> List[List[int]]:
    """The ranks that hold the same value, by value; none if all hold the same."""
    ranks: Dict[str, List[int]] = {}
    for rank, digest in enumerate(digests):
        ranks.setdefault(digest, []).append(rank)
    return list(ranks.values()) if len(ranks) > 1 else []


def _message(different: Dict[str, List[List[int]]], steps: int) -> str:
    shown = [
        "{} (ranks {})".format(name, " | ".join(", ".join(map(str, ranks)) for ranks in groups))
        for name, groups in list(different.items())[:_FIRST_NAMES]
    ]
    return (
        "After {} training steps, {} variable(s) differ between replicas that should hold equal bits: {}{}. A bar "
        "separates ranks with different values. Look for a write that one worker alone makes, a step that draws random "
        "numbers for a weight, and sparse updates on GPUs, which add rows of one index in any order. Training goes on "
        'after a difference with debug.replicas_differ "warn".'.format(
            steps, len(different), ", ".join(shown), ", ..." if len(different) > _FIRST_NAMES else ""
        )
    )
