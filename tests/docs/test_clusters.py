"""The scripts of docs/clusters.md, run with stand-ins for the programs of a cluster."""

import os
import subprocess
import sys

from tests.docs import blocks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Runs its command for each machine, as srun does with one task on each.
SRUN = 'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done'
LAUNCH = 'exec {} {}/tools/epl-launch --dry_run "$@"'.format(sys.executable, ROOT)


def program(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)


def test_the_slurm_script_starts_one_launcher_on_each_machine(tmp_path):
    (script,) = [text for language, text in blocks.of_page("clusters.md") if "#SBATCH" in text]
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.key").write_text("0123456789abcdef" * 2)
    (tmp_path / "job.key").chmod(0o600)
    tools = tmp_path / "bin"
    tools.mkdir()
    program(tools, "scontrol", "echo node7; echo node8")
    program(tools, "srun", SRUN)
    program(tools, "epl-launch", LAUNCH)
    env = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", PYTHON=sys.executable, EPL_CLUSTER_DEVICE_TYPE="cpu")
    env.update(SLURM_JOB_ID="42", SLURM_JOB_NODELIST="node[7-8]", SLURM_NNODES="2")
    done = subprocess.run(
        ["bash", "job.sh"], cwd=str(tmp_path), env=env, timeout=120, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for index in range(2):
        assert f'"index": {index}' in done.stdout
        assert f"experiments/42-{index}" in done.stdout
    assert done.stdout.count('["node7:2222", "node8:2222"]') == 2
