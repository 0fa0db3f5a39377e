"""Embedded clusters in virtual time, from coroutines: on a real loop, and on the virtual one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock import StoredMessage, aio
from penstock.aio import Message, RetryLater
from penstock.errors import LifecycleError
from penstock.testing.embedded import AsyncEmbedded, embedded
from penstock.testing.eventually import eventually
from penstock.testing.hosts import virtual_host
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

Scenario = Callable[[AsyncEmbedded], Awaitable[None]]


async def within(scenario: Scenario) -> None:
    async with aio.embedded(clock="virtual") as mq:
        await scenario(mq)


def on_a_real_loop(scenario: Scenario) -> None:
    asyncio.run(within(scenario))


def on_the_virtual_loop(scenario: Scenario) -> None:
    run_virtual(within(scenario))


both = pytest.mark.parametrize("run", [on_a_real_loop, on_the_virtual_loop])


@both
def test_a_message_goes_from_a_producer_to_a_coroutine(run: Callable[[Scenario], None]) -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        got: list[bytes] = []
        loops: set[asyncio.AbstractEventLoop] = set()
        consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        async def bill(message: StoredMessage) -> None:
            await asyncio.sleep(0)
            loops.add(asyncio.get_running_loop())
            got.append(message.body)

        await mq.admin.create_topic("orders", 2)
        async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
            await mq.clock.advance("30s")
            assert len(set(got)) == 20
        assert loops == {asyncio.get_running_loop()}

    run(scenario)


@both
def test_a_retry_after_an_hour_comes_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        attempts: list[int] = []
        consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        async def bill(message: StoredMessage) -> None:
            attempts.append(message.reconsume_times)
            if not message.reconsume_times:
                raise RetryLater("1h")

        await mq.admin.create_topic("orders", 1)
        async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await mq.clock.advance("59m")
            assert attempts == [0]
            await mq.clock.advance("2m")
            assert attempts == [0, 1]

    run(scenario)


@both
def test_plain_handlers_work_as_well(run: Callable[[Scenario], None]) -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        got: list[bytes] = []
        consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        def bill(message: StoredMessage) -> None:
            got.append(message.body)

        await mq.admin.create_topic("orders", 1)
        async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await mq.clock.advance("5s")
        assert got == [b"1"]

    run(scenario)


@both
@pytest.mark.parametrize("linger", [0, 0.02])
def test_a_handler_may_send_and_await_the_receipt(
    run: Callable[[Scenario], None], linger: float
) -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        seen: list[str] = []
        await mq.admin.create_topic("orders", 1)
        await mq.admin.create_topic("bills", 1)
        consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")
        async with aio.Producer("shop", namesrv=mq.namesrv, linger=linger) as producer:

            @consumer.on("orders")
            async def bill(message: StoredMessage) -> None:
                receipt = await producer.send(Message("bills", message.body))
                seen.append(receipt.queue.topic)
                seen.extend(await mq.admin.topics())

            await producer.send(Message("orders", b"1"))
            async with consumer:
                await mq.clock.advance("5s")
                assert seen == ["bills", "bills", "orders"]

    run(scenario)


@both
def test_submitted_sends_and_polls_end(run: Callable[[Scenario], None]) -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        await mq.admin.create_topic("orders", 1)
        async with aio.Producer("shop", namesrv=mq.namesrv, linger=0.02) as producer:
            futures = [await producer.submit(Message("orders", b"x")) for _ in range(5)]
            assert [(await future).queue_offset for future in futures] == [0, 1, 2, 3, 4]
        async with aio.PullConsumer("g", namesrv=mq.namesrv, start_from="first") as consumer:
            await consumer.subscribe("orders")
            assert len(await consumer.poll("1m")) == 5
            before = mq.clock.time()
            assert await consumer.poll("1h") == []
            assert mq.clock.time() - before == pytest.approx(3600, abs=1)

    run(scenario)


def test_virtual_time_waits_for_handlers_on_a_real_loop() -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        took: list[float] = []
        consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        async def bill(message: StoredMessage) -> None:
            before = mq.clock.time()
            for _ in range(50):
                await asyncio.sleep(0.001)
            took.append(mq.clock.time() - before)

        await mq.admin.create_topic("orders", 1)
        async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await mq.clock.advance("10m")
        assert took == [0.0]

    on_a_real_loop(scenario)


def test_a_handler_that_holds_the_time_for_long_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_host, "PATIENCE_SECONDS", 0.05)

    async def scenario(mq: AsyncEmbedded) -> None:
        consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

        @consumer.on("orders")
        async def bill(message: StoredMessage) -> None:
            await eventually(lambda: "virtual time stands still" in caplog.text)

        await mq.admin.create_topic("orders", 1)
        async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await mq.clock.advance("5s")

    with caplog.at_level(logging.WARNING):
        on_a_real_loop(scenario)
    assert "orders@broker-a:0@0" in caplog.text


def test_a_call_that_is_cancelled_leaves_the_cluster_usable() -> None:
    async def scenario(mq: AsyncEmbedded) -> None:
        async with aio.PullConsumer("g", namesrv=mq.namesrv) as consumer:
            await consumer.subscribe("orders")
            polling = asyncio.ensure_future(consumer.poll(10**9))
            await asyncio.sleep(0.05)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert await mq.admin.topics() == []

    on_a_real_loop(scenario)


def test_a_blocking_advance_on_the_loop_of_the_handlers_is_refused() -> None:
    async def main() -> None:
        with embedded(clock="virtual") as mq:
            consumer = aio.PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

            @consumer.on("orders")
            async def bill(message: StoredMessage) -> None:
                pass

            async with consumer, aio.Producer("shop", namesrv=mq.namesrv) as producer:
                mq.clock.advance("1s")
                await producer.send(Message("orders", b"1"))
                await asyncio.to_thread(mq.clock.advance, "60s")
                with pytest.raises(LifecycleError, match="penstock_aio"):
                    mq.clock.advance("1s")

    asyncio.run(main())


def test_on_the_virtual_loop_everything_is_in_one_thread() -> None:
    async def main(loop: VirtualLoop) -> None:
        threads = threading.enumerate()
        async with aio.embedded(clock=loop.clock) as mq:
            assert threading.enumerate() == threads
            before = loop.time()
            await mq.admin.create_topic("orders", 1)
            await mq.clock.advance("1h")
            assert loop.time() - before >= 3600
            await asyncio.sleep(3600)
            assert loop.time() - before >= 7200

    run_virtual(main)


def test_real_sockets_are_refused_on_a_virtual_loop() -> None:
    async def main() -> None:
        with pytest.raises(LifecycleError, match="clock='virtual'"):
            await aio.embedded().__aenter__()
        other = VirtualLoop()
        with pytest.raises(LifecycleError, match="another virtual loop"):
            await aio.embedded(clock=other.clock).__aenter__()
        other.close()

    run_virtual(main())


def test_a_cluster_is_started_once() -> None:
    async def main() -> None:
        mq = aio.embedded(clock="virtual")
        async with mq:
            with pytest.raises(LifecycleError, match="started twice"):
                await mq.__aenter__()
            assert mq.data.is_dir()
        with pytest.raises(LifecycleError, match="not running"):
            _ = mq.namesrv

    asyncio.run(main())
