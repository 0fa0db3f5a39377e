"""Settings as frozen dataclasses: the API, the config keys, the command line and the docs at once.

A component declares its settings once:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class BrokerConfig:
        listen_port: int = setting(10911, key="listenPort", doc="port clients connect to",
                                   least=0, most=65535)

        def __post_init__(self) -> None:
            check_ranges(self)

`from_properties` loads an existing ``broker.conf`` into it, `to_mapping` and `to_properties` write
it back (what GET_BROKER_CONFIG answers with), `markdown_table` documents it and `settings` gives a
command line what it needs to make flags. A plain field works too: its key is its name in camel
case, and a field whose metadata has no key but ``"internal": True`` is left out.
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
from penstock.runtime.properties_format import format_properties, parse_properties

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
    secret: bool = False,
) -> Any:
    """A dataclass field with what is known about the setting.

    ``key`` is RocketMQ's; left out, it is the name in camel case. ``unit`` is taken from the end of
    the name (``_ms``, ``_seconds``, ``_bytes``, ...) where it says so. A ``secret`` is never
    written back or shown.
    """
    metadata = {
        "key": key,
        "doc": doc,
        "unit": unit,
        "least": least,
        "most": most,
        "choices": tuple(choices) if choices is not None else None,
        "secret": secret,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a config class, as the loaders, the command line and the docs see it."""

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
    is_secret: bool

    @property
    def flag(self) -> str:
        """How the command line spells it."""
        return "--" + self.name.replace("_", "-")

    @property
    def expected(self) -> str:
        """In words, what it takes."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if issubclass(self.kind, Enum):
            return "one of " + ", ".join(str(member.value) for member in self.kind)
        text = _WORDS[self.kind]
        if self.least is not None and self.most is not None:
            text += f" from {self.least:g} to {self.most:g}"
        elif self.least is not None:
            text += f" of {self.least:g} or more"
        elif self.most is not None:
            text += f" of {self.most:g} or less"
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
    """A config, and what the loader found that the config has no place for."""

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


def settings(cls: type) -> tuple[Setting, ...]:
    """The settings of a config class, in the order they are declared."""
    return _settings(cls)


@cache
def _settings(cls: type) -> tuple[Setting, ...]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        metadata = field.metadata
        if metadata.get("internal") or not field.init:
            continue
        kind, is_optional = _scalar(hints[field.name])
        if kind is None:
            continue  # a structure, which has no text form: set from code only
        found.append(
            Setting(
                name=field.name,
                key=metadata.get("key") or _camel_case(field.name),
                kind=kind,
                is_optional=is_optional,
                default=field.default,
                doc=metadata.get("doc") or "",
                unit=metadata.get("unit") or _unit_of(field.name),
                least=metadata.get("least"),
                most=metadata.get("most"),
                choices=metadata.get("choices"),
                is_secret=bool(metadata.get("secret")),
            )
        )
    return tuple(found)


def check_ranges(config: Any) -> None:
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


def from_properties(
    cls: type[_Config], text: str, *, source: str = "properties", **overrides: object
) -> Loaded[_Config]:
    """Build a config from the text of a ``broker.conf``."""
    properties = parse_properties(text, source=source)
    try:
        loaded = from_mapping(cls, properties.values, **overrides)
    except ConfigError as error:
        raise ConfigError(
            f"{source}: {error.what}", expected=error.expected, hint=error.hint
        ) from None
    return Loaded(loaded.config, loaded.unknown, properties.duplicates)


def to_mapping(config: Any) -> dict[str, str]:
    """Every setting under its RocketMQ key, as text; secrets and unset ones left out."""
    texts = {}
    for item in settings(type(config)):
        value = getattr(config, item.name)
        if value is not None and not item.is_secret:
            texts[item.key] = item.format(value)
    return texts


def to_properties(config: Any) -> str:
    """The config as the text of a ``broker.conf``, as GET_BROKER_CONFIG answers."""
    return format_properties(to_mapping(config))


def markdown_table(cls: type) -> str:
    """The settings as a table for the docs."""
    rows = ["| Setting | RocketMQ key | Default | Takes | Meaning |", "|---|---|---|---|---|"]
    for item in settings(cls):
        default = "required" if item.default is dataclasses.MISSING else item.format(item.default)
        cells = (
            f"`{item.name}`",
            f"`{item.key}`",
            f"`{default}`" if default else "",
            item.expected,
            item.doc,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _scalar(annotation: Any) -> tuple[type | None, bool]:
    """The one type a text is converted to, and whether None is allowed too."""
    kinds = [annotation]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = list(get_args(annotation))
    is_optional = type(None) in kinds
    kinds = [kind for kind in kinds if kind is not type(None)]
    if (
        len(kinds) == 1
        and isinstance(kinds[0], type)
        and (kinds[0] in _WORDS or issubclass(kinds[0], Enum))
    ):
        return kinds[0], is_optional
    return None, is_optional


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _unit_of(name: str) -> str:
    return _UNIT_SUFFIXES.get(name.rpartition("_")[2], "")
