#!/usr/bin/env python
"""Writes docs/composition.md, the table of which features go together; `--check` says whether the page is up to date.

The table is `CELLS`: for each pair of features the tests that show it; `REFUSALS` are values and places of features
that are refused. That these tests exist and these errors are raised is a test (tests/docs/test_composition.py).
"""

import itertools
import os
import sys
from typing import List, NamedTuple, Optional, Tuple

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, _ROOT)

from tools import generated_page  # noqa: E402

PAGE = os.path.join(_ROOT, "docs", "composition.md")


class Cell(NamedTuple):
    """A pair of features.

    Attributes:
      features: their names.
      tests: ids of the tests in which both are on, below tests/parity.
      note: in words, where the pair is no combination.
    """

    features: Tuple[str, str]
    tests: Tuple[str, ...]
    note: str


# Name -> how it is switched on.
FEATURES = {
    "replicas": "more devices than one copy of the model takes",
    "replicate(n)": "`epl.replicate(n)`, n > 1: devices that divide a batch",
    "uneven rows": "`auto.balance` of proportions",
    "pipeline": "several `epl.replicate` scopes",
    "accumulation": "`pipeline.num_micro_batch` > 1 with one stage",
    "split": "`epl.split`",
    "checkpoint": "`gradient_checkpoint.type`",
    "offload": "`offload.level`",
    "zero": "`zero.level`; `v2` is refused with pipelines, offload and splits",
    "amp": "`amp.level`",
    "groups": "`optimizer.num_apply_group` > 1",
    "sparse": "gradients that are IndexedSlices",
    "clip after": "`communication.clip_after_allreduce`",
    "sum": "`communication.gradients_reduce_method` is `sum`",
}


def _tested(first: str, second: str, *tests: str) -> Cell:
    return Cell((first, second), tests, "")


def _noted(first: str, second: str, note: str) -> Cell:
    return Cell((first, second), (), note)


