"""The records of popped messages that are stored again: as a retry or as a dead letter.

Their properties are never parsed and written anew: the store keeps what producers sent, also text
that no property string could be made of. Such a message must be redelivered like any other.
"""

from __future__ import annotations

from penstock.broker.delivery.retries import DEAD_LETTER_QUEUE
from penstock.broker.send_rules import without_property
from penstock.model.names import (
    POP_RETRY_MARKS,
    RETRY_PREFIX,
    Property,
    dead_letter_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
    retry_topic,
)
from penstock.model.properties import MAX_PROPERTIES_BYTES, get_property
from penstock.protocol.records.codec import Record
from penstock.store import Draft, draft_of

RETRY_QUEUE = 0


def retry(
    record: Record, group: str, pop_time: int, store_host: bytes, *, times: int, is_v2: bool
) -> Draft:
    """The record of the next delivery, which is number ``times``, counted from 0.

    The delay was the invisible time, so it has no other. A message that lies in a retry topic goes
    back to that one.
    """
    topic = record.topic
    if not topic.startswith(RETRY_PREFIX):
        topic = (pop_retry_topic_v2 if is_v2 else pop_retry_topic)(group, topic)
    properties = _properties(record, group, pop_time)
    return _draft(record, topic, RETRY_QUEUE, properties, store_host, times)


def dead_letter(
    record: Record, group: str, pop_time: int, store_host: bytes, *, times: int
) -> Draft:
    """The record of a message that was delivered ``times`` times, all in vain."""
    properties = _properties(record, group, pop_time)
    if get_property(properties, Property.RETRY_TOPIC.encode()) is None:
        properties = _with(properties, Property.RETRY_TOPIC, origin_topic(record.topic, group))
    topic = dead_letter_topic(group)
    return _draft(record, topic, DEAD_LETTER_QUEUE, properties, store_host, times)


def _properties(record: Record, group: str, pop_time: int) -> bytes:
    properties = _with(record.properties, Property.ORIGIN_GROUP, group)
    first = Property.FIRST_POP_TIME
    if not record.reconsume_times or get_property(properties, first.encode()) is None:
        properties = _with(properties, first, str(pop_time))
    return properties


def _with(properties: bytes, key: str, value: str) -> bytes:
    """The text with another value of a key; without that key if it would be too long.

    A value of before must not stay: it may be that of another group.
    """
    mark = key.encode() + b"\x01"
    properties = without_property(properties, mark)
    end = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    longer = b"%b%b%b%b\x02" % (properties, end, mark, value.encode())
    return longer if len(longer) <= MAX_PROPERTIES_BYTES else properties


def _draft(
    record: Record,
    topic: str,
    queue_id: int,
    properties: bytes,
    store_host: bytes,
    times: int,
) -> Draft:
    return draft_of(record, topic, queue_id, properties)._replace(
        born_host=store_host,
        store_host=store_host,
        reconsume_times=times,
        prepared_transaction_offset=0,
    )


def origin_topic(topic: str, group: str) -> str:
    """The topic that a group subscribed to, from the name of its retry topic."""
    for mark in POP_RETRY_MARKS:
        topic = topic.removeprefix(retry_topic(group) + mark)
    return topic
