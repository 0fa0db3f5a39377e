"""A send that is repeated because its answer was lost is stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.asking import all_records, ext, max_offset
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import REPEAT
from penstock.protocol.records.batches import BatchItem, encode_batch

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
