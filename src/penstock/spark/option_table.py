"""Options of ``format("penstock")``, each declared once, as a field of a dataclass.

    min_partitions: int | None = option(
        "minPartitions", integer(1, 100_000), meaning="...", default_text="one task per queue"
    )

The declaration gives the name, how the text is read and checked, the default, and the row of the
documentation. Reading, the error for an unknown name and the table of options all follow from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import InvalidArgument, PenstockError

SPARK_OPTIONS: Final = frozenset(
    name.lower()
    for name in (
        "checkpointLocation",
        "queryName",
        "outputMode",
        "triggerInterval",
        "asyncProgressTrackingEnabled",
        "asyncProgressTrackingCheckpointIntervalMs",
        "paths",
        "mergeSchema",
        "timeZone",
    )
)
"""Options that Spark itself adds to those of a source, or takes from there."""

MAX_INT64: Final = 2**63 - 1
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_KEY: Final = "penstock.option"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option."""

    name: str
    read: Callable[[str], Any]
    """From text to value; raises `Unusable`, or another error that says what is wrong."""
    meaning: str
    default_text: str
    """The default, as the documentation shows it."""
    alias: str | None = None
    is_secret: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.alias is None else (self.name, self.alias)


class Unusable(Exception):
    """The text of an option is not what was expected; ``what`` replaces the text in the error."""

    def __init__(self, expected: str, what: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.what = what


def option(
    name: str,
    read: Callable[[str], Any] = str,
    *,
    meaning: str,
    default: Any = None,
    default_text: str | None = None,
    alias: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field that is an option."""
    shown = default_text if default_text is not None else f"`{_text(default)}`"
    declared = Option(name, read, meaning, shown, alias, secret)
    return dataclasses.field(default=default, repr=not secret, metadata={_KEY: declared})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def declared(*owners: type) -> dict[str, Option]:
    """The options that dataclasses declare, by the names of their fields."""
    return {
        field.name: field.metadata[_KEY]
        for owner in owners
        for field in dataclasses.fields(owner)
        if _KEY in field.metadata
    }


class OptionReader:
    """The options that a user gave, by lower-case name, as Spark passes them."""

    def __init__(self, options: Mapping[str, str], owners: Iterable[type], purpose: str) -> None:
        self._given = {name.lower(): value.strip() for name, value in options.items()}
        self._check_names(
            [name for each in declared(*owners).values() for name in each.names], purpose
        )

    def _check_names(self, known: Iterable[str], purpose: str) -> None:
        """Refuse a name that is neither ours nor Spark's; the hint is the nearest one."""
        spellings = {name.lower(): name for name in known}
        for name in self._given:
            if name in spellings or name in SPARK_OPTIONS or name.startswith(("spark.", "__")):
                continue
            near = difflib.get_close_matches(name, spellings, n=1, cutoff=0.5)
            raise InvalidArgument(
                f"unknown option {name!r} for {purpose} format penstock",
                expected=f"some of {', '.join(spellings.values())}",
                hint=f"option {spellings[near[0]]!r}" if near else None,
            )

    @property
    def is_any(self) -> bool:
        """Whether any option was given."""
        return bool(self._given)

    def given(self, *names: str) -> list[str]:
        """Those of ``names`` that were given, in that order."""
        return [name for name in names if name.lower() in self._given]

    def check_alone(self, *names: str) -> None:
        """Refuse several of options that exclude each other."""
        if len(found := self.given(*names)) > 1:
            raise InvalidArgument(f"options {' and '.join(found)} together", expected="one of them")

    def values(self, owner: type) -> dict[str, Any]:
        """The values of the options that ``owner`` declares, by field; only of those given."""
        return {
            field: self._read(each, name)
            for field, each in declared(owner).items()
            for name in self.given(*each.names)
        }

    def _read(self, option: Option, name: str) -> Any:
        text = self._given[name.lower()]
        try:
            return option.read(text)
        except Unusable as error:
            shown = "is not usable" if option.is_secret else f"is {text!r:.200}"
            raise InvalidArgument(
                f"option {name} {error.what or shown}", expected=error.expected
            ) from None
        except PenstockError as error:
            raise InvalidArgument(
                f"option {name}: {error.what}", expected=error.expected, hint=error.hint
            ) from error


# ------------------------------------------------------------------------------ kinds of text


def boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise Unusable("true or false")
    return text.lower() in _TRUE


def integer(low: int, high: int = MAX_INT64) -> Callable[[str], int]:
    """Reads a whole number of a range."""

    def read(text: str) -> int:
        if re.fullmatch(r"[+-]?\d{1,19}", text) and low <= int(text) <= high:
            return int(text)
        top = "" if high == MAX_INT64 else f" to {high}"
        raise Unusable(f"a whole number from {low}{top}")

    return read


def milliseconds(low: int, high: int) -> Callable[[str], float]:
    """Reads milliseconds as seconds."""
    read = integer(low, high)
    return lambda text: read(text) / 1000


def names(text: str) -> list[str]:
    """Reads a list with commas; repeated names count once."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise Unusable("names with commas between")
    return list(dict.fromkeys(parts))


def json_object(text: str, expected: str) -> dict[str, object]:
    """Reads a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Unusable(expected, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unusable(expected, f"is a JSON {type(value).__name__}")
    return value


# ------------------------------------------------------------------------------------- tables


def options_table(*owners: type) -> str:
    """The options as a table of Markdown."""
    lines = ["| Option | Meaning | Default |", "|---|---|---|"]
    for each in declared(*owners).values():
        shown = " or ".join(f"`{name}`" for name in each.names)
        meaning = each.meaning.replace("|", "\\|")
        lines.append(f"| {shown} | {meaning} | {each.default_text} |")
    return "\n".join(lines)


def refuse_catalog_table(names: Iterable[str]) -> None:
    """Refuse ``CREATE TABLE ... USING penstock OPTIONS (...)``, whose options would be lost.

    Spark asks for the schema with them, and with properties of the table such as its provider; when
    the table is read, it gives a Python source no options but those of the query.
    """
    if "provider" in names:
        raise InvalidArgument(
            "a table of a catalog, whose options Spark forgets",
            expected="CREATE TEMPORARY VIEW orders USING penstock OPTIONS (...)",
            hint="or a table with columns, CREATE TABLE orders (body BINARY) USING penstock, and "
            "the options at every use: SELECT * FROM orders WITH (topic = 'orders')",
        )
