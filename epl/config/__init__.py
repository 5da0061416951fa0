"""The configuration: `epl.Config`, the table of its keys, and the types of their values."""

from epl.config.config import Config

__all__ = ["Config"]
