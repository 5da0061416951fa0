"""Wire format: what is cut out of a serialized graph reads as protobuf reads it."""

import pytest
import tensorflow.compat.v1 as tf

from epl.ir import node_wire


def node(**attrs):
    """A NodeDef with the given attributes, and as it is read."""
    graph_def = tf.GraphDef(versions={"producer": 134})
    proto = graph_def.node.add(name="a/b", op="Add", input=["x", "y:1", "^z"], device="/device:CPU:1")
    for key, value in attrs.items():
        proto.attr[key].CopyFrom(value)
    nodes, _ = node_wire.read_graph(graph_def.SerializeToString())
    return proto, nodes[0]


def test_name_type_inputs_and_device():
    _, read = node(T=tf.AttrValue(type=tf.float32.as_datatype_enum))
    assert (read.name, read.op, read.input) == ("a/b", "Add", ["x", "y:1", "^z"])
    assert read.device == "/device:CPU:1"


@pytest.mark.parametrize("size", [1, 127, 128, 20000])
def test_lengths_of_one_and_of_several_bytes(size):
    proto, read = node(big=tf.AttrValue(s=b"n" * size), small=tf.AttrValue(i=3))
    assert read.attr["big"].s == b"n" * size and read.attr["small"].i == 3
    assert read.to_proto() == proto


def test_attributes_are_a_mapping():
    _, read = node(T=tf.AttrValue(i=1), S=tf.AttrValue(b=True))
    assert sorted(read.attr) == ["S", "T"] and len(read.attr) == 2
    assert {key: value.i for key, value in read.attr.items()} == {"T": 1, "S": 0}
    assert "T" in read.attr and "U" not in read.attr
    assert read.attr.get("T").i == 1 and read.attr.get("U") is None


def test_attributes_are_set_and_deleted():
    proto, read = node(T=tf.AttrValue(i=1), S=tf.AttrValue(b=True))
    del read.attr["S"]
    read.attr["U"] = tf.AttrValue(s=b"u" * 200)
    assert sorted(read.attr) == ["T", "U"] and read.attr["U"].s == b"u" * 200
    del proto.attr["S"]
    proto.attr["U"].s = b"u" * 200
    assert read.to_proto() == proto
    with pytest.raises(KeyError):
        del read.attr["S"]


def test_a_long_key():
    _, read = node(**{"k" * 300: tf.AttrValue(i=1), "T": tf.AttrValue(i=2)})
    assert read.attr["k" * 300].i == 1 and read.attr["T"].i == 2


def test_an_attribute_that_is_not_there_reads_as_empty():
    _, read = node()
    assert read.attr["_class"] == tf.AttrValue() and not read.attr["_class"].list.s


def test_a_key_within_a_value_is_no_attribute():
    inner, _ = node(_class=tf.AttrValue(list={"s": [b"loc:@x"]}))
    _, read = node(value=tf.AttrValue(s=inner.SerializeToString()))
    assert "_class" not in read.attr and list(read.attr) == ["value"]


def test_the_rest_of_the_graph_is_kept():
    graph_def = tf.GraphDef(versions={"producer": 134})
    graph_def.library.function.add().signature.name = "f"
    graph_def.node.add(name="a", op="NoOp")
    nodes, rest = node_wire.read_graph(graph_def.SerializeToString())
    assert [n.name for n in nodes] == ["a"]
    assert (rest.versions.producer, rest.library.function[0].signature.name, len(rest.node)) == (134, "f", 0)


def test_a_field_of_another_tensorflow_is_refused():
    with pytest.raises(ValueError, match="tag 122"):
        node_wire.read_graph(b"\x7a\x01x")


def test_written_attributes_are_read_by_protobuf():
    written = node_wire.attr("s", node_wire.string(b"x" * 300))
    written += node_wire.attr("l", node_wire.strings([b"a", b"b" * 200]))
    attrs = tf.NodeDef.FromString(written).attr
    assert attrs["s"].s == b"x" * 300 and list(attrs["l"].list.s) == [b"a", b"b" * 200]


def test_strings_are_read_from_attributes():
    written = node_wire.attr("s", node_wire.string(b"x" * 300)) + node_wire.attr("l", node_wire.strings([b"a", b"bc"]))
    attrs = node_wire.Node("n", "Op", [], "", written).attr
    assert node_wire.read_string(attrs.serialized("s")) == b"x" * 300
    assert node_wire.read_strings(attrs.serialized("l")) == [b"a", b"bc"]
    assert attrs.serialized("t") == b"" and node_wire.read_strings(b"") == [] and node_wire.read_string(b"") == b""
