"""Messages that rot at a broker: no handler gets a damaged body, and nothing else is held up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.loop_clients import Bench, on_bench

from penstock.client.consuming.pull_consumer import PullConsumerCore
from penstock.client.settings import ConsumerSettings, StartFrom
from penstock.errors import BodyDamaged
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure
from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Language
from penstock.protocol.records.codec import encode_record
from penstock.protocol.records.sys_flags import SysFlag

FIRST = StartFrom("first")
GROUP = "billing"
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
UNWRAP = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH


def store(bench: Bench, count: int, *damaged: int) -> None:
    """Messages "0" to ``count``, of which some change a bit after they were stored."""
    bench.broker.put("T", 0, *[b"%06d" % number for number in range(count)])
    records = bench.broker.queue("T", 0).records
    for number in damaged:
        body = b"%06d" % number
        records[number] = records[number].replace(body, b"X" + body[1:], 1)


def number_of(message: StoredMessage) -> int:
    return int(message.body)


@pytest.mark.parametrize("keeps_reasons", [True, False])
@pytest.mark.parametrize("batch_size", [1, 16, 100])
@pytest.mark.parametrize("orderly", [False, True])
@on_bench(topics={"T": 1, "%RETRY%billing": 1})
async def test_a_damaged_body_is_a_dead_letter_and_the_others_are_handled(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
    batch_size: int,
    keeps_reasons: bool,
) -> None:
    if keeps_reasons:
        bench.broker.language = Language.PYTHON
    store(bench, 200, 3, 120, 121)
    seen: list[int] = []

    def handle(given: Any) -> None:
        seen.extend(map(number_of, given if isinstance(given, list) else [given]))

    consumer = await bench.consumer(
        handle, start_from=FIRST, orderly=orderly, batch_size=batch_size
    )
    await asyncio.sleep(30)
    assert sorted(seen) == [number for number in range(200) if number not in (3, 120, 121)]
    if orderly:
        assert seen == sorted(seen)
    back = bench.broker.asked(BACK)
    buried = [
        parse_properties(header.properties or "")
        for header, _ in bench.broker.sent
        if header.topic == "%RETRY%billing"
    ]
    assert len(back) + len(buried) == 3
    assert {request.ext["delayLevel"] for request in back} <= {"-1"}
    for properties in buried:
        assert "the body is damaged: body checksum 0x" in properties[Failure.MESSAGE]
    assert caplog.text.count("message given up without a call of its handler") == 3
    assert "queue=T@broker-a:0 offset=120" in caplog.text
    await consumer.persist_offsets()
    assert bench.broker.offsets[GROUP, "T", 0] == 200
    assert consumer.state.statistics.dead_letters == 3


@on_bench(topics={"T": 1, "%RETRY%billing": 1})
async def test_an_orderly_batch_that_fails_gives_its_damaged_message_up_once(
    bench: Bench,
) -> None:
    store(bench, 3, 1)
    calls: list[list[int]] = []

    def handle(messages: list[StoredMessage]) -> None:
        calls.append([number_of(message) for message in messages])
        if len(calls) == 1:
            raise ValueError("not yet")

    await bench.consumer(handle, start_from=FIRST, orderly=True, batch_size=3)
    await asyncio.sleep(20)
    assert calls == [[0, 2], [0, 2]]
    assert len([1 for header, _ in bench.broker.sent if header.topic == "%RETRY%billing"]) == 1
    assert bench.broker.offsets[GROUP, "T", 0] == 3


@on_bench(topics={"T": 1})
async def test_a_broadcast_that_is_damaged_is_dropped_with_a_line_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    store(bench, 3, 1)
    seen: list[int] = []
    await bench.consumer(
        lambda message: seen.append(number_of(message)),
        start_from=FIRST,
        model="broadcasting",
        offsets_dir=tmp_path,
    )
    await asyncio.sleep(5)
    assert seen == [0, 2]
    assert "the body is damaged" in caplog.text


@on_bench(topics={"T": 1})
async def test_a_poll_raises_once_for_a_damaged_message(bench: Bench) -> None:
    store(bench, 100, 0, 60)
    consumer = PullConsumerCore(
        bench.session("c1"), ConsumerSettings(group=GROUP, start_from=FIRST, pull_batch_size=32)
    )
    await consumer.assign([MessageQueue("T", "broker-a", 0)])
    await consumer.start()
    seen: list[int] = []
    damaged: list[str] = []
    try:
        while len(seen) + len(damaged) < 100:
            try:
                seen += map(number_of, await consumer.poll(5))
            except BodyDamaged as error:
                damaged.append(str(error))
        await consumer.commit()
    finally:
        await consumer.stop()
    assert seen == [number for number in range(100) if number not in (0, 60)]
    assert [text.split("; ")[1] for text in damaged] == [
        "in T@broker-a:0 at offset 0",
        "in T@broker-a:0 at offset 60",
    ]
    assert bench.broker.offsets[GROUP, "T", 0] == 100


@pytest.mark.parametrize("count", [5, 100])
@on_bench(topics={"T": 1})
async def test_what_precedes_a_damaged_record_is_handled(
    bench: Bench, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    store(bench, count + 2)
    records = bench.broker.queue("T", 0).records
    sound = records[count]
    records[count] = sound[:4] + bytes(4) + sound[8:]
    seen: list[int] = []
    consumer = await bench.consumer(
        lambda message: seen.append(number_of(message)), start_from=FIRST
    )
    await asyncio.sleep(60)
    assert seen == list(range(count))
    await consumer.persist_offsets()
    assert bench.broker.offsets[GROUP, "T", 0] == count
    assert f"pull failed queue=T@broker-a:0 offset={count}" in caplog.text
    assert 1 <= caplog.text.count("pull failed") <= 8
    records[count] = sound
    await asyncio.sleep(5)
    assert seen == list(range(count + 2))


@on_bench(topics={"T": 1})
async def test_a_batch_that_is_none_goes_to_its_handler_as_it_was_stored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A sender can claim that its message is an inner batch."""
    host = bytes(8)
    bench.broker.put("T", 0, b"000000")
    bench.broker.queue("T", 0).records.append(
        encode_record(b"T", b"no batch", b"", 0, 1, 0, 0, 0, host, host, sys_flag=UNWRAP)
    )
    bench.broker.put("T", 0, b"000002")
    seen: list[tuple[bytes, int]] = []
    await bench.consumer(
        lambda message: seen.append((message.body, message.sys_flag)), start_from=FIRST
    )
    await asyncio.sleep(2)
    assert seen == [(b"000000", 0), (b"no batch", UNWRAP), (b"000002", 0)]
    assert "body cannot be opened" in caplog.text
