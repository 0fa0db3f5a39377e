"""The messages in the body of a pull answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct, pack
from struct import error as StructError
from typing import Final
from zlib import crc32

from penstock.errors import BodyDamaged, ProtocolError, RecordDamaged
from penstock.model.message import StoredMessage, append_to_all
from penstock.model.queue import MessageQueue
from penstock.model.record_layout import (
    BODY_POSITION,
    CRC_MASK,
    MAGIC_V1,
    PREFIX,
    head_codes,
    head_offset,
    head_span,
    head_struct,
)
from penstock.protocol.records.batches import decode_batch
from penstock.protocol.records.codec import Record, decode_record
from penstock.protocol.records.compression import MAX_INFLATED_BYTES, decompress
from penstock.protocol.records.sys_flags import SysFlag

_UNWRAP = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
# The fields that have to be known of each record.
_LOOK: Final = head_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "sys_flag", "body_length"
)
# Records with any of these bits are decoded field by field; all others take the fast path.
_UNUSUAL = SysFlag.COMPRESSED | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | _UNWRAP
_FEW: Final = 16
"""For fewer records the preparation costs more than it saves."""
_MANY: Final = 64
"""From this number on, comparing records a column of bytes at a time is faster."""
_MAX_SHAPES: Final = 256
_START_BYTES: Final = PREFIX.size
# As _LOOK, with size and magic as one value.
_LOOK_CODES: Final = f"{_START_BYTES}s" + head_codes(
    "body_crc", "queue_id", "queue_offset", "sys_flag", "body_length", first="body_crc"
)
_CRC_POSITION: Final = head_offset("body_crc")
_OFFSET_BYTES: Final = head_span("queue_offset")
_FIXED_BYTES: Final = tuple(
    position
    for name in ("size", "magic", "queue_id", "sys_flag", "body_length")
    for position in head_span(name)
)

TellUnreadable = Callable[[MessageQueue, int, ProtocolError], None]
"""Called with queue and offset of a message, and why its body is left as it was stored."""


def _ignore(queue: MessageQueue, queue_offset: int, error: ProtocolError) -> None:
    """For callers that look at the COMPRESSED bit."""


def messages_from_pull(
    body: bytes,
    broker_name: str,
    *,
    check_crc: bool = False,
    max_body_bytes: int = MAX_INFLATED_BYTES,
    keep_unreadable: bool = False,
    tell_unreadable: TellUnreadable | None = None,
    added: bytes = b"",
) -> list[StoredMessage]:
    """The messages in a pull answer: bodies inflated, inner batches split.

    A malformed record is a `RecordDamaged`, with the messages before it. A body that does not
    inflate, an inner batch that cannot be split and, with ``check_crc``, a body with another
    checksum than the record states, are a ``ProtocolError``. With ``keep_unreadable`` they are
    not: the message is returned as stored, its bits still set, so that one broken message cannot
    stop a queue for good; ``tell_unreadable`` is called for it, with a `BodyDamaged` in the case of
    the checksum. ``added`` are properties in wire form that every message gets besides its own.
    """
    many = alike_records(body, broker_name, check_crc=check_crc)
    if many is not None:
        return many.messages(range(len(many.offsets)), added)
    alike = _messages_alike(body, broker_name, added, check_crc)
    if alike is not None:
        return alike
    tell = (tell_unreadable or _ignore) if keep_unreadable else None
    messages: list[StoredMessage] = []
    append = messages.append
    unpack = _LOOK.unpack_from
    starts_with = body.startswith
    new, magic_v1, unusual = object.__new__, MAGIC_V1, int(_UNUSUAL)
    position, total = 0, len(body)
    topic, queue = "", MessageQueue("", broker_name, -1)
    # What stands between the body and the properties, lengths and topic, tends to be the same from
    # record to record. It is then found again by one comparison.
    between = b""
    between_length = 0
    properties_length = unheard_of = total
    last_queue_id = -1
    while position < total:
        try:
            size, magic, crc, queue_id, queue_offset, sys_flag, body_length = unpack(body, position)
        except StructError:
            magic = size = body_length = 0
        end = position + size
        body_start = position + BODY_POSITION
        body_end = body_start + body_length
        if (
            magic != magic_v1
            or sys_flag & unusual
            or body_length < 0
            or end > total
            or queue_id != last_queue_id
            or end - body_end - between_length != properties_length
            or not starts_with(between, body_end)
        ):
            # Decodes unusual records, and raises the error for a malformed one.
            try:
                record = decode_record(body, position)
            except ProtocolError as error:
                damaged = RecordDamaged(error.what, expected=error.expected, hint=error.hint)
                damaged.intact = messages
                raise damaged from error
            if record.topic != topic or record.queue_id != last_queue_id:
                topic, last_queue_id = record.topic, record.queue_id
                queue = MessageQueue(topic, broker_name, last_queue_id)
            if magic != magic_v1 or sys_flag & unusual:
                between_length, properties_length = 0, unheard_of
                if check_crc and crc32(record.body) & CRC_MASK != record.body_crc:
                    _damaged(record.body, record.body_crc, queue, record.queue_offset, tell)
                    opened = [_as_stored(record, queue)]
                else:
                    opened = _open(record, queue, max_body_bytes, tell)
                append_to_all(opened, added)
                messages += opened
                position = end
                continue
            properties_length = len(record.properties)
            between_length = end - body_end - properties_length
            between = body[body_end : body_end + between_length]
        # As StoredMessage.__init__ would, in half of its time; once for every message.
        message: StoredMessage = new(StoredMessage)
        message.topic = topic
        message.body = content = body[body_start:body_end]
        if check_crc and crc32(content) & CRC_MASK != crc:
            _damaged(content, crc, queue, queue_offset, tell)
        message.queue = queue
        message.queue_offset = queue_offset
        message._properties = body[body_end + between_length : end]
        message._added = added
        message._head = body[position:body_start]
        append(message)
        position = end
    return messages


class AlikeRecords:
    """Records of one queue at consecutive offsets, as long as each other in every part.

    What one program sends in bulk is, and a large pull brings. Such a table is checked a column of
    bytes at a time, and cut into messages on demand.
    """

    __slots__ = ("_cut", "_queue", "_records", "_size", "_topic", "body_length", "offsets")

    def __init__(
        self, records: bytes, first: Record, broker_name: str, offsets: range, cut: Struct
    ) -> None:
        self._records = records
        self._size = cut.size
        self._cut = cut
        self._topic = first.topic
        self._queue = MessageQueue(first.topic, broker_name, first.queue_id)
        self.body_length = len(first.body)
        """Of each of them."""
        self.offsets = offsets

    def messages(self, span: range, added: bytes) -> list[StoredMessage]:
        """The messages of some records; each gets the properties ``added`` besides its own."""
        size, topic, queue = self._size, self._topic, self._queue
        messages: list[StoredMessage] = list(map(object.__new__, [StoredMessage] * len(span)))
        # As StoredMessage.__init__ would, in a third of its time; once for every message.
        for message, offset, (head, body, properties) in zip(
            messages,
            self.offsets[span.start : span.stop],
            self._cut.iter_unpack(memoryview(self._records)[span.start * size : span.stop * size]),
            strict=True,
        ):
            message.topic = topic
            message.body = body
            message.queue = queue
            message.queue_offset = offset
            message._properties = properties
            message._added = added
            message._head = head
        return messages


def alike_records(body: bytes, broker_name: str, *, check_crc: bool = False) -> AlikeRecords | None:
    """The records of a pull answer, if they are many and all alike at consecutive offsets.

    With ``check_crc`` also None if one of the bodies is damaged.
    """
    total = len(body)
    if total < _MANY * BODY_POSITION:
        return None
    size, magic, _, _, first_offset, sys_flag, body_length = _LOOK.unpack_from(body)
    if magic != MAGIC_V1 or sys_flag & _UNUSUAL or not 0 < size * _MANY <= total or total % size:
        return None
    first = decode_record(body, 0, check_crc=False)
    count = total // size
    properties_length = len(first.properties)
    between = range(BODY_POSITION + body_length, size - properties_length)
    for column in (*_FIXED_BYTES, *between):
        if body[column::size] != body[column : column + 1] * count:
            return None
    offsets = range(first_offset, first_offset + count)
    packed = pack(f">{count}q", *offsets)
    for number, column in enumerate(_OFFSET_BYTES):
        if body[column::size] != packed[number :: len(_OFFSET_BYTES)]:
            return None
    *_, cut, checked = _shapes(body_length, len(between), properties_length)
    if check_crc:
        for crc, content in checked.iter_unpack(body):
            if crc32(content) & CRC_MASK != crc:
                return None
    return AlikeRecords(body, first, broker_name, offsets, cut)


def _messages_alike(
    body: bytes, broker_name: str, added: bytes, check_crc: bool
) -> list[StoredMessage] | None:
    """The messages of one queue that are as long as each other in every part; None: not so.

    What one program sends in bulk is. ``struct`` then knows where every part is, and cuts the
    records one after the other in half the time.
    """
    total = len(body)
    if total < _FEW * BODY_POSITION:
        return None
    size, magic, _, queue_id, _, sys_flag, body_length = _LOOK.unpack_from(body)
    if magic != MAGIC_V1 or sys_flag & _UNUSUAL or not 0 < size * _FEW <= total or total % size:
        return None
    first = decode_record(body, 0, check_crc=False)
    properties_length = len(first.properties)
    rest = size - BODY_POSITION - body_length - properties_length
    look, cut, *_ = _shapes(body_length, rest, properties_length)
    start = body[:_START_BYTES]
    between = body[BODY_POSITION + body_length : BODY_POSITION + body_length + rest]
    topic, new = first.topic, object.__new__
    queue = MessageQueue(topic, broker_name, queue_id)
    messages: list[StoredMessage] = []
    append = messages.append
    for (begins, crc, of_queue, queue_offset, flags, length), (head, content, then, said) in zip(
        look.iter_unpack(body), cut.iter_unpack(body), strict=True
    ):
        if (
            begins != start
            or of_queue != queue_id
            or flags != sys_flag
            or length != body_length
            or then != between
            or (check_crc and crc32(content) & CRC_MASK != crc)
        ):
            return None
        message: StoredMessage = new(StoredMessage)
        message.topic = topic
        message.body = content
        message.queue = queue
        message.queue_offset = queue_offset
        message._properties = said
        message._added = added
        message._head = head
        append(message)
    return messages


@lru_cache(_MAX_SHAPES)
def _shapes(
    body_length: int, rest: int, properties_length: int
) -> tuple[Struct, Struct, Struct, Struct]:
    """What is looked at of a record with these lengths; its parts; those that messages keep; and
    its checksum with its body."""
    skipped = body_length + rest + properties_length
    return (
        Struct(f">{_LOOK_CODES}{skipped}x"),
        Struct(f">{BODY_POSITION}s{body_length}s{rest}s{properties_length}s"),
        Struct(f">{BODY_POSITION}s{body_length}s{rest}x{properties_length}s"),
        Struct(
            f">{_CRC_POSITION}xI{BODY_POSITION - _CRC_POSITION - 4}x{body_length}s"
            f"{rest + properties_length}x"
        ),
    )


def message_from_record(
    record: Record, broker_name: str, *, max_body_bytes: int = MAX_INFLATED_BYTES
) -> StoredMessage:
    """One record as a message, its body inflated; an inner batch stays one message."""
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    return _message(record, queue, max_body_bytes, None)


def _open(
    record: Record, queue: MessageQueue, max_body_bytes: int, tell: TellUnreadable | None
) -> list[StoredMessage]:
    """The message of a record, or those of its inner batch."""
    whole = _message(record, queue, max_body_bytes, tell)
    if record.sys_flag & _UNWRAP != _UNWRAP or whole.sys_flag & SysFlag.COMPRESSED:
        return [whole]
    try:
        items = decode_batch(whole.body)
    except ProtocolError as error:
        _tell(error, queue, record.queue_offset, tell)
        return [_as_stored(record, queue)]
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
        for index, item in enumerate(items)
    ]


def _message(
    record: Record, queue: MessageQueue, max_body_bytes: int, tell: TellUnreadable | None
) -> StoredMessage:
    """The message of a record; a body that does not inflate is reported, or an error."""
    body, sys_flag = record.body, record.sys_flag
    if sys_flag & SysFlag.COMPRESSED:
        try:
            body = decompress(body, sys_flag, max_body_bytes)
            sys_flag &= ~SysFlag.COMPRESSED
        except ProtocolError as error:
            _tell(error, queue, record.queue_offset, tell)
    return _as_stored(record, queue, body, sys_flag)


def _damaged(
    body: bytes, crc: int, queue: MessageQueue, queue_offset: int, tell: TellUnreadable | None
) -> None:
    """Report a body that is not the one that was stored."""
    error = BodyDamaged(
        f"body checksum {crc32(body) & CRC_MASK:#010x} of a message of {len(body)} bytes",
        expected=f"{crc:#010x}, which its record states",
        hint="penstock store verify on the broker's directory",
    )
    _tell(error, queue, queue_offset, tell)


def _tell(
    error: ProtocolError, queue: MessageQueue, queue_offset: int, tell: TellUnreadable | None
) -> None:
    """Report an unreadable message, or raise the error with its place."""
    if tell is not None:
        tell(queue, queue_offset, error)
        return
    raise type(error)(
        f"{error.what}; in {queue} at offset {queue_offset}",
        expected=error.expected,
        hint=error.hint,
    ) from error


def _as_stored(
    record: Record, queue: MessageQueue, body: bytes | None = None, sys_flag: int | None = None
) -> StoredMessage:
    """The message of a record, with another body and its flags if given."""
    return StoredMessage(
        record.topic,
        record.body if body is None else body,
        record.properties,
        queue,
        record.queue_offset,
        record.log_position,
        record.born_timestamp,
        record.store_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.sys_flag if sys_flag is None else sys_flag,
        record.flag,
        record.prepared_transaction_offset,
    )