CELLS = (
    _tested("replicas", "replicate(n)", "test_divided.py::test_models[layers-1x4-by2]"),
    _tested("replicate(n)", "pipeline", "test_divided.py::test_pipelines"),
    _tested("replicate(n)", "accumulation", "test_divided.py::test_accumulation"),
    _tested("replicate(n)", "split", "test_divided.py::test_split"),
    _tested("replicate(n)", "checkpoint", "test_divided.py::test_with[1x2-by2-checkpoint]"),
    _tested("replicate(n)", "offload", "test_divided.py::test_with[1x2-by2-offload]"),
    _tested("replicate(n)", "zero", "test_divided.py::test_with[1x2-by2-zero_v1]"),
    _tested("replicate(n)", "amp", "test_divided.py::test_mixed_precision"),
    _tested("replicate(n)", "groups", "test_divided.py::test_with[1x2-by2-groups]"),
    _tested("replicate(n)", "sparse", "test_divided.py::test_models[embedding-1x2-by2]"),
    _tested("replicate(n)", "clip after", "test_divided.py::test_clipped_after_the_all_reduce"),
    _tested("replicate(n)", "sum", "test_divided.py::test_sum"),
    _tested("replicas", "uneven rows", "test_uneven_rows.py::test_datasets[layers-2x2]"),
    _tested("replicate(n)", "uneven rows", "test_uneven_rows.py::test_datasets[layers-1x3-by3]"),
    _tested("uneven rows", "pipeline", "test_uneven_rows.py::test_pipelines"),
    _tested("uneven rows", "accumulation", "test_uneven_rows.py::test_accumulation"),
    _tested("uneven rows", "split", "test_uneven_rows.py::test_splits"),
    _tested("uneven rows", "checkpoint", "test_uneven_rows.py::test_with[checkpoint-1x3]"),
    _tested("uneven rows", "offload", "test_uneven_rows.py::test_with[offload-1x3]"),
    _tested("uneven rows", "zero", "test_uneven_rows.py::test_with[zero_v1-1x3]"),
    _tested("uneven rows", "amp", "test_uneven_rows.py::test_mixed_precision"),
    _tested("uneven rows", "groups", "test_uneven_rows.py::test_with[groups-1x3]"),
    _tested("uneven rows", "sparse", "test_uneven_rows.py::test_datasets[embedding-1x3]"),
    _tested("uneven rows", "clip after", "test_uneven_rows.py::test_clipped_after_the_all_reduce"),
    _tested("uneven rows", "sum", "test_uneven_rows.py::test_sum"),
    _tested("replicas", "pipeline", "test_pipelines.py::test_equals_accumulation_on_one_device"),
    _tested("replicas", "accumulation", "test_accumulation.py::test_a_plain_model"),
    _tested("replicas", "split", "test_split_groups.py::test_a_wide_head"),
    _tested("replicas", "checkpoint", "test_recompute.py::test_data_parallelism"),
    _tested("replicas", "offload", "test_offload.py::test_data_parallelism"),
    _tested("replicas", "zero", "test_zero.py::test_adam"),
    _tested("pipeline", "zero", "test_zero_layouts.py::test_pipelines"),
    _tested("accumulation", "zero", "test_zero.py::test_accumulation"),
    _tested("split", "zero", "test_zero_layouts.py::test_around_a_split"),
    _tested("checkpoint", "zero", "test_zero.py::test_together_with_other_features"),
    _tested("offload", "zero", "test_zero_layouts.py::test_parts_in_host_memory"),
    _tested("zero", "amp", "test_zero.py::test_mixed_precision"),
    _tested("zero", "groups", "test_zero.py::test_together_with_other_features"),
    _tested("zero", "sparse", "test_zero.py::test_models"),
    _tested("zero", "clip after", "test_zero.py::test_clipped_as_on_one_device"),
    _tested("zero", "sum", "test_composition.py::test_sum_with[in_parts]"),
    _tested("replicas", "amp", "test_amp.py::test_data_parallel"),
    _tested("replicas", "groups", "test_group_apply.py::test_dense_and_sparse_updates"),
    _tested("replicas", "sparse", "test_models.py::test_model[1x2-embedding]"),
    _tested("replicas", "clip after", "test_optimizers.py::test_clip_after_all_reduce_equals_one_device"),
    _tested("replicas", "sum", "test_optimizers.py::test_sum_instead_of_mean"),
    _noted("pipeline", "accumulation", "one key: with several stages it is the number of micro batches of a step"),
    _tested("pipeline", "split", "test_split_pipelines.py::test_wide_layers"),
    _tested("pipeline", "checkpoint", "test_recompute.py::test_pipelines"),
    _tested("pipeline", "offload", "test_offload.py::test_pipelines"),
    _tested("pipeline", "amp", "test_amp.py::test_pipelines"),
    _tested("pipeline", "groups", "test_group_apply.py::test_in_a_pipeline"),
    _tested("pipeline", "sparse", "test_pipelines.py::test_sparse_gradients_stay_sparse"),
    _tested("pipeline", "clip after", "test_pipelines.py::test_clipping_after_the_all_reduce_equals_one_device"),
    _tested("pipeline", "sum", "test_pipelines.py::test_sum_instead_of_mean"),
    _tested("accumulation", "split", "test_split.py::test_accumulation"),
    _tested("accumulation", "checkpoint", "test_recompute.py::test_accumulation"),
    _tested("accumulation", "offload", "test_offload.py::test_accumulation"),
    _tested("accumulation", "amp", "test_amp.py::test_accumulation"),
    _tested("accumulation", "groups", "test_group_apply.py::test_with_accumulation"),
    _tested("accumulation", "sparse", "test_accumulation.py::test_sparse_gradients"),
    _tested("accumulation", "clip after", "test_accumulation.py::test_clipping_after_all_reduce_sees_the_mean_of_all"),
    _tested("accumulation", "sum", "test_accumulation.py::test_sum_over_replicas_and_micro_steps"),
    _tested("split", "checkpoint", "test_split.py::test_recomputation"),
    _tested("split", "offload", "test_offload.py::test_split"),
    _tested("split", "amp", "test_split_amp.py::test_a_fixed_scale"),
    _tested("split", "groups", "test_split.py::test_updates_in_groups"),
    _tested("split", "sparse", "test_split.py::test_models[small_table-1x2]"),
    _tested("split", "clip after", "test_split.py::test_clipped[head-True-1x2]"),
    _tested("split", "sum", "test_split.py::test_sum_over_ranks"),
    _tested("checkpoint", "offload", "test_offload.py::test_gradient_checkpoint"),
    _tested("checkpoint", "amp", "test_amp.py::test_with_other_settings[topology0-gradient_checkpoint__type-auto]"),
    _tested("checkpoint", "groups", "test_amp.py::test_with_groups_and_recomputation_in_a_pipeline"),
    _tested("checkpoint", "sparse", "test_amp.py::test_with_other_settings[topology0-gradient_checkpoint__type-auto]"),
    _tested("checkpoint", "clip after", "test_recompute.py::test_clipping_after_the_all_reduce"),
    _tested("checkpoint", "sum", "test_composition.py::test_sum_with[recomputed]"),
    _tested("offload", "amp", "test_offload.py::test_mixed_precision"),
    _tested("offload", "groups", "test_offload.py::test_updates_in_groups"),
    _tested("offload", "sparse", "test_offload.py::test_data_parallelism[topology2-embedding-False]"),
    _tested("offload", "clip after", "test_offload.py::test_updates_in_groups[topology0-0.1]"),
    _tested("offload", "sum", "test_composition.py::test_sum_with[offloaded]"),
    _tested("amp", "groups", "test_amp.py::test_with_other_settings[topology1-optimizer__num_apply_group-3]"),
    _tested("amp", "sparse", "test_amp.py::test_data_parallel[topology2-embedding-False]"),
    _tested("amp", "clip after", "test_amp.py::test_accumulation[topology1-norm]"),
    _tested("amp", "sum", "test_composition.py::test_sum_in_mixed_precision"),
    _tested("groups", "sparse", "test_group_apply.py::test_dense_and_sparse_updates"),
    _tested("groups", "clip after", "test_group_apply.py::test_clipped_after_the_all_reduce"),
    _tested("groups", "sum", "test_composition.py::test_sum_with[in_groups]"),
    _tested("sparse", "clip after", "test_accumulation.py::test_clipping_after_all_reduce_sees_the_mean_of_all"),
    _tested("sparse", "sum", "test_optimizers.py::test_sum_instead_of_mean[embedding-1x2]"),
    _tested("clip after", "sum", "test_composition.py::test_the_sum_of_all_is_clipped"),
)


