"""What differs between the contenders in a training script: start-up, the annotated scope, the optimizer, the rank.

Owns these differences, so that the workers hold one script for all. Each library is imported only by its own contender.
"""

import contextlib
import json
import os
from typing import ContextManager, List

import tensorflow.compat.v1 as tf

from benchmarks import control


class Library:
    """Plain TensorFlow on one device; also the interface of the others."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get(control.RANK_VARIABLE, "0"))

    def scope(self) -> ContextManager:
        """Returns the scope in which the model is built."""
        return contextlib.ExitStack()

    def optimizer(self, optimizer: tf.train.Optimizer) -> tf.train.Optimizer:
        """Returns the optimizer to train with."""
        return optimizer

    def after_initialization(self) -> List[tf.Operation]:
        """Returns what must run once between the initialization and the first step."""
        return []

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of ``tensor`` over all processes."""
        raise NotImplementedError("plain TensorFlow has one process")


class Horovod(Library):
    """Horovod as its documentation says."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank = hvd.rank()

    def optimizer(self, optimizer: tf.train.Optimizer) -> tf.train.Optimizer:
        """See Library. The gradient of the tied embedding table would be gathered row by row otherwise."""
        return self._hvd.DistributedOptimizer(optimizer, sparse_as_dense=True)

    def after_initialization(self) -> List[tf.Operation]:
        """See Library."""
        return [self._hvd.broadcast_global_variables(0)]

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """See Library."""
        return self._hvd.allreduce(tensor, op=self._hvd.Sum)


class Epl(Library):
    """EPL as its documentation says."""

    def __init__(self) -> None:
        import epl

        epl.init(epl.Config({"communication.sparse_as_dense": True}))
        self._epl = epl
        self.rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0

    def scope(self) -> ContextManager:
        """See Library."""
        return self._epl.replicate(1)

    def all_reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """See Library."""
        from epl.ops.communicator import Communicator

        communicator = Communicator("benchmark", range(self._epl.Env.get().cluster.worker_num))
        return communicator.all_reduce(tensor, self.rank, key=tensor.op.name)


def load(name: str) -> Library:
    """Returns the library of that name: plain, horovod or epl."""
    return {"plain": Library, "horovod": Horovod, "epl": Epl}[name]()
