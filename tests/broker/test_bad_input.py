"""Requests that make no sense: each is answered with a code and a word, and nothing breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.raw_connection import RawConnection
from tests.support.request_types import REQUESTS
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.handlers.table_requests import MAX_LIST_BYTES
from penstock.broker.tables.clients import MAX_GROUPS_OF_CLIENT
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from penstock.protocol.codes import REQUEST_NAMES, RequestCode
from penstock.protocol.commands import Command, encode_command
from penstock.protocol.headers.codec import HeaderField, header_fields
from penstock.protocol.validation import check_group, check_topic
from penstock.remoting import Limits
from penstock.remoting.dispatch import MAX_JSON_BYTES
from penstock.testing.eventually import eventually

Connect = Callable[..., Awaitable[Wire]]
MakeBroker = Callable[..., Awaitable[Broker]]

CODES = sorted(REQUEST_NAMES)
# A broker each would take longer to start than to test.
_PER_BROKER = 20
each_code = pytest.mark.parametrize(
    "codes",
    [CODES[start : start + _PER_BROKER] for start in range(0, len(CODES), _PER_BROKER)],
    ids=lambda codes: f"{codes[0]}-{codes[-1]}",
)
# Answers that need no word: they are no refusals.
SPEAKING_FOR_THEMSELVES = {0, 19, 20, 21}
KNOWN_CODES = {
    0, 1, 3, 13, 14, 16, 17, 19, 20, 21, 22, 23, 24, 26, 29, 206, 207, 208, 209, 210,
}  # fmt: skip

PLAUSIBLE = {"str": "name", "bool": "false", "int32": "1", "int64": "1"}
HOSTILE_TEXTS = [
    "",
    " ",
    "-1",
    "1e9",
    "NaN",
    "9" * 40,
    "9" * 5000,
    "true",
    "../../../etc/passwd",
    "a\x00b",
    "a\x01b\x02c",
    "T'; DROP TABLE topics; --",
    "\U0001f42b" * 100,
    "\udcff".encode("utf-8", "replace").decode(),
    "%RETRY%",
    "%DLQ%",
    "a@b@c",
    "x" * 70_000,
    "\n\r\nERROR forged line",
]
EXTREME_NUMBERS = [-(1 << 63), -(1 << 31), -1, 0, (1 << 31) - 1, (1 << 63) - 1, 1 << 63]
HOSTILE_BODIES = [
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"{}" * 50,
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b'{"clientID":1,"consumerDataSet":{},"producerDataSet":7}',
    b'{"topic":[],"group":{},"mqSet":"x"}',
    b"\x00" * 100_000,
    b'{"$ref":"$"}',
    b"1" * 100_000,
    b"a=b=c\n=\n\n",
]


@pytest.fixture
def no_trouble(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No input of a client may cause an error or a traceback in the log."""
    caplog.set_level(logging.WARNING)
    yield
    worse = [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info]
    assert worse == [], [record.getMessage() for record in worse]


@pytest.fixture(autouse=True)
async def healthy(broker: Broker, no_trouble: None) -> AsyncIterator[None]:
    """After each test the broker still serves, and its tables are valid."""
    yield
    async with await Wire.connect(broker.port) as wire:
        assert (await wire.send("Healthy")).code == 0
        assert (await wire.pull("healthy", "Healthy", 0)).code == 0
    for topic in broker.state.topics:
        if not broker.state.topics.is_system(topic.topic_name or ""):
            check_topic(topic.topic_name or "")
    for group in broker.state.groups:
        check_group(group.group_name)


async def answer_of(wire: Wire, code: int, ext: dict[str, str] | None, body: bytes) -> Command:
    answer = await wire.request(code, ext, body)
    assert not wire.is_closed
    name = REQUEST_NAMES.get(code, str(code))
    assert answer.code in KNOWN_CODES, (name, answer.code, answer.remark)
    if answer.code not in SPEAKING_FOR_THEMSELVES:
        assert answer.remark, f"{name}: code {answer.code} without a word"
        assert "Traceback" not in answer.remark
        assert len(answer.remark) <= 1000
    return answer


