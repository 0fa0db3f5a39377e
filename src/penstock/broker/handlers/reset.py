"""Moving a group to another time or offset.

By default the broker resets the offsets itself, and the group's next pull of each queue is answered
with the new one (PULL_OFFSET_MOVED); this works for groups without members, too. With
``useServerSideResetOffset=false`` it computes the offsets and sends them to every member, as
RocketMQ before 5.2 did.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from penstock.broker.handlers.relay import FIRST_VERSION_WITH_STATUS
from penstock.broker.state import BrokerState
from penstock.errors import (
    ConnectionLost,
    ConsumerNotOnline,
    GroupNotFound,
    RequestRefused,
    TopicNotFound,
)
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.offsets import ResetOffsets
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.headers.clients import ResetOffset
from penstock.protocol.headers.codec import encode_header
from penstock.remoting.dispatch import Call, Reply, handles
from penstock.remoting.long_answers import STEP, Steps

log = logging.getLogger(__name__)

ALL_QUEUES = -1
NO_OFFSET = -1


@handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
def reset_offset(broker: BrokerState, ask: ResetOffset, call: Call) -> Steps:
    """Move a group in a topic; the answer has the new offsets."""
    if broker.config.is_slave:
        raise RequestRefused("Can not reset offset in slave broker", expected="a master")
    topic = broker.topics.get(ask.topic)
    if topic is None:
        raise TopicNotFound(f"Topic {ask.topic} does not exist")
    if broker.config.use_server_side_reset_offset:
        table = yield from _reset_here(broker, ask, topic)
    else:
        table = yield from _ask_members(broker, ask, topic, call)
    log.info(
        "offsets reset group=%s topic=%s timestamp=%d queues=%d by=%s",
        ask.group,
        ask.topic,
        ask.timestamp,
        len(table),
        call.peer.remote,
    )
    return Reply(body=ResetOffsets(table))


def _reset_here(
    broker: BrokerState, ask: ResetOffset, topic: TopicConfig
) -> Generator[None, None, dict[MessageQueue, int]]:
    if ask.group not in broker.groups:
        raise GroupNotFound(f"Group {ask.group} does not exist")
    if ask.queue_id is not None and ask.queue_id > ALL_QUEUES:
        if ask.queue_id >= topic.read_queue_nums:
            raise RequestRefused(
                f"queue {ask.queue_id} of topic {ask.topic}",
                expected=f"0 to {topic.read_queue_nums - 1}",
            )
        offsets = {ask.queue_id: _explicit(broker, ask, ask.queue_id)}
    else:
        offsets = {}
        for queue_id in range(topic.read_queue_nums):
            if queue_id % STEP == 0:
                yield None
            offsets[queue_id] = _by_time(broker, ask, queue_id)
    for queue_id, offset in offsets.items():
        broker.offsets.reset(ask.group, ask.topic, queue_id, offset)
    for queue_id in offsets:
        # Answer held pulls at once, not at the end of their 15 seconds.
        broker.held.wake((ask.topic, queue_id), ask.group)
    broker.pop.held.wake_group(ask.topic, ask.group)
    return {_queue(broker, ask.topic, queue_id): offset for queue_id, offset in offsets.items()}


def _explicit(broker: BrokerState, ask: ResetOffset, queue_id: int) -> int:
    """The requested offset if the queue has it; without one, that of the time."""
    if ask.offset is None or ask.offset == NO_OFFSET:
        return _by_time(broker, ask, queue_id)
    low = broker.storage.min_offset(ask.topic, queue_id)
    high = broker.storage.max_offset(ask.topic, queue_id)
    # RocketMQ accepts one past the end, which the next pull would correct.
    if not low <= ask.offset <= high + 1:
        raise RequestRefused(
            f"Target offset {ask.offset} not in consume queue range [{low}-{high}]"
        )
    return min(ask.offset, high)


def _by_time(broker: BrokerState, ask: ResetOffset, queue_id: int) -> int:
    if ask.timestamp < 0:
        return broker.storage.max_offset(ask.topic, queue_id)
    return max(0, broker.storage.store.offset_at(ask.topic, queue_id, ask.timestamp))


def _queue(broker: BrokerState, topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, broker.config.broker_name, queue_id)


# As RocketMQ did before 5.2


def _ask_members(
    broker: BrokerState, ask: ResetOffset, topic: TopicConfig, call: Call
) -> Generator[None, None, dict[MessageQueue, int]]:
    table: dict[MessageQueue, int] = {}
    for queue_id in range(topic.write_queue_nums):
        if queue_id % STEP == 0:
            yield None
        committed = broker.offsets.committed(ask.group, ask.topic, queue_id)
        if committed is None:
            raise RequestRefused(
                f"THe consumer group <{ask.group}> not exist: "
                f"it has no offset in queue {queue_id} of {ask.topic}"
            )
        wanted = _by_time(broker, ask, queue_id)
        # Without force a group is only moved back.
        table[_queue(broker, ask.topic, queue_id)] = (
            wanted if ask.is_force else min(wanted, committed)
        )
    members = broker.clients.consumer_group(ask.group)
    if members is None:
        raise ConsumerNotOnline(
            f"Consumer not online, so can not reset offset, Group: {ask.group} "
            f"Topic: {ask.topic} Timestamp: {ask.timestamp}"
        )
    for channel in members.channels.values():
        if channel.version < FIRST_VERSION_WITH_STATUS:
            raise RequestRefused(
                f"the client does not support this feature. version={channel.version}"
            )
    offsets = ResetOffsets(table)
    plain, for_cpp = encode_body(offsets), encode_body(offsets.for_cpp())
    header = ResetOffset(ask.topic, ask.group, ask.timestamp, queue_id=ALL_QUEUES)
    asker_is_cpp = call.command.language is Language.CPP
    for channel in list(members.channels.values()):
        is_cpp = asker_is_cpp or channel.language == Language.CPP.name
        request = Command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ext=encode_header(header),
            body=for_cpp if is_cpp else plain,
        )
        try:
            channel.peer.oneway(request)
        except ConnectionLost:
            # The connection is closing; the other members still get the request.
            continue
    return table
