"""A healthy group, of every kind, has no findings; nothing about it is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.patients import GROUP, causes, consuming, examine, send, shop
from tests.support.stage import in_virtual_time

from penstock import Message, aio, doctor


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"orderly": True},
        {"tags": "paid || created"},
        {"sql": "TAGS = 'paid' AND amount > 5"},
        {"batch_size": 4},
    ],
    ids=["concurrent", "orderly", "tags", "sql", "batches"],
)
def test_a_group_that_consumes_has_no_findings(settings: dict[str, Any]) -> None:
    @in_virtual_time
    async def run() -> None:
        async with shop(brokers=2) as mq, consuming(mq, **settings):
            await send(mq, 8, tag="paid", properties={"amount": "7"})
            await mq.clock.advance("30s")
            report = await examine(mq)
            assert report.is_healthy, [finding.what for finding in report.findings]
            assert report.unknown == ()
            assert report.facts.lag == 0

    run()


@in_virtual_time
async def test_members_that_share_the_queues_have_no_findings() -> None:
    async with shop(queues=4) as mq, consuming(mq), consuming(mq):
        await send(mq, 8)
        await mq.clock.advance("30s")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_broadcasting_group_has_no_findings() -> None:
    async with (
        shop() as mq,
        consuming(mq, model="broadcasting", offsets_dir=str(mq.data / "local")),
    ):
        await send(mq, 4)
        await mq.clock.advance("30s")
        report = await examine(mq)
        assert causes(report) == []
        # Its offsets are nowhere to be asked for, and that is said.
        assert [text for text in report.unknown if "keeps its offsets" in text]


@in_virtual_time
async def test_a_pull_consumer_has_no_findings() -> None:
    async with (
        shop() as mq,
        aio.PullConsumer(GROUP, namesrv=mq.namesrv, start_from="first") as consumer,
    ):
        await consumer.subscribe("orders")
        await mq.clock.advance("1m")
        await send(mq, 4)
        while await consumer.poll(1):
            pass
        await consumer.commit()
        report = await examine(mq)
        assert causes(report) == []
        assert report.unknown == ()


@in_virtual_time
async def test_an_idle_group_has_no_findings() -> None:
    async with shop() as mq, consuming(mq, tags="paid"):
        await mq.clock.advance("5m")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_namespace_changes_nothing() -> None:
    async with (
        shop() as mq,
        aio.Admin(namesrv=mq.namesrv, namespace="blue") as admin,
    ):
        await admin.create_topic("orders", 2)
        consumer = aio.PushConsumer(GROUP, namesrv=mq.namesrv, namespace="blue", start_from="first")
        consumer.on("orders", tags="paid")(lambda message: None)
        async with consumer:
            await mq.clock.advance("1m")
            async with aio.Producer("shop", namesrv=mq.namesrv, namespace="blue") as producer:
                await producer.send(Message("orders", b"1", tag="paid"))
            await mq.clock.advance("30s")
            report = await doctor.examine_group(admin, GROUP)
            assert causes(report) == []
            assert [topic.name for topic in report.facts.topics] == ["orders"]
            assert sum(q.max_offset for t in report.facts.topics for q in t.queues) == 1


@in_virtual_time
async def test_a_cluster_without_a_flaw_has_no_findings() -> None:
    async with shop(brokers=2) as mq, consuming(mq):
        await send(mq, 8)
        await mq.clock.advance("30s")
        begun: list[int] = []
        report = await doctor.examine_cluster(mq.admin, on_begin=begun.append)
        assert report.is_healthy
        assert [group.facts.group for group in report.groups] == [GROUP]
        assert begun == [1]
        assert {broker.name for broker in report.facts.brokers} == {"broker-a", "broker-b"}
        assert all(broker.clock_ahead_ms is not None for broker in report.facts.brokers)
