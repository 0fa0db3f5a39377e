"""Headers of sends that were read before, recognised by all their bytes but a few.

The sends of one producer to one queue differ in the born time, the unique id, the request id and,
if they are signed, the signature. Where these lie in a header follows from its length, so a header
is cut there; if the rest is that of an earlier one, nothing of it is decoded again.

    {"code":310,"extFields":{"a":"g","b":"T", ... ,"g":"1700000000000", ... ,"opaque":123, ... }
     ───────────── fixed ──────────────────────────     born            fixed         id   fixed

The decoder is the specification. Places are taken from a header that it has read, and are tried
with other values: the decoder has to find exactly those there. Values hold digits, or letters and
digits, so they mean the same to it as those that were tried. What is kept belongs to a connection,
and is bounded for each of them and for all together.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.broker.handlers.known_texts import CutText

MAX_KNOWN: Final = 1 << 14
"""For all connections together; then all are forgotten."""
_MAX_HEADER_BYTES: Final = 1024
"""A longer header is not kept."""
_MAX_LENGTHS: Final = 64
"""Lengths of headers for each connection; a request id of one more digit makes another."""
_MAX_LEARNED: Final = 64
"""Headers of each length. Values that change with every message, such as keys, fill it up."""
_MAX_MISSES: Final = 64
"""After so many unknown headers in a row, those of this length are not compared any more."""
_ENOUGH_MISSES: Final = 8
"""After so many, headers of one length with the values at other places take over."""
_MAX_REQUEST_DIGITS: Final = 9
"""So many digits always fit into 31 bits."""
_MAX_BORN_DIGITS: Final = 18
_SIGNATURE_BYTES: Final = 20
_SIGNATURE_CHARACTERS: Final = 28
_NOWHERE: Final = slice(0, 0)
_VALUE_MARK: Final = rb"\u0001"
"""As JSON has it. What is behind it is no part of another escape."""

# What is tried in place of a value: other characters of the same kind, and no zero in front.
_OTHER_DIGITS: Final = bytes.maketrans(b"0123456789", b"1234567891")
_OTHER_CHARACTERS: Final = bytes(48 if byte != 48 else 49 for byte in range(256))
_INVERTED: Final = bytes(255 - byte for byte in range(256))

_Known = TypeVar("_Known")


class Places(NamedTuple):
    """Where the values are that differ from header to header of one length."""

    born: slice
    unique_id: slice
    request_id: slice
    signature: slice
    """Empty without one."""


class Layout(Generic[_Known]):
    """The headers of one length."""

    __slots__ = ("fixed", "known", "left", "misses", "places")

    def __init__(self, length: int, places: Places) -> None:
        self.places = places
        self.fixed: Callable[[bytes], tuple[bytes, ...]] = _fixed(length, places).unpack
        """Cuts out what is around the values."""
        self.known: dict[tuple[bytes, ...], _Known] = {}
        self.misses = 0
        """Unknown headers since the last known one."""
        self.left = _MAX_LEARNED


class KnownHeaders(Generic[_Known]):
    """The headers of one connection, as long as ``age`` is that of all others."""

    __slots__ = ("age", "failures", "get", "layouts")

    def __init__(self, age: object) -> None:
        self.age = age
        self.layouts: dict[int, Layout[_Known] | None] = {}
        self.get = self.layouts.get
        """The layout for a length; None if there is none."""
        self.failures = 0
        """Headers in which the places were not found."""

    def miss(self, length: int, layout: Layout[_Known]) -> None:
        """A header of this length is not known."""
        layout.misses += 1
        if layout.misses >= _MAX_MISSES:
            self.layouts[length] = None

    def may_learn(self, header: bytes) -> bool:
        """Whether there is room for a header that was not known."""
        length = len(header)
        if length > _MAX_HEADER_BYTES or self.failures >= _MAX_LEARNED:
            return False
        if length in self.layouts:
            layout = self.layouts[length]
            return layout is not None and layout.left > 0
        return len(self.layouts) < _MAX_LENGTHS

    def learn(self, header: bytes, places: Places | None, known: _Known) -> bool:
        """Keep what is known of a header; the next one may differ at these places."""
        length = len(header)
        if places is None:
            self.failures += 1
            return False
        layout = self.layouts.get(length)
        if layout is None:
            layout = self.layouts[length] = Layout(length, places)
        layout.left -= 1
        if layout.places != places:
            if layout.misses < _ENOUGH_MISSES:
                return False
            # Another kind of send has this length now.
            left, layout = layout.left, Layout(length, places)
            layout.left = left
            self.layouts[length] = layout
        layout.known[layout.fixed(header)] = known
        return True


def find_places(
    header: bytes, head: Any, text: CutText, decode: Callable[[bytes], Any]
) -> Places | None:
    """Where the values are in a header that ``decode`` has read as ``head``; None: not found.

    ``text`` are its properties, cut at the unique id.
    """
    ext = head.ext
    signature: bytes | None = getattr(ext, "signature", None)
    born, request_id = ext.born_timestamp.encode(), b"%d" % head.request_id
    unique_id = text.unique_id.encode()
    if (
        not born.isdigit()
        or len(born) > _MAX_BORN_DIGITS
        or not unique_id.isalnum()
        or not 0 < head.request_id < 10**_MAX_REQUEST_DIGITS
        or (signature is not None and len(signature) != _SIGNATURE_BYTES)
    ):
        return None
    found = (
        _place(header, b'"%b"' % born, 1, len(born)),
        _place(header, _VALUE_MARK + unique_id, len(_VALUE_MARK), len(unique_id)),
        _place(header, b'"opaque":%b' % request_id, 9, len(request_id)),
        _NOWHERE
        if signature is None
        else _place(header, b'"%b"' % b64encode(signature), 1, _SIGNATURE_CHARACTERS),
    )
    if None in found:
        return None
    places = Places._make(found)
    return places if _are_right(header, head, text, places, decode) else None


def _place(header: bytes, wanted: bytes, start: int, length: int) -> slice | None:
    at = header.find(wanted)
    if at < 0 or header.find(wanted, at + 1) >= 0:
        return None
    return slice(at + start, at + start + length)


def _are_right(
    header: bytes, head: Any, text: CutText, places: Places, decode: Callable[[bytes], Any]
) -> bool:
    """Whether the decoder finds other values at these places, and no other difference."""
    born = header[places.born].translate(_OTHER_DIGITS)
    unique_id = header[places.unique_id].translate(_OTHER_CHARACTERS)
    request_id = header[places.request_id].translate(_OTHER_DIGITS)
    changes = [(places.born, born), (places.unique_id, unique_id), (places.request_id, request_id)]
    signature = b""
    if places.signature != _NOWHERE:
        signature = head.ext.signature.translate(_INVERTED)
        changes.append((places.signature, b64encode(signature)))
    tried = bytearray(header)
    for place, value in changes:
        tried[place] = value
    other = decode(bytes(tried))
    expected = f"{text.before[1:]}{unique_id.decode()}{text.behind}"
    # Some clients leave out the last separator, which the cut text has.
    if (
        other.request_id != int(request_id)
        or other.ext.born_timestamp != born.decode()
        or other.ext.properties not in (expected, expected[:-1])
        or (signature and other.ext.signature != signature)
    ):
        return False
    other.request_id = head.request_id
    other.ext.born_timestamp = head.ext.born_timestamp
    other.ext.properties = head.ext.properties
    if signature:
        other.ext.signature = head.ext.signature
    return bool(other == head)


def _fixed(length: int, places: Places) -> Struct:
    layout, done = "", 0
    for place in sorted((place for place in places if place != _NOWHERE), key=_start):
        layout += f"{place.start - done}s{place.stop - place.start}x"
        done = place.stop
    return Struct(f"{layout}{length - done}s")


def _start(place: slice) -> int:
    start: int = place.start
    return start
