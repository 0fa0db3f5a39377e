"""JSON as RocketMQ's peers write it, and as all of them can read it.

Reading: strict JSON goes straight through orjson. What it refuses is read by the tolerant reader
(``reader``), and fastjson's ``$ref`` is resolved (``references``). Depth, number of
items and growth through references are bounded; malformed input raises ``ProtocolError``.

Writing: compact, because the Go client splits routes as text at ``,`` and ``:``; integer keys
quoted, which every client reads; object keys (``FrozenObject``) in fastjson's form, which is the
only one that all versions of the Java client accept:

    {"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:{"maxOffset":7,"minOffset":0}}}

State files are written as Apache's are: tabs, one item a line, integer keys bare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

import orjson

from penstock.errors import ProtocolError
from penstock.protocol.fastjson.reader import MAX_DEPTH, FrozenObject, Json, Key, read
from penstock.protocol.fastjson.references import resolve_references

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "FrozenObject",
    "Json",
    "Key",
    "dumps",
    "dumps_pretty",
    "loads",
]

# An empty list is three bytes of text and sixty of memory: a document may not hold too many items.
MAX_ITEMS = 2_000_000

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE_KEY = re.compile(rb"([{,][ \t\r\n]*)(-?[0-9]+)[ \t\r\n]*:")

_Item = TypeVar("_Item")
_SMALL = 64 * 1024
_QUOTED_INTEGERS = orjson.OPT_NON_STR_KEYS


def loads(data: bytes) -> Json:
    """The value that ``data`` stands for; keys are ``str``, or ``FrozenObject`` for an object."""
    if len(data) > _SMALL:
        _refuse_too_many_items(data)
    value: Json
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        strict = _with_quoted_keys(data)
        try:
            value = read(_text(data)) if strict is None else orjson.loads(strict)
        except orjson.JSONDecodeError:
            value = read(_text(data))
    # No more brackets than levels allowed: not nested too deeply. That holds for nearly all.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        _refuse_too_deep(value)
    if b"$ref" in data:
        value = resolve_references(value)
    return value


def dumps(value: Json, *, bare_integer_keys: bool = False) -> bytes:
    """``value`` as compact text; with ``bare_integer_keys`` as Apache's servers write it."""
    if not bare_integer_keys:
        try:
            return orjson.dumps(value, option=_QUOTED_INTEGERS)
        except TypeError:
            # It has an object key, or cannot be written at all; the slow way tells which.
            pass
    return _Writer(bare_integer_keys, pretty=False).text(value)


def dumps_pretty(value: Json) -> bytes:
    """``value`` as Apache's brokers write their state files."""
    return _Writer(bare_integer_keys=True, pretty=True).text(value)


def _with_quoted_keys(data: bytes) -> bytes | None:
    """``data`` with its bare integer keys quoted, for orjson; None if they cannot be recognised.

    Offset tables have nothing else against strict JSON, and are the biggest of all. A key is
    known by what is around it; no string may look like that inside.
    """
    if b"'" in data or b"{{" in data:
        return None
    if _BARE_KEY.search(b"".join(_STRING.findall(data))):
        return None
    return _BARE_KEY.sub(rb'\1"\2":', data)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            f"JSON with bytes that are no UTF-8 at {error.start} of {len(data)}"
        ) from None


def _refuse_too_many_items(data: bytes) -> None:
    # Commas inside of strings count too; that makes the estimate a safe one.
    items = data.count(b",") + data.count(b"{") + data.count(b"[")
    if items > MAX_ITEMS:
        raise ProtocolError(f"JSON with up to {items} items", expected=f"at most {MAX_ITEMS}")


def _refuse_too_deep(value: Json) -> None:
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in _children(node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise ProtocolError("JSON nested too deeply", expected=f"at most {MAX_DEPTH} levels")


def _children(node: Json) -> Iterable[Json]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


class _Writer:
    """Writes what orjson cannot: object keys, bare integer keys, tabs."""

    def __init__(self, bare_integer_keys: bool, *, pretty: bool) -> None:
        self._bare = bare_integer_keys
        self._pretty = pretty
        # One growing buffer: orjson gives even the shortest text a page of memory, and a list of
        # such parts took 80 KB for every topic of a table.
        self._text = bytearray()

    def text(self, value: Json) -> bytes:
        self._value(value, 0)
        return bytes(self._text)

    def _value(self, value: Json, depth: int) -> None:
        if isinstance(value, FrozenObject):
            self._members(value, depth)
        elif isinstance(value, Mapping):
            if not self._numbers(value, depth):
                self._members(value.items(), depth)
        elif isinstance(value, (list, tuple)):
            self._container(b"[", value, b"]", depth, self._value)
        else:
            self._text += _scalar(value)

    def _numbers(self, value: Mapping[Key, Json], depth: int) -> bool:
        """Write a table of numbers by number at once: a broker writes its offsets often."""
        if not self._bare or not value:
            return False
        if {*map(type, value), *map(type, value.values())} != {int}:
            return False
        line = b"\n" + b"\t" * (depth + 1) if self._pretty else b""
        pairs = cast("Iterable[tuple[int, int]]", value.items())
        self._text += b"{" + line + (b"," + line).join([b"%d:%d" % pair for pair in pairs])
        self._break_line(depth)
        self._text += b"}"
        return True

    def _members(self, pairs: Iterable[tuple[Key, Json]], depth: int) -> None:
        def member(pair: tuple[Key, Json], depth: int) -> None:
            self._key(pair[0])
            self._text += b":"
            self._value(pair[1], depth)

        self._container(b"{", pairs, b"}", depth, member)

    def _key(self, key: Key) -> None:
        if isinstance(key, FrozenObject):
            # A key stays on one line in a state file, too.
            self._text += _Writer(self._bare, pretty=False).text(key)
        elif isinstance(key, int) and self._bare:
            self._text += b"%d" % key
        else:
            self._text += _scalar(str(key))

    def _container(
        self,
        opening: bytes,
        items: Iterable[_Item],
        closing: bytes,
        depth: int,
        write: Callable[[_Item, int], None],
    ) -> None:
        if depth >= MAX_DEPTH:
            raise ProtocolError(
                "a value nested too deeply for JSON", expected=f"at most {MAX_DEPTH} levels"
            )
        self._text += opening
        empty = True
        for item in items:
            if not empty:
                self._text += b","
            empty = False
            self._break_line(depth + 1)
            write(item, depth + 1)
        if not empty:
            self._break_line(depth)
        self._text += closing

    def _break_line(self, depth: int) -> None:
        if self._pretty:
            self._text += b"\n" + b"\t" * depth


def _scalar(value: Json) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise ProtocolError(
            f"{type(value).__name__} {str(value)[:40]!a} cannot be written as JSON: {error}",
            expected="text without half surrogate pairs, 64-bit integers",
        ) from None
