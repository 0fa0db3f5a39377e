"""Topics with as many queues as Kafka's have partitions, on any RocketMQ broker."""

from __future__ import annotations

import asyncio

from benchmarks.peers.adapter import QUEUES

from penstock.aio import Admin


def make_topic(namesrv: str, topic: str, group: str) -> None:
    """Make a topic and a group; Apache's proxy knows no consumer whose group does not exist."""
    asyncio.run(_make(namesrv, topic, group))


async def _make(namesrv: str, topic: str, group: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)
        await admin.create_group(group)
