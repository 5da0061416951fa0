"""The secret and the name of a job, by which its workers recognize each other and refuse strangers and other jobs.

Both come from the environment. `epl-launch` draws the secret of a job of one machine; for several machines the user
gives it. It proves that a worker belongs to the job when workers meet, by HMAC-SHA256 (csrc/comm/handshake.h); it
encrypts nothing.
"""

import ctypes
import functools
import hashlib
import hmac
import os
from typing import Any, Mapping, Optional, Sequence

from epl.ops import native
from epl.utils.errors import JobSecretError
from epl.utils.job_variables import JOB_NAME, SECRET, SECRET_FILE

_FEWEST_BYTES = 16
_LOOPBACK = ("127.", "localhost:", "[::1]:")
_DIGEST_BYTES = hashlib.sha256().digest_size


def job_name(environ: Mapping[str, str]) -> bytes:
    """The name of the job, empty if it has none."""
    return os.fsencode(environ.get(JOB_NAME, ""))


def job_secret(environ: Mapping[str, str]) -> Optional[bytes]:
    """The secret of the job: EPL_JOB_SECRET, else what the file EPL_JOB_SECRET_FILE holds; None if neither is set.

    Raises:
      JobSecretError: the secret is too short to be one, or the file cannot be read, or others can read it.
    """
    if SECRET in environ:
        return _checked(SECRET, os.fsencode(environ[SECRET]))
    return _read(environ[SECRET_FILE]) if SECRET_FILE in environ else None


def _checked(source: str, text: bytes) -> bytes:
    """The secret in a text that may end with a newline; `source` says where the text comes from, for messages."""
    secret = text.strip()
    if len(secret) < _FEWEST_BYTES:
        raise JobSecretError(
            "{} holds {} bytes, expected at least {}: make one with `openssl rand -hex 32` and give it to every worker "
            "of the job.".format(source, len(secret), _FEWEST_BYTES)
        )
    return secret


@functools.lru_cache(maxsize=None)
def _read(path: str) -> bytes:
    """The secret in the file, kept from the first read: a script may change its directory after epl.init()."""
    try:
        with open(path, "rb") as source:
            mode = os.fstat(source.fileno()).st_mode
            secret = source.read()
    except OSError as error:
        raise JobSecretError(f"{SECRET_FILE}={path}: {error.strerror}.") from None
    if mode & 0o007:
        raise JobSecretError(
            "{}={}: every user of this machine can read or write it (mode {:o}): `chmod o-rwx` it.".format(
                SECRET_FILE, path, mode & 0o777
            )
        )
    return _checked(f"{SECRET_FILE}={path}", secret)


def mac_function(secret: Optional[bytes]) -> Any:
    """The callback by which the core computes MACs under the secret; a null pointer without one."""
    if secret is None:
        return native.MacFunction()
    key = secret

    def compute(_: Any, text: int, size: int, digest: int) -> int:
        ctypes.memmove(digest, hmac.new(key, ctypes.string_at(text, size), hashlib.sha256).digest(), _DIGEST_BYTES)
        return 1

    return native.MacFunction(compute)


def is_open_to_strangers(hosts: Sequence[str], secret: Optional[bytes]) -> bool:
    """Whether someone on another machine could come to the workers at `hosts` and be taken for one of them."""
    return len(hosts) > 1 and secret is None and not all(host.startswith(_LOOPBACK) for host in hosts)
