"""What a consumer tells an operator about itself, over the wire and through a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.asking import lock
from tests.support.stage import in_virtual_time
from tests.support.wire import Wire

from penstock import Message, MessageQueue, StoredMessage, aio
from penstock.protocol.bodies.clients import LockBatch
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode
from penstock.protocol.extensions import LOCK_OWNERS, RunningExtension
from penstock.testing.embedded import AsyncEmbedded

GROUP = "billing"
QUEUE = MessageQueue("orders", "broker-a", 0)


@asynccontextmanager
async def shop(queues: int = 1) -> AsyncIterator[AsyncEmbedded]:
    async with aio.embedded(clock="virtual") as mq:
        await mq.admin.create_topic("orders", queues)
        yield mq


async def send(mq: AsyncEmbedded, count: int) -> None:
    async with aio.Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number))


async def reported(
    mq: AsyncEmbedded, consumer: aio.PushConsumer | aio.PullConsumer
) -> dict[str, str]:
    return (await mq.admin.running_info(GROUP, consumer.client_id)).properties


async def never(message: StoredMessage) -> None:
    await asyncio.get_running_loop().create_future()


@in_virtual_time
async def test_settings_have_the_names_java_gives_them() -> None:
    async with shop() as mq:
        consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv, queue_limit=7, consume_timeout="3m")
        consumer.on("orders")(never)
        async with consumer:
            await mq.clock.advance("5s")
            said = await reported(mq, consumer)
    assert said["pullThresholdForQueue"] == "7"
    assert said["pullThresholdForTopic"] == "-1"
    assert said["consumeTimeout"] == "3"
    assert said["messageModel"] == "CLUSTERING"
    assert said["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert said["PROP_CONSUMEORDERLY"] == "false"
    # Java's tools read every one of them as text.
    assert all(isinstance(value, str) for value in said.values())


@pytest.mark.parametrize("orderly", [False, True])
def test_the_message_whose_handler_runs_longest_is_named(orderly: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        async with shop() as mq:
            consumer = aio.PushConsumer(
                GROUP, namesrv=mq.namesrv, orderly=orderly, start_from="first"
            )
            consumer.on("orders")(never)
            async with consumer:
                await send(mq, 1)
                await mq.clock.advance("1m")
                await send(mq, 2)
                await mq.clock.advance("1m")
                said = await reported(mq, consumer)
                longest = json.loads(said[RunningExtension.LONGEST_RUNNING])
                assert longest["queue"] == str(QUEUE)
                assert longest["offset"] == 0
                assert len(longest["msgId"]) == 32
                assert 115_000 <= longest["runningMs"] <= 121_000
                # In order, one call holds the others up.
                assert said[RunningExtension.RUNNING] == ("1" if orderly else "3")
                await consumer.stop(0)

    run()


@in_virtual_time
async def test_an_idle_consumer_names_no_message_and_the_time() -> None:
    async with shop() as mq:
        consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv)
        consumer.on("orders")(never)
        async with consumer:
            await mq.clock.advance("5s")
            said = await reported(mq, consumer)
            assert RunningExtension.LONGEST_RUNNING not in said
            assert said[RunningExtension.RUNNING] == "0"
            assert said[RunningExtension.PAUSED] == "false"
            assert said[RunningExtension.STOPPED_QUEUES] == "{}"
            assert abs(int(said[RunningExtension.CLOCK]) - mq.clock.time_ms()) < 100
            await consumer.pause()
            assert (await reported(mq, consumer))[RunningExtension.PAUSED] == "true"


@in_virtual_time
async def test_a_queue_that_waits_for_its_handlers_is_reported_with_the_limit() -> None:
    async with shop() as mq:
        consumer = aio.PushConsumer(
            GROUP, namesrv=mq.namesrv, start_from="first", queue_limit=2, pull_batch_size=4
        )
        consumer.on("orders")(never)
        async with consumer:
            await send(mq, 12)
            await mq.clock.advance("10s")
            said = await reported(mq, consumer)
            assert json.loads(said[RunningExtension.STOPPED_QUEUES]) == {str(QUEUE): "count"}
            assert json.loads(said[RunningExtension.FLOW_STOPS])["count"] > 10
            await consumer.stop(0)


@in_virtual_time
async def test_a_refused_lock_is_reported_with_the_client_that_holds_it() -> None:
    async with shop(queues=2) as mq:
        [broker] = await mq.admin.cluster()
        host, port = broker.address.split(":")
        wire = await Wire.connect(int(port), host)
        async with wire:
            await lock(wire, GROUP, "ghost@1", [QUEUE])
            consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv, orderly=True)
            consumer.on("orders")(never)
            async with consumer:
                await mq.clock.advance("10s")
                said = await reported(mq, consumer)
                refused: dict[str, Any] = json.loads(said[RunningExtension.REFUSED_LOCKS])
                assert refused == {str(QUEUE): "ghost@1"}
                # The lock is not renewed, and ends after a minute.
                await mq.clock.advance("80s")
                said = await reported(mq, consumer)
                assert said[RunningExtension.REFUSED_LOCKS] == "{}"
                assert len(await consumer.assignment()) == 2


@in_virtual_time
async def test_a_broker_says_who_holds_a_lock_only_when_it_refuses_one() -> None:
    async with shop(queues=2) as mq:
        [broker] = await mq.admin.cluster()
        host, port = broker.address.split(":")
        async with await Wire.connect(int(port), host) as wire:
            await lock(wire, GROUP, "one", [QUEUE])
            granted = await ask_for_lock(wire, "one")
            refused = await ask_for_lock(wire, "two")
    assert LOCK_OWNERS not in granted
    assert json.loads(refused[LOCK_OWNERS]) == {str(QUEUE): "one"}


async def ask_for_lock(wire: Wire, client_id: str) -> dict[str, str]:
    body = encode_body(LockBatch(GROUP, client_id, (QUEUE,), only_this_broker=False))
    answer = await wire.ok(RequestCode.LOCK_BATCH_MQ, body=body)
    return answer.ext or {}


@in_virtual_time
async def test_a_pull_consumer_tells_its_queues_and_which_are_paused() -> None:
    async with shop(queues=2) as mq:
        consumer = aio.PullConsumer(GROUP, namesrv=mq.namesrv)
        async with consumer:
            await consumer.subscribe("orders")
            await mq.clock.advance("5s")
            await consumer.pause(QUEUE)
            info = await mq.admin.running_info(GROUP, consumer.client_id)
    assert {queue.queue_id for queue in info.mq_table} == {0, 1}
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert json.loads(info.properties[RunningExtension.PAUSED_QUEUES]) == [str(QUEUE)]
    assert RunningExtension.PAUSED not in info.properties
