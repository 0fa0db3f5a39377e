"""Clusters for the doctor to look at: a shop in virtual time, and what tests do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.wire import Wire

from penstock import Message, MessageQueue, StoredMessage, aio, doctor
from penstock.doctor import Finding, GroupReport
from penstock.testing.embedded import AsyncEmbedded

GROUP = "billing"
TOPIC = "orders"

Handler = Callable[[StoredMessage], Any]


@asynccontextmanager
async def shop(queues: int = 2, *, brokers: int = 1) -> AsyncIterator[AsyncEmbedded]:
    """A cluster with a topic."""
    async with aio.embedded(clock="virtual", brokers=brokers) as mq:
        await mq.admin.create_topic(TOPIC, queues)
        yield mq


def works(message: StoredMessage) -> None:
    """A handler without a flaw."""


def fails(message: StoredMessage) -> None:
    """A handler that never succeeds."""
    raise ValueError("card declined")


async def hangs(message: StoredMessage) -> None:
    """A handler that never returns."""
    await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def consuming(
    mq: AsyncEmbedded,
    handler: Handler = works,
    *,
    topic: str = TOPIC,
    tags: str = "*",
    sql: str | None = None,
    **settings: Any,
) -> AsyncIterator[aio.PushConsumer]:
    """A consumer of the group, long enough for it to have settled."""
    settings = {"start_from": "first", **settings}
    consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv, **settings)
    consumer.on(topic, tags=tags, sql=sql)(handler)
    await consumer.start()
    try:
        await mq.clock.advance("1m")
        yield consumer
    finally:
        await consumer.stop(0)


async def send(mq: AsyncEmbedded, count: int = 4, *, topic: str = TOPIC, **fields: Any) -> None:
    """Send messages, one to each queue in turn."""
    async with aio.Producer("shop", namesrv=mq.namesrv) as producer:
        queues = await producer.queues(topic)
        for number in range(count):
            message = Message(topic, b"%d" % number, **fields)
            await producer.send(message, queue=queues[number % len(queues)])


async def connect(mq: AsyncEmbedded, broker: int = 0) -> Wire:
    """A scripted client of a broker."""
    address = (await mq.admin.cluster())[broker].address
    host, port = address.split(":")
    return await Wire.connect(int(port), host)


async def examine(mq: AsyncEmbedded, group: str = GROUP) -> GroupReport:
    """What the doctor says."""
    return await doctor.examine_group(mq.admin, group)


def causes(report: GroupReport | doctor.ClusterReport) -> list[str]:
    """The names of what was found."""
    return [finding.cause for finding in report.findings]


def only(report: GroupReport | doctor.ClusterReport, cause: str) -> Finding:
    """The one thing that was found."""
    assert causes(report) == [cause], [finding.what for finding in report.findings]
    [finding] = report.findings
    assert finding.evidence, "a finding has evidence"
    assert finding.way_out, "a finding has a way out"
    return finding


def queue(number: int, broker: str = "broker-a", topic: str = TOPIC) -> MessageQueue:
    """A queue of the shop's topic."""
    return MessageQueue(topic, broker, number)
