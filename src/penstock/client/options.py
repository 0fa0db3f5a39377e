"""Options: the keywords of the public classes, declared once.

An option is a field of a settings class, made with one of the functions below:

    retries: int = count(2, 0, 100, "retryTimesWhenSendFailed", "further attempts after the first")

Its default, its range, the conversion of durations, the check of keywords, the Java setting it
stands for and its row in the documentation all come from there. Type checkers also need the
keyword in a ``TypedDict`` in `arguments`; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from penstock.errors import ConfigError, InvalidArgument
from penstock.runtime.durations import seconds


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one keyword."""

    java: str
    """The setting of RocketMQ's Java client."""
    doc: str
    check: Callable[[str, object], None] | None = None
    is_duration: bool = False
    default: object = None


def count(default: int | None, low: int, high: int, java: str, doc: str) -> Any:
    """A whole number; with a default of None, None is allowed."""
    return _field(default, java, doc, lambda key, value: check_count(key, value, low, high))


def duration(default: float, low: float, high: float, java: str, doc: str) -> Any:
    """A time: in seconds here, also text or a ``timedelta`` as a keyword."""
    return _field(
        default, java, doc, lambda key, value: check_range(key, value, low, high), is_duration=True
    )


def flag(default: bool, java: str, doc: str) -> Any:
    """True or False."""
    return _field(default, java, doc, check_flag)


def option(default: Any, java: str, doc: str, *, default_factory: Any = MISSING) -> Any:
    """Anything else; the settings class checks it."""
    return _field(default, java, doc, None, default_factory=default_factory)


def _field(
    default: Any,
    java: str,
    doc: str,
    check: Callable[[str, object], None] | None,
    *,
    is_duration: bool = False,
    default_factory: Any = MISSING,
) -> Any:
    made = Option(java, doc, check, is_duration, default)
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata={"option": made})
    return field(default=default, metadata={"option": made})


def options_of(settings: type) -> Mapping[str, Option]:
    """The options of a settings class by keyword."""
    return {item.name: item.metadata["option"] for item in fields(settings) if _is_option(item)}


def _is_option(item: Field[Any]) -> bool:
    return "option" in item.metadata


def check_options(settings: Any) -> None:
    """Refuse values out of range; called by ``__post_init__``."""
    for key, known in options_of(type(settings)).items():
        value = getattr(settings, key)
        if known.check is not None and not (value is None and known.default is None):
            known.check(key, value)


def as_seconds(key: str, value: Any) -> float:
    """A duration in seconds; the error names its keyword."""
    try:
        return seconds(value)
    except InvalidArgument as error:
        raise ConfigError(f"{key}: {error.what}", expected=error.expected) from None


def check_range(key: str, value: object, low: float, high: float) -> None:
    """Refuse what is no number or outside its range, naming keyword, value and range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} is {value!r}", expected=f"a number, {low} to {high}")
    if not low <= value <= high:
        raise ConfigError(f"{key} is {value}", expected=f"{low} to {high}")


def check_count(key: str, value: object, low: int, high: int) -> None:
    """The same for a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} is {value!r}", expected=f"a whole number, {low} to {high}")
    check_range(key, value, low, high)


def check_flag(key: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}", expected="True or False")


def options_table(options: Mapping[str, Option]) -> str:
    """A Markdown table of options, for the documentation."""
    rows = ["| Keyword | Default | What it does | Java |", "|---|---|---|---|"]
    for key, known in options.items():
        shown = f"{known.default} s" if known.is_duration else f"{known.default}"
        default = "" if known.default is None else f"`{shown}`"
        rows.append(f"| `{key}` | {default} | {known.doc} | `{known.java}` |")
    return "\n".join(rows)
