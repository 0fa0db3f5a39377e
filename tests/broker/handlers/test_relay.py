"""What operators ask of consumers goes through the broker."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from tests.support.wire import Wire, body_of, json_body

from penstock.broker import Broker
from penstock.broker.handlers import relay
from penstock.model import MessageQueue
from penstock.protocol.bodies.offsets import ConsumerStatus
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.clients import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
)
from penstock.protocol.records.codec import decode_record

Connect = Callable[..., Awaitable[Wire]]

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
STATUS_OF_CLIENT = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT


@pytest.fixture
async def consumer(connect: Connect) -> Wire:
    wire = await connect()
    await wire.heartbeat("me@1", consumer="cg", topics=["T"])
    return wire


# Running info


async def test_a_consumer_tells_what_it_is_doing(wire: Wire, consumer: Wire) -> None:
    consumer.serve(INFO, lambda command: Command(0, body=b'{"properties":{}}', remark="fine"))
    answer = await wire.request(INFO, GetConsumerRunningInfo("cg", "me@1", True))
    assert answer.code == 0
    assert body_of(answer) == b'{"properties":{}}'
    assert answer.remark == "fine"


async def test_the_consumer_sees_what_the_operator_asked(wire: Wire, consumer: Wire) -> None:
    wire.start(INFO, {"consumerGroup": "cg", "clientId": "me@1", "jstackEnable": "true", "x": "y"})
    asked = await consumer.asked(INFO)
    assert asked.ext == {
        "consumerGroup": "cg", "clientId": "me@1", "jstackEnable": "true", "x": "y",
    }  # fmt: skip
    assert not asked.is_oneway
    assert asked.request_id > 0, "0 is no number to the Node client"


async def test_an_error_of_the_consumer_is_handed_on(wire: Wire, consumer: Wire) -> None:
    consumer.serve(INFO, lambda command: Command(1, remark="no such group here"))
    answer = await wire.request(INFO, GetConsumerRunningInfo("cg", "me@1"))
    assert (answer.code, answer.remark) == (1, "no such group here")


@pytest.mark.parametrize(("group", "client"), [("cg", "unknown"), ("other", "me@1")])
async def test_a_client_that_is_not_online_is_named(
    wire: Wire, consumer: Wire, group: str, client: str
) -> None:
    answer = await wire.request(INFO, GetConsumerRunningInfo(group, client))
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith(f"The Consumer <{group}> <{client}> not online")


async def test_a_client_that_does_not_answer_in_time_gives_its_own_code(
    wire: Wire, consumer: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "RELAY_SECONDS", 0.2)
    answer = await wire.request(INFO, GetConsumerRunningInfo("cg", "me@1"))
    assert answer.code == 207
    assert answer.remark is not None
    assert "consumer <cg> <me@1> Timeout" in answer.remark


async def test_a_client_that_leaves_meanwhile_is_an_error_at_once(
    wire: Wire, consumer: Wire
) -> None:
    pending = wire.start(INFO, GetConsumerRunningInfo("cg", "me@1"))
    await consumer.asked(INFO)
    await consumer.close()
    async with asyncio.timeout(5):
        answer = await pending
    assert answer.code == 1
    assert answer.remark is not None
    assert "invoke consumer <cg> <me@1> Exception" in answer.remark


async def test_a_client_too_old_to_answer_is_not_asked(wire: Wire, connect: Connect) -> None:
    old = await connect(version=61)
    await old.heartbeat("old@1", consumer="cg", topics=["T"])
    answer = await wire.request(INFO, GetConsumerRunningInfo("cg", "old@1"))
    assert answer.code == 1
    assert answer.remark is not None
    assert "V3_1_8_SNAPSHOT" in answer.remark
    assert [r.code for r in old.requests] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


# Consume directly


async def test_a_stored_message_is_handed_to_a_consumer(wire: Wire, consumer: Wire) -> None:
    sent = await wire.send("T", b"look at this")
    assert sent.ext is not None
    ask = ConsumeMessageDirectly("cg", "me@1", sent.ext["msgId"], topic="T")
    pending = wire.start(DIRECTLY, ask)
    asked = await consumer.asked(DIRECTLY)
    assert decode_record(memoryview(body_of(asked))).body == b"look at this"
    assert asked.ext is not None
    assert asked.ext.items() >= {
        "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0", "topic": "T",
    }.items()  # fmt: skip
    consumer.answer(asked, Command(0, body=b'{"consumeResult":"CR_SUCCESS"}'))
    answer = await pending
    assert body_of(answer) == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("message_id", "code"),
    [
        ("", 29),
        (None, 29),
        ("not hex", 29),
        ("7F00000100002A9F", 29),
        ("7F00000100002A9F00000000FFFFFFFF", 1),
        ("7F00000100002A9FFFFFFFFFFFFFFFFF", 1),
    ],
)
async def test_a_message_that_is_not_there_is_not_handed_on(
    wire: Wire, consumer: Wire, message_id: str | None, code: int
) -> None:
    answer = await wire.request(DIRECTLY, ConsumeMessageDirectly("cg", "me@1", message_id))
    assert answer.code == code
    assert answer.remark


async def test_a_message_without_a_client_id_is_refused(wire: Wire, consumer: Wire) -> None:
    sent = await wire.send("T")
    assert sent.ext is not None
    answer = await wire.request(DIRECTLY, ConsumeMessageDirectly("cg", None, sent.ext["msgId"]))
    assert answer.code == 1


# Where members stand


def standing(offset: int) -> Command:
    queue = b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'
    return Command(0, body=b'{"consumerTable":{},"messageQueueTable":{%b:%d}}' % (queue, offset))


async def test_every_member_is_asked_where_it_stands(
    wire: Wire, consumer: Wire, connect: Connect
) -> None:
    second = await connect()
    await second.heartbeat("me@2", consumer="cg", topics=["T"])
    consumer.serve(STATUS_OF_CLIENT, lambda command: standing(3))
    second.serve(STATUS_OF_CLIENT, lambda command: standing(4))
    answer = await wire.ok(STATUS, GetConsumerStatus("T", "cg", ""))
    status = json_body(ConsumerStatus, answer)
    queue = MessageQueue("T", "broker-a", 0)
    assert status.consumer_table == {"me@1": {queue: 3}, "me@2": {queue: 4}}


async def test_one_member_alone_is_asked_if_it_is_named(
    wire: Wire, consumer: Wire, connect: Connect
) -> None:
    second = await connect()
    await second.heartbeat("me@2", consumer="cg", topics=["T"])
    second.serve(STATUS_OF_CLIENT, lambda command: standing(4))
    answer = await wire.ok(STATUS, GetConsumerStatus("T", "cg", "me@2"))
    assert list(json_body(ConsumerStatus, answer).consumer_table) == ["me@2"]
    assert STATUS_OF_CLIENT not in [command.code for command in consumer.requests]


@pytest.mark.parametrize("bad", [Command(1, remark="no"), Command(0), Command(0, body=b"{{{")])
async def test_a_member_without_a_usable_answer_is_left_out(
    wire: Wire, consumer: Wire, connect: Connect, bad: Command
) -> None:
    second = await connect()
    await second.heartbeat("me@2", consumer="cg", topics=["T"])
    consumer.serve(STATUS_OF_CLIENT, lambda command: dataclasses.replace(bad))
    second.serve(STATUS_OF_CLIENT, lambda command: standing(4))
    answer = await wire.ok(STATUS, GetConsumerStatus("T", "cg"))
    assert list(json_body(ConsumerStatus, answer).consumer_table) == ["me@2"]


async def test_a_silent_member_costs_a_bounded_time(
    wire: Wire, consumer: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "STATUS_SECONDS", 0.2)
    answer = await wire.ok(STATUS, GetConsumerStatus("T", "cg"))
    assert json_body(ConsumerStatus, answer).consumer_table == {}


async def test_an_unknown_member_gives_an_empty_table(wire: Wire, consumer: Wire) -> None:
    answer = await wire.ok(STATUS, GetConsumerStatus("T", "cg", "unknown"))
    assert json_body(ConsumerStatus, answer).consumer_table == {}


async def test_a_group_without_members_is_an_error(broker: Broker, wire: Wire) -> None:
    answer = await wire.request(STATUS, GetConsumerStatus("T", "cg"))
    assert answer.code == 1
    assert answer.remark == "No Any Consumer online in the consumer group: [cg]"


async def test_a_member_too_old_to_tell_is_named(wire: Wire, connect: Connect) -> None:
    old = await connect(version=27)
    await old.heartbeat("old@1", consumer="cg", topics=["T"])
    answer = await wire.request(STATUS, GetConsumerStatus("T", "cg"))
    assert answer.code == 1
    assert answer.remark is not None
    assert "version=27" in answer.remark
