"""The tolerant JSON reader behind ``dialect.loads``.

fastjson writes, and other clients send, text that is JSON only at heart:

    {"brokerAddrs":{0:"10.0.0.5:10911"}}                      bare integer keys
    {"offsetTable":{{"brokerName":"b","queueId":3}:5}}        objects as keys
    {'a':'b'}                                                 single quotes

One pass, one token at a time, nesting bounded. A bare key is kept as text, so a table reads the
same whether its keys were quoted or not; an object key becomes a ``FrozenObject``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TypeAlias, Union

from penstock.errors import ProtocolError

Json: TypeAlias = (
    bool | int | float | str | list["Json"] | dict["Key", "Json"] | tuple["Json", ...] | None
)
Key: TypeAlias = Union[str, int, "FrozenObject"]

MAX_DEPTH = 64
MAX_ESCAPES = 500_000
"""Each is read by itself; strict JSON, which may have as many as it likes, never comes here."""

_BLANKS = frozenset(" \t\r\n")
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BARE_KEY = re.compile(r"-?[0-9]+|[A-Za-z_$][A-Za-z0-9_$]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_WORDS: dict[str, Json] = {"null": None, "true": True, "false": False}
_ESCAPES = {
    '"': '"', "'": "'", "\\": "\\", "/": "/",
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip

_INT64_DIGITS = 19


class FrozenObject(tuple[tuple[str, Json], ...]):
    """A JSON object that can be a key: its members as sorted pairs, all the way down."""

    __slots__ = ()

    @classmethod
    def freeze(cls, members: Mapping[Key, Json] | Mapping[str, Json]) -> FrozenObject:
        """The frozen form of an object; the order of its members does not matter."""
        frozen = [(_key_text(key), _frozen(value)) for key, value in members.items()]
        return cls(sorted(frozen, key=itemgetter(0)))

    def members(self) -> dict[Key, Json]:
        """The object as an ordinary dict."""
        return dict(self)


def _key_text(key: Key) -> str:
    if isinstance(key, FrozenObject):
        raise ProtocolError("an object key that has an object key itself", expected="plain members")
    return str(key)


def _frozen(value: Json) -> Json:
    if isinstance(value, dict):
        return FrozenObject.freeze(value)
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value


def read(text: str) -> Json:
    """Parse ``text``; anything that cannot be read raises ``ProtocolError`` with its position."""
    escapes = text.count("\\")
    if escapes > MAX_ESCAPES:
        raise ProtocolError(
            f"lenient JSON with {escapes} escapes", expected=f"at most {MAX_ESCAPES}"
        )
    return _Reader(text).document()


class _Reader:
    """A cursor over one document."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Json:
        value = self._value(0)
        if self._peek():
            raise self._wrong("text after the end of the JSON value")
        return value

    def _peek(self) -> str:
        """Skip blanks; the next character, or "" at the end."""
        character = self._text[self._at : self._at + 1]
        if character in _BLANKS:
            match = _SPACE.match(self._text, self._at)
            assert match is not None  # the pattern matches the empty text
            self._at = match.end()
            character = self._text[self._at : self._at + 1]
        return character

    def _value(self, depth: int) -> Json:
        character = self._peek()
        if character == "{":
            return self._object(depth + 1)
        if character == "[":
            return self._array(depth + 1)
        if character in ('"', "'"):
            return self._string(character)
        if match := _NUMBER.match(self._text, self._at):
            return self._number(match)
        if match := _BARE_KEY.match(self._text, self._at):
            word = match.group()
            if word in _WORDS:
                self._at = match.end()
                return _WORDS[word]
        raise self._wrong("no JSON value")

    def _object(self, depth: int) -> dict[Key, Json]:
        members: dict[Key, Json] = {}
        for _ in self._items("}", depth):
            key = self._key(depth)
            if self._peek() != ":":
                raise self._wrong("a key without a value")
            self._at += 1
            members[key] = self._value(depth)
        return members

    def _array(self, depth: int) -> list[Json]:
        return [self._value(depth) for _ in self._items("]", depth)]

    def _items(self, end: str, depth: int) -> Iterator[None]:
        """Step over the brackets and commas of a container; yield before each item."""
        if depth > MAX_DEPTH:
            raise self._wrong("JSON nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        self._at += 1
        if self._peek() == end:
            self._at += 1
            return
        while True:
            yield
            following = self._peek()
            if following not in (",", end) or not following:
                raise self._wrong("no end of the list or object", expected=f"',' or '{end}'")
            self._at += 1
            if following == end:
                return

    def _key(self, depth: int) -> Key:
        character = self._peek()
        if character in ('"', "'"):
            return self._string(character)
        if character == "{":
            return FrozenObject.freeze(self._object(depth + 1))
        if match := _BARE_KEY.match(self._text, self._at):
            self._at = match.end()
            return match.group()
        raise self._wrong("no key")

    def _number(self, match: re.Match[str]) -> int | float:
        text = match.group()
        whole = match.group(1) is None and match.group(2) is None
        if whole and len(text) <= _INT64_DIGITS + 1:
            number = int(text)
            if -(1 << 63) <= number < 1 << 64:
                self._at = match.end()
                return number
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise self._wrong("a number without bounds")
        self._at = match.end()
        return value

    def _string(self, quote: str) -> str:
        """The text up to the closing quote; raw control characters are let through."""
        plain = _PLAIN[quote]
        parts: list[str] = []
        start = self._at
        self._at += 1
        while True:
            match = plain.match(self._text, self._at)
            assert match is not None  # the pattern matches the empty text
            parts.append(match.group())
            self._at = match.end()
            stop = self._text[self._at : self._at + 1]
            self._at += 1
            if stop == quote:
                break
            if not stop:
                self._at = start
                raise self._wrong("a string without an end")
            parts.append(self._escape())
        text = "".join(parts)
        # Escaped halves of a pair are joined here; a lone half is in no text that can be written.
        if any("\ud800" <= part <= "\udfff" for part in parts if len(part) == 1):
            try:
                text = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
            except UnicodeDecodeError:
                self._at = start
                raise self._wrong("a string with half a surrogate pair") from None
        return text

    def _escape(self) -> str:
        letter = self._text[self._at : self._at + 1]
        if letter == "u":
            match = _HEX4.match(self._text, self._at + 1)
            if match is None:
                raise self._wrong("an escape that is none", expected="four hexadecimal digits")
            self._at = match.end()
            return chr(int(match.group(), 16))
        if letter not in _ESCAPES:
            raise self._wrong(f"unknown escape \\{letter}")
        self._at += 1
        return _ESCAPES[letter]

    def _wrong(self, what: str, expected: str | None = None) -> ProtocolError:
        around = self._text[self._at : self._at + 20]
        where = f"before {around!r}" if around else "at the end"
        return ProtocolError(f"{what} at character {self._at}, {where}", expected=expected)
