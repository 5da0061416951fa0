"""The configuration of EPL: sections of typed keys, from code, environment and defaults.

This module validates values, applies precedence (code, then environment, then default) and keeps provenance (where each
value came from). The table of keys is in `epl/config/keys.py`, their types are in `epl/config/types.py`; the effect of
a value is in the part of EPL that reads it.
"""

import difflib
import json
import os
import warnings
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from epl.config import keys as config_keys
from epl.config.keys import KEY_BY_ENV, KEY_BY_NAME, KEYS, SECTIONS, TRAINING_KEYS, WHALE_KEYS, Key
from epl.utils.errors import ConfigError, UnknownKeyError

_FROM_DEFAULT = "default"
_FROM_CODE = "code"
_FROM_PLANNER = "planner"
_SECTION_NAMES = tuple(name for name, _ in SECTIONS)


# Values by which a user leaves a key to EPL, as leaving it out does for others.
_OPEN = {"auto.balance": "speed"}


class _Entry(NamedTuple):
    value: Any
    source: str
    before: Tuple[Any, str] = (None, _FROM_DEFAULT)  # value and source before EPL decided it


class ConfigWarning(UserWarning):
    """An environment variable looks like a configuration key of EPL but is none."""


class Section:
    """A view of the keys of one section of a `Config`, as attributes; writing one is validated."""

    __slots__ = ("_config", "_name")

    def __init__(self, config: "Config", name: str) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_name", name)

    def __getattr__(self, key: str) -> Any:
        # Names with an underscore are Python's own (copy, pickle), which asks for them before _config exists.
        if key.startswith("_"):
            raise AttributeError(key)
        return self._config.get(f"{self._name}.{key}")

    def __setattr__(self, key: str, value: Any) -> None:
        self._config.set(f"{self._name}.{key}", value)

    def __dir__(self) -> List[str]:
        return [key.name.split(".", 1)[1] for key in config_keys.keys_of(self._name)]

    def __repr__(self) -> str:
        return self._config.describe(self._name)


