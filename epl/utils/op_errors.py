"""The cause in the text of an error of TensorFlow, without the places where its ops were made.

    1.15:  <cause>, Original stack trace for 'op': ...
    2.x:   Graph execution error: Detected at node 'op' defined at ..., Node: 'op', <cause>, Original stack trace ...

Where several ops fail, <cause> is "2 root error(s) found." and a numbered list. Other processes and the launcher show
a few lines of an error, which must be those of the cause.
"""

import re

_MADE_AT_FIRST = "Graph execution error:\n"
_MADE_AT_END = "\n\nOriginal stack trace for "
_NODE = re.compile(r"^Node: '.*'\n", re.M)
_LIST_HEAD = re.compile(r"^\d+ root error\(s\) found\.\n\s*\(0\) [^:\n]*: ")


def cause_of(error: BaseException) -> str:
    """Returns the cause of an error, of TensorFlow or any other, as text, from the first of several causes on."""
    return cause_in(str(error))


def cause_in(text: str) -> str:
    """Returns the cause in the text of an error."""
    text = text.split(_MADE_AT_END)[0]
    if text.startswith(_MADE_AT_FIRST):
        text = _NODE.split(text)[-1].strip() or text
    return _LIST_HEAD.sub("", text)


def first_line(error: BaseException) -> str:
    """Returns the first line of the cause of an error, for a text that has one line for it."""
    lines = cause_of(error).strip().splitlines()
    return lines[0] if lines else "it failed"
