"""Which type a message has: its properties say so, not what the client declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.model.names import Property
from penstock.proxy.wire.codes import MessageType

LITE_TOPIC: Final = "__LITE_TOPIC"
DELAYS: Final = frozenset(
    (
        Property.DELAY,
        Property.TIMER_DELIVER_MS,
        Property.TIMER_DELAY_SECONDS,
        Property.TIMER_DELAY_MS,
    )
)


def type_of(properties: Mapping[str, str]) -> MessageType:
    """The type of a message with these properties; the first rule that fits decides."""
    if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if not DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    if Property.SHARDING_KEY in properties:
        return MessageType.FIFO
    if Property.PRIORITY in properties:
        return MessageType.PRIORITY
    if LITE_TOPIC in properties:
        return MessageType.LITE
    return MessageType.NORMAL
