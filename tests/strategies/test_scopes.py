"""Strategy scopes: which TaskGraph an op belongs to, and what may not be nested."""

import gc
import threading
import weakref

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.utils.errors import NestingError
from tests.parallel.in_process import error_text, marks


def taskgraph(*tensors):
    """The TaskGraph of each tensor's op, as it stands in the graph."""
    return marks(TASKGRAPH_ATTR, [tensor.op for tensor in tensors])


def test_ops_belong_to_their_scope_and_those_after_it_to_the_last(init):
    init(annotate=False)
    outside = tf.constant(1)
    with epl.replicate(1):
        first = tf.constant(1)
    with epl.replicate(1):
        second = tf.constant(1)
    after = tf.constant(1)
    assert taskgraph(outside, first, second, after) == [None, 0, 1, 1]


def test_the_default_strategy_continues_after_a_scope(init):
    init()
    before = tf.constant(1)
    with epl.replicate(1):
        inside = tf.constant(1)
    after = tf.constant(1)
    assert taskgraph(before, inside, after) == [0, 1, 0]


def test_a_default_strategy_without_ops_begins_after_a_scope(init):
    init()
    with epl.split(1):
        inside = tf.constant(1)
    after = tf.constant(1)
    with epl.split(1):
        other = tf.constant(1)
    assert taskgraph(inside, after, other, tf.constant(1)) == [0, 1, 2, 1]
    assert [taskgraph.strategy.name_of_kind for taskgraph in Graph.get().taskgraphs] == ["split", "replicate", "split"]


def test_a_default_strategy_without_ops_is_no_taskgraph(init):
    init()
    with epl.replicate(1):
        tf.constant(1)
    assert len(Graph.get().taskgraphs) == 1


def test_entering_the_same_strategy_again_continues_its_taskgraph(init):
    init(annotate=False)
    strategy = epl.replicate(1)
    with strategy:
        first = tf.constant(1)
    with epl.replicate(1):
        other = tf.constant(1)
    with strategy:
        again = tf.constant(1)
    assert taskgraph(first, other, again) == [0, 1, 0]
    assert len(Graph.get().taskgraphs) == 2


def test_a_scope_without_ops_leaves_no_taskgraph(init):
    init(annotate=False)
    with epl.replicate(1):
        pass
    with epl.replicate(1):
        tensor = tf.constant(1)
    assert taskgraph(tensor) == [0]
    assert len(Graph.get().taskgraphs) == 1


def test_each_default_strategy_begins_a_taskgraph(init):
    init(annotate=False)
    epl.set_default_strategy(epl.replicate(1))
    first = tf.constant(1)
    epl.set_default_strategy(epl.replicate(1))
    assert taskgraph(first, tf.constant(1)) == [0, 1]


def test_a_default_strategy_without_ops_is_replaced(init):
    init(annotate=False)
    epl.set_default_strategy(epl.replicate(1))
    epl.set_default_strategy(epl.replicate(1))
    assert taskgraph(tf.constant(1)) == [0]


def test_a_new_graph_begins_with_the_default_strategy(init):
    init()
    with tf.Graph().as_default():
        tensor = tf.constant(1)
        assert len(Graph.get().taskgraphs) == 1
    assert taskgraph(tensor) == [0]


def two_stages(graph):
    """What a model function does whose stages begin with a default strategy each; returns the TaskGraph of each op."""
    with graph.as_default():
        data = tf.constant(1)
        epl.set_default_strategy(epl.replicate(1))
        first = tf.constant(1)
        epl.set_default_strategy(epl.replicate(1))
        return taskgraph(data, first, tf.constant(1))


def test_a_function_that_sets_the_default_strategy_builds_the_same_in_every_graph(init):
    init(annotate=False)
    assert two_stages(tf.Graph()) == [None, 0, 1]
    for _ in range(2):
        assert two_stages(tf.Graph()) == [0, 0, 1]  # a graph begins with a strategy, data belongs to the model


def test_a_default_strategy_set_ahead_of_all_graphs_begins_each_of_them(init):
    init()
    for _ in range(2):
        assert two_stages(tf.Graph()) == [0, 0, 1]


