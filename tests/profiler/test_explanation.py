"""What an explanation says of small models: TaskGraphs, FLOPs, communication, memory; and how it is shown."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.ir.taskgraph import Phase
from epl.profiler.explanation import explanation
from epl.profiler.explanation_report import describe
from tests.parallel.in_process import Linear, error_text
from tests.parallel.pipelines import begin, no_stage, stage

WIDTH, ROWS = 64, 32
PARAMETERS = WIDTH * WIDTH + WIDTH
MATMUL = 2 * ROWS * WIDTH * WIDTH  # of a batch and the weights of a layer


class Wide:
    """Two dense layers, each in a scope, the first of 64 units."""

    def __init__(self, first=no_stage, second=no_stage, units=WIDTH):
        self.x = tf.placeholder(tf.float32, [None, WIDTH], "x")
        with first():
            hidden = tf.layers.dense(self.x, WIDTH, tf.nn.relu)
        with second():
            self.loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, units)))
        self.train_op = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)

    def explained(self, rows=ROWS):
        return explanation(self.train_op, {self.x: tf.TensorShape([rows, WIDTH])})


def collectives(found):
    """Kind -> (bytes, sent) of the largest of its rows."""
    rows = {}
    for one in sorted(found.collectives, key=lambda one: one.bytes):
        rows[one.kind] = (one.bytes, one.sent)
    return rows


def test_taskgraphs_of_a_pipeline(init):
    begin(init, 2, 4)
    first, second = Wide(stage, stage).explained(2 * ROWS).taskgraphs  # two micro batches on each of two replicas
    task = "/job:worker/replica:0/task:0/device:CPU:"
    assert (first.devices, second.devices) == ((task + "0", task + "2"), (task + "1", task + "3"))
    for index, one in enumerate((first, second)):
        assert (one.index, one.strategy, one.stage) == (index, "replicate(1)", index)
        assert (one.parameters, one.bytes) == (PARAMETERS, 4 * PARAMETERS)
        assert one.ops > 5 and one.flops[Phase.FORWARD] == pytest.approx(MATMUL, rel=0.05)
        assert one.flops[Phase.APPLY] == 2 * PARAMETERS
        # By weights, and by inputs where these are not data: TensorFlow does not compute what no op takes.
        assert one.flops[Phase.BACKWARD] == pytest.approx((1 + index) * MATMUL, rel=0.05)


def test_flops_are_those_of_all_micro_batches_of_a_replica(init):
    begin(init, 4, 2)
    (first, _) = Wide(stage, stage).explained(ROWS).taskgraphs
    assert first.flops[Phase.FORWARD] == pytest.approx(MATMUL, rel=0.05) and first.flops[Phase.APPLY] == 2 * PARAMETERS


def test_a_pipeline_moves_activations_and_their_gradients(init):
    begin(init, 2, 2)
    there, back = Wide(stage, stage).explained().transfers
    assert [(one.source[-5:], one.target[-5:]) for one in (there, back)] == [("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")]
    activations = 4 * ROWS * WIDTH
    assert activations <= there.bytes < 1.1 * activations and activations <= back.bytes < 1.1 * activations
    assert there.tensors >= 2 and back.tensors >= 2  # one of each micro batch


@pytest.mark.parametrize("devices, sent", [(2, 1.0), (4, 1.5)])
def test_replicas_reduce_their_gradients(init, devices, sent):
    init(devices)
    found = Wide().explained()
    gradients = [one for one in found.collectives if one.kind == "all_reduce" and "apply0" in one.communicator]
    assert {one.ranks for one in gradients} == {devices} and found.transfers == ()
    total = sum(one.bytes for one in gradients)
    assert 8 * PARAMETERS <= total < 8 * PARAMETERS + 100  # and the counts of rows
    assert sum(one.sent for one in gradients) == pytest.approx(sent * total)


def test_zero_scatters_gradients_and_gathers_weights(init):
    init(4, zero__level="v1")
    found = Wide().explained()
    kernels = 2 * 4 * WIDTH * WIDTH
    assert collectives(found)["reduce_scatter"][0] >= kernels and collectives(found)["all_gather"][0] >= kernels
    for kind in ("reduce_scatter", "all_gather"):
        size, sent = collectives(found)[kind]
        assert sent == pytest.approx(0.75 * size)
    assert found.taskgraphs[0].parameters == 2 * PARAMETERS  # of full variables


def test_a_split_has_full_parameters_and_the_flops_of_one_device(init):
    init(2, annotate=False, cluster__colocate_split_and_replicate=True)
    found = Wide(lambda: epl.replicate(1), lambda: epl.split(2), 64 * WIDTH).explained()
    first, second = found.taskgraphs
    assert (first.strategy, second.strategy) == ("replicate(1)", "split(2)")
    assert (first.parameters, second.parameters) == (PARAMETERS, 64 * PARAMETERS)
    assert first.flops[Phase.FORWARD] == pytest.approx(MATMUL / 2, rel=0.05)  # half of the rows
    assert second.flops[Phase.FORWARD] == pytest.approx(64 * MATMUL / 2, rel=0.1)  # half of the columns
    assert found.collectives and all(one.ranks == 2 for one in found.collectives)
    assert any(line.startswith("Features:") for line in describe(found).splitlines())


def test_a_split_in_a_replica_names_both(init):
    begin(init, 1, 2)
    x = tf.placeholder(tf.float32, [None, WIDTH])
    with epl.replicate(2):
        hidden = tf.layers.dense(x, WIDTH)
        with epl.split(2):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, WIDTH)))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert [one.strategy for one in explanation().taskgraphs] == ["replicate(2)", "split(2) in replicate(2)"]


def test_ops_in_half_precision_count(init):
    init(2, amp__level="O1")
    (found,) = Wide().explained().taskgraphs
    assert found.flops[Phase.FORWARD] == pytest.approx(2 * MATMUL / 2, rel=0.1)  # half of the rows on each device


def test_memory_is_that_of_the_estimate(init):
    init(2)
    found = Wide().explained()
    assert [one.weights for one in found.memory.devices] == [8 * PARAMETERS] * 2


def test_a_single_device_communicates_nothing(init):
    init(1)
    found = Wide().explained()
    assert (found.collectives, found.transfers) == ((), ()) and found.taskgraphs[0].parameters == 2 * PARAMETERS
    text = describe(found)
    assert "Collectives" not in text and "Schedule" not in text and "Features" not in text


def test_the_training_op_is_found(init):
    init(2)
    model = Wide()
    assert explanation() == explanation(model.train_op)
    assert "count as 32" in explanation().memory.notes[0]


def test_without_an_optimizer_the_gradients_are_explained(init):
    init(2)
    model = Linear()
    tf.gradients(model.loss, model.w)
    (found,) = explanation().taskgraphs
    assert found.flops[Phase.BACKWARD] > 0 and found.flops[Phase.APPLY] == 0


def test_an_explained_model_trains_as_without(init):
    losses = []
    for explains in (False, True):
        init(2)
        model = Linear()
        model.minimize()
        if explains:
            explanation()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            if explains:
                explanation(model.train_op, model.feed())
            losses.append([session.run([model.loss, model.train_op], model.feed())[0] for _ in range(3)])
    np.testing.assert_array_equal(*losses)


@pytest.mark.parametrize("annotate, trains", [(False, True), (True, False)])
def test_there_is_nothing_to_explain(init, annotate, trains):
    init(2, annotate=annotate)
    model = Linear()
    if trains:
        model.minimize()
    assert error_text(epl.explain).startswith("AnnotationError: There is nothing to explain")


# What is shown.


def test_the_tables_of_a_pipeline(init, capsys):
    begin(init, 2, 4)
    model = Wide(stage, stage)
    epl.explain(model.train_op, {model.x: tf.TensorShape([2 * ROWS, WIDTH])})
    lines = capsys.readouterr().out.splitlines()
    titles = [line.split(":")[0].split(",")[0].split(" in ")[0] for line in lines if line and line[0] != " "]
    assert titles == [
        "EPL", "TaskGraphs", "Memory of a step", "Schedule PreferBackward", "Tensors between devices",
        "Collectives of a step", "Gradients and outputs", "Where ops come from",
    ]  # fmt: skip
    assert lines[0].startswith("EPL: 2 replicas x 2 stages = 1 worker x 4 devices (CPU), 2 micro batches, gradients")
    assert lines[3].split() == "strategy stage devices ops parameters MB forward backward update".split()
    assert lines[4].split()[:5] == ["0", "replicate(1)", "0", "CPU:0,", "CPU:2"] and "4,160  0.017  0.000" in lines[4]
    at = next(number for number, line in enumerate(lines) if line.startswith("Schedule"))
    assert "2 micro batches" in lines[at] and "idle 33% of a step" in lines[at]
    assert lines[at + 1 : at + 3] == [
        "  device 0 |F0|F1|..|..|B0:::|..|B1:::|",
        "  device 1 |..|F0|B0:::|F1|B1:::|..|..|",
    ]


def test_a_long_schedule_is_cut(init):
    begin(init, 32, 2)
    lines = describe(Wide(stage, stage).explained()).splitlines()
    pictures = [line for line in lines if line.startswith("  device 0 |")]
    assert len(pictures[0]) == 122 and pictures[0].endswith("...")


def test_many_devices_are_counted(init):
    init(6)
    assert "CPU:0, CPU:1, CPU:2, CPU:3, ... (6)" in describe(Wide().explained(ROWS * 6))


def test_collectives_are_added_up(init):
    init(2)
    found = Wide().explained()
    last = [line for line in describe(found).splitlines() if line.startswith("  total")][0].split()
    sent = sum(one.sent for one in found.collectives)
    assert last == ["total", str(sum(one.calls for one in found.collectives)), f"{sent / 1e6:.3f}"]
