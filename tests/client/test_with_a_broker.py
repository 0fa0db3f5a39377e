"""Clients and brokers of our own together, in virtual time: retries, dead letters, locks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.loop_clients import loop_consumer, loop_producer, loop_session

from penstock.client.consuming.outcomes import DeadLetter, RetryLater
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.producing import request_reply
from penstock.client.producing.producer import ProducerCore
from penstock.client.session.client_session import ClientSession
from penstock.client.settings import StartFrom
from penstock.model import Message, StoredMessage
from penstock.model.names import Failure
from penstock.testing.hosts.cluster import EmbeddedCluster
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

GROUP = "billing"
FIRST = StartFrom("first")


class Town:
    """An embedded cluster and the clients that live around it."""

    def __init__(self, loop: VirtualLoop, cluster: EmbeddedCluster) -> None:
        self.loop = loop
        self.cluster = cluster
        self._sessions: list[ClientSession] = []

    def session(self, name: str) -> ClientSession:
        session = loop_session(
            self.cluster.nameserver_address, self.loop.clock, name, seed=self.loop.seed
        )
        self._sessions.append(session)
        return session

    def producer(self) -> ProducerCore:
        return loop_producer(self.session("producer"), "shop")

    async def consumer(
        self,
        handler: Callable[..., object],
        name: str = "c1",
        group: str = GROUP,
        **settings: Any,
    ) -> PushConsumerCore:
        chosen: dict[str, Any] = {"start_from": FIRST, **settings}
        consumer = loop_consumer(self.session(name), group, {"orders": handler}, **chosen)
        await consumer.start()
        return consumer

    async def end(self) -> None:
        for session in self._sessions:
            for consumer in list(session.consumers.values()):
                assert isinstance(consumer, PushConsumerCore)
                consumer.hurry()
                await consumer.stop(0.0)
            await session.stop()


def in_town(
    *, brokers: int = 1
) -> Callable[[Callable[[Town], Awaitable[None]]], Callable[[Path], None]]:
    """Run ``async def test(town)`` in virtual time against ``brokers`` of our own."""

    def decorate(test: Callable[[Town], Awaitable[None]]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main(loop: VirtualLoop) -> None:
                cluster = EmbeddedCluster(
                    tmp_path, brokers=brokers, clock=loop.clock, is_temporary=True
                )
                async with cluster:
                    town = Town(loop, cluster)
                    try:
                        await test(town)
                    finally:
                        await town.end()

            run_virtual(main)

        # The signature stays that of run: pytest would look for a fixture called town.
        run.__name__ = test.__name__
        return run

    return decorate


async def dead_letters(town: Town, group: str = GROUP) -> list[StoredMessage]:
    """What ended up in the group's dead-letter topic."""
    found: list[StoredMessage] = []
    topic = f"%DLQ%{group}"
    consumer = loop_consumer(
        town.session("undertaker"), "undertaker", {topic: found.append}, start_from=FIRST
    )
    await consumer.start()
    await asyncio.sleep(5)
    await consumer.stop()
    return found


@pytest.mark.spec("S97", "S114", "S115", "S119", "S70")
@in_town()
async def test_a_failing_message_comes_again_after_ten_then_thirty_seconds(town: Town) -> None:
    attempts: list[tuple[float, int, str]] = []

    def handler(message: StoredMessage) -> None:
        attempts.append((town.loop.time(), message.reconsume_times, message.topic))
        origins.add(message.properties.get("ORIGIN_MESSAGE_ID"))
        if len(attempts) < 4:
            raise ValueError("not yet")

    origins: set[str | None] = set()
    producer = town.producer()
    receipt = await producer.deliver(Message("orders", b"x"))
    await town.consumer(handler)
    await asyncio.sleep(200)
    assert [times for _, times, _ in attempts] == [0, 1, 2, 3]
    assert {topic for *_, topic in attempts} == {"orders"}
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(attempts)]
    assert gaps == pytest.approx([10, 30, 60], abs=1.0)
    assert origins == {None, receipt.offset_msg_id}


