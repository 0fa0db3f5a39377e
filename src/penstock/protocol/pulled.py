"""From the body of a pull answer to the messages a consumer works with."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from penstock.errors import ProtocolError
from penstock.model.message import StoredMessage, as_pulled
from penstock.model.queue import MessageQueue
from penstock.protocol.batches import decode_batch
from penstock.protocol.compression import MAX_INFLATED_BYTES, decompress
from penstock.protocol.records import (
    BLANK_MAGIC,
    BODY_POSITION,
    MAGIC_V1,
    MAX_V1_TOPIC_BYTES,
    Record,
    decode_record,
)
from penstock.protocol.sys_flags import SysFlag

_UNWRAP = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
# size, magic, queue_id, queue_offset, sys_flag and body_length: what has to be known of each record
_LOOK: Final = Struct(">iI4xi4xq8xi44xi")
# Records with any of these bits are opened field by field; all others take the short way.
_UNUSUAL = SysFlag.COMPRESSED | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | _UNWRAP


def messages_from_pull(
    body: bytes,
    broker_name: str,
    *,
    check_crc: bool = False,
    max_body_bytes: int = MAX_INFLATED_BYTES,
    keep_unreadable: bool = False,
) -> list[StoredMessage]:
    """The messages in a pull answer: bodies inflated, inner batches split.

    Whatever does not add up is a ``ProtocolError`` for the whole answer. With ``keep_unreadable``
    a body that does not inflate is not: the message comes as stored, its COMPRESSED bit still
    set, so that one broken message of a producer cannot stop a queue for good.
    """
    messages: list[StoredMessage] = []
    append = messages.append
    unpack = _LOOK.unpack_from
    starts_with = body.startswith
    position, total = 0, len(body)
    topic, queue = "", MessageQueue("", broker_name, -1)
    # Messages of one producer tend to be of one shape. What stands between the body and the
    # properties of the record before (lengths and topic) is then found again by one comparison.
    last_size = last_body_length = last_queue_id = -1
    between, between_length = b"", 0
    while position < total:
        try:
            size, magic, queue_id, queue_offset, sys_flag, body_length = unpack(body, position)
        except StructError:
            magic = BLANK_MAGIC
        body_start = position + BODY_POSITION
        if magic == MAGIC_V1 and not sys_flag & _UNUSUAL and position + size <= total:
            body_end = body_start + body_length
            is_plain = (
                size == last_size
                and body_length == last_body_length
                and queue_id == last_queue_id
                and starts_with(between, body_end)
            )
            if not is_plain and _is_whole(body, position + size, body_start, body_end):
                is_plain = True
                topic_end = body_end + 1 + body[body_end]
                topic = _topic(body[body_end + 1 : topic_end], position)
                queue = MessageQueue(topic, broker_name, queue_id)
                last_size, last_body_length, last_queue_id = size, body_length, queue_id
                between = body[body_end : topic_end + 2]
                between_length = len(between)
        else:
            is_plain = False
        # decode_record takes what is not ordinary, and says what is wrong with what is not whole.
        if not is_plain or check_crc:
            record = decode_record(body, position, check_crc=check_crc)
        if not is_plain:
            of_record = MessageQueue(record.topic, broker_name, record.queue_id)
            messages += _open(record, of_record, max_body_bytes, keep_unreadable)
            position += record.size
            continue
        end = position + size
        append(
            as_pulled(
                topic,
                body[body_start:body_end],
                body[body_end + between_length : end],
                queue,
                queue_offset,
                body[position:body_start],
            )
        )
        position = end
    return messages


def _is_whole(data: bytes, end: int, body_start: int, body_end: int) -> bool:
    """Whether the lengths of a record with IPv4 hosts and a short topic add up."""
    # Its two length fields follow the body.
    if not body_start <= body_end <= end - 3:
        return False
    topic_end = body_end + 1 + data[body_end]
    return (
        data[body_end] <= MAX_V1_TOPIC_BYTES
        and topic_end + 2 <= end
        and (data[topic_end] << 8 | data[topic_end + 1]) == end - topic_end - 2
    )


def message_from_record(
    record: Record, broker_name: str, *, max_body_bytes: int = MAX_INFLATED_BYTES
) -> StoredMessage:
    """One record as a message, its body inflated; an inner batch stays one message."""
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    return _message(record, queue, max_body_bytes, keep_unreadable=False)


def _topic(topic: bytes, position: int) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            f"topic {topic[:64]!r} in the record at {position}", expected="UTF-8"
        ) from error


def _open(
    record: Record, queue: MessageQueue, max_body_bytes: int, keep_unreadable: bool
) -> list[StoredMessage]:
    """The message of a record, or those of its inner batch."""
    whole = _message(record, queue, max_body_bytes, keep_unreadable=keep_unreadable)
    if record.sys_flag & _UNWRAP != _UNWRAP or whole.sys_flag & SysFlag.COMPRESSED:
        return [whole]
    return [
        StoredMessage(
            record.topic,
            item.body,
            item.properties,
            queue,
            record.queue_offset + index,
            record.log_position,
            record.born_timestamp,
            record.store_timestamp,
            record.born_host,
            record.store_host,
            record.reconsume_times,
            whole.sys_flag,
            item.flag,
            record.prepared_transaction_offset,
        )
        for index, item in enumerate(decode_batch(whole.body))
    ]


def _message(
    record: Record, queue: MessageQueue, max_body_bytes: int, *, keep_unreadable: bool
) -> StoredMessage:
    body, sys_flag = record.body, record.sys_flag
    if sys_flag & SysFlag.COMPRESSED:
        try:
            body = decompress(body, sys_flag, max_body_bytes)
            sys_flag &= ~SysFlag.COMPRESSED
        except ProtocolError as error:
            if not keep_unreadable:
                raise ProtocolError(
                    f"{error.what}; in {queue} at offset {record.queue_offset}",
                    expected=error.expected,
                    hint=error.hint,
                ) from error
    return StoredMessage(
        record.topic,
        body,
        record.properties,
        queue,
        record.queue_offset,
        record.log_position,
        record.born_timestamp,
        record.store_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        sys_flag,
        record.flag,
        record.prepared_transaction_offset,
    )
