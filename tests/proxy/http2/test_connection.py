"""HTTP/2 as raw bytes: flow control, order, and clients that keep to no rule."""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import suppress

import pytest
from tests.proxy.http2.peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GO_AWAY,
    HAS_PRIORITY,
    HEADERS,
    MAX_FRAME,
    MAX_MESSAGE,
    PADDED,
    PING,
    PRIORITY,
    PUSH,
    RESET,
    SECONDS,
    SETTINGS,
    WINDOW,
    Place,
    frame,
    framed,
    head,
    setting,
)

from penstock.proxy.http2 import connection as http2
from penstock.proxy.http2.call import parse_timeout
from penstock.proxy.http2.grpc_status import GrpcStatus
from penstock.proxy.http2.hpack import literal
from penstock.testing.eventually import eventually


async def test_a_call_byte_by_byte(place: Place) -> None:
    async with place.peer() as peer:
        whole = frame(HEADERS, END_HEADERS, 1, head("/echo")) + frame(DATA, 1, 1, framed(b"hi"))
        for byte in whole:
            peer.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        data, trailers = await peer.answer(1)
        assert data == framed(b"hi")
        assert trailers == {"grpc-status": "0"}


async def test_what_headers_and_data_may_have_around_them(place: Place) -> None:
    async with place.peer() as peer:
        block = head("/echo")
        padded = b"\x03" + bytes(5) + block + b"pad"
        peer.send(HEADERS, PADDED | HAS_PRIORITY, 1, padded)
        peer.send(CONTINUATION, END_HEADERS, 1)
        message = framed(b"in pieces")
        peer.send(DATA, PADDED, 1, b"\x02" + message[:3] + b"xx")
        peer.send(DATA, 0, 1)
        peer.send(PRIORITY, 0, 1, bytes(5))
        peer.send(77, 0, 1, b"unknown")
        peer.send(DATA, 0, 1, message[3:])
        # Trailers end the request.
        peer.send(HEADERS, END_HEADERS | END_STREAM, 1, literal("x", "y"))
        assert (await peer.answer(1))[0] == message


async def test_many_calls_at_once_are_answered_in_one_piece(place: Place) -> None:
    async with place.peer() as peer:
        for number in range(200):
            peer.call(2 * number + 1, "/echo", b"%d" % number)
        left = {2 * number + 1: b"%d" % number for number in range(200)}
        while left:
            found = await peer.until(DATA)
            assert found.body == framed(left.pop(found.stream_id))


