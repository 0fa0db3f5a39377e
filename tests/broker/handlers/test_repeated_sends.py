"""A send that is repeated because its answer was lost is stored once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.handlers.test_fast_send import frame, header
from tests.support.asking import all_records, ext, max_offset, put_topic
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.extensions import REPEAT
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.store import ASYNC_FLUSH, SYNC_FLUSH

KINDS: list[tuple[dict[str, str], str]] = [
    ({}, "T"),
    ({"DELAY": "18"}, SCHEDULE_TOPIC),
    ({"TIMER_DELAY_SEC": "60"}, TIMER_TOPIC),
    ({"TRAN_MSG": "true", "PGROUP": "p"}, HALF_TOPIC),
]


async def send(
    wire: Wire, properties: dict[str, str], *, is_repeat: bool, body: bytes = b"body", **more: Any
) -> Command:
    mark = {REPEAT: "true"} if is_repeat else {}
    answer = await wire.send("T", body, properties={**properties, **mark}, **more)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


@pytest.mark.parametrize(("kind", "topic"), KINDS)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_repeat_gets_the_receipt_of_what_is_stored(
    tmp_path: Path, kind: dict[str, str], topic: str, restarts: bool
) -> None:
    @in_virtual_time
    async def run() -> None:
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            wire = await stage.connect(broker)
            queue = {"DELAY": 17}.get(next(iter(kind), ""), 0)
            properties = {"UNIQ_KEY": "ID", "KEYS": "k", **kind}
            first = await send(wire, properties, is_repeat=False, queue_id=0)
            if restarts:
                await broker.stop()
                broker = await stage.broker()
                wire = await stage.connect(broker)
            again = await send(wire, properties, is_repeat=True, queue_id=0)
            if not restarts:
                assert ext(again) == ext(first)
            assert ext(again)["queueOffset"] == ext(first)["queueOffset"]
            [record] = await all_records(wire, topic, queue)
            assert REPEAT.encode() not in record.properties

    run()


@in_virtual_time
async def test_a_repeat_of_what_was_never_stored_is_stored(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await send(wire, {"UNIQ_KEY": "ID"}, is_repeat=True)
        # The same id with another body, or as the key of another message, is not the same.
        await send(wire, {"UNIQ_KEY": "ID"}, is_repeat=True, body=b"another")
        await send(wire, {"UNIQ_KEY": "X", "KEYS": "NEW"}, is_repeat=False)
        await send(wire, {"UNIQ_KEY": "NEW"}, is_repeat=True)
        # Without the mark it is a send like any other.
        await send(wire, {"UNIQ_KEY": "NEW"}, is_repeat=False)
        found = await all_records(wire, "T")
        assert len(found) == 5
        assert not any(REPEAT.encode() in record.properties for record in found)


@in_virtual_time
async def test_a_repeated_batch_is_stored_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        batch = [BatchItem(b"%d" % n, b"UNIQ_KEY\x01ID-%d\x02" % n) for n in range(5)]
        other = [BatchItem(b"x", b"UNIQ_KEY\x01OTHER\x02"), *batch[1:]]

        async def send_batch(items: list[BatchItem], *, is_repeat: bool) -> Command:
            return await send(
                wire,
                {},
                is_repeat=is_repeat,
                body=encode_batch(items),
                batch=True,
                code=RequestCode.SEND_BATCH_MESSAGE,
            )

        first = await send_batch(batch, is_repeat=False)
        again = await send_batch(batch, is_repeat=True)
        assert ext(again)["msgId"] == ext(first)["msgId"]
        assert ext(again)["queueOffset"] == ext(first)["queueOffset"]
        assert await max_offset(wire, "T") == 5
        await send_batch(other, is_repeat=True)
        assert await max_offset(wire, "T") == 10


async def send_batch(wire: Wire, items: list[BatchItem], mark: str) -> Command:
    answer = await wire.send(
        "T",
        encode_batch(items),
        properties={REPEAT: mark} if mark else {},
        batch=True,
        code=RequestCode.SEND_BATCH_MESSAGE,
        queue_id=0,
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def rows(first: int, count: int) -> list[BatchItem]:
    """A batch as Spark's sink sends it: only the first message has an id."""
    plain = [BatchItem(b"row %d" % n, b"K\x01v\x02") for n in range(first, first + count)]
    return [plain[0]._replace(properties=b"UNIQ_KEY\x01R%d\x02" % first), *plain[1:]]


