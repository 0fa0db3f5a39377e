"""The cost of transactions and timer messages inside the broker, without sockets.

As in `benchmarks.broker_path` a real broker serves one connection whose transport is a list. A
transaction is a half message and its commit, which is one-way, as Java's client sends it. A timer
is parked, put into the wheel and, with all others of its second, delivered. For the last two the
CPU time of the whole process counts: threads take part.

    python -m benchmarks.broker_later [--full | --profile]
"""

from __future__ import annotations

import asyncio
import cProfile
import logging
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.broker_path import QUEUES, TOPIC, Cost, Inside, expect_success, send_chunk
from benchmarks.effort import QUICK, Effort, Figures
from benchmarks.script import main

from penstock.broker import Broker, BrokerConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import ONEWAY, Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.send import SendMessage, encode_send_v2
from penstock.protocol.headers.transactions import EndTransaction, TransactionDecision
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.protocol.records.sys_flags import SysFlag
from penstock.remoting.loop import run as run_loop
from penstock.store import StoreConfig

GROUP: Final = "bench-transactions"
IN_FLIGHT: Final = (4, 16)
ROUNDS: Final = 300
TIMERS: Final = 20_000
_BODY: Final = b"x" * 128


def chunk_of(first: int, count: int, properties: str, sys_flag: int = 0) -> bytes:
    """Sends to all queues in turn, with these properties besides those of every message."""
    frames = []
    for number in range(first, first + count):
        header = SendMessage(
            *(GROUP, TOPIC, "TBW102", 8, number % QUEUES, sys_flag, 1_700_000_000_000, 0),
            properties=f"UNIQ_KEY\x017F0000013A2218B4AAC2{number:012X}\x02WAIT\x01true\x02{properties}",
            broker_name="broker-a",
        )
        code, ext = RequestCode.SEND_MESSAGE_V2, encode_send_v2(header)
        frames.append(encode_command(Command(code, number + 1, ext=ext, body=_BODY)))
    return b"".join(frames)


def commit_chunk(answers: bytes) -> bytes:
    """Commits of the halves that were acknowledged."""
    frames = []
    for frame in FrameDecoder().feed(answers):
        answer = decode_command(frame)
        ext = answer.ext or {}
        header = EndTransaction(
            *(GROUP, int(ext["queueOffset"])),
            parse_offset_message_id(ext["msgId"]).log_position,
            TransactionDecision.COMMIT,
            ext["transactionId"],
            transaction_id=ext["transactionId"],
            topic=TOPIC,
        )
        code, ext = RequestCode.END_TRANSACTION, encode_header(header)
        frames.append(encode_command(Command(code, answer.request_id, flag=ONEWAY, ext=ext)))
    return b"".join(frames)


async def measure_transactions(
    inside: Inside, broker: Broker, in_flight: int, rounds: int
) -> dict[str, object]:
    """Microseconds of a half and of its commit."""
    half, commit = Cost(), Cost()
    storage = broker.state.storage

    def serve(chunk: bytes, cost: Cost) -> None:
        started = time.perf_counter_ns()
        inside.answer(chunk)
        storage.finish_turn()  # One-way decisions, and what readers need.
        cost.add(time.perf_counter_ns() - started, in_flight)

    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    for number in range(rounds):
        first = number * in_flight
        chunk = chunk_of(first, in_flight, properties, SysFlag.TRANSACTION_PREPARED)
        inside.transport.last = b""
        serve(chunk, half)
        for _ in range(3):
            await asyncio.sleep(0)  # Promised answers leave in the next turn.
        expect_success(inside.transport.last)
        chunk = commit_chunk(inside.transport.last)
        serve(chunk, commit)
        await asyncio.sleep(0)
    return {
        "in_flight": in_flight,
        "half_microseconds": half.summary(),
        "commit_microseconds": commit.summary(),
    }


async def until(is_done: Callable[[], bool], pause: float) -> None:
    """Ask again and again: the service has no event for this."""
    deadline = time.monotonic() + 60
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError("the timers do not arrive")
        await asyncio.sleep(pause)


async def measure_timers(inside: Inside, broker: Broker, count: int) -> dict[str, object]:
    """Microseconds of CPU time to park a timer, to put it into the wheel, and to deliver it."""
    timers = broker.state.timers
    inside.serve(send_chunk(QUEUES, 128))
    delivered = timers.delivered
    due_ms = (int(time.time()) + 4 + count // 4_000) * 1000
    property_text = f"TIMER_DELIVER_MS\x01{due_ms}\x02"
    parking = Cost()
    unused = Cost()
    began = time.process_time()
    made = 0.0
    count -= count % 16
    for first in range(0, count, 16):
        before = time.process_time()
        chunk = chunk_of(first, 16, property_text)
        made += time.process_time() - before
        inside.measure(chunk, 16, parking, unused)
        await asyncio.sleep(0)
    expect_success(inside.transport.last)
    await until(lambda: timers.pending >= count, 0.05)
    waiting = time.process_time()
    if time.time() * 1000 >= due_ms:
        raise RuntimeError("parking took longer than the timers wait")
    await asyncio.sleep(due_ms / 1000 - time.time())
    delivering = time.process_time()
    await until(lambda: timers.delivered - delivered >= count, 0.001)
    taken = time.time() - due_ms / 1000
    return {
        "timers": count,
        "send_microseconds": parking.summary(),
        "send_and_wheel_microseconds": round((waiting - began - made) / count * 1e6, 2),
        "delivery_microseconds": round((time.process_time() - delivering) / count * 1e6, 2),
        "delivered_per_second": round(count / taken),
    }


async def measure(root: Path, rounds: int, count: int, times: int) -> dict[str, object]:
    store = StoreConfig(mapped_file_size_commit_log=256 << 20)
    async with Broker(BrokerConfig(listen_port=0), root, store_config=store) as broker:
        inside = Inside(broker)
        try:
            inside.serve(send_chunk(QUEUES, 128))
            transactions = [
                await measure_transactions(inside, broker, in_flight, rounds)
                for in_flight in IN_FLIGHT
            ]
            timers = [await measure_timers(inside, broker, count) for _ in range(times)]
        finally:
            inside.leave()  # The broker waits for its connections when it stops.
    return {"transactions": transactions, "timers": timers}


def run(effort: Effort = QUICK) -> Figures:
    """Microseconds for each message, the best and the median of many chunks."""
    plan = (effort.scaled(ROUNDS), effort.scaled(TIMERS), effort.rounds)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        results = run_loop(measure(Path(root), *plan))
    return {"benchmark": "broker_later", **results, "targets": []}


def run_profiled() -> None:
    """Show on stderr where the time of the loop goes."""
    logging.disable(logging.INFO)
    with cProfile.Profile() as profile:
        run()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    if sys.argv[1:] == ["--profile"]:
        run_profiled()
    else:
        main(run)
