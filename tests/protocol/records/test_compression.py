"""Compressed bodies: three kinds, bounded, and clear words where a library is missing."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, InvalidArgument, ProtocolError
from penstock.protocol.records.compression import (
    Compression,
    compress,
    compression_of,
    decompress,
)

KINDS = list(Compression)
MIB = 1024 * 1024


@pytest.mark.parametrize("kind", KINDS)
@given(st.binary(max_size=2000))
def test_what_is_compressed_inflates(kind: Compression, body: bytes) -> None:
    assert decompress(compress(body, kind), kind.sys_flag) == body


def test_the_published_zlib_body_inflates() -> None:
    body = bytes.fromhex("785e4b4ca43d00007a4725e5")
    assert decompress(body, 0x301) == b"a" * 100
    assert Compression.ZLIB.sys_flag == 0x301
    assert decompress(compress(b"a" * 100), 0x301) == b"a" * 100


def test_a_body_without_the_bit_is_left_alone() -> None:
    assert decompress(b"x\x9cnot zlib", 0x300) == b"x\x9cnot zlib"


def test_no_type_means_zlib() -> None:
    assert decompress(zlib.compress(b"old"), 0x1) == b"old"
    assert compression_of(0x1) is Compression.ZLIB


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x701])
def test_an_unknown_type_is_refused(sys_flag: int) -> None:
    with pytest.raises(ProtocolError, match=f"in sys flag {sys_flag:#x}"):
        decompress(b"", sys_flag)


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_exact(kind: Compression) -> None:
    body = compress(bytes(1000), kind)
    assert decompress(body, kind.sys_flag, 1000) == bytes(1000)
    with pytest.raises(ProtocolError, match="inflates to more than 999"):
        decompress(body, kind.sys_flag, 999)


def bombs() -> list[tuple[Compression, bytes]]:
    zstd_unsized = zstandard.ZstdCompressor(write_content_size=False)
    return [
        (Compression.ZLIB, zlib.compress(bytes(128 * MIB), 1)),
        (Compression.LZ4, lz4.frame.compress(bytes(128 * MIB))),
        (Compression.ZSTD, zstandard.ZstdCompressor().compress(bytes(128 * MIB))),
        (Compression.ZSTD, zstd_unsized.compress(bytes(128 * MIB))),
    ]


def test_bodies_that_explode_are_refused_in_bounded_memory() -> None:
    for kind, bomb in bombs():
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="inflates to more than"):
            decompress(bomb, kind.sys_flag, 4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 80 * MIB, kind


def test_a_zstd_frame_that_claims_exabytes_allocates_nothing() -> None:
    # Magic, an eight-byte content size, one raw block of nothing: it ends far from its claim.
    frame = b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x0f" + b"\x01\x00\x00"
    with pytest.raises(ProtocolError):
        decompress(frame, Compression.ZSTD.sys_flag)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_damaged_bodies_raise_protocol_errors_and_nothing_else(
    kind: Compression, data: st.DataObject
) -> None:
    body = bytearray(compress(data.draw(st.binary(max_size=300)), kind))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(bytes(body), kind.sys_flag, MIB)) <= MIB
    except ProtocolError:
        return


@pytest.mark.parametrize("kind", KINDS)
@given(st.binary(max_size=100))
def test_random_bodies_raise_protocol_errors_and_nothing_else(
    kind: Compression, body: bytes
) -> None:
    try:
        assert len(decompress(body, kind.sys_flag, MIB)) <= MIB
    except ProtocolError:
        return


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_ends_too_early_is_refused(kind: Compression) -> None:
    body = compress(bytes(range(256)) * 10, kind)
    for length in (0, 1, len(body) // 2, len(body) - 1):
        with pytest.raises(ProtocolError, match=f"no {kind.name.lower()} stream"):
            decompress(body[:length], kind.sys_flag)


@pytest.mark.parametrize(
    ("kind", "module"), [(Compression.LZ4, "lz4.frame"), (Compression.ZSTD, "zstandard")]
)
def test_a_missing_library_names_the_extra_to_install(
    kind: Compression, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = compress(b"body", kind)
    monkeypatch.setitem(sys.modules, module, None)
    extra = rf"pip install 'penstock\[{kind.name.lower()}\]'"
    with pytest.raises(ConfigError, match=extra):
        compress(b"body", kind)
    with pytest.raises(ProtocolError, match=extra):
        decompress(body, kind.sys_flag)
    assert decompress(compress(b"body"), Compression.ZLIB.sys_flag) == b"body"


def test_kinds_are_found_by_name() -> None:
    assert [Compression.named(name) for name in ("zlib", "LZ4", "Zstd")] == [
        Compression.ZLIB,
        Compression.LZ4,
        Compression.ZSTD,
    ]
    with pytest.raises(ConfigError, match="compression 'snappy'; expected zlib, lz4 or zstd"):
        Compression.named("snappy")


def test_a_level_no_library_takes_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="zlib refuses level 77"):
        compress(b"x", Compression.ZLIB, 77)
    with pytest.raises(InvalidArgument, match="zstd refuses level 77"):
        compress(b"x", Compression.ZSTD, 77)
