"""The secret by which the workers of a job recognize each other: where it comes from, and how it gets to the workers.

It travels only in the environment of the workers: every user of the machine can see a command line, and others may
read a log. docs/launcher.md says what the secret protects; epl/ops/job_secret.py uses it.
"""

import os
import secrets
from typing import Dict, Mapping

from epl.launcher.options import Options
from epl.utils.job_variables import SECRET, SECRET_FILE

_BYTES = 32


def draw(options: Options) -> Dict[str, str]:
    """The variables that give the workers of one start their secret; empty if the environment has them already.

    A launcher that starts all workers draws a new secret for each start, so that a worker left over from an earlier
    start cannot come back. Launchers of several machines cannot agree on one: there the user gives it.
    """
    if options.ranks is not None:
        return {}  # the launcher of the job has given it to this machine
    if options.secret_file is not None:
        return {SECRET_FILE: os.path.abspath(options.secret_file)}
    if len(options.local_indices) == options.num_workers:
        return random_secret()
    return {}


def random_secret() -> Dict[str, str]:
    """The variable with a new secret."""
    return {SECRET: secrets.token_hex(_BYTES)}


def give(environ: Mapping[str, str], secret: Mapping[str, str]) -> Dict[str, str]:
    """An environment with this secret and no other; the unchanged environment if `secret` is empty."""
    if not secret:
        return dict(environ)
    env = {key: value for key, value in environ.items() if key not in (SECRET, SECRET_FILE)}
    env.update(secret)
    return env
