"""Spans and metrics of sends and handler calls, by OpenTelemetry's conventions for messaging.

It is a `Middleware` and nothing more: a client without it does not load OpenTelemetry. SDK,
sampling and exporters are the application's.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from penstock.client.middleware import HandlerCall, Middleware, SendCall
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.otel import propagation

SYSTEM: Final = "rocketmq"
_NAME: Final = "penstock"
_STARTED: Final = "penstock.otel.started"
_SPAN: Final = "penstock.otel.span"
_TOKEN: Final = "penstock.otel.token"
_BASE: Final[dict[str, AttributeValue]] = {"messaging.system": SYSTEM}

Attributes = dict[str, AttributeValue]


class Telemetry(Middleware):
    """Middleware that reports sends and handler calls to OpenTelemetry.

    A send is a span ``send TOPIC`` until its receipt; its context travels in the properties of the
    message. A handler call is a span ``process TOPIC`` that is current within the handler. It
    links to the sends of its messages; for a single message, and if no span is active, the send
    is also its parent, so that both are in one trace. ``parent=False`` leaves it at the link.

    The providers are OpenTelemetry's global ones unless given. In Spark's handlers the global
    ones of the executors are used.
    """

    __slots__ = (
        "_consumed",
        "_has_parent",
        "_meter_provider",
        "_operation_seconds",
        "_process_seconds",
        "_sent",
        "_tracer",
        "_tracer_provider",
    )

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        parent: bool = True,
    ) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._has_parent = parent
        version = importlib.metadata.version(_NAME)
        self._tracer = trace.get_tracer(_NAME, version, tracer_provider)
        meter = metrics.get_meter(_NAME, version, meter_provider)
        self._operation_seconds = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of sends."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages sent, or tried to."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages given to handlers."
        )
        self._process_seconds = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of handler calls."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Providers have threads and connections; another process has its own.
        return _on_another_process, (self._has_parent,)

    # Sends

    def before_send(self, call: SendCall) -> None:
        """Begin the span and put its context into the messages."""
        topic = call.messages[0].topic
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER,
            attributes=_send_attributes(call.messages, call.queue),
        )
        carried = trace.set_span_in_context(span)
        call.messages = [propagation.with_context(message, carried) for message in call.messages]
        call.notes[_SPAN] = span
        call.notes[_STARTED] = time.perf_counter()

    def after_send(self, call: SendCall) -> None:
        """End the span."""
        span, started = call.notes.pop(_SPAN, None), call.notes.pop(_STARTED, None)
        if not isinstance(span, Span) or not isinstance(started, float):
            return
        if call.receipt is not None:
            span.set_attributes(_receipt_attributes(call))
        short = _operation("send", call.messages[0].topic)
        if call.error is not None:
            short["error.type"] = _fail(span, call.error)
        span.end()
        self._sent.add(len(call.messages), short)
        self._operation_seconds.record(time.perf_counter() - started, short)

    # Handler calls

    def before_handle(self, call: HandlerCall) -> None:
        """Begin the span and make it the current one."""
        created = [
            found
            for message in call.messages
            if (found := propagation.creation_of(message)) is not None
        ]
        span = self._tracer.start_span(
            f"process {call.messages[0].topic}",
            context=self._parent_of(call.messages),
            kind=SpanKind.CONSUMER,
            attributes=_handler_attributes(call),
            links=[propagation.link_to(found) for found in created],
        )
        call.notes[_SPAN] = span
        call.notes[_STARTED] = time.perf_counter()
        call.notes[_TOKEN] = context.attach(trace.set_span_in_context(span))

    def _parent_of(self, messages: Sequence[StoredMessage]) -> Context | None:
        """The context of a single message; None: the context that is current."""
        if not self._has_parent or len(messages) != 1 or propagation.has_active_span():
            return None
        return propagation.context_of(messages[0])

    def after_handle(self, call: HandlerCall) -> None:
        """End the span."""
        span, started = call.notes.pop(_SPAN, None), call.notes.pop(_STARTED, None)
        token: Any = call.notes.pop(_TOKEN, None)
        if token is not None:
            context.detach(token)
        if not isinstance(span, Span) or not isinstance(started, float):
            return
        span.set_attribute("penstock.outcome", call.outcome)
        short = _operation("process", call.messages[0].topic)
        short["messaging.consumer.group.name"] = call.group
        if call.error is not None:
            short["error.type"] = _fail(span, call.error)
        elif not call.success:
            span.set_status(Status(StatusCode.ERROR, call.outcome))
            short["error.type"] = call.outcome
        span.end()
        self._consumed.add(len(call.messages), short)
        self._process_seconds.record(time.perf_counter() - started, short)


def _on_another_process(parent: bool) -> Telemetry:
    return Telemetry(parent=parent)


def _fail(span: Span, error: BaseException) -> str:
    kind = type(error).__qualname__
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
    span.set_attribute("error.type", kind)
    return kind


# Attributes


def _operation(name: str, topic: str) -> Attributes:
    return {
        **_BASE,
        "messaging.operation.name": name,
        "messaging.operation.type": name,
        "messaging.destination.name": topic,
    }


def _send_attributes(messages: Sequence[Message], queue: MessageQueue | None) -> Attributes:
    first = messages[0]
    found = {**_operation("send", first.topic), "messaging.rocketmq.namespace": ""}
    if queue is not None:
        found["messaging.destination.partition.id"] = str(queue.queue_id)
    if len(messages) > 1:
        found["messaging.batch.message_count"] = len(messages)
        return found
    found["messaging.rocketmq.message.type"] = _message_type(first)
    if first.tag:
        found["messaging.rocketmq.message.tag"] = first.tag
    if first.keys:
        found["messaging.rocketmq.message.keys"] = list(first.keys)
    if first.sharding_key is not None:
        found["messaging.rocketmq.message.group"] = first.sharding_key
    if isinstance(first.delay, int):
        found["messaging.rocketmq.message.delay_time_level"] = first.delay
    return found


def _message_type(message: Message) -> str:
    if message.delay is not None:
        return "delay"
    return "normal" if message.sharding_key is None else "fifo"


def _receipt_attributes(call: SendCall) -> Attributes:
    assert call.receipt is not None, "checked"
    found: Attributes = {
        "messaging.destination.partition.id": str(call.receipt.queue.queue_id),
        "penstock.attempts": call.attempts,
    }
    if len(call.messages) == 1:
        found["messaging.message.id"] = call.receipt.msg_id
    return found


def _handler_attributes(call: HandlerCall) -> Attributes:
    first = call.messages[0]
    found = {
        **_operation("process", first.topic),
        "messaging.rocketmq.namespace": call.namespace or "",
        "messaging.consumer.group.name": call.group,
        "messaging.destination.partition.id": str(call.queue.queue_id),
        "penstock.attempt": call.attempt,
    }
    if len(call.messages) > 1:
        found["messaging.batch.message_count"] = len(call.messages)
        return found
    found["messaging.message.id"] = first.msg_id
    found["messaging.message.body.size"] = len(first.body)
    if first.tag:
        found["messaging.rocketmq.message.tag"] = first.tag
    if first.keys:
        found["messaging.rocketmq.message.keys"] = list(first.keys)
    return found
