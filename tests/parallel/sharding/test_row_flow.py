"""The flow of rows says of each value whether it is of all rows, of each row, or of one replica's rows."""

from typing import Any, Callable, Dict, List

import pytest
import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.sharding.row_flow import Flow, RowFlow, rows


@pytest.fixture(autouse=True)
def fresh_graph() -> Any:
    with tf.Graph().as_default():
        yield


def _follow(build: Callable[[tf.Tensor], tf.Tensor]) -> Dict[str, Any]:
    """The flow of what is built of rows, and the types of the ops that mix them."""
    x = tf.placeholder(tf.float32, [None, 4])
    result = build(x)
    view = GraphView(tf.get_default_graph())
    found = RowFlow(tf.get_default_graph(), view, set(range(len(view))), {(view.index[x.op.name], 0): rows()})
    flow: Flow = found.of((view.index[result.op.name], result.value_index))
    mixing: List[str] = [view.types[node] for node in found.mixing]
    return {"kind": flow.kind, "degree": flow.degree, "dim": flow.dim, "mixing": mixing}


def _weights(x: tf.Tensor) -> tf.Tensor:
    """A tensor of the graph that holds no rows."""
    try:
        return x.graph.get_tensor_by_name("weights:0")
    except KeyError:
        return tf.placeholder(tf.float32, [4], "weights")


