"""The pass of `io.slicing` on real input pipelines: which records each worker reads."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.parallel.io_slicing.rewrite import slice_inputs
from epl.utils.errors import PlanError

Dataset = tf.data.Dataset
WIDTH = 4  # bytes of a record


def record(file, line):
    return b"%02d-%d" % (file, line)


@pytest.fixture(params=[4])
def files(request, tmp_path):
    """Text files of two lines each; line j of file i is `record(i, j)`."""
    return make_files(tmp_path, request.param)


def make_files(folder, count):
    names = []
    for i in range(count):
        names.append(str(folder / f"part-{i:02d}"))
        with open(names[-1], "wb") as stream:
            stream.write(b"".join(record(i, j) + b"\n" for j in range(2)))
    return names


def as_tfrecords(names):
    """Writes the lines of text files as TFRecord files beside them; returns their names."""
    for name in names:
        with open(name, "rb") as text, tf.io.TFRecordWriter(name + ".tfrecord") as writer:
            for line in text.read().split():
                writer.write(line)
    return [name + ".tfrecord" for name in names]


def lines_of(*indices):
    return sorted(record(i, j) for i in indices for j in range(2))


def everything(session, fetch):
    values = []
    try:
        while len(values) < 100:
            values.append(session.run(fetch))
    except tf.errors.OutOfRangeError:
        return values
    raise AssertionError(f"the input does not end: {values}")


def read(build, replicas=(1, 1), worker=0, unbalanced=False, drop_last=False, one_shot=False):
    """Builds a dataset, slices the graph and returns (elements read, log lines)."""
    with tf.Graph().as_default() as graph:
        dataset = build()
        iterator = dataset.make_one_shot_iterator() if one_shot else dataset.make_initializable_iterator()
        element = iterator.get_next()
        log = slice_inputs(graph, replicas, worker, unbalanced, drop_last)
        with tf.Session() as session:
            if not one_shot:
                session.run(iterator.initializer)
            return everything(session, element), log


FORMS = {
    "slices_interleave": lambda f: (
        Dataset.from_tensor_slices(f).shuffle(9).interleave(tf.data.TextLineDataset, cycle_length=2)
    ),
    "slices_parallel_interleave": lambda f: Dataset.from_tensor_slices(f).apply(
        tf.data.experimental.parallel_interleave(tf.data.TextLineDataset, 2)
    ),
    "slices_interleave_calls": lambda f: Dataset.from_tensor_slices(f).interleave(
        tf.data.TextLineDataset, cycle_length=2, num_parallel_calls=2
    ),
    "slices_batch_flat_map": lambda f: Dataset.from_tensor_slices(f).batch(3).flat_map(tf.data.TextLineDataset),
    "list_files": lambda f: Dataset.list_files(os.path.dirname(f[0]) + "/part-*").flat_map(tf.data.TextLineDataset),
    "list_files_of_patterns": lambda f: Dataset.list_files(
        [f[0][:-1] + "[01]", f[0][:-1] + "[23]"], shuffle=False
    ).flat_map(tf.data.TextLineDataset),
    "text_line": tf.data.TextLineDataset,
    "text_line_parallel": lambda f: tf.data.TextLineDataset(f, num_parallel_reads=2),
    "tfrecord": lambda f: tf.data.TFRecordDataset(as_tfrecords(f)),
    "tfrecord_parallel": lambda f: tf.data.TFRecordDataset(as_tfrecords(f), num_parallel_reads=2),
    "fixed_length": lambda f: tf.data.FixedLengthRecordDataset(f, WIDTH + 1).map(lambda r: tf.strings.substr(r, 0, 4)),
    "csv": lambda f: tf.data.experimental.CsvDataset(f, [tf.string]).map(lambda r: r),
    "constant_tensor": lambda f: tf.data.TextLineDataset(tf.concat([tf.constant(f[:2]), tf.stack(f[2:])], 0)),
    "joined_path": lambda f: Dataset.from_tensor_slices([os.path.basename(name) for name in f]).flat_map(
        lambda name: tf.data.TextLineDataset(tf.strings.join([os.path.dirname(f[0]), name], "/"))
    ),
    "read_file": lambda f: Dataset.from_tensor_slices(f).flat_map(
        lambda name: Dataset.from_tensor_slices(tf.strings.split([tf.read_file(name)]).values)
    ),
    "list_inside_a_function": lambda f: Dataset.range(1).flat_map(lambda _: tf.data.TextLineDataset(f)),
    "captured_list": lambda f: _captured(f),
}


def _captured(names):
    constant = tf.constant(names)
    return Dataset.range(1).flat_map(lambda _: tf.data.TextLineDataset(constant))


def first_elements(values):
    return sorted(value[0] if isinstance(value, tuple) else value for value in values)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("worker", [0, 1])
def test_every_form_of_list(files, form, worker):
    values, log = read(lambda: FORMS[form](files), worker=worker)
    assert first_elements(values) == lines_of(worker, worker + 2)
    assert len(log) == 1 and f"worker {worker} of 2 reads 2" in log[0]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_of_list_by_one_shot_iterator(files, form):
    values, log = read(lambda: FORMS[form](files), worker=1, one_shot=True)
    assert first_elements(values) == lines_of(1, 3)
    assert len(log) == 1


def test_an_empty_file_gives_no_lines(files):
    open(files[1], "w").close()
    for worker, expected in ((0, lines_of(0, 2)), (1, lines_of(3))):
        values, _ = read(lambda: tf.data.TextLineDataset(files), worker=worker)
        assert first_elements(values) == expected


def test_two_lists_in_one_dataset_are_divided_each(files):
    values, log = read(lambda: tf.data.TextLineDataset(files).concatenate(tf.data.TextLineDataset(files)))
    assert sorted(values) == sorted(lines_of(0, 2) * 2)
    assert len(log) == 2


@pytest.mark.grid
@pytest.mark.parametrize("files", [6, 7, 2], indirect=True)
@pytest.mark.parametrize("replicas", [(1, 1), (2, 1), (2, 2, 2), (4, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_records_are_read_once_over_all_workers(files, replicas, drop_last):
    seen = []
    for worker in range(len(replicas)):
        values, _ = read(lambda: tf.data.TextLineDataset(files), replicas, worker, not drop_last, drop_last)
        seen.append(sorted(values))
    parts = {(1, 1): 2}.get(replicas, 3)
    if len(files) < parts:
        assert seen[0] == sorted(lines_of(*range(len(files))) * (2 if replicas[0] > replicas[-1] else 1))
    else:
        kept = len(files) - len(files) % parts if drop_last else len(files)
        assert sorted(sum(seen, [])) == lines_of(*range(kept))


@pytest.mark.parametrize("files", [3], indirect=True)
def test_uneven_list_stays_whole_and_says_so(files):
    values, log = read(lambda: tf.data.TextLineDataset(files))
    assert sorted(values) == lines_of(0, 1, 2)
    assert "3 files do not divide evenly into 2 parts" in log[0] and "io.drop_last_files" in log[0]


def test_single_file_is_read_by_all(files):
    values, log = read(lambda: tf.data.TextLineDataset(files[0]), worker=1)
    assert sorted(values) == lines_of(0)
    assert "1 files cannot be divided into 2 parts" in log[0]


def test_single_file_is_repeated_for_more_replicas(files):
    values, _ = read(lambda: tf.data.TextLineDataset(files[0]), replicas=(1, 2), worker=1)
    assert sorted(values) == sorted(lines_of(0) * 2)


def test_list_in_a_tensor_of_rank_two(files):
    values, _ = read(lambda: tf.data.TextLineDataset(np.reshape(files, [2, 2])), worker=1)
    assert sorted(values) == lines_of(1, 3)


# Lists in step with the files.


def first_line(name):
    return tf.strings.substr(tf.read_file(name), 0, WIDTH)


@pytest.mark.parametrize("one_shot", [False, True])
def test_labels_follow_their_files(files, one_shot):
    def build():
        return Dataset.from_tensor_slices((files, [10, 11, 12, 13])).map(lambda f, label: (first_line(f), label))

    values, _ = read(build, worker=1, one_shot=one_shot)
    assert values == [(record(1, 0), 11), (record(3, 0), 13)]


def test_labels_zipped_with_names_follow(files):
    def build():
        labels = Dataset.from_tensor_slices(np.arange(8).reshape(4, 2))
        return Dataset.zip((Dataset.from_tensor_slices(files), labels)).map(lambda f, label: (first_line(f), label))

    values, _ = read(build, worker=1)
    assert [(name, list(label)) for name, label in values] == [(record(1, 0), [2, 3]), (record(3, 0), [6, 7])]


def test_two_file_lists_zipped_stay_in_step(files):
    def build():
        return Dataset.zip((tf.data.TextLineDataset(files), tf.data.TextLineDataset(tf.constant(files))))

    values, log = read(build, worker=1)
    assert [a for a, _ in values] == [b for _, b in values] == lines_of(1, 3)
    assert len(log) == 2


def test_numbered_records(files):
    values, _ = read(lambda: tf.data.TextLineDataset(files).apply(tf.data.experimental.enumerate_dataset()), worker=1)
    assert values == list(enumerate(lines_of(1, 3)))


@pytest.mark.parametrize("one_shot", [False, True])
def test_records_zipped_with_undivided_labels_are_refused(files, one_shot):
    def build():
        return Dataset.zip((tf.data.TextLineDataset(files), Dataset.from_tensor_slices(np.arange(8))))

    with pytest.raises(PlanError, match="zip"):
        read(build, one_shot=one_shot)


def test_records_of_a_list_inside_a_function_zipped_with_undivided_labels_are_refused(files):
    def build():
        return Dataset.zip((FORMS["list_inside_a_function"](files), Dataset.from_tensor_slices(np.arange(8))))

    with pytest.raises(PlanError, match="zip"):
        read(build)


def test_names_in_step_with_a_fed_tensor_are_refused(files):
    with pytest.raises(PlanError, match="in step with"):
        read(lambda: Dataset.from_tensor_slices((files, tf.placeholder(tf.int32, [4]))).map(
            lambda f, label: (first_line(f), label)))  # fmt: skip


# Strings that are no file lists.


def test_strings_that_no_reader_opens_stay_whole():
    values, log = read(lambda: Dataset.from_tensor_slices(["cat", "dog"]).map(tf.identity))
    assert values == [b"cat", b"dog"]
    assert len(log) == 1 and "nothing to slice" in log[0]


def test_class_names_beside_a_reader_stay_whole(files):
    def build():
        names = tf.constant(["cat", "dog", "cow", "hen"])
        return tf.data.TextLineDataset(files).map(lambda line: (line, names))

    values, log = read(build)
    assert [list(names) for _, names in values] == [[b"cat", b"dog", b"cow", b"hen"]] * 4
    assert len(log) == 1


def test_the_scripts_own_tensor_keeps_the_whole_list(files):
    with tf.Graph().as_default() as graph:
        names = tf.constant(files)
        element = tf.data.TextLineDataset(names).make_one_shot_iterator().get_next()
        iterator = tf.data.TextLineDataset(names).make_initializable_iterator()
        slice_inputs(graph, (1, 1), 0, False, False)
        with tf.Session() as session:
            session.run(iterator.initializer)
            assert len(session.run(names)) == 4
            assert sorted(everything(session, element)) == lines_of(0, 2)
            assert sorted(everything(session, iterator.get_next())) == lines_of(0, 2)


def test_list_with_two_readers_is_divided_once(files):
    def build():
        names = Dataset.from_tensor_slices(files)
        return names.flat_map(tf.data.TextLineDataset).concatenate(names.flat_map(tf.data.TextLineDataset))

    values, log = read(build, worker=1)
    assert sorted(values) == sorted(lines_of(1, 3) * 2)
    assert len(log) == 1


# Iterators.


def test_reinitializable_iterator_divides_both_datasets(files):
    with tf.Graph().as_default() as graph:
        train, test = tf.data.TextLineDataset(files), tf.data.TextLineDataset(files[2:])
        iterator = tf.data.Iterator.from_structure(train.output_types, train.output_shapes)
        starts = [iterator.make_initializer(train), iterator.make_initializer(test)]
        element = iterator.get_next()
        log = slice_inputs(graph, (1, 1), 1, False, False)
        with tf.Session() as session:
            for start, expected in zip(starts, [lines_of(1, 3), lines_of(3)]):
                session.run(start)
                assert sorted(everything(session, element)) == expected
    assert len(log) == 2


@pytest.mark.parametrize("one_shot", [False, True])
def test_names_taken_from_an_iterator_and_read_in_the_graph(files, one_shot):
    with tf.Graph().as_default() as graph:
        dataset = Dataset.from_tensor_slices((files, [0, 1, 2, 3]))
        iterator = dataset.make_one_shot_iterator() if one_shot else dataset.make_initializable_iterator()
        name, label = iterator.get_next()
        line = first_line(name)
        slice_inputs(graph, (1, 1), 1, False, False)
        with tf.Session() as session:
            if not one_shot:
                session.run(iterator.initializer)
            assert everything(session, (line, label)) == [(record(1, 0), 1), (record(3, 0), 3)]


def test_dataset_that_nothing_iterates_is_left_alone(files):
    with tf.Graph().as_default() as graph:
        tf.data.TextLineDataset(files)
        assert "nothing to slice" in slice_inputs(graph, (1, 1), 0, False, False)[0]


# Queues.


@pytest.mark.parametrize("count, words", [(3, "io.unbalanced_io_slicing"), (1, "Write the data into at least 2 files")])
def test_a_list_that_stays_whole_is_told_once_with_what_to_do(tmp_path, caplog, count, words):
    for worker in range(2):
        with tf.Graph().as_default() as graph:
            tf.data.TextLineDataset(make_files(tmp_path, count)).make_one_shot_iterator().get_next()
            slice_inputs(graph, (1, 1), worker, False, False)
    (record,) = [one for one in caplog.records if one.name == "epl" and one.levelname == "WARNING"]
    assert f"every worker reads all {count} file(s) of" in record.getMessage() and words in record.getMessage()


def read_queue(build, worker=1, expected_lines=1):
    with tf.Graph().as_default() as graph:
        value = build()
        log = slice_inputs(graph, (1, 1), worker, False, False)
        assert len(log) == expected_lines
        with tf.Session() as session:
            session.run(tf.local_variables_initializer())
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            values = everything(session, value)
            coordinator.request_stop()
            coordinator.join(threads)
            return values


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("epochs", [1, 2])
def test_queue_of_names(files, shuffle, epochs):
    def build():
        return tf.TextLineReader().read(tf.train.string_input_producer(files, num_epochs=epochs, shuffle=shuffle))[1]

    assert sorted(read_queue(build)) == sorted(lines_of(1, 3) * epochs)


@pytest.mark.parametrize(
    "reader, rewrite",
    [(tf.TFRecordReader, as_tfrecords), (lambda: tf.FixedLengthRecordReader(WIDTH, footer_bytes=6), list)],
)
def test_other_readers_of_a_queue(files, reader, rewrite):
    names = rewrite(files)
    values = read_queue(lambda: reader().read(tf.train.string_input_producer(names, num_epochs=1))[1])
    assert set(values) <= set(lines_of(1, 3)) and {value[:2] for value in values} == {b"01", b"03"}


def test_queue_without_end(files):
    with tf.Graph().as_default() as graph:
        value = tf.TextLineReader().read(tf.train.string_input_producer(files))[1]
        slice_inputs(graph, (1, 1), 0, False, False)
        with tf.Session() as session:
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            values = {session.run(value) for _ in range(20)}
            coordinator.request_stop()
            coordinator.join(threads)
    assert sorted(values) == lines_of(0, 2)


def test_queue_of_names_dequeued_by_the_script(files):
    def build():
        return first_line(tf.train.string_input_producer(files, num_epochs=1, shuffle=False).dequeue())

    assert read_queue(build) == [record(1, 0), record(3, 0)]


def test_queue_of_matching_files(files):
    def build():
        names = tf.train.match_filenames_once(os.path.dirname(files[0]) + "/part-*")
        return tf.TextLineReader().read(tf.train.string_input_producer(names, num_epochs=1))[1]

    assert sorted(read_queue(build)) == lines_of(1, 3)


# What is refused.


def refused(build, *words):
    with pytest.raises(PlanError) as caught:
        read(build)
    for word in words:
        assert word in str(caught.value)


def test_names_from_a_placeholder_are_refused():
    refused(lambda: tf.data.TextLineDataset(tf.placeholder(tf.string, [None], "where")), "placeholder 'where'",
            "TextLineDataset", "constant lists")  # fmt: skip


def test_names_from_a_placeholder_through_slices_are_refused():
    refused(lambda: Dataset.from_tensor_slices(tf.placeholder(tf.string, [None])).flat_map(tf.data.TFRecordDataset),
            "placeholder", "TFRecordDataset")  # fmt: skip


def test_names_from_a_generator_are_refused(files):
    refused(
        lambda: Dataset.from_generator(lambda: iter(files), tf.string).flat_map(tf.data.TextLineDataset), "Generator"
    )


def test_whole_list_as_one_element_is_refused(files):
    refused(lambda: Dataset.from_tensors(files).flat_map(tf.data.TextLineDataset), "from_tensor_slices")


@pytest.mark.parametrize(
    "choose", [lambda d: d.shard(2, 0), lambda d: d.take(2), lambda d: d.skip(2)], ids=["shard", "take", "skip"]
)
def test_list_divided_by_the_script_is_refused(files, choose):
    refused(lambda: choose(Dataset.from_tensor_slices(files)).flat_map(tf.data.TextLineDataset), "divides the list")


def test_take_of_all_and_shard_of_one_are_legal(files):
    def build():
        return Dataset.from_tensor_slices(files).take(-1).skip(0).shard(1, 0).flat_map(tf.data.TextLineDataset)

    values, _ = read(build)
    assert sorted(values) == lines_of(0, 2)


def test_names_picked_by_position_are_refused(files):
    def build():
        names = tf.constant(files)
        return Dataset.range(4).flat_map(lambda i: tf.data.TextLineDataset(names[i]))

    refused(build, "by their position", "from_tensor_slices")


def test_names_of_a_slice_input_producer_are_refused(files):
    with tf.Graph().as_default() as graph:
        tf.read_file(tf.train.slice_input_producer([files, [0, 1, 2, 3]])[0])
        with pytest.raises(PlanError, match="by their position"):
            slice_inputs(graph, (1, 1), 0, False, False)


def test_names_of_a_variable_of_fixed_shape_are_refused(files):
    def build():
        names = tf.get_variable("names", initializer=tf.constant(files), trainable=False)
        return tf.data.TextLineDataset(names)

    refused(build, "variable 'names'")


@pytest.mark.parametrize("form", ["text_line", "list_inside_a_function"])
def test_second_division_of_a_graph_is_refused(files, form):
    with tf.Graph().as_default() as graph:
        FORMS[form](files).make_initializable_iterator()
        slice_inputs(graph, (1, 1), 0, False, False)
        with pytest.raises(PlanError, match="sliced before"):
            slice_inputs(graph, (1, 1), 0, False, False)


def test_refusal_leaves_the_graph_untouched(files):
    with tf.Graph().as_default() as graph:
        tf.data.TextLineDataset(files).make_initializable_iterator()
        tf.data.TextLineDataset(tf.placeholder(tf.string, [None])).make_initializable_iterator()
        before = graph.as_graph_def()
        with pytest.raises(PlanError):
            slice_inputs(graph, (1, 1), 0, False, False)
        assert graph.as_graph_def() == before


def test_single_picture_from_a_placeholder_is_only_reported(files):
    with tf.Graph().as_default() as graph:
        tf.read_file(tf.placeholder(tf.string, [], "picture"))
        log = slice_inputs(graph, (1, 1), 0, False, False)
    assert len(log) == 1 and "not sliced" in log[0] and "placeholder 'picture'" in log[0]


def test_fixed_single_file_is_no_list(files):
    with tf.Graph().as_default() as graph:
        tf.read_file(files[0])
        assert "nothing to slice" in slice_inputs(graph, (1, 1), 0, False, False)[0]


def test_one_worker_changes_nothing():
    with tf.Graph().as_default() as graph:
        tf.data.TextLineDataset(tf.placeholder(tf.string, [None])).make_initializable_iterator()
        before = graph.as_graph_def()
        assert slice_inputs(graph, (4,), 0, False, False) == ["io.slicing: one worker, which reads all files"]
        assert graph.as_graph_def() == before


def test_workers_report_one_digest_of_a_list(files):
    logs = [read(lambda: FORMS["list_files"](files), worker=worker)[1][0] for worker in range(2)]
    assert logs[0].split("digest ")[1][:8] == logs[1].split("digest ")[1][:8]
