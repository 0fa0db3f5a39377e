"""Accepting, counting and draining."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from tests.support.raw_connection import RawConnection

from penstock.errors import LifecycleError, ListenFailed
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import RESPONSE, Command, encode_command, reply
from penstock.protocol.frames import FrameDecoder
from penstock.remoting import Limits, Peer, Promise, Server, go_away
from penstock.remoting.peer import fast_path_key
from penstock.testing.eventually import eventually


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request, body=request.body)


class Holder:
    """A handler that answers code 11 on demand, and everything else at once."""

    def __init__(self) -> None:
        self.held: list[tuple[Promise, Command]] = []

    def __call__(self, _peer: Peer, request: Command) -> Command | Promise:
        if request.code != 11:
            return reply(request, body=b"at once")
        promise = Promise()
        self.held.append((promise, request))
        return promise

    def answer(self) -> None:
        for promise, request in self.held:
            promise.resolve(reply(request, body=b"late"))


async def test_port_zero_is_any_free_port() -> None:
    async with Server(echo, port=0) as one, Server(echo, port=0) as other:
        assert one.port != other.port
        assert one.ports == (one.port,)


async def test_several_ports_share_a_handler() -> None:
    async with Server(echo) as server:
        second = await server.listen(0)
        assert server.ports == (server.port, second)
        for port in server.ports:
            async with await RawConnection.open(port) as raw:
                assert (await raw.ask(Command(34, 1, body=b"hi"))).body == b"hi"


async def test_a_shortcut_sees_a_request_first_and_may_leave_it() -> None:
    seen: list[bytes] = []

    def fast_path(_peer: Peer, header: bytes, body: bytes) -> bytes | None:
        seen.append(body)
        if body == b"broken":
            raise ValueError("no way")
        answer = Command(0, orjson.loads(header)["opaque"], RESPONSE, body=b"short")
        return encode_command(answer) if body == b"usual" else None

    async with (
        Server(echo, fast_paths={fast_path_key(310): fast_path}) as server,
        await RawConnection.open(server.port) as raw,
    ):
        assert (await raw.ask(Command(310, 1, body=b"usual"))).body == b"short"
        assert (await raw.ask(Command(310, 2, body=b"unusual"))).body == b"unusual"
        assert (await raw.ask(Command(311, 3, body=b"usual"))).body == b"usual"
        assert (await raw.ask(Command(310, 4, body=b"usual", serializer=1))).body == b"usual"
        broken = await raw.ask(Command(310, 5, body=b"broken"))
        assert (broken.code, broken.remark) == (1, "ValueError: no way")
        assert seen == [b"usual", b"unusual", b"broken"]
        for peer in server.peers:
            peer.use_handler(echo)
        assert (await raw.ask(Command(310, 6, body=b"usual"))).body == b"usual"


@pytest.mark.parametrize("code", [11, 34, 310])
def test_the_key_of_a_shortcut_is_how_headers_begin(code: int) -> None:
    [frame] = FrameDecoder().feed(encode_command(Command(code, 1, ext={"a": "b"})))
    assert frame.header.startswith(fast_path_key(code))


async def test_a_port_in_use_is_named_with_a_way_out() -> None:
    async with Server(echo) as server:
        other = Server(echo, port=server.port)
        with pytest.raises(ListenFailed) as caught:
            await other.start()
        text = str(caught.value)
        assert f"cannot listen on 127.0.0.1:{server.port}" in text
        assert "choose another port" in text
        with pytest.raises(ListenFailed, match="choose another port"):
            await server.listen(server.port)
        async with await RawConnection.open(server.port) as raw:
            assert (await raw.ask(Command(34, 1))).code == 0


async def test_an_address_of_another_machine_is_refused_with_a_way_out() -> None:
    with pytest.raises(ListenFailed, match=r"192\.0\.2\.1:0.*listen on 0\.0\.0\.0"):
        await Server(echo, "192.0.2.1").start()


async def test_a_server_is_started_once_and_stopped_at_will() -> None:
    server = Server(echo)
    with pytest.raises(LifecycleError, match="does not listen"):
        _ = server.port
    with pytest.raises(LifecycleError, match="does not run"):
        await server.listen(0)
    await server.stop()
    await server.start()
    with pytest.raises(LifecycleError, match="twice"):
        await server.start()
    await server.stop()
    await server.stop()


async def test_connections_and_their_ends_are_announced() -> None:
    events: list[tuple[str, Peer]] = []
    async with (
        Server(
            echo,
            on_connect=lambda peer: events.append(("connect", peer)),
            on_disconnect=lambda peer: events.append(("disconnect", peer)),
        ) as server,
    ):
        raw = await RawConnection.open(server.port)
        await raw.ask(Command(34, 1))
        [peer] = server.peers
        assert events == [("connect", peer)]
        await raw.close()
        await eventually(lambda: len(events) == 2)
        assert events[1] == ("disconnect", peer)
        assert not server.peers


async def test_more_connections_than_allowed_are_refused_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connected: list[Peer] = []
    limits = Limits(max_connections=2)
    async with (
        Server(echo, limits=limits, on_connect=connected.append) as server,
        await RawConnection.open(server.port) as first,
        await RawConnection.open(server.port) as second,
    ):
        await first.ask(Command(34, 1))
        await second.ask(Command(34, 1))
        for _ in range(5):
            raw = await RawConnection.open(server.port)
            assert await raw.wait_closed() == b""
            await raw.close()
        lines = [r for r in caplog.records if "too many are open" in r.message]
        assert len(lines) == 1
        assert lines[0].levelno == logging.WARNING
        assert "open=2 max_connections=2" in lines[0].message
        assert len(connected) == 2
        await first.close()
        await eventually(lambda: len(server.peers) == 1)
        async with await RawConnection.open(server.port) as third:
            assert (await third.ask(Command(34, 1))).code == 0


async def test_a_stop_lets_held_answers_leave_first() -> None:
    holder = Holder()
    server = Server(holder)
    await server.start()
    async with await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(11, 1))
        await eventually(lambda: len(holder.held) == 1)
        stopping = asyncio.ensure_future(server.stop(30))
        assert (await raw.ask(Command(34, 2))).body == b"at once"
        assert not stopping.done()
        with pytest.raises(OSError, match=r"Connect call failed|refused"):
            await RawConnection.open(server.port)
        holder.answer()
        assert (await raw.receive()).body == b"late"
        await stopping
        assert await raw.wait_closed() == b""


async def test_a_stop_does_not_wait_longer_than_its_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    holder = Holder()
    server = Server(holder)
    await server.start()
    async with await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(11, 1))
        await eventually(lambda: len(holder.held) == 1)
        await server.stop(0.05)
        assert await raw.wait_closed() == b""
    assert "closing connections with work under way peers=1 promises=1" in caplog.text
    assert not holder.held[0][0].resolve(Command(0))


async def test_a_stop_that_is_cancelled_still_closes() -> None:
    holder = Holder()
    server = Server(holder)
    await server.start()
    async with await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(11, 1))
        await eventually(lambda: len(holder.held) == 1)
        stopping = asyncio.ensure_future(server.stop(30))
        await asyncio.sleep(0.02)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert await raw.wait_closed() == b""
        await eventually(lambda: not server.peers)


async def test_while_stopping_newer_clients_are_sent_away_and_older_ones_served() -> None:
    holder = Holder()
    server = Server(holder)
    await server.start()
    async with (
        await RawConnection.open(server.port) as newer,
        await RawConnection.open(server.port) as older,
    ):
        await newer.send_command(Command(11, 1, version=477))
        await older.ask(Command(34, 1, version=475))
        await eventually(lambda: len(holder.held) == 1)
        stopping = asyncio.ensure_future(server.stop(30, handler=go_away(holder)))
        await asyncio.sleep(0)
        assert (await newer.ask(Command(34, 2, version=477))).code == ResponseCode.GO_AWAY
        assert (await older.ask(Command(34, 2, version=475))).body == b"at once"
        holder.answer()
        assert (await newer.receive()).body == b"late"
        await stopping


async def test_a_oneway_request_is_served_even_while_sending_clients_away() -> None:
    served: list[int] = []

    def note(_peer: Peer, request: Command) -> None:
        served.append(request.code)

    async with Server(go_away(note)) as server, await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(15, 1, flag=2, version=479))
        await eventually(lambda: served == [15])


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_thousand_connections_leave_nothing_behind() -> None:
    async with Server(echo) as server:
        async with await RawConnection.open(server.port) as raw:
            await raw.ask(Command(34, 1))
        await eventually(lambda: not server.peers)
        gc.collect()
        files = open_files()
        peers = sum(isinstance(thing, Peer) for thing in gc.get_objects())
        for _ in range(20):
            clients = await asyncio.gather(*(RawConnection.open(server.port) for _ in range(50)))
            await asyncio.gather(*(client.ask(Command(34, 1)) for client in clients))
            assert len(server.peers) == 50
            for number, client in enumerate(clients):
                if number % 2:
                    client.abort()
                else:
                    await client.close()
            await eventually(lambda: not server.peers)
        del clients, client
        await asyncio.sleep(0)
        gc.collect()
        assert open_files() <= files
        assert sum(isinstance(thing, Peer) for thing in gc.get_objects()) <= peers


FEW_FILES = """
import asyncio, resource, sys
from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Server

async def main():
    echo = lambda peer, request: reply(request)
    async with Server(echo) as one, Server(echo) as other:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        accepted = []
        for number in range(60):
            port = (one, other)[number % 2].port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode_command(Command(34, 1)))
            try:
                answered = await reader.read(1)
            except ConnectionError:
                answered = b""
            if answered:
                accepted.append(writer)
            else:
                writer.transport.abort()
                await asyncio.sleep(0)
        print(len(accepted))
        # What a store needs is left.
        files = [open(sys.executable) for _ in range(15)]
        print(len(files))

asyncio.run(main())
"""


def test_connections_leave_files_to_the_stores_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=60, check=False
    )
    accepted, opened = done.stdout.split()
    assert opened == "15"
    assert 20 < int(accepted) < 45
    assert "connection refused, too many are open" in done.stderr
    assert "ulimit_n=100" in done.stderr
