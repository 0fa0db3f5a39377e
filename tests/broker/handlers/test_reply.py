"""Request-reply: a reply finds the one who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.wire import Wire, body_of

from penstock.broker import Broker
from penstock.broker.handlers import reply
from penstock.model.names import Property
from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.send import PushReply

Connect = Callable[..., Awaitable[Wire]]
MakeBroker = Callable[..., Awaitable[Broker]]

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {
    Property.MESSAGE_TYPE: "reply",
    Property.CORRELATION_ID: "7db610ed",
    Property.REPLY_TO_CLIENT: "127.0.0.1@asker",
    Property.TTL: "8000",
}
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


@pytest.fixture
async def asker(connect: Connect) -> Wire:
    wire = await connect()
    await wire.heartbeat("127.0.0.1@asker", producer="askers")
    return wire


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
async def test_a_reply_is_pushed_to_the_asker_and_then_acknowledged(
    broker: Broker, wire: Wire, asker: Wire, code: int
) -> None:
    answer = asyncio.ensure_future(
        wire.send(REPLY_TOPIC, b"pong", properties=PROPERTIES, code=code)
    )
    pushed = await asker.asked(PUSH)
    await asyncio.sleep(0.05)
    assert not answer.done(), "the replier learns how it went, not that it was tried"
    asker.answer(pushed, Command(0))
    result = await answer
    assert result.code == 0
    header = decode_header(PushReply, pushed.ext or {})
    assert header.topic == REPLY_TOPIC
    assert header.born_host == wire.address
    assert header.store_host == broker.address
    assert body_of(pushed) == b"pong"
    pushed_properties = parse_properties(header.properties or "")
    assert pushed_properties.items() >= PROPERTIES.items()
    assert int(pushed_properties[Property.PUSH_REPLY_TIME]) == header.store_timestamp


async def test_the_push_has_the_fields_that_apache_sends(wire: Wire, asker: Wire) -> None:
    asked: list[Command] = []

    def serve(command: Command) -> Command:
        asked.append(command)
        return Command(0)

    asker.serve(PUSH, serve)
    await wire.send(
        REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
    assert asked[0].ext is not None
    assert asked[0].ext.keys() == {
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
        "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "bornHost",
        "storeHost", "storeTimestamp",
    }  # fmt: skip


async def test_the_reply_is_kept_in_the_reply_topic(
    broker: Broker, wire: Wire, asker: Wire
) -> None:
    asker.serve(PUSH, lambda command: Command(0))
    answer = await wire.send(
        REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
    assert answer.ext is not None
    assert answer.ext.keys() == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    assert len(answer.ext["msgId"]) == 32
    assert answer.ext["queueOffset"] == "0"
    assert broker.state.storage.max_offset(REPLY_TOPIC, 0) == 1


async def test_without_storing_the_id_is_a_zero(make_broker: MakeBroker) -> None:
    broker = await make_broker(settings={"store_reply_message_enable": False})
    async with await Wire.connect(broker.port) as asker, await Wire.connect(broker.port) as wire:
        await asker.heartbeat("127.0.0.1@asker", producer="askers")
        asker.serve(PUSH, lambda command: Command(0))
        answer = await wire.send(
            REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
        )
        assert answer.code == 0
        assert answer.ext is not None
        assert answer.ext["msgId"] == "0"
        assert broker.state.storage.max_offset(REPLY_TOPIC, 0) == 0


async def test_a_reply_is_not_pushed_to_a_connection_that_is_closing(
    broker: Broker, asker: Wire, connect: Connect
) -> None:
    """It stays in the table until its last bytes are sent."""
    clients = broker.state.clients
    older = clients.producer_by_client_id("127.0.0.1@asker")
    again = await connect()
    await again.heartbeat("127.0.0.1@asker", producer="askers")
    newer = clients.producer_by_client_id("127.0.0.1@asker")
    assert older is not None
    assert newer is not None
    assert newer.peer is not older.peer
    newer.peer.close("by the test")
    assert clients.producer_by_client_id("127.0.0.1@asker") is older
    older.peer.close("by the test")
    assert clients.producer_by_client_id("127.0.0.1@asker") is None


async def test_an_asker_without_heartbeat_is_not_found_but_the_reply_is_kept(
    broker: Broker, wire: Wire
) -> None:
    answer = await wire.send(
        REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
    assert answer.code == 1
    assert answer.remark == "push reply message fail, channel of <127.0.0.1@asker> not found."
    assert broker.state.storage.max_offset(REPLY_TOPIC, 0) == 1


async def test_a_reply_that_names_no_asker_cannot_be_delivered(wire: Wire) -> None:
    answer = await wire.send(REPLY_TOPIC, b"pong", code=RequestCode.SEND_REPLY_MESSAGE_V2)
    assert answer.code == 1
    assert answer.remark is not None
    assert Property.REPLY_TO_CLIENT in answer.remark


async def test_an_asker_that_refuses_the_reply_is_named(wire: Wire, asker: Wire) -> None:
    asker.serve(PUSH, lambda command: Command(1, remark="too late"))
    answer = await wire.send(
        REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
    assert answer.code == 1
    assert answer.remark is not None
    assert "127.0.0.1@asker" in answer.remark
    assert "too late" in answer.remark


async def test_an_asker_that_never_answers_costs_the_replier_a_bounded_time(
    wire: Wire, asker: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "PUSH_SECONDS", 0.2)
    asker.serve(PUSH, lambda command: None)
    answer = await wire.send(
        REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
    assert answer.code == 1
    assert answer.remark is not None
    assert "push reply message to 127.0.0.1@asker fail" in answer.remark


async def test_an_asker_that_leaves_meanwhile_is_an_error_at_once(wire: Wire, asker: Wire) -> None:
    answer = asyncio.ensure_future(
        wire.send(
            REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
        )
    )
    await asker.asked(PUSH)
    await asker.close()
    assert (await answer).code == 1


async def test_the_newest_connection_of_an_asker_gets_the_reply(
    wire: Wire, asker: Wire, connect: Connect
) -> None:
    newer = await connect()
    await newer.heartbeat("127.0.0.1@asker", producer="askers")
    newer.serve(PUSH, lambda command: Command(0))
    answer = await wire.send(
        REPLY_TOPIC, b"pong", properties=PROPERTIES, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
    assert answer.code == 0
    assert asker.requests == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16),
        ({"topic": "no good"}, 29),
        ({"queue_id": 7}, 29),
        ({"body": b""}, 13),
        ({"topic": "unknown", "default_topic": "none"}, 17),
    ],
)
async def test_a_reply_is_checked_like_a_send(
    wire: Wire, fields: dict[str, object], code: int
) -> None:
    given: dict[str, object] = {"topic": REPLY_TOPIC, "body": b"pong", **fields}
    answer = await wire.send(
        str(given.pop("topic")),
        properties=PROPERTIES,
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
        **given,  # type: ignore[arg-type]
    )
    assert answer.code == code
    assert answer.remark
    assert answer.ext is not None
    assert answer.ext.keys() == {"MSG_REGION", "TRACE_ON"}
