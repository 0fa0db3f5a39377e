"""Commands: the meaning of a frame.

A command is a request or a response. Its header is written in one of two ways, and the frame says
in which. JSON is one object; the binary form is

    code:2 | language:1 | version:2 | opaque:4 | flag:4
    remark_length:4 | remark | ext_length:4 | ( key_length:2 | key | value_length:4 | value )*

``opaque`` is called ``request_id`` here: the sender numbers its request, the answer repeats the
number. ``ext`` (``extFields`` on the wire) holds the typed header of the request as text; module
``headers`` turns it into a struct and back.

What the binary form cannot carry (a code above 32767, as all pop requests have, or a very long
key) is sent as JSON instead: every peer that sends binary headers reads both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import orjson
from msgspec import DecodeError, Struct
from msgspec.json import Decoder as JsonDecoder
from msgspec.json import Encoder as JsonEncoder

from penstock.errors import ProtocolError
from penstock.protocol.frames import BINARY, JSON, MAX_HEADER_BYTES, BareFrame
from penstock.protocol.headers.codec import Int32

VERSION: Final = 479
"""The release we claim to be, V5_3_3, as RocketMQ counts them."""

RESPONSE: Final = 1
ONEWAY: Final = 2

Buffer: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Buffer | Sequence[Buffer]
"""A body on its way out; a pull answer is a list of slices of the log."""

_pack_lengths: Final = struct.Struct(">iI").pack
_BINARY_START: Final = struct.Struct(">hBhiii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class Language(IntEnum):
    """The language of a peer: its name in a JSON header, its number in a binary one."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


# Keyed by name and by number, since Java also takes the number in JSON. A peer whose language is
# unknown to us is served all the same, as OTHER.
_LANGUAGES: Final[dict[object, Language]] = {
    None: Language.JAVA,
    **{language.name: language for language in Language},
    **{language.value: language for language in Language},
}
_LANGUAGE_NAMES: Final = {language: language.name for language in Language}
# An attribute of an enum class is slow to look up; these stand in every header.
_PYTHON: Final = Language.PYTHON
_OTHER: Final = Language.OTHER


_HEAD_NAMES: Final = {
    "ext": "extFields",
    "request_id": "opaque",
    "serializer": "serializeTypeCurrentRPC",
}


class _Head(Struct, gc=False, kw_only=True, omit_defaults=True, rename=_HEAD_NAMES):
    """A JSON header as nearly every peer writes it: Java's order, nulls left out."""

    code: Int32
    ext: dict[str, str] | None = None
    flag: Int32
    language: str
    request_id: Int32
    remark: str | None = None
    serializer: str = ""
    version: Int32


_decode_head: Final = JsonDecoder(_Head).decode
_encode_head: Final = JsonEncoder().encode


@dataclass(slots=True)
class Command:
    """One request or response."""

    code: int
    request_id: int = 0
    flag: int = 0
    ext: dict[str, str] | None = None
    body: Body = b""
    remark: str | None = None
    language: Language = Language.PYTHON
    version: int = VERSION
    serializer: int = JSON

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether this request must not be answered, not even with an error."""
        return self.flag & ONEWAY != 0


def reply(
    request: Command,
    code: int = 0,
    ext: dict[str, str] | None = None,
    body: Body = b"",
    remark: str | None = None,
) -> Command:
    """The response to ``request``, under its number and in its serialisation."""
    return Command(
        code,
        request.request_id,
        RESPONSE,
        ext,
        body,
        remark,
        _PYTHON,
        VERSION,
        request.serializer,
    )


def body_size(body: Body) -> int:
    """How many bytes ``body`` has on the wire."""
    if isinstance(body, bytes | bytearray):
        return len(body)
    if isinstance(body, memoryview):
        return body.nbytes
    return sum([part.nbytes if isinstance(part, memoryview) else len(part) for part in body])


# ------------------------------------------------------------------------------------- decoding


def decode_command(frame: BareFrame) -> Command:
    """The command in ``frame``; a malformed header is a ``ProtocolError``."""
    serializer, header, body = frame
    if serializer != JSON:
        return _decode_binary(serializer, header, body)
    # First as nearly every peer writes it; an unusual header is read again, slowly.
    try:
        head = _decode_head(header)
        language = _LANGUAGES[head.language]
    except (DecodeError, ValueError, KeyError, RecursionError):
        return _decode_json_slowly(header, body)
    return Command(
        head.code, head.request_id, head.flag, head.ext, body, head.remark, language, head.version
    )


def _decode_json_slowly(header: bytes, body: bytes) -> Command:
    """Read an unusual header; raises an error that names what is wrong with it."""
    try:
        head = orjson.loads(header)
    except ValueError as error:
        raise ProtocolError(
            f"header {_shown(header)} is not JSON: {error}", expected="one JSON object"
        ) from None
    if type(head) is not dict:
        raise ProtocolError(f"header {_shown(header)} is not a JSON object")
    remark = head.get("remark")
    if remark is not None and type(remark) is not str:
        raise ProtocolError(f"remark {_shown(remark)} in a header", expected="a string")
    language = head.get("language")
    if isinstance(language, list | dict):
        language = "unknown"
    return Command(
        _int32(head, "code"),
        _int32(head, "opaque"),
        # A missing flag means a plain request, as in Java.
        0 if head.get("flag") is None else _int32(head, "flag"),
        _ext_as_text(head.get("extFields")),
        body,
        remark,
        _LANGUAGES.get(language, _OTHER),
        0 if head.get("version") is None else _int32(head, "version"),
    )


def _int32(head: dict[str, object], key: str) -> int:
    value = head.get(key)
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise ProtocolError(
        f"{key} {_shown(value)} in a header" if key in head else f"header without {key}",
        expected=f"{key} as a 32-bit integer",
    )


def _ext_as_text(ext: object) -> dict[str, str] | None:
    """The fields as Java would have written them: C++ and Node send bare numbers and booleans."""
    if ext is None:
        return None
    if type(ext) is not dict:
        raise ProtocolError(f"extFields {_shown(ext)}", expected="a JSON object")
    fields: dict[str, str] = {}
    for key, value in ext.items():
        if type(value) is str:
            fields[key] = value
        elif type(value) is bool:
            fields[key] = "true" if value else "false"
        elif isinstance(value, int | float):
            fields[key] = str(value)
        elif value is not None:
            raise ProtocolError(
                f"ext field {key!r} is {_shown(value)}", expected="text, a number or a boolean"
            )
    return fields


def _shown(value: object) -> str:
    """``value`` for an error text, shortened: a peer may send megabytes, or deep nesting."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, bytes | str) and len(value) > 100:
        return f"{value[:100]!r}..."
    return repr(value)


