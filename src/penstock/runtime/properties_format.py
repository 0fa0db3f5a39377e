"""Java's ``.properties`` format, which RocketMQ's ``broker.conf`` is written in.

    # a comment, as is a line that begins with !
    brokerName = broker-a
    brokerClusterName: DefaultCluster       also separates, as does a space alone
    namesrvAddr=10.0.0.1:9876;\\
                10.0.0.2:9876               continues the line, without its leading space
    key\\ with\\ space=caf\\u00e9            \\t \\n \\r \\f, and \\u with four hex digits

This is ``java.util.Properties.load`` to the letter, except that files are UTF-8 and a duplicate
key is reported (Java keeps the last one and says nothing).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}


@dataclass(frozen=True, slots=True)
class Properties:
    """The pairs of a file, in order; where a key came twice, the last value counts."""

    values: dict[str, str]
    duplicates: tuple[str, ...] = field(default=())


def parse_properties(text: str, *, source: str = "properties") -> Properties:
    """Read properties; a malformed escape is a `ConfigError` with its line."""
    values: dict[str, str] = {}
    duplicates: list[str] = []
    for number, line in _logical_lines(text.removeprefix("\ufeff")):
        raw_key, raw_value = _split(line)
        where = f"{source} line {number}"
        key = _unescape(raw_key, where)
        if key in values and key not in duplicates:
            duplicates.append(key)
        values[key] = _unescape(raw_value, where)
    return Properties(values, tuple(duplicates))


def format_properties(values: Mapping[str, str]) -> str:
    """Write properties, one pair a line; `parse_properties` reads the same pairs back."""
    lines = [f"{_escape(key, is_key=True)}={_escape(value)}" for key, value in values.items()]
    return "".join(f"{line}\n" for line in lines)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their first number: comments dropped, continuations joined."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    index = 0
    while index < len(lines):
        number = index + 1
        line = lines[index].lstrip(_BLANK)
        index += 1
        if not line or line[0] in "#!":
            continue
        parts: list[str] = []
        # An odd number of backslashes at the end: the last one continues the line.
        while (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            if index == len(lines):
                line = ""
                break
            line = lines[index].lstrip(_BLANK)
            index += 1
        parts.append(line)
        joined = "".join(parts)
        if joined:
            yield number, joined


def _split(line: str) -> tuple[str, str]:
    """Key and value, still escaped: the key ends at the first bare ``=``, ``:`` or blank."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(_BLANK)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_BLANK)
    return line[:end], value


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    index = 0
    while index < len(text):
        character = text[index]
        index += 1
        if character != "\\" or index == len(text):
            parts.append("" if character == "\\" else character)
            continue
        escaped = text[index]
        index += 1
        if escaped != "u":
            parts.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[index : index + 4]
        index += 4
        if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise ConfigError(
                f"{where}: \\u{digits} is not a character", expected="four hex digits"
            )
        parts.append(chr(int(digits, 16)))
    return _join_surrogates("".join(parts))


def _join_surrogates(text: str) -> str:
    """Two escapes may spell one character beyond the 16-bit plane."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, is_key: bool = False) -> str:
    special = "=: #!" if is_key else ""
    escaped = "".join(
        f"\\{character}" if character in special else _ESCAPED.get(character, character)
        for character in text
    )
    # A blank at the start of a value would be taken for part of the separator.
    return f"\\{escaped}" if not is_key and escaped[:1] == " " else escaped
