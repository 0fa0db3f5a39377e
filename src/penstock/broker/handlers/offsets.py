"""Committed offsets of groups, first and last offsets of queues."""

from __future__ import annotations

from penstock.broker.state import BrokerState
from penstock.errors import GroupNotFound, InvalidArgument, NotFound
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.offsets import (
    EarliestStoreTimeResult,
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    OffsetResult,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from penstock.remoting.dispatch import Call, Reply, handles
from penstock.remoting.long_answers import Steps
from penstock.remoting.promise import error_answer


def _offset(broker: BrokerState, topic: str, offset: int) -> Command:
    """The answer with an offset of a queue, and the epoch it belongs to."""
    return Command(0, ext=encode_header(OffsetResult(offset)) | broker.topic_epochs.fields(topic))


@handles(RequestCode.QUERY_CONSUMER_OFFSET)
def query_consumer_offset(broker: BrokerState, ask: QueryConsumerOffset) -> Command:
    """The committed offset of a group in a queue."""
    committed = broker.offsets.committed(ask.consumer_group, ask.topic, ask.queue_id)
    if committed is not None:
        return _offset(broker, ask.topic, committed)
    # A new group starts at 0 only while the queue's first message is there and fresh; for an
    # empty queue or after a cleanup the consumer must choose by its own setting.
    storage = broker.storage
    if (
        ask.set_zero_if_not_found is not False
        and storage.min_offset(ask.topic, ask.queue_id) <= 0
        and storage.store.is_in_memory(ask.topic, ask.queue_id, 0)
    ):
        return _offset(broker, ask.topic, 0)
    error = NotFound(
        f"Not found, maybe this group consumer boot first: group {ask.consumer_group} has no "
        f"offset in queue {ask.queue_id} of {ask.topic}"
    )
    return error_answer(error, ext=broker.topic_epochs.fields(ask.topic))


@handles(RequestCode.UPDATE_CONSUMER_OFFSET)
def update_consumer_offset(broker: BrokerState, ask: UpdateConsumerOffset, call: Call) -> Command:
    """Commit the offset of a group; a smaller one is accepted, too.

    One of a topic that was created again since is ignored: it counts messages that are gone.
    """
    if broker.groups.find_or_create(ask.consumer_group) is None:
        raise GroupNotFound(f"Group {ask.consumer_group} not exist!")
    topic = broker.topics.require(ask.topic)
    if not 0 <= ask.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
        raise InvalidArgument(
            f"queueId {ask.queue_id} of topic {ask.topic}",
            expected=f"0 to {max(topic.read_queue_nums, topic.write_queue_nums) - 1}",
        )
    if not broker.topic_epochs.is_outdated(ask.topic, call.command.ext):
        broker.offsets.commit(
            ask.consumer_group, ask.topic, ask.queue_id, ask.commit_offset, call.peer.remote
        )
    # Apache's answer has an empty map here, which clients may read.
    return Command(0, ext={})


@handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
def get_all_offsets(broker: BrokerState) -> Steps:
    """The whole table, as slaves request it."""
    table = yield from broker.offsets.full_table()
    return Reply(body=table)


@handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
def search_offset(broker: BrokerState, ask: SearchOffset) -> OffsetResult:
    """The first message not before a time, or the last not after it."""
    upper = (ask.boundary_type or "").upper() == "UPPER"
    store = broker.storage.store
    return OffsetResult(store.offset_at(ask.topic, ask.queue_id, ask.timestamp, upper=upper))


@handles(RequestCode.GET_MAX_OFFSET)
def get_max_offset(broker: BrokerState, ask: GetMaxOffset) -> Command:
    """One past the last message of a queue."""
    return _offset(broker, ask.topic, broker.storage.max_offset(ask.topic, ask.queue_id))


@handles(RequestCode.GET_MIN_OFFSET)
def get_min_offset(broker: BrokerState, ask: GetMinOffset) -> Command:
    """The first message of a queue that is still there."""
    return _offset(broker, ask.topic, broker.storage.min_offset(ask.topic, ask.queue_id))


@handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
def get_earliest_store_time(
    broker: BrokerState, ask: GetEarliestStoreTime
) -> EarliestStoreTimeResult:
    """When the first message of a queue was stored; -1 if there is none."""
    return EarliestStoreTimeResult(
        broker.storage.store.earliest_store_time(ask.topic, ask.queue_id)
    )
