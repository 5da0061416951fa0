"""What differs between the contenders in a training script: start-up, how a step is built, the optimizer, the rank.

Owns these differences, so that the workers hold one script for all. Each library is imported only by its own contender.
"""

import contextlib
import json
import os
from typing import Any, Callable, ContextManager, List, Tuple

import tensorflow.compat.v1 as tf

from benchmarks import control

tf.disable_v2_behavior()  # of plain TensorFlow, too

Step = Tuple[tf.Tensor, tf.Operation]


class Library:
    """Plain TensorFlow on one device; also the interface of the others."""

    def __init__(self, devices: int = 1) -> None:
        self.rank = int(os.environ.get(control.RANK_VARIABLE, "0"))
        self.devices = devices

    def scope(self) -> ContextManager:
        """Returns the scope in which the model is built."""
        return contextlib.ExitStack()

    def build(self, step: Callable[[Any], Step], batches: tf.data.Dataset) -> Step:
        """Returns the loss and the training op of a step.

        Args:
            step: builds them for a batch, as for one device.
            batches: those of one device.
        """
        batch = tf.data.make_one_shot_iterator(batches).get_next()
        with self.scope():
            return step(batch)

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

    def __init__(self, devices: int = 1) -> None:
        import horovod.tensorflow as hvd

        super().__init__(devices)
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

    def __init__(self, devices: int = 1) -> None:
        import epl

        super().__init__(devices)
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


class Mirrored(Library):
    """MirroredStrategy of TensorFlow, over CPU devices of one process, as its documentation says."""

    def __init__(self, devices: int = 1) -> None:
        super().__init__(devices)
        names = ["/cpu:%d" % index for index in range(devices)]
        self._strategy = tf.distribute.MirroredStrategy(names)
        self._initializer: List[tf.Operation] = []

    def build(self, step: Callable[[Any], Step], batches: tf.data.Dataset) -> Step:
        """See Library. A global batch has the rows of as many batches as there are devices."""

        def join(part: tf.Tensor) -> tf.Tensor:
            return tf.reshape(part, [-1] + part.shape[2:].as_list())

        def replica(batch: Any) -> tf.Tensor:
            loss, train = step(batch)
            with tf.control_dependencies([train]):
                return tf.identity(loss)

        with self._strategy.scope():
            together = batches.batch(self.devices, drop_remainder=True)
            together = together.map(lambda batch: tf.nest.map_structure(join, batch))
            iterator = self._strategy.make_dataset_iterator(together)
            self._initializer = iterator.initialize()
            losses = self._strategy.experimental_run(replica, iterator)
            loss = self._strategy.reduce(tf.distribute.ReduceOp.MEAN, losses)
        return loss, loss.op

    def after_initialization(self) -> List[tf.Operation]:
        """See Library."""
        return self._initializer


def load(name: str, devices: int = 1) -> Library:
    """Returns the library of that name: plain, horovod, mirrored or epl."""
    return {"plain": Library, "horovod": Horovod, "mirrored": Mirrored, "epl": Epl}[name](devices)
