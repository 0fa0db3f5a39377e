"""When messages are delivered, recall, and repeats after a lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.loop_clients import loop_producer, loop_session
from tests.support.stage import Stage

from penstock.broker import Broker
from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.timers import delivery_time
from penstock.errors import IllegalMessage, IllegalOperation, InvalidArgument
from penstock.model import Message, MessageQueue
from penstock.model.properties import parse_properties
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual
from penstock.testing.virtual_time.network import Conditions

OLD, NEW, UNKNOWN = 399, 479, 0
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def sent(version: int, **fields: Any) -> dict[str, str]:
    time = delivery_time(Message("T", b"x", **fields))
    return {} if time is None else parse_properties(time.properties(version, "broker-a"))


@pytest.mark.parametrize(
    ("fields", "timer"),
    [
        ({"delay": "7m30s"}, {"TIMER_DELAY_MS": "450000"}),
        ({"delay": timedelta(hours=30)}, {"TIMER_DELAY_MS": "108000000"}),
        ({"deliver_at": NOON}, {"TIMER_DELIVER_MS": "1767355200000"}),
        ({"deliver_at": 1767355200.25}, {"TIMER_DELIVER_MS": "1767355200250"}),
        ({"delay": "0s"}, {}),
        ({"delay": 3}, {}),
    ],
)
def test_a_time_becomes_a_timer_where_brokers_have_them(
    fields: dict[str, Any], timer: dict[str, str]
) -> None:
    assert sent(NEW, **fields) == sent(UNKNOWN, **fields) == timer


def test_a_delay_of_a_level_is_a_timer_only_where_brokers_are_known_to_have_them() -> None:
    assert sent(NEW, delay="10s") == {"TIMER_DELAY_MS": "10000"}
    # A broker without timers would deliver it at once.
    assert sent(UNKNOWN, delay="10s") == {"DELAY": "3"}


def test_old_brokers_get_the_level_that_is_exactly_the_same() -> None:
    assert sent(OLD, delay="10s") == {"DELAY": "3"}
    assert sent(OLD, delay=timedelta(hours=2)) == {"DELAY": "18"}
    for fields in ({"delay": "11s"}, {"deliver_at": NOON}):
        with pytest.raises(IllegalMessage, match="'broker-a', which has no timers") as refused:
            sent(OLD, **fields)
        assert "1s, 5s, 10s" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"delay": "soon"}, "delay 'soon'"),
        ({"delay": "10"}, "delay '10'"),
        ({"delay": timedelta(seconds=-1)}, "delay datetime.timedelta"),
        ({"deliver_at": datetime(2026, 1, 2)}, "has no time zone"),  # noqa: DTZ001
        ({"deliver_at": "tomorrow"}, "of type str"),
        ({"deliver_at": True}, "of type bool"),
        ({"deliver_at": 1767355200250}, "milliseconds"),
        ({"deliver_at": float("nan")}, "deliver_at nan"),
        ({"delay": "1s", "deliver_at": NOON}, "one of both"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sent(NEW, **fields)
    assert said in str(refused.value)


class Shop:
    """A producer, and the brokers it sends to."""

    def __init__(self, loop: VirtualLoop, brokers: list[Broker], core: ProducerCore) -> None:
        self.loop = loop
        self.core = core
        self._brokers = brokers

    def stored(self, topic: str) -> int:
        """How many messages all brokers have of a topic."""
        return sum(
            broker.state.storage.max_offset(topic, queue)
            for broker in self._brokers
            for queue in range(8)
        )


def in_shop(
    *, brokers: int = 1, **settings: Any
) -> Callable[[Callable[[Shop], Awaitable[None]]], Callable[[Path], None]]:
    """Run ``async def test(shop)`` in virtual time against ``brokers`` of our own."""

    def decorate(test: Callable[[Shop], Awaitable[None]]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main(loop: VirtualLoop) -> None:
                async with Stage(tmp_path) as stage:
                    server = await stage.name_server()
                    started = [
                        await stage.broker(name, recall_message_enable=True)
                        for name in ("broker-a", "broker-b")[:brokers]
                    ]
                    session = loop_session(server.address, loop.clock, "shop")
                    try:
                        await test(Shop(loop, started, loop_producer(session, "shop", **settings)))
                    finally:
                        await session.stop()

            run_virtual(main)

        # The signature stays that of run: pytest would look for a fixture called shop.
        run.__name__ = test.__name__
        return run

    return decorate


@in_shop()
async def test_a_timer_message_arrives_in_time_and_can_be_recalled(shop: Shop) -> None:
    clock = shop.loop.clock
    begun = clock.time()
    kept = await shop.core.deliver(Message("T", b"kept", delay="7m30s"))
    taken = await shop.core.deliver(Message("T", b"taken", deliver_at=begun + 400))
    assert kept.recall_handle
    assert taken.recall_handle
    assert (await shop.core.deliver(Message("T", b"plain"))).recall_handle is None
    assert await shop.core.recall("T", taken.recall_handle) == taken.msg_id
    await clock.sleep(449)
    assert shop.stored("T") == 1
    await clock.sleep(3)
    assert shop.stored("T") == 2
    with pytest.raises(IllegalOperation):
        await shop.core.recall("T", kept.recall_handle)
    with pytest.raises(InvalidArgument, match="recall handle is invalid"):
        await shop.core.recall("T", "what")
    with pytest.raises(InvalidArgument, match="an ordinary topic"):
        await shop.core.recall("%RETRY%g", kept.recall_handle)


async def lose_the_answer(shop: Shop, send: Awaitable[Any]) -> Any:
    """Cut the connections when the request has arrived and its answer has not."""
    network = shop.loop.network
    network.set_conditions("127.0.0.1", "127.0.0.1", Conditions(latency=(0.01, 0.01)))
    task = asyncio.ensure_future(send)
    await shop.loop.clock.sleep(0.015)
    assert not task.done()
    connections = network.connections_between("127.0.0.1", "127.0.0.1")
    assert connections
    for connection in connections:
        connection.cut()
    return await task


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_send_whose_answer_is_lost_is_stored_once(tmp_path: Path, brokers: int) -> None:
    @in_shop(brokers=brokers)
    async def run(shop: Shop) -> None:
        first = await shop.core.deliver(Message("T", b"first"))
        queue = MessageQueue("T", first.queue.broker_name, 0)
        for message in (Message("T", b"a"), Message("T", b"b", delay="1h"), Message("T", b"c")):
            before = shop.stored("T") + shop.stored("rmq_sys_wheel_timer")
            receipt = await lose_the_answer(shop, shop.core.deliver(message, queue=queue))
            assert receipt.attempts > 1
            assert shop.stored("T") + shop.stored("rmq_sys_wheel_timer") == before + 1

    run(tmp_path)


@in_shop(linger=0.001)
async def test_messages_that_lingered_are_stored_once_when_their_answer_is_lost(shop: Shop) -> None:
    await shop.core.deliver(Message("T", b"first"))
    waiting = [shop.core.deliver(Message("T", b"%d" % number)) for number in range(5)]
    receipts = await lose_the_answer(shop, asyncio.gather(*waiting))
    assert all(receipt.attempts > 1 for receipt in receipts)
    assert len({receipt.queue_offset for receipt in receipts}) == 5, "they went as one batch"
    assert shop.stored("T") == 6


@in_shop()
async def test_a_batch_whose_answer_is_lost_is_stored_once(shop: Shop) -> None:
    await shop.core.deliver(Message("T", b"first"))
    batch = [Message("T", b"%d" % number) for number in range(5)]
    receipt = await lose_the_answer(shop, shop.core.send_batch(batch))
    assert receipt.attempts > 1
    assert len(receipt.offset_msg_ids) == 5
    assert shop.stored("T") == 6
