"""From the body of a pull answer to the messages a consumer works with."""

from __future__ import annotations

import struct

from penstock.errors import ProtocolError
from penstock.model.message import StoredMessage
from penstock.model.queue import MessageQueue
from penstock.protocol.batches import decode_batch
from penstock.protocol.compression import MAX_INFLATED_BYTES, decompress
from penstock.protocol.records import (
    BODY_POSITION,
    IPV4_HEAD,
    MAGIC_V1,
    MAX_V1_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    Record,
    body_crc,
    decode_record,
)
from penstock.protocol.sys_flags import SysFlag

_UNWRAP = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
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
    unpack = IPV4_HEAD.unpack_from
    position, total = 0, len(body)
    last_topic, last_queue_id = b"", -1
    topic, queue = "", MessageQueue("", broker_name, -1)
    while position < total:
        try:
            (
                size,
                magic,
                crc,
                queue_id,
                flag,
                queue_offset,
                log_position,
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_length,
            ) = unpack(body, position)
            end = position + size
            body_start = position + BODY_POSITION
            body_end = body_start + body_length
            # A record that is ordinary and whole; decode_record says what is wrong with others.
            is_plain = (
                magic == MAGIC_V1
                and not sys_flag & _UNUSUAL
                and end <= total
                and 0 <= body_length <= size - MIN_RECORD_BYTES
                and (topic_length := body[body_end]) <= MAX_V1_TOPIC_BYTES
                and (topic_end := body_end + 1 + topic_length) + 2 <= end
                and (body[topic_end] << 8 | body[topic_end + 1]) == end - topic_end - 2
            )
        except struct.error:
            is_plain = False
        if not is_plain:
            record = decode_record(body, position, check_crc=check_crc)
            queue = MessageQueue(record.topic, broker_name, record.queue_id)
            last_topic = b""
            messages += _open(record, queue, max_body_bytes, keep_unreadable)
            position += record.size
            continue
        content = body[body_start:body_end]
        if check_crc and body_crc(content) != crc:
            decode_record(body, position, check_crc=True)
        topic_bytes = body[body_end + 1 : topic_end]
        if topic_bytes != last_topic or queue_id != last_queue_id:
            topic = _topic(topic_bytes, position)
            queue = MessageQueue(topic, broker_name, queue_id)
            last_topic, last_queue_id = topic_bytes, queue_id
        append(
            StoredMessage(
                topic,
                content,
                body[topic_end + 2 : end],
                queue,
                queue_offset,
                log_position,
                born_timestamp,
                store_timestamp,
                born_host,
                store_host,
                reconsume_times,
                sys_flag,
                flag,
                prepared_transaction_offset,
            )
        )
        position = end
    return messages


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