async def test_errors_of_calls(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place.peer() as peer:
        expected = {
            "/none": GrpcStatus.UNIMPLEMENTED,
            "/fail": GrpcStatus.INVALID_ARGUMENT,
            "/crash": GrpcStatus.UNKNOWN,
        }
        for number, (path, status) in enumerate(expected.items()):
            peer.call(2 * number + 1, path)
            _, headers = await peer.answer(2 * number + 1)
            assert headers[":status"] == "200"
            assert headers["grpc-status"] == str(int(status))
            if path == "/fail":
                assert headers["grpc-message"] == "100 %25 wrong: %C3%BC"
        assert "a fault of ours" in caplog.text
        bad = {
            "no message": b"",
            "two messages": framed(b"a") + framed(b"b"),
            "a message that is cut off": framed(b"abc")[:-1],
            "an unknown encoding": b"\1" + framed(b"abc")[1:],
            "too large": b"\0\xff\xff\xff\xff",
        }
        for number, (what, data) in enumerate(bad.items()):
            stream_id = 2 * number + 101
            peer.send(HEADERS, END_HEADERS, stream_id, head("/echo"))
            peer.send(DATA, END_STREAM, stream_id, data)
            _, headers = await peer.answer(stream_id)
            assert headers["grpc-status"] != "0", what
        peer.send(HEADERS, END_HEADERS | END_STREAM, 201, literal(":method", "GET"))
        assert (await peer.answer(201))[1] == {":status": "415"}
        peer.call(203, "/echo")
        assert (await peer.answer(203))[1]["grpc-status"] == "0"


async def test_compressed_messages(place: Place) -> None:
    import gzip

    async with place.peer() as peer:
        packed = gzip.compress(b"hello" * 100)
        peer.send(HEADERS, END_HEADERS, 1, head("/echo", grpc_encoding="gzip"))
        peer.send(DATA, END_STREAM, 1, b"\1" + framed(packed)[1:])
        assert (await peer.answer(1))[0] == framed(b"hello" * 100)
        bomb = gzip.compress(bytes(MAX_MESSAGE + 1))
        peer.send(HEADERS, END_HEADERS, 3, head("/echo", grpc_encoding="gzip"))
        peer.send(DATA, END_STREAM, 3, b"\1" + framed(bomb)[1:])
        assert (await peer.answer(3))[1]["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))


async def test_a_client_decides_how_much_it_gets(place: Place) -> None:
    async with place.peer(setting(4, 10)) as peer:
        peer.call(1, "/many", b"x" * 15)
        await peer.until(HEADERS)
        whole = framed(b"x" * 15) * 10
        got = (await peer.until(DATA)).body
        assert got == whole[:10]
        # A ping that is answered shows that nothing else was sent.
        peer.send(PING, 0, 0, b"12345678")
        while (found := await peer.take()).kind != PING:
            assert found.kind not in (DATA, HEADERS)
        peer.send(WINDOW, 0, 1, struct.pack(">I", 7))
        got += (await peer.until(DATA)).body
        assert len(got) == 17
        peer.send(SETTINGS, 0, 0, setting(4, 60))
        got += (await peer.until(DATA)).body
        assert len(got) == 67
        peer.send(WINDOW, 0, 1, struct.pack(">I", 1 << 20))
        data, trailers = await peer.answer(1)
        assert got + data == whole
        assert trailers["grpc-status"] == "0"
        assert place.methods.flushed == [len(whole)]


async def test_the_window_of_the_connection_is_shared(place: Place) -> None:
    async with place.peer(setting(4, 1 << 20)) as peer:
        peer.call(1, "/echo", bytes(60_000))
        peer.call(3, "/echo", bytes(60_000))
        size = 0
        while size < 65_535:
            size += len((await peer.until(DATA)).body)
        assert size == 65_535
        peer.send(WINDOW, 0, 0, struct.pack(">I", 1 << 20))
        while size < 120_010:
            size += len((await peer.until(DATA)).body)
        assert size == 120_010


async def test_large_requests_get_room(place: Place) -> None:
    async with place.peer(setting(4, 1 << 24)) as peer:
        peer.send(WINDOW, 0, 0, struct.pack(">I", 1 << 24))
        message = framed(random.Random(5).randbytes(MAX_MESSAGE))
        peer.send(HEADERS, END_HEADERS, 1, head("/echo"))
        room = 1 << 20
        position = 0
        while position < len(message):
            size = min(16_384, room, len(message) - position)
            if not size:
                more = await peer.until(WINDOW)
                room += int.from_bytes(more.body) if more.stream_id == 1 else 0
                continue
            peer.send(DATA, 0, 1, message[position : position + size])
            position, room = position + size, room - size
        peer.send(DATA, END_STREAM, 1)
        assert (await peer.answer(1))[0] == message


async def test_streams_in_both_directions(place: Place) -> None:
    async with place.peer() as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/chat"))
        for word in (b"one", b"two"):
            peer.send(DATA, 0, 1, framed(word))
            assert (await peer.until(DATA)).body == framed(word.upper())
        peer.send(DATA, END_STREAM, 1)
        assert (await peer.answer(1))[1] == {"grpc-status": "0"}


async def test_calls_end_with_their_client(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/wait")
        peer.call(3, "/wait")
        await eventually(lambda: place.methods.started == 2)
        peer.send(RESET, 0, 1, struct.pack(">I", 8))
        await eventually(lambda: place.methods.cancelled == 1)
    await eventually(lambda: place.methods.cancelled == 2)
    await eventually(lambda: len(place.server) == 0)


async def test_what_was_not_taken_is_known(place: Place) -> None:
    async with place.peer(setting(4, 50)) as peer:
        peer.call(1, "/many", b"x" * 15)
        await peer.until(DATA)
        peer.send(RESET, 0, 1, struct.pack(">I", 8))
        await eventually(lambda: place.methods.flushed == [50])


async def test_a_server_that_leaves_finishes_what_it_has_begun(place: Place) -> None:
    async with place.peer() as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/chat"))
        peer.send(DATA, 0, 1, framed(b"a"))
        await peer.until(DATA)
        place.server.leave()
        gone = await peer.until(GO_AWAY)
        assert struct.unpack(">II", gone.body) == (1, 0)
        peer.call(3, "/echo")
        peer.send(DATA, END_STREAM, 1, framed(b"b"))
        assert (await peer.answer(1))[0] == framed(b"B")
        assert await asyncio.wait_for(peer.reader.read(), SECONDS) == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", place.port)


BROKEN = {
    "data of no stream": frame(DATA, 0, 0, b"x"),
    "data of a stream that is not open": frame(DATA, 0, 5, b"x"),
    "an even stream": frame(HEADERS, END_HEADERS, 2, head("/echo")),
    "headers that cannot be decoded": frame(HEADERS, END_HEADERS, 1, b"\x80"),
    "more padding than frame": frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff1"),
    "a priority that is cut off": frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"123"),
    "a continuation of nothing": frame(CONTINUATION, END_HEADERS, 1, b""),
    "another frame within a block": frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)),
    "a push": frame(PUSH, 0, 1, bytes(4)),
    "a ping of seven bytes": frame(PING, 0, 0, bytes(7)),
    "settings of five bytes": frame(SETTINGS, 0, 0, bytes(5)),
    "a window that is too large": frame(SETTINGS, 0, 0, setting(4, 1 << 31)),
    "frames that are too small": frame(SETTINGS, 0, 0, setting(5, 100)),
    "an update of nothing": frame(WINDOW, 0, 0, bytes(4)),
    "an update of three bytes": frame(WINDOW, 0, 0, bytes(3)),
    "too large an update": frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"),
    "an update of nothing for a stream": frame(HEADERS, END_HEADERS, 1, head("/chat"))
    + frame(WINDOW, 0, 1, bytes(4)),
    "too large an update for a stream": frame(HEADERS, END_HEADERS, 1, head("/chat"))
    + frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff"),
    "an update of a stream that is not open": frame(WINDOW, 0, 7, b"\0\0\0\1"),
    "a reset of a stream that is not open": frame(RESET, 0, 7, bytes(4)),
    "a frame that is too large": struct.pack(">IBI", 16_385 << 8, 0, 1),
    "headers without end": frame(HEADERS, 0, 1, b"")
    + frame(CONTINUATION, 0, 1, bytes(16_384)) * 20,
    "empty continuations": frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1) * 20_000,
    "a flood of pings": frame(PING, 1, 0, bytes(8)) * 20_000,
    "a flood of settings": frame(SETTINGS, 0, 0) * 600,
    "a flood of settings that were taken": frame(SETTINGS, 1, 0) * 20_000,
    "a flood of resets": b"".join(
        frame(HEADERS, END_HEADERS, number, head("/chat")) + frame(RESET, 0, number, bytes(4))
        for number in range(1, 30_001, 2)
    ),
    "a flood of empty data": frame(HEADERS, END_HEADERS, 1, head("/chat"))
    + frame(DATA, 0, 1) * 20_000,
    "a flood of padding": frame(HEADERS, END_HEADERS, 1, head("/chat"))
    + frame(DATA, PADDED, 1, b"\x01x") * 20_000,
    "headers within a stream": frame(HEADERS, END_HEADERS, 1, head("/chat")) * 2,
    "data after the end": frame(HEADERS, END_HEADERS, 1, head("/wait"))
    + frame(DATA, END_STREAM, 1, framed(b"x"))
    + frame(DATA, 0, 1, b"x"),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_ends_a_connection(place: Place, what: str) -> None:
    async with place.peer() as peer:
        peer.writer.write(BROKEN[what])
        # Of a flood, the end is all that may arrive: the rest of it is not read any more.
        assert await peer.fault() != 0
    await eventually(lambda: len(place.server) == 0)


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"PRI * HTTP/1"])
async def test_peers_that_do_not_speak_the_protocol(place: Place, greeting: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(greeting)
    async with asyncio.timeout(SECONDS):
        while await reader.read(1000):
            pass
    writer.close()


async def test_a_client_that_does_not_read_is_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_CONTROL_FRAMES", 1 << 30)
    async with place.peer() as peer:
        peer.reader._limit = 1  # type: ignore[attr-defined]  # the kernel's buffers are to fill
        pings = frame(PING, 0, 0, bytes(8)) * 10_000
        with suppress(ConnectionError):
            for _ in range(1000):
                peer.writer.write(pings)
                await peer.writer.drain()
        assert peer.writer.transport.is_closing()
    await eventually(lambda: len(place.server) == 0)


async def test_random_frames(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(11)
    for _ in range(60):
        async with place.peer() as peer:
            for _ in range(chance.randrange(1, 30)):
                body = chance.choice(
                    [
                        head("/echo"),
                        head("/chat"),
                        framed(b"x"),
                        chance.randbytes(chance.randrange(40)),
                    ]
                )
                kind, flags = chance.randrange(11), chance.choice([0, 1, 4, 5, 8, 12, 255])
                peer.send(kind, flags, chance.choice([0, 1, 1, 3, 5, 7]), body)
            await asyncio.sleep(0)
    await eventually(lambda: len(place.server) == 0)
    assert not [one for one in caplog.records if one.exc_info]
    async with place.peer() as peer:
        peer.call(1, "/echo")
        assert (await peer.answer(1))[0] == framed(b"hello")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20S", 20), ("5M", 300), ("1H", 3600), ("1500m", 1.5), ("5u", 5e-6), ("7n", 7e-9)]
    + [(text, None) for text in ("", "S", "5", "-5S", "5x", "\u0665S")],
)
def test_timeouts(text: str, seconds: float | None) -> None:
    assert parse_timeout(text) == (None if seconds is None else pytest.approx(seconds))


async def test_calls_without_a_task(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/quick", b"now")
        assert await peer.answer(1) == (framed(b"now"), {"grpc-status": "0"})
        peer.call(3, "/quick", b"later")
        await eventually(lambda: len(place.methods.calls) == 1)
        place.methods.calls[0].answer(b"at last")
        assert await peer.answer(3) == (framed(b"at last"), {"grpc-status": "0"})
        # Once is enough.
        place.methods.calls[0].answer(b"again")
        peer.call(5, "/quick", b"leave")
        _, trailers = await peer.answer(5)
        assert trailers["grpc-message"] == "in the middle"
        peer.call(7, "/quick", b"crash")
        _, trailers = await peer.answer(7)
        assert trailers["grpc-status"] == str(int(GrpcStatus.UNKNOWN))


async def test_a_call_without_a_task_whose_client_is_gone(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/quick", b"later")
        await eventually(lambda: len(place.methods.calls) == 1)
        peer.send(RESET, 0, 1, struct.pack(">I", 8))
        await eventually(lambda: place.server.open_calls == 0)
        place.methods.calls[0].answer(b"too late")
        peer.call(3, "/quick", b"now")
        assert await peer.answer(3) == (framed(b"now"), {"grpc-status": "0"})


async def test_an_answer_without_a_task_waits_for_the_window(place: Place) -> None:
    async with place.peer() as peer:
        message = bytes(100_000)
        peer.call(1, "/quick", message)
        await eventually(lambda: place.server.kept_bytes > 0)
        peer.more(0, 200_000)
        peer.more(1, 200_000)
        assert await peer.answer(1) == (framed(message), {"grpc-status": "0"})


async def test_an_answer_of_several_messages_without_a_task(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/several", b"short")
        assert (await peer.until(DATA)).body == framed(b"short") * 10
        assert (await peer.until(HEADERS)).flags & END_STREAM
        # Messages may begin in one frame and end in the next.
        peer.call(3, "/several", bytes(3000))
        first = await peer.until(DATA)
        assert len(first.body) == MAX_FRAME
        rest, trailers = await peer.answer(3)
        assert first.body + rest == framed(bytes(3000)) * 10
        assert trailers["grpc-status"] == "0"
        assert place.server.open_calls == place.server.kept_bytes == 0


@pytest.mark.parametrize("window", ["call", "connection"])
async def test_an_answer_of_several_messages_that_is_not_taken_at_once(
    place: Place, window: str
) -> None:
    size = 100 if window == "call" else 1 << 20
    async with place.peer(setting(4, size)) as peer:
        message = bytes(50 if window == "call" else 10_000)
        peer.call(1, "/several", message)
        await peer.until(HEADERS)
        got = len((await peer.until(DATA)).body)
        peer.more(0, 1 << 20)
        peer.more(1, 1 << 19)
        data, trailers = await peer.answer(1)
        assert got + len(data) == 10 * len(framed(message))
        assert trailers["grpc-status"] == "0"
        assert place.methods.flushed == [10 * len(framed(message))]


@pytest.mark.parametrize("is_reset", [True, False])
async def test_an_answer_of_several_messages_whose_client_is_gone(
    place: Place, is_reset: bool
) -> None:
    async with place.peer() as peer:
        peer.call(1, "/several", b"later")
        await eventually(lambda: len(place.methods.calls) == 1)
        call = place.methods.calls[0]
        if is_reset:
            peer.send(RESET, 0, 1, struct.pack(">I", 8))
        else:
            peer.writer.close()
        await eventually(lambda: place.server.open_calls == 0)
        assert not call.answer_all([b"too late"])
        call.go_on(place.methods.wait, lambda: place.methods.left.append(call))
        await asyncio.sleep(0)
        assert place.methods.started == 0
        assert place.methods.left == [call]


async def test_the_rest_of_a_call_whose_client_is_gone_in_the_same_turn(place: Place) -> None:
    async with place.peer(setting(4, 1)) as peer:
        peer.call(1, "/several", b"hello")
        peer.send(RESET, 0, 1, struct.pack(">I", 8))
        await eventually(lambda: len(place.methods.left) == 1)
        assert place.methods.flushed == []