@pytest.mark.spec("S98", "S111", "S112", "S143")
@in_town()
async def test_after_its_retries_a_message_is_a_dead_letter_with_the_last_reason(
    town: Town,
) -> None:
    attempts: list[int] = []

    def handler(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        raise RetryLater(1, f"attempt {len(attempts)}")

    await town.producer().deliver(Message("orders", b"x", keys=["o-1"]))
    await town.consumer(handler, max_retries=2)
    await asyncio.sleep(30)
    assert attempts == [0, 1, 2]
    (dead,) = await dead_letters(town)
    assert dead.body == b"x"
    assert dead.keys == ("o-1",)
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert dead.properties[Failure.MESSAGE] == "attempt 3"
    assert dead.properties[Failure.ATTEMPT] == "3"
    assert dead.properties[Failure.HOST] == "127.0.0.1@c1"
    assert dead.reconsume_times == 3


@pytest.mark.spec("S96")
@in_town()
async def test_a_handler_sends_a_message_to_the_dead_letters_at_once(town: Town) -> None:
    attempts: list[int] = []

    def handler(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        raise DeadLetter("not JSON")

    await town.producer().deliver(Message("orders", b"{"))
    await town.consumer(handler)
    await asyncio.sleep(60)
    assert attempts == [0]
    (dead,) = await dead_letters(town)
    assert dead.properties[Failure.MESSAGE] == "not JSON"


@pytest.mark.spec("S143")
@in_town()
async def test_an_orderly_message_that_failed_too_often_is_a_dead_letter_and_the_next_one_comes(
    town: Town,
) -> None:
    seen: list[bytes] = []

    def handler(message: StoredMessage) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("broken")

    producer = town.producer()
    (queue, *_) = await producer.queues("orders")
    for body in (b"bad", b"good"):
        await producer.deliver(Message("orders", body), queue=queue)
    await town.consumer(handler, orderly=True, max_retries=2)
    await asyncio.sleep(30)
    assert seen == [b"bad", b"bad", b"bad", b"good"]
    (dead,) = await dead_letters(town)
    assert (dead.body, dead.properties[Failure.MESSAGE]) == (b"bad", "broken")


@pytest.mark.spec("S127")
@in_town()
async def test_two_groups_consume_the_same_queues_in_order_at_the_same_time(town: Town) -> None:
    seen: dict[str, list[int]] = {"one": [], "two": []}
    producer = town.producer()
    (queue, *_) = await producer.queues("orders")
    for number in range(20):
        await producer.deliver(Message("orders", b"%d" % number), queue=queue)
    for group, offsets in seen.items():
        await town.consumer(
            lambda message, offsets=offsets: offsets.append(message.queue_offset),
            name=group,
            group=group,
            orderly=True,
        )
    await asyncio.sleep(10)
    assert seen == {"one": list(range(20)), "two": list(range(20))}


@pytest.mark.spec("S2", "S3", "S18")
@in_town(brokers=2)
async def test_members_that_join_and_leave_lose_nothing(town: Town) -> None:
    seen: list[bytes] = []
    producer = town.producer()

    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(0.05)
        seen.append(message.body)

    async def keep_sending() -> None:
        for number in range(600):
            await producer.deliver(Message("orders", b"%d" % number))
            await asyncio.sleep(0.05)

    sending = asyncio.ensure_future(keep_sending())
    first = await town.consumer(handler, "c1")
    await asyncio.sleep(8)
    second = await town.consumer(handler, "c2")
    await asyncio.sleep(5)
    assert first.assignment()
    assert second.assignment()
    assert not first.assignment() & second.assignment()
    everything = first.assignment() | second.assignment()
    await first.stop()
    await asyncio.sleep(3)
    assert second.assignment() == everything, "within seconds, not with the next round"
    await sending
    await asyncio.sleep(20)
    assert set(seen) == {b"%d" % number for number in range(600)}
    # Draining on the way out: only what a queue's move itself repeats comes twice.
    assert len(seen) < 600 * 1.2


@in_town()
async def test_what_a_stopped_consumer_finished_is_never_seen_again(town: Town) -> None:
    seen: list[bytes] = []

    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(0.5)
        seen.append(message.body)

    producer = town.producer()
    for number in range(50):
        await producer.deliver(Message("orders", b"%d" % number))
    for name in ("c1", "c2", "c3", "c4"):
        consumer = await town.consumer(handler, name, threads=8)
        await asyncio.sleep(1.7)
        assert await consumer.stop() == []
    await town.consumer(handler, "c5")
    await asyncio.sleep(10)
    assert sorted(seen) == sorted(b"%d" % number for number in range(50))


@in_town()
async def test_a_request_is_answered_by_its_consumer(town: Town) -> None:
    answering = town.producer()

    async def handler(message: StoredMessage) -> None:
        await request_reply.reply(answering, message, message.body.upper())

    await town.consumer(handler, start_from=StartFrom("last"))
    asking = loop_producer(town.session("asker"), "askers")
    await asyncio.sleep(2)
    reply = await request_reply.request(asking, Message("orders", b"hello"), 10.0)
    assert reply.body == b"HELLO"


@in_town()
async def test_a_delayed_message_comes_when_it_is_due(town: Town) -> None:
    seen: list[float] = []
    await town.consumer(lambda message: seen.append(town.loop.time()))
    sent = town.loop.time()
    await town.producer().deliver(Message("orders", b"x", delay="30m"))
    await asyncio.sleep(29 * 60)
    assert seen == []
    await asyncio.sleep(2 * 60)
    assert seen[0] - sent == pytest.approx(30 * 60, abs=2)


@in_town()
async def test_only_messages_that_pass_the_filter_arrive(town: Town) -> None:
    tagged: list[bytes] = []
    producer = town.producer()
    for body, tag in ((b"1", "created"), (b"2", "paid"), (b"3", "lost"), (b"4", None)):
        await producer.deliver(Message("orders", body, tag=tag))
    session = town.session("filter")
    consumer = loop_consumer(
        session,
        "filtered",
        {"orders": lambda message: tagged.append(message.body)},
        tags="created || paid",
        start_from=FIRST,
    )
    await consumer.start()
    await asyncio.sleep(5)
    assert sorted(tagged) == [b"1", b"2"]
