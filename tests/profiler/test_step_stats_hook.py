"""StepStatsHook: the values in the event files, when they are written, and what the hook refuses."""

import os
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parallel.in_process import Linear, error_text
from tests.profiler.event_files import steps, values
from tests.profiler.models import estimator
from tests.tensorflows import WITH_ESTIMATOR


def train(hook, runs=4, model=None, pauses_s=()):
    """Trains a model with a hook, with pauses before the runs; the losses that the script fetched."""
    model = model or Linear()
    step = tf.train.get_or_create_global_step()
    train_op = model.optimizer.minimize(model.loss, step)
    losses = []
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for run in range(runs):
            time.sleep(pauses_s[run] if pauses_s else 0)
            losses.append(session.run([model.loss, train_op], model.feed())[0])
    tf.summary.FileWriterCache.clear()
    return losses


def test_the_loss_is_that_of_the_fetch_over_the_global_step(init, tmp_path):
    init(2)
    losses = train(epl.StepStatsHook(str(tmp_path), save_steps=2, trace_steps=None), runs=5)
    found = values(tmp_path)
    assert list(found) == ["epl/loss"]
    assert [step for step, _ in found["epl/loss"]] == [1, 3, 5]
    np.testing.assert_allclose([value for _, value in found["epl/loss"]], losses[::2], rtol=1e-6)


def test_a_plain_graph_has_the_loss_that_is_given(init, tmp_path):
    init(1, annotate=False)
    model = Linear()
    losses = train(epl.StepStatsHook(str(tmp_path), model.loss, save_steps=1, trace_steps=None), 2, model)
    np.testing.assert_allclose([value for _, value in values(tmp_path)["epl/loss"]], losses, rtol=1e-6)


def test_of_several_losses_none_is_taken(init, tmp_path, caplog):
    init(2)
    model = Linear()
    tf.gradients(tf.identity(model.loss, "other"), model.w)
    train(epl.StepStatsHook(str(tmp_path), trace_steps=None), 1, model)
    assert values(tmp_path) == {} and "several (other:0, loss:0): pass one" in caplog.text


def test_the_rate_is_of_the_runs_since_the_last_value(init, tmp_path):
    init(1)
    hook = epl.StepStatsHook(str(tmp_path), samples_per_run=10, save_steps=2, trace_steps=None)
    train(hook, runs=5, pauses_s=[2, 0.1, 0.1, 0.4, 0.4])
    (_, first), (_, second) = values(tmp_path)["epl/samples_per_second"]
    assert steps(tmp_path, "samples_per_second") == [3, 5]
    assert 10 < first < 100 and 5 < second < 25  # seconds of two runs: 0.2 and 0.8, and little more


def test_traced_runs_and_the_time_of_the_hook_do_not_count(init, tmp_path, monkeypatch):
    init(1)
    hook = epl.StepStatsHook(str(tmp_path), samples_per_run=10, save_steps=2, trace_steps=2)
    write = hook._curves.write
    monkeypatch.setattr(hook._curves, "write", lambda *args: (time.sleep(0.6), write(*args)))
    train(hook, runs=5, pauses_s=[0, 1.6, 0.1, 1.6, 0.1])
    assert all(15 < value < 100 for _, value in values(tmp_path)["epl/samples_per_second"])


def test_traced_runs_show_communication_and_memory(init, tmp_path):
    init(2)
    train(epl.StepStatsHook(str(tmp_path), trace_steps=3), runs=6)
    found = values(tmp_path)
    assert set(found) == {
        "epl/loss", "epl/exposed_communication", "epl/peak_memory_mb/CPU_0", "epl/peak_memory_mb/CPU_1",
    }  # fmt: skip
    assert steps(tmp_path, "exposed_communication") == steps(tmp_path, "peak_memory_mb/CPU_0") == [2, 5]
    assert all(0 < value <= 1 for _, value in found["epl/exposed_communication"])
    assert all(0 < value < 1 for _, value in found["epl/peak_memory_mb/CPU_1"])


def test_a_plain_graph_has_memory_and_no_communication(init, tmp_path):
    init(1, annotate=False)
    train(epl.StepStatsHook(str(tmp_path)), runs=2)
    assert set(values(tmp_path)) == {"epl/peak_memory_mb/CPU_0"}


def test_the_dynamic_loss_scale_is_that_after_the_run(init, tmp_path):
    init(2, amp__level="O1", amp__loss_scale="dynamic")
    model = Linear()
    small = {tensor: value * 1e-3 for tensor, value in model.feed().items()}
    overflows = dict(small)
    overflows[model.x] = small[model.x] * np.inf
    feeds = [small, overflows, small]
    model.feed = lambda: feeds.pop(0)
    train(epl.StepStatsHook(str(tmp_path), save_steps=1, trace_steps=None), 3, model)
    assert values(tmp_path)["epl/loss_scale"] == [(1, 32768.0), (1, 16384.0), (2, 16384.0)]  # the second run is skipped


