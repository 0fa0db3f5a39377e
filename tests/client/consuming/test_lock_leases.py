"""Queue locks bound to the connection: a dead member is replaced within seconds, in order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.simulation.dying import lose_host
from tests.support.loop_clients import Bench, loop_consumer, loop_producer, loop_session, on_bench

from penstock.client.consuming.orderly import LEASE
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.settings import StartFrom
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.protocol.codes import RequestCode
from penstock.protocol.extensions import LOCK_LEASE
from penstock.testing.hosts.cluster import EmbeddedCluster
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

GROUP = "billing"
QUEUE = MessageQueue("orders", "broker-a", 0)
FIRST = StartFrom("first")
LOCK = RequestCode.LOCK_BATCH_MQ
OLD, NEW = "10.0.9.1", "10.0.9.2"


class Members:
    """Two members of an orderly group with one queue, each on a host of its own."""

    def __init__(self, loop: VirtualLoop, cluster: EmbeddedCluster, seconds: float) -> None:
        self.loop = loop
        self.seconds = seconds
        self.calls: list[tuple[str, int, float, float]] = []
        self.cluster = cluster
        self.consumers: dict[str, PushConsumerCore] = {}

    async def start(self, host: str) -> None:
        async def handle(message: StoredMessage) -> None:
            begun = self.loop.time()
            await asyncio.sleep(self.seconds)
            if message.queue == QUEUE:
                self.calls.append((host, message.queue_offset, begun, self.loop.time()))

        with self.loop.network.host(host):
            session = loop_session(self.cluster.nameserver_address, self.loop.clock, host)
            consumer = loop_consumer(
                session, GROUP, {"orders": handle}, orderly=True, start_from=FIRST
            )
            await consumer.start()
        self.consumers[host] = consumer

    async def end(self) -> None:
        for consumer in self.consumers.values():
            consumer.hurry()
            await consumer.stop(0.0)
            await consumer.session.stop()


def with_members(
    seconds: float,
) -> Callable[[Callable[[Members], Awaitable[None]]], Callable[[Path], None]]:
    """Run ``async def test(members)``: a message each 0.25 s, a handler that takes ``seconds``."""

    def decorate(test: Callable[[Members], Awaitable[None]]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main(loop: VirtualLoop) -> None:
                async with EmbeddedCluster(
                    tmp_path, brokers=1, clock=loop.clock, is_temporary=True
                ) as town:
                    producer = loop_producer(loop_session(town.nameserver_address, loop.clock), "p")
                    members = Members(loop, town, seconds)
                    await producer.deliver(Message("orders", b"x"))

                    async def send() -> None:
                        while True:
                            await producer.deliver(Message("orders", b"x"), queue=QUEUE)
                            await asyncio.sleep(0.25)

                    sending = loop.create_task(send())
                    try:
                        await test(members)
                    finally:
                        sending.cancel()
                        await members.end()
                        await producer.stop()
                        await producer.session.stop()

            run_virtual(main)

        run.__name__ = test.__name__
        return run

    return decorate


async def takeover(members: Members, hurt: Callable[[], None]) -> float:
    """Have the second member take the queue over from the first; how long it took."""
    await members.start(OLD)
    await asyncio.sleep(5)
    hurt()
    hurt_at = members.loop.time()
    await members.start(NEW)
    while not any(host == NEW for host, *_ in members.calls):
        assert members.loop.time() - hurt_at < 120
        await asyncio.sleep(0.1)
    await asyncio.sleep(10)
    first = next(begun for host, _, begun, _ in members.calls if host == NEW)
    by_begin = sorted((begun, ended) for _, _, begun, ended in members.calls)
    for (_, ended), (begun, _) in itertools.pairwise(by_begin):
        assert begun >= ended, "two handlers ran at once"
    return first - hurt_at


@pytest.mark.parametrize("seconds", [0.05, 2.0, 4.5])
def test_a_member_that_is_cut_off_is_replaced_within_seconds_after_its_last_call(
    tmp_path: Path, seconds: float
) -> None:
    """It lives and goes on as long as it may; a dead one looks the same to the others."""

    @with_members(seconds)
    async def run(members: Members) -> None:
        def cut_off() -> None:
            lose_host(members.loop.network, OLD, silent=False)
            members.loop.network.isolate(OLD)

        assert LEASE / 2 < await takeover(members, cut_off) < LEASE + 5

    run(tmp_path)


def test_a_lost_connection_that_comes_back_keeps_its_locks(tmp_path: Path) -> None:
    @with_members(0.05)
    async def run(members: Members) -> None:
        await members.start(OLD)
        await asyncio.sleep(5)
        await members.start(NEW)
        for _ in range(5):
            lose_host(members.loop.network, OLD, silent=False)
            await asyncio.sleep(7)
        ours = [offset for host, offset, *_ in members.calls]
        assert ours == sorted(set(ours)), "each message once, in order"

    run(tmp_path)


@on_bench(topics={"T": 1})
async def test_a_broker_that_binds_locks_gets_four_renewals_in_a_lease(bench: Bench) -> None:
    lock = bench.broker._handlers[LOCK]

    def bound(peer: object, request: object) -> object:
        answer = lock(peer, request)  # type: ignore[arg-type]
        answer.ext = {LOCK_LEASE: "10000"}  # type: ignore[union-attr]
        return answer

    bench.broker.script[LOCK] = bound  # type: ignore[assignment]
    consumer = await bench.consumer(lambda message: None, orderly=True)
    await asyncio.sleep(5)
    bench.broker.forget()
    await asyncio.sleep(20)
    asked = bench.broker.asked(LOCK)
    assert len(asked) == 8
    assert {request.ext[LOCK_LEASE] for request in asked} == {"10000"}
    (held,) = (one for queue, one in consumer.state.queues.items() if queue.topic == "T")
    assert held.lock_life == 5.0
    del bench.broker.script[LOCK]
    await asyncio.sleep(5)
    bench.broker.forget()
    await asyncio.sleep(40)
    assert len(bench.broker.asked(LOCK)) == 2, "RocketMQ's interval"
    assert held.lock_life == 30.0


@on_bench(topics={"T": 1})
async def test_refused_locks_are_logged_now_and_then(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.broker.locks[GROUP, MessageQueue("T", "broker-a", 0)] = "another"
    await bench.consumer(lambda message: None, orderly=True)
    await asyncio.sleep(60)
    assert 4 <= caplog.text.count("lock refused") <= 8
