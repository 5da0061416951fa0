"""Trains a translator with EPL, whose experts are copied to each device or dealt out to them.

    epl-launch --num_workers 1 --gpu_per_worker 4 examples/moe/train_translation.py \
        --variant moe --pairs pairs --output my_model

An ordinary training script of TensorFlow 1.x for one device; what is EPL's are `annotate`, the scope that it returns,
and the share of the pairs that a process reads.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from typing import Any, Callable, Dict, Tuple

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import best_checkpoint
import model_options
import progress
import sentence_pairs
import tensorflow.compat.v1 as tf
import translate
import translation_model
from prepare_pairs import RECORDS

import epl

_CLIP_NORM = 1.0


def annotate(options: argparse.Namespace) -> Any:
    """Sets EPL up; returns the scope of the experts."""
    split = options.variant in ("moe", "moe_zero")
    config = {"cluster.colocate_split_and_replicate": split, "communication.fp16": options.fp16}
    if options.variant == "moe_zero":
        config.update({"zero.level": "v1", "amp.level": "O1", "gradient_checkpoint.type": "auto"})
    epl.init(epl.Config(config))
    epl.set_default_strategy(epl.replicate(1))
    return epl.split(epl.Env.get().cluster.total_gpu_num) if split else ExitStack()


def build(options: argparse.Namespace, scope: Any) -> Tuple[tf.Tensor, tf.Operation]:
    """Returns the cross entropy of a batch and the op of a training step."""
    cluster = epl.Env.get().cluster
    path = os.path.join(options.pairs, RECORDS)
    source, target = sentence_pairs.batches(
        path, options.batch_size, cluster.worker_num, cluster.worker_index, options.seed
    )
    sizes = model_options.sizes_of(options, sentence_pairs.summary(path).vocabulary)
    loss, entropy = translation_model.loss(sizes, source, target, scope, options.balance)
    step = tf.train.get_or_create_global_step()
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), _CLIP_NORM)
    optimizer = tf.train.AdamOptimizer(learning_rate(step, options.learning_rate, options.warm_up), beta2=0.98)
    return entropy, optimizer.apply_gradients(zip(gradients, variables), step)


def learning_rate(step: tf.Variable, peak: float, warm_up: int) -> tf.Tensor:
    """Rises to its peak in the first steps, and falls with the square root of their number from there."""
    number = tf.cast(step, tf.float32) + 1.0
    return peak * tf.minimum(number / warm_up, tf.sqrt(warm_up / number))


def step_size(options: argparse.Namespace) -> int:
    """Returns the pairs of a step: a batch for each device."""
    return options.batch_size * max(1, epl.Env.get().cluster.total_gpu_num)


def step_count(options: argparse.Namespace) -> int:
    """Returns how many steps the epochs have."""
    pairs = sentence_pairs.summary(os.path.join(options.pairs, RECORDS)).pairs
    return max(1, int(options.epochs * pairs / step_size(options)))


def evaluation(options: argparse.Namespace) -> Callable[[str], Dict[str, float]]:
    """Returns what measures a checkpoint by `--eval_pairs`."""
    pairs = translate.read_pairs(options.pairs, options.eval_pairs, options.columns)
    sizes = model_options.sizes_of(options, len(pairs.known))._replace(dropout=0.0)
    return lambda path: {"pieces_right": translate.measure(sizes, path, pairs, options.batch_size)}


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", choices=["dp", "moe", "moe_zero"], default="moe", help="(default: %(default)s)")
    parser.add_argument("--pairs", required=True, help="folder of prepare_pairs.py")
    parser.add_argument("--output", required=True, help="folder of the checkpoints")
    model_options.add(parser)
    parser.add_argument("--dropout", type=float, default=0.1, help="share of what is dropped (default: %(default)s)")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of its loss (default: %(default)s)")
    parser.add_argument("--fp16", action="store_true", help="gradients and all-to-alls travel as float16")
    parser.add_argument("--batch_size", type=int, default=64, help="pairs of one device (default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=10.0, help="(default: %(default)s)")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="its peak (default: %(default)s)")
    parser.add_argument("--warm_up", type=int, default=4000, help="steps up to there (default: %(default)s)")
    parser.add_argument("--summary_steps", type=int, default=100, help="per TensorBoard value (default: %(default)s)")
    parser.add_argument("--save_steps", type=int, default=1000, help="per checkpoint (default: %(default)s)")
    parser.add_argument(
        "--eval_pairs", help="pairs, as --pairs of prepare_pairs.py, by which each checkpoint is measured"
    )
    parser.add_argument("--columns", type=int, nargs=2, default=[1, 2], help="of --eval_pairs, from 1 (default: 1 2)")
    parser.add_argument("--seed", type=int, help="makes runs repeat: order of the pairs, initial weights")
    return parser.parse_args(arguments)


def main(arguments: Any = None) -> None:
    """Trains."""
    options = parse(arguments)
    tf.set_random_seed(options.seed)
    scope = annotate(options)
    entropy, train_op = build(options, scope)
    steps = step_count(options)
    listeners = []
    if options.eval_pairs:
        listeners.append(best_checkpoint.KeepBest(options.output, evaluation(options), "pieces_right"))
    hooks = [
        tf.train.StopAtStepHook(last_step=steps),
        progress.Progress(entropy, steps, step_size(options)),
        epl.StepStatsHook(
            options.output, entropy, step_size(options), options.summary_steps, 20 * options.summary_steps
        ),
        tf.train.CheckpointSaverHook(options.output, save_steps=options.save_steps, listeners=listeners),
    ]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=options.output,
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
