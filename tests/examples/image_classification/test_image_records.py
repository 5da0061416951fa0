"""Images become records and come back; what cannot be trained on is refused."""

import os

import image_records
import numpy as np
import prepare_images
import pytest
import tensorflow.compat.v1 as tf


def encoded(color, ending, height=20, width=30):
    """A file of one colour."""
    pixels = tf.fill([height, width, 3], tf.constant(color, tf.uint8))
    with tf.Session() as session:
        return session.run(tf.image.encode_png(pixels) if ending == ".png" else tf.image.encode_jpeg(pixels))


def write_images(folder, counts, ending=".png"):
    """Writes `counts[name]` images of class `name`, whose colour is 40 times the number of the class."""
    for label, (name, count) in enumerate(sorted(counts.items())):
        os.makedirs(os.path.join(str(folder), name))
        for number in range(count):
            with open(os.path.join(str(folder), name, str(number) + ending), "wb") as target:
                target.write(encoded(40 * label, ending))


def color_of(image):
    """The colour that `write_images` gave to an image that was read."""
    return np.round((np.asarray(image) * image_records._DEVIATION + image_records._MEAN) * 255)


@pytest.mark.parametrize("ending", [".png", ".JPG"])
def test_images_come_back_with_their_labels(tmp_path, ending):
    write_images(tmp_path / "images", {"a": 5, "b": 10, "c": 5}, ending)
    dataset = prepare_images.prepare(str(tmp_path / "images"), str(tmp_path / "records"), 0.2, 2, seed=0)
    assert dataset.classes == ["a", "b", "c"] and dataset.images == {"train": 16, "test": 4}
    assert image_records.read_dataset(dataset.folder) == dataset
    batch = image_records.evaluation_batches(dataset, "test", 10, 8)
    training = image_records.training_batches(dataset, 16, 8, seed=1)
    with tf.Session() as session:
        images, labels = session.run(batch)
        assert images.shape == (4, 8, 8, 3) and sorted(labels) == [0, 1, 1, 2]
        for image, label in zip(images, labels):
            np.testing.assert_allclose(color_of(image), 40 * label, atol=1)
        images, labels = session.run(training)
        assert sorted(labels) == [0] * 4 + [1] * 8 + [2] * 4
        for image, label in zip(images, labels):
            np.testing.assert_allclose(color_of(image), 40 * label, atol=1)


def test_workers_read_different_images(tmp_path):
    write_images(tmp_path / "images", {str(number): 2 for number in range(6)})
    dataset = prepare_images.prepare(str(tmp_path / "images"), str(tmp_path / "records"), 0.5, 1, seed=0)
    shares = [image_records.Share(2, worker) for worker in range(2)]
    batches = [image_records.training_batches(dataset, 3, 8, share=share) for share in shares]
    with tf.Session() as session:
        labels = [set(labels) for _, labels in session.run(batches)]
    assert labels[0] | labels[1] == set(range(6)) and not labels[0] & labels[1]


def test_folders_of_a_split_are_taken_as_they_are(tmp_path):
    write_images(tmp_path / "train", {"a": 2, "b": 2})
    write_images(tmp_path / "test", {"a": 1, "b": 1})
    assert prepare_images.prepare(str(tmp_path), str(tmp_path / "r"), 0.2, 8, 0).images == {"train": 4, "test": 2}
    write_images(tmp_path / "test" / ".." / "test", {"z": 1})
    with pytest.raises(ValueError, match="classes that are not trained: z"):
        prepare_images.prepare(str(tmp_path), str(tmp_path / "r"), 0.2, 8, 0)


def test_records_made_elsewhere_are_described(tmp_path):
    image_records.write(str(tmp_path), "train", [(encoded(0, ".jpg"), 1), (encoded(40, ".jpg"), 2)], files=2)
    with pytest.raises(ValueError, match="dataset.json does not exist"):
        image_records.read_dataset(str(tmp_path))
    prepare_images.main(["--describe", str(tmp_path), "--classes", "2", "--first_label", "1"])
    dataset = image_records.read_dataset(str(tmp_path))
    assert dataset.images == {"train": 2} and dataset.classes == ["1", "2"]
    with tf.Session() as session:
        assert sorted(session.run(image_records.training_batches(dataset, 2, 8))[1]) == [0, 1]


def test_what_is_no_set_of_images_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no folders"):
        prepare_images.classes_of(str(tmp_path))
    os.makedirs(str(tmp_path / "a"))
    with pytest.raises(ValueError, match="has no images"):
        prepare_images.images_of(str(tmp_path), ["a"])
    open(str(tmp_path / "a" / "1.png"), "w").close()
    with pytest.raises(ValueError, match="1.png is empty"):
        prepare_images.images_of(str(tmp_path), ["a"])
