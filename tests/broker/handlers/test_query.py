"""Looking messages up over the wire: by id, by key, entry by entry."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.stage import Stage
from tests.support.wire import Wire, body_of, json_body

from penstock.broker import Broker
from penstock.protocol.bodies.stats import ConsumeQueueEntries
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import QueryConsumeQueue
from penstock.protocol.headers.pull import QueryMessage, ViewMessage
from penstock.protocol.records.codec import decode_record, decode_records
from penstock.protocol.records.message_ids import parse_offset_message_id

QUERY = RequestCode.QUERY_MESSAGE
VIEW = RequestCode.VIEW_MESSAGE_BY_ID
ENTRIES = RequestCode.QUERY_CONSUME_QUEUE
FOREVER = (1 << 63) - 1


def key(name: str, *, unique: bool = False, count: int = 32, topic: str = "T") -> QueryMessage:
    return QueryMessage(topic, name, count, 0, FOREVER, unique)


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(body_of(answer))]


async def test_a_message_is_found_by_the_id_of_its_send(wire: Wire) -> None:
    sent = await wire.send("T", b"here")
    assert sent.ext is not None
    position = parse_offset_message_id(sent.ext["msgId"]).log_position
    answer = await wire.ok(VIEW, ViewMessage(position))
    assert decode_record(memoryview(body_of(answer))).body == b"here"


@pytest.mark.parametrize("position", [-1, 1, 7, 1 << 40, (1 << 63) - 1])
async def test_a_position_without_a_message_is_an_error(wire: Wire, position: int) -> None:
    await wire.send("T")
    answer = await wire.request(VIEW, ViewMessage(position))
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith(f"can not find message by the offset, {position}")


async def test_messages_are_found_by_any_of_their_keys(wire: Wire) -> None:
    await wire.send("T", b"one", properties={"KEYS": "a b"})
    await wire.send("T", b"two", properties={"KEYS": "b"})
    await wire.send("U", b"other", properties={"KEYS": "b"})
    assert bodies(await wire.ok(QUERY, key("a"))) == [b"one"]
    answer = await wire.ok(QUERY, key("b"))
    assert bodies(answer) == [b"one", b"two"]
    assert answer.ext is not None
    assert answer.ext.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert int(answer.ext["indexLastUpdateTimestamp"]) > 0


async def test_a_message_is_found_by_its_unique_key(wire: Wire) -> None:
    sent = await wire.send("T", b"one")
    assert sent.ext is not None
    answer = await wire.ok(QUERY, key(sent.ext["transactionId"], unique=True, count=1))
    assert bodies(answer) == [b"one"]


async def test_as_many_are_answered_as_were_asked_for(wire: Wire) -> None:
    for _ in range(5):
        await wire.send("T", properties={"KEYS": "k"})
    assert len(bodies(await wire.ok(QUERY, key("k", count=3)))) == 3
    # For unique keys the broker uses its own limit, not that of the request.
    assert len(bodies(await wire.ok(QUERY, key("k", unique=True, count=1)))) == 5


async def test_no_more_are_answered_than_fit_into_one_frame(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"mapped_file_size_commit_log": 32 << 20})
        wire = await stage.connect(broker)
        for number in range(5):
            body = bytes([number]) * 4_000_000
            sent = await wire.send("T", body, properties={"KEYS": "large"})
            assert sent.code == 0, sent.remark
        found = bodies(await wire.ok(QUERY, key("large")))
        assert [body[0] for body in found] == [2, 3, 4], "the newest"


async def test_nothing_found_has_its_own_code_and_the_fields_all_the_same(wire: Wire) -> None:
    answer = await wire.request(QUERY, key("none"))
    assert answer.code == 22
    assert answer.ext == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
    assert answer.remark == "can not find message, maybe time range not correct"


async def test_the_range_of_time_counts(broker: Broker, wire: Wire) -> None:
    await wire.send("T", properties={"KEYS": "k"})
    now = broker.state.clock.time_ms()
    early = QueryMessage("T", "k", 32, 0, now - 60_000, False)
    assert (await wire.request(QUERY, early)).code == 22


# Entries


async def test_the_entries_of_a_queue_are_shown(broker: Broker, wire: Wire) -> None:
    for _ in range(3):
        await wire.send("T", properties={"TAGS": "TagA"})
    answer = await wire.ok(ENTRIES, QueryConsumeQueue("T", 0, 1, 10))
    entries = json_body(ConsumeQueueEntries, answer)
    assert (entries.min_queue_index, entries.max_queue_index) == (0, 3)
    assert [entry.tags_code for entry in entries.queue_data] == [2598919, 2598919]
    first = broker.state.storage.store.entry("T", 0, 1)
    assert first is not None
    assert entries.queue_data[0].physic_offset == first.log_position


async def test_the_filter_of_a_group_is_shown_with_them(wire: Wire) -> None:
    for tag in ("TagA", "TagB"):
        await wire.send("T", properties={"TAGS": tag})
    await wire.heartbeat("me@1", consumer="cg", topics={"T": "TagB"})
    answer = await wire.ok(ENTRIES, QueryConsumeQueue("T", 0, 0, 10, "cg"))
    entries = json_body(ConsumeQueueEntries, answer)
    assert [entry.eval for entry in entries.queue_data] == [False, True]
    assert entries.subscription_data is not None
    assert entries.subscription_data.sub_string == "TagB"


@pytest.mark.parametrize(("index", "count"), [(-5, 2), (100, 5), (FOREVER, 1)])
async def test_a_stretch_outside_the_queue_is_empty(wire: Wire, index: int, count: int) -> None:
    await wire.send("T")
    answer = await wire.ok(ENTRIES, QueryConsumeQueue("T", 0, index, count))
    assert json_body(ConsumeQueueEntries, answer).queue_data == ()


@pytest.mark.parametrize("count", [-1, 1 << 30])
async def test_too_many_entries_are_refused(wire: Wire, count: int) -> None:
    await wire.send("T")
    assert (await wire.request(ENTRIES, QueryConsumeQueue("T", 0, 0, count))).code == 29


async def test_entries_of_an_unknown_topic_are_17(wire: Wire) -> None:
    assert (await wire.request(ENTRIES, QueryConsumeQueue("none", 0, 0, 1))).code == 17
