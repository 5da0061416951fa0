"""The file of measured ops: JSON, for all devices that were measured by this user.

    {"format": "epl-op-profile", "version": 1,
     "devices": {"Xeon ..., 2 threads, TensorFlow 1.15.5": {"<hash of a signature>": {"op": ..., "forward": s, ...}}}}

Several processes may write it: each reads it again under a lock, adds what it has measured, and writes it whole.
"""

import fcntl
import hashlib
import json
import logging
import math
import os
from typing import Any, Dict, NamedTuple

from epl.parallel.costs.backward import Signature
from epl.utils.whole_file import write_whole

logger = logging.getLogger("epl")

_FORMAT, _VERSION = "epl-op-profile", 1


class StoredOp(NamedTuple):
    """What the file has of an op on a device.

    Attributes:
      op: it, for people.
      forward, backward: seconds of one run.
      spread: of the longer one, as a share of it.
      date: when it was measured.
    """

    op: str
    forward: float
    backward: float
    spread: float
    date: str


StoredOps = Dict[str, Dict[str, StoredOp]]  # device -> hash of the signature -> what is known


def default_path() -> str:
    """The file in the user's folder for caches."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(folder, "epl", "op_profile.json")


def hash_of(op: Signature) -> str:
    """A hash of a signature that is the same in every process."""
    parts = [
        op.type,
        [attr.hex() for attr in op.attrs],
        [[str(one.shape), one.dtype.name] for one in op.inputs],
        [[str(one.shape), one.dtype.name] for one in op.outputs],
        [str(one) for one in op.constants],
        list(op.wanted),
        list(op.used),
        [None if one is None else [str(one.shape), one.dtype.name] for one in op.variables],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read(path: str) -> StoredOps:
    """What a file has; nothing if there is none. One that is damaged counts as empty, which the log says."""
    try:
        with open(path, encoding="utf-8") as file:
            return _checked(json.load(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        logger.warning(
            "The file of measured ops %s cannot be used and counts as empty (%s); the next measurement writes it anew.",
            path,
            error,
        )
        return {}


def add(path: str, device: str, found: Dict[str, StoredOp]) -> None:
    """Adds what was measured on a device to a file; what the file has of the same ops is replaced.

    Raises:
      OSError: the file cannot be written.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read(path)
        known.setdefault(device, {}).update(found)
        devices = {name: {key: one._asdict() for key, one in ops.items()} for name, ops in known.items()}
        text = {"format": _FORMAT, "version": _VERSION, "devices": devices}
        write_whole(path, json.dumps(text, indent=0, sort_keys=True))


def _checked(plain: Any) -> StoredOps:
    """The ops of a file.

    Raises:
      ValueError: it has another form.
    """
    if not isinstance(plain, dict) or (plain.get("format"), plain.get("version")) != (_FORMAT, _VERSION):
        raise ValueError(f"it is no {_FORMAT} of version {_VERSION}")
    found: StoredOps = {}
    for device, ops in _mapping(plain.get("devices")).items():
        found[device] = {key: _op(one) for key, one in _mapping(ops).items()}
    return found


def _mapping(plain: Any) -> Dict[str, Any]:
    if not isinstance(plain, dict):
        raise ValueError("a part of it is no mapping")
    return plain


def _op(plain: Any) -> StoredOp:
    if set(_mapping(plain)) != set(StoredOp._fields):
        raise ValueError(f"an op of it has not the keys {', '.join(StoredOp._fields)}")
    for key in ("forward", "backward", "spread"):
        value = plain[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"{key} of an op is {value!r:.40}, no number of at least 0")
    return StoredOp(str(plain["op"]), plain["forward"], plain["backward"], plain["spread"], str(plain["date"]))
