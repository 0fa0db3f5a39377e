"""Popped messages that are not finished, or not in time; and what is no fault of a work queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.doctor.patients import GROUP, TOPIC, shop

from penstock import Message, MessageQueue, aio, doctor
from penstock.doctor.checks.popping import messages_in_flight
from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import ClusterFacts, GroupFacts, PopFacts


async def test_expired_receipts_are_found_and_members_without_queues_are_not() -> None:
    async with shop(queues=1) as mq:
        async with aio.Producer("p", namesrv=mq.namesrv) as producer:
            for i in range(3):
                await producer.send(Message(TOPIC, b"%d" % i))
        members = [
            aio.SimpleConsumer(
                GROUP, namesrv=mq.namesrv, start_from="first", invisible="5s", instance=f"i{i}"
            )
            for i in range(3)
        ]
        for one in members:
            await one.subscribe(TOPIC)
            await one.start()
        got = await members[0].receive(wait=0)
        assert len(got) == 3
        found = await doctor.examine_group(mq.admin, GROUP)
        assert [finding.cause for finding in found.findings] == []
        await mq.clock.advance("30s")
        found = await doctor.examine_group(mq.admin, GROUP)
        causes = {finding.cause: finding for finding in found.findings}
        assert causes["receipts-expire"].evidence["expired"] == 3
        assert "too-many-members" not in causes
        assert "queue-without-member" not in causes
        for one in members:
            await one.stop()


@pytest.mark.parametrize(
    ("count", "severity"), [(999, None), (1000, "warning"), (10_000, "critical")]
)
def test_many_messages_in_flight_are_worth_a_look(count: int, severity: str | None) -> None:
    facts = GroupFacts("g", 0, ClusterFacts(()))
    popped = PopFacts({MessageQueue("T", "broker-a", 0): count})
    found = list(messages_in_flight(replace(facts, popped=popped), Thresholds()))
    assert {one.cause for one in found} <= {"messages-in-flight"}
    assert [one.severity.value for one in found] == ([] if severity is None else [severity])
