"""Installs packages into the virtual environment: with uv where it is there, which is faster, else with pip.

Owns the words of both programs. What is installed, and when, is `environment.py`'s. Any Python from 3.6 can run this
file.
"""

import shutil
import subprocess
from typing import Callable, List, Mapping, Optional, Tuple

from pythons import SetUpError


class Installer:
    """Installs into one virtual environment.

    uv does not read pip's configuration: where it fails, pip does the same once more, and the rest.
    """

    def __init__(
        self,
        python: str,
        version: Tuple[int, ...],
        env: Mapping[str, str],
        say: Callable[[str], None],
        progress: bool,
    ) -> None:
        """
        Args:
            python: The interpreter of the virtual environment.
            version: Its version.
            env: Environment variables for uv and pip.
            say: Takes a line for the user.
            progress: Whether to show what is downloaded; else only errors are shown.
        """
        self._python = python
        self._env = dict(env)
        self._say = say
        self._progress = progress
        # uv knows no Python 3.6.
        self._uv: Optional[str] = shutil.which("uv", path=env.get("PATH")) if version >= (3, 7) else None

    def install(self, words: List[str], cwd: str, **env: str) -> None:
        """Installs what the words name, as `pip install` understands them.

        Raises:
            SetUpError: pip failed.
        """
        quiet = [] if self._progress else ["-q"]
        if not self._with_uv(["install"] + quiet + ["--python", self._python] + words, cwd, env):
            # Twice quiet: errors are shown, remarks about other folders of the machine are not.
            self._with_pip(["install"] + ([] if self._progress else ["-qq"]) + words, cwd, env)

    def uninstall(self, name: str, cwd: str) -> None:
        """Removes a package if it is there."""
        if not self._with_uv(["uninstall", "-q", "--python", self._python, name], cwd, {}):
            self._with_pip(["uninstall", "-qq", "-y", name], cwd, {})

    def _with_uv(self, words: List[str], cwd: str, env: Mapping[str, str]) -> bool:
        """Whether uv is there and did it."""
        if self._uv is None:
            return False
        if self._run([self._uv, "pip"] + words, cwd, env) == 0:
            return True
        self._say("note: uv failed, its words are above; pip goes on")
        self._uv = None
        return False

    def _with_pip(self, words: List[str], cwd: str, env: Mapping[str, str]) -> None:
        command = [self._python, "-m", "pip", "--disable-pip-version-check"] + words
        code = self._run(command, cwd, env)
        if code != 0:
            raise SetUpError(f"pip failed; its words are above.\nIt ended with {code}: {' '.join(command)}")

    def _run(self, command: List[str], cwd: str, env: Mapping[str, str]) -> int:
        return subprocess.run(command, cwd=cwd, env=dict(self._env, **env), check=False).returncode
