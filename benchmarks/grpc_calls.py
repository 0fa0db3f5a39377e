"""What gRPC calls cost the endpoint and the broker, by a client without a library.

    python -m benchmarks.grpc_calls [--rounds 3] [--messages 20000] [--inside] [--rows ROW ...]

A row is ``send-INFLIGHT``, or ``simple-WORKERS``: each worker polls for 32 messages and
acknowledges one after the other, as a simple consumer does; or ``push-1``: one poll is under way,
and all its messages are acknowledged at once. The client is one connection and one thread, its
header blocks are as those of Java's client. The output is JSON: messages a second, and CPU time
per message in microseconds, of each process; the best of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.processes import ServerProcess
from benchmarks.processes import broker as running_broker

from penstock import Admin
from penstock.proxy.http2.frames import HEAD, PREFACE, SETTING, frame, window_update
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.definitions import SERVICE

TOPIC, GROUP = "bench-grpc-calls", "bench-grpc-calls"
ROWS: Final = ("send-64", "simple-4", "push-1")
BATCH: Final = 32
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_WINDOW: Final = 1 << 30
_TABLE_BYTES: Final = 4096
_STATIC_ENTRIES: Final = 61


class HeaderEncoder:
    """Header blocks whose fields are all put into the table, without Huffman's code."""

    def __init__(self) -> None:
        self._table: list[tuple[bytes, bytes]] = []
        self._size = 0

    def encode(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        out = bytearray()
        for entry in headers:
            if entry in self._table:
                out += _integer(0x80, 7, _STATIC_ENTRIES + 1 + self._table.index(entry))
                continue
            name, value = entry
            out += b"\x40" + _integer(0, 7, len(name)) + name + _integer(0, 7, len(value)) + value
            self._table.insert(0, entry)
            self._size += len(name) + len(value) + 32
            while self._size > _TABLE_BYTES:
                old = self._table.pop()
                self._size -= len(old[0]) + len(old[1]) + 32
        return bytes(out)


def _integer(first: int, bits: int, value: int) -> bytes:
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    out = bytearray((first | limit,))
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Caller:
    """One connection. Answers are taken by `run`, which calls back for each call that ended."""

    def __init__(self, address: str, client_id: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = HeaderEncoder()
        self._client_id = client_id.encode()
        self._authority = address.encode()
        self._next_id = 1
        self._out: list[bytes] = []
        self._input = b""
        self._waiting: dict[int, tuple[list[bytes], Callable[[bytes], None]]] = {}
        windows = SETTING.pack(4, _WINDOW)
        self._out += [PREFACE, frame(_SETTINGS, 0, 0, windows), window_update(0, _WINDOW)]

    def call(self, name: str, message: bytes, done: Callable[[bytes], None]) -> None:
        """Begin a call; ``done`` gets the content of all its data frames."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        headers = [
            (b":path", f"/{SERVICE}/{name}".encode()),
            (b":authority", self._authority),
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"user-agent", b"grpc-java-netty/1.53.0"),
            (b"x-mq-language", b"JAVA"),
            (b"x-mq-protocol", b"v2"),
            (b"x-mq-client-version", b"5.2.0"),
            (b"x-mq-request-id", str(uuid.uuid4()).encode()),
            (b"x-mq-date-time", b"20261118T120000Z"),
            (b"x-mq-client-id", self._client_id),
            (b"grpc-accept-encoding", b"gzip"),
            (b"grpc-timeout", b"%du" % (2_990_000 + stream_id % 9000)),
        ]
        body = b"\0" + len(message).to_bytes(4) + message
        self._out.append(frame(_HEADERS, _END_HEADERS, stream_id, self._encoder.encode(headers)))
        self._out.append(frame(_DATA, _END_STREAM, stream_id, body))
        self._waiting[stream_id] = [], done

    def run(self, is_done: Callable[[], bool]) -> None:
        """Send and take until ``is_done``."""
        while not is_done():
            if self._out:
                self._socket.sendall(b"".join(self._out))
                self._out.clear()
            data = self._socket.recv(1 << 18)
            if not data:
                raise RuntimeError("the server has closed the connection")
            data = self._input + data
            position = 0
            while len(data) - position >= 9:
                word, flags, stream_id = HEAD.unpack_from(data, position)
                end = position + 9 + (word >> 8)
                if end > len(data):
                    break
                self._take(word & 0xFF, flags, stream_id, data[position + 9 : end])
                position = end
            self._input = data[position:]

    def _take(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._out.append(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._out.append(frame(_PING, _ACK, 0, body))
        elif kind in (_RESET, _GO_AWAY):
            raise RuntimeError(f"a frame of the kind {kind}: {body!r}")
        elif kind == _DATA:
            self._waiting[stream_id][0].append(body)
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            found, done = self._waiting.pop(stream_id)
            done(b"".join(found))

    def close(self) -> None:
        self._socket.close()


def messages_of(data: bytes) -> Iterator[bytes]:
    """The messages of a call."""
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 1 : position + 5])
        yield data[position + 5 : position + 5 + size]
        position += 5 + size


class Load:
    """What is measured, over one connection."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._left = 0
        self._ended = 0
        topic = wire.Resource(name=TOPIC)
        self._poll = wire.ReceiveMessageRequest(
            group=wire.Resource(name=GROUP),
            message_queue=wire.MessageQueue(topic=topic),
            filter_expression=wire.FilterExpression(type=1, expression="*"),
            batch_size=BATCH,
        )
        self._poll.long_polling_timeout.seconds = 5

    def send(self, count: int, in_flight: int) -> None:
        self._left, self._ended = count, 0
        for _ in range(in_flight):
            self._send(b"")
        self._caller.run(lambda: self._ended >= count)

    def _send(self, answer: bytes) -> None:
        self._ended += bool(answer)
        if self._left:
            self._left -= 1
            message = wire.Message(topic=wire.Resource(name=TOPIC), body=bytes(128))
            system = message.system_properties
            system.message_id = f"01{uuid.uuid4().hex.upper()}"
            system.message_type = 1
            system.body_encoding = 1
            system.born_host = "host"
            request = wire.SendMessageRequest(messages=[message])
            self._caller.call("SendMessage", request.SerializeToString(), self._send)

    def simple(self, count: int, workers: int) -> None:
        self._left, self._ended = count, 0
        self._poll.auto_renew = False
        self._poll.invisible_duration.seconds = 60
        for _ in range(workers):
            self._receive(self._one_by_one)
        self._caller.run(lambda: self._ended >= count)

    def push(self, count: int, polls: int) -> None:
        self._left, self._ended = count, 0
        self._poll.auto_renew = True
        self._poll.ClearField("invisible_duration")
        for _ in range(polls):
            self._receive(self._all_at_once)
        self._caller.run(lambda: self._ended >= count)

    def _receive(self, take: Callable[[list[bytes]], None]) -> None:
        if self._left <= 0:
            return
        data = self._poll.SerializeToString()
        self._caller.call("ReceiveMessage", data, lambda found: take(self._acks(found)))

    def _acks(self, data: bytes) -> list[bytes]:
        responses = map(wire.ReceiveMessageResponse.FromString, messages_of(data))
        acks = []
        for response in responses:
            if response.HasField("message"):
                system = response.message.system_properties
                entry = wire.AckMessageEntry(
                    message_id=system.message_id, receipt_handle=system.receipt_handle
                )
                request = wire.AckMessageRequest(
                    group=wire.Resource(name=GROUP),
                    topic=wire.Resource(name=TOPIC),
                    entries=[entry],
                )
                acks.append(request.SerializeToString())
        self._left -= len(acks)
        return acks

    def _one_by_one(self, acks: list[bytes]) -> None:
        if not acks:
            self._receive(self._one_by_one)
            return

        def acked(_: bytes) -> None:
            self._ended += 1
            self._one_by_one(acks)

        self._caller.call("AckMessage", acks.pop(), acked)

    def _all_at_once(self, acks: list[bytes]) -> None:
        self._receive(self._all_at_once)
        for ack in acks:
            self._caller.call("AckMessage", ack, self._acked)

    def _acked(self, _: bytes) -> None:
        self._ended += 1


def cpu_seconds(pid: int) -> float:
    """CPU time of a process without its children."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has ended in the meantime
            total += int(task.read_text().split()[0])
    return total / 1e9


def processes_of(pid: int) -> dict[str, int]:
    """The broker, and the endpoint beside it if there is one."""
    found = {"broker": pid}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            if b"grpc_child" in Path(f"/proc/{child}/cmdline").read_bytes():
                found["endpoint"] = int(child)
    return found


def measure(address: str, pids: dict[str, int], rows: list[str], count: int) -> dict[str, float]:
    """One round of all rows."""
    figures: dict[str, float] = {}
    caller = Caller(address, f"bench-{os.getpid()}")
    try:
        load = Load(caller)
        for row in rows:
            kind, _, number = row.partition("-")
            if kind != "send":
                load.send(count, 64)
            before = {name: cpu_seconds(pid) for name, pid in pids.items()}
            began = time.perf_counter()
            getattr(load, kind)(count, int(number))
            figures[f"{row}:rate"] = count / (time.perf_counter() - began)
            for name, pid in pids.items():
                figures[f"{row}:{name}_us"] = (cpu_seconds(pid) - before[name]) / count * 1e6
    finally:
        caller.close()
    return figures


@contextlib.contextmanager
def _inside() -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as data:
        server = ServerProcess(["-m", "benchmarks.grpc_one_process", "inside", data])
        try:
            yield server
        finally:
            server.stop()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_calls")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--inside", action="store_true", help="the endpoint in the broker's loop")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW")
    options = parser.parse_args()
    found: list[dict[str, float]] = []
    with _inside() if options.inside else running_broker("--grpc-port", "0") as server:
        fields = dict(word.split("=", 1) for word in server.ready_line.split() if "=" in word)
        with Admin(namesrv=fields["namesrv"]) as admin:
            admin.create_topic(TOPIC, attributes={"message.type": "NORMAL"})
            admin.create_group(GROUP)
        pid = server._process.pid
        for _ in range(options.rounds):
            found.append(measure(fields["grpc"], processes_of(pid), options.rows, options.messages))
    best = {
        name: round(max(values) if name.endswith("rate") else min(values), 1)
        for name in found[0]
        for values in [[one[name] for one in found]]
    }
    print(json.dumps(best, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
