"""Fine-tunes BERT on SQuAD with EPL: data parallel, with little memory, or as a pipeline, cut by hand or by EPL.

    epl-launch --num_workers 1 --gpu_per_worker 4 examples/bert/train.py --variant dp \
        --records train.tfrecord --config bert_config.json --init_checkpoint bert_model.ckpt --output my_model

An ordinary training script of TensorFlow 1.x for one device. What is EPL's stands in `annotate`.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from typing import Any, Dict, List

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import best_checkpoint
import checkpoint
import metric
import model
import optimizer
import predict
import prepare
import progress
import records
import squad
import tensorflow.compat.v1 as tf

import epl

VARIANTS = ("dp", "zero", "pipeline", "auto")
ONE_DEVICE = ("dp", "zero")  # a model lies on one device; with the others on one for each stage


def annotate(options: argparse.Namespace) -> List[Any]:
    """Sets EPL up; returns the scope of each stage of the model."""
    config = {"pipeline.num_micro_batch": options.num_micro_batch}
    if options.variant == "auto":
        config.update({"auto.auto_parallel": True, "pipeline.num_stages": options.num_stages})
    if options.variant == "zero":
        config.update({"zero.level": "v1", "amp.level": "O1", "gradient_checkpoint.type": "auto"})
    epl.init(epl.Config(config))
    if options.variant == "pipeline":
        return [epl.replicate(1) for _ in range(options.num_stages)]
    if options.variant in ONE_DEVICE:
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
    return 1 if options.variant in ONE_DEVICE else options.num_stages


def step_size(options: argparse.Namespace) -> int:
    """Returns the windows of a step: a batch for every micro batch of every replica."""
    replicas = max(1, epl.Env.get().cluster.total_gpu_num // stage_count(options))
    return options.batch_size * options.num_micro_batch * replicas


def run_size(options: argparse.Namespace) -> int:
    """Returns the windows of a call of `session.run`: of one micro batch where gradients are accumulated over calls."""
    return step_size(options) // (options.num_micro_batch if stage_count(options) == 1 else 1)


def step_count(options: argparse.Namespace) -> int:
    """Returns how many steps the epochs have."""
    return max(1, int(options.epochs * records.summary(options.records).windows / step_size(options)))


class Evaluation:
    """Measures checkpoints by the questions of `--eval_data`."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Reads the questions; cuts them into windows when the first checkpoint is there, in worker 0.

        Raises:
          ValueError: a question has no answer, or the file or the vocabulary is of another kind.
        """
        self._options = options
        self._questions, self._pieces = prepare.questions_and_pieces(options)
        metric.evaluate(self._questions, {})  # refuses those without an answer
        self._windows: List[squad.Window] = []

    def __call__(self, path: str) -> Dict[str, float]:
        """Returns `exact_match` and `f1` of a checkpoint, in percent."""
        if not self._windows:
            sizes = records.summary(self._options.records).sizes
            self._windows = list(squad.windows(self._questions, self._pieces, sizes))
        return predict.measure(model.read_config(self._options.config), path, self._questions, self._windows)


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", choices=VARIANTS, default="dp")
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
    parser.add_argument("--summary_steps", type=int, default=50, help="per TensorBoard value (default: %(default)s)")
    parser.add_argument("--save_steps", type=int, default=500, help="per checkpoint (default: %(default)s)")
    parser.add_argument("--eval_data", dest="data", help="a SQuAD file: each checkpoint is measured, the best one kept")
    parser.add_argument("--vocabulary", help="vocab.txt of the model, for --eval_data")
    parser.add_argument("--cased", action="store_true", help="the vocabulary has upper case and accents")
    parser.add_argument("--max_questions", type=int, help="take only the first ones of --eval_data")
    parser.add_argument("--seed", type=int, help="makes runs repeat: order of the windows, initial weights, dropout")
    options = parser.parse_args(arguments)
    if options.data and not options.vocabulary:
        parser.error("--eval_data needs --vocabulary, the vocab.txt that the windows of --records were made with.")
    return options


def main(arguments: Any = None) -> None:
    """Trains."""
    options = parse(arguments)
    tf.set_random_seed(options.seed)
    stages = annotate(options)
    steps = step_count(options)
    _, loss, train_op = build(options, stages, steps)
    init_fn = None
    if options.init_checkpoint:
        init_fn = checkpoint.initial_weights(options.init_checkpoint, tf.trainable_variables())
    scaffold = tf.train.Scaffold(init_fn=init_fn)
    listeners = []
    if options.data:
        listeners.append(best_checkpoint.KeepBest(options.output, Evaluation(options), "f1"))
    hooks = [
        tf.train.StopAtStepHook(last_step=steps),
        progress.Progress(loss, steps, run_size(options)),
        epl.StepStatsHook(options.output, loss, run_size(options), options.summary_steps, 20 * options.summary_steps),
        tf.train.CheckpointSaverHook(
            options.output, save_steps=options.save_steps, scaffold=scaffold, listeners=listeners
        ),
    ]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=options.output,
        scaffold=scaffold,
        hooks=hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    ) as session:
        while not session.should_stop():
            session.run(train_op)


if __name__ == "__main__":
    main()
