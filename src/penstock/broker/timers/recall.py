"""Recalling a timer message before it is due.

The broker stores a delete mark in the slot of the message; when the slot is due, message and mark
are dropped together. RocketMQ acknowledges every mark. Here the message is looked up first, so
that success means that it will not be delivered:

    handle ─▶ checks ─▶ parked record found by its unique id? ─▶ slot not taken yet? ─▶ mark stored
"""

from __future__ import annotations

from typing import Final

from penstock.broker.state import BrokerState
from penstock.broker.timers.admission import parked, slot_of
from penstock.broker.timers.parked_records import Parked, read_parked
from penstock.errors import (
    IllegalOperation,
    InvalidArgument,
    NoPermission,
    ProtocolError,
    RequestRefused,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model.names import TIMER_TOPIC, WRITE, Property
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.send import RecallMessage
from penstock.protocol.recall_handles import RecallHandle, decode_handle
from penstock.store import Draft

RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
_MOST_COPIES: Final = 64


def check_recall(broker: BrokerState, ask: RecallMessage) -> RecallHandle:
    """The handle of a request that may be served; raises what is wrong otherwise."""
    config = broker.config
    if not config.recall_message_enable:
        raise NoPermission(
            "recall failed, operation is forbidden", hint="set recallMessageEnable=true"
        )
    if config.is_slave:
        raise RequestRefused(
            "recall failed, broker service not available", code=ResponseCode.SLAVE_NOT_AVAILABLE
        )
    if not (config.broker_permission & WRITE or config.allow_recall_when_broker_not_writeable):
        raise ServiceNotAvailable("recall failed, broker service not available")
    if ask.topic not in broker.topics:
        raise TopicNotFound(f"recall failed, the topic[{ask.topic}] not exist")
    try:
        handle = decode_handle(ask.recall_handle)
    except InvalidArgument as error:
        raise IllegalOperation(error.what) from error
    if handle.topic != ask.topic:
        raise IllegalOperation("recall failed, topic not match", expected=handle.topic)
    if handle.broker_name != config.broker_name:
        raise IllegalOperation(
            "recall failed, broker service not available", expected=config.broker_name
        )
    left = (handle.time_ms or 0) - broker.clock.time_ms()
    if not 0 < left < config.timer_max_delay_sec * 1000:
        raise IllegalOperation(
            "recall failed, timestamp invalid", expected="a message that is not due yet"
        )
    return handle


def is_marked(broker: BrokerState, handle: RecallHandle) -> bool:
    """Whether the message has a delete mark already; raises if there is nothing to recall."""
    assert handle.time_ms is not None
    slot_ms = slot_of(handle.time_ms, broker.config.timer_precision)
    if broker.storage.store.key_index is None:
        # Without the key index the message cannot be looked up: as RocketMQ, hope that it is there.
        return False
    found = broker.storage.store.query(TIMER_TOPIC, handle.unique_id, max_count=_MOST_COPIES)
    copies = [copy for copy in map(_read, found.slices) if copy is not None]
    same = [one for one in copies if one.topic == handle.topic and one.slot_ms == slot_ms]
    wanted = (handle.topic, handle.unique_id)
    messages = [one for one in same if not one.delete_key and one.unique_id == handle.unique_id]
    if not messages:
        raise IllegalOperation(
            f"recall failed, no timer message {handle.unique_id} waits",
            expected="a message that was not delivered yet",
        )
    if not broker.timers.is_open(slot_ms):
        raise IllegalOperation(
            f"recall failed, message {handle.unique_id} is being delivered",
            expected="a message that is not due yet",
        )
    return any(one.delete_key and one.deletes == wanted for one in same)


def delete_mark(
    broker: BrokerState, ask: RecallMessage, handle: RecallHandle, born_host: bytes
) -> Draft:
    """The delete mark of a message, as it is parked beside it."""
    assert handle.time_ms is not None
    now, config = broker.clock.time_ms(), broker.config
    properties = {
        Property.TAGS: RECALL_TAG,
        Property.TIMER_DELETE_KEY: handle.unique_id,
        Property.UNIQUE_KEY: handle.unique_id,
        Property.TIMER_DELIVER_MS: str(handle.time_ms),
        Property.BORN_TIMESTAMP: str(now),
        Property.PRODUCER_GROUP: ask.producer_group or "",
    }
    draft = Draft(
        handle.topic,
        0,
        _BODY,
        b"",
        born_timestamp=now,
        born_host=born_host,
        store_host=broker.store_host,
    )
    present = {key: value for key, value in properties.items() if value}
    return parked(draft, present, slot_of(handle.time_ms, config.timer_precision))


def _read(view: memoryview) -> Parked | None:
    try:
        return read_parked(view)
    except ProtocolError:
        return None