class Config:
    """The resolved configuration.

    Each key is an attribute of its section: `config.pipeline.num_micro_batch`. Strings with a fixed set of values are
    accepted in upper and lower case and stored in lower case (`"PreferBackward"` reads back as `"preferbackward"`).
    Keys, defaults and environment variables are listed in docs/config.md; `print(config)` shows every value and where
    it came from.
    """

    auto: Section
    io: Section
    communication: Section
    pipeline: Section
    gradient_checkpoint: Section
    zero: Section
    offload: Section
    amp: Section
    batch_norm: Section
    cluster: Section
    optimizer: Section

    def __init__(self, param_dict: Optional[Mapping[str, Any]] = None) -> None:
        """Resolves every key: `param_dict` first, then the environment (`EPL_<SECTION>_<KEY>`), then the default.

        Args:
          param_dict: values by key, `{"pipeline.num_micro_batch": 4}` or nested by section,
            `{"pipeline": {"num_micro_batch": 4}}`.

        Raises:
          ConfigError: a key is unknown, a value has the wrong type or is not legal. It is a `ValueError`.
        """
        given = flatten(param_dict)
        entries: Dict[str, _Entry] = {}
        for key in KEYS:
            entries[key.name] = _entry_from_environment(key) or _Entry(key.default, _FROM_DEFAULT)
            if key.name in given:
                entries[key.name] = _Entry(_convert(key, given[key.name]), _FROM_CODE)
        _warn_about_unknown_environment()
        self._install(entries)

    def _install(self, entries: Dict[str, _Entry]) -> None:
        object.__setattr__(self, "_entries", entries)
        object.__setattr__(self, "_frozen", False)
        for name in _SECTION_NAMES:
            object.__setattr__(self, name, Section(self, name))

    def get(self, name: str) -> Any:
        """Returns the value of a key such as "pipeline.num_micro_batch"; unknown keys raise `UnknownKeyError`."""
        return self._entry(name).value

    def set(self, name: str, value: Any) -> None:
        """Sets a key, validated as in the constructor.

        Raises:
          UnknownKeyError: there is no such key.
          ConfigError: the value is not legal, or the configuration is already in use.
        """
        self._entry(name)
        if self._frozen:
            raise ConfigError(
                f"{name} cannot be set to {value!r}: this configuration is already used by epl.init. Make a new "
                "epl.Config and call epl.init with it again."
            )
        self._entries[name] = _Entry(_convert(KEY_BY_NAME[name], value), _FROM_CODE)

    def provenance(self, name: str) -> str:
        """Returns where a value came from: "default", "environment EPL_<SECTION>_<KEY>", "code" or "planner"."""
        return self._entry(name).source

    def is_set(self, name: str) -> bool:
        """Returns whether the user has set a key: in code or in the environment."""
        return self._entry(name).source not in (_FROM_DEFAULT, _FROM_PLANNER)

    def decide(self, name: str, value: Any) -> None:
        """Sets a key that the user has left to EPL, also in a frozen configuration: EPL has decided it."""
        entry = self._entry(name)
        if self.is_open(name):
            before = entry.before if entry.source == _FROM_PLANNER else (entry.value, entry.source)
            self._entries[name] = _Entry(_convert(KEY_BY_NAME[name], value), _FROM_PLANNER, before)

    def asked(self, name: str) -> Any:
        """Returns the value of a key by the user or by default, whatever EPL has decided."""
        entry = self._entry(name)
        return entry.before[0] if entry.source == _FROM_PLANNER else entry.value

    def is_open(self, name: str) -> bool:
        """Returns whether the user has left a key to EPL: not set, or set to a word that says so ("speed")."""
        return not self.is_set(name) or self.get(name) == _OPEN.get(name, object())

    def forget_decisions(self) -> None:
        """Gives all keys that EPL has decided the values that they had before, for another model."""
        for name, entry in self._entries.items():
            if entry.source == _FROM_PLANNER:
                self._entries[name] = _Entry(*entry.before)

    def training_features(self) -> List[str]:
        """Returns the keys that set a feature of training and differ from their default."""
        return [name for name in TRAINING_KEYS if self.get(name) != KEY_BY_NAME[name].default]

    def freeze(self) -> "Config":
        """Makes every later change an error, and returns this configuration. `copy` gives one that can be changed."""
        object.__setattr__(self, "_frozen", True)
        return self

    @property
    def frozen(self) -> bool:
        """Whether `freeze` was called."""
        return self._frozen

    def copy(self) -> "Config":
        """Returns a configuration of its own with the same values and provenance, not frozen."""
        return _restore(dict(self._entries))

    def to_dict(self) -> Dict[str, Any]:
        """Returns the value of every key, by its dotted name."""
        return {name: entry.value for name, entry in self._entries.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Returns the configuration with these values: the inverse of `to_dict`."""
        return cls(values)

    def to_json(self) -> str:
        """Returns `to_dict` as JSON with sorted keys: equal configurations give equal texts."""
        return json.dumps(self.to_dict(), sort_keys=True)

    def describe(self, section: Optional[str] = None) -> str:
        """Returns one line `key = value   (where it came from)` per key, of one section or of all."""
        keys = [key for key in KEYS if section in (None, config_keys.section_of(key.name))]
        settings = [f"{key.name} = {key.type.show(self.get(key.name))}" for key in keys]
        width = max(len(setting) for setting in settings)
        lines = [f"  {setting.ljust(width)}   ({self.provenance(key.name)})" for setting, key in zip(settings, keys)]
        return "\n".join(["epl.Config"] + lines)

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise UnknownKeyError(_unknown_key_message(name))
        return self._entries[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnknownKeyError(_unknown_section_message(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SECTION_NAMES:
            raise ConfigError(
                "config.{0} cannot be replaced; set its keys: config.{0}.{1} = ...".format(
                    name, config_keys.keys_of(name)[0].name.split(".", 1)[1]
                )
            )
        raise UnknownKeyError(_unknown_section_message(name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore  # a value that can be changed is no dictionary key

    def __reduce__(self) -> Tuple[Callable[[Dict[str, _Entry]], "Config"], Tuple[Dict[str, _Entry]]]:
        return _restore, (dict(self._entries),)

    def __repr__(self) -> str:
        return self.describe()


def _restore(entries: Dict[str, _Entry]) -> Config:
    config = Config.__new__(Config)
    config._install(entries)
    return config


def flatten(param_dict: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Returns the given values by dotted key, each key once and known; `Config` says what it takes, and raises."""
    if param_dict is None:
        return {}
    if not isinstance(param_dict, Mapping):
        raise ConfigError(
            f"epl.Config got {param_dict!r} of type {type(param_dict).__name__}; expected a dict of keys and "
            'values, such as {"pipeline.num_micro_batch": 4}.'
        )
    flat: Dict[str, Any] = {}
    for name, value in _pairs(param_dict):
        if name not in KEY_BY_NAME:
            raise UnknownKeyError(_unknown_key_message(name))
        if name in flat:
            raise ConfigError(f"{name} is given twice to epl.Config, with {flat[name]!r} and {value!r}.")
        flat[name] = value
    return flat


def _pairs(param_dict: Mapping[str, Any]) -> Iterable[Tuple[str, Any]]:
    for name, value in param_dict.items():
        if not isinstance(name, str):
            raise ConfigError(f"epl.Config got the key {name!r}; keys are strings such as {KEYS[0].name!r}.")
        if name in _SECTION_NAMES and isinstance(value, Mapping):
            for key, nested in value.items():
                yield f"{name}.{key}", nested
        elif name in WHALE_KEYS:
            for key, set_to in WHALE_KEYS[name].items():
                yield key, value if set_to is None else set_to
        else:
            yield name, value


def _convert(key: Key, value: Any) -> Any:
    try:
        return key.type.convert(value)
    except ValueError as error:
        raise ConfigError(f"{key.name} = {value!r} ({type(value).__name__}) is not legal: {error}.") from None


def _entry_from_environment(key: Key) -> Optional[_Entry]:
    variable = config_keys.env_name(key.name)
    if variable not in os.environ:
        return None
    text = os.environ[variable]
    try:
        value = key.type.parse(text)
    except ValueError as error:
        raise ConfigError(
            f"environment variable {variable}={text!r} is not legal for {key.name}: {error}. "
            "Unset it, or set it to a legal value."
        ) from None
    return _Entry(value, "environment " + variable)


def _warn_about_unknown_environment() -> None:
    """Warns of variables that may be misspelled keys: named after a section, or spelled almost as a key."""
    prefixes = tuple(config_keys.env_name(name) + "_" for name in _SECTION_NAMES)
    for variable in sorted(os.environ):
        if not variable.startswith("EPL_") or variable in KEY_BY_ENV or variable in config_keys.OTHER_ENV:
            continue
        nearest = difflib.get_close_matches(variable, KEY_BY_ENV, n=1, cutoff=0.85)
        if not nearest and not variable.startswith(prefixes):
            continue
        nearest = nearest or difflib.get_close_matches(variable, KEY_BY_ENV, n=1, cutoff=0.0)
        warnings.warn(
            f"environment variable {variable} has no effect: EPL has no such configuration key. "
            f"Did you mean {nearest[0]}? All keys are in docs/config.md.",
            ConfigWarning,
            stacklevel=4,
        )


def _unknown_key_message(name: str) -> str:
    nearest = _nearest_key(name)
    return f"epl.Config has no key {name!r}. The nearest is {nearest!r}. All keys are in docs/config.md."


def _unknown_section_message(name: str) -> str:
    return "epl.Config has no section {!r}. Its sections are {}.".format(name, ", ".join(_SECTION_NAMES))


def _nearest_key(name: str) -> str:
    """Returns the key that is spelled most like `name`, which may lack its section (`loss_scale`)."""
    short = {key.name.split(".", 1)[1]: key.name for key in KEYS}
    last = name.rsplit(".", 1)[-1]
    if last in short:
        return short[last]
    scores = {
        key.name: max(
            difflib.SequenceMatcher(None, name, key.name).ratio(),
            difflib.SequenceMatcher(None, last, key.name.split(".", 1)[1]).ratio() * 0.9,
        )
        for key in KEYS
    }
    return max(scores, key=lambda key_name: scores[key_name])
