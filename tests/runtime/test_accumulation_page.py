"""The code of the page about gradient accumulation runs as it stands."""
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.parametrize("devices", ["1", "2"])
def test_the_code_of_the_page_runs(tmp_path, devices):
    with open(os.path.join(ROOT, "docs", "gradient_accumulation.md"), encoding="utf-8") as source:
        blocks = re.findall(r"^```python\n(.*?)^```$", source.read(), re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    env = dict(os.environ, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="", EPL_CLUSTER_NUM_VIRTUAL_DEVICES=devices)
    env.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, str(script)], env=env, timeout=120, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