class Refusal(NamedTuple):
    """What does not go together although the features do.

    Attributes:
      settings: in words.
      error: text of the error with which they are refused.
    """

    settings: str
    error: str


REFUSALS = (
    Refusal("`zero.level` `v2`, several stages", "It is 'v2', which does not go together with 2 stages"),
    Refusal("`zero.level` `v2`, `offload.level`", "It is 'v2', which does not go together with offload.level"),
    Refusal("`zero.level` `v2`, `epl.split`", "It is 'v2', which does not go together with epl.split"),
    Refusal("`zero.level`, `epl.split` in several stages", "which does not go together with epl.split in the stages"),
)

_HEAD = """\
# Which features go together

<!-- Written by tools/gen_composition_docs.py. Do not edit: change the table there and run the tool. -->

Each pair of features is tested against plain TensorFlow, or against the plan without the feature. EPL refuses features
that do not go together, before the first step. A test of this repository checks that the tests exist and that the
errors are raised.

"""


def render() -> str:
    """Returns the text of the page."""
    parts = [_HEAD, "| Feature | Switched on by |\n| --- | --- |\n"]
    parts += [f"| {name} | {how} |\n" for name, how in FEATURES.items()]
    parts.append("\n`+`: tested, `1`: see below\n\n")
    parts.append("| | {} |\n|{}\n".format(" | ".join(FEATURES), " --- |" * (len(FEATURES) + 1)))
    cells = {frozenset(cell.features): cell for cell in CELLS}
    notes = [cell for cell in CELLS if cell.note]
    for name in FEATURES:
        signs = [_sign(cells[frozenset([name, other])], notes) if name != other else "" for other in FEATURES]
        parts.append("| {} | {} |\n".format(name, " | ".join(signs)))
    parts.append("\n")
    parts += [
        "{}. {} and {}: {}.\n".format(number, *cell.features, cell.note) for number, cell in enumerate(notes, 1)
    ]  # fmt: skip
    parts.append("\n## Refused\n\n| Settings | The error says |\n| --- | --- |\n")
    parts += ["| {} | `{}` |\n".format(*refusal) for refusal in REFUSALS]
    parts.append("\n## Tests\n\nBelow `tests/parity`. Some run with `make test-long` only.\n\n")
    parts.append("| Features | Tests |\n| --- | --- |\n")
    for cell in CELLS:
        if cell.tests:
            tests = ", ".join(f"`{test}`" for test in cell.tests)
            parts.append("| {}, {} | {} |\n".format(*cell.features, tests))
    return "".join(parts)


def _sign(cell: Cell, notes: List[Cell]) -> str:
    return str(notes.index(cell) + 1) if cell.note else "+"


def pairs() -> List[frozenset]:
    """Every pair of features."""
    return [frozenset(pair) for pair in itertools.combinations(FEATURES, 2)]


def main(argv: Optional[List[str]] = None) -> int:
    """Writes or checks the page; returns the exit code."""
    return generated_page.main(os.path.basename(__file__), PAGE, render, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
