"""What members do with their queues: each flaw made for real, and found."""

from __future__ import annotations

import pytest
from tests.doctor.patients import (
    GROUP,
    TOPIC,
    causes,
    connect,
    consuming,
    examine,
    hangs,
    only,
    queue,
    send,
    shop,
)
from tests.support.asking import lock
from tests.support.stage import in_virtual_time

from penstock import MessageQueue, aio
from penstock.client.consuming.assignment import Configured
from penstock.doctor import Severity


@in_virtual_time
async def test_a_paused_member_is_reported_with_what_it_keeps() -> None:
    async with shop() as mq, consuming(mq) as consumer:
        await consumer.pause()
        # Pulls that were under way end first.
        await mq.clock.advance("30s")
        await send(mq, 2)
        await mq.clock.advance("30s")
        report = await examine(mq)
        found = only(report, "paused")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["member"] == consumer.client_id
        assert report.facts.lag == 2
        await consumer.resume()
        await mq.clock.advance("30s")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_paused_queue_is_reported() -> None:
    async with (
        shop() as mq,
        aio.PullConsumer(GROUP, namesrv=mq.namesrv, start_from="first") as consumer,
    ):
        await consumer.subscribe(TOPIC)
        await mq.clock.advance("1m")
        await consumer.pause(queue(1))
        found = only(await examine(mq), "paused")
        assert found.evidence["queues"] == [str(queue(1))]
        await consumer.resume(queue(1))
        assert causes(await examine(mq)) == []


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_handler_that_does_not_return_is_reported_with_its_message(orderly: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        async with shop(queues=1) as mq, consuming(mq, hangs, orderly=orderly) as consumer:
            await send(mq, 1)
            await mq.clock.advance("30s")
            # It may just take its time.
            assert causes(await examine(mq)) == []
            await mq.clock.advance("90s")
            found = only(await examine(mq), "stuck-handler")
            # In order it holds up everything behind it.
            assert found.severity is (Severity.CRITICAL if orderly else Severity.WARNING)
            assert found.evidence["member"] == consumer.client_id
            assert (found.evidence["queue"], found.evidence["offset"]) == (str(queue(0)), 0)
            running = found.evidence["running_seconds"]
            assert isinstance(running, float)
            assert 115 < running < 125
            message = await mq.admin.message(str(found.evidence["msg_id"]), topic=TOPIC)
            assert message.queue_offset == 0

    run()


@in_virtual_time
async def test_a_handler_past_its_timeout_is_critical() -> None:
    async with (
        shop(queues=1) as mq,
        consuming(mq, hangs, consume_timeout="2m", max_retries=0),
    ):
        await send(mq, 1)
        await mq.clock.advance("150s")
        report = await examine(mq)
        found = next(f for f in report.findings if f.cause == "stuck-handler")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["consume_timeout_seconds"] == 120.0


@in_virtual_time
async def test_a_member_that_cannot_take_more_is_reported_with_its_limit() -> None:
    async with (
        shop(queues=1) as mq,
        consuming(mq, hangs, queue_limit=2, pull_batch_size=4) as consumer,
    ):
        await send(mq, 12)
        await mq.clock.advance("30s")
        report = await examine(mq)
        found = only(report, "flow-control")
        assert found.evidence["member"] == consumer.client_id
        assert found.evidence["limit"] == "count"
        assert found.evidence["count_limit"] == 2
        cached, stops = found.evidence["cached"], found.evidence["stops"]
        assert isinstance(cached, int)
        assert isinstance(stops, dict)
        assert cached > 2
        assert stops["count"] > 10
        assert report.facts.lag == 12


@in_virtual_time
async def test_a_span_that_a_stuck_message_holds_open_is_reported() -> None:
    stuck: list[int] = []

    async def first_hangs(message: aio.StoredMessage) -> None:
        if message.queue_offset == 0:
            stuck.append(0)
            await hangs(message)

    async with (
        shop(queues=1) as mq,
        consuming(mq, first_hangs, max_span=5, pull_batch_size=4),
    ):
        await send(mq, 40)
        await mq.clock.advance("30s")
        found = only(await examine(mq), "flow-control")
        assert stuck == [0]
        assert found.evidence["limit"] == "span"


@in_virtual_time
async def test_a_lock_that_a_client_left_behind_is_reported_with_its_name() -> None:
    async with shop() as mq, await connect(mq) as wire:
        await lock(wire, GROUP, "10.9.9.9@ghost", [queue(0)])
        consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv, orderly=True, start_from="first")
        consumer.on(TOPIC)(hangs)
        async with consumer:
            await mq.clock.advance("40s")
            found = only(await examine(mq), "lock-held-elsewhere")
            assert found.severity is Severity.CRITICAL
            assert found.evidence == {
                "member": consumer.client_id,
                "queue": str(queue(0)),
                "holder": "10.9.9.9@ghost",
                "holder_is_member": False,
            }
            assert "not connected any more" in found.what
            await mq.clock.advance("60s")
            assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_lock_that_another_member_holds_is_reported_with_its_name() -> None:
    async with shop() as mq, consuming(mq, orderly=True) as first:
        assert causes(await examine(mq)) == []
        everything = Configured([queue(0), queue(1)])
        # It shares queues in a way of its own, and claims those of the first one.
        async with consuming(mq, orderly=True, allocation=everything) as second:
            report = await examine(mq)
            locks = [f for f in report.findings if f.cause == "lock-held-elsewhere"]
            assert locks
            for found in locks:
                assert found.evidence["holder_is_member"]
                assert found.evidence["member"] != found.evidence["holder"]
                assert {found.evidence["member"], found.evidence["holder"]} == {
                    first.client_id,
                    second.client_id,
                }


@in_virtual_time
async def test_a_queue_without_a_member_is_reported() -> None:
    async with shop(queues=3) as mq:
        only_first = Configured([queue(0)])
        async with consuming(mq, allocation=only_first):
            await send(mq, 6)
            await mq.clock.advance("30s")
            found = only(await examine(mq), "queue-without-member")
            assert found.evidence["queues"] == [str(queue(1)), str(queue(2))]
            assert found.evidence["lag"] == 4


@in_virtual_time
async def test_a_queue_that_two_members_take_is_reported() -> None:
    everything = Configured([queue(0), queue(1)])
    async with (
        shop() as mq,
        consuming(mq, allocation=everything) as one,
        consuming(mq, allocation=everything) as other,
    ):
        report = await examine(mq)
        assert causes(report) == ["queue-with-two-members"] * 2
        assert report.findings[0].evidence["members"] == sorted([one.client_id, other.client_id])


@in_virtual_time
async def test_a_member_that_just_came_is_given_time() -> None:
    async with shop(queues=3) as mq:
        consumer = aio.PushConsumer(
            GROUP, namesrv=mq.namesrv, allocation=Configured([MessageQueue(TOPIC, "broker-a", 0)])
        )
        consumer.on(TOPIC)(hangs)
        async with consumer:
            await mq.clock.advance("5s")
            assert causes(await examine(mq)) == []
