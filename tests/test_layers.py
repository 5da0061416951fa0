"""The layers of the package: imports of epl/ point downward only, and TensorFlow's insides are touched in two places.

Reads the sources, imports nothing: a wrong import is named even when it would work. Imports under `if TYPE_CHECKING:`
are for mypy and do not count.
"""

import ast
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Low to high. A module may import its own layer and those before it. Each room of epl/parallel and epl/planner has its
# layer.
LAYERS = (
    ("epl.utils",),
    ("epl.planner.machine",),
    ("epl.planner.simulator",),
    ("epl.config", "epl.launcher"),
    ("epl.ops",),
    ("epl.ir",),
    ("epl.env",),
    ("epl.cluster",),
    ("epl.strategies",),
    ("epl.parallel.costs", "epl.parallel.sharding", "epl.parallel.weights"),
    ("epl.parallel.plan",),
    ("epl.parallel.rewriting",),
    ("epl.parallel.feature",),
    (
        "epl.parallel.accumulation",
        "epl.parallel.auto_partition",
        "epl.parallel.batch_norm",
        "epl.parallel.grouped_apply",
        "epl.parallel.io_slicing",
        "epl.parallel.offload",
        "epl.parallel.recompute",
        "epl.parallel.sharded_variables",
        "epl.parallel.strategy",
    ),
    ("epl.parallel.amp", "epl.parallel.replication", "epl.parallel.split", "epl.parallel.zero"),
    ("epl.parallel.whole_batch",),
    ("epl.parallel.pipeline",),
    ("epl.parallel",),
    ("epl.runtime",),
    ("epl.profiler",),
    ("epl.planner.profile",),
    ("epl.planner.calibration",),
    ("epl.planner.costs",),
    ("epl.planner",),
    ("epl.api", "epl"),
)

# A class with more lines says in its docstring why it is one.
MOST_LINES_OF_A_CLASS = 250
# Words that this project made up once, where the field has words of its own: half copy, wire dtype, stream, ...
INVENTED = frozenset("twin twins carrier carriers meeting meetings anew addend addends sweep regather standin".split())

# The features, and which of them may import which other.
FEATURES = frozenset(
    "accumulation amp auto_partition batch_norm grouped_apply io_slicing offload pipeline recompute".split()
    + "replication split strategy whole_batch zero".split()
)
BETWEEN_FEATURES = {
    ("amp", "accumulation"): "a step whose gradients overflow leaves the sums of accumulation alone",
    ("pipeline", "replication"): "micro batches sum gradients and merge outputs as replicas do",
    ("strategy", "auto_partition"): "blocks of a strategy are marked as stages are",
    ("whole_batch", "replication"): "where rows begin, and how wholes of values are built",
    ("replication", "accumulation"): "replicas agree on the accumulation step before they reduce",
}

# Data parallelism and pipelines are in every plan. Of the other features core code knows those here alone; what it asks
# of the rest goes through `epl/parallel/feature.py`.
IN_EVERY_PLAN = frozenset(["pipeline", "replication"])
KNOWN_TO_CORE = {
    ("epl.planner.costs.graph_costs", "recompute"): "which ops may be computed again",
    ("epl.planner.costs.graph_costs", "strategy"): "the forward pass that the command recorded",
    ("epl.planner.costs.mixed_precision", "amp"): "which ops compute in half precision",
    ("epl.planner.costs.mixed_precision", "strategy"): "the forward pass that the command recorded",
    ("epl.planner.costs.row_exchanges", "batch_norm"): "where statistics of all rows are added up",
    ("epl.planner.costs.row_exchanges", "strategy"): "the forward pass that the command recorded",
    ("epl.planner.costs.row_exchanges", "whole_batch"): "which collectives of a loss belong together",
    ("epl.planner.main", "strategy"): "the command records the strategy of a script",
    ("epl.planner.prediction.layout", "split"): "the groups of a split",
    ("epl.planner.prediction.recomputation", "recompute"): "where segments of recomputation begin",
    ("epl.planner.prediction.split_work", "split"): "which reshardings a choice needs",
    ("epl.planner.report.job_report", "strategy"): "the strategy of a job, as it is used",
    ("epl.planner.report.simulated_plan", "strategy"): "the forward pass that the command recorded",
    ("epl.planner.search.block_estimate", "split"): "which reshardings two blocks need between them",
    ("epl.planner.search.decision", "auto_partition"): "stages for a candidate",
    ("epl.planner.search.decision", "strategy"): "the forward pass; whether the command searches",
    (
        "epl.planner.search.model_blocks",
        "auto_partition",
    ): "which ops stay together, and in which order data meets them",
    ("epl.planner.search.model_blocks", "strategy"): "the forward pass of the model",
    ("epl.planner.search.planned_model", "strategy"): "the strategy of the script as it is",
    ("epl.planner.search.split_choices", "split"): "how the ops of a part would be computed on shards",
    ("epl.planner.search.split_choices", "strategy"): "the forward pass of the model",
    ("epl.profiler.estimate.what_if", "recompute"): "what recomputation would save",
    ("epl.profiler.estimate.what_if_state", "split"): "how fast links are",
    ("epl.profiler.memory_estimate", "amp"): "a step is estimated as it would run",
    ("epl.profiler.step_curves", "amp"): "the loss scale is one of the curves",
    ("epl.profiler.profiler", "amp"): "half copies count for what they replace",
    ("epl.runtime.dependencies", "auto_partition"): "a graph that is divided later has no stages yet",
    ("epl.runtime.hooks", "amp"): "how TensorFlow keeps weights for the loops of a backward pass",
    ("epl.runtime.hooks", "batch_norm"): "statistics of the rows of a batch are of all rows",
    ("epl.runtime.hooks", "zero"): "how a slot is found by the user's variable",
}

