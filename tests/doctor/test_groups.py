"""A group and its members: each flaw made for real, and found."""

from __future__ import annotations

from pathlib import Path

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
from tests.doctor.test_servers import ShiftedClock
from tests.support.loop_clients import loop_consumer, loop_session
from tests.support.stage import Stage, in_virtual_time

from penstock import aio, doctor
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.doctor import Severity
from penstock.errors import IllegalName
from penstock.protocol.codes import RequestCode
from penstock.testing.eventually import eventually


@in_virtual_time
async def test_an_unknown_group_is_reported_with_what_may_have_been_meant() -> None:
    async with shop() as mq, consuming(mq):
        found = only(await examine(mq, "biling"), "group-unknown")
        assert found.severity is Severity.CRITICAL
        assert any("penstock doctor billing" in line for line in found.way_out)
        found = only(await examine(mq, "zzz"), "group-unknown")
        assert not any("did you mean" in line for line in found.way_out)


async def test_a_name_that_no_group_can_have_is_refused() -> None:
    async with aio.Admin(namesrv="127.0.0.1:1") as admin:
        with pytest.raises(IllegalName, match="no body"):
            await doctor.examine_group(admin, "no body")


@in_virtual_time
async def test_a_group_without_members_is_reported_with_its_lag() -> None:
    async with shop() as mq:
        async with consuming(mq):
            await send(mq, 4)
            await mq.clock.advance("30s")
        await send(mq, 3)
        report = await examine(mq)
        found = only(report, "no-members")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["lag"] == 3
        assert "3 messages wait" in found.what
        # It is known where the group has been, although no member can be asked.
        assert [topic.name for topic in report.facts.topics] == [TOPIC]


@in_virtual_time
async def test_a_group_without_lag_and_without_members_is_a_warning() -> None:
    async with shop() as mq:
        async with consuming(mq):
            pass
        assert only(await examine(mq), "no-members").severity is Severity.WARNING


@in_virtual_time
async def test_a_member_that_does_not_answer_is_reported() -> None:
    async with shop() as mq, await connect(mq) as wire:
        # It says hello like any consumer, and then hears nothing.
        await wire.heartbeat("10.9.9.9@deaf", consumer=GROUP, topics=[TOPIC])
        report = await examine(mq)
        found = next(f for f in report.findings if f.cause == "member-silent")
        assert found.evidence["member"] == "10.9.9.9@deaf"
        assert wire.requests[-1].code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert any("all that member 10.9.9.9@deaf" in text for text in report.unknown)


@in_virtual_time
async def test_a_group_that_may_not_consume_is_reported() -> None:
    async with shop(brokers=2) as mq, consuming(mq):
        await mq.admin.create_group(GROUP, consume_enable=False)
        await send(mq, 2)
        await mq.clock.advance("30s")
        report = await examine(mq)
        found = only(report, "consuming-disabled")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["brokers"] == ["broker-a", "broker-b"]
        assert report.facts.lag == 2
        # The way out is one.
        assert found.way_out[0] == "penstock group create billing"
        await mq.admin.create_group(GROUP)
        await mq.clock.advance("30s")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_group_that_may_not_broadcast_is_reported() -> None:
    async with shop() as mq:
        await mq.admin.create_group(GROUP, consume_broadcast_enable=False)
        async with consuming(mq, model="broadcasting", offsets_dir=str(mq.data / "local")):
            found = only(await examine(mq), "consuming-disabled")
            assert "broadcasting" in found.what
        async with consuming(mq):
            assert causes(await examine(mq)) == []


@in_virtual_time
async def test_members_with_different_filters_are_distinguished() -> None:
    async with (
        shop() as mq,
        consuming(mq, tags="paid") as one,
        consuming(mq, tags="created || paid") as other,
    ):
        report = await examine(mq)
        found = only(report, "subscription-conflict")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["subscriptions"] == {
            "wants TAG 'created || paid'": [other.client_id],
            "wants TAG 'paid'": [one.client_id],
        }


@in_virtual_time
async def test_the_same_tags_in_another_order_are_no_conflict() -> None:
    async with (
        shop() as mq,
        consuming(mq, tags="paid || created"),
        consuming(mq, tags="created||paid"),
    ):
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_members_with_different_topics_are_distinguished() -> None:
    async with shop() as mq:
        await mq.admin.create_topic("refunds", 2)
        async with consuming(mq), consuming(mq, topic="refunds"):
            report = await examine(mq)
            conflicts = [f for f in report.findings if f.cause == "subscription-conflict"]
            assert {f.evidence["topic"] for f in conflicts} == {TOPIC, "refunds"}
            assert all("does not want it" in f.what for f in conflicts)


@in_virtual_time
async def test_members_with_different_models_are_distinguished() -> None:
    async with (
        shop() as mq,
        consuming(mq),
        consuming(mq, model="broadcasting", offsets_dir=str(mq.data / "local")),
    ):
        report = await examine(mq)
        found = next(f for f in report.findings if f.cause == "subscription-conflict")
        assert "different models" in found.what


@in_virtual_time
async def test_members_that_get_no_queue_are_named() -> None:
    async with shop(queues=2) as mq, consuming(mq), consuming(mq):
        assert causes(await examine(mq)) == []
        async with consuming(mq) as third:
            report = await examine(mq)
            found = only(report, "too-many-members")
            assert (found.evidence["queues"], found.evidence["members"]) == (2, 3)
            assert len(found.evidence["idle"]) == 1  # type: ignore[arg-type]  # a list
            assert found.way_out[0] == "penstock topic create orders --queues 3"
            assert third.client_id
            await mq.admin.create_topic(TOPIC, 3)
            await mq.clock.advance("1m")
            assert causes(await examine(mq)) == []


async def test_a_member_whose_clock_is_wrong_is_reported(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1")
        async with aio.Admin(namesrv=server.address) as admin:
            await admin.create_topic(TOPIC, 1)
            session = loop_session(server.address, ShiftedClock(-600), "late")
            consumer: PushConsumerCore = loop_consumer(session, GROUP, {TOPIC: works})
            await consumer.start()
            try:
                await eventually(consumer.assignment)
                report = await doctor.examine_group(admin, GROUP)
                found = only(report, "member-clock-skew")
                assert "behind" in found.what
                ahead = found.evidence["ahead_seconds"]
                assert isinstance(ahead, float)
                assert abs(ahead + 600) < 5
            finally:
                await consumer.stop(0)
                await session.stop()
