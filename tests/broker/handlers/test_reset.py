"""Moving a group to another time or offset, online and offline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.wire import Wire, body_of, json_body

from penstock.broker import Broker
from penstock.model import MessageQueue
from penstock.protocol.bodies.offsets import ResetOffsets
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Language
from penstock.protocol.headers.admin import DeleteGroup, DeleteTopic, UpdateTopic
from penstock.protocol.headers.clients import ResetOffset
from penstock.protocol.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset

Connect = Callable[..., Awaitable[Wire]]
MakeBroker = Callable[..., Awaitable[Broker]]

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
PUSHED = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
TO_THE_END = -1


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", queue_id)


async def prepare(wire: Wire, *, queues: int = 2, messages: int = 5) -> None:
    """A topic with messages in its first queue, and a group that committed 3 there."""
    await wire.ok(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        UpdateTopic("T", "TBW102", queues, queues, 6, "SINGLE_TAG", False),
    )
    for number in range(messages):
        assert (await wire.send("T", b"%d" % number)).code == 0
    for queue_id, offset in ((0, 3), (1, 0)):
        await wire.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("cg", "T", queue_id, offset)
        )


async def reset(wire: Wire, timestamp: int = 0, **fields: object) -> dict[MessageQueue, int]:
    ask = ResetOffset("T", "cg", timestamp, True)
    for name, value in fields.items():
        setattr(ask, name, value)
    return json_body(ResetOffsets, await wire.ok(RESET, ask)).offset_table


async def committed(wire: Wire, queue_id: int = 0) -> int:
    answer = await wire.ok(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("cg", "T", queue_id)
    )
    assert answer.ext is not None
    return int(answer.ext["offset"])


# By the broker


async def test_a_reset_to_the_past_starts_every_queue_again(wire: Wire) -> None:
    await prepare(wire)
    assert await reset(wire, 0) == {queue(0): 0, queue(1): 0}
    assert await committed(wire) == 0


async def test_a_reset_to_minus_one_goes_to_the_end(wire: Wire) -> None:
    await prepare(wire)
    assert await reset(wire, TO_THE_END) == {queue(0): 5, queue(1): 0}


async def test_a_reset_to_the_future_goes_to_the_end(broker: Broker, wire: Wire) -> None:
    await prepare(wire)
    later = broker.state.clock.time_ms() + 60_000
    assert (await reset(wire, later))[queue(0)] == 5


async def test_the_next_pull_gets_the_reset_once(wire: Wire) -> None:
    await prepare(wire)
    await reset(wire, 0)
    answer = await wire.pull("cg", "T", 3)
    assert answer.code == 21
    assert answer.remark == "OFFSET_RESET"
    assert answer.ext is not None
    assert answer.ext["nextBeginOffset"] == "0"
    assert (await wire.pull("cg", "T", 3)).code == 0


async def test_commits_are_taken_and_ignored_until_the_pull(wire: Wire) -> None:
    await prepare(wire)
    await reset(wire, 0)
    commit = UpdateConsumerOffset("cg", "T", 0, 4)
    await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    await wire.pull("other", "T", 0)
    assert await committed(wire) == 0
    await wire.pull("cg", "T", 4, commit=4)
    assert await committed(wire) == 0, "the commit of the pull that gets the reset is ignored, too"
    await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    assert await committed(wire) == 4


async def test_a_held_pull_gets_the_reset_at_once(wire: Wire, connect: Connect) -> None:
    await prepare(wire)
    consumer, other = await connect(), await connect()
    waiting = consumer.start_pull("cg", "T", 5, hold_ms=15_000)
    others = other.start_pull("another", "T", 5, hold_ms=15_000)
    await wire.pull("probe", "T", 0)
    await reset(wire, 0)
    async with asyncio.timeout(5):
        answer = await waiting
    assert answer.code == 21
    assert answer.ext is not None
    assert answer.ext["nextBeginOffset"] == "0"
    await wire.pull("probe", "T", 0)
    assert not others.done(), "another group goes on waiting"


async def test_one_queue_can_be_reset_alone(wire: Wire) -> None:
    await prepare(wire)
    assert await reset(wire, 0, queue_id=0) == {queue(0): 0}
    assert (await wire.pull("cg", "T", 0, queue_id=1)).code == 19


@pytest.mark.parametrize(("offset", "becomes"), [(0, 0), (2, 2), (5, 5), (6, 5)])
async def test_an_offset_can_be_given(wire: Wire, offset: int, becomes: int) -> None:
    await prepare(wire)
    assert await reset(wire, 0, queue_id=0, offset=offset) == {queue(0): becomes}


@pytest.mark.parametrize("offset", [-2, 7, 1 << 60])
async def test_an_offset_outside_the_queue_is_refused(wire: Wire, offset: int) -> None:
    await prepare(wire)
    ask = ResetOffset("T", "cg", 0, True, 0, offset)
    answer = await wire.request(RESET, ask)
    assert answer.code == 1
    assert answer.remark == f"Target offset {offset} not in consume queue range [0-5]"
    assert await committed(wire) == 3


async def test_a_queue_that_is_not_there_is_refused(wire: Wire) -> None:
    await prepare(wire)
    answer = await wire.request(RESET, ResetOffset("T", "cg", 0, True, 2, 0))
    assert answer.code == 1


async def test_topic_and_group_must_exist(wire: Wire) -> None:
    await prepare(wire)
    assert (await wire.request(RESET, ResetOffset("none", "cg", 0, True))).code == 17
    assert (await wire.request(RESET, ResetOffset("T", "none", 0, True))).code == 26


@pytest.mark.parametrize("deleted", ["topic", "group"])
async def test_a_reset_is_forgotten_with_its_topic_or_group(wire: Wire, deleted: str) -> None:
    await prepare(wire)
    await reset(wire, 0)
    if deleted == "topic":
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
    else:
        await wire.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("cg", clean_offset=True))
    await prepare(wire)
    answer = await wire.pull("cg", "T", 1)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")


async def test_a_reset_survives_a_restart(make_broker: MakeBroker) -> None:
    broker = await make_broker()
    async with await Wire.connect(broker.port) as wire:
        await prepare(wire)
        await reset(wire, 0)
    await broker.stop()
    broker = await make_broker()
    async with await Wire.connect(broker.port) as wire:
        assert await committed(wire) == 0


# By the members


@pytest.fixture
async def client_side(make_broker: MakeBroker) -> Broker:
    return await make_broker(settings={"use_server_side_reset_offset": False})


async def test_members_are_asked_where_the_broker_may_not(client_side: Broker) -> None:
    async with (
        await Wire.connect(client_side.port) as wire,
        await Wire.connect(client_side.port) as member,
    ):
        await prepare(wire)
        await member.heartbeat("me@1", consumer="cg", topics=["T"])
        assert await reset(wire, 0) == {queue(0): 0, queue(1): 0}
        pushed = await member.asked(PUSHED)
        assert pushed.is_oneway
        assert pushed.ext == {
            "topic": "T", "group": "cg", "timestamp": "0", "isForce": "false", "queueId": "-1",
        }  # fmt: skip
        assert body_of(pushed) == (
            b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0,'
            b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:0}}'
        )
        assert await committed(wire) == 3, "the members commit it themselves"


@pytest.mark.parametrize(
    ("asker", "member"), [(Language.CPP, Language.JAVA), (Language.JAVA, Language.CPP)]
)
async def test_cpp_gets_a_list(client_side: Broker, asker: Language, member: Language) -> None:
    async with (
        await Wire.connect(client_side.port, language=asker) as wire,
        await Wire.connect(client_side.port, language=member) as consumer,
    ):
        await prepare(wire)
        await consumer.heartbeat("me@1", consumer="cg", topics=["T"])
        await reset(wire, 0)
        body = body_of(await consumer.asked(PUSHED))
        assert body.startswith(b'{"offsetTable":[{"brokerName":"broker-a","offset":0,')


async def test_without_force_a_group_only_goes_back(client_side: Broker) -> None:
    async with (
        await Wire.connect(client_side.port) as wire,
        await Wire.connect(client_side.port) as member,
    ):
        await prepare(wire)
        await member.heartbeat("me@1", consumer="cg", topics=["T"])
        assert (await reset(wire, TO_THE_END, is_force=False))[queue(0)] == 3
        assert (await reset(wire, TO_THE_END, is_force=True))[queue(0)] == 5
        assert (await reset(wire, 0, is_force=False))[queue(0)] == 0


async def test_an_offline_group_cannot_be_asked(client_side: Broker) -> None:
    async with await Wire.connect(client_side.port) as wire:
        await prepare(wire)
        answer = await wire.request(RESET, ResetOffset("T", "cg", 0, True))
        assert answer.code == 206
        assert answer.remark == (
            "Consumer not online, so can not reset offset, Group: cg Topic: T Timestamp: 0"
        )


async def test_a_group_without_offsets_cannot_be_asked(client_side: Broker) -> None:
    async with await Wire.connect(client_side.port) as wire:
        await prepare(wire)
        answer = await wire.request(RESET, ResetOffset("T", "new", 0, True))
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith("THe consumer group <new> not exist")


async def test_a_member_too_old_to_be_asked_is_named(client_side: Broker) -> None:
    async with (
        await Wire.connect(client_side.port) as wire,
        await Wire.connect(client_side.port, version=27) as member,
    ):
        await prepare(wire)
        await member.heartbeat("me@1", consumer="cg", topics=["T"])
        answer = await wire.request(RESET, ResetOffset("T", "cg", 0, True))
        assert answer.code == 1
        assert PUSHED not in [command.code for command in member.requests]


async def test_a_slave_resets_nothing(make_broker: MakeBroker) -> None:
    broker = await make_broker(settings={"broker_role": "SLAVE", "broker_id": 1})
    async with await Wire.connect(broker.port) as wire:
        answer = await wire.request(RESET, ResetOffset("TBW102", "TOOLS_CONSUMER", 0, True))
        assert answer.code == 1
