"""Trains a ResNet with EPL.

    epl-launch --num_workers 1 --gpu_per_worker 4 examples/image_classification/train_images.py \
        --records records --output my_model

An ordinary training script of TensorFlow 1.x for one device; what is EPL's are `annotate`, the two scopes that it
returns, and the share of the images that a process reads.
"""

import argparse
from contextlib import ExitStack
from typing import Any, List, Tuple

import image_records  # it finds what all examples share
import progress
import resnet
import tensorflow.compat.v1 as tf
from best_checkpoint import KeepBest, Measures
from evaluate_images import add_model_options, evaluate

import epl

_SAMPLES_OF_RATE = 256.0  # the learning rate is given for steps of so many images


def annotate(options: argparse.Namespace) -> Tuple[Any, Any]:
    """Sets EPL up; returns the scopes of the features and of the head."""
    if options.variant == "split":
        epl.init(epl.Config({"cluster.colocate_split_and_replicate": True}))
        return epl.replicate(1), epl.split(epl.Env.get().cluster.total_gpu_num)
    config = {"zero.level": "v1", "amp.level": "O1", "amp.loss_scale": "dynamic", "gradient_checkpoint.type": "auto"}
    epl.init(epl.Config(config if options.variant == "zero" else {}))
    epl.set_default_strategy(epl.replicate(1))
    return ExitStack(), ExitStack()


def build(
    options: argparse.Namespace, scopes: Tuple[Any, Any], dataset: image_records.Dataset, steps: int
) -> Tuple[tf.Tensor, tf.Operation]:
    """Returns the loss and the op of a training step."""
    cluster = epl.Env.get().cluster
    share = image_records.Share(cluster.worker_num, cluster.worker_index)
    distortion = image_records.Distortion(options.least_area, not options.no_flip)
    images, labels = image_records.training_batches(
        dataset, options.batch_size, options.image_size, distortion, share, options.seed
    )
    with scopes[0]:
        features = resnet.features(images, options.depth, options.width, training=True)
    with scopes[1]:
        loss = resnet.loss(labels, resnet.logits(features, len(dataset.classes)))
    step = tf.train.get_or_create_global_step()
    rate = learning_rate(step, steps, options.learning_rate * step_size(options) / _SAMPLES_OF_RATE, options.warm_up)
    optimizer = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True)
    kernels = [v for v in tf.trainable_variables() if v.op.name.endswith("/kernel")]
    decay = options.weight_decay * tf.add_n([tf.nn.l2_loss(v) for v in kernels])
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return loss, optimizer.minimize(loss + decay, step)


def learning_rate(step: tf.Variable, steps: int, peak: float, warm_up: float) -> tf.Tensor:
    """Rises to its peak in a share of the steps, and falls from there as half a cosine."""
    rising = max(1, int(steps * warm_up))
    now = tf.cast(step, tf.float32)
    falling = tf.train.cosine_decay(peak, tf.maximum(now - rising, 0.0), max(1, steps - rising))
    return tf.where(now < rising, peak * (now + 1) / rising, falling)


def step_size(options: argparse.Namespace) -> int:
    """Returns the number of images of a step, all devices together."""
    return options.batch_size * max(1, epl.Env.get().cluster.total_gpu_num)


def parse(arguments: Any) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", choices=["dp", "split", "zero"], default="dp", help="(default: %(default)s)")
    parser.add_argument("--records", required=True, help="folder of prepare_images.py")
    parser.add_argument("--output", required=True, help="folder of the checkpoints")
    add_model_options(parser)
    parser.add_argument("--batch_size", type=int, default=64, help="images of one device (default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=90.0, help="(default: %(default)s)")
    parser.add_argument(
        "--learning_rate", type=float, default=0.1, help="its peak, for steps of 256 images (default: %(default)s)"
    )
    parser.add_argument("--warm_up", type=float, default=5 / 90.0, help="share of the steps (default: 5 of 90)")
    parser.add_argument("--weight_decay", type=float, default=1e-4, help="of kernels (default: %(default)s)")
    parser.add_argument("--least_area", type=float, default=0.08, help="of an image, looked at (default: %(default)s)")
    parser.add_argument("--no_flip", action="store_true", help="left and right are not exchanged")
    parser.add_argument("--test_split", default="test", help="images to evaluate with (default: %(default)s)")
    parser.add_argument(
        "--save_epochs", type=float, default=1.0, help="from save to save, and test (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="makes runs repeat: order of the images, initial weights")
    return parser.parse_args(arguments)


def hooks(
    options: argparse.Namespace, dataset: image_records.Dataset, loss: tf.Tensor, steps: int
) -> List[tf.train.SessionRunHook]:
    """What is done while it trains: progress, curves for TensorBoard, checkpoints and their evaluation."""

    def measure(checkpoint: str) -> Measures:
        found = evaluate(dataset, checkpoint, options.test_split, options)
        return {name: found[name] for name in ("top_1", "top_5")}

    save_steps = max(1, int(options.save_epochs * dataset.images["train"] / step_size(options)))
    keep_best = KeepBest(options.output, measure, "top_1")
    return [
        tf.train.StopAtStepHook(last_step=steps),
        progress.Progress(loss, steps, step_size(options)),
        epl.StepStatsHook(options.output, loss, samples_per_run=step_size(options)),
        tf.train.CheckpointSaverHook(options.output, save_steps=save_steps, listeners=[keep_best]),
    ]


def main(arguments: Any = None) -> None:
    """Trains."""
    options = parse(arguments)
    tf.set_random_seed(options.seed)
    scopes = annotate(options)
    dataset = image_records.read_dataset(options.records)
    if options.test_split not in dataset.images:
        raise ValueError(
            f"{options.records} has no images of the split {options.test_split!r}, only of {sorted(dataset.images)}: "
            "name one of them by --test_split."
        )
    steps = max(1, int(options.epochs * dataset.images["train"] / step_size(options)))
    loss, train_op = build(options, scopes, dataset, steps)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=options.output,
        hooks=hooks(options, dataset, loss, steps),
        save_checkpoint_secs=None,
        save_checkpoint_steps=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
    ) as session:
        while not session.should_stop():
            session.run(train_op)


if __name__ == "__main__":
    main()
