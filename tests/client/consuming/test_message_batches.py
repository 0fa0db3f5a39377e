"""Batches that are decoded when a handler gets them: all that consuming promises holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loop_clients import Bench, on_bench

from penstock.client.consuming.message_batches import MessageBatch, batches_of, packed_batches
from penstock.client.consuming.outcomes import ConsumeContext, ConsumeResult
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.pull_consumer import PullConsumerCore
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.middleware import HandlerCall, Middleware
from penstock.client.settings import ConsumerSettings, StartFrom
from penstock.model import MessageQueue, StoredMessage
from penstock.model.hosts import pack_host
from penstock.protocol.codes import RequestCode
from penstock.protocol.records.codec import encode_record
from penstock.protocol.records.pulled import alike_records, messages_from_pull

GROUP = "billing"
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
QUEUE = MessageQueue("T", "broker-a", 0)
FIRST = StartFrom("first")
HOST = pack_host("127.0.0.1", 10911)
PULL = 100
BATCH = 40
"""So a pull is two handlers' batches and a half."""
SETTINGS: dict[str, Any] = {"start_from": FIRST, "batch_size": BATCH, "pull_batch_size": PULL}
one_queue = on_bench(topics={"T": 1})


def fill(bench: Bench) -> None:
    """Three pulls. The ids of the first have one digit or two, of the others all have three."""
    bench.broker.max_pull = PULL
    bench.broker.put("T", 0, *[b"x"] * 3 * PULL)


def packed_waiting(consumer: PushConsumerCore | PullConsumerCore) -> int:
    batches = consumer.state.queues[QUEUE]._cached.values()
    return sum(batch._packed is not None for batch in batches)


def committed(consumer: PushConsumerCore) -> int | None:
    return consumer.state.offsets.snapshot().get(QUEUE)


