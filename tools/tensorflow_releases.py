"""The releases of TensorFlow that the project is set up for: packages, limits, and the Pythons of each.

`tools/set_up` makes environments by it, `tools/package` and setup.py packages. Any Python from 3.6 can run this file.
"""

from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

Version = Tuple[int, int]


class Release(NamedTuple):
    """One release.

    Attributes:
        name: Its first two numbers, such as "2.21": what `TF=` takes.
        version: The exact version of the packages on PyPI.
        pythons: Versions of Python that it has, the likeliest first.
        cpu: Requirements that install it for CPUs.
        gpu: Requirements that install it for GPUs.
        fetched: The Python that uv downloads for it where there is none.
    """

    name: str
    version: str
    pythons: Tuple[Version, ...]
    cpu: Tuple[str, ...]
    gpu: Tuple[str, ...]
    fetched: str

    @property
    def is_default_environment(self) -> bool:
        """Whether its environment is `.venv`; that of any other is `.venv-<name>`."""
        return self.name == "1.15"

    @property
    def on_pypi(self) -> Tuple[Version, ...]:
        """The Pythons for which PyPI has it: for 3.8 only NVIDIA has a 1.15."""
        return tuple(python for python in self.pythons if python != (3, 8))

    def library_folder(self, python: Version) -> str:
        """Folder of its libraries below epl/lib, as csrc/tensorflow_flags.py names it; empty for epl/lib itself."""
        return "" if self.name.startswith("1.") else "tf{}-cp{}{}".format(self.name, *python)


_LIMITS_1_15 = ("numpy<1.19", "protobuf<3.21")  # TensorFlow 1.15 names no upper limits; newer ones break it

RELEASES = (
    Release(
        "1.15",
        "1.15.5",
        ((3, 7), (3, 6), (3, 8)),
        ("tensorflow==1.15.5",) + _LIMITS_1_15,
        ("tensorflow-gpu==1.15.5",) + _LIMITS_1_15,
        "3.7",
    ),
    Release(
        "2.21",
        "2.21.0",
        ((3, 12), (3, 11), (3, 13), (3, 10)),
        ("tensorflow==2.21.0", "tf_keras==2.21.0"),
        ("tensorflow[and-cuda]==2.21.0", "tf_keras==2.21.0"),
        "3.12",
    ),
    Release("2.15", "2.15.1", ((3, 11),), ("tensorflow==2.15.1",), ("tensorflow[and-cuda]==2.15.1",), "3.11"),
)  # a Python gets the first one that has it, where nobody chooses
NAMES = tuple(sorted((release.name for release in RELEASES), key=lambda name: [int(part) for part in name.split(".")]))


def by_name(name: str) -> Optional[Release]:
    """The release of that name, or None."""
    return next((release for release in RELEASES if release.name == name), None)


def of_python(python: Sequence[int]) -> Optional[Release]:
    """The release that a Python gets where nobody chooses, or None."""
    return next((release for release in RELEASES if tuple(python[:2]) in release.pythons), None)


def extra(kind: str) -> Sequence[str]:
    """Requirements of the extra `cpu` or `gpu` of setup.py: for each Python the release that it gets by default."""
    words = []
    for release in RELEASES:
        marker = " or ".join(
            'python_version == "{}.{}"'.format(*python)
            for python in sorted(release.on_pypi)
            if of_python(python) is release
        )
        words += [f"{word}; {marker}" for word in getattr(release, kind) if marker]
    return words


def chosen(env: Mapping[str, str]) -> Optional[Release]:
    """The release that `TF` names; None where it is not set.

    Raises:
        ValueError: there is no such release; the text says which there are.
    """
    name = env.get("TF")
    if not name:
        return None
    release = by_name(name)
    if release is None:
        raise ValueError("TF={} is none of {}.".format(name, ", ".join(NAMES)))
    return release
