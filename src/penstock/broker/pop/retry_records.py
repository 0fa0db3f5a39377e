"""What becomes of a message whose invisible time is up: a retry or a dead letter."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.delivery.retries import DEAD_LETTER_QUEUE
from penstock.model.names import (
    POP_RETRY_MARKS,
    RETRY_PREFIX,
    Property,
    dead_letter_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
    retry_topic,
)
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.records.codec import Record
from penstock.store import Draft

RETRY_QUEUE = 0


class NextDelivery(NamedTuple):
    """Where a message goes, and as what."""

    draft: Draft
    is_dead: bool


def next_delivery(
    record: Record,
    group: str,
    pop_time: int,
    store_host: bytes,
    *,
    max_times: int,
    is_suspended: bool,
    is_v2: bool,
) -> NextDelivery:
    """The record of the next delivery: a retry, or a dead letter when the retries are used up.

    The delay was the invisible time, so a retry has no other. A message that lies in a retry topic
    goes back to that one.
    """
    times = record.reconsume_times + (0 if is_suspended else 1)
    is_dead = times > max_times and not is_suspended
    if is_dead:
        topic = dead_letter_topic(group)
    elif record.topic.startswith(RETRY_PREFIX):
        topic = record.topic
    else:
        topic = (pop_retry_topic_v2 if is_v2 else pop_retry_topic)(group, record.topic)
    properties = parse_properties(record.properties)
    if not record.reconsume_times or Property.FIRST_POP_TIME not in properties:
        properties[Property.FIRST_POP_TIME] = str(pop_time)
    properties[Property.ORIGIN_GROUP] = group
    if is_dead:
        properties.setdefault(Property.RETRY_TOPIC, origin_topic(record.topic, group))
    draft = Draft(
        topic,
        DEAD_LETTER_QUEUE if is_dead else RETRY_QUEUE,
        record.body,
        encode_properties(properties),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        store_host,
        store_host,
        times,
        0,
    )
    return NextDelivery(draft, is_dead)


def origin_topic(topic: str, group: str) -> str:
    """The topic that a group subscribed to, from the name of its retry topic."""
    for mark in POP_RETRY_MARKS:
        topic = topic.removeprefix(retry_topic(group) + mark)
    return topic
