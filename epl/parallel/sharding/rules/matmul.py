"""Rules of products: MatMul, BatchMatMul and Einsum; `tf.einsum` is made of these, transposes and reshapes."""

from typing import Dict, Hashable, Iterator, List, Optional, Tuple

from epl.parallel.sharding.rules.common import broadcast_labels, known_ranks, labelled, never_empty, text_attr
from epl.parallel.sharding.rules.registry import Choice, OpInfo, TensorInfo, rule


@rule("MatMul", "SparseMatMul")
def _matmul(op: OpInfo) -> Iterator[Choice]:
    left = ["k", "m"] if op.attrs.get("transpose_a") else ["m", "k"]
    right = ["n", "k"] if op.attrs.get("transpose_b") else ["k", "n"]
    # TensorFlow 2 on CPUs joins a MatMul with the BiasAdd behind it: a kernel that ends the process where it is empty.
    return never_empty(labelled(op, [left, right], [["m", "n"]], summed=["k"]))


@rule("BatchMatMul", "BatchMatMulV2")
def _batch_matmul(op: OpInfo) -> Iterator[Choice]:
    if not known_ranks(op):
        return iter(())
    rank = len(op.outputs[0].shape or ())
    left = ["k", "m"] if op.attrs.get("adj_x") else ["m", "k"]
    right = ["n", "k"] if op.attrs.get("adj_y") else ["k", "n"]
    outer = [broadcast_labels(TensorInfo((tensor.shape or ())[:-2], tensor.dtype), rank - 2) for tensor in op.inputs]
    inputs = [list(outer[0]) + left, list(outer[1]) + right]
    return labelled(op, inputs, [list(range(rank - 2)) + ["m", "n"]], summed=["k"])


@rule("Einsum")
def _einsum(op: OpInfo) -> Iterator[Choice]:
    if not known_ranks(op):
        return iter(())
    terms, output = text_attr(op, "equation").replace(" ", "").split("->")
    ranks: Dict[str, int] = {}
    for term, tensor in zip(terms.split(","), op.inputs):
        ranks[term] = max(ranks.get(term, 0), len(tensor.shape or ()) - len(term.replace("...", "")))
    ellipsis = max(ranks.values())
    inputs = [_term_labels(term, tensor, ellipsis) for term, tensor in zip(terms.split(","), op.inputs)]
    outputs = [_term_labels(output, op.outputs[0], ellipsis)]
    summed = {label for labels in inputs for label in labels if label is not None} - set(outputs[0])
    return never_empty(labelled(op, inputs, outputs, summed=summed))


def _term_labels(term: str, info: TensorInfo, ellipsis: int) -> List[Optional[Hashable]]:
    """The labels of a term of an equation; the dimensions of the ellipsis are 0, 1, ... and may be broadcast."""
    before, dots, after = term.partition("...")
    shape = info.shape or ()
    open_shape: Tuple[Optional[int], ...] = shape[len(before) : len(shape) - len(after)] if dots else ()
    return list(before) + broadcast_labels(TensorInfo(open_shape, info.dtype), ellipsis) + list(after)
