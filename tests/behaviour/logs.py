"""What EPL says while a script runs."""

import contextlib
import io
import logging
from typing import Iterator


@contextlib.contextmanager
def listening() -> Iterator[io.StringIO]:
    """Yields what the log of EPL says inside, from level INFO on."""
    said = logging.StreamHandler(io.StringIO())
    logger = logging.getLogger("epl")
    level = logger.level
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    try:
        yield said.stream
    finally:
        logger.removeHandler(said)
        logger.setLevel(level)
