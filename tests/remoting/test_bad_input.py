"""Bytes that no RocketMQ peer sends: the connection ends, the log says why, others are served."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest
from tests.support.raw_connection import RawConnection

from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Peer, Promise, Server
from penstock.testing.eventually import eventually

GOOD_HEADER = b'{"code":34,"flag":0,"language":"JAVA","opaque":1,"version":479}'


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request, body=request.body)


def frame(header: bytes, body: bytes = b"", *, serializer: int = 0) -> bytes:
    length = 4 + len(header) + len(body)
    return struct.pack(">iI", length, serializer << 24 | len(header)) + header + body


def header(**changes: object) -> bytes:
    return json.dumps({**json.loads(GOOD_HEADER), **changes}).encode()


BAD_BYTES = {
    "wrong serializer": (frame(GOOD_HEADER, serializer=7), "serializer 7"),
    "header longer than frame": (
        struct.pack(">iI", 20, 1000) + b"x" * 16,
        "frame of 20 bytes with a header of 1000",
    ),
    "negative length": (struct.pack(">iI", -5, 10) + b"x" * 16, "frame of -5 bytes"),
    "length zero": (struct.pack(">iI", 0, 0), "frame of 0 bytes"),
    "frame of 2 GiB": (struct.pack(">iI", 2**31 - 1, 100), "frame of 2147483647 bytes"),
    "header of 100 MB": (
        struct.pack(">iI", 100_000_004, 100_000_000 & 0xFF_FFFF),
        "frame of 100000004 bytes",
    ),
    "frame one byte too long": (
        struct.pack(">iI", 16 * 1024 * 1024 - 3, 10),
        "frame of 16777213 bytes",
    ),
    "invalid UTF-8 in JSON": (frame(b'{"code":"\xff\xfe"}'), "is not JSON"),
    "invalid UTF-8 in binary": (
        frame(struct.pack(">hBhiii", 34, 0, 1, 1, 0, 2) + b"\xff\xfe\0\0\0\0", serializer=1),
        "cannot be read",
    ),
    "JSON that nests too deep": (frame(b"[" * 100_000), "is not JSON"),
    "JSON that is no object": (frame(b"[1,2,3]"), "not a JSON object"),
    "deep ext fields": (frame(header(extFields={"a": {"b": [1]}})), "ext field 'a'"),
    "a number out of range": (frame(header(opaque=2**40)), "opaque"),
    "no code": (frame(b'{"flag":0,"opaque":1}'), "without code"),
    "an empty header": (frame(b""), "is not JSON"),
    "ext longer than the header": (
        frame(struct.pack(">hBhiiii", 34, 0, 1, 1, 0, 0, 999), serializer=1),
        "ext fields of 999",
    ),
    "an HTTP request": (b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n", "an HTTP client"),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS client"),
    "the PROXY preamble": (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "PROXY preamble"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
async def test_bad_bytes_end_their_connection_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, words = BAD_BYTES[name]
    async with (
        Server(echo) as server,
        await RawConnection.open(server.port) as good,
        await RawConnection.open(server.port) as bad,
    ):
        await bad.send(data)
        assert await bad.wait_closed() == b""
        [line] = [
            record.message for record in caplog.records if "not RocketMQ frames" in record.message
        ]
        assert f"remote={bad.address}" in line
        assert words in line
        assert len(line) < 1000
        assert (await good.ask(Command(34, 1, body=b"still served"))).body == b"still served"
        await eventually(lambda: len(server.peers) == 1)


async def test_what_came_before_the_bad_bytes_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        await raw.send(encode_command(Command(34, 1, body=b"good")) + frame(b"{}"))
        assert (await raw.receive()).body == b"good"
        assert await raw.wait_closed() == b""
    assert "from=a RocketMQ peer out of step" in caplog.text


async def test_a_frame_that_announces_gigabytes_allocates_nothing() -> None:
    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        await raw.ask(Command(34, 1))
        tracemalloc.start()
        try:
            await raw.send(struct.pack(">iI", 2**31 - 1, 1) + b"x" * 1000)
            await raw.wait_closed()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5_000_000


async def test_a_large_frame_that_never_ends_holds_only_what_has_come() -> None:
    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        await raw.ask(Command(34, 1))
        tracemalloc.start()
        try:
            await raw.send(struct.pack(">iI", 15_000_000, 100) + b"x" * 1000)
            await raw.close()
            await eventually(lambda: not server.peers)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5_000_000


async def test_a_connection_that_ends_inside_a_frame_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Server(echo) as server:
        raw = await RawConnection.open(server.port)
        await raw.send(encode_command(Command(34, 1, body=b"x" * 100))[:-10])
        await eventually(lambda: any(peer._decoder.buffered for peer in server.peers))
        await raw.close()
        await eventually(lambda: not server.peers)
        [line] = [record.message for record in caplog.records if "inside a frame" in record.message]
        assert f"remote={raw.address}" in line


async def test_a_half_closed_connection_gets_its_answers_and_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held: list[Promise] = []

    def serve(_peer: Peer, request: Command) -> Command | Promise:
        if request.code == 11:
            held.append(Promise())
            return held[-1]
        return reply(request, body=b"x" * 500_000)

    caplog.set_level("INFO")
    async with Server(serve) as server, await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(11, 1))
        await raw.send_command(Command(12, 2))
        raw.half_close()
        answer = await raw.receive()
        assert (answer.request_id, len(answer.body)) == (2, 500_000)
        assert await raw.wait_closed() == b""
        await eventually(lambda: not server.peers)
        assert not held[0].resolve(Command(0))
        [line] = [record.message for record in caplog.records if "peer left" in record.message]
        assert f"remote={raw.address} promises=1" in line


async def test_a_reset_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with Server(echo) as server:
        raw = await RawConnection.open(server.port)
        await raw.ask(Command(34, 1))
        raw.abort()
        await eventually(lambda: not server.peers)
        assert f"disconnected remote={raw.address} reason=" in caplog.text
