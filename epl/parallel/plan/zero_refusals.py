"""What `zero.level` does not go together with."""

from epl.utils.errors import NotAvailableError


def refuse_v2(offloads: bool, has_split: bool, stages: int) -> None:
    """Raises NotAvailableError for features that do not work together with v2.

    Args:
      offloads: whether weights are in host memory (`offload.level`).
      has_split: whether a part of the model is computed on shards.
      stages: their number.
    """
    if offloads:
        raise NotAvailableError(
            "zero.level",
            "It is 'v2', which does not go together with offload.level: weights in host memory are on the device for a "
            "block of their uses at a time with 'v1' as well. Set it to 'v1'.",
        )
    if has_split:
        raise NotAvailableError("zero.level", "It is 'v2', which does not go together with epl.split: set it to 'v1'.")
    if stages > 1:
        raise NotAvailableError(
            "zero.level", f"It is 'v2', which does not go together with {stages} stages: set it to 'v1'."
        )


def refuse_stages_with_groups(level: str, is_unequal: bool, is_dedicated: bool) -> None:
    """Raises NotAvailableError for stages that are computed on shards.

    Args:
      level: the value of `zero.level`.
      is_unequal: whether a scope of epl.replicate has fewer devices than others.
      is_dedicated: whether a split has devices of its own; else it is in a stage.
    """
    colocate = "on devices of its own: set cluster.colocate_split_and_replicate to True"
    if is_unequal:
        with_what = "a scope of epl.replicate with fewer devices than another, " + colocate
    elif is_dedicated:
        with_what = "epl.split " + colocate
    else:
        with_what = "epl.split in the stages of a pipeline: leave the key out"
    raise NotAvailableError("zero.level", f"It is {level!r}, which does not go together with {with_what}.")
