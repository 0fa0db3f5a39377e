"""Spans and metrics of sends and handler calls, read with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.asking import properties, records
from tests.support.trace_entries import decode_traces
from tests.support.wire import Wire

from penstock import (
    DeadLetter,
    Message,
    MessageQueue,
    Middleware,
    Producer,
    PushConsumer,
    RemotingError,
    RetryLater,
    StoredMessage,
    aio,
)
from penstock.client.middleware import HandlerCall
from penstock.model.names import TRACE_TOPIC
from penstock.otel import Telemetry
from penstock.otel.propagation import creation_of, with_context
from penstock.protocol.traces import ConsumeBegun, ConsumeEnded, Published
from penstock.testing.embedded import Embedded, embedded

SECONDS = 60
W3C = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Recorded:
    """What was reported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def telemetry(self, **options: bool) -> Telemetry:
        return Telemetry(self.provider, self.meters, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded()
    yield found
    found.close()


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


def ids(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def consume(mq: Embedded, topic: str, telemetry: Middleware, handler: Any, count: int) -> None:
    """Run a consumer until its handler was called so often."""
    calls = threading.Semaphore(0)

    class Counting(Middleware):
        """The outermost, so its end is the end of all."""

        def after_handle(self, call: object) -> None:
            calls.release()

    consumer = PushConsumer(
        f"g-{topic}",
        namesrv=mq.namesrv,
        start_from="first",
        middleware=[Counting(), telemetry],
    )
    consumer.on(topic)(handler)
    with consumer:
        for _ in range(count):
            assert calls.acquire(timeout=SECONDS)


@pytest.mark.spec("O9")
def test_a_send_and_its_handler_call_are_one_trace(mq: Embedded, recorded: Recorded) -> None:
    mq.admin.create_topic("one", 1)
    seen: list[tuple[int, int]] = []

    def handler(message: StoredMessage) -> None:
        active = trace.get_current_span().get_span_context()
        seen.append((active.trace_id, active.span_id))

    with Producer("p", namesrv=mq.namesrv, middleware=[recorded.telemetry()]) as producer:
        receipt = producer.send(Message("one", b"hello", tag="paid", keys=["o-1"]))
    consume(mq, "one", recorded.telemetry(), handler, 1)
    [send], [process] = recorded.spans("send one"), recorded.spans("process one")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(send) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "one",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": receipt.msg_id,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("o-1",),
        "penstock.attempts": 1,
    }
    found = attributes(process)
    assert found["messaging.message.id"] == receipt.msg_id
    assert found["messaging.consumer.group.name"] == "g-one"
    assert (found["penstock.attempt"], found["penstock.outcome"]) == (1, "SUCCESS")
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == ids(send)
    assert [(link.context.trace_id, link.context.span_id) for link in process.links] == [ids(send)]
    # The span is the current one within the handler, and not after it.
    assert seen == [ids(process)]
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.spec("O9")
def test_attempts_share_the_send_that_created_the_message(mq: Embedded, recorded: Recorded) -> None:
    mq.admin.create_topic("tried", 1)

    def handler(message: StoredMessage) -> None:
        if message.reconsume_times < 2:
            raise RetryLater("1s")

    with Producer("p", namesrv=mq.namesrv, middleware=[recorded.telemetry()]) as producer:
        producer.send(Message("tried", b"x"))
    consume(mq, "tried", recorded.telemetry(), handler, 3)
    [send] = recorded.spans("send tried")
    attempts = recorded.spans("process tried")
    assert [attributes(span)["penstock.attempt"] for span in attempts] == [1, 2, 3]
    assert {span.parent.span_id for span in attempts if span.parent} == {ids(send)[1]}
    codes = [span.status.status_code for span in attempts]
    assert codes == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert attributes(attempts[0])["error.type"] == "RetryLater"


OF_THE_AGENT = W3C
"""What OpenTelemetry's agent adds to the user properties of a Java producer's message."""


@pytest.mark.spec("O10")
async def test_a_java_producer_with_the_agent_and_a_consumer_are_one_trace(
    mq: Embedded, recorded: Recorded
) -> None:
    mq.admin.create_topic("from-java", 1)
    [broker] = mq.admin.cluster()
    async with await Wire.connect(int(broker.address.rpartition(":")[2])) as java:
        await java.send("from-java", body=b"hello", properties={"traceparent": OF_THE_AGENT})
    await asyncio.to_thread(consume, mq, "from-java", recorded.telemetry(), lambda message: None, 1)
    [process] = recorded.spans("process from-java")
    _, trace_id, span_id, _ = OF_THE_AGENT.split("-")
    created = (int(trace_id, 16), int(span_id, 16))
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == created
    assert process.parent.is_remote
    assert [(link.context.trace_id, link.context.span_id) for link in process.links] == [created]


@pytest.mark.spec("O10")
async def test_the_agent_of_a_java_consumer_finds_the_send_of_a_producer(
    mq: Embedded, recorded: Recorded
) -> None:
    mq.admin.create_topic("to-java", 1)
    with Producer("p-java", namesrv=mq.namesrv, middleware=[recorded.telemetry()]) as producer:
        producer.send(Message("to-java", b"hello"))
    [broker] = mq.admin.cluster()
    async with await Wire.connect(int(broker.address.rpartition(":")[2])) as java:
        [record] = records(await java.pull("java-group", "to-java", 0))
    # The agent takes the W3C form only: version 00, lower case, all four parts.
    found = re.fullmatch(
        r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", properties(record)["traceparent"]
    )
    assert found is not None
    [send] = recorded.spans("send to-java")
    assert (int(found[1], 16), int(found[2], 16)) == ids(send)
    assert int(found[3], 16) & 1, "sampled, as the send was"


@pytest.mark.spec("O11")
def test_a_batch_links_and_has_no_parent(mq: Embedded, recorded: Recorded) -> None:
    mq.admin.create_topic("batch", 1)
    with Producer("p", namesrv=mq.namesrv, middleware=[recorded.telemetry()]) as producer:
        producer.send_batch([Message("batch", b"%d" % n) for n in range(3)])
    handled = threading.Event()
    consumer = PushConsumer(
        "g-batch",
        namesrv=mq.namesrv,
        start_from="first",
        batch_size=8,
        middleware=[recorded.telemetry()],
    )

    @consumer.on("batch")
    def handle(messages: list[StoredMessage]) -> None:
        assert len(messages) == 3
        handled.set()

    with consumer:
        assert handled.wait(SECONDS)
    [send], [process] = recorded.spans("send batch"), recorded.spans("process batch")
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert attributes(process)["messaging.batch.message_count"] == 3
    assert process.parent is None
    assert len(process.links) == 3


@pytest.mark.spec("O11")
def test_linger_and_submit_end_their_spans_with_the_receipt(
    mq: Embedded, recorded: Recorded
) -> None:
    mq.admin.create_topic("linger", 1)
    telemetry = [recorded.telemetry()]
    with Producer("p", namesrv=mq.namesrv, linger=0.005, middleware=telemetry) as producer:
        futures = [producer.submit(Message("linger", b"x")) for _ in range(4)]
        receipts = {future.result(SECONDS).msg_id for future in futures}
    spans = recorded.spans("send linger")
    assert {attributes(span)["messaging.message.id"] for span in spans} == receipts
    assert len({ids(span)[0] for span in spans}) == 4


@pytest.mark.spec("O11")
async def test_coroutines_have_the_active_span_as_parent(recorded: Recorded) -> None:
    handled = asyncio.Event()
    inner: list[int] = []
    telemetry = recorded.telemetry()
    async with aio.embedded() as mq:
        async with aio.Producer("p", namesrv=mq.namesrv, middleware=[telemetry]) as producer:
            with recorded.provider.get_tracer("t").start_as_current_span("request") as request:
                await producer.send(Message("aio", b"x"))
        consumer = aio.PushConsumer(
            "g-aio", namesrv=mq.namesrv, start_from="first", middleware=[telemetry]
        )

        @consumer.on("aio")
        async def handle(message: StoredMessage) -> None:
            await asyncio.sleep(0)
            inner.append(trace.get_current_span().get_span_context().span_id)
            handled.set()

        async with consumer, asyncio.timeout(SECONDS):
            await handled.wait()
    [send], [process] = recorded.spans("send aio"), recorded.spans("process aio")
    assert send.parent is not None
    assert send.parent.span_id == request.get_span_context().span_id
    assert ids(process)[0] == ids(send)[0]
    assert inner == [ids(process)[1]]


@pytest.mark.spec("O11")
def test_what_the_user_set_stays_and_what_is_broken_is_ignored() -> None:
    context = trace.set_span_in_context(trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT))
    # Nothing of our context is mixed into one that the program set.
    context = baggage.set_baggage("tenant", "a", context)
    kept = with_context(Message("t", b"x", properties={"traceparent": W3C}), context)
    assert kept.properties == {"traceparent": W3C}

    def stored(**properties: str) -> StoredMessage:
        return StoredMessage("t", b"x", properties, MessageQueue("t", "b", 0), 0)

    found = creation_of(stored(traceparent=W3C))
    assert found is not None
    assert found.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736
    assert creation_of(stored(TRACE_CONTEXT=W3C)) == found
    for broken in ("", "00", W3C[:-3], "ff" + W3C[2:], "x" * 10_000):
        assert creation_of(stored(traceparent=broken)) is None


