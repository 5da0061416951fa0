"""How a script ends is known at exit."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START = """
import atexit, sys, threading
from epl.utils.script_end import ScriptEnd
ScriptEnd.watch()
ScriptEnd.watch()
atexit.register(lambda: print("noted", ScriptEnd.failure()))
"""


@pytest.mark.parametrize(
    "end, code, noted",
    [
        ("", 0, "None"),
        ("sys.exit()", 0, "None"),
        ("sys.exit(0)", 0, "None"),
        ("raise SystemExit(0)", 0, "None"),
        ("sys.exit(3)", 3, "sys.exit(3)"),
        ("raise SystemExit(3)", 3, "sys.exit(3)"),
        ("raise type('Own', (SystemExit,), {})(3)", 3, "sys.exit(3)"),
        ("exit(3)", 3, "sys.exit(3)"),
        ("try: sys.exit(3)\nexcept SystemExit as end: assert (end.code, end.args) == (3, (3,))", 0, "None"),
        ("sys.exit('bad')", 1, "sys.exit('bad')"),
        ("raise ValueError('x')", 1, "ValueError: x"),
        ("raise ValueError('x\\n\\nOriginal stack trace for y')", 1, "ValueError: x"),
        ("thread = threading.Thread(target=sys.exit, args=[3]); thread.start(); thread.join()", 0, "None"),
    ],
)
def test_the_end_of_a_script_is_noted(end, code, noted):
    done = subprocess.run(
        [sys.executable, "-c", START + end], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=ROOT), universal_newlines=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (code, "noted " + noted), done.stderr
    assert ("Traceback" in done.stderr) == ("raise ValueError" in end)
