"""What `zero.level` v2 does not go together with."""

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
