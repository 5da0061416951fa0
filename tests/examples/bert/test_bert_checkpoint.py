"""Published checkpoints are checked before they are loaded."""

import checkpoint
import model
import numpy as np
import published
import pytest
import tensorflow.compat.v1 as tf
from model import BertConfig, Inputs

SMALL = BertConfig(19, 12, 2, 3, 20, max_position_embeddings=9)


@pytest.fixture
def path(tmp_path):
    """A checkpoint of the model SMALL."""
    name = str(tmp_path / "bert_model.ckpt")
    published.save(name, SMALL)
    return name


def variables(config):
    model.span_logits(config, Inputs(*[tf.zeros([2, 5], tf.int32)] * 3))
    return tf.trainable_variables()


def test_all_but_the_head_is_taken(path):
    wanted, unused = checkpoint.fitting(path, variables(SMALL))
    left = {variable.op.name for variable in tf.trainable_variables()} - {variable.op.name for variable in wanted}
    assert left == {"cls/squad/output_weights", "cls/squad/output_bias"}
    assert "bert/pooler/dense/kernel" in unused and "cls/predictions/output_bias" in unused


def test_the_head_begins_anew_and_the_rest_has_the_values(path):
    values = published.save(path, SMALL)
    loaded = variables(SMALL)
    scaffold = tf.train.Scaffold(init_fn=checkpoint.initial_weights(path, loaded))
    with tf.train.MonitoredTrainingSession(scaffold=scaffold) as session:
        given = {variable.op.name: session.run(variable) for variable in loaded}
    assert given["cls/squad/output_weights"].std() > 0
    name = "bert/encoder/layer_1/output/dense/kernel"
    np.testing.assert_array_equal(given[name], values[name])


def test_other_sizes_are_refused(path):
    with pytest.raises(
        checkpoint.CheckpointError, match=r"1 of .*/word_embeddings \[20, 12\]: \[19, 12\]. Use the bert_con"
    ):
        checkpoint.fitting(path, variables(SMALL._replace(vocab_size=20)))


def test_missing_layers_are_refused(path):
    with pytest.raises(checkpoint.CheckpointError, match=r"32 of .*/layer_2/.*: not in the checkpoint"):
        checkpoint.fitting(path, variables(SMALL._replace(num_hidden_layers=4)))


def test_a_path_without_checkpoint_is_refused(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match="there is no checkpoint .*nothing; expected the files"):
        checkpoint.fitting(str(tmp_path / "nothing"), [])
