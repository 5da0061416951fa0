"""A script of several workers that saves, trains on and goes back to what it saved."""

import tensorflow.compat.v1 as tf

from tests.behaviour.small import Small, error_of
from tests.parity.context import STEPS, Context
from tests.parity.oracle import Oracle


def _goes_back(ctx: Context) -> None:
    ctx.init()
    small, saver = Small(), tf.train.Saver()
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            if step == 1:
                path = saver.save(sess, ctx.directory + "/best")
            if step == 3:
                if path is None:
                    ctx.record(error=error_of(saver.restore, sess, path))
                saver.restore(sess, ctx.directory + "/best")
            ctx.record(loss=sess.run([small.loss, small.train_op], small.feed(ctx, step))[0])
        ctx.record_variables(sess)


def test_a_worker_that_restores_what_it_has_not_saved_is_told(oracle: Oracle) -> None:
    _, answer = oracle.check((2, 1), _goes_back)
    (error,) = answer.results["error"]
    assert "ValueError" in error and "Saver.restore got None in worker 1" in error
