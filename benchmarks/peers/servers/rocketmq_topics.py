"""Creates topics with as many queues as Kafka has partitions, on any RocketMQ broker."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.peers.adapter import QUEUES

from penstock.aio import Admin
from penstock.errors import ServiceNotAvailable

REGISTER_SECONDS: Final = 60.0
_PAUSE: Final = 0.2


def make_topic(namesrv: str, topic: str, group: str) -> None:
    """Create a topic and a group; Apache's proxy rejects consumers whose group does not exist."""
    asyncio.run(_make(namesrv, topic, group))


async def _make(namesrv: str, topic: str, group: str) -> None:
    deadline = time.monotonic() + REGISTER_SECONDS
    async with Admin(namesrv=namesrv) as admin:
        while True:
            try:
                await admin.create_topic(topic, queues=QUEUES)
                break
            except ServiceNotAvailable:
                # Apache's broker reports that it has started before its name server knows it.
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_PAUSE)
        await admin.create_group(group)
