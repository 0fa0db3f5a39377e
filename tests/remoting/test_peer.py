"""One connection, both directions, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from tests.support.raw_connection import RawConnection

from penstock.errors import (
    ConnectionLost,
    RequestTimeout,
    TooManyRequests,
    TopicNotFound,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, encode_command, reply
from penstock.protocol.frames import BINARY
from penstock.remoting import Handler, Limits, Peer, Pool, Promise, Server
from penstock.testing.eventually import eventually

PULL = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request, ext=request.ext, body=request.body)


def silent(_peer: Peer, _request: Command) -> None:
    return None


@contextlib.asynccontextmanager
async def connected(
    handler: Handler, client_handler: Handler = silent, *, limits: Limits | None = None
) -> AsyncIterator[tuple[Peer, Peer]]:
    """The client's and the server's end of one connection."""
    async with (
        Server(handler, limits=limits) as server,
        Pool(client_handler, limits=limits) as pool,
    ):
        client = await pool.peer(f"127.0.0.1:{server.port}")
        await eventually(lambda: len(server.peers) == 1)
        yield client, next(iter(server.peers))


async def test_a_request_gets_its_answer_with_everything_in_it() -> None:
    async with connected(echo) as (client, server):
        answer = await client.request(Command(SEND, ext={"b": "orders"}, body=b"x" * 300), 10)
        assert answer.code == 0
        assert answer.is_response
        assert answer.ext == {"b": "orders"}
        assert answer.body == b"x" * 300
        assert server.remote == client.local
        assert client.remote == server.local


async def test_both_sides_ask_each_other_at_the_same_time() -> None:
    async with connected(echo, echo) as (client, server):
        asked = [
            *(client.request(Command(SEND, body=b"c%d" % n), 10) for n in range(200)),
            *(server.request(Command(SEND, body=b"s%d" % n), 10) for n in range(200)),
        ]
        answers = await asyncio.gather(*asked)
        expected = [b"c%d" % n for n in range(200)] + [b"s%d" % n for n in range(200)]
        assert [answer.body for answer in answers] == expected


async def test_an_answer_may_come_encoded_and_among_others() -> None:
    def serve(_peer: Peer, request: Command) -> Command | bytes:
        answer = reply(request, body=request.body)
        return encode_command(answer) if request.code == SEND else answer

    async with connected(serve) as (client, _):
        asked = [
            client.request(Command(SEND if n % 3 else PULL, body=b"%d" % n), 10) for n in range(30)
        ]
        answers = await asyncio.gather(*asked)
        assert [answer.body for answer in answers] == [b"%d" % n for n in range(30)]


async def test_answers_in_any_order_reach_who_asked() -> None:
    held: list[tuple[Promise, Command]] = []

    def hold(_peer: Peer, request: Command) -> Promise:
        promise = Promise()
        held.append((promise, request))
        return promise

    async with connected(hold) as (client, server):
        asked = [asyncio.ensure_future(client.request(Command(PULL), 10)) for _ in range(5)]
        await eventually(lambda: len(held) == 5)
        assert server.open_promises == 5
        for number in (3, 0, 4, 2, 1):
            promise, request = held[number]
            assert promise.resolve(reply(request, body=b"%d" % number))
        answers = await asyncio.gather(*asked)
        assert [answer.body for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
        assert server.open_promises == 0


async def test_a_promise_is_kept_once() -> None:
    promises: list[Promise] = []

    def hold(_peer: Peer, _request: Command) -> Promise:
        promises.append(Promise())
        return promises[-1]

    async with connected(hold) as (client, server):
        asked = asyncio.ensure_future(client.request(Command(PULL), 10))
        await eventually(lambda: bool(promises))
        [promise] = promises
        assert promise.resolve(Command(0, body=b"first"))
        assert promise.is_resolved
        assert not promise.resolve(Command(0, body=b"second"))
        assert (await asked).body == b"first"
        assert server.open_promises == 0


async def test_a_promise_may_be_kept_before_it_is_given() -> None:
    def at_once(_peer: Peer, _request: Command) -> Promise:
        promise = Promise()
        promise.resolve(Command(19))
        return promise

    async with connected(at_once) as (client, server):
        assert (await client.request(Command(PULL), 10)).code == 19
        assert server.open_promises == 0


async def test_a_promise_can_fail_with_the_code_of_an_error() -> None:
    def fail_later(_peer: Peer, _request: Command) -> Promise:
        promise = Promise()
        error = TopicNotFound("no topic 'orders'")
        asyncio.get_running_loop().call_soon(promise.fail, error)
        return promise

    async with connected(fail_later) as (client, _):
        answer = await client.request(Command(PULL), 10)
        assert (answer.code, answer.remark) == (17, "no topic 'orders'")


async def test_a_promise_to_a_peer_that_is_gone_is_a_quiet_no_op() -> None:
    promises: list[Promise] = []

    def hold(_peer: Peer, _request: Command) -> Promise:
        promises.append(Promise())
        return promises[-1]

    async with connected(hold) as (client, server):
        asked = asyncio.ensure_future(client.request(Command(PULL), 10))
        await eventually(lambda: bool(promises))
        [promise] = promises
        client.abort()
        await eventually(lambda: server.is_closed)
        assert not promise.resolve(Command(0))
        with pytest.raises(ConnectionLost, match="aborted on our side"):
            await asked


@pytest.mark.parametrize("kind", ["answer", "encoded", "promise", "error", "bug"])
async def test_a_oneway_request_is_never_answered(kind: str) -> None:
    served: list[int] = []
    promises: list[Promise] = []

    def serve(_peer: Peer, request: Command) -> Command | Promise | bytes | None:
        served.append(request.code)
        if not request.is_oneway:
            return reply(request, body=b"the only answer")
        if kind == "encoded":
            return encode_command(reply(request))
        if kind == "promise":
            promises.append(Promise())
            return promises[-1]
        if kind == "error":
            raise TopicNotFound("no such topic")
        if kind == "bug":
            raise ZeroDivisionError
        return reply(request)

    async with Server(serve) as server, await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(15, 7, flag=2))
        await eventually(lambda: served == [15])
        for promise in promises:
            assert not promise.resolve(Command(0))
        answer = await raw.ask(Command(34, 8))
        assert (answer.request_id, answer.body) == (8, b"the only answer")
        assert next(iter(server.peers)).open_promises == 0


async def test_our_oneway_requests_carry_the_flag_and_a_number() -> None:
    seen: list[Command] = []

    def note(_peer: Peer, request: Command) -> None:
        seen.append(request)

    async with connected(note) as (client, _):
        client.oneway(Command(15))
        client.oneway(Command(15))
        await eventually(lambda: len(seen) == 2)
    assert all(request.is_oneway for request in seen)
    assert [request.request_id for request in seen] == [1, 2]


async def test_a_handler_may_answer_with_nothing_but_a_code() -> None:
    shared = Command(ResponseCode.SUCCESS, remark="shared by all")

    async with (
        Server(lambda _peer, _request: shared) as server,
        await RawConnection.open(server.port) as raw,
    ):
        for number in (5, -7, 0):
            answer = await raw.ask(Command(34, number))
            assert (answer.request_id, answer.is_response) == (number, True)


async def test_an_answer_is_written_the_way_the_request_was() -> None:
    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        assert (await raw.ask(Command(34, 1, serializer=BINARY))).serializer == BINARY
        assert (await raw.ask(Command(34, 2))).serializer != BINARY


async def test_the_code_and_text_of_our_errors_reach_the_asker() -> None:
    def refuse(_peer: Peer, _request: Command) -> Command:
        raise TopicNotFound("no topic 'orders'", hint="penstock topic create orders")

    async with connected(refuse) as (client, _):
        answer = await client.request(Command(SEND), 10)
        assert answer.code == 17
        assert answer.remark == "no topic 'orders'; try: penstock topic create orders"


async def test_a_bug_in_a_handler_is_answered_shortly_and_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_peer: Peer, _request: Command) -> Command:
        raise ValueError("x" * 5000)

    async with connected(fail) as (client, _):
        answer = await client.request(Command(SEND), 10)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("ValueError: xxx")
        assert len(answer.remark) == 1000
        assert "handler failed request=SEND_MESSAGE_V2" in caplog.text
        assert "Traceback" in caplog.text
        assert not client.is_closed


async def test_an_answer_too_large_for_a_frame_becomes_an_error() -> None:
    def flood(_peer: Peer, request: Command) -> Command:
        return reply(request, body=b"x" * 200_000)

    async with connected(flood, limits=Limits(max_frame_bytes=100_000)) as (client, _):
        answer = await client.request(Command(PULL), 10)
        assert answer.code == 13
        assert "at most 100000 bytes" in str(answer.remark)


async def test_a_request_without_an_answer_times_out_and_the_late_answer_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    promises: list[Promise] = []

    def hold(_peer: Peer, request: Command) -> Command | Promise:
        if request.code == SEND:
            return reply(request)
        promises.append(Promise())
        return promises[-1]

    async with connected(hold) as (client, _):
        with pytest.raises(RequestTimeout, match="no answer to PULL_MESSAGE"):
            await client.request(Command(PULL), 0.05)
        promises[0].resolve(Command(0))
        await client.request(Command(SEND), 10)
        assert client.late_answers == 1
        assert client.unasked_answers == 0
    assert "answer without a request" not in caplog.text


async def test_a_request_without_time_left_is_not_sent() -> None:
    async with connected(echo) as (client, _):
        with pytest.raises(RequestTimeout, match="no time left"):
            await client.request(Command(SEND), 0)
        assert client.in_flight == 0


async def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    async with connected(silent) as (client, _):
        asked = asyncio.ensure_future(client.request(Command(PULL), 10))
        await asyncio.sleep(0)
        assert client.in_flight == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert client.in_flight == 0


async def test_a_lost_connection_fails_everything_that_waits() -> None:
    closed: list[Peer] = []
    async with connected(silent) as (client, server):
        client.on_close(closed.append)
        asked = [asyncio.ensure_future(client.request(Command(PULL), 10)) for _ in range(50)]
        await asyncio.sleep(0.01)
        server.abort()
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, ConnectionLost)
            assert client.remote in str(answer)
        await eventually(lambda: closed == [client])
        assert client.in_flight == 0
        with pytest.raises(ConnectionLost, match="is closed"):
            await client.request(Command(PULL), 10)
        with pytest.raises(ConnectionLost, match="is closed"):
            client.oneway(Command(15))
        client.on_close(closed.append)
        await eventually(lambda: closed == [client, client])


async def test_a_callback_for_a_lost_connection_that_fails_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[Peer] = []

    def fail(_peer: Peer) -> None:
        raise ZeroDivisionError

    async with connected(silent) as (client, _):
        client.on_close(fail)
        client.on_close(closed.append)
        client.close()
        await eventually(lambda: closed == [client])
    assert "callback of a lost connection failed" in caplog.text


async def test_only_so_many_requests_are_in_flight() -> None:
    async with connected(silent, limits=Limits(max_in_flight=3)) as (client, _):
        done: list[object] = []
        cancelled = asyncio.ensure_future(client.request(Command(PULL), 10))
        await eventually(lambda: client.in_flight == 1)
        for _ in range(2):
            client.start_request(Command(PULL), 10, done.append)
        with pytest.raises(TooManyRequests, match="at most 3"):
            client.start_request(Command(PULL), 10, done.append)
        cancelled.cancel()
        await eventually(lambda: client.in_flight == 2)
        client.start_request(Command(PULL), 10, done.append)
        assert client.in_flight == 3
        assert done == []


async def test_too_many_waiting_requests_are_answered_with_system_busy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held: list[Promise] = []
    oneways: list[int] = []

    def hold(_peer: Peer, request: Command) -> Promise | None:
        if request.is_oneway:
            oneways.append(request.code)
            return None
        held.append(Promise())
        return held[-1]

    async with connected(hold, limits=Limits(max_promises=4)) as (client, _):
        waiting = [asyncio.ensure_future(client.request(Command(PULL), 10)) for _ in range(4)]
        await eventually(lambda: len(held) == 4)
        for _ in range(2):
            answer = await client.request(Command(PULL), 10)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert str(answer.remark).startswith("[OVERLOAD]")
        client.oneway(Command(15))  # It needs no promise, so it is served all the same.
        await eventually(lambda: oneways == [15])
        lines = [record for record in caplog.records if "too many requests" in record.message]
        assert len(lines) == 1
        assert "waiting=4 max_promises=4" in lines[0].message
        for promise in held:
            promise.resolve(Command(19))
        assert {answer.code for answer in await asyncio.gather(*waiting)} == {19}
        assert len(held) == 4


async def test_the_same_request_id_twice_is_answered_twice() -> None:
    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(SEND, 5, body=b"one"))
        await raw.send_command(Command(SEND, 5, body=b"two"))
        answers = [await raw.receive(), await raw.receive()]
        assert [(answer.request_id, answer.body) for answer in answers] == [
            (5, b"one"),
            (5, b"two"),
        ]


async def test_answers_without_a_request_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        for number in range(10):
            await raw.send_command(Command(0, number, flag=1))
        await raw.ask(Command(34, 1))
        assert next(iter(server.peers)).unasked_answers == 10
        lines = [
            record for record in caplog.records if "answer without a request" in record.message
        ]
        assert len(lines) == 1
        assert f"remote={raw.address} request_id=0 code=SUCCESS" in lines[0].message
        assert lines[0].levelno == logging.WARNING


async def test_request_ids_are_never_zero_and_wrap_inside_31_bits() -> None:
    async with connected(echo) as (client, _):
        client._last_request_id = 0x7FFF_FFFE
        ids = [client.start_request(Command(SEND), 10, lambda _answer: None) for _ in range(3)]
        assert ids == [0x7FFF_FFFF, 1, 2]


async def test_close_lets_what_was_said_arrive_first() -> None:
    seen: list[object] = []

    def note(_peer: Peer, request: Command) -> None:
        seen.append(request.body)

    async with connected(note) as (client, server):
        client.oneway(Command(15, body=b"last words" * 100_000))
        client.close()
        client.close()
        assert client.is_closed
        await eventually(lambda: server.is_closed)
        assert seen == [b"last words" * 100_000]


async def test_a_handler_that_closes_its_connection_still_answers() -> None:
    served: list[int] = []

    def farewell(peer: Peer, request: Command) -> Command:
        served.append(request.request_id)
        peer.close("asked to leave")
        return reply(request, body=b"bye")

    async with Server(farewell) as server, await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(35, 1))
        assert (await raw.receive()).body == b"bye"
        assert await raw.wait_closed() == b""
        assert served == [1]


async def test_small_answers_leave_at_once_and_vanished_hosts_are_noticed() -> None:
    async with connected(echo) as ends:
        for peer in ends:
            sock = peer._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_what_an_owner_remembers_stays_with_the_peer() -> None:
    async with connected(echo) as (client, server):
        server.data["client_id"] = "10.0.0.5@1"
        assert client.data == {}
        assert server.data == {"client_id": "10.0.0.5@1"}
        assert repr(client) == f"<Peer {client.remote}>"
        client.abort()
        assert repr(client) == f"<Peer {client.remote} closed>"


async def test_a_chunk_of_requests_is_answered_with_one_write() -> None:

    async with Server(echo) as server, await RawConnection.open(server.port) as raw:
        await raw.ask(Command(34, 1))
        peer = next(iter(server.peers))
        writes: list[int] = []
        transport = peer._outgoing._transport

        class Counting:
            def __getattr__(self, name: str) -> object:
                return getattr(transport, name)

            def write(self, data: bytes) -> None:
                writes.append(len(data))
                transport.write(data)

        peer._outgoing._transport = Counting()  # type: ignore[assignment]  # stands in for it
        chunk = b"".join(encode_command(Command(34, number)) for number in range(100))
        peer.data_received(chunk)
        assert writes == []
        for number in range(100):
            assert (await raw.receive()).request_id == number
        assert len(writes) == 1
