"""Stores a popped message again: for its next delivery, or as a dead letter.

Exactly the record of a receipt is read: if it is gone, no other message takes its place.
"""

from __future__ import annotations

import logging

from penstock.broker.pop.retry_records import RETRY_QUEUE, dead_letter, retry
from penstock.broker.state import BrokerState
from penstock.broker.tables.topics import READ_WRITE
from penstock.errors import IllegalMessage, ProtocolError
from penstock.protocol.records.codec import Record, decode_record

log = logging.getLogger(__name__)


def record_of(broker: BrokerState, topic: str, queue_id: int, offset: int) -> Record | None:
    """Exactly this record of a queue; None if it is gone."""
    entry = broker.storage.store.entry(topic, queue_id, offset)
    view = None if entry is None else broker.storage.record_at(entry.log_position)
    if view is None:
        return None
    try:
        record = decode_record(view)
    except ProtocolError as error:
        log.error("unfinished message cannot be read topic=%s error=%s", topic, error)
        return None
    is_it = (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset)
    return record if is_it else None


def redeliver(
    broker: BrokerState, group: str, record: Record, pop_time: int, *, is_suspended: bool
) -> int:
    """Store a message whose invisible time is up; a suspended delivery does not count.

    The log position after the new record, 0 if the message is dropped. `RequestRefused` if there is
    no room for the topic it goes to: then it is to be tried again later.
    """
    times = record.reconsume_times + (0 if is_suspended else 1)
    if not is_suspended and times > broker.groups.require(group).retry_max_times:
        return bury(broker, group, record, pop_time, times)
    try:
        draft = retry(
            record,
            group,
            pop_time,
            broker.store_host,
            times=times,
            is_v2=broker.config.enable_retry_topic_v2,
        )
        if draft.topic not in broker.topics:
            broker.topics.ensure(draft.topic, 1, READ_WRITE)
            if broker.offsets.committed(group, draft.topic, RETRY_QUEUE) is None:
                broker.offsets.commit(group, draft.topic, RETRY_QUEUE, 0, "pop")
        appended = broker.storage.append(draft)
    except IllegalMessage as error:
        _log_dropped(group, record, error)
        return 0
    broker.stats.put(draft.topic, RETRY_QUEUE, appended.size)
    return appended.log_position + appended.size


def bury(broker: BrokerState, group: str, record: Record, pop_time: int, times: int) -> int:
    """Store a message whose retries are used up; the log position after it, 0 if it is dropped.

    `RequestRefused` as for `redeliver`.
    """
    try:
        draft = dead_letter(record, group, pop_time, broker.store_host, times=times)
        broker.topics.ensure(draft.topic, 1, broker.config.dead_letter_permission)
        appended = broker.storage.append(draft)
    except IllegalMessage as error:
        _log_dropped(group, record, error)
        return 0
    broker.stats.dead_letter(group, record.topic)
    return appended.log_position + appended.size


def _log_dropped(group: str, record: Record, error: Exception) -> None:
    # Tried again it would fail again.
    log.error(
        "unfinished message cannot be stored again, dropped group=%s topic=%s error=%s",
        group,
        record.topic,
        error,
    )
