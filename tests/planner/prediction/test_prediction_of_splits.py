"""Splits: shares of the work, what ranks exchange forward and backward, ratios, groups, scopes with fewer devices."""

import pytest

from epl.parallel.plan.sections import InsideExchange
from epl.planner.prediction.prediction import predict, predicted, prepare
from epl.planner.prediction.split_work import _copies, parse_placement
from epl.utils.errors import NotAvailableError, PlanError
from tests.planner.prediction.hand_made import HandCosts, Layer, device, machine, replicate, split, strategy

# x (op 0), then w, w/read, MatMul for each layer: ops 3 and 6.
COLUMNS = "full, shard(1: 4+4) -> shard(1: 4+4)"
ROWS_OF_KERNEL = "shard(1: 4+4), shard(0: 4+4) -> partial"


def two_layers(**kinds):
    return HandCosts([Layer(weight=800, output=16.0, kept=True), Layer(weight=800, output=8.0)], **kinds)


def moved(found):
    """(collective, direction) -> bytes, of the exchanges of a split."""
    return {
        (told.collective, "backward" if told.name.endswith("backward") else "forward"): told.bytes
        for told in found.lowered.ops
        if told.decision == "split"
    }


def test_columns_then_rows_exchange_once_in_each_direction():
    costs = two_layers(inputs=2.0)
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: COLUMNS, 6: ROWS_OF_KERNEL})
    found = predict(planned, costs, machine(bandwidth=8.0), 4)
    # The rows of both ranks come together before the first product; the sum of the second is cut into rows again.
    # x needs no gradient, so that nothing goes back to it; the gradient of the sum is gathered.
    assert moved(found) == {
        ("all-gather", "forward"): 4 * 2.0, ("reduce-scatter", "forward"): 32.0, ("all-gather", "backward"): 32.0,
    }  # fmt: skip
    compute = 2 * 4 * 3.0 / 2  # all rows, half of each product
    exchanges = (8 / 2 + 2 * 32 / 2) / 8.0
    assert found.devices[0].busy == pytest.approx(compute)
    assert found.seconds == pytest.approx(compute + exchanges)
    assert found.devices[0].memory.by_role["weights"] == 800
    assert not [one for one in found.traffic if one.decision.startswith("gradients")]


def test_what_is_cut_by_columns_is_copied_for_its_exchange():
    costs = two_layers()
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: COLUMNS, 6: COLUMNS})
    kinds = device("a"), device("a", bandwidth=6.0, overhead=0.25)  # a transpose moves 2 B/s
    before, after = [predict(planned, costs, machine(devices=[one], bandwidth=1e30), 4).seconds for one in kinds]
    # 64 B to the second layer are concatenated after the all-gather, and their gradients split and concatenated before
    # the reduce-scatter. Half of the 32 B of its result is transposed twice, as rows may differ in number; the
    # gradients are split and concatenated.
    copied, transposed = (1 + 2) * 64 + 2 * 32 / 2, 2 * 32 / 2
    updates = 2 * (3 * 400 / 6.0 + 0.25)
    copies = 2 * copied / 6.0 + 2 * transposed / 2.0 + 0.25 * (2 + 2 + 2 + 2)
    assert after - before == pytest.approx(copies + updates)


