"""The texts in docs/troubleshooting.md exist, the code in docs/ runs, the table of layers holds."""

import ast
import glob
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER_ERRORS = ("AnnotationError", "FeedError", "MachineError", "NestingError", "PlanError", "PlanMismatchError")
# Quoted texts that other programs give.
FOREIGN = {
    "Descriptors cannot not be created directly",
    "Cannot convert a symbolic Tensor", "to a numpy array",
    "WARNING: Location", "is ignored",
    "OutOfRangeError",
    "Attempting to use uninitialized value EPL_REPLICA_1/",
    "You must feed a value for placeholder tensor 'EPL_REPLICA_1/", "'",
    "No space left on device",
    "Too many levels of symbolic links",
}  # fmt: skip


def page(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as source:
        return source.read()


def quoted():
    """The pieces of each text in bold; what differs from case to case stands between them as `...`."""
    for text in re.findall(r"\*\*`([^`]+)`\*\*", page("troubleshooting.md")):
        yield [piece.strip() for piece in text.split("...") if piece.strip()]


def python_texts(tree):
    """String constants of a syntax tree, those of f-strings and of neighbouring literals in one piece."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            yield "".join(value.s if isinstance(value, ast.Str) else "{}" for value in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Str) and node not in parts:
            yield node.s


def all_texts():
    found = []
    for path in glob.glob(os.path.join(ROOT, "epl", "**", "*.py"), recursive=True) + tool_sources():
        with open(path, encoding="utf-8") as source:
            found.extend(python_texts(ast.parse(source.read())))
    for path in glob.glob(os.path.join(ROOT, "csrc", "comm", "*.cc")):
        with open(path, encoding="utf-8") as source:
            joined = re.sub(r'"\s*\n\s*"', "", source.read())
            found.extend(re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined))
    return found


def tool_sources():
    paths = [os.path.join(at, name) for at, _, names in os.walk(os.path.join(ROOT, "tools")) for name in names]
    with_shebang = []
    for path in paths:
        if not path.endswith(".pyc"):
            with open(path, encoding="utf-8", errors="replace") as source:
                if path.endswith(".py") or "python" in source.readline():
                    with_shebang.append(path)
    return with_shebang


def test_every_quoted_text_exists():
    texts = "\n".join(all_texts())
    missing = [piece for pieces in quoted() for piece in pieces if piece not in texts and piece not in FOREIGN]
    assert missing == []


def test_no_text_has_two_entries():
    texts = re.findall(r"\*\*`([^`]+)`\*\*", page("troubleshooting.md"))
    assert sorted(text for text in set(texts) if texts.count(text) > 1) == []


def test_every_error_of_a_model_has_an_entry():
    entries = list(quoted())
    without = []
    for path in glob.glob(os.path.join(ROOT, "epl", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as source:
            tree = ast.parse(source.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = node.exc.func.id if isinstance(node.exc.func, ast.Name) else ""
                texts = [text for text in python_texts(node.exc) if len(text) > 30]
                if name in USER_ERRORS and texts:
                    if not any(all(piece in "".join(texts) for piece in pieces) for pieces in entries):
                        without.append(f"{os.path.relpath(path, ROOT)}:{node.lineno}")
    assert without == [], "add these to docs/troubleshooting.md"


@pytest.mark.parametrize(
    "name",
    ["data_parallelism.md", "gradient_accumulation.md", "offload.md", "pipeline.md", "profiling.md", "tensorboard.md"],
)
def test_the_code_of_a_page_runs(tmp_path, name):
    blocks = re.findall(r"^```python\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks + ["print(value)\n"]))
    env = dict(os.environ, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="", EPL_CLUSTER_NUM_VIRTUAL_DEVICES="2")
    env.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, str(script)], env=env, cwd=str(tmp_path), timeout=240, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_layers_of_the_page_are_those_that_are_checked():
    with open(os.path.join(ROOT, "tests", "test_layers.py"), encoding="utf-8") as source:
        tree = ast.parse(source.read())
    (layers,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LAYERS"
    ]
    table = page("architecture.md").split("| Layer, top to bottom")[1].split("\n\n")[0]
    rows = [tuple(re.findall(r"`([^`]+)`", row.split("|")[1])) for row in table.split("\n")[2:] if row]
    assert [set(row) for row in rows] == [set(layer) for layer in reversed(layers)]