def offsets(messages: Sequence[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


@one_queue
async def test_every_message_is_handled_once_in_lists_and_committed(bench: Bench) -> None:
    seen: list[list[StoredMessage]] = []
    watched: list[int] = []

    class Watching(Middleware):
        def after_handle(self, call: HandlerCall) -> None:
            assert call.success
            watched.extend(offsets(call.messages))

    async def handler(messages: list[StoredMessage]) -> None:
        seen.append(messages)

    fill(bench)
    consumer = await bench.consumer(handler, middleware=[Watching()], **SETTINGS)
    await asyncio.sleep(1)
    assert {type(messages) for messages in seen} == {list}
    assert [len(messages) for messages in seen] == [40, 40, 20] * 3
    everything = [message for messages in seen for message in messages]
    assert offsets(everything) == watched == list(range(300))
    # What a handler keeps stays as it was.
    assert [message.msg_id for message in everything] == [f"T-0-{n}" for n in range(300)]
    assert all(int(message.properties["CONSUME_START_TIME"]) for message in everything)
    assert {message.properties["MAX_OFFSET"] for message in everything} == {"300"}
    assert committed(consumer) == 300
    held = consumer.state.queues[QUEUE]
    assert (held.count, held.body_bytes, held.cached_range) == (0, 0, (0, 0, 0))
    assert consumer.state.statistics.totals("T") == (300, 0)


@one_queue
async def test_the_offset_does_not_pass_a_batch_that_is_not_done(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(messages: list[StoredMessage]) -> None:
        if messages[0].queue_offset == 140:
            await release.wait()

    fill(bench)
    consumer = await bench.consumer(handler, **SETTINGS)
    await asyncio.sleep(1)
    held = consumer.state.queues[QUEUE]
    assert packed_waiting(consumer) == 1
    assert committed(consumer) == 140
    assert (held.count, held.body_bytes, held.cached_range) == (40, 40, (140, 179, 40))
    assert (held.span, held.reach) == (39, 159)
    release.set()
    await asyncio.sleep(1)
    assert committed(consumer) == 300


@pytest.mark.parametrize("how", ["raises", "says so", "after some"])
@one_queue
async def test_of_a_batch_that_fails_each_message_is_sent_back(bench: Bench, how: str) -> None:
    async def handler(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeResult:
        if messages[0].queue_offset == 140:
            if how == "raises":
                raise ValueError("no")
            if how == "says so":
                return ConsumeResult.RECONSUME_LATER
            context.ack_index = 29
        return ConsumeResult.SUCCESS

    fill(bench)
    consumer = await bench.consumer(handler, **SETTINGS)
    await asyncio.sleep(1)
    first = 170 if how == "after some" else 140
    backs = [request.ext["originMsgId"] for request in bench.broker.asked(BACK)]
    assert backs == [f"T-0-{number}" for number in range(first, 180)]
    assert committed(consumer) == 300
    assert consumer.state.statistics.totals("T") == (300 - len(backs), len(backs))
    assert consumer.state.queues[QUEUE].count == 0


@one_queue
async def test_what_is_stuck_in_a_batch_is_sent_back_and_no_longer_counts(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(messages: list[StoredMessage]) -> None:
        if messages[0].queue_offset == 180:
            await release.wait()

    fill(bench)
    consumer = await bench.consumer(handler, consume_timeout=30.0, **SETTINGS)
    await asyncio.sleep(62)
    assert len(bench.broker.asked(BACK)) == 16
    await asyncio.sleep(30)
    backs = [request.ext["originMsgId"] for request in bench.broker.asked(BACK)]
    assert backs == [f"T-0-{number}" for number in range(180, 200)]
    release.set()
    await asyncio.sleep(1)
    assert len(bench.broker.asked(BACK)) == 20
    assert consumer.state.queues[QUEUE].count == 0
    bench.broker.put("T", 0, b"x")
    await asyncio.sleep(1)
    assert committed(consumer) == 301


@one_queue
async def test_batches_that_the_pool_refuses_come_again_as_one_batch(bench: Bench) -> None:
    batches: list[int] = []

    async def handler(messages: list[StoredMessage]) -> None:
        batches.append(len(messages))
        if messages[0].queue_offset == 100:
            await asyncio.sleep(1)

    fill(bench)
    settings = {**SETTINGS, "batch_size": 20}
    consumer = await bench.consumer(handler, threads=1, task_limit=3, **settings)
    await asyncio.sleep(60)
    assert sum(batches) == 300
    assert max(batches) > 20
    assert committed(consumer) == 300


@one_queue
async def test_polls_bring_packed_batches_and_commit_them_wholly_or_in_part(bench: Bench) -> None:
    fill(bench)
    chosen = ConsumerSettings(group=GROUP, start_from=FIRST, pull_batch_size=PULL)
    consumer = PullConsumerCore(bench.session("r1"), chosen, auto_commit=False)
    await consumer.subscribe("T")
    await consumer.start()
    assert offsets(await consumer.poll(5.0)) == list(range(100))
    await asyncio.sleep(1)
    assert packed_waiting(consumer) == 2
    again = await consumer.poll(5.0)
    consumer.take_back()
    polled = await consumer.poll(5.0)
    assert polled == again
    assert offsets(polled) == list(range(100, 200))
    await consumer.commit(polled[70:])
    assert bench.broker.offsets[GROUP, "T", 0] == 170
    assert offsets(await consumer.poll(5.0)) == list(range(200, 300))
    await consumer.commit()
    assert bench.broker.offsets[GROUP, "T", 0] == 300
    await consumer.stop()


# --------------------------------------------------------------------------------------- alone


def packed(first: int, count: int, size: int, body: bytes = b"x") -> list[MessageBatch]:
    records = [
        encode_record(b"T", body, b"K\x01v\x02", 0, first + n, n, 0, 0, HOST, HOST)
        for n in range(count)
    ]
    alike = alike_records(b"".join(records), "broker-a")
    assert alike is not None
    return packed_batches(alike, b"A\x011\x02", size)


def test_a_packed_batch_knows_its_ends_before_it_is_decoded() -> None:
    longer, rest = packed(7, 100, 60)
    assert (longer.count, rest.count) == (60, 40)
    assert (longer.first_offset, longer.last_offset) == (7, 66)
    assert (rest.first_offset, rest.last_offset, rest.body_bytes) == (67, 106, 40)
    assert not rest.is_decoded
    assert offsets(rest.messages) == list(range(67, 107))
    assert rest.is_decoded
    assert rest.messages[5].properties == {"K": "v", "A": "1"}
    rest.forget()
    assert not rest.is_decoded
    assert offsets(rest.messages) == list(range(67, 107))


@given(
    st.integers(0, 2**40),
    st.integers(64, 80),
    st.integers(2, 90),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
def test_packed_batches_hold_what_batches_of_decoded_messages_hold(
    first: int, count: int, size: int, body: bytes, properties: bytes
) -> None:
    records = b"".join(
        encode_record(b"T", body, properties, 0, first + n, n, 0, 0, HOST, HOST)
        for n in range(count)
    )
    alike = alike_records(records, "broker-a")
    assert alike is not None
    added = b"A\x011\x02"
    # With the checksums compared, each record is decoded by itself.
    decoded = messages_from_pull(records, "broker-a", check_crc=True, added=added)

    def contents(batches: list[MessageBatch]) -> list[tuple[object, ...]]:
        return [
            (batch.count, batch.first_offset, batch.last_offset, batch.body_bytes, batch.messages)
            for batch in batches
        ]

    assert contents(packed_batches(alike, added, size)) == contents(batches_of(decoded, size))


@given(st.lists(st.integers(0, 60), min_size=1, unique=True), st.integers(1, 9))
def test_batches_of_decoded_messages_hold_exactly_their_offsets(held: list[int], size: int) -> None:
    every = packed(0, 64, 64)[0].messages
    batches = batches_of([every[offset] for offset in held], size)
    if size == 1:
        assert [batch.first_offset for batch in batches] == held
    else:
        assert [m.queue_offset for batch in batches for m in batch.messages] == sorted(held)
    for batch in batches:
        found = offsets(batch.messages)
        assert (batch.count, batch.body_bytes) == (len(found), len(found))
        assert [offset for offset in range(64) if batch.holds(offset)] == found
        batch.forget()
        assert batch.is_decoded  # there is nothing to decode them from


@pytest.mark.parametrize("when", ["before", "after"])
def test_properties_reach_messages_whenever_they_are_decoded(when: str) -> None:
    (batch,) = packed(0, 64, 64)
    if when == "after":
        assert batch.messages[0].peek("B") is None
    batch.append_properties(b"B\x012\x02")
    assert {message.peek("B") for message in batch.messages} == {"2"}
    assert {message.peek("A") for message in batch.messages} == {"1"}


def test_threads_that_look_at_once_see_the_same_messages() -> None:
    batches = packed(0, 64 * 50, 64)
    together = threading.Barrier(3)

    def look() -> list[StoredMessage]:
        seen = []
        for batch in batches:
            together.wait()
            seen.append(batch.messages[0])
        return seen

    with ThreadPoolExecutor(3) as threads:
        first, *others = [looking.result() for looking in [threads.submit(look) for _ in range(3)]]
    for seen in others:
        assert all(one is another for one, another in zip(first, seen, strict=True))


def test_a_message_over_a_batch_replaces_its_own() -> None:
    queue = ProcessQueue(QUEUE, now=0.0)
    batches = packed(0, 64, 64)
    queue.put(batches, 100)
    assert queue.accumulated == 100 - 63
    (longer,) = packed(10, 64, 64, b"longer")
    queue.put(batches_of(longer.messages[:1], 1))
    assert (queue.count, queue.body_bytes) == (64, 63 + 6)
    queue.put([longer])
    assert (queue.count, queue.highest) == (74, 73)
    assert queue.remove(batches) == 64
    assert queue.remove([longer]) == 74
    assert queue.is_empty
