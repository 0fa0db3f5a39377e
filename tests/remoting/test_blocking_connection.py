"""A blocking connection against servers that do as they please."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.errors import ConnectFailed, ConnectionLost, RequestTimeout
from penstock.protocol.commands import RESPONSE, Command, encode_command
from penstock.remoting.blocking_connection import BlockingConnection

ASK = 105


@contextlib.contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[BlockingConnection]:
    """A line to a server that treats its one connection like this."""

    def run() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        line = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}", 5)
        try:
            yield line
        finally:
            line.close()
            thread.join(10)
    assert not thread.is_alive()


def answer(request_id: int, remark: str) -> bytes:
    return encode_command(Command(0, request_id, RESPONSE, remark=remark))


def test_an_answer_may_come_byte_by_byte_and_after_other_things() -> None:
    def serve(connection: socket.socket) -> None:
        for number in (1, 2):
            assert connection.recv(65536)
            stream = (
                encode_command(Command(40, 99))  # a request of the server's own
                + answer(number + 500, "not this one")
                + answer(number, f"answer {number}")
            )
            for byte in stream:
                connection.sendall(bytes([byte]))

    with server(serve) as line:
        assert [line.exchange(Command(ASK), 10).remark for _ in range(2)] == [
            "answer 1",
            "answer 2",
        ]


def test_silence_is_a_timeout_and_ends_the_line() -> None:
    def serve(connection: socket.socket) -> None:
        while connection.recv(65536):
            pass

    with server(serve) as line:
        with pytest.raises(RequestTimeout, match=r"GET_ROUTEINFO.* within 0\.1 s"):
            line.exchange(Command(ASK), 0.1)
        with pytest.raises(ConnectionLost):
            line.exchange(Command(ASK), 0.1)


def test_chatter_does_not_prolong_the_wait() -> None:
    def serve(connection: socket.socket) -> None:
        while True:
            connection.sendall(encode_command(Command(40, 99)))

    with server(serve) as line, pytest.raises(RequestTimeout):
        line.exchange(Command(ASK), 0.2)


def test_no_time_left_is_a_timeout_at_once() -> None:
    with server(lambda connection: None) as line, pytest.raises(RequestTimeout):
        line.exchange(Command(ASK), 0.0)


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04nope"]
)
def test_an_end_or_bytes_that_are_no_answer_are_a_lost_connection(reply: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(reply)

    with server(serve) as line, pytest.raises(ConnectionLost, match=r"127\.0\.0\.1"):
        line.exchange(Command(ASK), 10)


def test_a_line_that_was_closed_over_there_is_stale() -> None:
    hang_up = threading.Event()

    def serve(connection: socket.socket) -> None:
        hang_up.wait(10)

    with server(serve) as line:
        assert not line.is_stale
        hang_up.set()
        line._poll.poll(10_000)
        assert line.is_stale


def test_another_thread_can_end_the_wait() -> None:
    asked = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        asked.set()
        connection.recv(65536)

    with server(serve) as line:

        def interrupt() -> None:
            assert asked.wait(10)
            line.interrupt()

        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(ConnectionLost):
            line.exchange(Command(ASK), 30)
        helper.join(10)


def test_an_address_without_a_listener_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectFailed, match=address):
        BlockingConnection(address, 5)
