"""Connections of worker processes, with real servers and with misbehaving ones."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack

import pytest
import trustme
from tests.spark.source.brokers import create

from penstock.client.cluster_access import ClusterAccess
from penstock.client.requests import body_bytes
from penstock.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RequestTimeout,
    TopicNotFound,
)
from penstock.protocol.acl import verify
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import RESPONSE, Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.spark.connection import Connection
from penstock.spark.connection_pool import ConnectionPool
from penstock.spark.source.options import parse_read
from penstock.testing.embedded import Embedded

PLAIN = ClusterAccess(namesrv=("127.0.0.1:1",))


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A listener that hands each connection to ``serve``, then closes it."""

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def requests(connection: socket.socket) -> Iterator[Command]:
    decoder = FrameDecoder()
    while data := connection.recv(65_536):
        for frame in decoder.feed(data):
            yield decode_command(frame)


@pytest.mark.parametrize("sizes", [(), (0, 5), (3 << 20,), (100, 3 << 20), (3 << 20, 0, 2 << 20)])
def test_a_body_in_parts_arrives_as_one(sizes: tuple[int, ...]) -> None:
    def echo(connection: socket.socket) -> None:
        for request in requests(connection):
            answer = Command(0, request.request_id, RESPONSE, None, request.body)
            connection.sendall(encode_command(answer))

    # More than a socket takes at once.
    parts = [memoryview(os.urandom(size)) for size in sizes]
    with server(echo) as address:
        connection = Connection(address, PLAIN)
        connection.send(Command(310, ext={"a": "b"}, body=parts))
        answer = connection.receive(time.monotonic() + 10)
        connection.close()
    assert body_bytes(answer) == b"".join(parts)


def test_requests_under_way_together_get_their_own_answers() -> None:
    def backwards(connection: socket.socket) -> None:
        seen = []
        for request in requests(connection):
            seen.append(request)
            if len(seen) == 3:
                # Brokers also send requests; those are no answers.
                connection.sendall(encode_command(Command(40, 1)))
                for one in reversed(seen):
                    answer = Command(0, one.request_id, RESPONSE, one.ext, b"body")
                    connection.sendall(encode_command(answer))

    with server(backwards) as address:
        commands = [Command(1, ext={"n": str(n)}) for n in range(3)]
        answers = ConnectionPool(PLAIN).call_many(address, commands)
    assert [answer.ext for answer in answers] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
    assert all(bytes(answer.body) == b"body" for answer in answers)  # type: ignore[arg-type]


def test_a_connection_is_used_again_unless_the_other_side_has_left() -> None:
    accepted: list[int] = []
    has_left = threading.Semaphore(0)

    def answer_twice(connection: socket.socket) -> None:
        accepted.append(1)
        for count, request in enumerate(requests(connection), 1):
            connection.sendall(encode_command(Command(0, request.request_id, RESPONSE)))
            if count == 2:
                connection.shutdown(socket.SHUT_RDWR)
                has_left.release()
                return

    with server(answer_twice) as address:
        pool = ConnectionPool(PLAIN)
        for count in range(1, 6):
            pool.exchange(address, Command(1))
            if count % 2 == 0:
                # A request that crosses the other side's leave on the way would be lost.
                assert has_left.acquire(timeout=30)
        pool.close()
    assert len(accepted) == 3, "two requests a connection, and no more"


def test_a_server_that_goes_away_is_left_for_a_new_connection() -> None:
    said: list[int] = []

    def go_away_once(connection: socket.socket) -> None:
        for request in requests(connection):
            said.append(ResponseCode.SUCCESS if said else ResponseCode.GO_AWAY)
            connection.sendall(encode_command(Command(said[-1], request.request_id, RESPONSE)))

    with server(go_away_once) as address:
        pool = ConnectionPool(PLAIN)
        assert pool.exchange(address, Command(1)).code == ResponseCode.SUCCESS
        pool.close()
    assert said == [ResponseCode.GO_AWAY, ResponseCode.SUCCESS]


@pytest.mark.parametrize(
    "garbage",
    [
        pack(">iI", -5, 0),
        pack(">iI", 2**31 - 1, 10),
        pack(">iI", 10, 100),
        pack(">iI", 8, 0x07_000004) + b"{}{}",
        pack(">iI", 6, 2) + b"[]",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_an_invalid_answer_is_an_error_and_costs_no_memory(garbage: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(garbage)

    with server(talk) as at:
        with pytest.raises((ProtocolError, ConnectionLost)) as refused:
            ConnectionPool(PLAIN).exchange(at, Command(1), 5)
        if isinstance(refused.value, ConnectionLost):
            assert at in str(refused.value)


def test_silence_and_absence_are_distinguished_and_name_the_address() -> None:
    with server(lambda connection: list(requests(connection)).clear()) as at:
        connection = Connection(at, PLAIN)
        with pytest.raises(RequestTimeout, match=at):
            connection.receive(0.0)
        connection.close()
    with pytest.raises(ConnectFailed, match=at):
        ConnectionPool(PLAIN).exchange(at, Command(1))


def test_requests_are_signed_with_all_they_carry() -> None:
    seen: list[Command] = []

    def note(connection: socket.socket) -> None:
        for request in requests(connection):
            seen.append(request)
            connection.sendall(encode_command(Command(0, request.request_id, RESPONSE)))

    access = ClusterAccess.of("127.0.0.1:1", access_key="AK", secret_key="SK", security_token="TK")
    with server(note) as address:
        pool = ConnectionPool(access)
        pool.exchange(address, Command(10, ext={"a": "1"}, body=b"abc"))
        pool.close()
    ext = seen[0].ext
    assert ext is not None
    assert (ext["AccessKey"], ext["SecurityToken"], ext["a"]) == ("AK", "TK", "1")
    assert verify(ext, b"abc", "SK")
    assert not verify(ext, b"abd", "SK")
    assert "SK" not in "".join(ext.values())


def test_name_servers_are_tried_in_turn(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 3)
    pool = ConnectionPool(ClusterAccess.of(f"127.0.0.1:1;{mq.namesrv}"))
    assert len(pool.route("orders").subscribe_queues("orders")) == 3
    with pytest.raises(TopicNotFound, match="'absent'"):
        pool.route("absent")
    assert pool.topics() == ["orders"]
    pool.close()


def test_a_process_shares_its_connections_and_a_forked_one_makes_its_own(mq: Embedded) -> None:
    access = ClusterAccess.of(mq.namesrv)
    pool = ConnectionPool.shared(access)
    assert ConnectionPool.shared(ClusterAccess.of(mq.namesrv)) is pool
    pool.topics()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Only what touches no thread of the parent's may happen here.
        is_own = ConnectionPool.shared(access) is not pool
        os.write(writing, b"1" if is_own else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.close(writing)
    assert pool.topics() == []


def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def echo(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            for request in requests(secure):
                answer = Command(0, request.request_id, RESPONSE, body=body_bytes(request) * 1000)
                secure.sendall(encode_command(answer))

    with server(echo) as address:
        trusting = parse_read(
            {"namesrv": address, "topic": "t", "tls": json.dumps({"ca_file": f"{tmp_path}/ca.pem"})}
        )
        pool = ConnectionPool(trusting.access)
        for _ in range(3):
            answer = pool.exchange(address, Command(1, body=b"0123456789"))
            assert body_bytes(answer) == b"0123456789" * 1000
        pool.close()
        doubting = parse_read({"namesrv": address, "topic": "t", "tls": "true"})
        with pytest.raises(ConnectFailed, match="no TLS connection to"):
            ConnectionPool(doubting.access).exchange(address, Command(1))