# Attributes of Graph and Env whose values have no type of EPL: control flow of TensorFlow; facts of the released EPL.
ALLOWED_ANY = [["self", "common_branches"], ["self", "parallel_information"]]

# Imports that point upward all the same, each with its reason.
EXCEPTIONS = {
    ("epl.utils.launcher", "epl.launcher.main"): "the path under which the released EPL has the launcher",
}

TF_COMPAT = "epl.utils.tf_compat"  # the folder alone imports private TensorFlow
HOOKS = "epl.runtime.hooks"  # alone replaces attributes of TensorFlow
# Their modules need no TensorFlow, and of epl only utils and what is listed here.
STAND_ALONE = {
    "epl.config": (),
    "epl.launcher": ("epl.config",),
    "epl.planner.machine": (),
    "epl.planner.simulator": ("epl.planner.machine",),
}


class Import(NamedTuple):
    target: str
    alias: str
    line: int
    top_level: bool


class Module(NamedTuple):
    name: str
    path: str
    tree: ast.Module
    imports: List[Import]


def read_modules(root: str) -> Dict[str, Module]:
    """Every module of the package `epl` under `root`, by its dotted name."""
    modules = {}
    for at, _, names in os.walk(os.path.join(root, "epl")):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(at, name)
                dotted = os.path.relpath(path, root)[: -len(".py")].replace(os.sep, ".")
                if dotted.endswith(".__init__"):
                    dotted = dotted[: -len(".__init__")]
                with open(path, encoding="utf-8") as source:
                    tree = ast.parse(source.read(), path)
                modules[dotted] = Module(dotted, os.path.relpath(path, root), tree, [])
    for module in modules.values():
        module.imports.extend(_imports(module, set(modules)))
    return modules


