"""StepStatsCallback: the values of a `fit`, when they are written, and what the callback leaves as it was."""

import os
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.profiler import exposed_communication
from epl.profiler.step_curves import StepCurves
from epl.runtime import keras_callbacks
from tests.parallel.in_process import error_text
from tests.profiler.event_files import steps, values

keras = tf.keras
ROWS = 8  # of a step of the job
OF_JOB = {"epl/samples_per_second", "epl/tflops_per_second", "epl/mfu"}


@pytest.fixture(scope="module")
def rows():
    random = np.random.RandomState(3)
    return np.float32(random.rand(32, 12)), np.float32(random.rand(32, 1))


def build():
    model = keras.Sequential([keras.layers.Dense(4, "tanh", input_shape=(12,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


class Losses(keras.callbacks.Callback):
    """What Keras tells of each batch."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(logs["loss"]))


def test_a_tracker_gets_what_keras_and_the_traces_say(init, rows, monkeypatch):
    init(2)
    told, traces = {}, {}
    after_run = StepCurves.after_run

    def noting(curves, session, step, loss, metadata):
        if metadata is not None:
            traces[int(session.run(step))] = metadata, session.graph
        after_run(curves, session, step, loss, metadata)

    monkeypatch.setattr(StepCurves, "after_run", noting)
    callback = epl.StepStatsCallback(
        samples_per_run=ROWS, save_steps=2, trace_steps=3, peak_flops=1e9,
        log=lambda values, step: told.setdefault(step, {}).update(values),
    )  # fmt: skip
    model, losses = build(), Losses()
    history = model.fit(*rows, ROWS, 2, 0, [callback, losses], validation_data=rows, shuffle=False).history
    assert sorted(told) == [1, 2, 3, 4, 5, 7, 8] and sorted(traces) == [2, 5, 8]
    np.testing.assert_allclose([told[step]["epl/loss"] for step in (1, 3, 5, 7)], losses.seen[::2], rtol=1e-6)
    for epoch in range(2):
        for name, value in history.items():
            assert told[4 * epoch + 4][f"epl/epoch_{name}"] == pytest.approx(value[epoch], rel=1e-6)
    for step, (metadata, graph) in traces.items():
        share = exposed_communication.exposed_share(exposed_communication.exposures(metadata, graph))
        assert told[step]["epl/exposed_communication"] == pytest.approx(share, rel=1e-6) and 0 < share < 1
        assert told[step]["epl/peak_memory_mb/CPU_1"] > 0
    assert all(OF_JOB <= set(told[step]) for step in (3, 5, 7)) and not OF_JOB & set(told[1])
    rate = told[7]["epl/tflops_per_second"] * 1e12
    assert told[7]["epl/mfu"] == pytest.approx(rate / 2e9, rel=1e-5)
    products = 2 * ROWS * (2 * (12 * 4 + 4 * 1) + 4 * 1)  # both layers, their weights' gradients, one input's gradient
    assert products < rate / told[7]["epl/samples_per_second"] * ROWS < 1.5 * products
    assert model.train_function.run_options is None and model.train_function.run_metadata is None


def test_time_between_epochs_and_a_first_batch_do_not_count(init, rows, tmp_path):
    init(1)

    class Pauses(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(1.5)

    callback = epl.StepStatsCallback(str(tmp_path), samples_per_run=ROWS, save_steps=2, trace_steps=None)
    model = build()
    for _ in range(2):
        model.fit(*rows, ROWS, 2, 0, [callback, Pauses()])
    assert steps(tmp_path, "loss") == [1, 3, 5, 7, 9, 11, 13, 15]
    assert all(value > ROWS for _, value in values(tmp_path)["epl/samples_per_second"])
    tf.summary.FileWriterCache.clear()


def test_a_generator_and_amp_take_the_callback(init, rows):
    init(2, amp__level="O1", amp__loss_scale="dynamic")
    told = {}
    callback = epl.StepStatsCallback(
        save_steps=1, trace_steps=2, log=lambda values, step: told.setdefault(step, {}).update(values)
    )
    batches = ((1e-3 * rows[0][:ROWS], 1e-3 * rows[1][:ROWS]) for _ in range(4))  # no gradient overflows
    build().fit(batches, steps_per_epoch=4, epochs=1, verbose=0, callbacks=[callback])
    assert [told[step].get("epl/loss_scale") for step in range(1, 5)] == [32768.0] * 4
    assert [step for step in told if "epl/exposed_communication" in told[step]] == [2, 4]


def test_a_batch_without_rows_is_no_run(init, rows):
    init(1)
    data = tf.data.Dataset.from_tensor_slices(rows).batch(ROWS).filter(lambda *_: True)  # of unknown size
    told = {}
    callback = epl.StepStatsCallback(
        save_steps=4, trace_steps=3, log=lambda values, step: told.setdefault(step, {}).update(values)
    )
    model = build()
    model.fit(data, epochs=2, verbose=0, callbacks=[callback])
    assert [step for step in told if "epl/loss" in told[step]] == [
        1,
        5,
    ]  # the input ends at the begin of a run that is traced
    assert model.train_function.run_options is None


def test_logs_that_are_no_number_are_passed_over(init, rows):
    init(1)

    class Confusion(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["confusion"] = np.eye(2)

    told = {}
    callback = epl.StepStatsCallback(trace_steps=None, log=lambda values, step: told.update(values))
    build().fit(*rows, ROWS, 1, 0, [Confusion(), callback])
    assert "epl/epoch_loss" in told and "epl/epoch_confusion" not in told


def test_workers_need_not_tell_each_other_of_stops_after_each_batch():
    callback = epl.StepStatsCallback(log=print)
    assert isinstance(callback, keras.callbacks.Callback) and isinstance(callback, epl.StepStatsCallback)
    assert not keras_callbacks._may_stop_in_an_epoch(callback)

    class Stops(epl.StepStatsCallback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    assert keras_callbacks._may_stop_in_an_epoch(Stops(log=print))


def test_a_callback_that_writes_nowhere_is_refused():
    assert "StepStatsCallback has no output_dir, and log is None" in error_text(epl.StepStatsCallback)
    assert "save_steps of StepStatsCallback is 0" in error_text(epl.StepStatsCallback, os.curdir, save_steps=0)