@pytest.mark.parametrize(
    "collective, before, after, wanted",
    [
        ("all-gather", "shard(0: 4+4)", "full", (0.0, 0.0, 0)),
        ("all-gather", "shard(2: 4+4)", "full", (1.0, 0.0, 2)),
        ("all-gather", "shard(1: 6+2)", "full", (0.0, 1.75, 2)),
        ("reduce-scatter", "partial", "shard(1: 4+4)", (2.0, 0.0, 2)),
        ("reduce-scatter", "partial", "shard(1: 6+2)", (0.0, 1.75, 2)),
        ("all-reduce", "partial", "full", (0.0, 0.0, 0)),
        ("all-to-all", "shard(0: 4+4)", "shard(1: 4+4)", (1.0, 0.0, 2)),
        ("all-to-all", "shard(2: 4+4)", "shard(0: 4+4)", (0.5, 0.0, 2)),
        ("all-to-all", "shard(2: 4+4)", "shard(1: 4+4)", (1.5, 0.0, 4)),
        ("all-to-all", "shard(0)", "shard(1: 4+4)", (1.0, 0.0, 2)),
        ("all-to-all", "shard(0)", "shard(2: 4+4)", (1.0, 0.0, 2)),
        ("all-to-all", "shard(1: 6+2)", "shard(2: 4+4)", (1.5, 1.5, 4)),
        ("all-to-all", "shard(1: 4+4)", "shard(0)", (0.0, 1.0, 2)),
        ("all-to-all", "shard(2: 4+4)", "shard(0)", (0.0, 2.0, 4)),
        ("all-to-all", "shard(1: 6+2)", "shard(0)", (0.0, 1.5, 2)),
    ],
)
def test_copies_and_transposes_of_each_collective(collective, before, after, wanted):
    assert _copies(collective, parse_placement(before, 2), parse_placement(after, 2), 2) == wanted


def test_a_replicated_input_is_entered_and_a_replicated_result_summed():
    costs = two_layers()
    costs.ops = (costs.ops[0]._replace(by_rows=False), *(op._replace(by_rows=False) for op in costs.ops[1:]))
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: COLUMNS, 6: ROWS_OF_KERNEL})
    found = predict(planned, costs, machine(bandwidth=8.0), 4)
    assert moved(found) == {("all-reduce", "forward"): 32.0}


def test_what_an_op_exchanges_inside_counts():
    costs = two_layers()
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: COLUMNS, 6: ROWS_OF_KERNEL})
    inside = (InsideExchange("all-reduce", False, 0.5, 0.5), InsideExchange("all-to-all", True, 0.25, 1.0))
    wider = planned._replace(choices=(planned.choices[0]._replace(inside=inside), planned.choices[1]))
    before, after = [predict(one, costs, machine(bandwidth=8.0), 4) for one in (planned, wider)]
    new = [one for one in after.lowered.ops if one.decision == "split" and "inside" in one.name]
    # 16 B for each of 4 rows are the first product in full.
    assert [(one.collective, one.bytes) for one in new] == [("all-reduce", 32.0), ("all-to-all", 16.0)]
    assert after.seconds - before.seconds == pytest.approx((32.0 + 16.0 / 2) / 8.0)


def test_what_was_gathered_for_another_op_is_held_for_the_one_that_reads_it():
    text = "full, shard(1: 6+2) -> shard(1: 6+2)"
    costs = HandCosts([Layer(weight=800, output=16.0, kept=True)] * 2)
    costs.ops += (costs.ops[6]._replace(inputs=((3, 0),), name="again"),)
    costs.ops = (*costs.ops[:6], costs.ops[6]._replace(read_inputs=frozenset()), costs.ops[7])
    costs._layer_of[7] = Layer(output=16.0)
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: text, 7: "full -> shard(1: 6+2)"})
    found = prepare(planned, costs, machine(), 4).split.exchanges
    (gathered,) = [one for one in found if one.source == (3, 0) and one.collective == "all-gather"]
    assert gathered.at == 6 and gathered.is_kept


@pytest.mark.parametrize("reads", [False, True])
def test_what_is_gathered_is_held_until_the_backward_pass_if_that_reads_it(reads):
    costs = two_layers()
    costs.ops = tuple(
        op._replace(read_inputs=frozenset([0] if reads and op.type == "MatMul" else [])) for op in costs.ops
    )
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: COLUMNS, 6: COLUMNS})
    found = prepare(planned, costs, machine(), 4).split.exchanges
    gathered = {one.source[0]: one.is_kept for one in found if one.collective == "all-gather" and not one.is_backward}
    assert gathered == {0: reads, 3: reads}
    assert not any(one.is_kept for one in found if one.is_backward or one.collective != "all-gather")


def test_a_layer_between_columns_has_one_all_reduce_in_each_direction():
    costs = HandCosts([Layer(weight=8, output=8.0), Layer(weight=800, output=16.0), Layer(weight=800, output=8.0)])
    costs.ops = tuple(op._replace(by_rows=False) for op in costs.ops)
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={6: COLUMNS, 9: ROWS_OF_KERNEL})
    found = predict(planned, costs, machine(bandwidth=8.0), 4)
    assert moved(found) == {("all-reduce", "forward"): 32.0, ("all-reduce", "backward"): 32.0}


