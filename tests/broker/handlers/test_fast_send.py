"""The fast path of sends gives the same results as the plain path.

A header whose first key is its code may take the fast path. The same header with its keys in
another order never does, so every request here is sent both ways and must have the same outcome.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import struct
from pathlib import Path

import orjson
import pytest
from tests.support.asking import all_records, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.paths import VECTORS
from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import ONEWAY, Command, decode_command
from penstock.protocol.extensions import SHORT_RECEIPT
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.send import SendMessage, encode_send_v2
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import Record
from penstock.remoting.peer import fast_path_key

UNIQUE_ID = "7F0000013A2218B4AAC2000000000001"
PROPERTIES = f"UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02TAGS\x01created\x02"


def header(**changes: object) -> dict[str, object]:
    """A usual header; a change of None removes a field."""
    ext: dict[str, object] = dict(
        encode_send_v2(
            SendMessage(
                *("producers", "T", "TBW102", 8, 0, 0, 1_700_000_000_000, 0),
                properties=PROPERTIES,
                broker_name="broker-a",
            )
        )
    )
    head: dict[str, object] = {
        "code": RequestCode.SEND_MESSAGE_V2,
        "extFields": ext,
        "flag": 0,
        "language": "JAVA",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    for key, value in changes.items():
        fields = ext if len(key) == 1 else head
        if value is None:
            fields.pop(key, None)
        else:
            fields[key] = value
    return head


def frame(head: dict[str, object], body: bytes) -> bytes:
    text = orjson.dumps(head)
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


async def ask(broker: Broker, head: dict[str, object], body: bytes) -> Command | None:
    """The answer to one request on its own connection; None if the broker closed it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    decoder = FrameDecoder()
    writer.write(frame(head, body))
    try:
        while data := await reader.read(1 << 16):
            for one in decoder.feed(data):
                return decode_command(one)
        return None
    finally:
        writer.close()


def on_plain_path(head: dict[str, object]) -> dict[str, object]:
    return dict(reversed(head.items()))


def said(answer: Command | None) -> object:
    """An answer without the place of the message."""
    if answer is None:
        return None
    ext = dict(answer.ext or {})
    ext.pop("msgId", None)
    ext.pop("queueOffset", None)
    return answer.code, answer.request_id, answer.flag, answer.remark, ext


def kept(record: Record) -> object:
    return (
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host[:4],
        record.store_host,
        record.reconsume_times,
        record.queue_id,
    )


async def enable_fast_path(broker: Broker, wire: Wire) -> None:
    """Send a message on the plain path, which enables the fast path for others of its kind."""
    await put_topic(wire, "T", 4)
    answer = await ask(broker, on_plain_path(header()), b"first")
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert orjson.dumps(header()).startswith(fast_path_key(RequestCode.SEND_MESSAGE_V2))


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_java_producers_write_headers_that_may_take_the_fast_path(release: str) -> None:
    with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
        frames = [
            bytes.fromhex(one["frame_hex"]) for line in lines if _is_send(one := orjson.loads(line))
        ]
    assert frames
    for sent in frames:
        [decoded] = FrameDecoder().feed(sent)
        assert decoded.header.startswith(fast_path_key(RequestCode.SEND_MESSAGE_V2))
        assert set("abcdefghijm") <= set(decode_command(decoded).ext or {})


def _is_send(frame: dict[str, object]) -> bool:
    return (
        frame["code"] == RequestCode.SEND_MESSAGE_V2
        and frame["direction"] == "client->broker"
        and frame["serialize_type"] == "JSON"
        and frame["language"] == "JAVA"
    )