def test_without_a_parent_there_is_a_link(mq: Embedded, recorded: Recorded) -> None:
    mq.admin.create_topic("linked", 1)
    with Producer("p", namesrv=mq.namesrv, middleware=[recorded.telemetry()]) as producer:
        producer.send(Message("linked", b"x"))
    consume(mq, "linked", recorded.telemetry(parent=False), lambda message: None, 1)
    [process] = recorded.spans("process linked")
    assert process.parent is None
    assert len(process.links) == 1


def test_a_handler_that_is_called_within_a_span_belongs_to_it(recorded: Recorded) -> None:
    message = StoredMessage("t", b"x", {"traceparent": W3C}, MessageQueue("t", "b", 0), 0)
    telemetry = recorded.telemetry()
    call = HandlerCall("g", message.queue, [message], outcome="SUCCESS")
    with recorded.provider.get_tracer("test").start_as_current_span("batch job"):
        telemetry.before_handle(call)
        telemetry.after_handle(call)
    [process], [around] = recorded.spans("process t"), recorded.spans("batch job")
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == ids(around)
    [link] = process.links
    assert link.context.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736


def test_failures_are_on_the_span_and_in_the_metrics(mq: Embedded, recorded: Recorded) -> None:
    with (
        Producer(
            "p", namesrv="127.0.0.1:1", send_timeout=0.2, middleware=[recorded.telemetry()]
        ) as producer,
        pytest.raises(RemotingError) as raised,
    ):
        producer.send(Message("nowhere", b"x"))
    [send] = recorded.spans("send nowhere")
    assert send.status.status_code is StatusCode.ERROR
    assert attributes(send)["error.type"] == raised.type.__name__
    [point] = recorded.points("messaging.client.sent.messages")
    assert point.attributes["error.type"] == raised.type.__name__


