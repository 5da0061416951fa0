"""The tests that some TensorFlow does not run: the list of them, and their share of all tests.

A test is left out by the mark `tensorflow` alone, with its reason. Marks are read from the source: no test module is
imported, and each function counts once.
"""

import ast
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple

import pytest

TESTS = os.path.dirname(os.path.abspath(__file__))
VERSIONS = ("1.15.5", "2.15.1", "2.21.0")
LARGEST_SHARE = 0.03


class Mark(NamedTuple):
    """The versions that run a test, and why the others do not."""

    versions: Tuple[str, ...]
    reason: str


# Test functions that at least one version leaves out, wholly or in some cases: how many in each file.
LEFT_OUT = {
    "behaviour/test_estimators.py": 4,
    "behaviour/test_keras.py": 2,
    "behaviour/test_metrics.py": 1,
    "examples/estimator_keras/test_estimator_keras.py": 3,
    "ir/test_clone.py": 1,
    "ir/test_recording.py": 1,
    "parallel/accumulation/test_accumulation_steps.py": 1,
    "parallel/batch_norm/test_fused.py": 2,
    "parallel/pipeline/test_pipeline_sessions.py": 1,
    "parallel/plan/test_graph_digest.py": 1,
    "parallel/replication/test_uneven_rows.py": 1,
    "parallel/rewriting/test_batch_constants.py": 1,
    "parallel/sharding/test_updates.py": 1,
    "parallel/split/test_search.py": 1,
    "parallel/zero/test_zero_optimizers.py": 1,
    "parity/test_accumulation.py": 1,
    "parity/test_batch_norm.py": 4,
    "parity/test_divided.py": 1,
    "parity/test_pipelines.py": 1,
    "parity/test_sessions.py": 2,
    "parity/test_split_serving.py": 1,
    "parity/test_split_tables.py": 2,
    "parity/test_zero_slots.py": 1,
    "planner/test_plan_command.py": 1,
    "profiler/test_chrome_trace.py": 1,
    "profiler/test_step_stats_hook.py": 1,
    "runtime/test_fed_updates.py": 1,
    "runtime/test_foreign_training.py": 4,
    "runtime/test_hooks.py": 1,
    "runtime/test_initial_choices.py": 4,
    "runtime/test_loss_reduction.py": 1,
    "runtime/test_positions.py": 1,
    "runtime/test_server.py": 1,
    "runtime/test_spanning.py": 1,
    "runtime/test_tensorflow_versions.py": 1,
    "utils/test_deprecations.py": 2,
    "utils/test_graph_mode.py": 2,
}


def _sources() -> Iterator[Tuple[str, ast.Module]]:
    for folder, _, names in sorted(os.walk(TESTS)):
        for name in sorted(names):
            if name.startswith("test_") and name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as source:
                    yield os.path.relpath(path, TESTS), ast.parse(source.read())


def _mark(node: ast.AST, known: Dict[str, Set[Mark]]) -> Set[Mark]:
    """The marks of versions anywhere in an expression: called there, or under the name of one."""
    found: Set[Mark] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "tensorflow":
            (reason,) = [ast.literal_eval(keyword.value) for keyword in part.keywords]
            found.add(Mark(tuple(ast.literal_eval(version) for version in part.args), reason))
        elif isinstance(part, ast.Name):
            found |= known.get(part.id, set())
    return found


def _named(tree: ast.Module, known: Dict[str, Set[Mark]]) -> Dict[str, Set[Mark]]:
    """The marks that names of a module stand for."""
    names = dict(known)
    for node in tree.body:
        if isinstance(node, ast.Assign) and _mark(node.value, names):
            names.update(
                {target.id: _mark(node.value, names) for target in node.targets if isinstance(target, ast.Name)}
            )
    return names


def _tests() -> List[Tuple[str, str, Set[Mark]]]:
    """(file, function, its marks of versions) of every test."""
    with open(os.path.join(TESTS, "tensorflows.py"), encoding="utf-8") as source:
        shared = _named(ast.parse(source.read()), {})
    found: List[Tuple[str, str, Set[Mark]]] = []
    for path, tree in _sources():
        imported = {
            name.asname or name.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module == "tests.tensorflows"
            for name in node.names
        }
        names = _named(tree, {name: marks for name, marks in shared.items() if name in imported})
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks: Set[Mark] = set(names.get("pytestmark", set()))
                for decorator in node.decorator_list:
                    marks |= _mark(decorator, names)
                found.append((path, node.name, marks))
    return found


@pytest.fixture(scope="module")
def tests() -> Any:
    return _tests()


def test_the_list_is_kept(tests: Any) -> None:
    seen: Dict[str, int] = {}
    for path, _, marks in tests:
        if marks:
            seen[path] = seen.get(path, 0) + 1
    assert seen == LEFT_OUT, "LEFT_OUT of this file lists the tests that a TensorFlow leaves out, file by file"


@pytest.mark.parametrize("version", VERSIONS)
def test_few_are_left_out(tests: Any, version: str) -> None:
    left_out = [name for _, name, marks in tests if any(not version.startswith(mark.versions) for mark in marks)]
    assert 0 < len(left_out) <= LARGEST_SHARE * len(tests), f"{len(left_out)} of {len(tests)} tests"


def test_each_mark_has_a_reason_and_leaves_one_version(tests: Any) -> None:
    for path, name, marks in tests:
        for mark in marks:
            assert mark.reason and any(version.startswith(mark.versions) for version in VERSIONS), f"{path}::{name}"


def test_no_test_is_skipped_by_another_question_for_the_version() -> None:
    for path, tree in _sources():
        asked = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and _asks_for_the_version(node.value, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        skips = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("skip", "skipif")
        ]
        assert not any(_asks_for_the_version(node, asked) for node in skips), f"{path}: use the mark `tensorflow`"


def _asks_for_the_version(node: ast.AST, names: Set[str]) -> bool:
    return any(
        (isinstance(part, ast.Attribute) and part.attr in ("VERSION", "__version__"))
        or (isinstance(part, ast.Name) and part.id in names)
        for part in ast.walk(node)
    )
