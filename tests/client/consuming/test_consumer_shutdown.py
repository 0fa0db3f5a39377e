"""Stopping a push consumer: by whom, how often, and what is done when it returns."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.scripted import ThreadedCluster

from penstock import Message, Producer, PushConsumer, StoredMessage, aio, embedded
from penstock.protocol.codes import RequestCode
from penstock.testing.eventually import eventually

FAR = 600.0
"""Seconds that no test waits for."""


def left_in_order(cluster: ThreadedCluster) -> bool:
    """Whether the first message is committed and the consumer gone."""
    return cluster.broker.offsets.get(("billing", "T", 0)) == 1 and bool(
        cluster.broker.asked(RequestCode.UNREGISTER_CLIENT, consumerGroup="billing")
    )


def consumer_of(cluster: ThreadedCluster, kind: str) -> PushConsumer:
    """One whose handler stops it after its first message."""
    consumer = PushConsumer(
        group="billing", namesrv=cluster.namesrv, start_from="first", orderly="orderly" in kind
    )
    if "coroutine" in kind:

        @consumer.on("T")
        async def stop_async(message: StoredMessage) -> None:
            await asyncio.sleep(0)
            consumer.stop(FAR)
            await asyncio.sleep(0)

    else:

        @consumer.on("T")
        def stop(message: StoredMessage) -> None:
            consumer.stop(FAR)

    return consumer


kinds = pytest.mark.parametrize(
    "kind", ["plain", "coroutine", "orderly plain", "orderly coroutine"]
)


@kinds
def test_run_returns_when_the_stop_of_a_handler_has_finished(
    cluster: ThreadedCluster, kind: str
) -> None:
    cluster.put("T", 0, b"x")
    consumer_of(cluster, kind).run()
    assert left_in_order(cluster)


@kinds
def test_a_block_ends_when_the_stop_of_a_handler_has_finished(
    cluster: ThreadedCluster, kind: str
) -> None:
    before = threading.active_count()
    cluster.put("T", 0, b"x")
    with consumer_of(cluster, kind) as consumer:
        consumer._stop_asked.wait(10)
    assert left_in_order(cluster)
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline


def test_a_program_does_not_end_before_the_stop_of_a_handler_has(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, b"x")
    code = """
        import sys, threading
        from penstock import PushConsumer
        called = threading.Event()
        consumer = PushConsumer(group="billing", namesrv=sys.argv[1], start_from="first")
        @consumer.on("T")
        def handler(message):
            consumer.stop()
            called.set()
        consumer.start()
        called.wait()
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), cluster.namesrv], check=True, timeout=60
    )
    assert left_in_order(cluster)


def test_a_second_stop_waits_for_the_first(cluster: ThreadedCluster) -> None:
    begun, go_on = threading.Event(), threading.Event()
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    def handler(message: StoredMessage) -> None:
        begun.set()
        go_on.wait(60)

    cluster.put("T", 0, b"x")
    consumer.start()
    assert begun.wait(10)
    with ThreadPoolExecutor(2) as threads:
        stops = [threads.submit(consumer.stop, FAR) for _ in range(2)]
        assert consumer._stop_asked.wait(10)
        assert not any(stop.done() for stop in stops)
        go_on.set()
        for stop in stops:
            stop.result(10)
    assert left_in_order(cluster)
    consumer.stop()  # harmless


@kinds
async def test_awaiting_stop_in_a_handler_does_not_wait_for_itself(
    cluster: ThreadedCluster, kind: str
) -> None:
    ended: list[bytes] = []
    consumer = aio.PushConsumer(
        group="billing", namesrv=cluster.namesrv, start_from="first", orderly="orderly" in kind
    )

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        await asyncio.wait_for(consumer.stop(FAR), 60)
        await consumer.stop(FAR)
        ended.append(message.body)

    cluster.put("T", 0, b"x")
    async with asyncio.timeout(60):
        if "plain" in kind:
            await consumer.run()
        else:
            async with consumer:
                await eventually(lambda: ended)
    assert ended == [b"x"]
    assert left_in_order(cluster)


async def test_a_second_awaited_stop_waits_for_the_first(cluster: ThreadedCluster) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    consumer = aio.PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        begun.set()
        await go_on.wait()

    cluster.put("T", 0, b"x")
    await consumer.start()
    await begun.wait()
    stops = [asyncio.ensure_future(consumer.stop(FAR)) for _ in range(2)]
    await consumer._stop_asked.wait()
    assert not any(stop.done() for stop in stops)
    go_on.set()
    await asyncio.gather(*stops)
    assert left_in_order(cluster)


def test_a_handler_in_virtual_time_stops_its_consumer() -> None:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("T", queues=1)
        with Producer(group="shop", namesrv=mq.namesrv) as producer:
            for _ in range(5):
                producer.send(Message("T", b"x"))
        seen: list[int] = []
        consumer = PushConsumer(group="billing", namesrv=mq.namesrv, start_from="first", threads=1)

        @consumer.on("T")
        def handler(message: StoredMessage) -> None:
            seen.append(message.queue_offset)
            consumer.stop(FAR)

        consumer.start()
        mq.clock.advance("5s")
        consumer.stop()
        (row,) = [row for row in mq.admin.group_lag("billing") if row.topic == "T"]
        assert row.committed == len(seen) < 5


async def blocks(go_on: threading.Event) -> None:
    go_on.wait(FAR)


async def waits_for_a_thread(go_on: threading.Event) -> None:
    await asyncio.to_thread(go_on.wait, FAR)


@pytest.mark.parametrize("wait", [blocks, waits_for_a_thread])
def test_a_coroutine_handler_that_never_ends_does_not_hold_up_a_stop(
    cluster: ThreadedCluster,
    wait: Callable[[threading.Event], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        begun.set()
        await wait(go_on)

    cluster.put("T", 0, b"x")
    consumer.start()
    try:
        assert begun.wait(10)
        consumer.stop(timeout=0.1)
    finally:
        go_on.set()
    assert cluster.broker.asked(RequestCode.UNREGISTER_CLIENT, consumerGroup="billing")
    assert ("billing", "T", 0) not in cluster.broker.offsets
    assert "handler still runs, its messages are redelivered" in caplog.text
    assert "not ended in time thread=consumer 'billing' coroutines" in caplog.text


def test_a_second_interrupt_gets_past_a_coroutine_handler_that_blocks(
    cluster: ThreadedCluster,
) -> None:
    cluster.put("T", 0, b"x")
    code = """
        import sys, threading, time
        from penstock import PushConsumer
        consumer = PushConsumer(group="billing", namesrv=sys.argv[1], start_from="first")
        @consumer.on("T")
        async def handler(message):
            print("begin", flush=True)
            threading.Thread(target=tell, daemon=True).start()
            time.sleep(1000)
        def tell():
            consumer._stop_asked.wait()
            print("stopping", flush=True)
        consumer.run()
        print("left", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), cluster.namesrv],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        try:
            for line in ("begin\n", "stopping\n"):
                assert child.stdout.readline() == line
                child.send_signal(signal.SIGINT)
            assert child.stdout.read() == "left\n"
        except BaseException:
            child.kill()  # Else the end of the block waits for it.
            raise
    assert child.returncode == 0
