"""Single queues of a pull consumer, paused and resumed."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.loop_clients import Bench, on_bench

import penstock
from penstock import Message, MessageQueue, Producer, PullConsumer, aio, embedded
from penstock.client.consuming.pull_consumer import PullConsumerCore
from penstock.client.settings import ConsumerSettings, StartFrom
from penstock.errors import InvalidArgument
from penstock.model import StoredMessage
from penstock.protocol.codes import RequestCode

FIRST, SECOND = (MessageQueue("T", "broker-a", number) for number in range(2))
two_queues = on_bench(topics={"T": 2})


def reader(bench: Bench, name: str = "r1") -> PullConsumerCore:
    settings = ConsumerSettings(
        group="readers", pull_batch_size=10, post_subscription=True, start_from=StartFrom("first")
    )
    return PullConsumerCore(bench.session(name), settings)


async def everything(consumer: PullConsumerCore) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while batch := await consumer.poll(2.0):
        found += batch
    return found


def places(messages: list[StoredMessage]) -> list[tuple[int, int]]:
    return sorted((message.queue.queue_id, message.queue_offset) for message in messages)


@two_queues
async def test_a_paused_queue_brings_nothing_and_loses_nothing(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    assert await consumer.poll(2.0) == []
    consumer.pause(frozenset([FIRST]))
    assert consumer.paused() == {FIRST}
    for number in range(2):
        bench.broker.put("T", number, b"a", b"b")
    assert places(await everything(consumer)) == [(1, 0), (1, 1)]
    consumer.resume(frozenset([FIRST]))
    assert consumer.paused() == set()
    assert places(await everything(consumer)) == [(0, 0), (0, 1)]
    await consumer.commit()
    assert bench.broker.offsets["readers", "T", 0] == 2
    await consumer.stop()


@two_queues
async def test_what_was_read_ahead_waits_in_its_place(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 15)
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    await asyncio.sleep(1)
    # All of it has been read ahead by now.
    consumer.pause(frozenset([FIRST]))
    bench.broker.put("T", 1, b"y")
    assert places(await everything(consumer)) == [(1, 0)]
    waiting = asyncio.create_task(consumer.poll(60.0))
    await asyncio.sleep(1)
    assert not waiting.done()
    consumer.resume()
    # In their order, and at once.
    assert [message.queue_offset for message in await waiting] == list(range(10))
    assert [m.queue_offset for m in await consumer.poll(1.0)] == list(range(10, 15))
    await consumer.stop()


@two_queues
async def test_a_paused_queue_is_not_pulled(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.subscribe("T")
    await consumer.start()
    await asyncio.sleep(1)
    consumer.pause()
    assert consumer.paused() == {FIRST, SECOND}
    # The pulls that are held end first.
    await asyncio.sleep(30)
    before = len(bench.broker.asked(RequestCode.PULL_MESSAGE))
    await asyncio.sleep(300)
    assert len(bench.broker.asked(RequestCode.PULL_MESSAGE)) == before
    # Nor is it given up for that.
    assert consumer.assignment() == {FIRST, SECOND}
    await consumer.stop()


@two_queues
async def test_a_queue_that_goes_and_comes_back_is_not_paused_any_more(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.assign([FIRST, SECOND])
    await consumer.start()
    consumer.pause(frozenset([FIRST]))
    await consumer.assign([SECOND])
    assert consumer.paused() == set()
    await consumer.assign([FIRST, SECOND])
    bench.broker.put("T", 0, b"x")
    assert places(await everything(consumer)) == [(0, 0)]
    await consumer.stop()


@two_queues
async def test_only_a_queue_that_is_read_can_be_paused(bench: Bench) -> None:
    consumer = reader(bench)
    await consumer.assign([FIRST])
    await consumer.start()
    with pytest.raises(
        InvalidArgument, match=r"'readers' does not read T@broker-a:1.*T@broker-a:0"
    ):
        consumer.pause(frozenset([SECOND]))
    assert consumer.paused() == set()
    await consumer.stop()


def test_the_blocking_class_takes_one_queue_several_or_none() -> None:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("T", 2)
        with PullConsumer("readers", namesrv=mq.namesrv, start_from="first") as consumer:
            consumer.subscribe("T")
            mq.clock.advance("5s")
            assert consumer.assignment() == {FIRST, SECOND}
            consumer.pause(FIRST)
            assert consumer.paused() == {FIRST}
            consumer.pause(queue for queue in (SECOND,))
            assert consumer.paused() == {FIRST, SECOND}
            with Producer("shop", namesrv=mq.namesrv) as producer:
                producer.send(Message("T", b"x"), queue=FIRST)
            assert consumer.poll(5) == []
            consumer.resume([FIRST])
            assert [message.body for message in consumer.poll(5)] == [b"x"]
            consumer.resume()
            assert consumer.paused() == set()


async def test_the_awaiting_class_does_the_same() -> None:
    async with aio.embedded() as mq:
        await mq.admin.create_topic("T", 1)
        async with penstock.aio.PullConsumer("readers", namesrv=mq.namesrv) as consumer:
            await consumer.assign([FIRST])
            await consumer.pause(FIRST)
            assert await consumer.paused() == {FIRST}
            await consumer.resume(FIRST)
            assert await consumer.paused() == set()