@pytest.mark.spec("O13")
def test_metrics_count_messages_and_time(mq: Embedded, recorded: Recorded) -> None:
    mq.admin.create_topic("counted", 1)
    telemetry = recorded.telemetry()

    def handler(message: StoredMessage) -> None:
        time.sleep(0.05)
        if message.body == b"bad":
            raise DeadLetter("no")

    with Producer("p", namesrv=mq.namesrv, middleware=[telemetry]) as producer:
        for body in (b"good", b"bad"):
            producer.send(Message("counted", body))
    begun = time.perf_counter()
    consume(mq, "counted", telemetry, handler, 2)
    passed = time.perf_counter() - begun
    [sent] = recorded.points("messaging.client.sent.messages")
    assert sent.value == 2
    consumed = {
        point.attributes.get("error.type"): point.value
        for point in recorded.points("messaging.client.consumed.messages")
    }
    assert consumed == {None: 1, "DeadLetter": 1}
    durations = recorded.points("messaging.process.duration")
    assert sum(point.count for point in durations) == 2
    # In seconds.
    assert 0.1 <= sum(point.sum for point in durations) <= passed
    [operation] = recorded.points("messaging.client.operation.duration")
    assert operation.count == 2


@pytest.mark.spec("O13")
def test_the_trace_topic_and_spans_are_both_complete(mq: Embedded, recorded: Recorded) -> None:
    mq.admin.create_topic("both", 1)
    telemetry = recorded.telemetry()
    with Producer("p", namesrv=mq.namesrv, middleware=[telemetry], trace=True) as producer:
        ids_sent = {producer.send(Message("both", b"x")).msg_id for _ in range(3)}
    calls = threading.Semaphore(0)
    consumer = PushConsumer(
        "g-both", namesrv=mq.namesrv, start_from="first", middleware=[telemetry], trace=True
    )

    @consumer.on("both")
    def handle(message: StoredMessage) -> None:
        calls.release()

    with consumer:
        for _ in range(3):
            assert calls.acquire(timeout=SECONDS)
    # Both are sent by the time a client has stopped.
    sends, processes = recorded.spans("send both"), recorded.spans("process both")
    assert {attributes(span)["messaging.message.id"] for span in sends} == ids_sent
    assert {attributes(span)["messaging.message.id"] for span in processes} == ids_sent
    for msg_id in ids_sent:
        events = mq.admin.message_life(msg_id, topic="both").events
        assert [one.kind for one in events].count("handled") == 1
    traces = [
        entry
        for row in mq.admin.topic_stats(TRACE_TOPIC)
        for message in mq.admin.messages(
            MessageQueue(TRACE_TOPIC, row.broker_name, row.queue_id), 0, count=100
        ).messages
        for entry in decode_traces(message.body)
        if getattr(entry, "msg_id", None) in ids_sent
    ]
    kinds = [type(entry) for entry in traces]
    for kind in (Published, ConsumeBegun, ConsumeEnded):
        assert kinds.count(kind) == 3, kind
    # Neither writes into the other: a trace message has no context, its send no span.
    assert recorded.spans(f"send {TRACE_TOPIC}") == []


def test_it_travels_to_other_processes_without_its_providers(recorded: Recorded) -> None:
    copy = pickle.loads(pickle.dumps(recorded.telemetry(parent=False)))
    assert isinstance(copy, Telemetry)
    assert copy.__reduce__()[1] == (False,)


@pytest.mark.spec("O12")
def test_clients_without_it_do_not_load_opentelemetry() -> None:
    code = (
        "import sys\n"
        "from penstock import Message, Producer, PushConsumer, embedded\n"
        "with embedded() as mq, Producer('p', namesrv=mq.namesrv) as producer:\n"
        "    producer.send(Message('t', b'x'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n"
        "    import penstock.otel\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'penstock[otel]'" in done.stdout
