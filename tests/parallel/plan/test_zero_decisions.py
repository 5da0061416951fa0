"""Which variables ZeRO cuts, and how."""

import random

import pytest

from epl.parallel.plan.zero_decisions import WHOLE_SHARE, Candidate, choose_placements
from epl.parallel.sharding.placements import shard


def resnet_50():
    """The shapes of its variables."""

    def convolution(size, inputs, outputs):
        return [(size, size, inputs, outputs), (outputs,), (outputs,)]

    shapes, inputs = convolution(7, 3, 64), 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        shapes += convolution(1, inputs, 4 * width)
        for _ in range(blocks):
            shapes += convolution(1, inputs, width) + convolution(3, width, width) + convolution(1, width, 4 * width)
            inputs = 4 * width
    return shapes + [(2048, 1000), (1000,)]


def bert_base():
    """The shapes of its variables."""
    hidden = 768
    vector = (hidden,)
    layer = [(hidden, hidden), vector] * 4 + [(hidden, 4 * hidden), (4 * hidden,), (4 * hidden, hidden)] + [vector] * 5
    return [(30522, hidden), (2, hidden), (512, hidden), vector, vector] + 12 * layer + [(hidden, hidden), vector]


def candidates(*shapes, by_rows=()):
    """Variables of float32, (name, shape) each; those named in `by_rows` with sparse gradients."""
    found = []
    for name, shape in shapes:
        count = 4
        for size in shape:
            count *= size
        found.append(Candidate(name, shape, count, name in by_rows))
    return found


def parts(variables, ranks):
    """How they are cut as the first ones."""
    return choose_placements(variables, [0.0] * ranks)


def test_the_dimension_whose_parts_differ_least_is_cut():
    placements = parts(candidates(("a", (7, 8)), ("b", (8, 8)), ("c", (9, 10))), 4)
    assert placements == {"a": shard(1, [2] * 4), "b": shard(0, [2] * 4), "c": shard(1, (3, 3, 2, 2))}


def test_larger_parts_go_to_the_ranks_that_have_least():
    """The rows of `b` are largest; what it has given to rank 0 alone, `a` makes up for, and `c` the rest."""
    placements = parts(candidates(("a", (6, 6)), ("b", (5, 5, 5)), ("c", (5, 5))), 4)
    assert placements["b"] == shard(0, (2, 1, 1, 1))
    assert placements["a"] == shard(0, (1, 2, 2, 1))
    assert placements["c"] == shard(0, (1, 1, 1, 2))


def test_larger_parts_of_several_optimizers_go_round():
    surplus = [0.0] * 4
    placements = [choose_placements(candidates((name, (5, 5))), surplus)[name] for name in "abcde"]
    assert [placement.sizes.index(2) for placement in placements] == [0, 1, 2, 3, 0]
    assert surplus == [40, 20, 20, 20]


@pytest.mark.parametrize("size,ranks", [(3, 2), (5, 3), (5, 4), (9, 8), (33, 32)])
def test_of_uneven_variables_together_a_rank_holds_its_share(size, ranks):
    """One by one it would be two of `size` rows."""
    variables = candidates(*[(str(number), (size, size)) for number in range(4 * ranks)])
    assert held_of(variables, ranks) <= 1 / ranks + WHOLE_SHARE


def test_what_has_fewer_rows_than_ranks_stays_full():
    variables = candidates(("a", (2, 3, 3)), ("b", (3, 8)), ("c", (3,)))
    assert parts(variables, 4) == {"b": shard(1, [2] * 4)}


def test_a_sparse_gradient_has_its_variable_cut_by_rows():
    placements = parts(candidates(("a", (3, 64)), ("b", (9, 64)), ("c", (1, 64)), by_rows="abc"), 4)
    assert placements == {"b": shard(0, (3, 2, 2, 2))}


def test_scalars_and_the_smallest_stay_whole():
    variables = candidates(("w", (100, 100)), ("scalar", ()), ("empty", (0, 3)), ("one", (1, 1)), ("bias", (100,)))
    assert list(parts(variables, 4)) == ["w"]
    single = candidates(("large", (1, 1000)), ("empty", (0, 3)), by_rows=["large"])
    assert not parts(single, 4)
    assert sum(one.bytes for one in variables[1:]) <= WHOLE_SHARE * variables[0].bytes


def held_of(variables, ranks):
    """How much of their bytes the rank holds that holds most."""
    placements = parts(variables, ranks)
    full = [one.bytes for one in variables if one.name not in placements]
    cut = [(one.bytes, placements[one.name]) for one in variables if one.name in placements]
    held = [sum(size * placement.sizes[rank] / placement.size for size, placement in cut) for rank in range(ranks)]
    return (sum(full) + max(held)) / sum(one.bytes for one in variables)


@pytest.mark.parametrize("model", [resnet_50, bert_base])
def test_of_known_models_a_rank_holds_its_share_and_what_stays_whole(model):
    variables = candidates(*[(str(n), shape) for n, shape in enumerate(model())])
    for ranks in [2, 3, 5, 8, 12, 16, 24, 64, 100, 128]:
        assert held_of(variables, ranks) <= 1 / ranks + WHOLE_SHARE + 0.001


@pytest.mark.parametrize("ranks", [2, 4, 7, 32])
def test_a_rank_holds_its_share_and_little_more(ranks):
    """Of the bytes, 1/N and 5% besides: also where some variables have fewer rows than there are ranks."""
    draw = random.Random(ranks)
    for _ in range(20):
        shapes = [(str(number), tuple(draw.randint(20, 64) for _ in range(draw.randint(1, 3)))) for number in range(40)]
        variables = candidates(*shapes)
        assert held_of(variables, ranks) <= 1 / ranks + 0.05
