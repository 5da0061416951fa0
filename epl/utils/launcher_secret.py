"""The secret by which the workers of a job know each other: where it comes from, and how it gets to the workers.

It travels in the environment of the workers alone: a command line is seen by every user of the machine, and a log by
who knows whom. What it protects is in docs/launcher.md; how it is used, in epl/ops/job_secret.py.
"""

import os
import secrets
from typing import Dict, Mapping

from epl.utils.job_variables import SECRET, SECRET_FILE
from epl.utils.launcher_options import Options

_BYTES = 32


def draw(options: Options) -> Dict[str, str]:
    """The variables that give the workers of one start their secret; empty where it is what the environment says.

    A launcher that starts all workers draws a new secret for each start, so that a worker which an earlier start has
    left cannot come back. Launchers of several machines cannot agree on one: there the user gives it.
    """
    if options.secret_file is not None:
        return {SECRET_FILE: os.path.abspath(options.secret_file)}
    if len(options.local_indices) == options.num_workers:
        return {SECRET: secrets.token_hex(_BYTES)}
    return {}


def give(environ: Mapping[str, str], secret: Mapping[str, str]) -> Dict[str, str]:
    """An environment with this secret and no other; as it is if `secret` is empty."""
    if not secret:
        return dict(environ)
    env = {key: value for key, value in environ.items() if key not in (SECRET, SECRET_FILE)}
    env.update(secret)
    return env