def stated_in_a_script_and(in_model_function, behind_weights=False, frozen=False):
    """The TaskGraphs of an Estimator's graph whose model function sets a default strategy, as the script has done."""
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        data = tf.constant(1)
        if behind_weights:
            tf.get_variable("stem", [], trainable=not frozen)
        epl.set_default_strategy(in_model_function)
        return taskgraph(step, data, tf.get_variable("w", []))


def test_a_model_function_may_state_the_strategy_of_its_script_again(init):
    init(annotate=False)
    epl.set_default_strategy(epl.replicate(4))
    for _ in range(2):
        assert stated_in_a_script_and(epl.replicate(4, name="model")) == [0, 0, 0]
    init()
    assert stated_in_a_script_and(epl.replicate()) == [0, 0, 0]


def test_a_default_strategy_behind_weights_or_of_other_devices_begins_a_taskgraph(init):
    init()
    assert stated_in_a_script_and(epl.replicate(1), behind_weights=True) == [0, 0, 1]
    assert stated_in_a_script_and(epl.replicate(1), behind_weights=True, frozen=True) == [0, 0, 1]
    assert stated_in_a_script_and(epl.replicate(2)) == [0, 0, 1]


def test_a_default_strategy_holds_in_its_own_graph(init):
    init()
    with tf.Graph().as_default():
        tf.get_variable("w", [])
        epl.set_default_strategy(epl.replicate(1))
        inner = tf.constant(1)
    with epl.replicate(1):
        tf.constant(1)
    after = tf.constant(1)
    assert taskgraph(inner) == taskgraph(after) == [1]
    assert Graph.get().taskgraphs[1].strategy is Graph.get().default_strategy


def test_a_graph_made_inside_a_scope_belongs_to_it(init):
    init(annotate=False)
    with epl.replicate(1):
        graph = tf.Graph()
        with graph.as_default():
            inside = tf.constant(1)
    with graph.as_default():
        after = tf.constant(1)
    assert taskgraph(inside, after) == [0, 0]


def test_a_scope_opened_in_another_graph_marks_that_graph_alone(init):
    init(annotate=False)
    with tf.Graph().as_default():
        with epl.replicate(1):
            inside = tf.constant(1)
    assert taskgraph(inside) == [0]
    assert Graph.get() is None or not Graph.get().taskgraphs


def test_an_error_inside_a_scope_closes_it(init):
    init(annotate=False)
    with pytest.raises(ZeroDivisionError):
        with epl.replicate(1):
            tf.constant(1)
            raise ZeroDivisionError
    assert taskgraph(tf.constant(1)) == [0]
    with epl.replicate(1):
        assert taskgraph(tf.constant(1)) == [1]


def test_a_scope_that_is_the_first_to_touch_the_default_graph_ends(init):
    init(annotate=False)
    tf.reset_default_graph()
    with epl.replicate(1):
        inside = tf.constant(1)
    assert taskgraph(inside, tf.constant(1)) == [0, 0]


