"""How long sends of a remoting client take, alone and beside another load on the same server.

A send is awaited by itself, 1,000 begin each second, and a late one does not delay the next.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks.client_latency import Latencies, pace, percentiles
from benchmarks.effort import Figures

from penstock import Message, aio
from penstock.remoting.loop import run as run_loop

TOPIC: Final = "bench-sends-beside"
BODY: Final = bytes(128)
SETTLE_SECONDS: Final = 0.3


async def send_latencies(namesrv: str, seconds: float) -> Latencies:
    """Seconds from the call of each send to its result."""
    latencies: Latencies = []

    async def send() -> None:
        begun = time.perf_counter()
        await producer.send(Message(TOPIC, BODY))
        latencies.append(time.perf_counter() - begun)

    async with aio.Producer("bench-sends-beside", namesrv=namesrv) as producer:
        # The first one finds the route and creates the topic.
        await send()
        latencies.clear()
        sends: list[asyncio.Task[None]] = []
        await pace(seconds, lambda: sends.append(asyncio.ensure_future(send())))
        await asyncio.gather(*sends)
    return latencies


def compare_latencies(
    namesrv: str, load: Callable[[], object], rounds: int, seconds: float
) -> Figures:
    """Percentiles alone and beside ``load``, which is repeated meanwhile, and the ratio of p99."""
    alone: list[Latencies] = []
    beside: list[Latencies] = []
    for _ in range(rounds):
        alone.append(run_loop(send_latencies(namesrv, seconds)))
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(_repeat, load, done)
            try:
                time.sleep(SETTLE_SECONDS)
                beside.append(run_loop(send_latencies(namesrv, seconds)))
            finally:
                done.set()
            loading.result()
    found = {"alone": percentiles(alone), "beside": percentiles(beside)}
    ratio = found["beside"]["p99_ms"] / found["alone"]["p99_ms"]
    return {**found, "p99_ratio": round(ratio, 3)}


def _repeat(load: Callable[[], object], done: threading.Event) -> None:
    while not done.is_set():
        load()
