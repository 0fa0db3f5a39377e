"""Runs one client in its own process: sends, drains or paces, and prints its figures.

Started by `rounds` with the interpreter of the environment that contains the client. The task is
one line of JSON on stdin; the result is one line of JSON on stdout. In a paced run two workers are
coordinated: the receiver prints ``warm``, the sender waits for ``go`` and for ``enough``, and the
receiver reads the number of messages sent.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers.adapter import Adapter, Setup
from benchmarks.peers.load import COUNTED, WARM_UP, Ages, Drain, body, percentiles, sent_at, until

WARM_UP_MESSAGES: Final = 20
WARM_UP_PAUSE: Final = 0.05
WARM_UP_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a worker, as passed between the processes."""

    client: str
    """The module under ``clients`` with the adapter."""
    what: str
    """``send``, ``drain``, ``pace`` or ``receive``."""
    addresses: dict[str, str]
    topic: str
    group: str = "bench-readers"
    window: int = 1
    linger: float = 0.0
    body_bytes: int = 128
    seconds: float = 1.0
    messages: int = 0
    """The number of messages to drain or to pace."""
    rate: float = 0.0


Figures = dict[str, float]


def print_line(line: object) -> None:
    """Print one line of JSON for the parent process."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def send(adapter: Adapter, task: Task) -> Figures:
    """Send as fast as possible for some seconds; the time ends with the last acknowledgement."""
    await adapter.start_sending()
    warm = body(task.body_bytes, WARM_UP)
    warm_count = await adapter.send_many([warm] * WARM_UP_MESSAGES)
    data = body(task.body_bytes)
    cpu, began = time.process_time(), time.perf_counter()
    count = await adapter.send_many(until(began + task.seconds, data))
    elapsed = time.perf_counter() - began
    cpu = time.process_time() - cpu
    return {
        "messages": count,
        "stored": count + warm_count,
        "per_second": count / elapsed,
        "client_microseconds": cpu / count * 1e6,
    }


async def drain(adapter: Adapter, task: Task) -> Figures:
    """Read the stored messages of the topic as fast as possible."""
    found = Drain(task.messages, task.seconds)
    await adapter.start_consuming()
    await adapter.consume(found.take)
    return {
        "messages": found.count,
        "per_second": found.per_second(),
        "client_microseconds": found.cpu_seconds / found.count * 1e6,
    }


async def pace(adapter: Adapter, task: Task) -> Figures:
    """Send at a steady rate, once the receiver is ready, until it has received all messages.

    A client that cannot keep up gets twice the time, and reports how many messages it sent.
    """
    await adapter.start_sending()
    await _probe(adapter, task, "a message to arrive")
    give_up = time.perf_counter() + 2 * task.messages / task.rate
    count, began = 0, time.perf_counter()
    woken = began
    while count < task.messages and time.perf_counter() < give_up:
        due = began + count / task.rate
        ahead = due - time.perf_counter()
        if ahead > 0:
            await asyncio.sleep(ahead)
            woken = time.perf_counter()
        await adapter.submit(body(task.body_bytes, COUNTED, sent_at(due, woken)))
        count += 1
    await adapter.drain()
    print_line({"messages": count, "per_second": count / (time.perf_counter() - began)})
    # The receiver may have all messages already; it notices this with the next one.
    await _probe(adapter, task, "the receiver to have all")
    return {}


async def _probe(adapter: Adapter, task: Task, awaited: str) -> None:
    """Send messages that do not count until a line arrives on stdin."""
    # On a thread that may be abandoned: reading a line cannot be cancelled.
    listening = threading.Thread(target=sys.stdin.readline, daemon=True)
    listening.start()
    give_up = time.perf_counter() + WARM_UP_SECONDS
    while listening.is_alive():
        if time.perf_counter() > give_up:
            raise RuntimeError(f"waited {WARM_UP_SECONDS} s for {awaited}")
        await adapter.send_many([body(task.body_bytes, WARM_UP)])
        await asyncio.sleep(WARM_UP_PAUSE)


async def receive(adapter: Adapter, task: Task) -> Figures:
    """The receiver of `pace`."""
    found = Ages(task.messages)

    def listen() -> None:
        if line := sys.stdin.readline():
            found.wanted = int(line)

    def take(data: bytes) -> bool:
        if not found.warm:
            print_line("warm")
        return found.take(data)

    threading.Thread(target=listen, daemon=True).start()
    await adapter.start_consuming()
    await adapter.consume(take)
    return {"messages": len(found.seconds), **percentiles(found.seconds)}


async def work(task: Task) -> None:
    """Run one task with a new client, print its figures, and disconnect."""
    module: Any = importlib.import_module(f"benchmarks.peers.clients.{task.client}")
    adapter: Adapter = module.Client(
        Setup(task.addresses, task.topic, task.group, task.window, task.linger)
    )
    doing = {"send": send, "drain": drain, "pace": pace, "receive": receive}[task.what]
    try:
        if figures := await doing(adapter, task):
            print_line(figures)
    finally:
        await adapter.close()


def main() -> None:
    """Read the task, run it, print the result."""
    import uvloop

    task = Task(**json.loads(sys.stdin.readline()))
    uvloop.run(work(task))


if __name__ == "__main__":
    main()
