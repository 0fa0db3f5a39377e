"""The real clock."""

from __future__ import annotations

import asyncio
import time

from penstock.runtime.clock import Clock, SystemClock


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    assert before <= clock.time() <= time.time()
    before_ns = time.time_ns()
    assert before_ns // 1_000_000 <= clock.time_ms() <= time.time_ns() // 1_000_000
    assert clock.monotonic() <= clock.monotonic()


async def test_sleep_and_call_later_use_the_running_loop() -> None:
    clock = SystemClock()
    called: list[str] = []
    fired = asyncio.Event()
    clock.call_later(0.001, called.append, "kept")
    dropped = clock.call_later(0.001, called.append, "dropped")
    dropped.cancel()
    assert dropped.cancelled()
    clock.call_later(0.002, fired.set)
    await fired.wait()
    await clock.sleep(0)
    assert called == ["kept"]
