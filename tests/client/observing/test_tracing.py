"""Message traces: sent to a topic of their own, without delaying anything."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.stage import Stage
from tests.support.trace_entries import decode_traces

from penstock import Message, MessageQueue, Producer, PushConsumer, StoredMessage, aio
from penstock.client.observing import tracing
from penstock.client.observing.tracing import Tracer
from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.transactions import LocalResult, end_transaction, send_half
from penstock.client.settings import ProducerSettings
from penstock.errors import ConfigError, IllegalName
from penstock.model.names import TRACE_TOPIC
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.traces import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Trace,
    TransactionEnded,
)
from penstock.testing.embedded import Embedded, embedded
from penstock.testing.eventually import eventually


def traces(mq: Embedded, topic: str = TRACE_TOPIC) -> list[Trace]:
    """Everything a trace topic has, in the order of its queues."""
    found: list[Trace] = []
    if topic not in mq.admin.topics(internal=True):
        return found
    for ends in mq.admin.topic_stats(topic):
        queue = MessageQueue(topic, ends.broker_name, ends.queue_id)
        for message in mq.admin.messages(queue, 0, count=1000).messages if ends.count else ():
            entries = decode_traces(message.body)
            assert {entry.msg_id for entry in entries} <= set(message.keys), "found by its id"
            found += entries
    return found


@pytest.fixture
def mq() -> Any:
    with embedded(clock="virtual") as running:
        running.admin.create_topic("orders", 1)
        yield running


def test_a_send_is_traced_with_where_it_went(mq: Embedded) -> None:
    with Producer("shop", namesrv=mq.namesrv, trace=True) as producer:
        receipt = producer.send(Message("orders", b"123", tag="paid", keys=["o-1", "o-2"]))
        delayed = producer.send(Message("orders", b"x", delay="10s"))
    [first, second] = traces(mq)
    [broker] = mq.admin.cluster()
    assert first == Published(
        time_ms=first.time_ms,
        region="DefaultRegion",
        group="shop",
        topic="orders",
        msg_id=receipt.msg_id,
        tags="paid",
        keys="o-1 o-2",
        store_host=broker.address,
        body_bytes=3,
        cost_ms=0,
        message_type=0,
        offset_msg_id=receipt.offset_msg_id,
        success=True,
    )
    assert abs(first.time_ms - mq.clock.time_ms()) < 1000
    assert isinstance(second, Published)
    assert (second.msg_id, second.message_type) == (delayed.msg_id, 3)
    # Found by a key of the message, too.
    assert mq.admin.query(TRACE_TOPIC, "o-2")


def test_every_message_of_a_batch_is_traced_by_itself(mq: Embedded) -> None:
    batch = [Message("orders", b"%d" % number, keys=[f"o-{number}"]) for number in range(3)]
    with Producer("shop", namesrv=mq.namesrv, trace=True) as producer:
        receipt = producer.send_batch(batch)
    found = traces(mq)
    assert [entry.msg_id for entry in found] == receipt.msg_id.split(",")
    assert [entry.keys for entry in found] == ["o-0", "o-1", "o-2"]


def test_sends_that_linger_are_traced(mq: Embedded) -> None:
    with Producer("shop", namesrv=mq.namesrv, trace=True, linger=0.01) as producer:
        futures = [producer.submit(Message("orders", b"x")) for _ in range(5)]
        mq.clock.advance("1s")
        ids = [future.result().msg_id for future in futures]
    assert [entry.msg_id for entry in traces(mq)] == ids


def test_both_ends_of_a_handler_call_are_traced(mq: Embedded) -> None:
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first", trace=True)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        if not message.reconsume_times:
            raise ValueError("no")

    with Producer("shop", namesrv=mq.namesrv) as producer, consumer:
        receipt = producer.send(Message("orders", b"1", keys="o-1"))
        mq.clock.advance("30s")
    entries = traces(mq)
    begun = [entry for entry in entries if isinstance(entry, ConsumeBegun)]
    ended = [entry for entry in entries if isinstance(entry, ConsumeEnded)]
    assert len(entries) == 4
    # A retry is another record of the same message.
    assert {entry.msg_id for entry in entries} == {receipt.msg_id}
    by_try = sorted(begun, key=lambda entry: entry.retries)
    assert [(entry.retries, entry.group, entry.keys) for entry in by_try] == [
        (0, "billing", "o-1"),
        (1, "billing", "o-1"),
    ]
    outcome = {entry.request_id: (entry.success, entry.code) for entry in ended}
    assert [outcome[entry.request_id] for entry in by_try] == [(False, 2), (True, 0)]
    assert all(entry.time_ms for entry in ended)


def test_nothing_is_traced_unless_asked_for(mq: Embedded) -> None:
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first")
    consumer.on("orders")(lambda message: None)
    with Producer("shop", namesrv=mq.namesrv) as producer, consumer:
        producer.send(Message("orders", b"1"))
        mq.clock.advance("30s")
    assert traces(mq) == []


def test_traces_can_go_to_another_topic(mq: Embedded) -> None:
    mq.admin.create_topic("audit", 1)
    with Producer("shop", namesrv=mq.namesrv, trace="audit") as producer:
        producer.send(Message("orders", b"1"))
    assert len(traces(mq, "audit")) == 1
    assert traces(mq) == []


def test_a_namespace_is_not_part_of_the_names(mq: Embedded) -> None:
    with Producer("shop", namesrv=mq.namesrv, namespace="blue", trace=True) as producer:
        producer.send(Message("orders", b"1"))
    [entry] = traces(mq)
    assert isinstance(entry, Published)
    assert (entry.group, entry.topic) == ("shop", "orders")


async def test_a_broker_that_wants_no_traces_gets_none(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        server = await stage.name_server()
        await stage.broker(broker_ip1="127.0.0.1", trace_on=False)
        async with aio.Admin(namesrv=server.address) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic(TRACE_TOPIC, 1)
            consumer = aio.PushConsumer(
                "billing", namesrv=server.address, start_from="first", trace=True
            )
            got: list[bytes] = []
            consumer.on("orders")(lambda message: got.append(message.body))
            async with aio.Producer("shop", namesrv=server.address, trace=True) as producer:
                await producer.send(Message("orders", b"1"))
                async with consumer:
                    await eventually(lambda: got == [b"1"])
            [ends] = await admin.topic_stats(TRACE_TOPIC)
            assert ends.count == 0


@on_bench(topics={"T": 1, TRACE_TOPIC: 1})
async def test_transactions_are_traced_when_they_end(bench: Bench) -> None:
    session = bench.session("p1")
    tracer = Tracer(session, "shop", role="PRODUCE")
    producer = ProducerCore(session, ProducerSettings(group="shop"), tracer=tracer)
    producer.start()
    half = await send_half(producer, Message("T", b"x", keys=["o-1"]))
    await end_transaction(producer, half, LocalResult(TransactionDecision.COMMIT))
    await producer.stop()
    sent = bench.broker.asked(RequestCode.SEND_MESSAGE_V2)
    [first, last] = [entry for request in sent for entry in decode_traces(bytes(request.body))]
    assert isinstance(first, Published)
    assert isinstance(last, TransactionEnded)
    assert first.message_type == 1
    assert (last.state, last.from_check, last.msg_id) == ("COMMIT_MESSAGE", False, first.msg_id)
    assert tracer.sent == 2


def test_traces_that_cannot_be_sent_are_dropped_and_delay_nothing(
    mq: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    mq.admin.create_topic(TRACE_TOPIC, 1, permission=4)
    with (
        caplog.at_level(logging.WARNING, "penstock.client.observing.tracing"),
        Producer("shop", namesrv=mq.namesrv, trace=True) as producer,
    ):
        for _ in range(3):
            assert producer.send(Message("orders", b"1")).msg_id
            mq.clock.advance("10s")
    lines = [r for r in caplog.records if "traces cannot be sent" in r.message]
    assert len(lines) == 1, "said once"


def test_there_is_a_bound_for_traces_that_wait(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 2)
    with Producer("shop", namesrv=mq.namesrv, trace=True) as producer:
        futures = [producer.submit(Message("orders", b"x")) for _ in range(5)]
        assert all(future.result() for future in futures)
    assert len(traces(mq)) <= 4


@pytest.mark.parametrize("trace", [1, None, 0.5])
def test_only_a_flag_or_a_topic_is_taken(trace: Any) -> None:
    with pytest.raises(ConfigError, match="trace is"):
        Producer("shop", trace=trace)
    with pytest.raises(IllegalName):
        PushConsumer("billing", trace="no topic")
