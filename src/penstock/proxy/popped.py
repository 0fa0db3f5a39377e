"""The messages of a pop, each with its receipt."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.model import StoredMessage
from penstock.model.names import Property, pop_retry_topic, pop_retry_topic_v2
from penstock.protocol.commands import Command
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
from penstock.protocol.records.pulled import messages_from_pull
from penstock.proxy.receipts import Receipt


class Popped(NamedTuple):
    """A message and what it is acknowledged by."""

    message: StoredMessage
    receipt: Receipt


def read_popped(
    answer: Command, result: PopMessageResult, group: str, topic: str, broker_name: str
) -> list[Popped]:
    """The messages of a pop answer."""
    body = answer.body
    assert isinstance(body, bytes), "a received body is bytes"
    starts = parse_start_offsets(result.start_offset_info)
    offsets = parse_message_offsets(result.msg_offset_info)
    counts = parse_order_counts(result.order_count_info)
    flags = {
        pop_retry_topic(group, topic): RETRY_TOPIC_V1,
        pop_retry_topic_v2(group, topic): RETRY_TOPIC_V2,
    }
    popped: list[Popped] = []
    for message in messages_from_pull(body, broker_name, keep_unreadable=True):
        given = message.peek(Property.POP_RECEIPT)
        queue = FlaggedQueue(flags.get(message.topic, NORMAL_TOPIC), message.queue.queue_id)
        offset = message.queue_offset
        if given is not None:
            # A reviving broker of Apache writes it into the record.
            handle = ReceiptHandle.parse(given)
        elif queue in starts and offset in offsets.get(queue, ()):
            handle = ReceiptHandle(
                starts[queue],
                result.pop_time,
                result.invisible_time,
                result.revive_qid,
                queue.flag,
                broker_name,
                queue.queue_id,
                offset,
            )
        else:
            raise ProtocolError(
                f"a popped message of {message.queue} at offset {offset} without a receipt",
                expected=f"its offset in {result.msg_offset_info!r}",
            )
        if result.revive_qid == ORDERLY_REVIVE_QUEUE:
            times = counts.get((queue, offset), counts.get((queue, None), 0))
            message.reconsume_times = max(message.reconsume_times, times)
        popped.append(Popped(message, Receipt(handle, message.log_position)))
    return popped
