"""The receipt handles of popped messages, from the answer to a pop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.errors import ProtocolError
from penstock.model import StoredMessage
from penstock.model.names import Property, pop_retry_topic, pop_retry_topic_v2
from penstock.protocol.headers.pop import PopMessageResult
from penstock.protocol.headers.receipts import (
    NORMAL_TOPIC,
    ORDERLY_REVIVE_QUEUE,
    RETRY_TOPIC_V1,
    RETRY_TOPIC_V2,
    FlaggedQueue,
    ReceiptHandle,
    parse_message_offsets,
    parse_order_counts,
    parse_start_offsets,
)


def _has_own_handle(message: StoredMessage, pop_time: int) -> bool:
    """Whether the broker wrote a handle into this answer: one that a producer sent is ignored."""
    text = message.peek(Property.POP_RECEIPT)
    if text is None:
        return False
    try:
        handle = ReceiptHandle.parse(text)
    except ProtocolError:
        return False
    return (handle.broker_name, handle.queue_id, handle.queue_offset, handle.pop_time) == (
        message.queue.broker_name,
        message.queue.queue_id,
        message.queue_offset,
        pop_time,
    )


def with_handles(
    messages: Iterable[StoredMessage], result: PopMessageResult, group: str, topic: str
) -> Iterator[tuple[StoredMessage, ReceiptHandle | None]]:
    """Each message with its handle; None if a reviving broker of Apache wrote it into the record.

    Messages of an orderly pop get their number of attempts.
    """
    starts = parse_start_offsets(result.start_offset_info)
    offsets = parse_message_offsets(result.msg_offset_info)
    counts = parse_order_counts(result.order_count_info)
    flags = {
        pop_retry_topic(group, topic): RETRY_TOPIC_V1,
        pop_retry_topic_v2(group, topic): RETRY_TOPIC_V2,
    }
    for message in messages:
        if _has_own_handle(message, result.pop_time):
            yield message, None
            continue
        queue = FlaggedQueue(flags.get(message.topic, NORMAL_TOPIC), message.queue.queue_id)
        offset = message.queue_offset
        if queue not in starts or offset not in offsets.get(queue, ()):
            raise ProtocolError(
                f"a popped message of {message.queue} at offset {offset} without a receipt",
                expected=f"its offset in {result.msg_offset_info!r}",
            )
        if result.revive_qid == ORDERLY_REVIVE_QUEUE:
            times = counts.get((queue, offset), counts.get((queue, None), 0))
            message.reconsume_times = max(message.reconsume_times, times)
        yield (
            message,
            ReceiptHandle(
                starts[queue],
                result.pop_time,
                result.invisible_time,
                result.revive_qid,
                queue.flag,
                message.queue.broker_name,
                queue.queue_id,
                offset,
            ),
        )
