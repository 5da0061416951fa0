"""`io.slicing` in a real job: every worker reads its own files, and its replicas share them."""

import os
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.parity.oracle import Oracle

FILES, LINES = 4, 6


def _read(ctx: Context, folder: str) -> None:
    ctx.init(io__slicing=True)
    import epl

    names = [os.path.join(folder, f"part{i}.txt") for i in range(FILES)]
    lines = tf.data.TextLineDataset(names).map(lambda line: tf.strings.to_number(line))
    iterator = lines.batch(2).make_initializable_iterator()
    x = iterator.get_next()
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(weight * x))
    epl.add_to_collection(x, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(iterator.initializer)
        read = []
        try:
            while True:
                read.extend(sess.run([x, train_op])[0].tolist())
        except tf.errors.OutOfRangeError:
            ctx.record(read=read)


@pytest.mark.parametrize("topology", [(2, 1), (2, 2)], ids=str)
def test_every_worker_reads_its_own_files(oracle: Oracle, topology: Any, tmp_path: Any) -> None:
    for i in range(FILES):
        with open(str(tmp_path / f"part{i}.txt"), "w") as out:
            out.writelines(f"{100 * i + line}\n" for line in range(LINES))
    answers = oracle.plan(topology, _read, folder=str(tmp_path))
    read = [answer.results["read"][0] for answer in answers]
    everything = {100.0 * i + line for i in range(FILES) for line in range(LINES)}
    assert all(len(rows) == FILES // 2 * LINES for rows in read)
    assert set(read[0]).isdisjoint(read[1]) and set(read[0]) | set(read[1]) == everything
