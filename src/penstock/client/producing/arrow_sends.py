"""Sends the rows of Arrow tables: encoded column by column, in batches.

The columns are those of the Spark sink: ``body``, and if they are there ``topic``, ``keys``,
``tags``, ``properties``, ``sharding_key`` and ``delay``; others, as those that a read adds, are
ignored. Needs the extra ``[arrow]``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from penstock.client.producing.outgoing import checked_topic
from penstock.client.producing.producer import ProducerCore, unique_ids
from penstock.client.producing.row_placement import Placement, place
from penstock.client.session.client_ids import local_ip
from penstock.columnar.encode import EncodedRows, MessageColumns, cut, encode_rows, halves
from penstock.columnar.row_ids import RowIds
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX

BATCH_BYTES: Final = 1024 * 1024
PORTION_ROWS: Final = 8192
IN_FLIGHT: Final = 8
"""Requests at once, if any queue will do."""

_TEXT: Final = pa.string()
_ACCEPTED: Final[dict[str, tuple[pa.DataType, str]]] = {
    "body": (pa.binary(), "binary or text"),
    "topic": (_TEXT, "text"),
    "keys": (_TEXT, "text, or lists of text"),
    "tags": (_TEXT, "text"),
    "properties": (pa.map_(_TEXT, _TEXT), "a map of text to text"),
    "sharding_key": (_TEXT, "text"),
    "delay": (_TEXT, "a level as a number, or the text of one"),
}
"""The type of each column, and how an error calls it."""


def new_ids() -> RowIds:
    """The message ids of one table or task; no other has the same random part."""
    one = unique_ids(local_ip(), random.getrandbits(32)).next(time.time_ns() // 1_000_000)
    return RowIds(one[:-12], int(one[-12:-4], 16))


async def send_table(
    producer: ProducerCore, data: Any, topic: str | None, named: Callable[[str], str]
) -> int:
    """Send the rows of a table and return their number, when all are stored.

    ``named`` adds the namespace to a topic. A failure ends the call; what was sent before it stays.
    """
    ids = new_ids()
    sent = 0
    for batch in batches_of(data):
        rows, columns = _chosen(batch, topic)
        for part in _portions(rows):
            if part.num_rows:
                encoded = encode_rows(part, columns, None, sent, ids)
                await _send_rows(producer, part, columns, encoded, topic, named)
                sent += part.num_rows
    return sent


def _portions(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # Small, because they are encoded on the loop, which has other work as well.
    for first in range(0, rows.num_rows, PORTION_ROWS):
        yield from halves(rows.slice(first, PORTION_ROWS))


async def _send_rows(
    producer: ProducerCore,
    rows: pa.RecordBatch,
    columns: MessageColumns,
    encoded: EncodedRows,
    topic: str | None,
    named: Callable[[str], str],
) -> None:
    topics = [topic] if topic is not None else rows.column(columns.topic).unique().to_pylist()
    queues: dict[str, tuple[MessageQueue, ...]] = {}
    if columns.sharding_key is not None:
        for one in topics:
            if one is not None:
                found = await producer.queues(named(checked_topic(one)))
                queues[one] = tuple(queue._replace(topic=one) for queue in found)
    waiting: set[asyncio.Task[None]] = set()
    try:
        for placed in place(rows, columns, topic, queues.__getitem__):
            part = encoded if placed.rows is None else encoded.take(placed.rows)
            target = named(checked_topic(placed.topic))
            queue = None if placed.queue is None else placed.queue._replace(topic=target)
            for send in _requests(producer, placed, part, target, queue):
                if queue is not None:
                    await send()  # one after the other keeps their order
                    continue
                waiting.add(asyncio.ensure_future(send()))
                if len(waiting) >= IN_FLIGHT:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for one_done in done:
                        one_done.result()
        await asyncio.gather(*waiting)
    finally:
        for task in waiting:
            task.cancel()


def _requests(
    producer: ProducerCore,
    placed: Placement,
    rows: EncodedRows,
    topic: str,
    queue: MessageQueue | None,
) -> Iterator[Callable[[], Any]]:
    """The sends of these rows, in order."""
    import numpy as np

    single = partial(producer.send_encoded, topic, queue=queue)
    if placed.topic.startswith(RETRY_PREFIX):
        late = np.arange(len(rows.items))
    else:
        late = np.empty(0, np.int64) if rows.delayed is None else rows.delayed.nonzero()[0]
    if len(late):
        alone = rows.take(late)
        for body, properties in zip(alone.bodies, alone.properties, strict=True):
            yield partial(single, body.as_py(), properties.as_py().decode())
        rows = rows.take(np.setdiff1d(np.arange(len(rows.items)), late))
    limit = min(BATCH_BYTES, producer.settings.max_message_bytes)
    for first, end, body in cut(rows.items, limit):
        if len(body) > producer.settings.max_message_bytes:
            alone = rows.take(np.arange(first, end))
            text = alone.properties[0].as_py().decode()
            yield partial(single, alone.bodies[0].as_py(), text)
        else:
            yield partial(producer.send_encoded, topic, bytes(body), None, queue=queue)


# ------------------------------------------------------------------------------------- the table


def batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a table, a batch, a reader or a frame of another library."""
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    else:
        raise InvalidArgument(
            f"rows of type {type(data).__name__}",
            expected="a pyarrow Table, RecordBatch or RecordBatchReader, or a frame that offers "
            "Arrow's stream interface, as those of Polars and DuckDB do",
        )


def _chosen(batch: pa.RecordBatch, topic: str | None) -> tuple[pa.RecordBatch, MessageColumns]:
    """The columns that make messages, in the types that the encoder takes."""
    names = [name for name in batch.schema.names if name in _ACCEPTED]
    if topic is not None and "topic" in names:
        names.remove("topic")
    if "body" not in names:
        raise InvalidArgument(
            f"no column 'body' among {', '.join(batch.schema.names) or 'no columns at all'}",
            expected="a column body, binary or text",
        )
    if topic is None and "topic" not in names:
        raise InvalidArgument("rows without a topic", expected="topic=..., or a column topic")
    arrays = [_cast(name, batch.column(name)) for name in names]
    places = {name: place for place, name in enumerate(names)}
    return pa.RecordBatch.from_arrays(arrays, names), MessageColumns(**places)


def _cast(name: str, values: pa.Array) -> pa.Array:
    kind, expected = _ACCEPTED[name]
    given = values.type
    if name == "keys" and pa.types.is_nested(given):
        kind = pa.list_(_TEXT)
    if name == "delay" and pa.types.is_integer(given):
        kind = pa.int64()
    try:
        return values if given == kind else values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidArgument(
            f"column {name!r} is {given}", expected=expected, hint="cast it before"
        ) from error
