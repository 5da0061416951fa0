"""The texts in docs/troubleshooting.md exist, the code in docs/ runs, the table of layers holds."""

import ast
import functools
import glob
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USER_ERRORS = ("AnnotationError", "FeedError", "MachineError", "NestingError", "PlanError", "PlanMismatchError")
# Messages of other programs.
FOREIGN = (
    "Descriptors cannot not be created directly",
    "Cannot convert a symbolic Tensor",
    "WARNING: Location",
    "OutOfRangeError",
    "Attempting to use uninitialized value EPL_REPLICA_1/",
    "You must feed a value for placeholder tensor 'EPL_REPLICA_1/",
    "No space left on device",
    "Too many levels of symbolic links",
    "Too many open files",
)
# A value in the middle of a text.
VALUE = "\0"


def page(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as source:
        return source.read()


def quoted():
    """Each text of EPL in bold, and its pieces; what differs from case to case stands between them as `...`."""
    for _, text in re.findall(r"\*\*(``?)(.+?)\1\*\*", page("troubleshooting.md")):
        if not text.startswith(FOREIGN):
            yield text, [piece.strip() for piece in re.split(r"\.{3}(?!\.)", text) if piece.strip()]


def constants(tree):
    """The texts that a module has names for."""
    return {
        node.targets[0].id: node.value.s
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Str)
    }


def python_texts(tree, named):
    """Texts of a syntax tree without docstrings, each as one expression puts it together; `named` are constants."""

    def text(node):
        if isinstance(node, ast.FormattedValue):
            return text(node.value) if isinstance(node.value, ast.Name) else VALUE
        if isinstance(node, ast.Str):
            return re.sub(r"%[-+0-9.]*[srdf]|{[\w.:!]*}", VALUE, node.s)
        if isinstance(node, ast.Name):
            return named.get(node.id, VALUE)
        if isinstance(node, ast.JoinedStr):
            return "".join(part.s if isinstance(part, ast.Str) else text(part) for part in node.values)
        if isinstance(node, ast.List):
            return "".join(map(text, node.elts))
        if isinstance(node, ast.BinOp):
            return text(node.left) + text(node.right)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NotAvailableError":
            return "not available yet: " + ". ".join(map(text, node.args))
        return VALUE

    parts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            parts.update([node.left, node.right])
        elif isinstance(node, ast.JoinedStr):
            parts.update(node.values)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NotAvailableError":
            parts.update(node.args)
        if node not in parts and text(node).strip(VALUE):
            yield text(node)


def cc_texts(source):
    """String literals of C++, joined where they stand next to each other or a `+` joins them."""
    source = re.sub(r'"\s*\n\s*"', "", source)
    source = re.sub(r'"\s*\+[^";]*\+\s*"', VALUE, source)
    for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source):
        yield re.sub(r"%[-+0-9.]*[srdfu]", VALUE, text)


@functools.lru_cache(None)
def all_texts():
    found = []
    for path in glob.glob(os.path.join(ROOT, "epl", "**", "*.py"), recursive=True) + tool_sources():
        with open(path, encoding="utf-8") as source:
            tree = ast.parse(source.read())
            found.extend(python_texts(tree, constants(tree)))
    for path in glob.glob(os.path.join(ROOT, "csrc", "comm", "*.cc")):
        with open(path, encoding="utf-8") as source:
            found.extend(cc_texts(source.read()))
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
    missing = [piece for _, pieces in quoted() for piece in pieces if piece not in texts]
    assert missing == []


# Messages whose reason or advice is a text of its own in the code.
OF_TWO_TEXTS = (
    "... has the rows of ..., which has them in two dimensions",
    "... is part of a whole whose rows are fed by their numbers",
    "Collectives between devices and processes are off:",
    "The checkpoint ... has no effect:",
    "a caller from ... was refused:",
    "epl.run cannot pickle ... with its arguments",
    "not available yet: ... beside ... on ... GPU(s)",
    "not available yet: zero.level. It is ..., which does not go together with",
)


def test_every_quoted_text_begins_with_its_message():
    texts = sorted({text.lstrip(VALUE + " '\n") for text in all_texts()})
    late = [
        text
        for text, pieces in quoted()
        if not any(
            one.startswith(pieces[0]) and (text.startswith(OF_TWO_TEXTS) or in_order(pieces, one)) for one in texts
        )
    ]
    assert late == [], "let these begin with the first words of the message, with ... for a value"


def in_order(pieces, text):
    """Whether a text has all pieces, one behind the other."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at) + len(piece)
        if at < len(piece):
            return False
    return True


def test_no_text_has_two_entries():
    texts = [text for text, _ in quoted()]
    assert sorted(text for text in set(texts) if texts.count(text) > 1) == []


def test_every_error_of_a_model_has_an_entry():
    entries = [pieces for _, pieces in quoted()]
    without = []
    for path in glob.glob(os.path.join(ROOT, "epl", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as source:
            tree = ast.parse(source.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = node.exc.func.id if isinstance(node.exc.func, ast.Name) else ""
                texts = [text for text in python_texts(node.exc, constants(tree)) if len(text) > 30]
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