def _decode_binary(serializer: int, header: bytes, body: bytes) -> Command:
    if serializer != BINARY:
        raise ProtocolError(
            f"header serializer {serializer}", expected=f"{JSON} (JSON) or {BINARY} (binary)"
        )
    try:
        code, language, version, request_id, flag, length = _BINARY_START.unpack_from(header)
        remark_end = _BINARY_START.size + length
        (ext_length,) = _INT32.unpack_from(header, remark_end)
        ext_start = remark_end + 4
        if length < 0 or ext_length < 0 or ext_start + ext_length != len(header):
            raise ProtocolError(
                f"binary header of {len(header)} bytes with a remark of {length} "
                f"and ext fields of {ext_length}",
                expected="lengths that add up",
            )
        return Command(
            code,
            request_id,
            flag,
            _decode_ext(header, ext_start) if ext_length else None,
            body,
            header[_BINARY_START.size : remark_end].decode() if length else None,
            _LANGUAGES.get(language, _OTHER),
            version,
            BINARY,
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"binary header {_shown(header)} cannot be read: {error}") from None


def _decode_ext(header: bytes, position: int) -> dict[str, str]:
    """The fields from ``position`` to the end of the header.

    A signing Java peer writes its fields twice; the last value wins. A key of no length is Java's
    null and means nothing.
    """
    ext: dict[str, str] = {}
    end = len(header)
    while position < end:
        (key_length,) = _INT16.unpack_from(header, position)
        key_end = position + 2 + key_length
        if key_length < 0 or key_end > end:
            raise ProtocolError(f"ext key of {key_length} bytes, {end - position - 2} left")
        (value_length,) = _INT32.unpack_from(header, key_end)
        value_end = key_end + 4 + value_length
        if value_length < 0 or value_end > end:
            raise ProtocolError(f"ext value of {value_length} bytes, {end - key_end - 4} left")
        if key_length:
            key = header[position + 2 : key_end].decode()
            ext[key] = header[key_end + 4 : value_end].decode()
        position = value_end
    return ext


# ------------------------------------------------------------------------------------- encoding


def encode_head(command: Command, body_length: int) -> bytes:
    """Both length words and the header of ``command``, ready to be followed by its body."""
    serializer = command.serializer
    if serializer == JSON:
        header = _encode_json(command)
    else:
        try:
            header = _encode_binary(command)
        except struct.error:
            serializer, header = JSON, _encode_json(command)
    size = len(header)
    if size > MAX_HEADER_BYTES or size + 4 + body_length >= 2**31:
        raise ProtocolError(
            f"command {command.code} with a header of {size} bytes and a body of {body_length}",
            expected=f"a header of at most {MAX_HEADER_BYTES} bytes and a frame below 2 GiB",
        )
    return _pack_lengths(size + 4 + body_length, serializer << 24 | size) + header


def encode_command(command: Command) -> bytes:
    """The whole frame of ``command``."""
    body = command.body
    head = encode_head(command, body_size(body))
    if isinstance(body, bytes | bytearray | memoryview):
        return b"".join((head, body))
    return b"".join((head, *body))


def _encode_json(command: Command) -> bytes:
    return _encode_head(
        _Head(
            code=command.code,
            ext=command.ext,
            flag=command.flag,
            language=_LANGUAGE_NAMES[command.language],
            request_id=command.request_id,
            remark=command.remark,
            serializer="JSON",
            version=command.version,
        )
    )


def _encode_binary(command: Command) -> bytes:
    """The binary header; ``struct.error`` when a value does not fit its place."""
    remark = (command.remark or "").encode()
    start = _BINARY_START.pack(
        command.code,
        command.language,
        command.version,
        command.request_id,
        command.flag,
        len(remark),
    )
    parts: list[bytes] = []
    for key, value in (command.ext or {}).items():
        name, text = key.encode(), value.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(text)), text)
    ext = b"".join(parts)
    return b"".join((start, remark, _INT32.pack(len(ext)), ext))
