"""`fit`, `evaluate` and `predict` of tf.keras, and its callbacks, on devices of one process and on two workers."""

import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle
from tests.parity.scripts.data import samples

TWO_WORKERS = (2, 1)
EPOCHS = 3


def _model(metrics: Optional[List[str]] = None) -> Any:
    keras = tf.keras
    model = keras.Sequential([
        keras.layers.Dense(4, "tanh", kernel_initializer=keras.initializers.glorot_uniform(3), input_shape=(12,)),
        keras.layers.Dense(1, kernel_initializer=keras.initializers.glorot_uniform(4)),
    ])  # fmt: skip
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics)
    return model


def _rows(ctx: Context, seed: int = 7) -> Tuple[np.ndarray, np.ndarray]:
    """The rows that this process reads in an epoch."""
    data = samples(seed=seed)
    return ctx.stream(data.x), np.float32(ctx.stream(data.y) > 2)


def _data(ctx: Context, *arrays: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(ctx.process_batch)


def _batches(ctx: Context, x: np.ndarray, y: np.ndarray) -> Iterator[Any]:
    while True:
        for start in range(0, len(x), ctx.process_batch):
            yield x[start : start + ctx.process_batch], y[start : start + ctx.process_batch]


def _fits(ctx: Context) -> None:
    """All ways to give data to `fit`, and what `evaluate` and `predict` say of a dataset."""
    ctx.init()
    (x, y), valid = _rows(ctx), _rows(ctx, seed=8)
    once, size = {"epochs": EPOCHS, "verbose": 0}, ctx.process_batch
    each = {**once, "steps_per_epoch": STEPS}
    ways: Dict[str, Callable[[Any], Any]] = {
        "arrays": lambda model: model.fit(x, y, size, shuffle=False, validation_data=valid, **once),
        "dataset": lambda model: model.fit(_data(ctx, x, y), validation_data=_data(ctx, *valid), **once),
        "repeated": lambda model: model.fit(
            _data(ctx, x, y).repeat(),
            validation_data=_data(ctx, *valid).repeat(),
            validation_steps=STEPS,
            **each,
        ),
        "of unknown size": lambda model: model.fit(_data(ctx, x, y).filter(lambda *_: True), **once),
        "generator": lambda model: model.fit(_batches(ctx, x, y), validation_data=valid, **each),
        "weights": lambda model: model.fit(_data(ctx, x, y, np.abs(x[:, 0])), **once),
        "classes": lambda model: model.fit(x, y, size, shuffle=False, class_weight={0: 1.0, 1: 3.0}, **once),
    }
    for name, fit in ways.items():
        model = _model()
        history = fit(model).history
        ctx.record(**{name: [np.array(history[key]) for key in sorted(history)] + model.get_weights()})
    data = samples()
    everything = data.x, np.float32(data.y > 2)
    evaluated = model.evaluate(tf.data.Dataset.from_tensor_slices(everything).batch(16), verbose=0)
    ctx.record(
        evaluated=[np.array(evaluated)],
        predicted=[model.predict(tf.data.Dataset.from_tensor_slices(data.x).batch(16))],
    )


@pytest.mark.tensorflow(
    "1", reason="the plain process keeps the v2 behavior of TensorFlow 2, and Keras its eager loops"
)
@pytest.mark.parametrize("topology", [(1, 2), TWO_WORKERS], ids=["2 devices", "2 workers"])
def test_fit_on_any_data_equals_one_device(oracle: Oracle, topology: Any) -> None:
    expected = oracle.plain(_fits).results
    for answer in oracle.plan(topology, _fits):
        assert set(answer.results) == set(expected)
        for name, (values,) in expected.items():
            for value, found in zip(values, answer.results[name][0]):
                np.testing.assert_allclose(found, value, rtol=5e-5, atol=2e-6, err_msg=name)


def _calls_back(ctx: Context) -> None:
    """Callbacks that decide, by losses that differ between the workers, and callbacks that write."""
    ctx.init(communication__timeout=60)
    keras, folder = tf.keras, ctx.temporary_directory()
    x, y = _rows(ctx)
    valid = x[:16], y[:16] * (1 + 3 * ctx.worker)

    class StopsWorker1(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = ctx.worker == 1 and batch == 1

    told: Dict[str, float] = {}
    curves = epl.StepStatsCallback(log=lambda values, step: told.update(values), save_steps=1, trace_steps=2)
    deciding = {
        "rate": keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.1),
        "stops": keras.callbacks.EarlyStopping(patience=1, min_delta=1.0, restore_best_weights=True),
        "alone": StopsWorker1(),
    }
    for name, callback in deciding.items():
        model = _model()
        writing = [
            keras.callbacks.ModelCheckpoint(os.path.join(folder, "model.h5"), save_weights_only=True),
            keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
        ]
        history = model.fit(
            x, y, ctx.process_batch, 4, 0, [callback, *writing, curves], validation_data=valid, shuffle=False
        ).history
        ctx.record(**{name: [{key: np.array(value) for key, value in history.items()}, model.get_weights()]})
        ctx.record(**{f"curves of {name}": [np.array(told.get("epl/epoch_loss")), sorted(told)]})
    for worker in range(2):  # one worker alone has callbacks
        model = _model()
        own = [StopsWorker1(), keras.callbacks.LambdaCallback()] if ctx.worker == worker else []
        history = model.fit(x, y, ctx.process_batch, 2, 0, own, shuffle=False).history
        ctx.record(**{f"of worker {worker}": [np.array(history["loss"]), model.get_weights()]})
    ctx.record(files=sorted(os.listdir(folder)))
    try:
        _model().fit(x[: 16 * (1 + ctx.worker)], y[: 16 * (1 + ctx.worker)], 8, verbose=0)
    except Exception as error:  # pylint: disable=broad-except  (whatever it is, its text is compared)
        ctx.record(unequal=f"{type(error).__name__}: {error}")


def test_callbacks_of_all_workers_decide_alike_and_worker_0_writes(oracle: Oracle) -> None:
    first, second = (answer.results for answer in oracle.plan(TWO_WORKERS, _calls_back))
    assert first["files"] == [["log.csv", "model.h5"]] and second["files"] == [[]]
    for name in ("rate", "stops", "alone", "of worker 0", "of worker 1"):
        np.testing.assert_equal(second[name], first[name])
        if name in ("rate", "stops", "alone"):
            (loss, tags), (_, none) = first[f"curves of {name}"][0], second[f"curves of {name}"][0]
            np.testing.assert_allclose(loss, first[name][0][0]["loss"][-1], rtol=1e-6)
            assert "epl/exposed_communication" in tags and not none
    assert first["rate"][0][0]["lr"][-1] < 0.1
    assert len(first["stops"][0][0]["val_loss"]) < 4
    assert len(first["alone"][0][0]["loss"]) == 1
    assert [len(first[f"of worker {worker}"][0][0]) for worker in range(2)] == [2, 1]
    assert first["unequal"] == second["unequal"]
    assert "worker 0 has 2 steps, and one of worker 1 4." in first["unequal"][0]


def _saves_parts(ctx: Context) -> None:
    ctx.init(zero__level="v1")
    path = os.path.join(ctx.temporary_directory(), "model.h5")
    x, y = _rows(ctx)
    callback = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model = _model()
    model.fit(x, y, ctx.process_batch, verbose=0, callbacks=[callback], shuffle=False)
    ctx.record(written=os.path.exists(path))
    weights = model.get_weights()
    if ctx.worker == 0:
        import h5py

        with h5py.File(path, "r") as file:
            saved: List[np.ndarray] = []
            file.visititems(lambda _, item: saved.append(np.array(item)) if isinstance(item, h5py.Dataset) else None)
        ctx.record(equal=sorted(map(np.sum, saved)) == sorted(map(np.sum, weights)))


@pytest.mark.tensorflow(
    "1", reason="EPL refuses IdentityN, by which Keras of TensorFlow 2 gives gradients on, under ZeRO"
)
def test_a_model_checkpoint_of_variables_in_parts_is_written_by_worker_0(oracle: Oracle) -> None:
    first, second = (answer.results for answer in oracle.plan(TWO_WORKERS, _saves_parts))
    assert first == {"written": [True], "equal": [True]} and second == {"written": [False]}