def fields_of(code: int) -> list[HeaderField]:
    """The header fields of a request, with their names on the wire."""
    request = REQUESTS.get(code)
    if request is None or request.header is None:
        return []
    return header_fields(request.header)


def required_fields(code: int) -> list[str]:
    """The fields without which a request makes no sense."""
    return [field.wire for field in fields_of(code) if field.is_required]


def plausible(code: int) -> dict[str, str]:
    """Ext fields that decode, with any values."""
    return {field.wire: PLAUSIBLE[field.kind] for field in fields_of(code)}


# Every code


@each_code
async def test_a_request_without_anything_is_answered(wire: Wire, codes: list[int]) -> None:
    for code in codes:
        answer = await answer_of(wire, code, None, b"")
        # A goodbye without a header says nothing wrong, see test_heartbeats.
        if required_fields(code) and code != RequestCode.UNREGISTER_CLIENT:
            assert answer.code != 0
        await answer_of(wire, code, {}, b"")


@each_code
async def test_fields_of_the_wrong_kind_are_answered(wire: Wire, codes: list[int]) -> None:
    for code in codes:
        await wire.send("name")
        for text in HOSTILE_TEXTS:
            await answer_of(wire, code, dict.fromkeys(plausible(code), text), b"")
            await answer_of(wire, code, dict.fromkeys(plausible(code), text), b"some body")
        for key in required_fields(code):
            if key == "pollTime":
                continue  # A long one is no mistake: the request is held.
            for text in HOSTILE_TEXTS:
                await answer_of(wire, code, {**plausible(code), key: text}, b"")


@each_code
async def test_a_missing_field_is_named(wire: Wire, codes: list[int]) -> None:
    for code in codes:
        for key in required_fields(code):
            ext = plausible(code)
            del ext[key]
            answer = await answer_of(wire, code, ext, b"x")
            assert answer.code != 0
            if answer.code != 3:
                assert answer.remark is not None
                assert key in answer.remark, answer.remark


@each_code
async def test_numbers_at_the_ends_of_their_range_are_answered(
    wire: Wire, codes: list[int]
) -> None:
    for code in codes:
        await wire.send("name")
        base = plausible(code)
        for number in EXTREME_NUMBERS:
            numbers = {k: str(number) if v == "1" else v for k, v in base.items()}
            await answer_of(wire, code, numbers, b"x")
            for key, value in base.items():
                # A long poll time is no mistake: the request is held.
                if value == "1" and key != "pollTime":
                    await answer_of(wire, code, {**base, key: str(number)}, b"x")


@each_code
async def test_bodies_that_mean_nothing_are_answered(wire: Wire, codes: list[int]) -> None:
    for code in codes:
        request = REQUESTS.get(code)
        for body in HOSTILE_BODIES:
            answer = await answer_of(wire, code, plausible(code), body)
            if request is not None and isinstance(request.body, type) and body[:1] in b"[\xff\x001":
                assert answer.code != 0, body[:20]


@pytest.mark.parametrize("depth", [62, 63, 64])
@pytest.mark.parametrize(
    ("code", "body", "around"),
    [
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g","x":%b}', 1),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            b'{"groupConfigList":[{"groupName":"g","x":%b}]}',
            3,
        ),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            b'{"topicConfigList":[{"topicName":"T","x":%b}]}',
            3,
        ),
    ],
    ids=["group", "groups", "topics"],
)
async def test_a_deeply_nested_setting_harms_no_table(
    broker: Broker, wire: Wire, code: int, body: bytes, around: int, depth: int
) -> None:
    nested = b"[" * (depth - around) + b"]" * (depth - around)
    assert (await wire.request(code, body=body % nested)).code == 0
    # Each of these waits for its table to be on the disk.
    fine = b'{"groupName":"fine"}'
    await wire.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fine)
    listed = b'{"topicConfigList":[{"topicName":"Fine"}]}'
    await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=listed)


