"""Where a group stands: each flaw made for real, and found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tests.doctor.patients import (
    GROUP,
    TOPIC,
    causes,
    connect,
    consuming,
    examine,
    fails,
    only,
    queue,
    send,
    shop,
    works,
)
from tests.support.stage import Stage, in_virtual_time

from penstock import Message, StoredMessage, aio, doctor
from penstock.broker import Broker
from penstock.client.session import session_registry
from penstock.doctor import Severity
from penstock.model.record_layout import BODY_POSITION
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.offsets import UpdateConsumerOffset
from penstock.runtime.clock import SystemClock
from penstock.testing.embedded import AsyncEmbedded
from penstock.testing.hosts.local_host import LocalHost
from penstock.testing.virtual_time.loop import VirtualLoop


@in_virtual_time
async def test_a_group_without_an_offset_is_reported_with_its_start() -> None:
    async with shop() as mq:
        # Its pulls are refused, so it has nothing to commit.
        await mq.admin.create_group(GROUP, consume_enable=False)
        async with consuming(mq, start_from="last"):
            await send(mq, 4)
            report = await examine(mq)
            assert set(causes(report)) == {"consuming-disabled", "never-committed"}
            found = next(f for f in report.findings if f.cause == "never-committed")
            assert found.evidence["messages"] == 4
            assert found.evidence["queues"] == [str(queue(0)), str(queue(1))]
            assert "what was sent before it came is skipped" in found.what
            await mq.admin.create_group(GROUP)
            await mq.clock.advance("30s")
            assert causes(await examine(mq)) == []


@asynccontextmanager
async def small_store(tmp_path: Path) -> AsyncIterator[tuple[Stage, Broker, aio.Admin]]:
    """A broker with files so small that some of them can be deleted."""
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        broker = await stage.broker(store={"file_reserved_hours": 0})
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        session_registry.use_host(server.address, LocalHost(loop, "shop"))
        async with aio.Admin(namesrv=server.address) as admin:
            await admin.create_topic(TOPIC, 1)
            yield stage, broker, admin
        session_registry.retire_host(server.address)


@in_virtual_time
async def test_a_group_whose_messages_were_deleted_is_reported_with_their_number(
    tmp_path: Path,
) -> None:
    async with small_store(tmp_path) as (stage, broker, admin):
        namesrv = stage.name_servers[0].address
        consumer = aio.PushConsumer(GROUP, namesrv=namesrv, start_from="first")
        consumer.on(TOPIC)(works)
        async with aio.Producer("shop", namesrv=namesrv, compress_over=1 << 22) as producer:
            async with consumer:
                await producer.send(Message(TOPIC, b"first"))
                await stage.clock.sleep(10)
            for _ in range(12):
                await producer.send(Message(TOPIC, bytes(300_000)))
        store = broker.state.storage.store
        # A file may go only when the entries of its messages are on the disk.
        store.flush(thorough=True)
        store.request_clean()
        # The age of a file is the machine's matter.
        assert store.clean(SystemClock().time_ms() + 3_600_000)
        [ends] = await admin.topic_stats(TOPIC)
        assert ends.min_offset > 1, "old files are gone"
        report = await doctor.examine_group(admin, GROUP)
        assert causes(report) == ["no-members", "behind-first"]
        found = report.findings[1]
        assert found.evidence["lost"] == ends.min_offset - 1
        assert report.facts.lag == ends.max_offset - ends.min_offset
        assert found.way_out[0] == "penstock group reset billing --topic orders --to first"
        await admin.reset_offsets(GROUP, TOPIC, "first")
        assert causes(await doctor.examine_group(admin, GROUP)) == ["no-members"]


@in_virtual_time
async def test_a_group_past_the_end_is_reported_with_both_numbers() -> None:
    async with shop(queues=1) as mq:
        async with consuming(mq):
            await send(mq, 4)
            await mq.clock.advance("30s")
        async with await connect(mq) as wire:
            # As after the loss of a store: the group has consumed more than there ever was.
            await wire.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, TOPIC, 0, 900)
            )
        report = await examine(mq)
        assert causes(report) == ["beyond-last", "no-members"]
        found = report.findings[0]
        assert found.severity is Severity.CRITICAL
        assert found.evidence["queues"] == [
            {"queue": str(queue(0)), "committed": 900, "first": 0, "end": 4}
        ]
        await mq.admin.reset_offsets(GROUP, TOPIC, "last")
        assert causes(await examine(mq)) == ["no-members"]


@pytest.mark.parametrize(("count", "said"), [(1, "message of"), (3, "messages of")])
@in_virtual_time
async def test_failed_messages_without_a_consumer_are_reported(count: int, said: str) -> None:
    async with shop() as mq:
        async with consuming(mq, fails):
            await send(mq, count)
            await mq.clock.advance("2s")
        # Their delay passes without a connected member.
        await mq.clock.advance("1m")
        report = await examine(mq)
        assert causes(report) == ["no-members", "retry-backlog"]
        found = report.findings[1]
        assert found.evidence["waiting"] == count
        assert f"{count} failed {said} group" in found.what
        assert ("waits for" if count == 1 else "wait for") in found.what
        assert report.facts.retry_lag == count
        async with consuming(mq):
            assert causes(await examine(mq)) == []


@in_virtual_time
async def test_dead_letters_are_reported_with_the_reason_of_the_newest() -> None:
    async with shop() as mq, consuming(mq, fails, max_retries=0):
        await send(mq, 2)
        await mq.clock.advance("30s")
        assert causes(await examine(mq)) == ["dead-letters", "handler-fails"]
        await mq.clock.advance("2m")
        found = only(await examine(mq), "dead-letters")
        assert found.severity is Severity.WARNING
        assert found.evidence["dead_letters"] == 2
        assert "card declined" in found.what
        assert found.way_out[0] == "penstock dlq list billing"
        assert found.evidence["newest_msg_id"]


@in_virtual_time
async def test_dead_letters_that_were_dealt_with_are_no_trouble() -> None:
    async with (
        shop() as mq,
        consuming(mq, fails, max_retries=0),
        aio.Admin(namesrv=mq.namesrv) as tool,
    ):
        await send(mq, 2)
        await mq.clock.advance("2m")
        only(await examine(mq), "dead-letters")
        await tool.settle_dead_letters("billing")
        report = await examine(mq)
        assert causes(report) == []
        assert report.facts.dead_letters is not None
        assert report.facts.dead_letters.count == 0


async def not_known(message: Message | StoredMessage) -> None:
    """Leave a transaction open."""


@in_virtual_time
async def test_messages_that_wait_for_their_transaction_are_reported() -> None:
    async with (
        shop() as mq,
        consuming(mq),
        aio.Producer("tills", namesrv=mq.namesrv, check_transaction=not_known) as producer,
    ):
        half = await producer.send_in_transaction(Message(TOPIC, b"x"), not_known)
        await producer.send_in_transaction(Message("other", b"x"), not_known)
        await mq.clock.advance("30s")
        assert causes(await examine(mq)) == []
        await mq.clock.advance("40s")
        found = only(await examine(mq), "open-transactions")
        assert found.severity is Severity.WARNING
        assert found.evidence["producers"] == ["tills"]
        assert (found.evidence["waiting"], found.evidence["given_up"]) == (1, 0)
        assert found.evidence["msg_ids"] == [half.msg_id]
        assert "penstock transaction list" in found.way_out


@in_virtual_time
async def test_messages_that_wait_for_their_time_are_noted_while_nothing_else_is_there() -> None:
    async with shop() as mq, consuming(mq), aio.Producer("tills", namesrv=mq.namesrv) as producer:
        await producer.send(Message(TOPIC, b"x", delay="11m"))
        await producer.send(Message("other", b"x", delay="11m"))
        await mq.clock.advance("30s")
        report = await examine(mq)
        found = only(report, "timers-not-due")
        assert found.severity is Severity.NOTE
        assert found.evidence == {"topic": TOPIC, "waiting": 1}
        assert found.way_out == (f"penstock timer list --topic {TOPIC}",)
        assert report.is_healthy, "nothing is wrong"
        await mq.clock.advance("11m")
        assert causes(await examine(mq)) == []


@in_virtual_time
async def test_a_damaged_message_that_stops_a_queue_is_reported() -> None:
    async with shop(queues=1) as mq:
        await send(mq, 3)
        await mq.admin.create_group(GROUP)
        await mq.admin.reset_offsets(GROUP, TOPIC, "first")
        assert "next-unreadable" not in causes(await examine(mq))
        await damage(mq)
        found = next(f for f in (await examine(mq)).findings if f.cause == "next-unreadable")
        assert "checksum" in found.what
        assert found.evidence["offset"] == 0
        assert found.way_out[1].endswith("--queue broker-a:0 --to 1")


async def damage(mq: AsyncEmbedded) -> None:
    """Change the body of the first message on the disk of its broker."""
    part = await mq.admin.messages(queue(0), 0, count=1)
    [log] = sorted((mq.data / "broker-a" / "commitlog").iterdir())
    position = part.messages[0].log_position + BODY_POSITION
    with log.open("r+b") as file:
        file.seek(position)
        file.write(b"?")
