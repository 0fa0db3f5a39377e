"""The context of a trace within the properties of a message, as W3C defines it.

The names are ``traceparent``, ``tracestate`` and ``baggage``, which the Java agent uses as well.
Retries and redrives copy properties, so all attempts point to the send that created the message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext

from penstock.model import Message, StoredMessage

TRACEPARENT: Final = "traceparent"
_OLD: Final = "TRACE_CONTEXT"
"""Where clients of RocketMQ 5 wrote the same text for a while."""


def with_context(message: Message, carried: Context) -> Message:
    """A message with the context in its properties; what the user has set is left alone."""
    before = message.properties or {}
    if TRACEPARENT in before:
        return message
    added: dict[str, str] = {}
    propagate.inject(added, carried)
    # Characters that separate properties would end them.
    fit = {key: value for key, value in added.items() if value.isprintable()}
    if not fit:
        return message
    return dataclasses.replace(message, properties={**fit, **before})


def context_of(message: StoredMessage) -> Context:
    """The context that a message carries; one that cannot be read is as good as none."""
    properties: Mapping[str, str] = message.properties
    if TRACEPARENT not in properties and _OLD in properties:
        properties = {**properties, TRACEPARENT: properties[_OLD]}
    return propagate.extract(properties, context=Context())


def creation_of(message: StoredMessage) -> SpanContext | None:
    """The span that created a message."""
    found = trace.get_current_span(context_of(message)).get_span_context()
    return found if found.is_valid else None


def link_to(created: SpanContext) -> Link:
    """A link to the span that created a message."""
    return Link(created)


def has_active_span() -> bool:
    """Whether a span is active where this is called."""
    return trace.get_current_span(context.get_current()).get_span_context().is_valid
