"""A broker process that is killed while timer messages wait and are delivered."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.test_broker_kill import running
from tests.support.asking import all_records, properties, put_topic
from tests.support.wire import Wire

from penstock.protocol.codes import ResponseCode
from penstock.protocol.records.codec import Record

pytestmark = pytest.mark.crash

IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
KILLS = 20 if IS_LONG else 2
LONGEST = 3.0
"""Seconds until the last message is due."""


async def _send_until(wire: Wire, seconds: float, chance: random.Random, sent: set[bytes]) -> None:
    """Send timer messages; what is acknowledged is noted."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        body = b"%d" % chance.getrandbits(60)
        due = int((time.time() + chance.uniform(0.2, LONGEST)) * 1000)
        answer = await wire.send(
            "T", body, properties={"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": body.decode()}
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        sent.add(body)
        await asyncio.sleep(0.002)


@pytest.mark.spec("Y23")
@pytest.mark.parametrize("seed", [1, 2] if IS_LONG else [1])
async def test_every_acknowledged_timer_arrives_and_none_is_early(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    sent: set[bytes] = set()
    kills: list[float] = []
    with running(tmp_path / "data", settings="mappedFileSizeTimerLog=65536\n") as up:
        for number in range(KILLS + 1):
            async with await Wire.connect(up.port) as wire:
                if not number:
                    await put_topic(wire, "T", 1)
                await _send_until(wire, chance.uniform(0.2, 1.5), chance, sent)
                if number < KILLS:
                    kills.append(time.time() * 1000)
                    await asyncio.to_thread(up.restart)
        async with await Wire.connect(up.port) as wire:
            found = await _arrived(wire, len(sent))
    counts = Counter(record.body for record in found)
    assert counts.keys() == sent
    first: dict[bytes, Record] = {}
    for record in found:
        assert record.store_timestamp >= int(properties(record)["TIMER_DELIVER_MS"])
        first.setdefault(record.body, record)
    for body, count in counts.items():
        if count > 1:
            # Only what was delivered in the last seconds before a kill comes again.
            gone = [kill for kill in kills if kill >= first[body].store_timestamp]
            assert gone, body
            assert min(gone) - first[body].store_timestamp < 5000


async def _arrived(wire: Wire, count: int) -> list[Record]:
    """All messages, when nothing more comes."""
    async with asyncio.timeout(60):
        while True:
            found = await all_records(wire, "T")
            if len({record.body for record in found}) >= count:
                await asyncio.sleep(1.5)
                return await all_records(wire, "T")
            await asyncio.sleep(0.2)
