"""Prints, as make variables, how to build against the TensorFlow of this Python. Run by csrc/Makefile.

`--identity` prints instead, as JSON, which TensorFlow it is. The build keeps the text next to the libraries, and
`epl/ops/native.py` compares it with the TensorFlow that is to load them.
"""

import glob
import json
import os
import sys
from typing import Any, Dict, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def cuda_include() -> Optional[str]:
    """Returns the folder that holds cuda_runtime.h, or None."""
    folders = [os.environ.get("CUDA_INCLUDE"), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    for path in sys.path:
        folders += sorted(glob.glob(os.path.join(path, "nvidia", "cuda_runtime", "include")))
    for folder in folders:
        if folder and os.path.exists(os.path.join(folder, "cuda_runtime.h")):
            return folder
    return None


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
    if tf.test.is_built_with_cuda():
        include = cuda_include()
        if include:
            flags += ["-DGOOGLE_CUDA=1", "-isystem", include]
        else:
            sys.stderr.write(
                "EPL: no GPU kernels: this TensorFlow has CUDA, but cuda_runtime.h was not found; give its folder as "
                "CUDA_INCLUDE= or CUDA_HOME=, or pip install nvidia-cuda-runtime-cu11\n"
            )
    flags.append("-DEIGEN_MAX_ALIGN_BYTES=64")
    libs = tf.sysconfig.get_link_flags()
    print("TF_STD := -std=%s" % ("c++14" if version < (2, 10) else "c++17"))
    print("TF_CFLAGS := " + " ".join(flags))
    print("TF_LIBS := " + " ".join(libs))


if __name__ == "__main__":
    main()