@in_virtual_time
async def test_a_batch_is_found_by_the_id_of_its_first_message_alone(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        first = await send_batch(wire, rows(0, 5), "recent")
        await send_batch(wire, rows(5, 5), "recent")
        for mark in ("recent", "true"):
            again = await send_batch(wire, rows(0, 5), mark)
            assert ext(again)["queueOffset"] == ext(first)["queueOffset"]
        assert await max_offset(wire, "T") == 10
        # The beginning of a stored batch is stored; one that ends otherwise is another.
        await send_batch(wire, rows(0, 4), "true")
        assert await max_offset(wire, "T") == 10
        longer = rows(0, 6)
        await send_batch(wire, [*longer[:5], longer[5]._replace(body=b"another")], "true")
        assert await max_offset(wire, "T") == 16


@in_virtual_time
async def test_a_recent_repeat_is_looked_for_in_the_last_hour(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await send_batch(wire, rows(0, 5), "")
        await stage.clock.sleep(1800)
        wire = await stage.connect(broker)  # it closes connections that are idle
        await send_batch(wire, rows(0, 5), "recent")
        assert await max_offset(wire, "T") == 5
        await stage.clock.sleep(7200)
        wire = await stage.connect(broker)  # it closes connections that are idle
        await send_batch(wire, rows(0, 5), "true")
        assert await max_offset(wire, "T") == 5
        await send_batch(wire, rows(0, 5), "recent")
        assert await max_offset(wire, "T") == 10


@in_virtual_time
async def test_messages_that_were_in_other_batches_are_found_one_by_one(tmp_path: Path) -> None:
    def items(numbers: list[int]) -> list[BatchItem]:
        return [BatchItem(b"%d" % n, b"UNIQ_KEY\x01ID-%d\x02" % n) for n in numbers]

    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await send_batch(wire, items([1, 2, 3]), "")
        mixed = await send_batch(wire, items([4, 3, 2, 5]), "each")
        assert ext(mixed)["queueOffset"] == "3"
        known = await send_batch(wire, items([5, 1]), "each")
        assert ext(known)["queueOffset"] == "4"
        bodies = [record.body for record in await all_records(wire, "T")]
        assert bodies == [b"1", b"2", b"3", b"4", b"5"]


@in_virtual_time
async def test_new_messages_whose_ids_have_the_hash_of_others_are_stored(tmp_path: Path) -> None:
    # Java's hash of "Aa" is that of "BB", so the index seems to have these ids.
    def items(numbers: range, pair: str) -> list[BatchItem]:
        return [
            BatchItem(b"%d" % n, f"UNIQ_KEY\x01ID-{pair}-{n:03d}\x02".encode()) for n in numbers
        ]

    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await send_batch(wire, items(range(20), "Aa"), "each")
        await send_batch(wire, items(range(20), "BB"), "each")
        assert await max_offset(wire, "T") == 40
        # Of these ten are there, five seem to be, and the rest is surely new.
        some = [*items(range(10), "BB"), *items(range(20, 25), "Aa"), *items(range(40, 60), "C")]
        await send_batch(wire, some, "each")
        await send_batch(wire, some, "each")
        await send_batch(wire, items(range(20, 25), "BB"), "each")
        records = await all_records(wire, "T")
        assert len(records) == 40 + 25 + 5
        assert len({record.properties for record in records}) == len(records)


@in_virtual_time
async def test_a_batch_that_cannot_be_read_is_refused_with_any_mark(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        whole = encode_batch([BatchItem(b"a", b"UNIQ_KEY\x01ID\x02"), BatchItem(b"b")])
        for mark in ("", "true", "recent", "each"):
            properties = {REPEAT: mark} if mark else {}
            answer = await wire.send("T", whole[:-3], properties=properties, batch=True)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, mark
        assert await max_offset(wire, "T") == 0


async def send_together(broker: Broker, *heads: dict[str, object]) -> list[Command]:
    """The answers to requests that arrive in one loop turn."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(b"".join(frame(head, b"body") for head in heads))
    decoder, answers = FrameDecoder(), list[Command]()
    while len(answers) < len(heads):
        data = await reader.read(1 << 16)
        assert data
        answers += map(decode_command, decoder.feed(data))
    writer.close()
    return answers


@pytest.mark.parametrize("flush", [ASYNC_FLUSH, SYNC_FLUSH])
@pytest.mark.parametrize(("kind", "topic"), KINDS)
async def test_a_repeat_in_the_turn_of_the_first_request_is_stored_once(
    tmp_path: Path, kind: dict[str, str], topic: str, flush: str
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"flush_disk_type": flush})
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 4)
        text = "".join(f"{key}\x01{value}\x02" for key, value in kind.items())
        first = header(i=f"UNIQ_KEY\x01ID\x02{text}", e="0")
        again = header(i=f"UNIQ_KEY\x01ID\x02{text}{REPEAT}\x01true\x02", e="0")
        again["opaque"] = 99
        answers = await send_together(broker, first, again, {**again, "opaque": 100})
        assert [answer.code for answer in answers] == [0, 0, 0]
        assert len({ext(answer)["queueOffset"] for answer in answers}) == 1
        queue = {"DELAY": 17}.get(next(iter(kind), ""), 0)
        assert len(await all_records(wire, topic, queue)) == 1


async def test_a_repeat_after_the_topic_was_created_again_is_stored(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 4)
        await send(wire, {"UNIQ_KEY": "ID"}, is_repeat=False, queue_id=0)
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await put_topic(wire, "T", 4)
        for _ in range(2):
            await send(wire, {"UNIQ_KEY": "ID"}, is_repeat=True, queue_id=0)
        assert len(await all_records(wire, "T", 0)) == 1


@in_virtual_time
async def test_a_timer_that_is_repeated_when_it_is_due_comes_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        due = stage.clock.time_ms() + 1500
        timed = {"UNIQ_KEY": "ID", "TIMER_DELIVER_MS": str(due)}
        first = await send(wire, timed, is_repeat=False, queue_id=0)
        await stage.clock.sleep(1.501)
        assert not await all_records(wire, "T", 0)
        again = await send(wire, timed, is_repeat=True, queue_id=0)
        assert ext(again)["recallHandle"] == ext(first)["recallHandle"]
        await stage.clock.sleep(5)
        assert len(await all_records(wire, "T", 0)) == 1


@in_virtual_time
async def test_a_row_with_an_id_is_known_by_its_name(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())

        def row(batch: int, body: bytes) -> BatchItem:
            name = f"UNIQ_KEY\x01U-{batch}\x02PENSTOCK_ROW\x01q/{batch}/id/7\x02"
            return BatchItem(body, name.encode())

        await send_batch(wire, [row(1, b"A")], "each")
        await send_batch(wire, [row(1, b"made again, and differently")], "each")
        await send_batch(wire, [row(2, b"B")], "each")
        await send_batch(wire, [row(3, b"A")], "each")
        await send_batch(wire, [row(3, b"A")], "each")
        assert [record.body for record in await all_records(wire, "T", 0)] == [b"A", b"B", b"A"]
        single = {"UNIQ_KEY": "S", "PENSTOCK_ROW": "q/4/id/S"}
        await send(wire, single, is_repeat=False, body=b"A", queue_id=0)
        await send(wire, single, is_repeat=True, body=b"B", queue_id=0)
        assert await max_offset(wire, "T", 0) == 4


@in_virtual_time
async def test_batches_that_begin_alike_are_all_compared(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        items = rows(0, 4)
        for count in (2, 3, 4):
            await send_batch(wire, items[:count], "true")
        stored = await max_offset(wire, "T", 0)
        for count in (2, 3, 4):
            await send_batch(wire, items[:count], "true")
        assert await max_offset(wire, "T", 0) == stored == 9
