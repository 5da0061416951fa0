"""Writes a file whole or not at all."""

import os


def write_whole(path: str, text: str) -> None:
    """Writes a text in UTF-8; until all of it is written, what the file had stays.

    Raises:
      OSError: the file cannot be written; it is as it was.
    """
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise
