"""One client at work in a process of its own: sends, drains or paces, and tells its figures.

Started by `rounds` with the interpreter of the environment the client is installed in. The task
comes as one line of JSON on stdin; what was found goes as one line of JSON to stdout. In a paced
run two of these are told when to go on: the receiver says ``warm``, the sender waits for ``go`` and
for ``enough``, and the receiver is told how many there were.
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
    """What a worker is to do, as it travels between the processes."""

    client: str
    """The module under ``clients`` that has the adapter."""
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
    """To drain or to pace."""
    rate: float = 0.0


Figures = dict[str, float]


def tell(line: object) -> None:
    """One line to whoever started us."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def send(adapter: Adapter, task: Task) -> Figures:
    """As fast as it goes, for some seconds; the clock stops with the last acknowledgement."""
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
    """What lies in the topic, as fast as it comes."""
    found = Drain(task.messages, task.seconds)
    await adapter.start_consuming()
    await adapter.consume(found.take)
    return {
        "messages": found.count,
        "per_second": found.per_second(),
        "client_microseconds": found.cpu_seconds / found.count * 1e6,
    }


async def pace(adapter: Adapter, task: Task) -> Figures:
    """At a steady rate, once the receiver has shown that it listens, until it has all of them.

    Who cannot keep up with the rate is given twice the time, and tells how many it came to.
    """
    await adapter.start_sending()
    await _knock(adapter, task, "a message to arrive")
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
    tell({"messages": count, "per_second": count / (time.perf_counter() - began)})
    # The receiver may have them all already; it notices with the next message that comes.
    await _knock(adapter, task, "the receiver to have all")
    return {}


async def _knock(adapter: Adapter, task: Task, awaited: str) -> None:
    """Send messages that do not count until a line comes on stdin."""
    # On a thread that may be left behind: reading a line cannot be given up.
    listening = threading.Thread(target=sys.stdin.readline, daemon=True)
    listening.start()
    give_up = time.perf_counter() + WARM_UP_SECONDS
    while listening.is_alive():
        if time.perf_counter() > give_up:
            raise RuntimeError(f"waited {WARM_UP_SECONDS} s for {awaited}")
        await adapter.send_many([body(task.body_bytes, WARM_UP)])
        await asyncio.sleep(WARM_UP_PAUSE)


async def receive(adapter: Adapter, task: Task) -> Figures:
    """The other end of `pace`."""
    found = Ages(task.messages)

    def listen() -> None:
        if line := sys.stdin.readline():
            found.wanted = int(line)

    def take(data: bytes) -> bool:
        if not found.warm:
            tell("warm")
        return found.take(data)

    threading.Thread(target=listen, daemon=True).start()
    await adapter.start_consuming()
    await adapter.consume(take)
    return {"messages": len(found.seconds), **percentiles(found.seconds)}


async def work(task: Task) -> None:
    """Do one task with a fresh client, tell its figures, and take leave of the server."""
    module: Any = importlib.import_module(f"benchmarks.peers.clients.{task.client}")
    adapter: Adapter = module.Client(
        Setup(task.addresses, task.topic, task.group, task.window, task.linger)
    )
    doing = {"send": send, "drain": drain, "pace": pace, "receive": receive}[task.what]
    try:
        if figures := await doing(adapter, task):
            tell(figures)
    finally:
        await adapter.close()


def main() -> None:
    """Read the task, do it, tell."""
    import uvloop

    task = Task(**json.loads(sys.stdin.readline()))
    uvloop.run(work(task))


if __name__ == "__main__":
    main()
