"""Times ops in sessions: each by itself, forward and backward, on one device of this process.

A process measures once for one kind of device: TensorFlow keeps the threads of its first session.
"""

import statistics
import time
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.costs.backward import Signature
from epl.planner.profile.op_chains import ChainBuilder, NotMeasurableError, OpChain
from epl.utils.op_errors import first_line

_BATCH = 8  # ops of one graph: TensorFlow goes through all of it for each chain
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 25
_LONG_ROUND = 0.3  # seconds; such a round need not be repeated so often
_ROUNDS_IF_LONG = 2
_LONG_COPY = 0.03  # seconds; beside it, the start of a run is nothing


class MeasuredDevice(NamedTuple):
    """Where ops are measured.

    Attributes:
      place: a device of TensorFlow, such as "/device:GPU:0".
      threads: that compute one op; with one thread CPU time is measured, which other programs do not change.
      memory: bytes that may be used.
    """

    place: str
    threads: int
    memory: float

    @property
    def is_gpu(self) -> bool:
        """Whether it is no CPU."""
        return "GPU" in self.place

    def clock(self) -> Callable[[], float]:
        """The clock by which ops are timed, in seconds."""
        return time.process_time if self.threads == 1 and not self.is_gpu else time.perf_counter

    def session_config(self) -> tf.ConfigProto:
        """Of a session that runs the graph as it is built, one op at a time."""
        config = tf.ConfigProto(
            intra_op_parallelism_threads=self.threads, inter_op_parallelism_threads=1, allow_soft_placement=True
        )
        config.gpu_options.allow_growth = True
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
        if not self.is_gpu:
            config.device_count["GPU"] = 0
        return config


class OpTime(NamedTuple):
    """How long something takes.

    Attributes:
      seconds: the median.
      spread: how far the middle half of the measurements reaches, as a share of the median.
      runs: how often it was measured.
    """

    seconds: float
    spread: float
    runs: int


NO_TIME = OpTime(0.0, 0.0, 0)


class MeasuredOp(NamedTuple):
    """What was found for an op.

    Attributes:
      forward, backward: times of one run; None if one of them could not be measured.
      problem: why not, for people; "" if it was measured.
    """

    forward: Optional[OpTime]
    backward: Optional[OpTime]
    problem: str


def summary(values: Sequence[float]) -> OpTime:
    """The median of measurements, and their spread."""
    ordered = sorted(values)
    median = statistics.median(ordered)
    quarter = len(ordered) // 4
    width = ordered[-1 - quarter] - ordered[quarter]
    return OpTime(median, width / median if median > 0 else 0.0, len(ordered))


def measure(
    ops: Sequence[Signature],
    device: MeasuredDevice,
    seconds: float,
    started: Callable[[int], None] = lambda number: None,
) -> Iterator[Tuple[int, MeasuredOp]]:
    """Measures ops, each by itself.

    Args:
      ops: the ops.
      device: where.
      seconds: how long each op, and each backward pass, is measured at least.
      started: is told the number of an op before something of it is run.

    Yields:
      The number of an op, and what was found, in the order of `ops`.
    """
    for first in range(0, len(ops), _BATCH):
        batch = range(first, min(first + _BATCH, len(ops)))
        builder = ChainBuilder(device.place if device.is_gpu else "", device.memory / _BATCH)
        chains = {}
        problems = {}
        for number in batch:
            try:
                chains[number] = [builder.forward(ops[number]), builder.backward(ops[number])]
            except NotMeasurableError as error:
                problems[number] = str(error)
        with builder.graph.as_default():
            initialize = tf.global_variables_initializer()
        with tf.Session(graph=builder.graph, config=device.session_config()) as session:
            session.run(initialize)
            for number in batch:
                if number in problems:
                    yield number, MeasuredOp(None, None, problems[number])
                    continue
                started(number)
                yield number, _measure_op(session, chains[number], device.clock(), seconds)


def _measure_op(
    session: tf.Session, chains: Sequence[Optional[OpChain]], clock: Callable[[], float], seconds: float
) -> MeasuredOp:
    try:
        forward, backward = [
            NO_TIME if chain is None else summary(_seconds_of_one(session, chain, clock, seconds)) for chain in chains
        ]
    except tf.errors.OpError as error:
        return MeasuredOp(None, None, first_line(error))
    return MeasuredOp(forward, backward, "")


def _seconds_of_one(session: tf.Session, chain: OpChain, clock: Callable[[], float], seconds: float) -> List[float]:
    """Seconds of one copy of a chain, measured several times."""
    run_first, run_all = session.make_callable(chain.first), session.make_callable(chain.last)
    run_first()  # TensorFlow prepares a run when it comes first, and an allocator grows
    found: List[float] = []
    used = 0.0
    if chain.starts_alone:
        begin = clock()
        run_first()
        found.append(clock() - begin)
        if found[0] > _LONG_COPY:
            begin = clock()
            run_first()
            return [found[0], clock() - begin]
        found.clear()
    run_all()
    while True:
        begin = clock()
        run_first()
        middle = clock()
        run_all()
        end = clock()
        found.append(max(0.0, (end - middle) - (middle - begin)) / (chain.copies - 1))
        used += end - begin
        fewest = _ROUNDS_IF_LONG if used / len(found) > _LONG_ROUND else _FEWEST_ROUNDS
        if len(found) >= fewest and (used >= seconds or len(found) >= _MOST_ROUNDS):
            return found
