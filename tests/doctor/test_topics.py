"""Topics of a group: each flaw made for real, and found."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.patients import (
    GROUP,
    TOPIC,
    causes,
    connect,
    consuming,
    examine,
    only,
    send,
    shop,
    works,
)
from tests.support.stage import in_virtual_time

from penstock import aio
from penstock.doctor import Severity
from penstock.model.names import READ, WRITE
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import DeleteTopic


@in_virtual_time
async def test_a_topic_that_does_not_exist_is_reported() -> None:
    async with shop() as mq:
        consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv)
        consumer.on(TOPIC)(works)
        consumer.on("refnds")(works)
        async with consumer:
            await mq.clock.advance("1m")
            found = only(await examine(mq), "topic-missing")
            assert found.severity is Severity.CRITICAL
            assert found.evidence["topic"] == "refnds"
            assert found.way_out[0] == "penstock topic create refnds"
            await mq.admin.create_topic("refnds", 1)
            await mq.clock.advance("1m")
            assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_consumer_of_missing_topics_alone_has_no_connection_and_that_is_reported() -> None:
    async with shop() as mq, consuming(mq, topic="ordres"):
        found = only(await examine(mq), "group-unknown")
        assert any("whose topics do not exist" in line for line in found.way_out)


@in_virtual_time
async def test_a_route_to_a_broker_without_the_topic_is_reported() -> None:
    async with shop(brokers=2) as mq, consuming(mq):
        assert causes(await examine(mq)) == []
        async with await connect(mq, 1) as wire:
            # As mqadmin can do it: at the broker, and not at the name server.
            await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(TOPIC))
        found = only(await examine(mq), "route-stale")
        assert found.evidence == {"topic": TOPIC, "brokers": ["broker-b"]}
        assert found.way_out[0] == "penstock topic create orders --broker broker-b"


@in_virtual_time
async def test_a_topic_that_may_not_be_read_is_reported() -> None:
    async with shop() as mq, consuming(mq):
        await mq.admin.create_topic(TOPIC, 2, permission=WRITE)
        await send(mq, 2)
        await mq.clock.advance("1m")
        report = await examine(mq)
        found = only(report, "no-read-permission")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["permission"] == WRITE
        assert report.facts.lag == 2
        assert found.way_out[0] == "penstock topic create orders --queues 2 --permission rw"
        await mq.admin.create_topic(TOPIC, 2, permission=READ | WRITE)
        await mq.clock.advance("1m")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_broker_that_may_not_be_read_is_reported_as_such() -> None:
    async with shop(brokers=2) as mq, consuming(mq):
        await mq.admin.update_broker_config("broker-b", {"brokerPermission": "2"})
        await mq.clock.advance("1m")
        found = only(await examine(mq), "no-read-permission")
        # The other one can still be read.
        assert found.severity is Severity.WARNING
        assert found.evidence["brokers"] == ["broker-b"]
        assert "brokerPermission 2" in found.what


@in_virtual_time
async def test_queues_that_can_be_written_and_not_read_are_reported() -> None:
    async with shop() as mq, consuming(mq):
        await mq.admin.create_topic(TOPIC, 4, read_queues=2)
        await send(mq, 8)
        await mq.clock.advance("1m")
        report = await examine(mq)
        found = only(report, "queues-not-read")
        assert (found.evidence["read_queues"], found.evidence["write_queues"]) == (2, 4)
        assert found.evidence["messages"] == 4
        await mq.admin.create_topic(TOPIC, 4)
        await mq.clock.advance("1m")
        assert causes(await examine(mq)) == []


@pytest.mark.parametrize(
    "wanted",
    [{"tags": "Paid"}, {"tags": "refunded || cancelled"}, {"sql": "amount > 100"}],
    ids=["spelling", "other tags", "sql"],
)
def test_a_filter_that_no_message_passes_is_reported_with_the_tags_there_are(
    wanted: dict[str, Any],
) -> None:
    @in_virtual_time
    async def run() -> None:
        async with shop() as mq, consuming(mq, **wanted):
            await send(mq, 6, tag="paid", properties={"amount": "7"})
            await send(mq, 2)
            await mq.clock.advance("30s")
            found = only(await examine(mq), "filter-matches-nothing")
            assert found.evidence["sampled"] == 8
            assert found.evidence["tags"] == {"paid": 6, "(no tag)": 2}
            assert found.evidence["filter"] in wanted.values()

    run()


@in_virtual_time
async def test_a_filter_that_one_message_passes_is_fine() -> None:
    async with shop() as mq, consuming(mq, tags="refunded"):
        await send(mq, 6, tag="paid")
        await send(mq, 1, tag="refunded")
        await mq.clock.advance("30s")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_only_recent_messages_are_looked_at() -> None:
    async with shop(queues=1) as mq, consuming(mq, tags="refunded"):
        await send(mq, 1, tag="refunded")
        await send(mq, 40, tag="paid")
        await mq.clock.advance("30s")
        found = only(await examine(mq), "filter-matches-nothing")
        assert found.evidence["sampled"] == 32


@in_virtual_time
async def test_messages_that_may_not_be_read_are_not_known_to_match() -> None:
    async with shop() as mq, consuming(mq, tags="refunded"):
        await send(mq, 4, tag="paid")
        await mq.admin.create_topic(TOPIC, 2, permission=WRITE)
        await mq.clock.advance("1m")
        report = await examine(mq)
        assert causes(report) == ["no-read-permission"]
        assert any("whether filters match in topic orders" in text for text in report.unknown)
