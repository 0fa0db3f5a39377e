"""Who is in a group: heartbeats in every dialect, joining, leaving, silence."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest
from tests.support.asking import bodies, ext, members, put_group
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, body_of

from penstock.broker import Broker
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.common import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Language
from penstock.protocol.headers.clients import GetConsumerList, UnregisterClient
from penstock.testing.eventually import eventually

NOTIFY = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def notified(wire: Wire) -> list[str]:
    """The groups in the notifications that this client got since the last call."""
    groups = [ext(command)["consumerGroup"] for command in wire.requests if command.code == NOTIFY]
    wire.requests.clear()
    return groups


async def settled(wire: Wire) -> None:
    """Return when all that the broker had to say to a client is there."""
    # Output of one connection keeps its order, so an answer comes behind everything before it.
    await wire.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerList("unknown"))


# Membership


@pytest.mark.spec("S16")
async def test_a_heartbeat_makes_a_member_and_the_end_of_the_connection_ends_it(
    wire: Wire, broker: Broker
) -> None:
    assert await members(wire, "g") == []
    async with await Wire.connect(broker.port) as one, await Wire.connect(broker.port) as other:
        await one.heartbeat("c1", consumer="g", topics=["T"])
        await other.heartbeat("c2", consumer="g", topics=["T"])
        assert sorted(await members(wire, "g")) == ["c1", "c2"]
        await one.close()
        await eventually(lambda: _is(wire, "g", ["c2"]))
    await eventually(lambda: _is(wire, "g", []))


async def _is(wire: Wire, group: str, expected: list[str]) -> bool:
    return await members(wire, group) == expected


@pytest.mark.spec("S16")
@in_virtual_time
async def test_a_member_that_is_silent_for_two_minutes_is_dropped_and_cut(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        silent, lively = await stage.connect(broker), await stage.connect(broker)
        await silent.heartbeat("c1", consumer="g", topics=["T"], producer="p")
        await lively.heartbeat("c2", consumer="g", topics=["T"])
        for _ in range(11):
            await stage.clock.sleep(10)
            # It is busy, but without a heartbeat that does not count.
            await silent.send("T")
            await lively.heartbeat("c2", consumer="g", topics=["T"])
        assert sorted(await members(lively, "g")) == ["c1", "c2"]
        for _ in range(3):
            await stage.clock.sleep(9)
            await lively.heartbeat("c2", consumer="g", topics=["T"])
        assert await members(lively, "g") == ["c2"]
        assert silent.is_closed
        assert broker.state.clients.producer_group("p") == []


@in_virtual_time
async def test_the_scan_notifies_no_member(tmp_path: Path) -> None:
    # As in RocketMQ: the others notice at their next rebalance.
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        silent, lively = await stage.connect(broker), await stage.connect(broker)
        await silent.heartbeat("c1", consumer="g", topics=["T"])
        await lively.heartbeat("c2", consumer="g", topics=["T"])
        await settled(lively)
        notified(lively)
        for _ in range(14):
            await stage.clock.sleep(10)
            if not silent.is_closed:
                with contextlib.suppress(ConnectionError):
                    await silent.send("T")
            await lively.heartbeat("c2", consumer="g", topics=["T"])
        assert silent.is_closed
        await settled(lively)
        assert notified(lively) == []


@in_virtual_time
async def test_heartbeats_keep_a_member_for_ever(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        for _ in range(60):
            await wire.heartbeat("c1", consumer="g", topics=["T"])
            await stage.clock.sleep(30)
        assert await members(wire, "g") == ["c1"]


@pytest.mark.spec("S16")
async def test_leaving_takes_a_client_out_of_that_group_only(wire: Wire, broker: Broker) -> None:
    group = ConsumerData(
        "g1",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        (SubscriptionData("T", "*", 1),),
    )
    both = (group, dataclasses.replace(group, group_name="g2"))
    data = HeartbeatData("c1", (ProducerData("p"),), both)
    await wire.ok(RequestCode.HEART_BEAT, body=data)
    assert await members(wire, "g1") == await members(wire, "g2") == ["c1"]
    await wire.ok(RequestCode.UNREGISTER_CLIENT, UnregisterClient("c1", consumer_group="g1"))
    assert await members(wire, "g1") == []
    assert await members(wire, "g2") == ["c1"]
    assert len(broker.state.clients.producer_group("p")) == 1
    await wire.ok(RequestCode.UNREGISTER_CLIENT, UnregisterClient("c1", producer_group="p"))
    assert broker.state.clients.producer_group("p") == []
    # Leaving twice, or what one was never in, is no error.
    await wire.ok(RequestCode.UNREGISTER_CLIENT, UnregisterClient("c1", "p", "g1"))


async def test_a_heartbeat_spelt_otherwise_makes_a_member_and_a_goodbye_without_header_is_taken(
    wire: Wire, broker: Broker
) -> None:
    # This is how the .NET client writes them: names in Pascal case, the goodbye in a body.
    beat = {"ClientID": "c1", "ConsumerDataSet": [{"GroupName": "g", "SubscriptionDataSet": []}]}
    await wire.ok(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
    assert await members(wire, "g") == ["c1"]
    await wire.ok(RequestCode.UNREGISTER_CLIENT, body=b'{"ClientId":"c1","ConsumerGroup":"g"}')


async def test_one_client_with_two_connections_is_listed_once(wire: Wire, broker: Broker) -> None:
    await wire.heartbeat("c1", consumer="g", topics=["T"])
    async with await Wire.connect(broker.port) as again:
        await again.heartbeat("c1", consumer="g", topics=["T"])
        assert await members(wire, "g") == ["c1"]
    # The old connection is still there, and so is the member.
    assert await members(wire, "g") == ["c1"]


async def test_a_group_that_may_not_be_made_is_skipped_and_the_rest_counts(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(auto_create_subscription_group=False)
        wire = await stage.connect(broker)
        await wire.heartbeat("c1", consumer="g", topics=["T"], producer="p")
        assert await members(wire, "g") == []
        assert "%RETRY%g" not in broker.state.topics
        assert len(broker.state.clients.producer_group("p")) == 1


@pytest.mark.spec("S104")
async def test_a_heartbeat_makes_the_groups_retry_topic(wire: Wire, broker: Broker) -> None:
    await put_group(wire, SubscriptionGroupConfig("g", retry_queue_nums=3))
    await wire.heartbeat("c1", consumer="g", topics=["T"])
    config = broker.state.topics.require("%RETRY%g")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)


# Telling the others


@pytest.mark.spec("S18")
async def test_members_are_notified_when_one_joins_leaves_or_is_cut(
    wire: Wire, broker: Broker
) -> None:
    await wire.heartbeat("c1", consumer="g", topics=["T"])
    await settled(wire)
    assert notified(wire) == ["g"]
    async with await Wire.connect(broker.port) as joining:
        await joining.heartbeat("c2", consumer="g", topics=["T"])
        await settled(wire)
        assert notified(wire) == ["g"]
        await joining.ok(RequestCode.UNREGISTER_CLIENT, UnregisterClient("c2", None, "g"))
        await settled(wire)
        assert notified(wire) == ["g"]
        await joining.heartbeat("c2", consumer="g", topics=["T"])
        await settled(wire)
        notified(wire)
    command = await wire.asked(NOTIFY)
    assert command.flag & 2, "a one-way request"
    assert ext(command) == {"consumerGroup": "g"}


async def test_a_heartbeat_without_a_change_notifies_no_member(wire: Wire) -> None:
    for version in (1, 1, 2):
        await wire.heartbeat("c1", consumer="g", topics=["T"], version=version)
    await settled(wire)
    # Only the first one; a newer version of the same topics is no change of the group.
    assert notified(wire) == ["g"]
    await wire.heartbeat("c1", consumer="g", topics=["T", "U"], version=3)
    await settled(wire)
    assert notified(wire) == ["g"]
    await wire.heartbeat("c1", consumer="g", topics=["U"], version=3)
    await settled(wire)
    assert notified(wire) == ["g"]


async def test_other_groups_and_broadcasting_members_are_not_notified(
    wire: Wire, broker: Broker
) -> None:
    await wire.heartbeat("c1", consumer="g1", topics=["T"])
    await wire.heartbeat("c1", consumer="g2", topics=["T"], model=MessageModel.BROADCASTING)
    await settled(wire)
    assert notified(wire) == ["g1"]
    async with await Wire.connect(broker.port) as other:
        await other.heartbeat("c2", consumer="g2", topics=["T"], model=MessageModel.BROADCASTING)
        await other.heartbeat("c2", consumer="g3", topics=["T"])
        await settled(wire)
        assert notified(wire) == []


@pytest.mark.parametrize("where", ["broker", "group"])
async def test_telling_can_be_switched_off(tmp_path: Path, where: str) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(
            await stage.broker(notify_consumer_ids_changed_enable=where != "broker")
        )
        if where == "group":
            await put_group(
                wire, SubscriptionGroupConfig("g", notify_consumer_ids_changed_enable=False)
            )
        await wire.heartbeat("c1", consumer="g", topics=["T"])
        await settled(wire)
        assert notified(wire) == []


# Dialects


async def test_a_java_client_learns_the_brokers_version_and_that_v2_is_not_offered(
    wire: Wire,
) -> None:
    answer = await wire.heartbeat("c1", consumer="g", topics=["T"])
    assert answer.version > 0
    assert ext(answer)["IS_SUPPORT_HEART_BEAT_V2"] == "false"


async def test_a_heartbeat_without_subscriptions_of_v2_unsubscribes_nothing(wire: Wire) -> None:
    await wire.send("T", b"kept")
    await wire.heartbeat("c1", consumer="g", topics=["T"])
    body = {
        "clientID": "c1",
        "heartbeatFingerprint": 12345,
        "withoutSub": True,
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
        ],
    }
    await wire.ok(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert bodies(await wire.pull("g", "T", 0, expression=None)) == [b"kept"]


GO = {
    "clientID": "c1",
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [
                {
                    "classFilterMode": False,
                    "topic": "T",
                    "subString": "A || B",
                    "tagsSet": ["A", "B"],
                    "codeSet": ["65", "66"],
                    "subVersion": 1_700_000_000_000_000_000,
                    "expressionType": "TAG",
                }
            ],
        }
    ],
}
NODE = {
    "clientID": "c1",
    "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {
                    "topic": "T",
                    "subString": "A||B",
                    "tagsSet": ["A", "B"],
                    "codeSet": [65, 66],
                    "subVersion": 1_700_000_000_000,
                }
            ],
            "unitMode": False,
        }
    ],
}
CPP = {
    "clientID": "c1",
    "consumerDataSet": [
        {
            "consumeFromWhere": 0,
            "consumeType": 1,
            "groupName": "g",
            "messageModel": 1,
            "subscriptionDataSet": [
                # Both codes are wrong, as that client sends them.
                {"codeSet": [0, 0], "subString": "A || B", "subVersion": "1700000000000",
                 "tagsSet": ["A", "B"], "topic": "T"},
            ],
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("language", "version", "body"),
    [(Language.GO, 317, GO), (Language.JAVA, 121, NODE), (Language.CPP, 63, CPP)],
    ids=["go", "node", "cpp"],
)
async def test_clients_of_other_languages_are_understood(
    broker: Broker, language: Language, version: int, body: dict[str, object]
) -> None:
    async with await Wire.connect(broker.port, language=language, version=version) as wire:
        # C++ ends its JSON with a newline.
        await wire.ok(RequestCode.HEART_BEAT, body=json.dumps(body).encode() + b"\n")
        assert await members(wire, "g") == ["c1"]
        for tag in ("A", "x", "B"):
            await wire.send("T", tag.encode(), properties={"TAGS": tag})
        # Go pulls with an empty expression and without the flag for it.
        assert bodies(await wire.pull("g", "T", 0, expression=None)) == [b"A", b"B"]
        group = broker.state.clients.consumer_group("g")
        assert group is not None
        assert group.message_model == "CLUSTERING"
        [channel] = group.channels.values()
        assert (channel.language, channel.version) == (language.name, version)


async def test_cpp_means_broadcasting_by_0(broker: Broker) -> None:
    data = json.loads(json.dumps(CPP))
    data["consumerDataSet"][0]["messageModel"] = 0
    async with await Wire.connect(broker.port, language=Language.CPP, version=63) as wire:
        await wire.ok(RequestCode.HEART_BEAT, body=json.dumps(data).encode())
        group = broker.state.clients.consumer_group("g")
        assert group is not None
        assert group.message_model == "BROADCASTING"


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b"[1]", b'{"clientID":', b"\xff\xfe"])
async def test_a_heartbeat_without_meaning_is_refused_and_costs_nothing(
    wire: Wire, body: bytes
) -> None:
    answer = await wire.request(RequestCode.HEART_BEAT, body=body)
    assert answer.code != ResponseCode.SUCCESS
    await wire.heartbeat("c1", consumer="g", topics=["T"])
    assert await members(wire, "g") == ["c1"]


# Checking a filter before it is used


@pytest.mark.parametrize(
    ("expression", "kind", "code"),
    [
        ("a > 5 AND b = 'x'", "SQL92", ResponseCode.SUCCESS),
        ("a >", "SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("A || B", "TAG", ResponseCode.SUCCESS),
    ],
)
async def test_a_filter_can_be_checked(wire: Wire, expression: str, kind: str, code: int) -> None:
    body = {
        "clientId": "c1",
        "group": "g",
        "subscriptionData": {
            "topic": "T",
            "subString": expression,
            "subVersion": 1,
            "expressionType": kind,
        },
    }
    answer = await wire.request(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())
    assert answer.code == code
    assert body_of(answer) == b""


async def test_a_subscription_gives_way_only_to_a_newer_one(wire: Wire, broker: Broker) -> None:
    """Members that are updated one after the other must not undo each other."""
    await wire.heartbeat("c1", consumer="g", topics={"T": "new"}, version=2)
    await wire.heartbeat("c1", consumer="g", topics={"T": "old"}, version=1)
    group = broker.state.clients.consumer_group("g")
    assert group is not None
    assert group.subscriptions["T"].expression == "new"
    await wire.heartbeat("c1", consumer="g", topics={"T": "newest"}, version=3)
    assert group.subscriptions["T"].expression == "newest"
