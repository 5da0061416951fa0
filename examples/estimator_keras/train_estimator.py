"""Trains the handwritten digits with an Estimator, which evaluates in training and keeps the best model.

    epl-launch --num_workers 2 --gpu_per_worker 2 examples/estimator_keras/train_estimator.py --output my_model

An ordinary script for one device; what is EPL's are the first two lines of `main`, and the hook for TensorBoard.
"""

import argparse
import os
import sys
from typing import Any, Dict

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # what all examples share
import quiet  # noqa: F401  before TensorFlow

# isort: split
import progress
import tensorflow.compat.v1 as tf
from quickstart import digits

import epl


def model_fn(features: Dict[str, tf.Tensor], labels: Any, mode: str, params: Any) -> tf.estimator.EstimatorSpec:
    """The network, and how it is trained, evaluated and served; `params` are the options."""
    logits = digits.network(features["image"])
    digit = tf.argmax(logits, 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        answer = tf.estimator.export.PredictOutput({"digit": digit})
        return tf.estimator.EstimatorSpec(mode, {"digit": digit}, export_outputs={"serving_default": answer})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"accuracy": tf.metrics.accuracy(labels, digit)}
        )
    train_op = tf.train.AdamOptimizer(0.001).minimize(loss, tf.train.get_global_step())
    samples = params.batch_size * progress.devices()
    hooks = [
        progress.Progress(loss, params.steps, samples),
        epl.StepStatsHook(params.output, loss, samples_per_run=samples, save_steps=50),
    ]
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=hooks)


def training_images(batch_size: int) -> tf.data.Dataset:
    """Batches of one device without end, in an order that is new in every epoch and worker."""
    images, labels = digits.images_and_labels("train")
    rows = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    return rows.shuffle(2000).repeat().batch(batch_size, drop_remainder=True)


def test_images() -> tf.data.Dataset:
    """All test images, once."""
    images, labels = digits.images_and_labels("test")
    return tf.data.Dataset.from_tensor_slices(({"image": images}, labels)).batch(100)


def served_images() -> tf.estimator.export.ServingInputReceiver:
    """What a SavedModel is given: rows of 64 pixels, from 0 to 1."""
    images = tf.placeholder(tf.float32, [None, 64], "image")
    return tf.estimator.export.ServingInputReceiver({"image": images}, {"image": images})


def is_best(best_eval_result: Dict[str, float], current_eval_result: Dict[str, float]) -> bool:
    """Whether the loss is the smallest, or as small: BestExporter takes the first one of a run for an old one."""
    return current_eval_result["loss"] <= best_eval_result["loss"]


class ShowEvaluation(tf.estimator.Exporter):
    """Prints each evaluation, instead of the messages of tf.logging."""

    name = "show"

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> None:
        words = "evaluated after step {global_step}: loss {loss:.4f}, accuracy {accuracy:.3f}"
        print(words.format(**eval_result), flush=True)


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True, help="folder of checkpoints, events and the best model")
    parser.add_argument(
        "--steps", type=int, default=600, help="in all; more go on from the last (default: %(default)s)"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="images of one device (default: %(default)s)")
    parser.add_argument("--evaluate_steps", type=int, default=200, help="from test to test (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Any = None) -> None:
    """Trains, and evaluates whenever a checkpoint is written."""
    epl.init()
    epl.set_default_strategy(epl.replicate(1))
    options = parse(arguments)
    config = tf.estimator.RunConfig(options.output, save_checkpoints_steps=options.evaluate_steps)
    best = tf.estimator.BestExporter("best", served_images, compare_fn=is_best, exports_to_keep=1)
    tf.estimator.train_and_evaluate(
        tf.estimator.Estimator(model_fn, config=config, params=options),
        tf.estimator.TrainSpec(lambda: training_images(options.batch_size), max_steps=options.steps),
        tf.estimator.EvalSpec(
            test_images, steps=None, exporters=[ShowEvaluation(), best], start_delay_secs=0, throttle_secs=0
        ),
    )


if __name__ == "__main__":
    main()