def _imports(module: Module, known: Set[str]) -> Iterator[Import]:
    top_level = set(ast.walk(ast.Module(body=[n for n in module.tree.body if not _is_scope(n)], type_ignores=[])))
    for node in _walk(module.tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                bound = item.asname or item.name.split(".")[0]
                yield Import(item.name, bound, node.lineno, node in top_level)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for item in node.names:
                inner = base + "." + item.name
                target = inner if inner in known or base.startswith("tensorflow") else base
                yield Import(target, item.asname or item.name, node.lineno, node in top_level)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk` without what stands under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and _chain(child.test)[-1:] == ["TYPE_CHECKING"]):
            yield child
            yield from _walk(child)


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    keep = len(parts) - node.level + (1 if module.path.endswith("__init__.py") else 0)
    return ".".join(parts[:keep] + ([node.module] if node.module else []))


def layer_of(name: str) -> int:
    """The index in LAYERS of a module, by its longest matching prefix; -1 when it has none."""
    best = (-1, -1)
    for index, prefixes in enumerate(LAYERS):
        for prefix in prefixes:
            own = name == prefix or (prefix != "epl" and name.startswith(prefix + "."))
            if own:
                best = max(best, (len(prefix), index))
    return best[1]


def upward_imports(modules: Dict[str, Module]) -> List[Tuple[str, str, str]]:
    """(importing module, imported module, place) for every import that points upward."""
    return [
        (module.name, found.target, f"{module.path}:{found.line}")
        for module in modules.values()
        for found in module.imports
        if found.target in modules and layer_of(found.target) > layer_of(module.name)
    ]


def feature_of(name: str) -> str:
    """The feature whose room a module is in; "" for others."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["epl", "parallel"] and len(parts) > 2 and parts[2] in FEATURES else ""


def room_of(name: str) -> str:
    """The folder of a module, in epl, epl/parallel or epl/planner; a loose module is a room of its own."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[:2] in (["epl", "parallel"], ["epl", "planner"]) else 2])


def circles_of_rooms(modules: Dict[str, Module]) -> List[Tuple[str, str]]:
    """(room, other room) of which each imports the other, directly or through more rooms."""
    imports: Dict[str, Set[str]] = {}
    for module in modules.values():
        own = imports.setdefault(room_of(module.name), set())
        own.update(
            room_of(f.target)
            for f in module.imports
            if f.target in modules and (module.name, f.target) not in EXCEPTIONS
        )
    reached = {room: _reached(room, imports) for room in imports}
    return sorted(
        (a, b) for a in reached for b in reached[a] if a < b and a in reached[b] and "epl.parallel" not in (a, b)
    )


def _reached(room: str, imports: Dict[str, Set[str]]) -> Set[str]:
    found: Set[str] = set()
    stack = [room]
    while stack:
        for other in imports.get(stack.pop(), ()):
            if other not in found:
                found.add(other)
                stack.append(other)
    return found


def _is_tf_compat(module: Module) -> bool:
    return module.name == TF_COMPAT or module.name.startswith(TF_COMPAT + ".")


def private_tensorflow(modules: Dict[str, Module]) -> List[str]:
    """Where a module other than tf_compat sees TensorFlow through anything but `import tensorflow.compat.v1 as tf`."""
    places = []
    for module in modules.values():
        if _is_tf_compat(module):
            continue
        for found in module.imports:
            re_exported = module.name == "epl" and found.target.startswith("tensorflow.compat.v1.")
            legal = (found.target, found.alias) == ("tensorflow.compat.v1", "tf") or re_exported
            if found.target.split(".")[0] == "tensorflow" and not legal:
                places.append(f"{module.path}:{found.line}: import of {found.target}")
        for node in ast.walk(module.tree):
            chain = _chain(node)
            if chain[:1] == ["tf"] and any(part.startswith("_") or part == "python" for part in chain[1:]):
                places.append("{}:{}: {}".format(module.path, node.lineno, ".".join(chain)))
    return places


# Private attributes of TensorFlow's ops, tensors and dtypes; tf_compat has functions for them.
PRIVATE_ATTRIBUTES = frozenset(
    "_update_input _add_control_input _add_control_inputs _remove_all_control_inputs _set_attr _clear_attr _set_device "
    "_is_ref_dtype _as_tf_output _c_op _get_control_flow_context _set_control_flow_context".split()
)


def private_attributes(modules: Dict[str, Module]) -> List[str]:
    """Where a module other than tf_compat uses a private attribute of an object of TensorFlow."""
    return [
        f"{module.path}:{node.lineno}: {node.attr}"
        for module in modules.values()
        if not _is_tf_compat(module)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_ATTRIBUTES
    ]


def replaced_attributes(modules: Dict[str, Module]) -> List[str]:
    """Where a module other than hooks assigns to an attribute of TensorFlow, or of what tf_compat gives."""
    places = []
    for module in modules.values():
        if module.name == HOOKS:
            continue
        foreign = {
            found.alias for found in module.imports if found.target.startswith(("tensorflow", TF_COMPAT))
        }  # fmt: skip
        for node in ast.walk(module.tree):
            for target in _assigned(node):
                chain = _chain(target)
                if len(chain) > 1 and chain[0] in foreign:
                    places.append("{}:{}: {} is replaced".format(module.path, target.lineno, ".".join(chain)))
    return places


def _assigned(node: ast.AST) -> List[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Attribute)]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    if isinstance(node, ast.Delete):
        return list(node.targets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        return [ast.copy_location(ast.Attribute(value=node.args[0], attr="<setattr>", ctx=ast.Store()), node)]
    return []


def _chain(node: ast.AST) -> List[str]:
    """`a.b.c` as ["a", "b", "c"]; [] for anything else, calls included: they return no attribute of a module."""
    parts: List[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id] + parts if isinstance(node, ast.Name) else []


def import_cycle(modules: Dict[str, Module]) -> List[str]:
    """A cycle of imports that run when the modules are imported; [] when there is none."""
    done: Set[str] = set()

    def visit(name: str, trail: List[str]) -> List[str]:
        if name in trail:
            return trail[trail.index(name) :] + [name]
        if name in done:
            return []
        for found in modules[name].imports:
            # A package's own modules may be imported by its __init__; the reverse is the import of the package.
            if found.top_level and found.target in modules and not name.startswith(found.target + "."):
                cycle = visit(found.target, trail + [name])
                if cycle:
                    return cycle
        done.add(name)
        return []

    for name in sorted(modules):
        cycle = visit(name, [])
        if cycle:
            return cycle
    return []


def defined_names(tree: ast.AST) -> Set[str]:
    """The names of the classes, functions, parameters, variables and attributes that a module defines."""
    names: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


@pytest.fixture(scope="module")
def modules() -> Dict[str, Module]:
    """The modules of this checkout."""
    return read_modules(ROOT)


def test_every_module_has_a_layer(modules):
    assert [name for name in modules if layer_of(name) < 0] == []


def test_imports_point_downward(modules):
    assert [place for place in upward_imports(modules) if place[:2] not in EXCEPTIONS] == []


def test_exceptions_are_needed(modules):
    assert set(EXCEPTIONS) <= {place[:2] for place in upward_imports(modules)}


def test_features_do_not_know_each_other(modules):
    found = {
        (feature_of(module.name), feature_of(one.target))
        for module in modules.values()
        for one in module.imports
        if one.target in modules and feature_of(module.name) and feature_of(one.target)
    }
    assert {pair for pair in found if pair[0] != pair[1]} == set(BETWEEN_FEATURES)


def test_core_asks_features_through_their_interface(modules):
    found = {
        (module.name, feature_of(one.target))
        for module in modules.values()
        if not feature_of(module.name) and module.name != "epl.parallel.features"
        for one in module.imports
        if one.target in modules and feature_of(one.target)
    }
    assert {pair for pair in found if pair[1] not in IN_EVERY_PLAN} == set(KNOWN_TO_CORE)


def test_the_graph_has_no_attribute_of_a_feature(modules):
    graph = next(n for n in modules["epl.ir.graph"].tree.body if isinstance(n, ast.ClassDef) and n.name == "Graph")
    attributes = {n.attr for n in ast.walk(graph) if isinstance(n, ast.Attribute) and _chain(n)[:1] == ["self"]}
    assert attributes.isdisjoint(FEATURES | {"shards", "twins", "accumulations", "scale_updates"})


@pytest.mark.parametrize("module, name", [("epl.ir.graph", "Graph"), ("epl.env", "Env")])
def test_what_everybody_holds_has_types(modules, module, name):
    held = next(n for n in modules[module].tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    found = [n for n in ast.walk(held) if isinstance(n, ast.AnnAssign) and "Any" in ast.dump(n.annotation)]
    assert [n.lineno for n in found if _chain(n.target) not in ALLOWED_ANY] == []


def test_a_type_has_a_name_of_its_own(modules):
    places: Dict[str, List[str]] = {}
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{module.path}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_long_class_says_why_it_is_one(modules):
    found = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        if max(getattr(one, "lineno", 0) for one in ast.walk(node)) - node.lineno >= MOST_LINES_OF_A_CLASS
        if "one class because" not in " ".join((ast.get_docstring(node) or "").split())
    ]
    assert found == []


def test_names_are_the_words_of_the_field(modules):
    found = {
        (module.path, name)
        for module in modules.values()
        for name in defined_names(module.tree)
        if not INVENTED.isdisjoint(re.findall("[A-Z]?[a-z]+", name.lower()))
    }
    assert found == set()


def test_rooms_do_not_need_each_other(modules):
    assert circles_of_rooms(modules) == []


def test_no_import_cycle(modules):
    assert import_cycle(modules) == []


def test_only_tf_compat_sees_private_tensorflow(modules):
    assert private_tensorflow(modules) == []


def test_only_tf_compat_uses_private_attributes_of_objects(modules):
    assert private_attributes(modules) == []


def test_only_hooks_replaces_attributes_of_tensorflow(modules):
    assert replaced_attributes(modules) == []


@pytest.mark.parametrize("package", STAND_ALONE)
def test_what_needs_no_tensorflow_stands_alone(modules, package):
    allowed = ("epl.utils", package, *STAND_ALONE[package])
    found = [
        f"{module.path}:{found.line}: {found.target}"
        for module in modules.values()
        if module.name.startswith(package)
        for found in module.imports
        if found.target.split(".")[0] == "tensorflow"
        or (found.target.startswith("epl") and not found.target.startswith(allowed))
    ]
    assert found == []


# The checks themselves, on a package made for it.


def _package(tmp_path, **sources):
    (tmp_path / "epl").mkdir()
    for name, source in sources.items():
        path = tmp_path.joinpath("epl", *name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return read_modules(str(tmp_path))


@pytest.mark.parametrize("source", ["from epl.parallel import planner", "import epl.parallel.planner"])
def test_an_upward_import_is_found(tmp_path, source):
    found = upward_imports(_package(tmp_path, ir__graph=source, parallel__planner=""))
    assert [place[:2] for place in found] == [("epl.ir.graph", "epl.parallel.planner")]


def test_an_upward_import_inside_a_function_is_found(tmp_path):
    found = upward_imports(_package(tmp_path, ops__native="def f():\n  from epl.env import Env", env=""))
    assert [place[:2] for place in found] == [("epl.ops.native", "epl.env")]


def test_a_relative_upward_import_is_found(tmp_path):
    found = upward_imports(_package(tmp_path, ops__native="from ..runtime import hooks", runtime__hooks=""))
    assert [place[:2] for place in found] == [("epl.ops.native", "epl.runtime.hooks")]


def test_a_circle_of_rooms_is_found(tmp_path):
    sources = {"ir__a": "from epl.ops import b", "ops__b": "", "ops__c": "from epl.ir import d", "ir__d": ""}
    modules = _package(tmp_path, **sources)
    assert circles_of_rooms(modules) == [("epl.ir", "epl.ops")] and import_cycle(modules) == []


def test_a_cycle_is_found(tmp_path):
    modules = _package(tmp_path, ir__a="from epl.ir import b", ir__b="from epl.ir import a")
    assert import_cycle(modules) == ["epl.ir.a", "epl.ir.b", "epl.ir.a"]


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow",
        "import tensorflow as tf",
        "from tensorflow.python.framework import ops",
        "from tensorflow.compat import v1",
        "import tensorflow.compat.v1 as tf\ntf._private()",
        "import tensorflow.compat.v1 as tf\ntf.python.ops",
    ],
)
def test_private_tensorflow_is_found(tmp_path, source):
    assert private_tensorflow(_package(tmp_path, ir__graph=source))


def test_a_type_only_import_is_no_import(tmp_path):
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from epl.env import Env"
    assert upward_imports(_package(tmp_path, ops__native=source, env="")) == []


def test_a_private_attribute_is_found(tmp_path):
    modules = _package(tmp_path, ir__graph="op._set_attr('a', value)", utils__tf_compat="op._set_attr('a', value)")
    assert private_attributes(modules) == ["epl/ir/graph.py:1: _set_attr"]


@pytest.mark.parametrize(
    "line",
    ["tf.Session.run = f", "tf.a, b = 1, 2", "setattr(tf.Session, 'run', f)", "ops.Graph.x += 1", "del tf.gradients"],
)
def test_a_replaced_attribute_is_found(tmp_path, line):
    source = "import tensorflow.compat.v1 as tf\nfrom epl.utils.tf_compat import ops\n" + line
    assert replaced_attributes(_package(tmp_path, ir__graph=source))


def test_hooks_may_replace_attributes(tmp_path):
    source = "import tensorflow.compat.v1 as tf\ntf.Session.run = 1"
    assert replaced_attributes(_package(tmp_path, runtime__hooks=source)) == []
