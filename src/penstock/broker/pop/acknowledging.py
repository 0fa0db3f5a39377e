"""The rules for what was popped: acknowledge it, or change how long it stays invisible.

A receipt is found by queue, offset and pop time. Nothing else of a receipt handle is trusted:
anyone can write one, and some proxies send a wrong start offset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.pop.check_points import CheckPoint, PopQueue
from penstock.broker.pop.journal import LONG_MS, LONG_REVIVE_QUEUE
from penstock.broker.pop.retry_records import origin_topic
from penstock.broker.state import BrokerState
from penstock.errors import MessageRefused, RequestRefused, StoreError, TopicNotFound
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.receipts import ORDERLY_REVIVE_QUEUE

log = logging.getLogger(__name__)


class Receipt(NamedTuple):
    """What a client says it was given."""

    group: str
    topic: str
    """The topic that has the record: for a retry, the retry topic."""
    queue_id: int
    offset: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int

    @property
    def is_orderly(self) -> bool:
        """Whether an orderly pop handed it out."""
        return self.revive_queue_id == ORDERLY_REVIVE_QUEUE


class Changed(NamedTuple):
    """What the new receipt handle is made of."""

    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    log_end: int


def acknowledge(broker: BrokerState, receipt: Receipt) -> int:
    """End a receipt; the log position that the answer relies on, 0 for none.

    A receipt that is not open is accepted: it was acknowledged before, or its time is up and the
    message comes again; the latter is counted.
    """
    low, high = _queue_range(broker, receipt)
    if not low <= receipt.offset <= high:
        raise illegal_offset(receipt, low, high)
    if receipt.is_orderly:
        acknowledge_orderly(broker, receipt)
        return 0
    queue = broker.pop.points.find_queue(receipt.group, receipt.topic, receipt.queue_id)
    point = None if queue is None else queue.receipts.get((receipt.pop_time, receipt.offset))
    if point is None:
        return _without_receipt(broker, receipt, (receipt.offset,))
    end = broker.pop.journal.acknowledge(point, (receipt.offset,))
    broker.stats.acknowledged(receipt.group, receipt.topic, 1)
    _wake_if_freed(broker, point.queue, 1)
    return end


def acknowledge_all(broker: BrokerState, receipt: Receipt, offsets: Sequence[int]) -> int:
    """End several receipts of one pop and queue; offsets that the queue does not have are left out.

    ``receipt`` has what they share. Returns the log position that the answer relies on.
    """
    topic = broker.topics.get(receipt.topic)
    if topic is None or not 0 <= receipt.queue_id < topic.read_queue_nums:
        return 0
    low, high = _queue_range(broker, receipt)
    offsets = [offset for offset in offsets if low <= offset <= high]
    if receipt.is_orderly:
        for offset in offsets:
            acknowledge_orderly(broker, receipt._replace(offset=offset))
        return 0
    queue = broker.pop.points.find_queue(receipt.group, receipt.topic, receipt.queue_id)
    by_point = {} if queue is None else _by_point(queue, receipt.pop_time, offsets)
    end = 0
    for point, of_point in by_point.items():
        end = broker.pop.journal.acknowledge(point, of_point)
        broker.stats.acknowledged(receipt.group, receipt.topic, len(of_point))
        _wake_if_freed(broker, point.queue, len(of_point))
    found = set().union(*by_point.values())
    unknown = [offset for offset in offsets if offset not in found]
    if unknown:
        end = max(end, _without_receipt(broker, receipt, unknown))
    return end


def _wake_if_freed(broker: BrokerState, queue: PopQueue, count: int) -> None:
    """Let a waiting pop have messages of a queue that had too many open receipts until now."""
    limit = broker.config.pop_inflight_message_threshold
    left = len(queue.receipts)
    if left < limit <= left + count:
        topic = origin_topic(queue.topic, queue.group)
        broker.pop.wake_held(topic, queue.group, queue.queue_id)


def _by_point(
    queue: PopQueue, pop_time: int, offsets: Sequence[int]
) -> dict[CheckPoint, list[int]]:
    found: dict[CheckPoint, list[int]] = {}
    for offset in offsets:
        point = queue.receipts.get((pop_time, offset))
        if point is not None:
            found.setdefault(point, []).append(offset)
    return found


def change_invisible_time(
    broker: BrokerState, receipt: Receipt, invisible_ms: int, *, is_suspended: bool = False
) -> Changed:
    """Let a message become visible at another time, counted from now; its old handle is dead."""
    low, high = _queue_range(broker, receipt)
    if not low <= receipt.offset < high:
        raise illegal_offset(receipt, low, high - 1)
    if receipt.is_orderly:
        return _change_orderly(broker, receipt, invisible_ms)
    points, journal = broker.pop.points, broker.pop.journal
    queue = points.find_queue(receipt.group, receipt.topic, receipt.queue_id)
    old = None if queue is None else queue.receipts.get((receipt.pop_time, receipt.offset))
    if queue is None or old is None:
        raise RequestRefused(
            f"offset {receipt.offset} in queue {receipt.queue_id} of {receipt.topic} is not in the "
            f"hands of group {receipt.group} since {receipt.pop_time}",
            code=ResponseCode.NO_MESSAGE,
            expected="a receipt handle whose time is not up and that was not acknowledged",
        )
    now = broker.clock.time_ms()
    pop_time = queue.free_pop_time(max(now, old.pop_time + 1), (receipt.offset,))
    changed = CheckPoint(
        queue,
        receipt.offset,
        (receipt.offset,),
        pop_time,
        invisible_ms,
        LONG_REVIVE_QUEUE if invisible_ms > LONG_MS else old.revive_queue_id,
        is_suspended=is_suspended,
    )
    journal.open(changed)
    try:
        end = journal.finish(old, (receipt.offset,))
    except StoreError:
        # The old handle stays good: it is the one that the client has.
        points.finish(queue, pop_time, receipt.offset)
        raise
    broker.pop.wake_reviver(changed.due)
    return Changed(pop_time, invisible_ms, changed.revive_queue_id, end)


# Orderly


def acknowledge_orderly(broker: BrokerState, receipt: Receipt) -> None:
    """End a message of an orderly pop; the group moves on to its first unfinished message."""
    group, topic, queue_id = receipt.group, receipt.topic, receipt.queue_id
    committed = broker.offsets.committed(group, topic, queue_id) or 0
    if receipt.offset < committed:
        return
    result = broker.pop.orders.acknowledge(topic, group, queue_id, receipt.offset, receipt.pop_time)
    if result is None:
        raise MessageRefused(f"offset is illegal, key:{_key(receipt)}")
    if result.next_offset is not None and result.next_offset != committed:
        broker.offsets.commit(group, topic, queue_id, result.next_offset, "pop")
    if result.is_new:
        broker.stats.acknowledged(group, topic, 1)
    if result.is_free:
        broker.pop.wake_held(topic, group, queue_id)


def _change_orderly(broker: BrokerState, receipt: Receipt, invisible_ms: int) -> Changed:
    group, topic, queue_id = receipt.group, receipt.topic, receipt.queue_id
    visible_at = broker.clock.time_ms() + invisible_ms
    committed = broker.offsets.committed(group, topic, queue_id) or 0
    if receipt.offset < committed or not broker.pop.orders.change(
        topic, group, queue_id, receipt.offset, receipt.pop_time, visible_at
    ):
        raise RequestRefused(
            f"offset {receipt.offset} in queue {queue_id} of {topic} is not among the messages "
            f"that group {group} was given at {receipt.pop_time}",
            code=ResponseCode.NO_MESSAGE,
        )
    broker.pop.wake_orderly_at(topic, group, queue_id)
    return Changed(receipt.pop_time, visible_at - receipt.pop_time, ORDERLY_REVIVE_QUEUE, 0)


# Checks


def _queue_range(broker: BrokerState, receipt: Receipt) -> tuple[int, int]:
    """The first offset of the receipt's queue and the one after its last."""
    topic = broker.topics.get(receipt.topic)
    if topic is None:
        raise TopicNotFound(f"topic[{receipt.topic}] not exist, apply first please!")
    if not 0 <= receipt.queue_id < topic.read_queue_nums:
        raise MessageRefused(
            f"queueId[{receipt.queue_id}] is illegal, topic:[{receipt.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
        )
    storage = broker.storage
    return (
        storage.min_offset(receipt.topic, receipt.queue_id),
        storage.max_offset(receipt.topic, receipt.queue_id),
    )


