"""Runs the scripts for sbatch: a stand-in for srun starts two tasks on this machine."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SRUN = os.path.join(ROOT, "tests", "cluster", "stand_ins", "srun")


def checkout(folder):
    """Makes a folder look like a checkout, into which the examples write."""
    (folder / "examples").symlink_to(os.path.join(ROOT, "examples"))
    return folder


def sbatch(folder, *command, **settings):
    """Runs a batch script, as Slurm does on the first machine of a job; returns what all wrote."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "srun").write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {SRUN} -n 2 -w node1 "$@"\n')
    (programs / "srun").chmod(0o755)
    env = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", PYTHON=sys.executable, **settings)
    env.update(PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="", SLURM_JOB_ID="42")
    done = subprocess.run(
        ["bash"] + list(command), cwd=str(folder), env=env, timeout=280, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