def test_groups_average_their_shards():
    costs = two_layers()
    planned = strategy(costs, devices=4, blocks=[split(2)], choices={3: COLUMNS, 6: ROWS_OF_KERNEL})
    found = predict(planned, costs, machine([["a"] * 4], bandwidth=1e30), 8)
    reductions = [one for one in found.traffic if one.decision.startswith("gradients")]
    assert [(one.collective, one.bytes, one.devices) for one in reductions] == [("all-reduce", 800.0, 2)]
    assert [one.ranks for one in found.devices] == [(0, 1, 2, 3)]


def test_replicas_next_to_a_split_have_rows_of_their_own():
    costs = two_layers()
    block_of = [0] * 4 + [1] * 3
    head = {6: "full, shard(1: 4+4) -> shard(1: 4+4)"}
    planned = strategy(
        costs, devices=2, blocks=[replicate(2), split(2)], block_of=block_of, choices=head
    )  # fmt: skip
    found = predict(planned, costs, machine(bandwidth=1e30), 4)
    assert found.devices[0].busy == pytest.approx(2 * 3.0 + 4 * 3.0 / 2)
    assert moved(found)["all-gather", "forward"] == 64.0  # 16 B of 4 rows
    assert moved(found)["reduce-scatter", "backward"] == 64.0
    assert [one.bytes for one in found.traffic if one.decision.startswith("gradients")] == [800.0]  # of the first layer
    assert found.devices[0].memory.by_role["weights"] == 800 + 400


def test_a_rank_holds_its_part_of_each_output():
    # A cross entropy: the losses of all rows on each rank, and the gradients of its own classes for the backward pass.
    costs = HandCosts([Layer(weight=800, output=8.0), Layer(output=8.0, kept=True)])
    costs.tensor_bytes = lambda rows, op, output: rows * (2.0 if (op, output) == (4, 0) else 6.0)
    loss = "shard(1: 4+4) -> full, shard(1: 4+4)"
    planned = strategy(costs, devices=2, blocks=[split(2)], choices={3: COLUMNS, 4: loss})
    ops = [op._replace(outputs=("float32[?]",) * 2) if number == 4 else op for number, op in enumerate(planned.ops)]
    found = prepare(planned._replace(ops=tuple(ops)), costs, machine(), 4)
    assert found.split.held[:, 4].tolist() == [(2.0 + 6.0 / 2) / 8.0] * 2


def test_a_rank_without_a_part_waits():
    costs = two_layers()
    block_of = [0] * 4 + [1] * 3
    planned = strategy(
        costs, devices=2, blocks=[replicate(2), replicate(1)], block_of=block_of,
        choices={6: "full, shard(1: 8+0) -> shard(1: 8+0)"},
    )  # fmt: skip
    found = predict(planned, costs, machine(bandwidth=1e30), 4)
    first, second = found.devices
    assert first.busy == pytest.approx(2 * 3.0 + 4 * 3.0) and second.busy == pytest.approx(2 * 3.0)
    assert first.memory.by_role["weights"] == 1600 and second.memory.by_role["weights"] == 800


def test_ratios_divide_the_work():
    costs = two_layers(speeds={"a": 3.0, "b": 1.0})
    text = {3: "full, shard(1: 6+2) -> shard(1: 6+2)", 6: "shard(1: 6+2), shard(0: 6+2) -> partial"}
    planned = strategy(costs, devices=2, blocks=[split(2, (3, 1))], choices=text)
    found = predict(planned, costs, machine([["a", "b"]], bandwidth=1e30), 4)
    assert [one.busy for one in found.devices] == pytest.approx([2 * 4 * 3.0 / 4] * 2)


def test_ops_without_a_choice_are_computed_in_full_on_every_rank():
    costs = two_layers()
    found = predict(strategy(costs, devices=2, blocks=[split(2)]), costs, machine(bandwidth=1e30), 4)
    assert found.devices[0].busy == pytest.approx(2 * 4 * 3.0)


