"""Models whose plan the planner finds: `auto.planner` "search", `auto.balance` "speed"; one device has all rows."""

import contextlib
from typing import Any, Iterator, Sequence

import tensorflow.compat.v1 as tf

from tests.parity.context import GLOBAL_BATCH, STEPS, Context
from tests.parity.scripts.data import CLASSES, FEATURES, TOKENS, samples
from tests.parity.scripts.models import MODELS, OPTIMIZERS, cross_entropy, dense
from tests.parity.scripts.splits import minimize


@contextlib.contextmanager
def plan_of(ways: Sequence[str], group: int, zero: str) -> Iterator[None]:
    """A search takes the plan whose blocks are computed in these ways, whatever it costs."""
    from epl.planner.search import by_blocks, decision

    def take(base: Any, plans: Any, balance: Any, simulate: Any, *_: Any) -> by_blocks.BlockResult:
        plan = by_blocks.BlockPlan(tuple(ways), group, False, zero)
        assert len(plans.blocks) == len(ways)
        found = by_blocks._compared("the plan", plan, plans, balance, simulate)
        assert found.outcome is not None, found.refusal
        return by_blocks.BlockResult((found._replace(outcome=found.outcome._replace(seconds=1e-12)),), "")

    search, decision.search_blocks = decision.search_blocks, take
    try:
        yield
    finally:
        decision.search_blocks = search


def by_ways(ctx: Context, ways: Sequence[str] = (), zero: str = "", plan_file: str = "", **config: Any) -> None:
    """Two branches of two layers and a head, of five blocks, by these ways or by a saved plan; records the strategy."""
    ctx.init(annotate=False, auto__plan_file=plan_file, auto__rows=GLOBAL_BATCH, **config)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    y = tf.placeholder(tf.int32, [None], "y")
    tops = [dense(dense(x, 12, f"{name}0", tf.nn.tanh), 8, f"{name}1", tf.nn.tanh) for name in "ab"]
    loss = cross_entropy(y, dense(tops[0] * tops[1], CLASSES, "out"))
    with plan_of(ways, ctx.workers * ctx.devices, zero) if ctx.planned and ways else contextlib.ExitStack():
        train_op = minimize(OPTIMIZERS["momentum"](), loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: ctx.step_rows(samples().x, step), y: ctx.step_rows(samples().y, step)}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)
    if ctx.planned:
        from epl.ir.graph import Graph
        from epl.parallel.plan import strategy

        ctx.record(strategy=strategy.to_json(Graph.get().state_of(strategy.Strategy)))


def fed(ctx: Context, name: str, rows: int, planned_rows: int = 0, dtype: str = "float32", **config: Any) -> None:
    """Trains without annotation on what is fed: rows of all workers, of which each takes what the planner gives it.

    The model computes in `dtype`: in float32 the last bits depend on which rows are added up first.
    """
    ctx.init(annotate=False, auto__rows=planned_rows or rows, **config)
    x = tf.placeholder(tf.float32, [None, FEATURES], "x")
    ids = tf.placeholder(tf.int32, [None, TOKENS], "ids")
    y = tf.placeholder(tf.int32, [None], "y")
    loss = MODELS[name](tf.cast(x, dtype), ids, y)
    own = rows
    if ctx.planned:
        import epl

        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        train_op = minimize(OPTIMIZERS["momentum"](), loss)
        own = epl.local_rows(rows)
        assert ctx.workers == 1 or own != rows / 2  # two workers of different speed
    else:
        train_op = minimize(OPTIMIZERS["momentum"](), loss)
    first = rows - own if ctx.worker else 0
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for begin in range(0, len(samples().y), rows):
            part = slice(begin + first, begin + first + own)
            feed = {tensor: values[part] for tensor, values in zip((x, ids, y), samples())}
            ctx.record(loss=sess.run([loss, train_op], feed)[0])
        ctx.record_variables(sess)
