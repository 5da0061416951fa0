"""`epl-launch --config_file`: options of the launcher, keys of epl.Config, a plan and the script, in one file.

    launcher:                       # options of epl-launch without their dashes
      num_workers: 2
      gpu_per_worker: 1
      env: {NCCL_DEBUG: INFO}
    config:                         # keys of epl.Config, dotted or by section
      amp.level: O1
      zero: {level: v1}
    plan: plan.json                 # a file of epl-plan --save
    script: train.py --epochs 3     # or a list of words

YAML or JSON. The command line comes first, then the variables of the shell (`EPL_AMP_LEVEL`), then the file. This
module turns the file into words of a command line, so that options.py checks them as any others.
"""

import difflib
import os
import shlex
from typing import Any, Iterable, List, Mapping, NamedTuple, Tuple

from epl.utils import plain_files

OPTION = "--config_file"
_PARTS = ("launcher", "config", "plan", "script")
_PLAN_KEY = "auto.plan_file"
_OF_VARIABLES = ("env", "x")


class ConfigFileError(Exception):
    """The file cannot be used; the text says why."""


class ConfigFile(NamedTuple):
    """What a file says."""

    options: List[Tuple[str, List[str]]]  # each option, and the words that give it on a command line
    script: List[str]  # the script and its arguments


def read(path: str, options: Mapping[str, bool], environ: Mapping[str, str]) -> ConfigFile:
    """Reads the file of `--config_file`.

    Args:
      path: its name, as given.
      options: the options that it may have, with their dashes -> whether it is a switch.
      environ: the variables of the shell.

    Raises:
      ConfigFileError: it cannot be read, or what it says is wrong.
    """
    plain = _read(path)
    _check_mapping(plain, path, "the file", _PARTS)
    words = _options(path, plain.get("launcher") or {}, options)
    settings = dict(_settings(path, plain.get("config") or {}))
    if plain.get("plan") is not None:
        settings.setdefault(_PLAN_KEY, _text(path, "plan", plain["plan"]))
        if not os.path.isfile(settings[_PLAN_KEY]):
            raise ConfigFileError(f"{path}: the plan {settings[_PLAN_KEY]!r} is no file (looked in {os.getcwd()})")
    for variable, text in _variables(path, settings):
        words.append(("-x", ["-x", f"{variable}={environ.get(variable, text)}"]))
    return ConfigFile(words, _script(path, plain.get("script")))


def _read(path: str) -> Any:
    ending = plain_files.ending_of(path)
    if ending not in plain_files.YAML + plain_files.JSON:
        raise ConfigFileError(f"{path}: the name of the file must end in .yaml, .yml or .json")
    try:
        with open(path, encoding="utf-8-sig") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigFileError(f"{path}: {reason} (looked in {os.getcwd()})") from None
    try:
        plain = plain_files.parse(text, ending, "file of options")
    except plain_files.YamlNeededError:
        raise ConfigFileError(f"{path}: YAML needs PyYAML; pip install PyYAML, or write JSON in a .json file") from None
    except ValueError as error:
        raise ConfigFileError(f"{path} {error}") from None
    return {} if plain is None else plain


def _check_mapping(plain: Any, path: str, what: str, known: Iterable[str]) -> None:
    known = sorted(known)
    if not isinstance(plain, Mapping):
        raise ConfigFileError(f"{path}: {what} must have names and values such as `{known[0]}: ...`, got {plain!r}")
    for name in plain:
        if name not in known:
            nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it may have {', '.join(known)}"
            raise ConfigFileError(f"{path}: {what} has {name!r}, which is unknown; {hint}")


def _options(path: str, plain: Any, options: Mapping[str, bool]) -> List[Tuple[str, List[str]]]:
    by_name = {option.lstrip("-"): option for option in options}
    _check_mapping(plain, path, "`launcher`", by_name)
    words: List[Tuple[str, List[str]]] = []
    for name, value in plain.items():
        # What the command line says of a variable, by -x or by --env, comes later and wins.
        option = "-x" if name == "env" else by_name[name]
        if isinstance(value, Mapping) and name in _OF_VARIABLES:
            value = [f"{variable}={_text(path, variable, text)}" for variable, text in value.items()]
        for one in value if isinstance(value, list) else [value]:
            text = _text(path, name, one)
            words.append((option, [f"{option}={text}"] if options[option] else [option, text]))
    return words


def _settings(path: str, plain: Any) -> Iterable[Tuple[str, str]]:
    from epl.config.config import flatten  # loads numpy, which a launch without such a file does not need
    from epl.utils.errors import ConfigError

    try:
        given = flatten(plain)
    except ConfigError as error:
        raise ConfigFileError(f"{path}: `config`: {error}") from None
    for name, value in given.items():
        yield name, _text(path, name, value)


def _variables(path: str, settings: Mapping[str, str]) -> Iterable[Tuple[str, str]]:
    """The variable of each key and its text, which is checked."""
    from epl.config.keys import KEY_BY_NAME, env_name

    for name, text in settings.items():
        try:
            KEY_BY_NAME[name].type.parse(text)
        except ValueError as error:
            raise ConfigFileError(f"{path}: `config`: {name} = {text!r} is not legal: {error}") from None
        yield env_name(name), text


def _script(path: str, script: Any) -> List[str]:
    if script is None:
        return []
    if isinstance(script, list):
        return [_text(path, "script", word) for word in script]
    try:
        return shlex.split(_text(path, "script", script))
    except ValueError as error:
        raise ConfigFileError(f"{path}: script: {error}; give a list of words") from None


def _text(path: str, name: str, value: Any) -> str:
    """A scalar of YAML, which is a text already, or of JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigFileError(f"{path}: {name} must be one value, got {value!r}")
