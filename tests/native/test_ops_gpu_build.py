"""The kernels compile against the TensorFlow that has CUDA, whose wheel is fetched for it, without CUDA's headers."""

import os
import subprocess
import sys
import zipfile

import pytest

CSRC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "csrc")


def fetch_headers(folder, package, marker):
    """Downloads a wheel and unpacks its headers; returns the folders to include."""
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), package]
    subprocess.run(download, check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(str(wheel)) as archive:
        archive.extractall(str(folder), [name for name in archive.namelist() if marker in name])
    wheel.unlink()
    return [root for root, folders, _ in os.walk(str(folder)) if root.endswith(marker.rstrip("/"))]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "source", sorted(name for name in os.listdir(os.path.join(CSRC, "tensorflow")) if name.endswith(".cc"))
)
def test_kernel_compiles_for_tensorflow_gpu(gpu_headers, source):
    includes = [argument for folder in gpu_headers for argument in ("-isystem", folder)]
    subprocess.run(
        [
            "g++",
            "-std=c++14",
            "-fsyntax-only",
            "-D_GLIBCXX_USE_CXX11_ABI=0",
            "-DEIGEN_MAX_ALIGN_BYTES=64",
            "-DEPL_TF_VERSION=115",
            "-I" + CSRC,
        ]
        + includes
        + [os.path.join(CSRC, "tensorflow", source)],
        check=True,
    )


@pytest.fixture(scope="module")
def gpu_headers(tmp_path_factory):
    return fetch_headers(tmp_path_factory.mktemp("tf"), "tensorflow-gpu==1.15.5", "tensorflow_core/include/")
