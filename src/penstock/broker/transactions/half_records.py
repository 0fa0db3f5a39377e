"""The records of a transaction: what is stored for a half, a decision, a check, a half given up.

Only ``committed`` makes a message that consumers see.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC, Property
from penstock.model.properties import encode_properties, encode_stored
from penstock.protocol.half_messages import HALF_QUEUE, OP_PROPERTIES, HalfMessage, op_body
from penstock.protocol.records.codec import Record, encode_record
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import Appended, Draft, DraftFields, draft_of


def prepared(draft: Draft, properties: dict[str, str]) -> tuple[Draft, dict[str, str]]:
    """The half for a message that is sent in a transaction, and its properties."""
    half = {
        **properties,
        Property.TRANSACTION_ID: properties[Property.UNIQUE_KEY],
        Property.REAL_TOPIC: draft.topic,
        Property.REAL_QUEUE_ID: str(draft.queue_id),
    }
    # A count of an earlier life of the message is none of this transaction.
    half.pop(Property.TRANSACTION_CHECK_TIMES, None)
    half.pop(Property.TRANSACTION_FIRST_OFFSET, None)
    stored = draft._replace(
        topic=HALF_TOPIC, queue_id=HALF_QUEUE, properties=encode_properties(half)
    )
    return stored, half


def committed(record: Record, half: HalfMessage, properties: dict[str, str]) -> Draft:
    """The message that a commit makes of a half."""
    hidden = (Property.REAL_TOPIC, Property.REAL_QUEUE_ID)
    visible = {key: value for key, value in properties.items() if key not in hidden}
    return _stored_again(record, half.key.topic, half.queue_id, visible)._replace(
        sys_flag=record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
        prepared_transaction_offset=record.log_position,
    )


def copied(record: Record, properties: dict[str, str], check_times: int) -> Draft:
    """A copy of a half with another count of checks, to replace it."""
    counted = {**properties, Property.TRANSACTION_CHECK_TIMES: str(check_times)}
    # The copy that it names is closed together with the one that is copied.
    counted.pop(Property.TRANSACTION_FIRST_OFFSET, None)
    return _stored_again(record, HALF_TOPIC, HALF_QUEUE, counted)


def given_up(record: Record, properties: dict[str, str]) -> Draft:
    """The record that keeps a half which is not asked about any more."""
    return _stored_again(record, TRANSACTION_GIVEN_UP_TOPIC, 0, properties)


def closing(offsets: Iterable[int], now_ms: int, store_host: bytes) -> list[DraftFields]:
    """The op records that close the halves at some queue offsets, one for each."""
    rest = (OP_PROPERTIES, 0, 0, now_ms, store_host, store_host, 0, 0, b"")
    return [(OP_HALF_TOPIC, HALF_QUEUE, op_body(offset), *rest) for offset in offsets]


def asked_about(
    record: Record, half: HalfMessage, properties: dict[str, str], copy: Appended
) -> bytes:
    """The record in a question: the half under its real topic, at the place of its copy."""
    shown = {**properties, Property.WAIT: "false"}
    return encode_record(
        half.key.topic.encode(),
        record.body,
        encode_stored(shown),
        half.queue_id,
        copy.queue_offset,
        copy.log_position,
        record.store_timestamp,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
    )


def _stored_again(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> Draft:
    draft = draft_of(record, topic, queue_id, encode_stored(properties))
    return draft._replace(prepared_transaction_offset=0)
