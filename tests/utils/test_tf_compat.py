"""The two halves of epl/utils/tf_compat have one interface."""

import ast
import os

import epl

FOLDER = os.path.join(os.path.dirname(os.path.abspath(epl.__file__)), "utils", "tf_compat")


def read(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as source:
        return ast.parse(source.read())


def interface(name):
    """The names of `__all__`; and each public function: its arguments, with their types, and what it returns."""
    tree = read(name)
    (names,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__"
    ]
    functions = {
        node.name: (ast.dump(node.args), ast.dump(node.returns))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    return names, functions


def test_both_have_the_same_names_and_functions():
    names, functions = interface("tf1.py")
    assert (names, functions) == interface("tf2.py")
    assert set(functions) <= set(names) and names == sorted(names)


def test_each_name_is_bound_in_both():
    for module in ("tf1.py", "tf2.py"):
        bound = set()
        for node in read(module).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                bound.update(item.asname or item.name for item in node.names)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound.update(target.id for target in targets)
            elif hasattr(node, "name"):
                bound.add(node.name)
        assert set(interface(module)[0]) <= bound
