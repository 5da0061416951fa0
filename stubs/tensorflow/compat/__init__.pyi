"""Every name is Any but for those of `v1.pyi`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
