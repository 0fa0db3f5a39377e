"""Single messages as rows: for the few that are not decoded column by column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.columnar.record_columns import micros
from penstock.columnar.schema import ALL, arrow_schema
from penstock.model.message import StoredMessage
from penstock.model.names import Property


def to_batch(messages: Sequence[StoredMessage]) -> pa.RecordBatch:
    """Messages as a batch of all columns."""
    rows = [message_row(message, message.sys_flag) for message in messages]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(ALL))


def message_row(
    message: StoredMessage, sys_flag: int, *, include_properties: bool = True
) -> dict[str, object]:
    """The values of a message by column."""
    properties = list(message.properties.items()) if include_properties else None
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "offset": message.queue_offset,
        "msg_id": message.msg_id,
        "keys": list(message.keys) if Property.KEYS in message.properties else None,
        "tags": message.tag,
        "body": message.body,
        "properties": properties,
        "born_timestamp": micros(message.born_timestamp),
        "store_timestamp": micros(message.store_timestamp),
        "reconsume_times": message.reconsume_times,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "sys_flag": sys_flag,
    }
