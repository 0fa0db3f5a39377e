"""What every request of pop consumption is checked for, in RocketMQ's order."""

from __future__ import annotations

from penstock.broker.delivery.filters import EVERYTHING, Filter
from penstock.broker.pop.popping import MAX_MESSAGES
from penstock.broker.state import BrokerState
from penstock.errors import InvalidArgument, NoPermission, SubscriptionIllegal, TopicNotFound
from penstock.model.names import READ
from penstock.model.subscription import TAG
from penstock.protocol.bodies.topics import TopicConfig

MAX_INVISIBLE_MS = 30 * 24 * 3_600_000
"""Longer than any broker keeps messages; the sum with a time must stay a 64-bit number."""
MAX_ATTEMPT_ID = 256
"""Characters; clients send a UUID. It is kept, and saved, for each queue."""


def check_readable(broker: BrokerState, group: str, topic: str, queue_id: int) -> TopicConfig:
    """The topic, if this group may pop it."""
    config = broker.config
    if config.is_slave:
        raise NoPermission(
            f"the broker[{config.broker_name}] is a slave, pop message is forbidden",
            expected="a master",
        )
    if not config.broker_permission & READ:
        raise NoPermission(f"the broker[{config.broker_name}] pop message is forbidden")
    found = broker.topics.get(topic)
    if found is None:
        raise TopicNotFound(
            f"topic[{topic}] not exist, apply first please!", hint=f"penstock topic create {topic}"
        )
    if not found.perm & READ:
        raise NoPermission(f"the topic[{topic}] pop message is forbidden")
    if queue_id >= found.read_queue_nums:
        raise InvalidArgument(
            f"queueId[{queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{found.read_queue_nums}]",
            expected=f"-1 for every queue, or 0 to {found.read_queue_nums - 1}",
        )
    if not broker.groups.require(group).consume_enable:
        raise NoPermission(f"subscription group no permission, {group}")
    if broker.groups.forbidden and broker.groups.may_not_read(group, topic):
        raise NoPermission(f"the consumer group[{group}] is forbidden for topic[{topic}]")
    return found


def check_amount(max_messages: int, invisible_ms: int) -> None:
    """Refuse more messages than one pop may take, and a time without end."""
    if max_messages > MAX_MESSAGES:
        raise InvalidArgument(f"pop of {max_messages} messages", expected=f"at most {MAX_MESSAGES}")
    check_invisible_time(invisible_ms)


def check_attempt_id(attempt_id: str | None) -> None:
    """Refuse a text that is too long to be kept."""
    if attempt_id is not None and len(attempt_id) > MAX_ATTEMPT_ID:
        raise InvalidArgument(
            f"attempt id of {len(attempt_id)} characters", expected=f"at most {MAX_ATTEMPT_ID}"
        )


def check_invisible_time(invisible_ms: int) -> None:
    """Refuse a time without end."""
    if invisible_ms > MAX_INVISIBLE_MS:
        raise InvalidArgument(
            f"invisible time of {invisible_ms} ms", expected=f"at most {MAX_INVISIBLE_MS}"
        )


def filter_of(broker: BrokerState, expression: str | None, expression_type: str | None) -> Filter:
    """The filter of a pop; without an expression it takes everything."""
    if not expression:
        return EVERYTHING
    try:
        return broker.filters.compile(expression, expression_type or TAG)
    except SubscriptionIllegal as error:
        raise SubscriptionIllegal(
            f"parse the consumer's subscription failed: {error.what}",
            expected=error.expected,
            hint=error.hint,
        ) from error
