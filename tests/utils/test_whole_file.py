"""A file is written whole or not at all."""

import os

import pytest

from epl.utils.whole_file import write_whole


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    write_whole(str(path), "new \u00b5")
    assert path.read_text(encoding="utf-8") == "new \u00b5" and os.listdir(str(tmp_path)) == ["a.txt"]


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(str(path), "\udc80")
    assert path.read_text() == "old" and os.listdir(str(tmp_path)) == ["a.txt"]
