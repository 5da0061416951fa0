"""Which dimensions of a model's inputs are the same, and which cannot be the rows of a batch.

TensorFlow's shape inference finds out, on a copy of the forward graph in which each unknown dimension has a large prime
of its own as size. If the inference fails, the two sizes in its error become one, and it runs again:

    x [1009, 3] ──▶ dense ──▶ subtract        "Dimensions must be equal, but are 1009 and 1013"
    y [1013, 1] ─────────────────┘            => x [1009, 3], y [1009, 1]: they have the same rows

A size that is computed from others is a multiple of them: B sequences of T words, flattened, are B * T. Known first
dimensions of placeholders are first tried as unknown ones, too, which shows which of them must be equal.

row_evidence.py finds the dimensions that cannot be the rows, by the ops that take them.
"""

import itertools
import re
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

import tensorflow.compat.v1 as tf

from epl.ir.view import GraphView
from epl.parallel.sharding.forward_shapes import ForwardShapes, Numbers, Shapes
from epl.parallel.sharding.row_evidence import find_named_rows, find_no_rows, find_vectors


class Dimensions(NamedTuple):
    """The dimensions of placeholders of known rank.

    Attributes:
      sizes: tensor name -> a number for each dimension: dimensions with equal numbers are the same, a multiple of a
        number is computed from it. A sparse tensor has those of its dense shape, under the name of its indices.
      known: number of a dimension -> its size in the graph.
      no_rows: numbers of first dimensions that cannot be the rows of a batch.
      uncut: numbers of first dimensions that cannot be cut: a tensor has two of them, as the adjacency matrix of a
        graph does, or other values that are fed index the rows, as edges index nodes.
      grouped: (rows, groups): values that are fed give the group of each row. Groups are None where the graph does not
        say how many there are, and they meet other dimensions. Neither rows nor groups can be cut, as the values count
        over all of them.
      open: names of the placeholders whose first dimension the graph does not say.
    """

    sizes: Dict[str, Tuple[int, ...]]
    known: Dict[int, int]
    no_rows: FrozenSet[int]
    uncut: FrozenSet[int]
    grouped: FrozenSet[Tuple[int, Optional[int]]]
    open: FrozenSet[str]


_REFUSAL = re.compile(r"(?:but are|must be) (\d+) (?:and|but is) (\d+)")
_FIRST_NUMBER = 1009  # the primes from here on are seldom sizes of a model


def find_dimensions(
    tf_graph: tf.Graph,
    view: GraphView,
    objective: Iterable[str],
    sparse: Iterable[tf.SparseTensor] = (),
    users_tensors: Optional[Mapping[str, str]] = None,
    ranks: Optional[Mapping[str, int]] = None,
) -> Optional[Dimensions]:
    """The dimensions of the placeholders that an objective is computed from; None if shape inference does not tell.

    Args:
      tf_graph: the graph.
      view: of it.
      objective: names of tensors.
      sparse: the sparse placeholders of the graph.
      users_tensors: name of a tensor -> name of the user's tensor that it replaces.
      ranks: name of a placeholder of unknown rank -> the rank.
    """
    forward = ForwardShapes(tf_graph, view, objective, list(sparse), users_tensors or {}, ranks or {})
    for opens_known in (True, False):
        spare = _primes()
        numbers = {dim: next(spare) for dim in forward.open_dims(opens_known)}
        primes = frozenset(numbers.values())
        shapes = _agreed_shapes(forward, numbers)
        if shapes is not None:
            released = _release(forward, numbers, primes, spare)
            return _dimensions(forward, numbers, primes, released, shapes)
    return None


def without_rows(dimensions: Dimensions) -> List[str]:
    """The names of the placeholders that hold no rows which could be cut, or concatenated.

    Their first dimension cannot be the rows, or cannot be cut; or the graph does not say it and the model needs a fixed
    size, as in `x + tf.ones([12, 1])`. The latter may be the batch if no other placeholder can have the rows.
    """
    sizes = {name: of for name, of in dimensions.sizes.items() if of}
    others = dimensions.no_rows | dimensions.uncut
    written = {number for number, size in dimensions.known.items() if number == size}
    if all(of[0] in others | written for of in sizes.values()):
        written = set()
    return [name for name, of in sizes.items() if of[0] in others or (of[0] in written and name in dimensions.open)]


def _agreed_shapes(forward: ForwardShapes, numbers: Numbers) -> Optional[Shapes]:
    """The shapes, after equal dimensions got equal numbers in `numbers`; None if TensorFlow does not say which are."""
    free = set(numbers.values())
    for _ in range(len(numbers) + 1):
        try:
            return forward.inferred(numbers)
        except ValueError as error:
            found = _REFUSAL.search(str(error))
            if found is None:
                return None
            one, other = (int(number) for number in found.groups())
            if one not in free:
                one, other = other, one
            if one not in free or (other != one and other % one == 0):
                return None
            free.discard(one)
            for dim, number in numbers.items():
                while number % one == 0:
                    number = number // one * other
                numbers[dim] = number
    return None


def _release(forward: ForwardShapes, numbers: Numbers, primes: FrozenSet[int], spare: Iterator[int]) -> Set[int]:
    """Gives new numbers, which it returns, to first dimensions that have a size of the model only in large trials.

    With 1009 trial rows of x, `x + table[:tf.shape(x)[0]]` needs the 512 rows of the table; smaller batches do not.
    """
    firsts = {number for (_, dim), number in numbers.items() if dim == 0}
    released = set()
    for size in sorted(number for number in firsts if number > 1 and _is_written(number, primes)):
        smaller = {dim: size - 1 if number == size else number for dim, number in numbers.items()}
        try:
            forward.inferred(smaller)
        except ValueError:
            continue
        own = next(spare)
        released.add(own)
        numbers.update((dim, own) for dim, number in list(numbers.items()) if number == size)
    return released


def _dimensions(
    forward: ForwardShapes, numbers: Numbers, primes: FrozenSet[int], released: Set[int], shapes: Shapes
) -> Dimensions:
    sizes = {name: forward.numbers_of(name, numbers) for name in sorted(forward.fed)}
    known = {number: number for number in numbers.values() if _is_written(number, primes | released)}
    for (name, dim), number in numbers.items():
        said = (forward.shapes[name] or ())[dim]
        if said is not None:
            known[number] = said
    firsts = {number for (_, dim), number in numbers.items() if dim == 0 and number in primes}
    candidates = {of_dims[0] for of_dims in sizes.values() if of_dims and of_dims[0] in firsts} - known.keys()
    no_rows = find_no_rows(forward, shapes, candidates, firsts)
    no_rows |= find_vectors(forward, shapes, sizes, numbers, candidates, firsts - no_rows)
    grouped, picked = find_named_rows(forward, shapes, candidates, firsts)
    twice = {of[0] for of in sizes.values() if of and of.count(of[0]) > 1}
    uncut = twice | (picked - no_rows)
    for rows, groups in grouped:
        if groups is not None and groups in twice | picked:
            uncut |= {rows, groups}
    is_open = frozenset(name for name in sizes if forward.is_open(name))
    return Dimensions(sizes, known, frozenset(no_rows - uncut), frozenset(uncut), frozenset(grouped), is_open)


def _is_written(number: int, primes: FrozenSet[int]) -> bool:
    """Whether a number is a size that the model says, and not a trial size."""
    return not any(number % prime == 0 for prime in primes)


def _primes() -> Iterator[int]:
    """The primes from _FIRST_NUMBER on."""
    for number in itertools.count(_FIRST_NUMBER, 2):
        if all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2)):
            yield number
