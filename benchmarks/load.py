"""The load generator: keeps requests in flight on some connections and checks every answer.

Requests are encoded beforehand. The input is parsed frame by frame, by the length words, and each
group of complete answers is followed by as many requests in one write: the minimum for a client
that checks its answers, and the same for every server. A generator that counted bytes instead would
make an echo look like millions of requests per second, which is the speed of copying memory; one
that wrote each request separately would measure its own system calls.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, cast

import orjson
from benchmarks.processes import ServerProcess

from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder

WARM_UP_SECONDS: Final = 0.05
MAX_ROUNDS_WAITED: Final = 100

_unpack_length: Final = Struct(">i").unpack_from


class Generator(asyncio.Protocol):
    """One connection; sends its ring of frames repeatedly."""

    def __init__(self, ring: Sequence[bytes], in_flight: int) -> None:
        # Stored twice, so that a chunk is one slice from any start.
        self._ring = [*ring, *ring] if len(ring) >= in_flight else [*ring] * (2 * in_flight)
        self._size = len(self._ring) // 2
        self._in_flight = in_flight
        self._next = 0
        self._rest = b""
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        self._send(self._in_flight)

    def stop(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        start, size, count = 0, len(data), 0
        while size - start >= 4:
            end = start + 4 + _unpack_length(data, start)[0]
            if end > size:
                break
            start = end
            count += 1
        self._rest = data[start:] if start < size else b""
        if count:
            self.answers += count
            self._send(count)

    def _send(self, count: int) -> None:
        start = self._next
        self._next = (start + count) % self._size
        self._transport.write(b"".join(self._ring[start : start + count]))


class ReadingGenerator(Generator):
    """Reads the header of each answer and matches its number, as any client must."""

    def __init__(self, ring: Sequence[bytes], in_flight: int) -> None:
        super().__init__(ring, in_flight)
        self.numbers = 0

    def data_received(self, data: bytes) -> None:
        whole = self._rest + data
        start = 0
        while len(whole) - start >= 8:
            end = start + 4 + _unpack_length(whole, start)[0]
            if end > len(whole):
                break
            header_end = start + 8 + (_unpack_length(whole, start + 4)[0] & 0xFF_FFFF)
            self.numbers ^= orjson.loads(whole[start + 8 : header_end])["opaque"]
            start = end
        super().data_received(data)


class Measured(NamedTuple):
    """The result of one round of load."""

    per_second: float
    server_microseconds: float
    """CPU time of the server per answer; independent of the speed of the generator."""
    generator_cpu: float
    """The generator's share of its core: near 1, the server was not the limit."""


async def load(
    server: ServerProcess,
    ring: Sequence[bytes],
    *,
    connections: int = 1,
    in_flight: int,
    seconds: float,
    reads_headers: bool = False,
    tls: ssl.SSLContext | None = None,
) -> Measured:
    """Answers per second from one server, and the CPU cost on both sides."""
    loop = asyncio.get_running_loop()
    kind = ReadingGenerator if reads_headers else Generator
    generators: list[Generator] = []
    for _ in range(connections):
        _, generator = await loop.create_connection(
            lambda: kind(ring, in_flight), "127.0.0.1", server.port, ssl=tls
        )
        generators.append(generator)
    for generator in generators:
        generator.start()
    await asyncio.sleep(WARM_UP_SECONDS)
    server_cpu, cpu = server.cpu_seconds(), time.process_time()
    before, started = _answers(generators), time.perf_counter()
    # On a busy machine a server may get no CPU within one round; the rate includes that time.
    for _ in range(MAX_ROUNDS_WAITED):
        await asyncio.sleep(seconds)
        if _answers(generators) > before:
            break
    else:
        raise RuntimeError(f"no answer from port {server.port} in {MAX_ROUNDS_WAITED} rounds")
    elapsed = time.perf_counter() - started
    answers = _answers(generators) - before
    cpu = time.process_time() - cpu
    server_cpu = server.cpu_seconds() - server_cpu
    for generator in generators:
        generator.stop()
    return Measured(answers / elapsed, server_cpu / answers * 1e6, cpu / elapsed)


def _answers(generators: Sequence[Generator]) -> int:
    return sum(generator.answers for generator in generators)


async def ask(port: int, commands: Sequence[Command], *, in_flight: int = 64) -> list[Command]:
    """Send commands and return their answers in order; for setup and checks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    decoder = FrameDecoder()
    answers: dict[int, Command] = {}
    for number, command in enumerate(commands):
        command.request_id = number + 1
    for start in range(0, len(commands), in_flight):
        part = commands[start : start + in_flight]
        writer.write(b"".join(map(encode_command, part)))
        while not all(command.request_id in answers for command in part):
            data = await reader.read(1 << 20)
            if not data:
                raise RuntimeError(f"the server at port {port} closed the connection")
            for frame in decoder.feed(data):
                answer = decode_command(frame)
                answers[answer.request_id] = answer
    writer.close()
    await writer.wait_closed()
    return [answers[command.request_id] for command in commands]


async def ask_successfully(
    port: int, commands: Sequence[Command], *, in_flight: int = 64
) -> list[Command]:
    """The same; a refusal ends the benchmark, because refusals are fast."""
    answers = await ask(port, commands, in_flight=in_flight)
    for answer in answers:
        if answer.code != 0:
            raise RuntimeError(f"the server refused with {answer.code}: {answer.remark}")
    return answers
