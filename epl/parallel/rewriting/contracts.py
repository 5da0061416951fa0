"""Contracts of passes: the values of the context that each pass provides and reads. Tests enforce them.

A value has one provider, or is a collection to which several passes add. A pass reads the values that it requires; the
passes that provide them or add to them run before it. With `EPL_VERIFY=1` the context checks every access. Contracts do
not cover TensorFlow's graph, nor the caches and records of `RewriteContext`: views, communicators, original ops.
"""

from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Optional, Sequence

from epl.parallel.rewriting.context import RewriteContext

if TYPE_CHECKING:
    from epl.parallel.rewriting.pass_manager import Pass

HANDED_ON: FrozenSet[str] = frozenset(
    "micro_batched micro_merged folded over_micro_batches stage_of barriers later_writes orders recomputed "
    "copies_per_use gather_streams unused_gathers gradient_checks cloned writes batch_index batch_count "
    "batch_checks rows_read read_once weight weights counted gates collectives merged summarized plain_summaries "
    "by_hand of_all_rows syncs broadcasts part_writes run_kinds foreign_writes".split()
)


class ContractError(RuntimeError):
    """A pass reads or sets a value that its contract does not name."""


class CheckedRewrite(RewriteContext):
    """A RewriteContext that raises ContractError when a pass reads or sets a value that its contract does not name.

    Attributes:
      running: the pass that runs; None between passes.
    """

    running: Optional["Pass"] = None

    def __getattribute__(self, name: str) -> Any:
        if name in HANDED_ON:
            p = self.running
            if p is not None and name not in p.requires | p.provides | p.adds:
                raise ContractError(f"Pass {p.name!r} reads {name!r}, which its contract does not name.")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        p = self.running
        if name in HANDED_ON and p is not None and name not in p.provides | p.adds:
            raise ContractError(f"Pass {p.name!r} sets {name!r}, which its contract does not let it.")
        super().__setattr__(name, value)


def check(passes: Sequence["Pass"]) -> None:
    """Raises ValueError for a value that two passes provide, or that is not in `HANDED_ON`."""
    providers: Dict[str, List[str]] = {}
    for p in passes:
        for name in p.provides:
            providers.setdefault(name, []).append(p.name)
        unknown = (p.requires | p.provides | p.adds) - HANDED_ON
        if unknown:
            raise ValueError(f"Pass {p.name!r} names {sorted(unknown)}, which passes do not hand on.")
    adders = {name for p in passes for name in p.adds}
    twice = {name: names for name, names in providers.items() if len(names) > 1 or name in adders}
    if twice:
        raise ValueError(f"Values that several passes provide: {twice}.")
