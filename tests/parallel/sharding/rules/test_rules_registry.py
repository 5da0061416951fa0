"""The registry of rules as a whole."""

import tensorflow.compat.v1 as tf

import epl.parallel.sharding.rules.all  # noqa: F401
from epl.parallel.sharding.rules.registry import RULES, OpInfo, TensorInfo, choices_of
from tests.op_registry import registered_ops

_DEFAULTS = {"string": b"", "int": 0, "float": 0.0, "bool": False, "type": tf.float32, "shape": None}


def unknown(op_type):
    """An op of which nothing is known but its type."""
    definition = registered_ops()[op_type]
    attrs = {attr.name: _DEFAULTS.get(attr.type, []) for attr in definition.attr}
    attrs.update(T=tf.float32, equation=b"ij,jk->ik")

    def tensors(args):
        return tuple(
            TensorInfo(None, tf.float32)
            for arg in args
            for _ in range(2 if arg.number_attr or arg.type_list_attr else 1)
        )

    return OpInfo(op_type, op_type, attrs, tensors(definition.input_arg), tensors(definition.output_arg), 2, {})


def test_what_is_not_known_is_not_cut():
    for op_type in sorted(RULES):
        for choice in choices_of(unknown(op_type)):
            assert not any(placement.is_shard for placement in choice.inputs + choice.outputs), (op_type, choice)


def test_op_types_exist_once():
    assert set(RULES) <= set(registered_ops())
    assert len(RULES) > 230


def test_the_batch_of_one_rank_beside_that_of_all_is_not_cut():
    inputs = (TensorInfo((16, 7), tf.float32, None, 0), TensorInfo((8, 7), tf.float32))
    op = OpInfo("Mul", "dropout", {}, inputs, (TensorInfo((16, 7), tf.float32, None, 0),), 2, {})
    assert not any(placement.is_shard for choice in choices_of(op) for placement in choice.inputs)
