"""The in-memory network: connections as sockets make them, and every way to lose them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trustme

from penstock.testing.virtual_time.loop import UnhandledInLoop, VirtualLoop, run_virtual
from penstock.testing.virtual_time.network import LAN, ROUGH, Conditions
from penstock.testing.virtual_time.pipes import MAX_READ, SOCKET_BUFFER

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
PORT = 9876


class Recorder(asyncio.Protocol):
    """Writes down what its transport tells it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = b""
        self.reads: list[int] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.lost = asyncio.get_running_loop().create_future()
        self.keeps_half_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.reads.append(len(data))

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keeps_half_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc
        self.lost.set_result(None)

    def pause_writing(self) -> None:
        self.events.append("paused")

    def resume_writing(self) -> None:
        self.events.append("resumed")


class Echo(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


class Pair:
    """A server on one host, one client on another, connected."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.servers: list[Recorder] = []

    async def connect(self, kind: Callable[[], Recorder] = Recorder) -> Pair:
        def factory() -> Recorder:
            self.servers.append(kind())
            return self.servers[-1]

        with self.loop.network.host(A):
            self.listener = await self.loop.create_server(factory, "0.0.0.0", PORT)
        with self.loop.network.host(B):
            _, protocol = await self.loop.create_connection(Recorder, A, PORT)
        assert isinstance(protocol, Recorder)
        self.client = protocol
        await asyncio.sleep(0)
        self.server = self.servers[0]
        self.connection = self.loop.network.connections_between(A, B)[0]
        return self


Scenario = Callable[[VirtualLoop], Coroutine[Any, Any, None]]


def on_virtual_loop(scenario: Scenario) -> Callable[[], None]:
    """Turn a scenario into a test that runs it in virtual time."""

    def test() -> None:
        run_virtual(scenario, seed=1)

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


# -- connecting ------------------------------------------------------------------------------------


@on_virtual_loop
async def test_a_connection_has_addresses_like_a_socket(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    assert pair.client.transport.get_extra_info("peername") == (A, PORT)
    host, port = pair.client.transport.get_extra_info("sockname")
    assert host == B
    assert pair.server.transport.get_extra_info("peername") == (B, port)
    assert pair.server.transport.get_extra_info("sockname") == (A, PORT)
    sock = pair.client.transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert (sock.getpeername(), sock.getsockname()) == ((A, PORT), (host, port))
    assert (sock.family, sock.fileno(), sock.getsockopt()) == (socket.AF_INET, -1, 0)
    assert pair.client.transport.get_extra_info("nothing", 7) == 7


@on_virtual_loop
async def test_bytes_go_both_ways_in_order(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect(Echo)
    for number in range(10):
        pair.client.transport.write(bytes([number]))
    pair.client.transport.writelines([b"abc", bytearray(b"def"), memoryview(b"ghi")])
    await asyncio.sleep(1)
    assert pair.client.received == bytes(range(10)) + b"abcdefghi"


@on_virtual_loop
async def test_an_address_without_a_listener_refuses(loop: VirtualLoop) -> None:
    with pytest.raises(ConnectionRefusedError) as caught:
        await loop.create_connection(Recorder, A, PORT)
    assert caught.value.errno == errno.ECONNREFUSED
    assert A in str(caught.value)


@on_virtual_loop
async def test_a_port_is_bound_once_a_host(loop: VirtualLoop) -> None:
    with loop.network.host(A):
        first = await loop.create_server(Recorder, None, PORT)
        with pytest.raises(OSError, match="address already in use"):
            await loop.create_server(Recorder, "0.0.0.0", PORT)
    with loop.network.host(B):
        await loop.create_server(Recorder, None, PORT)
    first.close()
    with loop.network.host(A):
        await loop.create_server(Recorder, None, PORT)


@on_virtual_loop
async def test_port_zero_picks_a_free_port(loop: VirtualLoop) -> None:
    one = await loop.create_server(Recorder, "127.0.0.1", 0)
    other = await loop.create_server(Recorder, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (one, other)]
    assert ports[0] != ports[1]
    for port in ports:
        await loop.create_connection(Recorder, "localhost", port)
    with pytest.raises(OSError, match="not connected"):
        one.sockets[0].getpeername()


@on_virtual_loop
async def test_loopback_is_private_to_its_host(loop: VirtualLoop) -> None:
    with loop.network.host(A):
        await loop.create_server(Recorder, "127.0.0.1", PORT)
        _, protocol = await loop.create_connection(Recorder, "127.0.0.1", PORT)
        assert isinstance(protocol, Recorder)
        assert protocol.transport.get_extra_info("peername") == ("127.0.0.1", PORT)
    with loop.network.host(B):
        for address in (A, "127.0.0.1"):
            with pytest.raises(ConnectionRefusedError):
                await loop.create_connection(Recorder, address, PORT)


@on_virtual_loop
async def test_a_server_may_name_its_address_and_a_name_may_stand_for_it(
    loop: VirtualLoop,
) -> None:
    loop.network.add_name("namesrv-1", C)
    await loop.create_server(Recorder, [C, "fd00::1"], PORT)
    await loop.create_connection(Recorder, "namesrv-1", PORT)
    _, protocol = await loop.create_connection(Recorder, "fd00::1", PORT)
    assert isinstance(protocol, Recorder)
    assert protocol.transport.get_extra_info("peername") == ("fd00::1", PORT, 0, 0)
    with pytest.raises(socket.gaierror):
        await loop.create_connection(Recorder, "elsewhere", PORT)


@on_virtual_loop
async def test_sockets_of_the_machine_are_refused(loop: VirtualLoop) -> None:
    with pytest.raises(ValueError, match="has no sockets"):
        await loop.create_connection(Recorder)
    with pytest.raises(ValueError, match="has no sockets"):
        await loop.create_server(Recorder, sock=object())


@on_virtual_loop
async def test_callbacks_and_tasks_of_a_protocol_run_on_its_host(loop: VirtualLoop) -> None:
    hosts: list[str] = []

    class CallsHome(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            hosts.append(loop.network.current_host)

        def data_received(self, data: bytes) -> None:
            hosts.append(loop.network.current_host)
            self.task = asyncio.create_task(self.call())

        async def call(self) -> None:
            await asyncio.sleep(1)
            hosts.append(loop.network.current_host)

    pair = await Pair(loop).connect(CallsHome)
    pair.client.transport.write(b"!")
    await asyncio.sleep(2)
    assert hosts == [A, A, A]
    assert loop.network.current_host == "127.0.0.1"


@on_virtual_loop
async def test_a_server_that_does_not_serve_yet_refuses(loop: VirtualLoop) -> None:
    server = await loop.create_server(Recorder, "127.0.0.1", PORT, start_serving=False)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, "127.0.0.1", PORT)
    serving = asyncio.create_task(server.serve_forever())
    await asyncio.sleep(0)
    assert server.is_serving()
    assert server.get_loop() is loop
    await loop.create_connection(Recorder, "127.0.0.1", PORT)
    serving.cancel()
    await asyncio.wait([serving])
    assert not server.is_serving()
    assert server.sockets == ()


@on_virtual_loop
async def test_a_closed_server_waits_for_its_connections(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.listener.close()
    pair.listener.close()
    waiting = asyncio.create_task(pair.listener.wait_closed())
    await asyncio.sleep(10)
    assert not waiting.done()
    pair.listener.close_clients()
    await waiting
    await pair.listener.wait_closed()
    await pair.client.lost


@on_virtual_loop
async def test_a_server_may_abort_its_connections(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.listener.abort_clients()
    await pair.client.lost
    assert isinstance(pair.client.error, ConnectionResetError)


@on_virtual_loop
async def test_a_connect_given_up_leaves_no_half_connection(loop: VirtualLoop) -> None:
    loop.network.conditions = Conditions(latency=(1, 1))
    accepted: list[Recorder] = []

    def factory() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    await loop.create_server(factory, "127.0.0.1", PORT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await loop.create_connection(Recorder, "127.0.0.1", PORT)
    await accepted[0].lost
    assert isinstance(accepted[0].error, ConnectionResetError)
    assert loop.network.connections == {}


# -- ending ----------------------------------------------------------------------------------------


@on_virtual_loop
async def test_close_flushes_and_the_other_side_sees_the_end(loop: VirtualLoop) -> None:
    loop.network.conditions = Conditions(latency=(0.5, 2))
    pair = await Pair(loop).connect()
    pair.client.transport.write(b"last words")
    pair.client.transport.close()
    assert pair.client.transport.is_closing()
    pair.client.transport.write(b"too late")
    pair.client.transport.close()
    await pair.client.lost
    await pair.server.lost
    assert pair.server.received == b"last words"
    assert pair.server.events == ["made", "eof", "lost"]
    assert (pair.client.error, pair.server.error) == (None, None)
    assert loop.network.connections == {}


@on_virtual_loop
async def test_connection_lost_never_comes_from_inside_close(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.client.transport.close()
    assert pair.client.events == ["made"]
    await pair.client.lost


@on_virtual_loop
async def test_abort_resets_the_other_side(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.client.transport.write(b"x")
    pair.client.transport.abort()
    pair.client.transport.abort()
    await pair.client.lost
    await pair.server.lost
    assert pair.client.error is None
    assert isinstance(pair.server.error, ConnectionResetError)


@on_virtual_loop
async def test_half_close_lets_the_answer_through(loop: VirtualLoop) -> None:
    class AnswersAtTheEnd(Recorder):
        def eof_received(self) -> bool:
            self.transport.write(b"you said " + self.received)
            self.transport.close()
            return True

    pair = await Pair(loop).connect(AnswersAtTheEnd)
    pair.client.keeps_half_open = True
    assert pair.client.transport.can_write_eof()
    pair.client.transport.write(b"hello")
    pair.client.transport.write_eof()
    pair.client.transport.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        pair.client.transport.write(b"more")
    await pair.server.lost
    await asyncio.sleep(1)
    assert pair.client.received == b"you said hello"
    assert pair.client.events == ["made", "eof"]
    pair.client.transport.close()
    await pair.client.lost


@on_virtual_loop
async def test_writing_to_an_end_that_closed_is_answered_by_a_reset(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.keeps_half_open = True
    pair.client.transport.close()
    await pair.client.lost
    await asyncio.sleep(1)
    assert pair.server.events == ["made", "eof"]
    pair.server.transport.write(b"are you there?")
    await pair.server.lost
    assert isinstance(pair.server.error, ConnectionResetError)


def test_a_protocol_that_fails_loses_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError("in data_received")

    async def scenario(loop: VirtualLoop) -> None:
        pair = await Pair(loop).connect(Fails)
        pair.client.transport.write(b"x")
        await pair.client.lost
        assert isinstance(pair.client.error, ConnectionResetError)
        assert isinstance(pair.server.error, ZeroDivisionError)

    with (
        caplog.at_level(logging.CRITICAL),
        pytest.raises(UnhandledInLoop, match="data_received"),
    ):
        run_virtual(scenario)


def test_a_protocol_that_fails_at_the_end_loses_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fails(Recorder):
        def eof_received(self) -> bool:
            raise ZeroDivisionError("in eof_received")

    async def scenario(loop: VirtualLoop) -> None:
        pair = await Pair(loop).connect(Fails)
        pair.client.transport.write_eof()
        await pair.server.lost
        assert isinstance(pair.server.error, ZeroDivisionError)

    with caplog.at_level(logging.CRITICAL), pytest.raises(UnhandledInLoop, match="eof_received"):
        run_virtual(scenario)


def test_a_factory_that_fails_resets_the_client(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Recorder:
        raise ZeroDivisionError("in the factory")

    async def scenario(loop: VirtualLoop) -> None:
        server = await loop.create_server(fail, "127.0.0.1", PORT)
        _, protocol = await loop.create_connection(Recorder, "127.0.0.1", PORT)
        assert isinstance(protocol, Recorder)
        await protocol.lost
        assert isinstance(protocol.error, ConnectionResetError)
        server.close()
        await server.wait_closed()
        assert loop.network.connections == {}

    with caplog.at_level(logging.CRITICAL), pytest.raises(UnhandledInLoop, match="transport"):
        run_virtual(scenario)


def test_a_client_protocol_that_fails_when_made_fails_the_connect() -> None:
    class Fails(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            raise ZeroDivisionError("in connection_made")

    async def scenario(loop: VirtualLoop) -> None:
        await loop.create_server(Recorder, "127.0.0.1", PORT)
        with pytest.raises(ZeroDivisionError):
            await loop.create_connection(Fails, "127.0.0.1", PORT)
        await asyncio.sleep(1)
        assert loop.network.connections == {}

    run_virtual(scenario)


@on_virtual_loop
async def test_a_connection_cut_during_its_handshake_is_a_failed_connect(
    loop: VirtualLoop,
) -> None:
    loop.network.conditions = Conditions(latency=(1, 1))
    await loop.create_server(Recorder, "127.0.0.1", PORT)

    def cut() -> None:
        loop.network.connections[1].cut()

    loop.call_later(1.5, cut)
    with pytest.raises(ConnectionResetError):
        await loop.create_connection(Recorder, "127.0.0.1", PORT)


@on_virtual_loop
async def test_only_bytes_can_be_written(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    with pytest.raises(TypeError, match="bytes-like"):
        pair.client.transport.write("text")  # type: ignore[arg-type]  # the point of the test


# -- flow control ----------------------------------------------------------------------------------


@on_virtual_loop
async def test_a_reader_that_pauses_gets_nothing_until_it_resumes(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.transport.pause_reading()
    assert not pair.server.transport.is_reading()
    pair.client.transport.write(b"one")
    await asyncio.sleep(1)
    pair.client.transport.write(b"two")
    pair.client.transport.write_eof()
    await asyncio.sleep(1)
    assert pair.server.received == b""
    pair.server.transport.resume_reading()
    pair.server.transport.resume_reading()
    await asyncio.sleep(1)
    assert (pair.server.received, pair.server.reads) == (b"onetwo", [6])
    assert pair.server.events[:2] == ["made", "eof"]


@on_virtual_loop
async def test_a_slow_reader_pauses_the_writer_and_reading_resumes_it(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.transport.pause_reading()
    pair.client.transport.set_write_buffer_limits(high=1000, low=100)
    assert pair.client.transport.get_write_buffer_limits() == (100, 1000)
    pair.client.transport.write(bytes(SOCKET_BUFFER))
    assert pair.client.transport.get_write_buffer_size() == 0
    pair.client.transport.write(bytes(1000))
    assert pair.client.events == ["made"]
    pair.client.transport.write(bytes(1))
    assert pair.client.events == ["made", "paused"]
    assert pair.client.transport.get_write_buffer_size() == 1001
    pair.server.transport.resume_reading()
    await asyncio.sleep(1)
    assert pair.client.events == ["made", "paused", "resumed"]
    assert len(pair.server.received) == SOCKET_BUFFER + 1001


@on_virtual_loop
async def test_close_waits_until_the_buffer_is_flushed(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.transport.pause_reading()
    pair.client.transport.write(bytes(SOCKET_BUFFER + 5))
    pair.client.transport.close()
    await asyncio.sleep(60)
    assert not pair.client.lost.done()
    pair.server.transport.resume_reading()
    await pair.client.lost
    await pair.server.lost
    assert len(pair.server.received) == SOCKET_BUFFER + 5


@on_virtual_loop
async def test_a_read_is_bounded(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    for _ in range(20):
        pair.client.transport.write(bytes(40_000))
    await asyncio.sleep(1)
    assert sum(pair.server.reads) == 800_000
    assert max(pair.server.reads) < MAX_READ + 40_000


@on_virtual_loop
async def test_a_reset_reaches_an_end_that_reads_nothing(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"unread")
    await asyncio.sleep(1)
    pair.client.transport.abort()
    await pair.server.lost
    assert isinstance(pair.server.error, ConnectionResetError)


@on_virtual_loop
async def test_a_reset_comes_after_what_is_on_its_way(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.transport.pause_reading()
    begun = loop.time()
    loop.network.conditions = Conditions(latency=(3, 3))
    pair.client.transport.write(b"slow")
    loop.network.conditions = Conditions(latency=(1, 1))
    pair.client.transport.abort()
    await pair.server.lost
    assert loop.time() - begun >= 3


@on_virtual_loop
async def test_an_end_that_closes_unread_data_lets_the_writer_finish(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.server.transport.pause_reading()
    pair.client.transport.write(bytes(3 * SOCKET_BUFFER))
    pair.client.transport.close()
    await asyncio.sleep(1)
    pair.server.transport.close()
    await pair.client.lost
    await pair.server.lost


@on_virtual_loop
async def test_protocols_with_their_own_buffer_work(loop: VirtualLoop) -> None:
    class Small(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(4)
            self.received = b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.received += self.buffer[:nbytes]

    made: list[Small] = []

    def factory() -> Small:
        made.append(Small())
        return made[-1]

    await loop.create_server(factory, "127.0.0.1", PORT)
    transport, _ = await loop.create_connection(Recorder, "127.0.0.1", PORT)
    assert isinstance(transport, asyncio.Transport)
    transport.write(b"0123456789")
    await asyncio.sleep(1)
    assert made[0].received == b"0123456789"
    assert "open" in repr(transport)
    assert transport.get_protocol() is not made[0]


@on_virtual_loop
async def test_streams_work_on_top(loop: VirtualLoop) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", PORT)
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.write(b"hello\n" * 3)
    assert await reader.readline() == b"HELLO\n"
    writer.write_eof()
    assert await reader.read() == b"HELLO\n" * 2
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


# -- conditions ------------------------------------------------------------------------------------


@on_virtual_loop
async def test_latency_delays_and_never_reorders_within_a_connection(loop: VirtualLoop) -> None:
    loop.network.conditions = Conditions(latency=(0.1, 5.0))
    pair = await Pair(loop).connect()
    begin = loop.time()
    for number in range(200):
        pair.client.transport.write(number.to_bytes(2, "big"))
        await asyncio.sleep(0.01)
    await asyncio.sleep(10)
    assert pair.server.received == b"".join(number.to_bytes(2, "big") for number in range(200))
    assert loop.time() - begin > 2


@on_virtual_loop
async def test_latency_reorders_across_connections(loop: VirtualLoop) -> None:
    order: list[int] = []

    class Ordered(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            order.append(data[0])

    await loop.create_server(Ordered, "127.0.0.1", PORT)
    transports = [
        (await loop.create_connection(asyncio.Protocol, "127.0.0.1", PORT))[0] for _ in range(20)
    ]
    loop.network.conditions = Conditions(latency=(0.1, 5.0))
    for number, transport in enumerate(transports):
        assert isinstance(transport, asyncio.Transport)
        transport.write(bytes([number]))
    await asyncio.sleep(10)
    assert sorted(order) == list(range(20))
    assert order != sorted(order)


@on_virtual_loop
async def test_writes_are_split_into_random_chunks(loop: VirtualLoop) -> None:
    loop.network.set_conditions(A, B, Conditions(split=0.9))
    pair = await Pair(loop).connect()
    sent = bytes(range(256)) * 10
    pair.client.transport.write(sent)
    await asyncio.sleep(1)
    assert pair.server.received == sent
    assert len(pair.server.reads) > 3


@on_virtual_loop
async def test_conditions_of_a_pair_of_hosts_hold_for_that_pair_only(loop: VirtualLoop) -> None:
    loop.network.set_conditions(A, B, Conditions(refuse=1.0))
    with loop.network.host(A):
        await loop.create_server(Recorder, None, PORT)
    with loop.network.host(B), pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, A, PORT)
    with loop.network.host(C):
        await loop.create_connection(Recorder, A, PORT)


@on_virtual_loop
async def test_connections_are_lost_at_random(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect(Echo)
    loop.network.conditions = Conditions(lose=0.2)
    for _ in range(100):
        pair.client.transport.write(b"ping")
        await asyncio.sleep(1)
    assert isinstance(pair.client.error, ConnectionResetError)
    assert isinstance(pair.server.error, ConnectionResetError)


# -- faults ----------------------------------------------------------------------------------------


@on_virtual_loop
async def test_a_cut_is_seen_by_both(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.client.transport.write(b"never arrives")
    pair.connection.cut()
    await pair.client.lost
    await pair.server.lost
    assert pair.server.received == b""
    assert isinstance(pair.client.error, ConnectionResetError)
    assert loop.network.connections == {}


@on_virtual_loop
async def test_a_cut_may_be_seen_by_one_side_only(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.connection.cut("server")
    await pair.server.lost
    pair.client.transport.write(b"into the void")
    await asyncio.sleep(600)
    assert pair.client.events == ["made"]
    pair.client.transport.close()
    await pair.client.lost
    assert pair.server.received == b""


@on_virtual_loop
async def test_a_black_hole_is_not_noticed_until_the_kernel_gives_up(
    loop: VirtualLoop,
) -> None:
    pair = await Pair(loop).connect()
    pair.connection.cut("neither")
    await asyncio.sleep(7200)
    # Without anything to send there is nothing to notice.
    assert (pair.client.events, pair.server.events) == (["made"], ["made"])
    begin = loop.time()
    pair.client.transport.write(b"hello?")
    await pair.client.lost
    assert isinstance(pair.client.error, TimeoutError)
    assert pair.client.error.errno == errno.ETIMEDOUT
    assert loop.time() - begin == pytest.approx(loop.network.give_up_seconds)


@on_virtual_loop
async def test_a_black_hole_fills_the_write_buffer(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.connection.cut("neither")
    pair.client.transport.write(bytes(SOCKET_BUFFER * 3))
    assert pair.client.events == ["made", "paused"]


@on_virtual_loop
async def test_a_partition_holds_bytes_back_and_healing_lets_them_through(
    loop: VirtualLoop,
) -> None:
    pair = await Pair(loop).connect(Echo)
    loop.network.partition(A, B)
    pair.client.transport.write(b"one ")
    await asyncio.sleep(100)
    pair.client.transport.write(b"two")
    await asyncio.sleep(100)
    assert pair.server.received == b""
    loop.network.heal()
    await asyncio.sleep(1)
    assert pair.client.received == b"one two"
    # The kernel's patience was renewed: nothing breaks later.
    await asyncio.sleep(2 * loop.network.give_up_seconds)
    assert pair.client.events == ["made"]


@on_virtual_loop
async def test_a_partition_that_lasts_ends_connections_that_had_something_to_say(
    loop: VirtualLoop,
) -> None:
    pair = await Pair(loop).connect()
    loop.network.isolate(A)
    pair.client.transport.write(b"hello?")
    await pair.client.lost
    assert isinstance(pair.client.error, TimeoutError)
    assert pair.server.events == ["made"]


@on_virtual_loop
async def test_a_one_way_partition_lets_the_other_way_through(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    loop.network.partition(B, A, one_way=True)
    pair.client.transport.write(b"lost")
    pair.server.transport.write(b"found")
    await asyncio.sleep(1)
    assert (pair.server.received, pair.client.received) == (b"", b"found")


@on_virtual_loop
async def test_a_partition_does_not_touch_other_hosts(loop: VirtualLoop) -> None:
    with loop.network.host(A):
        await loop.create_server(Echo, None, PORT)
    loop.network.partition(A, B)
    with loop.network.host(C):
        _, protocol = await loop.create_connection(Recorder, A, PORT)
    assert isinstance(protocol, Recorder)
    protocol.transport.write(b"hello")
    await asyncio.sleep(1)
    assert protocol.received == b"hello"


@on_virtual_loop
async def test_a_connect_through_a_partition_waits_and_then_times_out(loop: VirtualLoop) -> None:
    with loop.network.host(A):
        await loop.create_server(Recorder, None, PORT)
    loop.network.partition(A, B)
    loop.call_later(20, loop.network.heal)
    with loop.network.host(B):
        await loop.create_connection(Recorder, A, PORT)
        assert loop.time() == 20.0
        loop.network.partition(A, B)
        with pytest.raises(TimeoutError) as caught:
            await loop.create_connection(Recorder, A, PORT)
    assert caught.value.errno == errno.ETIMEDOUT
    assert loop.time() == 20.0 + loop.network.connect_seconds


@on_virtual_loop
async def test_a_crashed_host_gets_no_callback_and_the_other_side_a_reset(
    loop: VirtualLoop,
) -> None:
    pair = await Pair(loop).connect()
    pair.client.transport.write(b"x")
    loop.network.crash(A)
    await pair.client.lost
    assert isinstance(pair.client.error, ConnectionResetError)
    await asyncio.sleep(10)
    assert (pair.server.events, pair.server.received) == (["made"], b"")
    pair.server.transport.write(b"not received")
    with loop.network.host(B), pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, A, PORT)
    with loop.network.host(A):
        await loop.create_server(Recorder, None, PORT)
    with loop.network.host(B):
        await loop.create_connection(Recorder, A, PORT)


@on_virtual_loop
async def test_a_host_may_crash_without_a_word(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    loop.network.crash(B, silent=True)
    await asyncio.sleep(600)
    assert pair.server.events == ["made"]
    pair.server.transport.write(b"hello?")
    await pair.server.lost
    assert isinstance(pair.server.error, TimeoutError)


@on_virtual_loop
async def test_a_host_that_listens_no_more_refuses_and_keeps_its_connections(
    loop: VirtualLoop,
) -> None:
    pair = await Pair(loop).connect()
    loop.network.stop_listening(A)
    with loop.network.host(B), pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, A, PORT)
    pair.client.transport.write(b"still there")
    await asyncio.sleep(1)
    assert pair.server.received == b"still there"


# -- TLS -------------------------------------------------------------------------------------------


@on_virtual_loop
async def test_tls_works_from_the_first_byte_and_as_an_upgrade(loop: VirtualLoop) -> None:
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("broker.test").configure_cert(server_side)
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client_side)
    loop.network.add_name("broker.test", C)
    await loop.create_server(Echo, C, 1, ssl=server_side)
    await loop.create_server(Echo, C, 2)
    transport, protocol = await loop.create_connection(Recorder, "broker.test", 1, ssl=client_side)
    assert isinstance(transport, asyncio.Transport)
    assert isinstance(protocol, Recorder)
    transport.write(b"secret")
    await asyncio.sleep(1)
    assert protocol.received == b"secret"
    assert transport.get_extra_info("peername") == (C, 1)
    transport.close()
    await protocol.lost

    class Upgrading(Recorder):
        def data_received(self, data: bytes) -> None:
            self.task = asyncio.create_task(self.upgrade())

        async def upgrade(self) -> None:
            echo = Echo()
            upgraded = await loop.start_tls(self.transport, echo, server_side, server_side=True)
            assert upgraded is not None
            echo.transport = upgraded

    await loop.create_server(Upgrading, C, 3)
    plain, first = await loop.create_connection(Recorder, "broker.test", 3)
    assert isinstance(plain, asyncio.Transport)
    assert isinstance(first, Recorder)
    plain.write(b"upgrade")
    await asyncio.sleep(1)
    upgraded = await loop.start_tls(plain, first, client_side, server_hostname="broker.test")
    assert upgraded is not None
    await asyncio.sleep(1)
    upgraded.write(b"secret")
    await asyncio.sleep(1)
    assert first.received == b"secret"
    upgraded.close()
    await first.lost
    await asyncio.sleep(1)
    assert loop.network.connections == {}


# -- repeatability ---------------------------------------------------------------------------------


async def _traffic(loop: VirtualLoop) -> str:
    """Clients that talk, reconnect and get lost on a rough network."""
    loop.network.conditions = ROUGH
    with loop.network.host(A):
        await loop.create_server(Echo, None, PORT)

    async def client(number: int) -> None:
        with loop.network.host(f"10.0.1.{number}"):
            for _ in range(20):
                try:
                    transport, _ = await loop.create_connection(Recorder, A, PORT)
                except ConnectionError:
                    await asyncio.sleep(1)
                    continue
                assert isinstance(transport, asyncio.Transport)
                for _ in range(5):
                    transport.write(loop.random.randbytes(100))
                    await asyncio.sleep(1)
                transport.close()

    async with asyncio.TaskGroup() as group:
        for number in range(1, 9):
            group.create_task(client(number))
        await asyncio.sleep(30)
        loop.network.isolate(A)
        await asyncio.sleep(30)
        loop.network.heal()
    return loop.trace.digest()


def test_the_same_seed_gives_the_same_trace() -> None:
    digests = [run_virtual(_traffic, seed=seed) for seed in (1, 1, 2, 2, 3)]
    assert digests[0] == digests[1]
    assert digests[2] == digests[3]
    assert len(set(digests)) == 3


@on_virtual_loop
async def test_the_trace_tells_what_happened(loop: VirtualLoop) -> None:
    pair = await Pair(loop).connect()
    pair.client.transport.write(b"hello")
    await asyncio.sleep(1)
    pair.client.transport.close()
    await pair.server.lost
    names = ("connect", "accept", "data", "eof", "closed")
    assert loop.trace.named(*names) == [
        (0.0, "connect", 1, B, A, PORT),
        (0.0, "accept", 1),
        (0.0, "data", 1, "c>s", 5),
        (1.0, "closed", 1, "s>c", ""),
        (1.0, "eof", 1, "c>s"),
        (1.0, "closed", 1, "c>s", ""),
    ]


def test_an_hour_of_small_talk_between_twenty_hosts_is_little_work() -> None:
    """No absolute time: the work is counted in events."""

    async def scenario(loop: VirtualLoop) -> tuple[int, float]:
        loop.network.conditions = LAN
        with loop.network.host(A):
            await loop.create_server(Echo, None, PORT)

        async def client(number: int) -> None:
            with loop.network.host(f"10.0.1.{number}"):
                transport, _ = await loop.create_connection(Recorder, A, PORT)
                assert isinstance(transport, asyncio.Transport)
                for _ in range(120):
                    transport.write(bytes(100))
                    await asyncio.sleep(30)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(client(number))
        return len(loop.trace), loop.time()

    count, passed = run_virtual(scenario)
    assert passed >= 3600
    # A request, an answer and a timer each, and now and then a split.
    assert count < 20 * 120 * 3 * 1.2
