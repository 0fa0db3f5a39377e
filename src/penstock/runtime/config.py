"""Settings as frozen dataclasses: each setting is declared once.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class BrokerConfig:
        listen_port: int = setting(10911, key="listenPort", doc="port clients connect to",
                                   least=0, most=65535)

        def __post_init__(self) -> None:
            check_settings(self)

The declaration is the Python API, the key in a configuration file, the check of type and range,
whether a running server may change it, and the row in the documentation. `from_mapping` loads an
existing ``broker.conf``, `to_mapping` writes the settings back (the answer to GET_BROKER_CONFIG)
and `markdown_table` documents them. A field without `setting` can be set from Python only.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

from penstock.errors import ConfigError

_Config = TypeVar("_Config")

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}
_UNIT_SUFFIXES = {
    "ms": "ms",
    "seconds": "s",
    "minutes": "min",
    "hours": "h",
    "days": "d",
    "bytes": "bytes",
    "ratio": "%",
}


def setting(
    default: Any = dataclasses.MISSING,
    *,
    key: str | None = None,
    doc: str = "",
    unit: str | None = None,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[str] | None = None,
    changeable: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a dataclass field as a setting.

    ``key`` is RocketMQ's; left out, it is the name in camel case. ``unit`` is taken from the end of
    the name (``_ms``, ``_seconds``, ``_bytes``, ...) where it says so. A request over the network
    may change a ``changeable`` setting. A ``secret`` is never written back or shown.
    """
    metadata = {
        "key": key,
        "doc": doc,
        "unit": unit,
        "least": least,
        "most": most,
        "choices": tuple(choices) if choices is not None else None,
        "is_changeable": changeable,
        "is_secret": secret,
    }
    return dataclasses.field(default=default, metadata={"setting": metadata})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a config class."""

    name: str
    key: str
    kind: type
    is_optional: bool
    default: Any
    doc: str
    unit: str
    least: float | None
    most: float | None
    choices: tuple[str, ...] | None
    is_changeable: bool
    is_secret: bool

    @property
    def expected(self) -> str:
        """The legal values, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if issubclass(self.kind, Enum):
            return "one of " + ", ".join(str(member.value) for member in self.kind)
        text = _WORDS[self.kind]
        if self.least is not None and self.most is not None:
            text += f" from {_shown(self.least)} to {_shown(self.most)}"
        elif self.least is not None:
            text += f" of {_shown(self.least)} or more"
        elif self.most is not None:
            text += f" of {_shown(self.most)} or less"
        return text + (f" ({self.unit})" if self.unit else "")

    def parse(self, text: str) -> Any:
        """The value that ``text`` stands for; `ConfigError` names key, text and expectation."""
        stripped = text.strip()
        if self.is_optional and not stripped:
            return None
        try:
            value = self._convert(stripped)
        except ValueError:
            raise self.refusal(text) from None
        self.check(value)
        return value

    def _convert(self, text: str) -> Any:
        if self.kind is bool:
            lowered = text.lower()
            if lowered not in _TRUE + _FALSE:
                raise ValueError(text)
            return lowered in _TRUE
        if self.kind is int and text.endswith(("L", "l")):
            text = text[:-1]  # RocketMQ's samples write longs as in Java source
        convert: Callable[[str], Any] = self.kind
        return convert(text)

    def check(self, value: Any) -> None:
        """Raise `ConfigError` unless ``value`` is allowed."""
        if value is None:
            if not self.is_optional:
                raise self.refusal(value)
            return
        # bool is an int, and an int will do for a float; nothing else stands for another type.
        fits = (
            isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        ) or (self.kind is float and isinstance(value, int) and not isinstance(value, bool))
        if not fits:
            raise self.refusal(value)
        if self.choices is not None and value not in self.choices:
            raise self.refusal(value)
        if self.least is not None and value < self.least:
            raise self.refusal(value)
        if self.most is not None and value > self.most:
            raise self.refusal(value)

    def refusal(self, value: object) -> ConfigError:
        """The error for a value that is not allowed."""
        shown = "(hidden)" if self.is_secret else repr(value)
        return ConfigError(f"{self.key} is {shown}", expected=self.expected)

    def format(self, value: Any) -> str:
        """The value as RocketMQ writes it."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, Enum):
            return str(value.value)
        return str(value)


@dataclass(frozen=True, slots=True)
class Loaded(typing.Generic[_Config]):
    """A config, and the keys that the loader found and the config does not have."""

    config: _Config
    unknown: dict[str, str]
    duplicates: tuple[str, ...] = ()

    def warnings(self, *others: Loaded[Any]) -> list[str]:
        """One line for each thing a user should know; never a value, which may be a secret.

        ``others`` were loaded from the same file: a ``broker.conf`` has the settings of the broker,
        its store and its sockets, and is wrong only about what none of them knows.
        """
        all_loaded = (self, *others)
        known = [item.key for loaded in all_loaded for item in settings(type(loaded.config))]
        lines = []
        for key in self.unknown:
            if not all(key in loaded.unknown for loaded in others):
                continue
            near = difflib.get_close_matches(key, known, 1, 0.8)
            lines.append(
                f"unknown setting {key} ignored" + (f"; did you mean {near[0]}?" if near else "")
            )
        lines += [f"setting {key} given twice; the last one counts" for key in self.duplicates]
        return lines


@cache
def _settings(cls: type) -> tuple[Setting, ...]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        declared = field.metadata.get("setting")
        if declared is None:
            continue
        kind, is_optional = _scalar(hints[field.name])
        known = {
            **declared,
            "key": declared["key"] or _camel_case(field.name),
            "unit": declared["unit"] or _unit_of(field.name),
        }
        found.append(
            Setting(
                name=field.name, kind=kind, is_optional=is_optional, default=field.default, **known
            )
        )
    return tuple(found)


def settings(cls: type) -> tuple[Setting, ...]:
    """The settings of a config class, in the order they are declared."""
    return _settings(cls)


def check_settings(config: Any) -> None:
    """Check every setting against its type, range and choices; for ``__post_init__``."""
    for item in settings(type(config)):
        item.check(getattr(config, item.name))


def from_mapping(
    cls: type[_Config], values: Mapping[str, str], **overrides: object
) -> Loaded[_Config]:
    """Build a config from texts under RocketMQ's keys or our own names.

    ``overrides`` are ready values under our names and win (a command line over a file). A setting
    given under both its names is an error: which of them was meant cannot be known.
    """
    by_key = {item.key: item for item in settings(cls)}
    by_name = {item.name: item for item in settings(cls)}
    chosen: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for key, text in values.items():
        item = by_key.get(key) or by_name.get(key)
        if item is None:
            unknown[key] = text
            continue
        if item.name in chosen:
            raise ConfigError(
                f"setting {item.key} is also given as {item.name}", hint="remove one of them"
            )
        chosen[item.name] = item.parse(text)
    chosen.update(overrides)
    return Loaded(cls(**chosen), unknown)


def to_mapping(config: Any) -> dict[str, str]:
    """Every setting under its RocketMQ key, as text; secrets and unset ones left out."""
    texts = {}
    for item in settings(type(config)):
        value = getattr(config, item.name)
        if value is not None and not item.is_secret:
            texts[item.key] = item.format(value)
    return texts


def markdown_table(cls: type) -> str:
    """The settings as a table for the docs."""
    rows = [
        "| Key | In Python | Default | Takes | Changeable | Meaning |",
        "|---|---|---|---|---|---|",
    ]
    for item in settings(cls):
        default = "required" if item.default is dataclasses.MISSING else item.format(item.default)
        cells = (
            f"`{item.key}`",
            f"`{item.name}`",
            f"`{default}`" if default else "",
            item.expected,
            "yes" if item.is_changeable else "",
            item.doc,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _scalar(annotation: Any) -> tuple[type, bool]:
    """The one type a text is converted to, and whether None is allowed too."""
    kinds = [annotation]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = list(get_args(annotation))
    is_optional = type(None) in kinds
    (kind,) = (kind for kind in kinds if kind is not type(None))
    assert kind in _WORDS or issubclass(kind, Enum), "a type that text can be converted to"
    return kind, is_optional


def _shown(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _unit_of(name: str) -> str:
    return _UNIT_SUFFIXES.get(name.rpartition("_")[2], "")
