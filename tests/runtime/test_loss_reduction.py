"""Losses that are sums over a batch: who divides by the replicas is said, once."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from tests.parallel.in_process import Linear
from tests.tensorflows import WITH_ESTIMATOR

SUM, MEAN = tf.losses.Reduction.SUM, tf.losses.Reduction.SUM_OVER_BATCH_SIZE


@pytest.mark.parametrize("devices,reduction,method,said", [
    (2, SUM, "mean", 1), (2, MEAN, "mean", 0), (2, SUM, "sum", 0), (1, SUM, "mean", 0)])  # fmt: skip
def test_a_summed_loss_is_named_with_the_key(init, monkeypatch, caplog, devices, reduction, method, said):
    init(devices, communication__gradients_reduce_method=method)
    monkeypatch.setattr(Env.get(), "_said", set())
    model = Linear()
    loss = tf.losses.mean_squared_error(model.y, model.out, reduction=reduction)
    for _ in range(2):
        tf.gradients(loss, tf.trainable_variables())
    warnings = [record.getMessage() for record in caplog.records if "sum over the rows" in record.message]
    assert len(warnings) == said and all("2 times smaller" in warning for warning in warnings)


def test_devices_that_divide_a_batch_divide_its_gradient(init, monkeypatch, caplog):
    init(2, annotate=False)
    monkeypatch.setattr(Env.get(), "_said", set())
    with epl.replicate(2):
        model = Linear()
        loss = tf.losses.mean_squared_error(model.y, model.out, reduction=SUM)
    tf.gradients(loss, tf.trainable_variables())
    assert any("2 times smaller" in record.getMessage() for record in caplog.records)


@WITH_ESTIMATOR
def test_a_canned_estimator_sums(init, monkeypatch, caplog, tmp_path):
    init()
    monkeypatch.setattr(Env.get(), "_said", set())
    columns = [tf.feature_column.numeric_column("x", [3])]
    rows = {"x": np.ones([8, 3], "f")}, np.zeros([8], "i")
    tf.estimator.LinearClassifier(columns, str(tmp_path)).train(
        lambda: tf.data.Dataset.from_tensor_slices(rows).batch(4), steps=1
    )
    assert any("gradients_reduce_method" in record.message for record in caplog.records)
