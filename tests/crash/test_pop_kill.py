"""A broker process that is killed while messages are popped and acknowledged.

What was acknowledged in time never comes again; what was not comes again, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from tests.crash.test_broker_kill import running
from tests.support.asking import put_topic
from tests.support.popping import ack, pop
from tests.support.wire import Wire

pytestmark = pytest.mark.crash

IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
KILLS = 15 if IS_LONG else 1
MESSAGES = 60 if IS_LONG else 24
INVISIBLE = 2.0


@pytest.mark.spec("P51")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kills_with_open_receipts_lose_and_repeat_nothing(tmp_path: Path, flush: str) -> None:
    chance = random.Random(flush)
    sent: set[bytes] = set()
    acked: set[bytes] = set()
    unsure: set[bytes] = set()
    """Acknowledged without an answer: the broker was killed."""
    again: list[bytes] = []

    async def work(wire: Wire, until: float) -> None:
        while time.monotonic() < until:
            for got in await pop(wire, count=8, invisible=INVISIBLE, wait=0.1):
                if got.body in acked:
                    again.append(got.body)
                if chance.random() < 0.6:
                    unsure.add(got.body)
                    answer = await ack(wire, got)
                    unsure.discard(got.body)
                    assert answer.code == 0
                    acked.add(got.body)

    with running(tmp_path / "data", settings=f"flushDiskType={flush}\n") as up:
        for round_ in range(KILLS + 1):
            async with await Wire.connect(up.port) as wire:
                if not round_:
                    await put_topic(wire, "T", 2)
                for i in range(MESSAGES):
                    body = b"%d-%d" % (round_, i)
                    await wire.send("T", body, queue_id=i % 2)
                    sent.add(body)
            if round_ == KILLS:
                break
            wires = [await Wire.connect(up.port) for _ in range(2)]
            tasks = [asyncio.create_task(work(wire, time.monotonic() + 60)) for wire in wires]
            await asyncio.sleep(chance.uniform(0.2, 0.5))
            up.process.kill()
            await asyncio.gather(*tasks, return_exceptions=True)
            for wire in wires:
                await wire.close()
            up.start()
        deadline = time.monotonic() + 60
        async with await Wire.connect(up.port) as wire:
            while sent - acked - unsure and time.monotonic() < deadline:
                for got in await pop(wire, invisible=30, wait=1):
                    if got.body in acked:
                        again.append(got.body)
                    assert (await ack(wire, got)).code == 0
                    acked.add(got.body)
    assert sent - acked - unsure == set()
    assert again == []
