"""TensorFlow 1.15 ships no types. Every name of it is Any but for those of `compat/v1.pyi`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
