"""The strategy as a value: JSON and back, its fingerprint, what differs between two, and files that are none."""

import json

import pytest

from epl.parallel.plan import strategy as strategies
from epl.parallel.plan.sections import InsideExchange
from epl.parallel.plan.strategy import Block, ForwardOp, PlannedChoice, Setting, Strategy
from epl.utils.errors import PlanError

OPS = (
    ForwardOp("x", "Placeholder", (), ("float32[?,3]",), 0),
    ForwardOp("one/w", "VariableV2", (), ("float32[3,4]",), 0),
    ForwardOp("one/MatMul", "MatMul", ("0", "1"), ("float32[?,4]",), 0),
    ForwardOp("two/Mean", "Mean", ("2",), ("float32[]",), 1),
)


def _strategy() -> Strategy:
    return Strategy(
        model=strategies.fingerprint(OPS),
        workers=1,
        devices=4,
        device_type="CPU",
        blocks_origin="balanced",
        blocks=(Block("replicate", 1, 0, (), ("x", "one"), 1), Block("split", 0, 1, (3, 1), ("two",), 1)),
        choices=(PlannedChoice(3, "shard(1: 3+1) -> partial", (InsideExchange("all-reduce", True, 0.5, 0.5),)),),
        settings=(Setting("pipeline.num_micro_batch", "4", "code"), Setting("zero.level", '""', "default")),
        ops=OPS,
    )


def test_json_and_back():
    text = strategies.to_json(_strategy())
    assert json.loads(text)["format"] == "epl-strategy" and json.loads(text)["version"] == 2
    assert [one["value"] for one in json.loads(text)["settings"]] == [4, ""]
    assert strategies.from_json(text) == _strategy()
    assert strategies.to_json(strategies.from_json(text)) == text


def test_files_of_the_version_before_are_read():
    """Their settings have values as texts of JSON."""
    plain = json.loads(strategies.to_json(_strategy()))
    plain["version"] = 1
    for one in plain["settings"]:
        one["value"] = json.dumps(one["value"])
    assert strategies.from_json(json.dumps(plain)) == _strategy()


def test_files_that_tell_no_collectives_inside_of_ops_are_read():
    plain = json.loads(strategies.to_json(_strategy()))
    for one in plain["choices"]:
        del one["inside"]
    (choice,) = strategies.from_json(json.dumps(plain)).choices
    assert choice == _strategy().choices[0]._replace(inside=())


def test_fingerprint_counts_no_names_and_no_blocks():
    renamed = [op._replace(name="other" + op.name, block=1) for op in OPS]
    assert strategies.fingerprint(renamed) == strategies.fingerprint(OPS)
    for change in ({"type": "Max"}, {"inputs": ("1",)}, {"outputs": ("float64[]",)}):
        assert strategies.fingerprint(OPS[:3] + (OPS[3]._replace(**change),)) != strategies.fingerprint(OPS)


def test_first_difference_names_op_shape_and_block():
    strategies.refuse_other_model(_strategy(), [op._replace(name="a/" + op.name) for op in OPS], "plan.json")
    wider = [*OPS[:2], OPS[2]._replace(outputs=("float32[?,8]",)), OPS[3]]
    with pytest.raises(PlanError, match="op 2 .*MatMul 'one/MatMul' -> .*8.* here and MatMul .*4.* block 0 .*x, one"):
        strategies.refuse_other_model(_strategy(), wider, "plan.json")
    with pytest.raises(PlanError, match="3 ops here and 4 there.*Mean 'two/Mean'"):
        strategies.refuse_other_model(_strategy(), OPS[:3], "plan.json")


def _inside(plain):
    """The first collective of the first choice, in the plain form of a strategy."""
    return plain["choices"][0]["inside"][0]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda plain: plain.pop("format"), 'no entry "format"'),
        (lambda plain: plain.update(version=3), "version 3 of the format, and this EPL reads versions 1 and 2"),
        (lambda plain: plain["blocks"][1].update(stage=0), "stage is 0, not the number of its epl.replicate"),
        (lambda plain: plain.pop("blocks"), "needs the fields"),
        (lambda plain: plain.update(workers="one"), "Strategy.workers is 'one', not an int"),
        (lambda plain: plain.update(blocks=[]), "no blocks"),
        (lambda plain: plain["blocks"][0].update(kind="pipe"), r"blocks\[0\].kind is 'pipe'"),
        (lambda plain: plain["blocks"][0].update(devices=0), r"blocks\[0\].devices is 0"),
        (lambda plain: plain["blocks"][1].update(ratios=[0, 0]), r"blocks\[1\].ratios"),
        (lambda plain: plain["settings"][0].update(key="io.slicing"), "io.slicing', which no strategy decides"),
        (lambda plain: plain["settings"][0].update(value="four"), "pipeline.num_micro_batch is 'four', not legal"),
        (lambda plain: plain["settings"][0].pop("value"), r"settings\[0\] needs the fields"),
        (lambda plain: plain.update(version=1), r"settings\[0\].value is 4, not a str"),
        (lambda plain: plain["settings"][0].update(value=0), "pipeline.num_micro_batch"),
        (lambda plain: plain["choices"][0].update(op=4), r"choices\[0\].op is 4, and there are 4 ops"),
        (
            lambda plain: _inside(plain).update(collective="gossip"),
            r"choices\[0\].inside\[0\].collective is 'gossip', not",
        ),
        (lambda plain: _inside(plain).update(held=-1.0), r"choices\[0\].inside\[0\] has a share of 0.5 and holds -1.0"),
        (lambda plain: _inside(plain).pop("share"), r"choices\[0\].inside\[0\] needs the fields"),
        (lambda plain: plain["ops"][3].update(block=2), r"ops\[3\].block is 2, and there are 2 blocks"),
        (lambda plain: plain["ops"][3].update(type="Max"), "changed by hand"),
    ],
)
def test_damaged_files_say_where(change, message):
    plain = json.loads(strategies.to_json(_strategy()))
    change(plain)
    with pytest.raises(ValueError, match=message):
        strategies.from_json(json.dumps(plain))


def test_no_json():
    with pytest.raises(ValueError, match="no JSON: .*line 1"):
        strategies.from_json("{'format'")


def test_differences_are_decisions_first():
    other = _strategy()._replace(
        devices=8,
        blocks=(_strategy().blocks[0]._replace(devices=2),),
        choices=(),
        settings=(Setting("pipeline.num_micro_batch", "8", "planner"), Setting("zero.level", '""', "default")),
    )
    assert strategies.differences(_strategy(), _strategy()) == []
    assert strategies.differences(_strategy(), other) == [
        "pipeline.num_micro_batch: 4 -> 8",
        "block 0: epl.replicate(1) on x, one -> epl.replicate(2) on x, one",
        "block 1: epl.split(None, ratios=[3, 1]) on two -> none",
        "'two/Mean': shard(1: 3+1) -> partial => full",
        "devices: 4 -> 8",
    ]


def test_scopes_are_the_outermost_that_tell_apart():
    assert strategies.scopes_of(["a/b/MatMul", "a/c/MatMul", "d"]) == ("a", "d")
    assert strategies.scopes_of(["a/b/MatMul", "a/c/MatMul"]) == ("a/b", "a/c")
    assert strategies.scopes_of(["a/MatMul"]) == ("a",)
    assert strategies.scopes_of([]) == ()