def _mean_by(size: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """The sum over rows, divided by a size."""
    return lambda x: tf.reduce_sum(x) / tf.cast(size(x), tf.float32)


def test_statistics_of_as_many_channels_as_rows_are_no_rows() -> None:
    maps = tf.placeholder(tf.float32, [6, 2, 2, 6])
    y, mean, _ = tf.nn.fused_batch_norm(maps, tf.ones([6]), tf.ones([6]))
    view = GraphView(maps.graph)
    node = view.index[maps.op.name]
    found = RowFlow(maps.graph, view, set(range(len(view))), {(node, 0): rows()})
    flows = [found.of((view.index[one.op.name], one.value_index)).kind for one in (y, mean)]
    assert flows == ["rows", "own"]


def _edges_of_each(x: tf.Tensor) -> tf.Tensor:
    """Sums, for each row, of some of its values: the number of its row is picked with each."""
    places = tf.tile(tf.range(tf.shape(x)[0])[:, None], [1, 4])
    return tf.math.segment_sum(tf.boolean_mask(x[:, :, None], x > 0), tf.boolean_mask(places, x > 0))


def _number_of(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(x)[0], tf.float32)


@pytest.mark.parametrize(
    "build, kind, dim, degree",
    [
        (lambda x: tf.nn.relu(tf.matmul(x, tf.ones([4, 3]))), "rows", 0, 0),
        (tf.transpose, "rows", 1, 0),
        (lambda x: tf.reshape(x, [-1, 2]), "rows", 0, 0),
        (lambda x: tf.reduce_sum(x, 1), "rows", 0, 0),
        (tf.reduce_sum, "partial", -1, 1),
        (tf.reduce_mean, "partial", -1, 0),
        (lambda x: 0.1 * tf.reduce_mean(x) + tf.nn.l2_loss(tf.ones([3])), "partial", -1, 0),
        (_number_of, "count", -1, 1),
        (_edges_of_each, "rows", 0, None),
        (lambda x: tf.reduce_sum(x) / _number_of(x), "partial", -1, 0),
        (lambda x: tf.reduce_sum(x / _number_of(x)), "partial", -1, 0),
        (lambda x: tf.reduce_sum(tf.ones_like(x)), "count", -1, 1),
        (lambda x: tf.shape(x)[1] * 2, "same", -1, 0),
        (lambda x: tf.ones([3]), "same", -1, 0),
        (lambda x: tf.gradients(tf.reduce_sum(tf.sin(x) * x * 2), [x])[0], "rows", 0, 0),
        (lambda x: tf.gradients(tf.reduce_sum(x * _weights(x)), [_weights(x)])[0], "partial", -1, 1),
    ],
)
def test_what_is_exact_mixes_nothing(build: Any, kind: str, dim: int, degree: int) -> None:
    assert _follow(build) == {"kind": kind, "dim": dim, "degree": degree, "mixing": []}


@pytest.mark.parametrize(
    "size",
    [
        lambda x: tf.shape(x[:, 0])[-1],
        lambda x: tf.shape(x)[-2],
        lambda x: tf.shape(x)[:-1][0],
        lambda x: tf.shape(x)[-2:][0],
        lambda x: tf.shape(x)[::-1][1],
        lambda x: tf.reduce_prod(tf.shape(x)[:-1]),
        lambda x: tf.reduce_prod(tf.shape(x)),
        lambda x: tf.cast(tf.shape(x), tf.float32)[-2],
        lambda x: tf.gather(tf.shape(x), 0),
        lambda x: tf.gather(tf.shape(x), [1, 0])[1],
        lambda x: tf.slice(tf.shape(x), [0], [1])[0],
        lambda x: tf.split(tf.shape(x), 2)[0][0],
        lambda x: tf.split(tf.shape(x), [1, -1])[0][0],
        lambda x: tf.unstack(tf.shape(x))[0],
    ],
)
def test_the_number_of_rows_is_found_in_a_shape(size: Any) -> None:
    found = _follow(size)
    assert (found["kind"], found["dim"], found["degree"]) == ("count", -1, 1)
    found = _follow(_mean_by(size))
    assert (found["kind"], found["degree"], found["mixing"]) == ("partial", 0, [])


@pytest.mark.parametrize(
    "size, kind",
    [
        (lambda x: tf.shape(x)[-1], "same"),
        (lambda x: tf.shape(x)[1:][0], "same"),
        (lambda x: tf.shape(x)[-1:][0], "same"),
        (lambda x: tf.reduce_prod(tf.shape(x)[1:]), "same"),
        (lambda x: tf.gather(tf.shape(x), 1), "same"),
        (lambda x: tf.unstack(tf.shape(x))[1], "same"),
        (lambda x: tf.split(tf.shape(x), 2)[1][0], "same"),
        (lambda x: tf.shape(x)[tf.placeholder(tf.int32, [])], "count"),
        (lambda x: tf.concat([[4], tf.shape(x)], 0)[0], "count"),
        (lambda x: tf.reduce_max(tf.shape(x)), "count"),
    ],
)
def test_another_size_of_a_shape_is_not_the_number_of_rows(size: Any, kind: str) -> None:
    assert _follow(size)["kind"] == kind
    assert _follow(_mean_by(size))["degree"] != 0


@pytest.mark.parametrize(
    "build, mixing",
    [
        (lambda x: tf.reduce_sum(x) / tf.reduce_sum(tf.abs(x)), "RealDiv"),
        (lambda x: tf.matmul(x, x, transpose_b=True), "MatMul"),
        (lambda x: x[:, None] - x[None], "Sub"),
        (lambda x: x - tf.reduce_mean(x, 0), "Sub"),
        (lambda x: tf.reduce_max(x), "Max"),
        (lambda x: tf.reduce_mean(x) ** 2, "Pow"),
        (lambda x: tf.cumsum(x, 0), "Cumsum"),
        (lambda x: tf.reduce_mean(tf.gather(x, tf.where(x[:, 0] > 0)[:, 0])), "Mean"),
    ],
)
def test_what_mixes_rows_is_found(build: Any, mixing: str) -> None:
    assert _follow(build)["mixing"] == [mixing]


def test_numbers_of_rows_that_labels_pick_are_labels() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        numbers, labels = tf.range(tf.shape(x)[0]), tf.cast(x[:, 0], tf.int32)
        return tf.math.unsorted_segment_sum(x, tf.gather(numbers, labels), tf.shape(x)[0])

    assert _follow(build)["kind"] == "partial"


def test_sums_over_rows_are_one_value_for_each_column() -> None:
    covariance = _follow(lambda x: tf.matmul(x, x, transpose_a=True))
    assert (covariance["kind"], covariance["degree"], covariance["mixing"]) == ("partial", 1, [])


@pytest.mark.parametrize("shape", [[4, -1], [2, -1, 4], [4, -1, 1]])
def test_rows_of_unknown_number_are_in_no_dimension_of_known_size(shape: List[int]) -> None:
    assert _follow(lambda x: tf.reshape(x, shape))["kind"] == "unknown"


def test_a_loop_hides_what_it_does_and_mixes_nothing() -> None:
    found = _follow(lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * 2), [0, x])[1])
    assert found["kind"] in ("rows", "unknown") and found["mixing"] == []
