"""What goes wrong in Apache RocketMQ and is watched or avoided by this broker."""

from __future__ import annotations

import pytest
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.protocol.bodies.common import MessageModel

DISAGREE = "members of a group disagree"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(DISAGREE)]


@pytest.mark.parametrize("model", [MessageModel.CLUSTERING, MessageModel.BROADCASTING])
async def test_members_of_a_group_with_different_subscriptions_are_logged_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, model: MessageModel
) -> None:
    async with await Wire.connect(broker.port) as one, await Wire.connect(broker.port) as other:
        for version in (1, 2, 3):
            await one.heartbeat(
                "c1", consumer="g", topics={"T": "a", "U": "*"}, version=version, model=model
            )
            await other.heartbeat(
                "c2", consumer="g", topics={"T": "b", "U": "*"}, version=version, model=model
            )
    (warning,) = warnings_of(caplog)
    assert "group=g client=c1 wants=[T:a] client=c2 wants=[T:b]" in warning
    assert "give all of them the same subscriptions" in warning


async def test_a_topic_that_only_one_member_wants_is_a_disagreement(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with await Wire.connect(broker.port) as one, await Wire.connect(broker.port) as other:
        await one.heartbeat("c1", consumer="g", topics=[f"T{n}" for n in range(9)])
        await other.heartbeat("c2", consumer="g", topics=["T0"])
    (warning,) = warnings_of(caplog)
    assert "client=c1 wants=[T1:*, T2:*, T3:*, T4:*, T5:*, and 3 more]" in warning
    assert warning.endswith("client=c2 wants=[]")


async def test_members_that_agree_are_nothing_to_talk_about(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with await Wire.connect(broker.port) as one, await Wire.connect(broker.port) as other:
        for version in (1, 2):
            await one.heartbeat("c1", consumer="g", topics={"T": "a"}, version=version)
            await other.heartbeat("c2", consumer="g", topics={"T": "a"}, version=version + 5)
            await other.heartbeat("c2", consumer="h", topics={"T": "b"})
    assert warnings_of(caplog) == []


async def test_a_member_may_change_its_mind_when_it_is_alone(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with await Wire.connect(broker.port) as one, await Wire.connect(broker.port) as again:
        await one.heartbeat("c1", consumer="g", topics={"T": "a"})
        await one.heartbeat("c1", consumer="g", topics={"T": "b"}, version=2)
        # The same client on a second connection is no second member.
        await again.heartbeat("c1", consumer="g", topics={"T": "c"}, version=3)
    async with await Wire.connect(broker.port) as next_one:
        await next_one.heartbeat("c2", consumer="g", topics={"T": "c"}, version=4)
    assert warnings_of(caplog) == []
