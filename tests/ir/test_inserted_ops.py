"""Ops follow from the innermost decision that was open when they were created; passes tell theirs by name."""

import tensorflow.compat.v1 as tf

from epl.config.keys import KEY_BY_NAME
from epl.ir.inserted_ops import THE_USER, InsertedOps, OpOrigin
from epl.parallel import features
from epl.parallel.transformation import passes_of

OUTER, INNER, USER = OpOrigin("outer", "a"), OpOrigin("inner", "b"), OpOrigin(THE_USER, "the optimizer")
WORDS = {"replicas", "outputs", "epl.split", "sharded variables"}


def _names(inserted):
    return {name: origin.decision for name, origin in inserted.by_name().items()}


def test_the_innermost_decision_counts():
    with tf.Graph().as_default() as graph:
        inserted = InsertedOps(graph)
        tf.no_op("before")
        with inserted.following(OUTER):
            tf.no_op("first")
            with inserted.following(INNER):
                tf.no_op("second")
            with inserted.following(USER):
                assert not inserted.is_open
                tf.no_op("of_the_user")
            assert inserted.is_open
            tf.no_op("third")
        tf.no_op("after")
        assert _names(inserted) == {"first": "outer", "second": "inner", "third": "outer"}


def test_an_error_ends_what_is_open_and_names_come_before_numbers():
    with tf.Graph().as_default() as graph:
        inserted = InsertedOps(graph)
        try:
            with inserted.following(OUTER):
                tf.no_op("made")
                raise ValueError("of the test")
        except ValueError:
            tf.no_op("later")
        inserted.add(["made", "imported"], INNER)
        assert _names(inserted) == {"made": "inner", "imported": "inner"}


def test_every_pass_and_feature_names_a_decision():
    found = {one.decision for one in passes_of(features.FEATURES)}
    found |= {feature.origin.decision for feature in features.FEATURES}
    assert found <= WORDS | set(KEY_BY_NAME)
