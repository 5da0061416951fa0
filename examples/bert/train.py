"""Fine-tunes BERT on SQuAD with EPL: data parallel, as a pipeline, or as a pipeline that EPL cuts by itself.

    epl-launch --num_workers 1 --gpu_per_worker 4 examples/bert/train.py --variant dp \
        --records train.tfrecord --config bert_config.json --init_checkpoint bert_model.ckpt --output my_model

An ordinary training script of TensorFlow 1.x for one device. What is EPL's stands in `annotate`.
"""

import argparse
import time
from contextlib import ExitStack
from typing import Any, List

import checkpoint
import model
import optimizer
import records
import tensorflow.compat.v1 as tf

import epl


def annotate(options: argparse.Namespace) -> List[Any]:
    """Sets EPL up; returns the scope of each stage of the model."""
    config = {"pipeline.num_micro_batch": options.num_micro_batch}
    if options.variant == "auto":
        config.update({"auto.auto_parallel": True, "pipeline.num_stages": options.num_stages})
    epl.init(epl.Config(config))
    if options.variant == "pipeline":
        return [epl.replicate(1) for _ in range(options.num_stages)]
    if options.variant == "dp":
        epl.set_default_strategy(epl.replicate(1))
    return [ExitStack()]


def build(options: argparse.Namespace, stages: List[Any], steps: int) -> Any:
    """Returns the step, the loss and the op of a training step."""
    config = model.read_config(options.config)
    inputs, positions = records.batches(options.records, options.batch_size, share(options), options.seed)
    logits = model.span_logits(config, inputs, stages)
    with stages[-1]:
        loss = model.span_loss(logits, positions)
    step = tf.train.get_or_create_global_step()
    warm_up = int(steps * options.warm_up_share)
    return step, loss, optimizer.train_op(loss, step, options.learning_rate, steps, warm_up)


def share(options: argparse.Namespace) -> records.Share:
    """Which windows this process reads: workers that hold whole models divide them, others read all."""
    cluster = epl.Env.get().cluster
    if cluster.gpu_num_per_worker % stage_count(options):
        return records.Share()
    return records.Share(cluster.worker_num, cluster.worker_index)


def stage_count(options: argparse.Namespace) -> int:
    """Returns the number of devices of one model."""
    return 1 if options.variant == "dp" else options.num_stages


def step_count(options: argparse.Namespace) -> int:
    """Returns how many steps the epochs have: each takes a batch for every micro batch of every replica."""
    replicas = max(1, epl.Env.get().cluster.total_gpu_num // stage_count(options))
    windows = records.summary(options.records).windows
    return max(1, int(options.epochs * windows / (options.batch_size * options.num_micro_batch * replicas)))


class Progress(tf.train.SessionRunHook):
    """Prints the loss and the speed every few steps."""

    def __init__(self, step: tf.Variable, loss: tf.Tensor, steps: int, every: int) -> None:
        self._step = step
        self._loss = loss
        self._steps = steps
        self._every = every
        self._losses: List[float] = []
        self._first = 0
        self._start = 0.0

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self._first = int(session.run(self._step))  # not 0 where an earlier run is continued

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        self._losses.append(float(run_values.results))
        done = self._first + len(self._losses)
        if len(self._losses) == 1:
            self._start = time.time()  # the first step also starts things up
        elif done % self._every == 0 or done == self._steps:
            speed = (len(self._losses) - 1) / (time.time() - self._start)
            recent = self._losses[-self._every :]
            message = "step {} of {}: loss {:.4f}, {:.2f} steps/s"
            print(message.format(done, self._steps, sum(recent) / len(recent), speed), flush=True)


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", choices=["dp", "pipeline", "auto"], default="dp")
    parser.add_argument("--num_stages", type=int, default=2, help="of a pipeline (default: %(default)s)")
    parser.add_argument("--num_micro_batch", type=int, default=1, help="batches of one step (default: %(default)s)")
    parser.add_argument("--records", required=True, help="windows, made by prepare.py")
    parser.add_argument("--config", required=True, help="bert_config.json")
    parser.add_argument("--init_checkpoint", help="weights to begin with, as bert_model.ckpt of a published model")
    parser.add_argument("--output", required=True, help="folder of the checkpoints")
    parser.add_argument("--batch_size", type=int, default=8, help="windows of one micro batch (default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=2.0, help="(default: %(default)s)")
    parser.add_argument("--learning_rate", type=float, default=5e-5, help="its peak (default: %(default)s)")
    parser.add_argument("--warm_up_share", type=float, default=0.1, help="of all steps (default: %(default)s)")
    parser.add_argument("--log_steps", type=int, default=50, help="per line of progress (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="makes runs repeat: order of the windows, initial weights, dropout")
    return parser.parse_args(arguments)


def main(arguments: Any = None) -> None:
    """Trains."""
    options = parse(arguments)
    tf.set_random_seed(options.seed)
    stages = annotate(options)
    steps = step_count(options)
    step, loss, train_op = build(options, stages, steps)
    init_fn = None
    if options.init_checkpoint:
        init_fn = checkpoint.initial_weights(options.init_checkpoint, tf.trainable_variables())
    hooks = [tf.train.StopAtStepHook(last_step=steps), Progress(step, loss, steps, options.log_steps)]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=options.output,
        scaffold=tf.train.Scaffold(init_fn=init_fn),
        hooks=hooks,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    ) as session:
        while not session.should_stop():
            session.run(train_op)


if __name__ == "__main__":
    main()
