"""Compressed message bodies: zlib always, lz4 and zstd when their library is there.

Producers compress, consumers inflate, brokers store what they get. ``sys_flag`` says whether and
how: the COMPRESSED bit, and a type whose absence means zlib (senders before 4.9.4). A few bytes
can claim to inflate to gigabytes, so inflating always has a limit.
"""

from __future__ import annotations

import enum
import importlib
import zlib
from types import ModuleType

from penstock.errors import ConfigError, InvalidArgument, ProtocolError
from penstock.protocol.records.sys_flags import SysFlag

DEFAULT_LEVEL = 5
MAX_INFLATED_BYTES = 32 * 1024 * 1024
# One zstd block makes at most 128 KiB and takes at least 4 bytes, so a piece of this size cannot
# overshoot the limit by more than 32 MiB before it is noticed.
_ZSTD_PIECE_BYTES = 1024
_ZSTD_MAX_WINDOW_BYTES = 32 * 1024 * 1024


class Compression(enum.IntEnum):
    """How a body is compressed; the value is its type in ``sys_flag``."""

    ZLIB = SysFlag.ZLIB
    LZ4 = SysFlag.LZ4
    ZSTD = SysFlag.ZSTD

    @property
    def sys_flag(self) -> int:
        """The bits to set on a message whose body was compressed this way."""
        return SysFlag.COMPRESSED | self.value

    @classmethod
    def named(cls, name: str) -> Compression:
        """The kind of that name, in any letter case."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ConfigError(f"compression {name!r}", expected="zlib, lz4 or zstd") from None


def compress(
    body: bytes, kind: Compression = Compression.ZLIB, level: int = DEFAULT_LEVEL
) -> bytes:
    """The body compressed; the message then needs ``kind.sys_flag``."""
    try:
        if kind is Compression.ZLIB:
            return zlib.compress(body, level)
        if kind is Compression.LZ4:
            return bytes(_library(kind).compress(body, compression_level=level))
        return bytes(_library(kind).ZstdCompressor(level=level).compress(body))
    except ImportError as error:
        raise ConfigError(
            f"no {kind.name.lower()} compression: {error}", hint=_install(kind)
        ) from error
    except (zlib.error, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{kind.name.lower()} refuses level {level}: {error}") from error


def decompress(body: bytes, sys_flag: int, max_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """The original of a body stored with ``sys_flag``; a body not compressed comes back as it is.

    Anything that does not inflate, or to more than ``max_bytes``, is a ``ProtocolError``.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = compression_of(sys_flag)
    inflate = {
        Compression.ZLIB: _inflate_zlib,
        Compression.LZ4: _inflate_lz4,
        Compression.ZSTD: _inflate_zstd,
    }[kind]
    try:
        return inflate(body, max_bytes)
    except ImportError as error:
        raise ProtocolError(
            f"a body compressed with {kind.name.lower()}: {error}", hint=_install(kind)
        ) from error


def compression_of(sys_flag: int) -> Compression:
    """The kind of compression ``sys_flag`` names."""
    bits = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        return Compression(bits or SysFlag.ZLIB)
    except ValueError:
        raise ProtocolError(
            f"compression type {bits:#x} in sys flag {sys_flag:#x}",
            expected="0x100 (lz4), 0x200 (zstd) or 0x300 (zlib)",
        ) from None


def _inflate_zlib(body: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise _unreadable(Compression.ZLIB, body, str(error)) from error
    return _whole(Compression.ZLIB, body, inflated, max_bytes, at_end=inflater.eof)


def _inflate_lz4(body: bytes, max_bytes: int) -> bytes:
    inflater = _library(Compression.LZ4).LZ4FrameDecompressor()
    try:
        inflated = bytes(inflater.decompress(body, max_length=max_bytes + 1))
    except (RuntimeError, ValueError, EOFError) as error:
        raise _unreadable(Compression.LZ4, body, str(error)) from error
    return _whole(Compression.LZ4, body, inflated, max_bytes, at_end=bool(inflater.eof))


def _inflate_zstd(body: bytes, max_bytes: int) -> bytes:
    # The one-shot call allocates the size that a frame claims; feeding small pieces does not.
    zstandard = _library(Compression.ZSTD)
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    inflated_bytes = 0
    try:
        for start in range(0, len(body), _ZSTD_PIECE_BYTES):
            piece = inflater.decompress(body[start : start + _ZSTD_PIECE_BYTES])
            pieces.append(piece)
            inflated_bytes += len(piece)
            if inflater.eof or inflated_bytes > max_bytes:
                break
    except zstandard.ZstdError as error:
        raise _unreadable(Compression.ZSTD, body, str(error)) from error
    inflated = b"".join(pieces)
    return _whole(Compression.ZSTD, body, inflated, max_bytes, at_end=inflater.eof)


def _whole(
    kind: Compression, body: bytes, inflated: bytes, max_bytes: int, *, at_end: bool
) -> bytes:
    if len(inflated) > max_bytes:
        raise ProtocolError(
            f"a {kind.name.lower()} body of {len(body)} bytes inflates to more than {max_bytes}",
            expected="a body within the limit",
        )
    if not at_end:
        raise _unreadable(kind, body, "it ends too early")
    return inflated


def _unreadable(kind: Compression, body: bytes, reason: str) -> ProtocolError:
    return ProtocolError(
        f"a body of {len(body)} bytes is no {kind.name.lower()} stream: {reason}",
        expected=f"a complete {kind.name.lower()} stream, as the sys flag says",
    )


def _library(kind: Compression) -> ModuleType:
    """The optional package behind a kind, loaded by the first body that needs it."""
    return importlib.import_module("lz4.frame" if kind is Compression.LZ4 else "zstandard")


def _install(kind: Compression) -> str:
    return f"pip install 'penstock[{kind.name.lower()}]'"
