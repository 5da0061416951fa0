"""Prints, as make variables, how to build against the TensorFlow of this Python. Run by csrc/Makefile.

`--identity` prints instead, as JSON, which TensorFlow it is. The build keeps the text next to the libraries, and
`epl/ops/native.py` compares it with the TensorFlow that is to load them.
"""

import json
import os
import sys
from typing import Any, Dict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def identity(tf: Any) -> Dict[str, Any]:
    """What a library must share with the TensorFlow that loads it: its sources, and the C++ ABI of its strings."""
    return {"version": tf.VERSION, "git_version": tf.GIT_VERSION, "cxx11_abi": int(tf.CXX11_ABI_FLAG)}


def main() -> None:
    """Prints TF_STD, TF_CFLAGS and TF_LIBS, or with --identity the identity."""
    import tensorflow as tf

    if sys.argv[1:] == ["--identity"]:
        print(json.dumps(identity(tf.compat.v1)))
        return
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    flags = []
    for flag in tf.sysconfig.get_compile_flags():
        # TensorFlow's headers warn a lot: they are system headers here.
        flags += ["-isystem", flag[2:]] if flag.startswith("-I") else [flag]
    flags = [flag for flag in flags if not flag.startswith("--std=") and not flag.startswith("-std=")]
    flags.append("-DEIGEN_MAX_ALIGN_BYTES=64")
    libs = tf.sysconfig.get_link_flags()
    print("TF_STD := -std=%s" % ("c++14" if version < (2, 10) else "c++17"))
    print("TF_CFLAGS := " + " ".join(flags))
    print("TF_LIBS := " + " ".join(libs))


if __name__ == "__main__":
    main()
