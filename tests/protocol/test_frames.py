"""Cutting a byte stream into frames."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.frames import BINARY, JSON, MAX_FRAME_BYTES, Frame, FrameDecoder

frames = st.builds(
    Frame, st.sampled_from([JSON, BINARY]), st.binary(max_size=40), st.binary(max_size=60)
)


def packed(frame: Frame) -> bytes:
    length = 4 + len(frame.header) + len(frame.body)
    mark = frame.serializer << 24 | len(frame.header)
    return struct.pack(">II", length, mark) + frame.header + frame.body


def lengths(length: int, serializer: int, header_length: int) -> bytes:
    return struct.pack(">iI", length, serializer << 24 | header_length)


def chunks_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 10_000), max_size=20))
def test_any_chunking_of_a_stream_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    received: list[Frame] = []
    for chunk in chunks_of(b"".join(map(packed, sent)), cuts):
        received += decoder.feed(chunk)
    assert received == sent
    assert decoder.buffered == 0


@given(st.lists(frames, min_size=1, max_size=4))
def test_one_byte_at_a_time_gives_the_same_frames(sent: list[Frame]) -> None:
    decoder = FrameDecoder()
    stream = b"".join(map(packed, sent))
    assert [frame for byte in stream for frame in decoder.feed(bytes([byte]))] == sent


@given(st.lists(frames, max_size=3), frames, st.data())
def test_an_unfinished_frame_is_kept_for_the_next_chunk(
    whole: list[Frame], torn: Frame, data: st.DataObject
) -> None:
    decoder = FrameDecoder()
    rest = packed(torn)
    cut = data.draw(st.integers(0, len(rest) - 1))
    assert decoder.feed(b"".join(map(packed, whole)) + rest[:cut]) == whole
    assert decoder.buffered == cut
    assert decoder.feed(rest[cut:]) == [torn]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_random_bytes_give_frames_or_a_protocol_error(noise: bytes, cuts: list[int]) -> None:
    decoder = FrameDecoder()
    try:
        for chunk in chunks_of(noise, cuts):
            decoder.feed(chunk)
    except ProtocolError:
        return
    assert decoder.buffered <= len(noise)


@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_mutated_streams_give_frames_or_a_protocol_error(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(map(packed, sent)))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] = data.draw(st.integers(0, 255))
    decoder = FrameDecoder()
    try:
        received = decoder.feed(bytes(stream))
    except ProtocolError:
        return
    assert sum(len(packed(frame)) for frame in received) + decoder.buffered == len(stream)


def test_a_frame_without_body_has_an_empty_one() -> None:
    assert FrameDecoder().feed(packed(Frame(JSON, b"{}", b""))) == [Frame(JSON, b"{}", b"")]


def test_the_smallest_frame_has_neither_header_nor_body() -> None:
    assert FrameDecoder().feed(lengths(4, JSON, 0)) == [Frame(JSON, b"", b"")]


REFUSED = {
    "negative length": lengths(-1, JSON, 0),
    "most negative length": lengths(-(2**31), JSON, 0),
    "length below the second word": lengths(3, JSON, 0),
    "header longer than the frame": lengths(20, JSON, 17),
    "header of 16 MB in a small frame": lengths(100, JSON, 0xFF_FFFF),
    "frame of 2 GiB": lengths(2**31 - 1, JSON, 10),
    "frame one byte over the limit": lengths(MAX_FRAME_BYTES - 3, JSON, 10),
    "unknown serializer": lengths(20, 2, 10),
    "serializer 255": lengths(20, 255, 10),
    "an HTTP request": b"GET / HTTP/1.1\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01",
}


@pytest.mark.parametrize("start", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_frame_is_refused_as_soon_as_its_lengths_are_there(start: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"expected .*; is the peer a RocketMQ client"):
        FrameDecoder().feed(start)


@pytest.mark.parametrize("start", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_frame_is_refused_in_single_bytes_too(start: bytes) -> None:
    decoder = FrameDecoder()
    for byte in start[:7]:
        assert decoder.feed(bytes([byte])) == []
    with pytest.raises(ProtocolError):
        decoder.feed(start[7:8])


def test_a_refused_frame_is_shown_with_its_lengths_and_first_bytes() -> None:
    with pytest.raises(ProtocolError) as caught:
        FrameDecoder().feed(b"GET / HT")
    assert "1195725856 bytes" in str(caught.value)
    assert "b'GET / HT'" in str(caught.value)
    with pytest.raises(ProtocolError, match=r"serializer 7.*expected 0 \(JSON\) or 1 \(binary\)"):
        FrameDecoder().feed(lengths(20, 7, 10))


def test_the_limit_counts_the_whole_frame() -> None:
    frame = Frame(JSON, b"{}", b"x" * 90)
    assert FrameDecoder(max_frame_bytes=100).feed(packed(frame)) == [frame]
    with pytest.raises(ProtocolError, match="expected 4 to 95 bytes"):
        FrameDecoder(max_frame_bytes=99).feed(packed(frame))


def test_a_frame_that_announces_a_lot_allocates_nothing() -> None:
    decoder = FrameDecoder(max_frame_bytes=2**31)
    announced = lengths(2**31 - 5, JSON, 0xFF_FFFF)
    tracemalloc.start()
    try:
        assert decoder.feed(announced) == []
        for _ in range(100):
            assert decoder.feed(b"x" * 100) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decoder.buffered == 10_008
    assert peak < 100_000


def test_a_large_frame_in_small_chunks_is_gathered_without_copying_it_each_time() -> None:
    body = bytes(4 * 1024 * 1024)
    stream = packed(Frame(JSON, b"{}", body)) * 2
    decoder = FrameDecoder()
    received: list[Frame] = []
    # 2 KiB chunks: copying the buffer for each would move 8 GiB and run into the test's timeout.
    for start in range(0, len(stream), 2048):
        received += decoder.feed(stream[start : start + 2048])
    assert [len(frame.body) for frame in received] == [len(body)] * 2
    assert decoder.buffered == 0


def test_frames_do_not_alias_the_buffer() -> None:
    decoder = FrameDecoder()
    stream = packed(Frame(JSON, b"ab", b"cd"))
    decoder.feed(stream[:9])
    (first,) = decoder.feed(stream[9:] + stream[:9])
    decoder.feed(stream[9:])
    assert first == Frame(JSON, b"ab", b"cd")
    assert type(first.header) is bytes
    assert type(first.body) is bytes
