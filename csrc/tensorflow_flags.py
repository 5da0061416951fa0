"""Prints, as make variables, how to build against the TensorFlow of this Python. Run by csrc/Makefile.

`--identity` prints instead, as JSON, which TensorFlow it is. The build keeps the text next to the libraries, and
`epl/ops/native.py` compares it with the TensorFlow that is to load them. `--folder` prints the name of the folder that
holds the libraries in a checkout, for several environments side by side, without importing TensorFlow.
"""

import importlib.util
import json
import os
import re
import sys
import sysconfig
from typing import Any, Dict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_PACKAGE = re.compile(r"(?:[a-z]+_)?tensorflow(?:_gpu|_cpu)?-(\d+)\.(\d+)[^-]*\.(?:dist|egg)-info$")


def identity(tf: Any) -> Dict[str, Any]:
    """What a library must share with the TensorFlow that loads it: sources, C++ ABI of strings, platform.

    The tag of the Python tells where it was built; the libraries use no interface of Python.
    """
    return {
        "version": tf.VERSION,
        "git_version": tf.GIT_VERSION,
        "cxx11_abi": int(tf.CXX11_ABI_FLAG),
        "platform": sysconfig.get_platform(),
        "python": "cp%d%d" % sys.version_info[:2],
    }


def folder() -> str:
    """Name of the folder below epl/lib and csrc/build, such as "tf2.21-cp312"; empty for TensorFlow 1.x and for none.

    epl/ops/native.py looks for the same name.
    """
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        return ""
    packages = os.path.dirname(os.path.dirname(found.origin))
    versions = [match.groups() for match in map(_PACKAGE.match, sorted(os.listdir(packages))) if match]
    if not versions or versions[0][0] == "1":
        return ""
    return "tf%s.%s-cp%d%d" % (versions[0] + sys.version_info[:2])


def main() -> None:
    """Prints TF_STD, TF_CFLAGS and TF_LIBS, or what an option asks for."""
    if sys.argv[1:] == ["--folder"]:
        print(folder())
        return
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
    flags = [flag for flag in flags if not flag.startswith("-DEIGEN_MAX_ALIGN_BYTES=")]
    flags += ["-DEIGEN_MAX_ALIGN_BYTES=64", "-DEPL_TF_VERSION=%d%02d" % version]
    libs = tf.sysconfig.get_link_flags()
    print("TF_STD := -std=%s" % ("c++14" if version < (2, 10) else "c++17"))
    print("TF_CFLAGS := " + " ".join(flags))
    print("TF_LIBS := " + " ".join(libs))


if __name__ == "__main__":
    main()