@each_code
async def test_one_way_nonsense_gets_no_answer(wire: Wire, codes: list[int]) -> None:
    for code in codes:
        for ext in (None, plausible(code), dict.fromkeys(plausible(code), "\x00")):
            for body in (b"", b"{", b"\xff"):
                wire.oneway(code, ext, body)
        # The answer to this is the first thing that comes back.
        assert (await wire.request(RequestCode.GET_ALL_DELAY_OFFSET)).code == 0
        assert wire.requests == []


@pytest.mark.parametrize("code", [-1, 0, 1, 9999, 32767, -(1 << 31), (1 << 31) - 1])
async def test_unknown_codes_are_refused(wire: Wire, code: int) -> None:
    assert (await answer_of(wire, code, None, b"")).code == 3


@each_code
async def test_the_binary_header_is_understood_as_well(wire: Wire, codes: list[int]) -> None:
    for code in codes:
        if code > 32767:
            continue  # such a code does not fit into the header
        answer = await wire.request(code, {"topic": "\x00"}, b"{", serializer=1)
        assert answer.serializer == 1


# Names


@pytest.mark.parametrize("name", ["", "a b", "no/slash", "\x00", "t" * 128, "ü", "a\x01b", "$(ls)"])
async def test_a_send_makes_no_illegal_topic(broker: Broker, wire: Wire, name: str) -> None:
    answer = await wire.send(name)
    assert answer.code == 29
    assert answer.remark
    assert name not in broker.state.topics


@pytest.mark.parametrize("name", ["", "a b", "a@b", "g" * 121, "ü", "\x00", "a/b"])
async def test_no_request_makes_an_illegal_group(broker: Broker, wire: Wire, name: str) -> None:
    await wire.send("T")
    assert (await wire.pull(name, "T", 0)).code == 26
    await wire.heartbeat("me@1", consumer=name, topics=["T"])
    commit = {"consumerGroup": name, "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert (await wire.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 26
    back = {"offset": "0", "group": name, "delayLevel": "0"}
    assert (await wire.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 26
    assert name not in broker.state.groups
    assert f"%RETRY%{name}" not in broker.state.topics


async def test_a_message_over_the_limit_is_refused_with_the_limit(
    broker: Broker, wire: Wire
) -> None:
    limit = broker.state.storage.max_message_size
    answer = await wire.send("T", b"x" * (limit + 1))
    assert answer.code == 13
    assert answer.remark is not None
    assert str(limit) in answer.remark
    assert (await wire.send("T", b"x" * 1000)).code == 0


async def test_properties_over_the_limit_are_refused(wire: Wire) -> None:
    answer = await wire.send("T", raw_properties="big\x01" + "x" * 40_000)
    assert answer.code == 13
    assert answer.remark is not None
    assert "32767" in answer.remark


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        (RequestCode.HEART_BEAT, MAX_JSON_BYTES),
        (RequestCode.LOCK_BATCH_MQ, MAX_JSON_BYTES),
        (RequestCode.UNLOCK_BATCH_MQ, MAX_JSON_BYTES),
        (RequestCode.CHECK_CLIENT_CONFIG, MAX_JSON_BYTES),
        (RequestCode.UPDATE_BROKER_CONFIG, MAX_JSON_BYTES),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, MAX_JSON_BYTES),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, MAX_LIST_BYTES),
    ],
)
async def test_a_body_that_would_take_seconds_to_read_is_refused_unread(
    wire: Wire, code: int, limit: int
) -> None:
    answer = await answer_of(wire, code, {}, b"[" * (limit + 1))
    assert answer.code == 1
    assert answer.remark is not None
    assert f"a body of {limit + 1} bytes; expected at most {limit}" in answer.remark
    assert "at most" not in ((await answer_of(wire, code, {}, b"x" * limit)).remark or "")