def illegal_offset(receipt: Receipt, low: int, high: int) -> RequestRefused:
    """The refusal of an offset that the queue does not have."""
    return RequestRefused(
        f"offset is illegal, key:{_key(receipt)}",
        code=ResponseCode.NO_MESSAGE,
        expected=f"{low} to {high}",
    )


def _key(receipt: Receipt) -> str:
    return f"{receipt.topic}@{receipt.group}@{receipt.queue_id}, offset:{receipt.offset}"


def _without_receipt(broker: BrokerState, receipt: Receipt, offsets: Sequence[int]) -> int:
    """Acknowledgements of receipts that are not open; the log position the answer relies on.

    Repeated ones are normal, late ones are counted. Where an Apache broker ran before, a
    check-point may still be in its timer: then they are noted for it.
    """
    if receipt.group not in broker.groups:
        # Nothing is kept for names that anyone may invent.
        return 0
    due, now = receipt.pop_time + receipt.invisible_ms, broker.clock.time_ms()
    if due > now:
        group, topic, queue_id = receipt.group, receipt.topic, receipt.queue_id
        journal = broker.pop.journal
        # The first of repeated ones may not be on the disk yet.
        end = journal.unflushed_end
        for offset in offsets:
            # What was handed out in this life is known here.
            if receipt.pop_time < broker.started_ms and journal.early.may_note(due, now):
                key = (group, topic, queue_id, receipt.pop_time, offset)
                end = journal.acknowledge_early(key, due, receipt.revive_queue_id) or end
        return end
    if not broker.stats.late_ack(receipt.group):
        log.warning(
            "acknowledged after the invisible time, the message is delivered again "
            "(logged once per group) group=%s topic=%s queue=%d offset=%d",
            receipt.group,
            receipt.topic,
            receipt.queue_id,
            receipt.offset,
        )
    return 0
