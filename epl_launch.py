"""The command `epl-launch`, without loading TensorFlow: epl/__init__.py does, and it takes seconds.

A module of its own beside the package, because importing anything inside a package imports the package first.
"""

import importlib.util
import sys
import types


def main() -> int:
    """Runs the launcher with the arguments of the command line; returns its exit code."""
    leave_out_package_import()
    from epl.launcher.main import main as launch

    return launch()


def leave_out_package_import() -> None:
    """Lets modules of epl be imported without epl/__init__.py."""
    spec = importlib.util.find_spec("epl")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("The package epl is not installed for {}: run `pip install .`.".format(sys.executable))
    # An empty stand-in for the package, through which its modules are found.
    package = types.ModuleType("epl")
    package.__path__ = list(spec.submodule_search_locations)  # type: ignore[attr-defined]  # mypy: modules have one
    sys.modules["epl"] = package


if __name__ == "__main__":  # how `epl-launch -H` starts its part on another machine
    sys.exit(main())
