"""The cost of one request inside the broker, from the bytes of a socket to the bytes of the answer.

A real broker on a real store serves one connection whose transport is a list: chunks of encoded
requests go into ``data_received``, the end of the loop turn and the work after the answers are
called directly, the answers are dropped. So the cost includes frames, headers, handlers, log,
queues and index, but no socket system calls, event loop or load generator. The best of many chunks
is reported, because only this figure is reproducible on a busy machine, together with the median;
both also for the time until the answers were passed to the transport.

    python -m benchmarks.broker_path [--full | --profile]

The baseline is the minimum for any broker with this wire format: reading the JSON header of each
request and writing that of each answer, with orjson and nothing else.
"""

from __future__ import annotations

import asyncio
import cProfile
import logging
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

import orjson
from benchmarks.effort import QUICK, Effort, Figures, at_most
from benchmarks.script import main
from benchmarks.signed_sends import SECRET, USER, signed

from penstock.auth.model import UserType
from penstock.auth.server_auth import ServerAuth
from penstock.auth.user_file import UserFile
from penstock.auth.users import new_user
from penstock.broker import Broker, BrokerConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.protocol.headers.send import SendMessage, encode_send_v2
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.remoting import Peer
from penstock.remoting.loop import run as run_loop
from penstock.store import StoreConfig

TOPIC: Final = "bench-path"
QUEUES: Final = 4
LONE_QUEUE: Final = 5
"""Nothing else is sent while it is filled, so its messages are contiguous in the log; those of the
queues below `QUEUES` are interleaved with one another."""
ROUNDS: Final = 300
MESSAGES_PER_PULL: Final = 32
SENDS: Final = ((32, 128), (256, 128), (32, 1024))
"""Requests per chunk, bytes per body."""
SIGNED_SENDS: Final = ((32, 128), (256, 128))
"""As in the rows without a signature, at a broker that has users."""
BATCHES: Final = ((32, 128, 32), (32, 128, 56), (512, 200, 32))
"""Messages per batch, bytes per body, digits of a unique id: Java's ids are longer on a machine
with an IPv6 address."""
PULLS: Final = ((LONE_QUEUE, 16), (LONE_QUEUE, 1), (0, 16))
"""Queue, requests per chunk."""
SEND_TARGET_MICROSECONDS: Final = 10.0
PULL_TARGET_MICROSECONDS: Final = 20.0


class DroppingTransport:
    """Accepts everything and keeps only the number of bytes and the last write."""

    def __init__(self) -> None:
        self.taken = 0
        self.last = b""

    def write(self, data: bytes) -> None:
        self.taken += len(data)
        self.last = data

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        # uvloop passes the parts to one writev; joining them copies as the system call would.
        self.write(b"".join(parts))

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 50123), "sockname": ("127.0.0.1", 10911)}.get(name)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the transport never buffers."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""

    abort = pause_reading = resume_reading = close


class Inside:
    """A running broker and one connection to it without a socket."""

    def __init__(self, broker: Broker) -> None:
        # The benchmark uses private names because it measures the inside: no public name creates a
        # peer without a socket, and none should.
        server = cast(Any, broker)._server
        self._end_write_batch: Callable[[], None] = server._write_batch.end
        self._publish: Callable[[], None] = broker.state.storage.store.publish
        self.transport = DroppingTransport()
        self.peer: Peer = server._make_peer()
        self.peer.connection_made(cast(asyncio.BaseTransport, self.transport))

    def serve(self, chunk: bytes) -> None:
        self.answer(chunk)
        self._publish()

    def answer(self, chunk: bytes) -> None:
        self.peer.data_received(chunk)
        self._end_write_batch()

    def measure(self, chunk: bytes, requests: int, whole: Cost, until_answer: Cost) -> None:
        """Serve requests and record the time of each."""
        started = time.perf_counter_ns()
        self.answer(chunk)
        answered = time.perf_counter_ns()
        self._publish()
        whole.add(time.perf_counter_ns() - started, requests)
        until_answer.add(answered - started, requests)

    def leave(self) -> None:
        self.peer.connection_lost(None)


def as_it_is(command: Command) -> Command:
    """The request without a signature."""
    return command