def test_ops_by_rows_exchange_nothing_but_gradients():
    costs = two_layers()
    by_rows = {3: "shard(0), full -> shard(0)", 6: "shard(0), full -> shard(0)"}
    found = predict(strategy(costs, devices=2, blocks=[split(2)], choices=by_rows), costs, machine(bandwidth=1e30), 4)
    assert found.devices[0].busy == pytest.approx(2 * 2 * 3.0)
    names = {(one.decision, one.collective) for one in found.traffic}
    assert ("gradients of the model", "all-reduce") in names
    assert not {(told.collective, told.name) for told in found.lowered.ops if "layer0" in told.name}


@pytest.mark.parametrize("nodes", [[["a"] * 8], [["a"] * 4, ["a"] * 4]])
def test_ranks_of_a_split_are_simulated_once(nodes):
    costs = HandCosts([Layer(weight=8, output=8.0, kept=True), Layer(weight=800, output=16.0), Layer(weight=800)])
    planned = strategy(
        costs, devices=8 // len(nodes), workers=len(nodes), blocks=[split(2)], choices={6: COLUMNS, 9: ROWS_OF_KERNEL}
    )  # fmt: skip
    where = machine(nodes, bandwidth=8.0, latency=0.5, shared_by=0, network=(1.0, 4.0))
    folded, alone = [predicted(prepare(planned, costs, where, 16, fold), costs, where) for fold in (True, False)]
    assert len(folded.devices) == 1 and len(alone.devices) == 8
    assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert {one.memory.peak for one in alone.devices} == {folded.devices[0].memory.peak}


def test_places_of_groups_divide_the_network_and_do_not_wait_for_each_other_as_well():
    costs = two_layers()
    halves = {3: COLUMNS, 6: ROWS_OF_KERNEL}
    quarters = {3: COLUMNS.replace("4+4", "6+2"), 6: ROWS_OF_KERNEL.replace("4+4", "6+2")}
    nodes = [["a"] * 2] * 2
    found = {}
    for name, ratios, choices in (("equal", (), halves), ("unequal", (3, 1), quarters)):
        planned = strategy(costs, devices=2, workers=2, blocks=[split(2, ratios)], choices=choices)
        found[name] = predict(planned, costs, machine(nodes, bandwidth=1e30, network=(0.0, 4.0)), 8)
    assert [len(found[name].devices) for name in ("equal", "unequal")] == [1, 2]  # of one class, and of two
    # Each place sends its part of 1,600 bytes of gradients at half of 4 bytes a second: 800, or 1,200 and 400.
    for name, largest in (("equal", 800.0), ("unequal", 1200.0)):
        compute = max(one.busy for one in found[name].devices)
        assert found[name].seconds == pytest.approx(compute + largest / 2.0, rel=0.02)
        assert found[name].bound.traffic <= found[name].seconds


def times_of(found, kind, what):
    """(start, end, device) of the ops of a kind whose name begins so."""
    return [
        (found.run.starts[at], found.run.ends[at], found.lowered.program.ops[at].device)
        for at, told in enumerate(found.lowered.ops)
        if told.kind == kind and told.name.startswith(what)
    ]


def test_a_split_on_devices_of_its_own_is_a_stage():
    costs = two_layers()
    apart = {"blocks": [replicate(2), split(2)], "block_of": [0] * 4 + [1] * 3}
    found = predict(
        strategy(costs, devices=4, choices={6: COLUMNS}, **apart), costs, machine([["a"] * 4], bandwidth=8.0), 4
    )
    first, second = found.devices
    assert (first.devices, second.devices) == ((0, 1), (2, 3))
    assert first.busy == pytest.approx(2 * 3.0) and second.busy == pytest.approx(4 * 3.0 / 2)
    assert [one.memory.by_role["weights"] for one in found.devices] == [800, 400]
    exchanged = {("all-gather", "forward"): 64.0, ("reduce-scatter", "backward"): 64.0}
    assert moved(found).items() >= exchanged.items()  # 16 B of 4 rows
    assert [one.bytes for one in found.traffic if one.decision.startswith("gradients")] == [800.0]  # of stage 0
    # 2 s of work, 32 B to the split, then its exchange; the gradients go back after theirs.
    assert times_of(found, "transfer", "activations") == [(2.0, 6.0, 1)]
    assert times_of(found, "collective", "layer0")[0] == (6.0, 10.0, 1)
    assert times_of(found, "transfer", "gradients")[0][0] >= times_of(found, "collective", "layer0")[1][1]