@pytest.mark.parametrize(
    "outer, inner, words",
    [
        (epl.replicate, epl.replicate, "Can't nest strategies with same type"),
        (epl.split, epl.replicate, "Can't nest strategies in split strategy"),
        (epl.split, epl.split, "Can't nest strategies in split strategy"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_scopes_do_not_nest(init, outer, inner, words):
    init(annotate=False)
    with outer(1, name="outside"):
        text = error_text(inner(1, name="within").__enter__)
        assert taskgraph(tf.constant(1)) == [0]
    assert words in text and "outside" in text and "within" in text and "side by side" in text
    assert text.startswith("NestingError")


def test_a_split_in_a_scope_of_replicate(init):
    init(annotate=False)
    with epl.replicate(1) as outer:
        before = tf.constant(1)
        with epl.split(1) as inner:
            inside = tf.constant(1)
        behind = tf.constant(1)
    with epl.replicate(1):
        with epl.split(1):
            alone = tf.constant(1)
    after = tf.constant(1)
    assert taskgraph(before, inside, behind, alone, after) == [0, 1, 0, 2, 3]
    first, second, third, fourth = Graph.get().taskgraphs
    assert (first.strategy, first.outer, second.strategy, second.outer) == (outer, None, inner, outer)
    assert third.outer is fourth.strategy  # what follows is in the stage, not in the split


def test_one_split_in_two_scopes_is_two_taskgraphs(init):
    init(annotate=False)
    split = epl.split(1)
    ops = []
    for _ in range(2):
        with epl.replicate(1):
            ops.append(tf.constant(1))
            with split:
                ops.append(tf.constant(1))
    assert taskgraph(*ops) == [0, 1, 2, 3]


def test_a_graph_made_inside_nested_scopes_belongs_to_the_inner_one(init):
    init(annotate=False)
    with epl.replicate(1) as outer:
        with epl.split(1) as inner:
            graph = tf.Graph()
            with graph.as_default():
                tf.constant(1)
    (only,) = Graph.of(graph).taskgraphs
    assert (only.strategy, only.outer) == (inner, outer)


def test_no_default_strategy_inside_a_scope(init):
    init(annotate=False)
    with epl.replicate(1):
        text = error_text(epl.set_default_strategy, epl.replicate(1))
    assert text.startswith("NestingError") and "outside of any scope" in text


def test_split_is_no_default_strategy(init):
    init(annotate=False)
    assert "Only replicate is supported as default strategy" in error_text(epl.set_default_strategy, epl.split(1))


@pytest.mark.parametrize("make", [epl.replicate, epl.split])
@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_a_device_count_is_a_positive_whole_number(make, count):
    assert error_text(make, count).startswith("AnnotationError")


def test_a_scope_before_init_is_refused(init):
    assert "epl.init()" in error_text(epl.replicate(1).__enter__)
    assert "epl.init()" in error_text(epl.set_default_strategy, epl.replicate(1))


def test_a_scope_with_auto_parallel_is_refused(init):
    init(annotate=False, auto__auto_parallel=True)
    assert "auto.auto_parallel" in error_text(epl.replicate(1).__enter__)


def test_init_again_forgets_annotations(init):
    init()
    graph = tf.get_default_graph()
    tf.constant(1)
    epl.init()
    with graph.as_default():
        assert Graph.get() is None
        assert taskgraph(tf.constant(1)) == [None]


def test_strategies_are_printable(init):
    assert repr(epl.replicate(2, name="encoder")) == "epl.replicate(device_count=2, name='encoder')"


def test_a_graph_that_is_made_and_dropped_in_a_scope_does_not_outlive_it(init):
    init(annotate=False)
    with epl.split(1):
        with tf.Graph().as_default() as other:
            tf.constant(1)
        inside = tf.constant(1)
        del other
        gc.collect()
    assert taskgraph(inside) == [0]


def test_a_trained_graph_ends_with_its_last_reference(init):
    init(annotate=False)
    with tf.Graph().as_default() as other:
        with epl.replicate(1):
            loss = tf.square(tf.get_variable("w", []))
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train)
    ended, held = weakref.ref(other), len(Env.get().held)
    del other, loss, train, session
    gc.collect()
    assert ended() is None and Env.get().epl_graphs == [] and held
    Env.get().end_unused()
    assert Env.get().held == []


def test_threads_have_scopes_of_their_own(init):
    init(annotate=False)
    entered, built = threading.Event(), threading.Event()
    found = {}

    def other():
        with tf.Graph().as_default():
            entered.wait(10)
            outside = tf.constant(1)
            with epl.replicate(1):
                inside = tf.constant(1)
            found["marks"] = taskgraph(outside, inside)
        built.set()

    thread = threading.Thread(target=other)
    thread.start()
    with epl.replicate(1):
        first = tf.constant(1)
        entered.set()
        assert built.wait(10)
        second = tf.constant(1)
    thread.join()
    assert found == {"marks": [None, 0]} and taskgraph(first, second) == [0, 0]
    assert len(Graph.get().taskgraphs) == 1


def test_a_graph_of_another_thread_begins_with_the_default_strategy(init):
    init()
    found = []

    def other():
        with tf.Graph().as_default():
            found.extend(taskgraph(tf.constant(1)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [0]


def test_leaving_a_scope_that_is_not_the_innermost_is_refused(init):
    init(annotate=False)
    first, second = epl.replicate(1, name="first"), epl.split(1, name="second")
    assert "NestingError" in error_text(first.__exit__) and "no scope is open" in error_text(first.__exit__)
    with first, second:
        text = error_text(first.__exit__)
        assert "name='first') was left, and epl.split" in text and "is the innermost scope" in text
    with pytest.raises(NestingError, match="no scope is open.*call epl.init.. outside"):
        with epl.replicate(1):
            init(annotate=False)
