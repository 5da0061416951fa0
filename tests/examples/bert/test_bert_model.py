"""The model computes what a published model computes, and its configurations are read."""

import json
import os
import re

import checkpoint
import model
import numpy as np
import published
import pytest
import tensorflow.compat.v1 as tf
from model import BertConfig, Inputs

SMALL = BertConfig(19, 12, 2, 3, 20, max_position_embeddings=9).without_dropout()


def batch(rows=3, length=7):
    """Ids, masks with padding at the end, segments."""
    random = np.random.RandomState(1)
    mask = np.array([[1] * length] + [[1] * 4 + [0] * (length - 4)] * (rows - 1), np.int32)
    ids = random.randint(0, SMALL.vocab_size, [rows, length]).astype(np.int32)
    return Inputs(ids, mask, random.randint(0, 2, [rows, length]).astype(np.int32))


def constants(arrays):
    return Inputs(*[tf.constant(array) for array in arrays])


def test_a_published_checkpoint_gives_what_it_gave(tmp_path):
    path, arrays = str(tmp_path / "bert_model.ckpt"), batch()
    values = published.save(path, SMALL)
    output = model.encode(SMALL, constants(arrays))
    scaffold = tf.train.Scaffold(init_fn=checkpoint.initial_weights(path, tf.trainable_variables()))
    with tf.train.MonitoredTrainingSession(scaffold=scaffold) as session:
        given = session.run(output)
    expected = published.encoder_output(SMALL, values, *arrays)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, millions", [("base", 108.9), ("large", 334.1)])
def test_sizes_have_the_variables_of_the_published_models(bert_folder, name, millions):
    config = model.read_config(os.path.join(bert_folder, "configs", name + ".json"))
    model.span_logits(config, constants(batch()))
    given = {variable.op.name: variable.shape.as_list() for variable in tf.trainable_variables()}
    expected = {key: shape for key, shape in published.shapes(config).items() if key.startswith("bert/")}
    unused = {key: expected.pop(key) for key in ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")}
    head = {"cls/squad/output_weights": [2, config.hidden_size], "cls/squad/output_bias": [2]}
    assert given == dict(expected, **head)
    assert sum(np.prod(shape) for shape in expected.values()) / 1e6 == pytest.approx(millions, abs=0.1), unused


def test_gelu_is_the_exact_one():
    with tf.Session() as session:
        given = session.run(model.gelu(tf.constant([-2.0, 0.0, 1.0])))
    np.testing.assert_allclose(
        given, [-2.0 * 0.02275013, 0.0, 0.84134475], rtol=2e-6
    )  # x times the normal share below x


def test_padding_changes_nothing():
    arrays = batch()
    other = arrays._replace(input_ids=np.where(arrays.input_mask, arrays.input_ids, 3))
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        outputs = [model.encode(SMALL, constants(each)) for each in (arrays, other)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        one, two = session.run(outputs)
    np.testing.assert_allclose(one[1, :4], two[1, :4], rtol=1e-6)


def test_the_loss_is_the_mean_of_first_and_last_token():
    logits = tf.constant([[0.0, 0.0]]), tf.constant([[0.0, np.log(3.0)]], tf.float32)
    loss = model.span_loss(logits, (tf.constant([0]), tf.constant([1])))
    with tf.Session() as session:
        assert session.run(loss) == pytest.approx((np.log(2) + np.log(4 / 3)) / 2)


def test_dropout_is_there_in_training_and_gone_for_predictions():
    def dropouts(config):
        with tf.Graph().as_default() as graph:
            model.encode(config, constants(batch()))
            return sum(op.type == "RandomUniform" for op in graph.get_operations())

    training = SMALL._replace(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    assert dropouts(training) == 1 + 3 * 2  # embeddings; probabilities and two sums of each layer
    assert dropouts(training.without_dropout()) == 0


@pytest.mark.parametrize(
    "layers, stages, counts",
    [(2, 1, [2]), (2, 2, [1, 1]), (12, 4, [3] * 4), (12, 5, [2, 3, 3, 2, 2]), (3, 2, [1, 2]), (8, 3, [2, 3, 3])],
)
def test_layers_are_dealt_in_order_and_evenly(layers, stages, counts):
    dealt = model.deal(layers, stages)
    assert [len(numbers) for numbers in dealt] == counts
    assert [number for numbers in dealt for number in numbers] == list(range(layers))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="2 layers cannot be dealt over 3 stages; choose 1 to 2"):
        model.deal(2, 3)


def test_every_layer_is_made_in_the_scope_of_its_stage():
    made = {}

    class Stage:
        """Notes the variables that are made in it; may be entered several times, as an annotation of EPL."""

        def __enter__(self):
            self._before = set(tf.trainable_variables())

        def __exit__(self, *error):
            made.setdefault(self, []).extend(set(tf.trainable_variables()) - self._before)

    stages = [Stage(), Stage(), Stage()]
    model.span_logits(SMALL._replace(num_hidden_layers=3), constants(batch()), stages)
    parts = [
        {re.sub("attention/.*|output/.*|intermediate/.*|output_.*|LayerNorm/.*", "", v.op.name) for v in made[stage]}
        for stage in stages
    ]
    assert parts[0] == {
        "bert/embeddings/",
        "bert/embeddings/word_embeddings",
        "bert/embeddings/token_type_embeddings",
        "bert/embeddings/position_embeddings",
        "bert/encoder/layer_0/",
    }
    assert parts[1:] == [{"bert/encoder/layer_1/"}, {"bert/encoder/layer_2/", "cls/squad/"}]


def test_sequences_longer_than_the_positions_are_refused():
    with pytest.raises(ValueError, match=r"length 10; expected a known length of at most 9"):
        model.encode(SMALL, constants(batch(length=10)))


def read(tmp_path, **values):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(values))
    return model.read_config(str(path))


def test_a_published_configuration_is_read(tmp_path):
    config = read(tmp_path, vocab_size=119547, hidden_size=768, directionality="bidi", pooler_fc_size=768)
    assert config == BertConfig(119547)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"vocab_size": 9, "n_layer": 2}, r"unknown key\(s\) n_layer"),
        ({"hidden_size": 8}, "vocab_size is missing"),
        ({"vocab_size": 9, "hidden_size": 10, "num_attention_heads": 3}, "10 cannot be divided into 3 heads"),
        ({"vocab_size": 9, "hidden_act": "swish"}, "'swish' is none of gelu, relu, tanh"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, **values)
