"""Looking up messages by position and by key, and the entries of a queue."""

from __future__ import annotations

from penstock.auth.needs import no_message_at
from penstock.broker.state import BrokerState
from penstock.errors import InvalidArgument
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.bodies.stats import ConsumeQueueEntries, QueueEntryInfo
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import QueryConsumeQueue
from penstock.protocol.headers.pull import QueryMessage, QueryMessageResult, ViewMessage
from penstock.remoting.dispatch import Reply, handles

_UNIQUE_KEY_MAX = 32
_MAX_ENTRIES = 2000


@handles(RequestCode.VIEW_MESSAGE_BY_ID)
def view_message(broker: BrokerState, ask: ViewMessage) -> Reply:
    """The record at a position of the log."""
    record = broker.storage.record_at(ask.offset)
    if record is None:
        raise no_message_at(ask.offset)
    return Reply(body=bytes(record))


@handles(RequestCode.QUERY_MESSAGE)
def query_message(broker: BrokerState, ask: QueryMessage) -> Reply:
    """The records of a topic that have a key, or a unique key, within a range of time."""
    max_count = _UNIQUE_KEY_MAX if ask.unique_key_query else ask.max_num
    result = broker.storage.store.query(
        ask.topic,
        ask.key,
        max_count=max(1, max_count),
        begin_ms=ask.begin_timestamp,
        end_ms=ask.end_timestamp,
    )
    header = QueryMessageResult(result.last_update_ms, result.last_update_position)
    if not result.slices:
        return Reply(
            QueryMessageResult(0, 0),
            code=ResponseCode.QUERY_NOT_FOUND,
            remark="can not find message, maybe time range not correct",
        )
    return Reply(header, list(result.slices))


@handles(RequestCode.QUERY_CONSUME_QUEUE)
def query_consume_queue(broker: BrokerState, ask: QueryConsumeQueue) -> Reply:
    """The entries of a queue, and which of them the filter of a group accepts."""
    broker.topics.require(ask.topic)
    store = broker.storage.store
    low, high = store.min_offset(ask.topic, ask.queue_id), store.max_offset(ask.topic, ask.queue_id)
    if not 0 <= ask.count <= _MAX_ENTRIES:
        raise InvalidArgument(f"count {ask.count}", expected=f"0 to {_MAX_ENTRIES}")
    subscription = None
    members = broker.clients.consumer_group(ask.consumer_group or "")
    if members is not None:
        subscription = members.subscriptions.get(ask.topic)
    entries: list[QueueEntryInfo] = []
    for offset in range(max(ask.index, low), min(ask.index + ask.count, high)):
        entry = store.entry(ask.topic, ask.queue_id, offset)
        if entry is None:
            break
        takes = True
        if subscription is not None:
            filter_ = broker.filters.of_pull(subscription.expression, subscription.expression_type)
            record = store.record_at(entry.log_position)
            takes = record is not None and filter_.takes_record(entry.tags_code, record)
        entries.append(QueueEntryInfo(entry.log_position, entry.size, entry.tags_code, eval=takes))
    return Reply(
        body=ConsumeQueueEntries(
            tuple(entries),
            low,
            high,
            None if subscription is None else SubscriptionData.from_model(subscription),
        )
    )