CHANGES: list[dict[str, object]] = [
    {},
    {"e": "3"},
    {"e": "4"},
    {"e": "-1"},
    {"e": "00"},
    {"e": 0},
    {"e": None},
    {"a": None},
    {"b": None},
    {"b": "unknown"},
    {"b": "%RETRY%g"},
    {"b": "SCHEDULE_TOPIC_XXXX"},
    {"b": 5},
    {"b": ["T"]},
    {"c": None},
    {"d": None},
    {"d": "many"},
    {"d": "99999999999"},
    {"f": "8"},
    {"f": "12"},
    {"f": "4294967296"},
    {"f": None},
    {"g": "9223372036854775807"},
    {"g": "9223372036854775808"},
    {"g": "now"},
    {"g": -5},
    {"g": None},
    {"h": "77"},
    {"h": "-2147483648"},
    {"h": "x"},
    {"i": None},
    {"i": ""},
    {"i": 5},
    {"i": "TAGS\x01a\x02"},
    {"i": "TAGS\x01a"},
    {"i": PROPERTIES + "DELAY\x013\x02"},
    {"i": PROPERTIES + "TRAN_MSG\x01true\x02"},
    {"i": PROPERTIES + "TIMER_DELAY_SEC\x0130\x02"},
    {"i": PROPERTIES + "MSG_REGION\x01elsewhere\x02"},
    {"i": PROPERTIES + "a_b\x01\u00fc\x02"},
    {"i": PROPERTIES + "zero\x01\x00\x02"},
    {"i": 'UNIQ_KEY\x01"\\\u00fc\x02'},
    {"i": "x" * 40_000},
    {"j": "3"},
    {"j": "1e1"},
    {"j": "1.0"},
    {"j": None},
    {"l": "3"},
    {"l": "often"},
    {"m": "true"},
    {"m": "TRUE"},
    {"m": "1"},
    {"m": "yes"},
    {"k": "maybe"},
    {"m": None},
    {"opaque": 0},
    {"opaque": 2**31 - 1},
    {"opaque": -3},
    {"opaque": 2**31},
    {"opaque": "7"},
    {"opaque": 1.5},
    {"version": None},
    {"version": "new"},
    {"remark": 5},
    {"language": "KLINGON"},
    {"extFields": None},
    {"extFields": []},
    {"remark": "hello"},
    {"flag": 1},
    {"flag": 0.0},
    {"flag": None},
]


BATCH: dict[str, object] = {"code": RequestCode.SEND_BATCH_MESSAGE, "m": "true"}


def batch(*properties: bytes) -> bytes:
    return encode_batch([BatchItem(b"body", one) for one in properties])


USUAL_BATCH = batch(*(b"UNIQ_KEY\x01id-%02d\x02" % number for number in range(20)))


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
async def test_a_request_has_the_same_outcome_on_either_path(
    broker: Broker, wire: Wire, changes: dict[str, object], is_batch: bool
) -> None:
    await enable_fast_path(broker, wire)
    head = header(**({**BATCH, **changes} if is_batch else changes))
    body = USUAL_BATCH if is_batch else b"body"
    outcomes = []
    # The second request enables the fast path for the third, if the header is a usual one.
    for way in (head, on_plain_path(head), head):
        before = broker.state.storage.store.max_position
        answer = None
        # An unexpected response is not answered: nothing to wait for.
        if changes != {"flag": 1}:
            answer = await ask(broker, way, body)
        outcomes.append((said(answer), broker.state.storage.store.max_position > before))
    if "e" in changes or "i" in changes:
        # The broker chooses a queue or an id, each time another one.
        outcomes = [_without_choices(outcome) for outcome in outcomes]
    assert outcomes[0] == outcomes[1] == outcomes[2]


def _without_choices(outcome: tuple[object, bool]) -> tuple[object, bool]:
    answer, is_stored = outcome
    if not isinstance(answer, tuple):
        return outcome
    *rest, ext = answer
    chosen = ("transactionId", "queueId")
    return (*rest, {key: value for key, value in ext.items() if key not in chosen}), is_stored


@pytest.mark.parametrize("body", [b"", b"x", b"y" * 300_000])
async def test_a_body_has_the_same_outcome_on_either_path(
    broker: Broker, wire: Wire, body: bytes
) -> None:
    await enable_fast_path(broker, wire)
    head = header()
    plain, fast = [await ask(broker, way, body) for way in (on_plain_path(head), head)]
    assert said(plain) == said(fast)