def test_a_stage_of_a_split_gets_what_its_ops_take():
    costs = HandCosts([Layer(weight=800, output=16.0, kept=True)] * 3)
    apart = {"blocks": [replicate(2), split(2), split(2)], "block_of": [0] * 4 + [1] * 3 + [2] * 3}
    where = machine([["a"] * 6], bandwidth=8.0)
    sent = []
    for taken in (COLUMNS, ROWS_OF_KERNEL):
        found = predict(strategy(costs, devices=6, choices={6: COLUMNS, 9: taken}, **apart), costs, where, 4)
        sent.append([told.bytes for told in found.lowered.ops if told.name.endswith("stage 1 to 2")])
        # What the last stage takes in full comes together in the stage before it.
        assert {device for _, _, device in times_of(found, "collective", "layer1")} == (
            {1} if taken == COLUMNS else set()
        )
    assert sent == [[64.0], [32.0]]  # 16 B of 4 rows, or a half of it


def test_stages_with_groups_are_simulated_once():
    costs = HandCosts([Layer(weight=800, output=16.0, kept=True)] * 3)
    apart = {"blocks": [replicate(2), split(2)], "block_of": [0] * 4 + [1] * 6}
    choices = {6: COLUMNS, 9: ROWS_OF_KERNEL}
    planned = strategy(costs, devices=8, choices=choices, pipeline__num_micro_batch=4, **apart)
    where = machine([["a"] * 8], bandwidth=8.0, latency=0.5)
    folded, alone = [predicted(prepare(planned, costs, where, 32, fold), costs, where) for fold in (True, False)]
    assert (len(folded.devices), len(alone.devices)) == (2, 8)
    assert folded.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert [one.memory.peak for one in alone.devices] == [one.memory.peak for one in folded.devices] * 4
    reductions = {(one.decision, one.devices): one.bytes for one in folded.traffic if "gradients of" in one.decision}
    assert reductions == {("gradients of stage 0", 4): 800.0, ("gradients of stage 1", 2): 800.0}


@pytest.mark.parametrize(
    "devices, replicas, settings, error",
    [
        (3, 1, {}, "fewer devices, each on devices of its own"),
        (4, 2, {"zero__level": "v1"}, "does not go together with epl.split on devices of its own"),
        (4, 2, {"auto__balance": "3:1"}, "The split has devices of its own"),
    ],
)
def test_what_a_split_on_devices_of_its_own_does_not_go_together_with(devices, replicas, settings, error):
    costs = two_layers()
    apart = {"blocks": [replicate(replicas), split(2)], "block_of": [0] * 4 + [1] * 3}
    with pytest.raises(NotAvailableError, match=error):
        predict(strategy(costs, devices=devices, **apart, **settings), costs, machine([["a"] * devices]), 4)


@pytest.mark.parametrize(
    "choices, error",
    [
        ({3: "full, sharp(1) -> full"}, "no placement"),
        ({3: "full, shard(1: 1+1+1) -> full"}, "3 parts for 2 ranks"),
        ({3: "full -> full"}, "2 input"),
        ({3: "partial, full -> partial"}, "cannot be made of"),
    ],
)
def test_choices_that_an_op_does_not_have_are_refused(choices, error):
    costs = two_layers()
    with pytest.raises(PlanError, match=error):
        predict(strategy(costs, devices=2, blocks=[split(2)], choices=choices), costs, machine(), 4)


def test_a_part_may_leave_its_sizes_out():
    assert parse_placement("shard(1)", 2) == parse_placement("shard(1: 1048576+1048576)", 2)
    assert parse_placement("shard(0)", 2).sizes is None and parse_placement("partial", 2).kind == "partial"
