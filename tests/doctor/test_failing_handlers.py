"""Handlers that fail: seen while their messages wait out of sight for the next attempt."""

from __future__ import annotations

import dataclasses

import pytest
from tests.doctor.patients import GROUP, causes, consuming, examine, fails, only, queue, send, shop
from tests.doctor.test_java_members import as_here, examined
from tests.support.stage import in_virtual_time

from penstock import StoredMessage
from penstock.doctor import Severity
from penstock.protocol.bodies.running import ConsumerRunningInfo, ConsumeStatus


@pytest.mark.parametrize("waited", ["7s", "25s", "50s"])
def test_a_handler_that_always_fails_is_reported_between_its_attempts(waited: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with shop() as mq, consuming(mq, fails) as consumer:
            await send(mq, 4)
            # Attempts are at once, after 10 s, 30 s and a minute: at these moments none is due, and
            # neither lag nor the retry topic shows a message.
            await mq.clock.advance(waited)
            report = await examine(mq)
            assert (report.facts.lag, report.facts.retry_lag) == (0, 0)
            found = only(report, "handler-fails")
            assert found.severity is Severity.WARNING
            assert found.evidence["member"] == consumer.client_id
            assert found.evidence["newest_reason"] == "ValueError: card declined"
            assert "card declined" in found.what
            message = await mq.admin.message(str(found.evidence["newest_msg_id"]))
            assert message.body in {b"0", b"1", b"2", b"3"}

    run()


@in_virtual_time
async def test_failures_an_hour_apart_are_reported_as_well() -> None:
    async with shop() as mq, consuming(mq, fails):
        await send(mq, 1)
        await mq.clock.advance("35m")
        report = await examine(mq)
        assert report.facts.retry_lag == 0
        assert "in the last hour" in only(report, "handler-fails").what


@in_virtual_time
async def test_in_order_it_is_critical_since_all_behind_it_wait() -> None:
    async with shop(queues=1) as mq, consuming(mq, fails, orderly=True):
        await send(mq, 3)
        await mq.clock.advance("30s")
        found = next(f for f in (await examine(mq)).findings if f.cause == "handler-fails")
        assert found.severity is Severity.CRITICAL
        assert found.evidence["newest_queue"] == str(queue(0))


@in_virtual_time
async def test_a_message_that_succeeded_at_its_second_attempt_is_nothing_to_tell() -> None:
    def stumbles(message: StoredMessage) -> None:
        if message.reconsume_times == 0 and message.body == b"0":
            raise ValueError("the bank does not answer")

    async with shop() as mq, consuming(mq, stumbles):
        await send(mq, 8)
        await mq.clock.advance("40s")
        assert causes(await examine(mq)) == []


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_a_member_that_tells_only_rates_is_found_by_them(release: str) -> None:
    failing = {f"%RETRY%{GROUP}": ConsumeStatus(consume_failed_tps=0.5, consume_ok_tps=0.1)}

    def change(info: ConsumerRunningInfo, now_ms: int) -> ConsumerRunningInfo:
        return dataclasses.replace(as_here(info, now_ms), status_table=failing)

    found = only(examined(release, change, "TagA"), "handler-fails")
    assert found.evidence["failures"] == 30
    assert found.evidence["newest_reason"] is None
    assert "fewer succeeded" in found.what