def test_a_fixed_loss_scale_is_written(init, tmp_path):
    init(2, amp__level="O1", amp__loss_scale=128)
    train(epl.StepStatsHook(str(tmp_path), save_steps=2, trace_steps=None), 3)
    assert values(tmp_path)["epl/loss_scale"] == [(1, 128.0), (3, 128.0)]


def test_a_tracker_gets_the_values_of_each_run_with_its_step(init, tmp_path):
    init(2)
    seen = []
    hook = epl.StepStatsHook(
        samples_per_run=8, save_steps=2, trace_steps=2, log=lambda values, step: seen.append((step, values)),
        peak_flops=1e9,
    )  # fmt: skip
    model = Linear()
    losses = train(hook, 5, model)
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose([values["epl/loss"] for _, values in seen[::2]], losses[::2], rtol=1e-6)
    last = seen[-1][1]
    assert set(last) == {"epl/loss", "epl/samples_per_second", "epl/tflops_per_second", "epl/mfu"}
    assert last["epl/mfu"] == pytest.approx(last["epl/tflops_per_second"] * 1e12 / 2e9, rel=1e-5)
    flops_per_sample = last["epl/tflops_per_second"] * 1e12 / last["epl/samples_per_second"] * 2  # 2 replicas of 4 rows
    assert flops_per_sample > 0 and not os.listdir(str(tmp_path))


def test_the_flops_are_those_of_all_replicas(init):
    def per_run(devices):
        init(devices)
        seen = {}
        hook = epl.StepStatsHook(
            samples_per_run=1, save_steps=2, trace_steps=9, log=lambda values, step: seen.update(values)
        )
        train(hook, 3)
        tf.reset_default_graph()
        return 1e12 * seen["epl/tflops_per_second"] / seen["epl/samples_per_second"]  # a run is one "sample"

    one, two = per_run(1), per_run(2)
    # The fed rows are divided, so that both compute as much; but each replica updates its copy, and has its own mean.
    assert one > 100 and one < two < 1.1 * one


def test_a_hook_that_writes_nowhere_is_refused():
    assert "StepStatsHook has no output_dir, and log is None" in error_text(epl.StepStatsHook)
    assert "peak_flops of StepStatsHook is 0" in error_text(epl.StepStatsHook, "logs", peak_flops=0)


@WITH_ESTIMATOR
def test_an_estimator_takes_the_hook(init, tmp_path):
    init(2)
    hook = epl.StepStatsHook(str(tmp_path / "stats"), samples_per_run=8, save_steps=2)
    model, input_fn = estimator(tmp_path / "model")
    model.train(input_fn, hooks=[hook], steps=3)
    assert steps(tmp_path / "stats", "loss") == [1, 3] and steps(tmp_path / "stats", "exposed_communication") == [2]
    model.train(input_fn, hooks=[hook], steps=2)  # in a second graph
    assert steps(tmp_path / "stats", "loss") == [1, 3, 5]


def test_a_loss_of_another_graph_is_refused(init, tmp_path):
    init(1)
    hook = epl.StepStatsHook(str(tmp_path), Linear().loss)
    with tf.Graph().as_default():
        tf.train.create_global_step()
        text = error_text(hook.begin)
    assert text.startswith("ValueError: loss of StepStatsHook is 'loss:0' of another graph")
    assert not os.listdir(str(tmp_path))


def test_a_graph_without_global_step_is_refused(init, tmp_path):
    init(1)
    text = error_text(epl.StepStatsHook(str(tmp_path)).begin)
    assert text.startswith("ValueError: StepStatsHook needs a global step") and not os.listdir(str(tmp_path))


@pytest.mark.parametrize("name", ["samples_per_run", "save_steps", "trace_steps"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_numbers_below_one_are_refused(name, value):
    expected = f"ValueError: {name} of StepStatsHook is {value!r}: expected 1 or more."
    assert error_text(epl.StepStatsHook, "logs", **{name: value}) == expected


def test_save_steps_is_no_option():
    assert "save_steps of StepStatsHook is None" in error_text(epl.StepStatsHook, "logs", save_steps=None)


def test_a_loss_that_is_no_scalar_is_refused(init):
    init(1)
    for loss in (tf.zeros([3]), 1.0):
        assert "expected a scalar tf.Tensor" in error_text(epl.StepStatsHook, "logs", loss)