def send_chunk(
    count: int,
    body_bytes: int,
    first: int = 0,
    queue_id: int | None = None,
    sign: Callable[[Command], Command] = as_it_is,
) -> bytes:
    """Sends as pipelined by a Java producer: to all queues in turn, unless one is given."""
    code, body = RequestCode.SEND_MESSAGE_V2, b"x" * body_bytes
    frames = []
    for number in range(first, first + count):
        unique_id = f"7F0000013A2218B4AAC2{number:012X}"
        header = SendMessage(
            *("bench-producers", TOPIC, "TBW102", 8),
            number % QUEUES if queue_id is None else queue_id,
            *(0, 1_700_000_000_000, 0),
            properties=f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02TAGS\x01created\x02",
            broker_name="broker-a",
        )
        command = Command(code, number + 1, ext=encode_send_v2(header), body=body)
        frames.append(encode_command(sign(command)))
    return b"".join(frames)


def batch_chunk(count: int, body_bytes: int, id_digits: int, first: int = 0) -> bytes:
    """One batch as a Java producer sends it, with unique ids that differ in their last digits."""
    prefix = "7F0000013A2218B4AAC2".ljust(id_digits - 8, "0")
    body = b"x" * body_bytes
    items = [
        BatchItem(body, f"UNIQ_KEY\x01{prefix}{number:08X}\x02WAIT\x01true\x02".encode())
        for number in range(first, first + count)
    ]
    header = SendMessage(
        *("bench-producers", TOPIC, "TBW102", 8, first // count % QUEUES),
        *(0, 1_700_000_000_000, 0),
        properties=f"UNIQ_KEY\x01{prefix}{first + count:08X}\x02WAIT\x01true\x02",
        batch=True,
        broker_name="broker-a",
    )
    code, ext = RequestCode.SEND_BATCH_MESSAGE, encode_send_v2(header)
    return encode_command(Command(code, first // count + 1, ext=ext, body=encode_batch(items)))


def pull_chunk(count: int, queue_id: int, queue_offset: int) -> bytes:
    """Pulls of 32 messages from one offset of a queue, as Java's push consumer sends them."""
    header = PullMessage(
        *("bench-consumers", TOPIC, queue_id, queue_offset, MESSAGES_PER_PULL),
        sys_flag=PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND | PullFlag.SUBSCRIPTION,
        commit_offset=queue_offset,
        suspend_timeout_millis=15_000,
        sub_version=1_700_000_000_000,
        subscription="*",
        expression_type="TAG",
    )
    ext = encode_header(header)
    return b"".join(
        encode_command(Command(RequestCode.PULL_MESSAGE, number, ext=ext))
        for number in range(1, count + 1)
    )


class Cost:
    """Microseconds per request, over many chunks."""

    def __init__(self) -> None:
        self._chunks: list[float] = []

    def measure(self, work: Callable[[], object], requests: int) -> None:
        started = time.perf_counter_ns()
        work()
        self.add(time.perf_counter_ns() - started, requests)

    def add(self, nanoseconds: int, requests: int) -> None:
        self._chunks.append(nanoseconds / requests / 1000)

    def summary(self) -> dict[str, float]:
        return {
            "best": round(min(self._chunks), 2),
            "median": round(statistics.median(self._chunks), 2),
        }


def bare_json(chunk: bytes, answer: bytes) -> Callable[[], None]:
    """The baseline: read the header of each request, write that of each answer."""
    headers = [frame.header for frame in FrameDecoder().feed(chunk)]
    head = orjson.loads(FrameDecoder().feed(answer)[0].header)

    def work() -> None:
        for header in headers:
            orjson.loads(header)
            orjson.dumps(head)

    return work


async def measure_sends(
    inside: Inside,
    in_flight: int,
    body_bytes: int,
    rounds: int,
    sign: Callable[[Command], Command] = as_it_is,
) -> dict[str, object]:
    path, answer, bare = Cost(), Cost(), Cost()
    chunk = send_chunk(in_flight, body_bytes, sign=sign)
    inside.serve(chunk)
    expect_success(inside.transport.last)
    baseline = bare_json(chunk, inside.transport.last)
    for number in range(rounds):
        chunk = send_chunk(in_flight, body_bytes, first=number * in_flight, sign=sign)
        inside.measure(chunk, in_flight, path, answer)
        bare.measure(baseline, in_flight)
        await asyncio.sleep(0)
    return figures({"body_bytes": body_bytes, "in_flight": in_flight}, path, answer, bare)


async def measure_batches(
    inside: Inside, count: int, body_bytes: int, id_digits: int, rounds: int
) -> dict[str, object]:
    """Microseconds per message, one batch per loop turn."""
    path, answer, bare = Cost(), Cost(), Cost()
    chunk = batch_chunk(count, body_bytes, id_digits)
    inside.serve(chunk)
    expect_success(inside.transport.last)
    baseline = bare_json(chunk, inside.transport.last)
    for number in range(1, rounds + 1):
        chunk = batch_chunk(count, body_bytes, id_digits, first=number * count)
        inside.measure(chunk, count, path, answer)
        bare.measure(baseline, count)
        await asyncio.sleep(0)
    return figures(
        {"messages": count, "body_bytes": body_bytes, "id_digits": id_digits}, path, answer, bare
    )


async def measure_pulls(
    inside: Inside, queue_id: int, in_flight: int, rounds: int
) -> dict[str, object]:
    path, answer, bare = Cost(), Cost(), Cost()
    chunk = pull_chunk(in_flight, queue_id, 0)
    inside.serve(chunk)
    expect_success(inside.transport.last)
    size = len(inside.transport.last) // in_flight
    baseline = bare_json(chunk, inside.transport.last)
    for _ in range(rounds):
        inside.measure(chunk, in_flight, path, answer)
        bare.measure(baseline, in_flight)
        await asyncio.sleep(0)
    layout = "side by side" if queue_id == LONE_QUEUE else "scattered"
    scenario = {"messages_are": layout, "bytes_per_pull": size, "in_flight": in_flight}
    return figures(scenario, path, answer, bare)


def expect_success(answers: bytes) -> None:
    """Check that no request was refused: refusals are fast and would distort the figures."""
    for frame in FrameDecoder().feed(answers):
        answer = decode_command(frame)
        if answer.code != 0:
            raise RuntimeError(f"the broker refused: {answer}")


def figures(scenario: dict[str, object], path: Cost, answer: Cost, bare: Cost) -> dict[str, object]:
    ours, theirs = path.summary(), bare.summary()
    return {
        **scenario,
        "microseconds": ours,
        "microseconds_until_answer": answer.summary(),
        "bare_json_microseconds": theirs,
        "ratio_to_bare_json": round(theirs["best"] / ours["best"], 3),
    }


async def measure(root: Path, rounds: int) -> dict[str, object]:
    # Index and log as in production, but with a log that fits on a small disk.
    store = StoreConfig(mapped_file_size_commit_log=256 << 20)
    async with Broker(BrokerConfig(listen_port=0), root / "open", store_config=store) as broker:
        inside = Inside(broker)
        sends = [
            await measure_sends(inside, in_flight, body_bytes, rounds)
            for in_flight, body_bytes in SENDS
        ]
        batches = [await measure_batches(inside, *batch, rounds) for batch in BATCHES]
        inside.serve(send_chunk(MESSAGES_PER_PULL, 128, queue_id=LONE_QUEUE))
        pulls = [
            await measure_pulls(inside, queue_id, in_flight, rounds)
            for queue_id, in_flight in PULLS
        ]
        inside.leave()
    return {
        "sends": sends,
        "signed_sends": await measure_signed_sends(root, store, rounds),
        "batches_per_message": batches,
        "pulls": pulls,
    }


async def measure_signed_sends(
    root: Path, store: StoreConfig, rounds: int
) -> list[dict[str, object]]:
    """Sends at a broker that has users; what they cost more than the others is the signature."""
    users = UserFile(root / "auth.json")
    user = new_user(USER, 0, value=SECRET, type_=UserType.SUPER)
    users.change(lambda known: known.with_user(user))
    auth = ServerAuth(user_file=users.path)
    config = BrokerConfig(listen_port=0)
    async with Broker(config, root / "guarded", store_config=store, auth=auth) as broker:
        inside = Inside(broker)
        rows = [
            await measure_sends(inside, in_flight, body_bytes, rounds, signed)
            for in_flight, body_bytes in SIGNED_SENDS
        ]
        inside.leave()
    return rows


def run(effort: Effort = QUICK) -> Figures:
    """Microseconds per request, the best and the median of many chunks."""
    rounds = effort.scaled(ROUNDS)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        results = run_loop(measure(Path(root), rounds))
    send = cast(Any, results)["sends"][0]["microseconds"]["best"]
    pull = cast(Any, results)["pulls"][0]["microseconds"]["best"]
    return {
        "benchmark": "broker_path",
        **results,
        "targets": [
            at_most("microseconds for a send, best", SEND_TARGET_MICROSECONDS, send),
            at_most("microseconds for a pull of 32, best", PULL_TARGET_MICROSECONDS, pull),
        ],
    }


def run_profiled() -> None:
    """Show on stderr where the time goes."""
    logging.disable(logging.INFO)
    with cProfile.Profile() as profile:
        run()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    if sys.argv[1:] == ["--profile"]:
        run_profiled()
    else:
        main(run)
