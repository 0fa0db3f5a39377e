"""The listener that looks at first bytes, in trouble."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import pytest
from tests.support.raw_connection import RawConnection

from penstock.errors import ListenFailed
from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Limits, Peer
from penstock.remoting import listener as listener_module
from penstock.remoting.listener import SniffingListener, bind, listen_failed
from penstock.remoting.tls import TlsMode
from penstock.remoting.write_batch import WriteBatch
from penstock.testing.eventually import eventually


def make_peer() -> Peer:
    loop = asyncio.get_running_loop()
    return Peer(
        lambda _peer, request: reply(request),
        limits=Limits(),
        write_batch=WriteBatch(loop),
        loop=loop,
        accepted=True,
    )


async def open_listener() -> SniffingListener:
    return await SniffingListener.open(
        make_peer,
        "127.0.0.1",
        0,
        context=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        mode=TlsMode.PERMISSIVE,
        patience=10,
        max_waiting=10,
    )


class Exhausted(socket.socket):
    """A listening socket of a process that has no file descriptor left."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")


async def test_accepting_pauses_while_the_system_has_no_room_and_goes_on_after(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "ACCEPT_PAUSE_SECONDS", 0.05)
    listener = await open_listener()
    with Exhausted() as exhausted:
        listener._accept(exhausted)
    assert "accepting paused" in caplog.text
    assert "Too many open files" in caplog.text
    assert "ulimit -n" in caplog.text
    async with await RawConnection.open(listener.port) as raw:
        await raw.send(encode_command(Command(34, 1)))
        assert (await raw.receive()).code == 0
    listener.close()
    await listener.wait_closed()


async def test_closing_while_accepting_is_paused_does_not_start_it_again() -> None:
    listener = await open_listener()
    with Exhausted() as exhausted:
        listener._accept(exhausted)
    listener.close()
    listener.close()
    await listener.wait_closed()
    with pytest.raises(OSError, match=r"Connect call failed|refused"):
        await RawConnection.open(listener.port)


async def test_a_client_that_leaves_before_its_first_byte_is_forgotten() -> None:
    listener = await open_listener()
    raw = await RawConnection.open(listener.port)
    await eventually(lambda: len(listener._silent) == 1)
    await raw.close()
    await eventually(lambda: not listener._silent)
    listener.close()
    await listener.wait_closed()


async def test_all_addresses_of_a_host_get_the_same_port_or_none_is_kept() -> None:
    sockets = await bind("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    with pytest.raises(ListenFailed, match=f":{port}"):
        await bind("127.0.0.1", port)
    for sock in sockets:
        sock.close()


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "choose another port"),
        (PermissionError(errno.EACCES, "Permission denied"), "choose a higher one"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), "0.0.0.0"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "0.0.0.0"),
    ],
)
def test_why_a_port_cannot_be_listened_on_comes_with_a_way_out(
    error: OSError, way_out: str
) -> None:
    failure = listen_failed("broker-a", 80, error)
    assert "cannot listen on broker-a:80" in str(failure)
    assert str(error.strerror) in str(failure)
    assert way_out in str(failure.hint)
    assert not failure.retriable