@pytest.mark.parametrize(
    "body",
    [
        USUAL_BATCH,
        batch(b""),
        batch(b"UNIQ_KEY\x01a\x02", b"KEYS\x01many words\x02TAGS\x01t\x02", b"x\x01y"),
        batch(b"UNIQ_KEY\x01a\x02DELAY\x013\x02"),
        batch(b"zero\x01\x00\x02"),
        USUAL_BATCH[:-1],
        b"",
        b"no batch at all, but a body of some length",
    ],
)
async def test_a_batch_has_the_same_outcome_on_either_path(
    broker: Broker, wire: Wire, body: bytes
) -> None:
    await enable_fast_path(broker, wire)
    head = header(**BATCH, e="2", f="12", j="3", g="1700000000123")
    answers = [await ask(broker, way, body) for way in (on_plain_path(head), head, head)]
    assert said(answers[0]) == said(answers[1]) == said(answers[2])
    records = await all_records(wire, "T", 2)
    count = len(records) // 3
    assert [record.queue_offset for record in records] == list(range(3 * count))
    for start in (count, 2 * count):
        assert list(map(kept, records[start : start + count])) == list(map(kept, records[:count]))
    for number, answer in enumerate(answers):
        assert answer is not None
        if answer.code == ResponseCode.SUCCESS:
            named = [int(one[16:], 16) for one in (answer.ext or {})["msgId"].split(",")]
            stored = records[number * count : number * count + count]
            assert named == [record.log_position for record in stored]
    assert broker.state.stats.puts_of("T").count == 1 + len(records)


async def test_a_short_receipt_names_one_message_on_either_path(broker: Broker, wire: Wire) -> None:
    await enable_fast_path(broker, wire)
    head = header(**BATCH)
    assert isinstance(head["extFields"], dict)
    head["extFields"][SHORT_RECEIPT] = "true"
    for way in (on_plain_path(head), head):
        answer = await ask(broker, way, USUAL_BATCH)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        assert "," not in (answer.ext or {})["msgId"]


async def test_the_same_record_is_stored_on_either_path(broker: Broker, wire: Wire) -> None:
    await enable_fast_path(broker, wire)
    head = header(e="2", h="77", f="12", j="3", g="1700000000123")
    for way in (on_plain_path(head), head, head):
        answer = await ask(broker, way, b"body")
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    first, *others = await all_records(wire, "T", 2)
    assert len(others) == 2
    assert {kept(other) for other in others} == {kept(first)}
    assert [record.queue_offset for record in (first, *others)] == [0, 1, 2]
    assert broker.state.stats.puts_of("T").count == 4


async def test_a_oneway_send_is_stored_and_not_answered(broker: Broker, wire: Wire) -> None:
    await enable_fast_path(broker, wire)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(frame(header(flag=ONEWAY), b"quiet"))
    writer.write(frame(header(opaque=8), b"loud"))
    decoder = FrameDecoder()
    answers: list[Command] = []
    while not answers:
        answers += [decode_command(one) for one in decoder.feed(await reader.read(1 << 16))]
    assert [answer.request_id for answer in answers] == [8]
    assert [r.body for r in await all_records(wire, "T", 0)][1:] == [b"quiet", b"loud"]
    writer.close()


async def test_a_changed_topic_is_checked_again(broker: Broker, wire: Wire) -> None:
    await enable_fast_path(broker, wire)
    head = header(e="3")
    for _ in range(2):
        answer = await ask(broker, head, b"body")
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    await put_topic(wire, "T", 2)
    answer = await ask(broker, head, b"body")
    assert answer is not None
    assert answer.code == ResponseCode.INVALID_PARAMETER
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    answer = await ask(broker, header(c="no-template"), b"body")
    assert answer is not None
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_full_disk_is_reported_on_the_fast_path_too(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        await enable_fast_path(broker, await stage.connect(broker))
        files.disk.free_bytes = 0
        # The write that finds the disk full comes after the answer was encoded; it is not sent.
        assert await ask(broker, header(), b"lost") is None
        refused = [await ask(broker, way, b"x") for way in (header(), on_plain_path(header()))]
        assert said(refused[0]) == said(refused[1])
        assert refused[0] is not None
        assert refused[0].code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_both_paths_refuse_an_ordered_topic_of_a_broker_that_may_not_be_written_to(
    broker: Broker, wire: Wire
) -> None:
    await enable_fast_path(broker, wire)
    config = broker.state.topics.require("T")
    broker.state.topics.put(dataclasses.replace(config, order=True))
    for expected, permission in ((ResponseCode.SUCCESS, "6"), (ResponseCode.NO_PERMISSION, "4")):
        broker.state.settings.change({"brokerPermission": permission})
        for head in (on_plain_path(header()), header(), header()):
            answer = await ask(broker, head, b"ordered")
            assert answer is not None
            assert answer.code == expected
