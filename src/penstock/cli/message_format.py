"""``--format``: a line of text for each message, as the user describes it.

    {stored:%H:%M:%S} {broker}:{queue_id}@{offset} {json[total]:>8} {properties[region]}

The names are those of ``--where``. Only names and keys in brackets are looked up, no attributes, so
that a format shows what a message holds and nothing else. What a message does not have is ``-``.
"""

from __future__ import annotations

import difflib
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.commands import option
from penstock.cli.messages import NAMES
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.model import StoredMessage

_FIELD = re.compile(r"(\w+)((?:\[[^\[\]]+\])*)")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[nt0\\]")
_MISSING = "-"
_EXAMPLE = "'{stored:%H:%M:%S} {tag} {text}'"
# `message` is for expressions, which may use its attributes.
_SHOWN = tuple(name for name in NAMES if name != "message")

format_option = option(
    "--format",
    "line_format",
    metavar="TEXT",
    help=f"Print this for each message, such as {_EXAMPLE}; the names are those of --where, with "
    "{json[total]} and {properties[region]} for parts.",
)


class _Missing:
    """Stands for a field that a message does not have; every format of it is empty."""

    def __format__(self, spec: str) -> str:
        return _MISSING


class MessageFormat:
    """A format that was checked, applied to one message after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        plain_text = _ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)
        self._parts: list[tuple[str, Callable[[StoredMessage], object] | None, str]] = []
        try:
            parsed = list(string.Formatter().parse(plain_text))
        except ValueError as error:
            raise InvalidArgument(f"--format {text!r}: {error}", expected=_EXAMPLE) from None
        for literal, name, spec, conversion in parsed:
            if conversion or "{" in (spec or ""):
                raise InvalidArgument(
                    f"--format {text!r} has !{conversion} or braces within braces",
                    expected=_EXAMPLE,
                )
            self._parts.append((literal, None if name is None else self._field(name), spec or ""))

    def _field(self, name: str) -> Callable[[StoredMessage], object]:
        found = _FIELD.fullmatch(name)
        if found is None or found[1] not in _SHOWN:
            near = difflib.get_close_matches(name, _SHOWN, n=1)
            raise InvalidArgument(
                f"--format {self._text!r} uses {name!r}",
                expected=f"names among {', '.join(_SHOWN)}",
                hint=f"did you mean {near[0]}?" if near else None,
            )
        value, keys = NAMES[found[1]], re.findall(r"\[([^\[\]]+)\]", found[2])

        def field(message: StoredMessage) -> object:
            part = value(message)
            for key in keys:
                part = _part(part, key)
            return part

        return field

    def line(self, message: StoredMessage) -> str:
        """The line of a message."""
        return "".join(
            literal + ("" if field is None else self._shown(field(message), spec))
            for literal, field, spec in self._parts
        )

    def _shown(self, value: Any, spec: str) -> str:
        if value is None:
            value = _Missing()
        elif isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, bool | dict | list | tuple):
            value = _text_of(value)
        try:
            return format(value, spec)
        except ValueError as error:
            raise InvalidArgument(
                f"--format {self._text!r}: {spec!r} does not fit {value!r}: {error}",
                expected=_EXAMPLE,
            ) from None

    def print(self, message: StoredMessage) -> None:
        """Print the line; on a terminal, without what would steer it."""
        line = self.line(message)
        output.say(output.plain(line) if sys.stdout.isatty() else line)


def _part(value: object, key: str) -> object:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and key.isdecimal():
        return value[int(key)] if int(key) < len(value) else None
    return None


def _text_of(value: bool | dict[str, object] | list[object] | tuple[object, ...]) -> str:
    import orjson

    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return orjson.dumps(value, default=str).decode()


def check_one_form(line_format: str | None, *, as_json: bool) -> MessageFormat | None:
    """The format that was asked for, if any."""
    if line_format is None:
        return None
    if as_json:
        raise InvalidArgument("both --format and --json", expected="one of them")
    return MessageFormat(line_format)
