"""A mixture of experts in plain einsum: each token goes to the best one or two of many feed-forward networks.

    x ──▶ gate ──▶ combine ─┬──────────────────────────────────────┐
    │                       ▼                                      ▼
    └────────────────▶ dispatch ──▶ experts: dense, relu, dense ──▶ combine ──▶ y

Owns the gates, which drop what an expert has no room for and say how evenly they chose, and the experts. A group is a
sentence: experts have room for so many tokens of each, so that what becomes of a sentence does not depend on the others
in its batch. Imports nothing but TensorFlow; whoever calls gives the scope in which the experts are made.
"""

from contextlib import ExitStack
from typing import Any, List, NamedTuple

import tensorflow.compat.v1 as tf

CHOICES = {"switch": 1, "top2": 2}  # gate -> experts of a token


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
      combine: [groups, tokens, experts, capacity], the weight of a token in a place of an expert; most are 0.
      balance: scalar, 1 where all experts are chosen alike, more where some are preferred.
    """

    combine: tf.Tensor
    balance: tf.Tensor


def capacity_of(tokens: int, experts: int, gate: str, factor: float) -> int:
    """How many tokens of a group an expert has room for: `factor` times those that are its share."""
    return max(1, -(-int(tokens * CHOICES[gate] * factor) // experts))


def route(probabilities: tf.Tensor, present: tf.Tensor, gate: str, capacity: int) -> Routing:
    """Chooses the experts of each token.

    `switch`: the best one (Fedus et al., 2021, section 2.2). `top2`: the best two, weighted to a sum of 1; second
    choices take the places that first ones leave (Lepikhin et al., 2020, section 2.2, without the random part). Of
    those who choose an expert the first ones in the group get its places; what is left is in no expert's.

    Args:
      probabilities: [groups, tokens, experts], of each expert by token.
      present: [groups, tokens], 1 for tokens, 0 for padding, which goes nowhere.
      gate: a key of CHOICES.
      capacity: places of an expert in each group.
    """
    experts = probabilities.shape[-1].value
    masks, weights = _chosen(probabilities, present, CHOICES[gate])
    taken = tf.zeros_like(probabilities[:, :1])
    combine: Any = 0.0
    for mask, weight in zip(masks, weights):
        place = tf.cumsum(mask, 1, exclusive=True) + taken
        taken += tf.reduce_sum(mask, 1, keepdims=True)
        kept = mask * tf.cast(place < capacity, mask.dtype)
        own_place = tf.cast(tf.reduce_sum(place * kept, -1), tf.int32)
        combine += tf.einsum("gs,gse,gsc->gsec", weight, kept, tf.one_hot(own_place, capacity, dtype=mask.dtype))
    return Routing(combine, _balance(probabilities, masks[0], present, experts))


def _chosen(probabilities: tf.Tensor, present: tf.Tensor, choices: int) -> Any:
    """By choice: [groups, tokens, experts], 1 at the expert, and [groups, tokens], the weight."""
    masks: List[tf.Tensor] = []
    left = probabilities
    for _ in range(choices):
        best = tf.one_hot(tf.argmax(left, -1), probabilities.shape[-1].value, dtype=probabilities.dtype)
        left *= 1.0 - best
        masks.append(best * present[:, :, tf.newaxis])
    weights = [tf.reduce_sum(probabilities * mask, -1) for mask in masks]
    if choices > 1:
        total = tf.add_n(weights) + 1e-9
        weights = [weight / total for weight in weights]
    return masks, weights


def _balance(probabilities: tf.Tensor, first: tf.Tensor, present: tf.Tensor, experts: int) -> tf.Tensor:
    """Share of the tokens that chose an expert first, times its mean probability, summed over experts, times these."""
    count = tf.maximum(tf.reduce_sum(present, 1, keepdims=True), 1.0)
    chosen = tf.reduce_sum(first, 1) / count
    likely = tf.einsum("gse,gs->ge", probabilities, present) / count
    return experts * tf.reduce_mean(tf.reduce_sum(chosen * likely, -1))


def layer(
    x: tf.Tensor,
    present: tf.Tensor,
    experts: int,
    hidden: int,
    gate: str = "top2",
    capacity_factor: float = 1.25,
    scope: Any = None,
) -> Any:
    """Returns the outputs, shaped as `x`, 0 for tokens that were dropped; and the balance of the gate.

    Args:
      x: [groups, tokens, width]; the number of tokens is known.
      present: [groups, tokens], 1 for tokens, 0 for padding.
      experts: number of feed-forward networks.
      hidden: units in each.
      gate: a key of CHOICES.
      capacity_factor: room for so many times the tokens that are an expert's share.
      scope: context manager in which the experts are made, such as epl.split(n).
    """
    width = x.shape[-1].value
    capacity = capacity_of(x.shape[1].value, experts, gate, capacity_factor)
    scores = tf.layers.dense(x, experts, use_bias=False, name="gate", kernel_initializer=_initial(width))
    combine, balance = route(tf.nn.softmax(scores), present, gate, capacity)
    with scope or ExitStack():
        inner = tf.get_variable("expert_inner", [experts, width, hidden], initializer=_initial(width))
        outer = tf.get_variable("expert_outer", [experts, hidden, width], initializer=_initial(hidden))
        dispatch = tf.cast(combine > 0.0, x.dtype)
        taken = tf.einsum("gsec,gsm->egcm", dispatch, x)
        given = tf.einsum("egch,ehm->egcm", tf.nn.relu(tf.einsum("egcm,emh->egch", taken, inner)), outer)
        return tf.einsum("gsec,egcm->gsm", combine, given), balance


def _initial(inputs: int) -> Any:
    return tf.truncated_normal_initializer(stddev=inputs**-0.5)
