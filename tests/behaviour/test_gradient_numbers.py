"""Numbers that are made of gradients, such as their norm: those of one device on all rows, or told."""

import contextlib
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.behaviour.logs import listening
from tests.parity.context import Context
from tests.parity.oracle import NOT_OF_ONE_DEVICE, Oracle
from tests.parity.scripts.data import CLASSES, FEATURES, samples
from tests.parity.scripts.models import cross_entropy, dense

_CLIP_AFTER = {"communication__clip_after_allreduce": True}
_SPLIT = {"cluster__colocate_split_and_replicate": True}


def _scopes(ctx: Context, kind: str) -> Any:
    if not ctx.planned or kind == "one":
        return contextlib.ExitStack(), contextlib.ExitStack()
    import epl

    return (epl.replicate(2), epl.split(2)) if kind == "split" else (epl.replicate(1), epl.replicate(1))


def _model(ctx: Context, kind: str, **config: Any) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Placeholders and the loss."""
    ctx.init(annotate=kind == "one", **config)
    first, second = _scopes(ctx, kind)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    with first:
        hidden = dense(x, 8, "hidden", tf.nn.tanh)
    with second:
        loss = cross_entropy(y, dense(hidden, CLASSES, "out"))
    return x, y, loss


def _show(ctx: Context, kind: str, is_clipped: bool, micro_steps: int = 1, **config: Any) -> None:
    """Fetches each number in a step of its own, which changes nothing; of micro steps, in the last one."""
    x, y, loss = _model(ctx, kind, **config)
    optimizer = tf.train.GradientDescentOptimizer(0.0)
    pairs = optimizer.compute_gradients(loss)
    gradients = [gradient for gradient, _ in pairs]
    norm = tf.global_norm(gradients)
    others = tf.gradients(tf.reduce_mean(2.0 * loss), tf.trainable_variables())  # which no optimizer gets
    shown = {
        "norm": norm,
        "first": tf.norm(gradients[0]),
        "last": tf.reduce_sum(gradients[-1][:1]),
        "rate": 0.1 / (1.0 + norm),
        "other": tf.norm(others[0]),
    }
    if is_clipped:
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1, use_norm=norm)
        shown["clipped"] = tf.norm(clipped[0])
        pairs = [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)]
    summary = tf.summary.scalar("of_norm", shown["norm"])
    train_op = optimizer.apply_gradients(pairs)
    ctx.record(names={name: tensor.name for name, tensor in shown.items()})
    rows = np.split(np.arange(ctx.process_batch), micro_steps)
    rows = rows if ctx.planned else rows[-1:]  # a number is that of the rows of the run, the last one
    with listening() as said, tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for name, fetched in [*shown.items(), ("summary", summary)]:
            for part in rows:
                feed = {x: ctx.step_rows(samples().x, 0)[part], y: ctx.step_rows(samples().y, 0)[part]}
                value = sess.run([fetched, train_op], feed)[0]
            ctx.record(**{name: tf.Summary.FromString(value).value[0].simple_value if name == "summary" else value})
        late = tf.norm(gradients[1], name="late")
        value = sess.run([late, train_op], feed)[0]
        if kind == "one" and micro_steps == 1:  # what is built after the first run is told, also where it is equal
            ctx.record(late=value)
    ctx.record(said=said.getvalue())


@pytest.mark.parametrize("is_clipped", [False, True])
@pytest.mark.parametrize(
    "kind,topology,config,differing",
    [
        ("one", (1, 2), {}, ["late"]),
        ("one", (1, 2), _CLIP_AFTER, []),
        ("one", (1, 2), {"zero__level": "v2"}, ["late"]),
        ("one", (1, 2), {"replicate__batch": "all"}, ["late"]),
        ("one", (1, 2), {"pipeline__num_micro_batch": 2, "micro_steps": 2}, None),
        ("one", (2, 1), {}, ["norm", "first", "last", "rate", "other", "summary", "late"]),
        ("stages", (1, 2), {"pipeline__num_micro_batch": 4}, ["other"]),
        ("stages", (1, 4), {"pipeline__num_micro_batch": 2}, ["norm", "first", "rate", "other", "summary"]),
        ("split", (1, 2), _SPLIT, ["other"]),
    ],
    ids=["1x2", "clip after", "v2", "all rows", "accumulation", "2x1", "pipeline", "pipeline 1x4", "split"],
)
def test_a_number_of_gradients_is_of_all_rows_or_told(
    oracle: Oracle, kind: str, topology: Any, config: Dict[str, Any], differing: Any, is_clipped: bool
) -> None:
    micro_steps = config.get("micro_steps", 1)
    if micro_steps > 1 and is_clipped:
        pytest.skip("the norm is that of the mean so far: docs/gradient_accumulation.md")
    expected = oracle.plain(_show, kind=kind, is_clipped=is_clipped, micro_steps=micro_steps).results
    answer = oracle.plan(topology, _show, kind=kind, is_clipped=is_clipped, **config)[0]
    (names,) = expected["names"]
    values = expected.keys() & answer.results.keys() - {"names", "said"}
    wrong = {name for name in values if not np.allclose(answer.results[name], expected[name], rtol=1e-5)}
    said = "\n".join(line for line in answer.results["said"][0].splitlines() if NOT_OF_ONE_DEVICE in line)
    told = {name for name, tensor in names.items() if f"gives `{tensor}`" in said}
    told.update(["summary"] if f"shows `{names['norm']}`" in said else [])
    told.update(["late"] if "gives `late:0`" in said or "gives `late/Squeeze:0`" in said else [])
    assert wrong <= told, said
    if differing is not None:
        assert wrong - {"clipped"} == set(differing), said


# ---- What is written of them.

_RATES = ["rate of norm", "rate of loss"]


def _write(ctx: Context, kind: str, what: str, **config: Any) -> None:
    """Trains two steps; the rate is made of the norm or the loss; a variable is written from the norm, or gradients."""
    x, y, loss = _model(ctx, kind, **config)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients = [gradient for gradient, _ in optimizer.compute_gradients(loss)]
    norm = tf.global_norm(gradients)
    rate = {"rate of norm": 0.1 / (1.0 + norm), "rate of loss": 0.1 * loss}.get(what, 0.1)
    optimizer = tf.train.MomentumOptimizer(rate, 0.9) if what in _RATES else optimizer
    variables, more = tf.trainable_variables(), tf.no_op()
    if what == "average of norm":
        average = tf.get_variable("average", initializer=0.0, trainable=False)
        more = average.assign(0.9 * average + 0.1 * norm)
    if what == "sums by hand":
        zeros = [np.zeros(one.shape, np.float32) for one in variables]
        sums = [tf.get_variable(f"own_sum{at}", initializer=one, trainable=False) for at, one in enumerate(zeros)]
        added = [one.assign_add(gradient) for one, gradient in zip(sums, gradients)]
        with tf.control_dependencies(added):
            gradients = [one.read_value() for one in sums]
    train_op = optimizer.apply_gradients(zip(gradients, variables))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(2):
            feed = {x: ctx.step_rows(samples().x, step), y: ctx.step_rows(samples().y, step)}
            sess.run([loss, train_op, more], feed)
        kept = [one for one in tf.global_variables() if not one.op.name.startswith("own_sum")]
        ctx.record(**{one.op.name: sess.run(one) for one in kept})


@pytest.mark.parametrize(
    "kind,topology,config,what,told",
    [
        *[("one", (1, 2), {}, rate, "writes `hidden/kernel`, `hidden/bias`") for rate in _RATES],
        *[("one", (1, 2), {"zero__level": "v1"}, rate, "writes `hidden/kernel`, `hidden/bias`") for rate in _RATES],
        ("one", (1, 2), {}, "average of norm", "writes `average`"),
        ("one", (1, 2), {}, "sums by hand", ""),
        ("one", (1, 2), _CLIP_AFTER, "rate of norm", ""),
        ("one", (1, 2), _CLIP_AFTER, "average of norm", ""),
        ("stages", (1, 2), {"pipeline__num_micro_batch": 4}, "rate of loss", ""),
        ("stages", (1, 2), {"pipeline__num_micro_batch": 4}, "rate of norm", ""),
        ("stages", (1, 4), {"pipeline__num_micro_batch": 2}, "rate of norm", "writes `hidden/kernel`, `hidden/bias`"),
    ],
)
def test_what_is_written_of_gradients_is_that_of_one_device_or_told(
    oracle: Oracle, kind: str, topology: Any, config: Dict[str, Any], what: str, told: str
) -> None:
    expected = oracle.plain(_write, kind=kind, what=what).results
    answer = oracle.plan(topology, _write, kind=kind, what=what, **config)[0]
    wrong: List[str] = [
        name for name in expected if not np.allclose(answer.results[name], expected[name], rtol=1e-5, atol=1e-7)
    ]
    assert bool(wrong) == bool(told)
    said = [line for line in answer.log.splitlines() if NOT_OF_ONE_DEVICE in line]
    assert [told in line for line in said] == ([True] if told else [])
