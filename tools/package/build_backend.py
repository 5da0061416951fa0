"""The hooks of PEP 517 and 660 that pyproject.toml names: those of setuptools, with two differences.

A build of the native libraries gets a TensorFlow into its own environment where the interpreter has none, so that
`pip install ".[cpu]"` builds them in a fresh environment. An installation in place puts the folder of the checkout on
the path, as the older `setup.py develop` does, so that tools which read no import hooks (mypy) find the package.
"""

from typing import Any, Dict, List, Optional

import build_tensorflow
from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  hooks that stay as they are
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_wheel,
)

Settings = Optional[Dict[str, Any]]


def get_requires_for_build_wheel(config_settings: Settings = None) -> List[str]:
    """What a build of a wheel needs in addition to pyproject.toml."""
    return list(build_meta.get_requires_for_build_wheel(config_settings)) + build_tensorflow.requirements()


# setuptools before 64, the newest of which serve Python 3.6, has no PEP 660: pip then runs `setup.py develop`.
if hasattr(build_meta, "build_editable"):

    def get_requires_for_build_editable(config_settings: Settings = None) -> List[str]:
        """What an installation in place needs in addition to pyproject.toml."""
        return list(build_meta.get_requires_for_build_editable(config_settings)) + build_tensorflow.requirements()

    def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
        """Writes the metadata; returns the name of their folder."""
        return build_meta.prepare_metadata_for_build_editable(metadata_directory, _in_place(config_settings))

    def build_editable(
        wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
    ) -> str:
        """Makes the wheel that links to the checkout; returns its name."""
        return build_meta.build_editable(wheel_directory, _in_place(config_settings), metadata_directory)

    def _in_place(config_settings: Settings) -> Dict[str, Any]:
        return dict({"editable_mode": "compat"}, **(config_settings or {}))