async def test_a_queue_of_a_topic_with_an_endless_name_is_no_trouble(wire: Wire) -> None:
    for code in (
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    ):
        for name in ("t" * 300, "\u00fc" * 200):
            ask = {"topic": name, "queueId": "0", "timestamp": "0"}
            await answer_of(wire, code, ask, b"")


async def test_no_client_is_in_more_groups_than_it_may(broker: Broker, wire: Wire) -> None:
    producers = tuple(ProducerData(f"p{number}") for number in range(MAX_GROUPS_OF_CLIENT))
    await wire.ok(RequestCode.HEART_BEAT, body=HeartbeatData("me@1", producers, ()))
    one_more = HeartbeatData("me@1", (ProducerData("p"),), ())
    answer = await answer_of(wire, RequestCode.HEART_BEAT, {}, encode_body(one_more))
    assert answer.code == 1
    assert f"at most {MAX_GROUPS_OF_CLIENT} groups" in (answer.remark or "")
    # Those it is in are no more when it says so once more; another connection has its own.
    await wire.ok(RequestCode.HEART_BEAT, body=HeartbeatData("me@1", producers, ()))
    async with await Wire.connect(broker.port) as other:
        await other.ok(RequestCode.HEART_BEAT, body=one_more)


async def test_a_heartbeat_with_thousands_of_groups_is_bounded_work(
    broker: Broker, wire: Wire
) -> None:
    consumers = tuple(
        ConsumerData(
            f"g{number}",
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            (SubscriptionData("T", "*", 1),),
        )
        for number in range(500)
    )
    producers = tuple(ProducerData(f"p{number}") for number in range(500))
    await wire.ok(RequestCode.HEART_BEAT, body=HeartbeatData("me@1", producers, consumers))
    assert broker.state.clients.consumer_group("g499") is not None
    await wire.close()
    await eventually(lambda: broker.state.clients.consumer_group("g499") is None)


# Connections


async def test_garbage_instead_of_frames_closes_the_connection_and_no_other(
    broker: Broker, wire: Wire
) -> None:
    for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x7f" * 64, b"\x00\x00\x00\x02abcdef"):
        raw = await RawConnection.open(broker.port)
        await raw.send(garbage)
        await raw.wait_closed()
        await raw.close()
    assert (await wire.send("T")).code == 0


async def test_a_thousand_connections_come_and_go(broker: Broker, wire: Wire) -> None:
    async def visit(number: int) -> None:
        async with await Wire.connect(broker.port) as visitor:
            if number % 3 == 0:
                await visitor.heartbeat(f"v@{number}", consumer=f"g{number % 7}", topics=["T"])
            elif number % 3 == 1:
                visitor.start_pull("cg", "T", 0, hold_ms=15_000)

    await wire.send("T")
    for start in range(0, 1000, 50):
        await asyncio.gather(*(visit(number) for number in range(start, start + 50)))
    state = broker.state
    await eventually(lambda: not state.clients.groups_of_topic("T"))
    await eventually(lambda: len(state.held) == 0)
    assert (await wire.send("T")).code == 0


async def test_a_client_that_never_reads_is_served_no_more_than_a_bound(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    limits = Limits(write_high=64 * 1024, write_low=16 * 1024)
    broker = await make_broker(tmp_path / "other", limits=limits)
    async with await Wire.connect(broker.port) as wire:
        for _ in range(20):
            await wire.send("T", b"x" * 8000)
        raw = await RawConnection.open(broker.port)
        pull = {
            "consumerGroup": "cg", "topic": "T", "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        frames = b"".join(
            encode_command(Command(RequestCode.PULL_MESSAGE, request_id=n, ext=pull))
            for n in range(1, 400)
        )
        # 400 answers of 160 KB; the broker stops reading long before that.
        sending = asyncio.ensure_future(raw.send(frames))
        for _ in range(20):
            assert (await wire.send("T", b"others go on")).code == 0
        count = broker.state.stats.get_total.count
        assert count < 400 * 20, "it was not served everything"
        sending.cancel()
        raw.abort()
    async with await Wire.connect(broker.port) as wire:
        assert (await wire.send("T")).code == 0
