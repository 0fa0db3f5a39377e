"""Chooses the queue of each row. Pure.

keepQueue        the queue in the columns broker and queue_id
sharding_key     the queue that every producer chooses for that key
prefer           the queue of the sharding key, or that in broker and queue_id; if the topic has
                 none such, another one for all rows of that queue
none of these    any queue: whole batches of rows are distributed round robin
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from penstock.client.producing.selection import by_hash
from penstock.columnar.buffers import Numbers
from penstock.columnar.encode import MessageColumns
from penstock.errors import IllegalMessage, InvalidArgument
from penstock.model import MessageQueue

QueuesOf = Callable[[str], Sequence[MessageQueue]]
"""The queues of a topic that messages can be sent to, in order."""


class Placement(NamedTuple):
    """Rows of one topic for one queue; None: any queue of the topic, and all rows in order."""

    topic: str
    queue: MessageQueue | None
    rows: Numbers | None
    """The rows, ascending; None: all."""


def place(
    rows: pa.RecordBatch,
    columns: MessageColumns,
    topic: str | None,
    queues_of: QueuesOf,
    *,
    strict: bool = True,
) -> Iterator[Placement]:
    """The placement of the rows; each row is in one part.

    With ``strict``, a row that names a queue is sent there, or is an error.
    """
    for name, of_topic in _by_topic(rows, columns, topic):
        part = rows if of_topic is None else rows.take(pa.array(of_topic))
        for queue, chosen in _by_queue(part, columns, name, queues_of, strict):
            if chosen is None:
                yield Placement(name, queue, of_topic)
            else:
                yield Placement(name, queue, chosen if of_topic is None else of_topic[chosen])


def _by_topic(
    rows: pa.RecordBatch, columns: MessageColumns, topic: str | None
) -> Iterator[tuple[str, Numbers | None]]:
    if topic is not None:
        yield topic, None
        return
    assert columns.topic is not None, "without a column topic there is the option"
    column = rows.column(columns.topic)
    if column.null_count:
        raise IllegalMessage(
            f"{column.null_count} of {len(column)} rows have no topic",
            expected="a topic in every row",
            hint='option("topic", ...) sends all rows to one topic',
        )
    yield from _groups(column)


def _by_queue(
    rows: pa.RecordBatch, columns: MessageColumns, topic: str, queues_of: QueuesOf, strict: bool
) -> Iterator[tuple[MessageQueue | None, Numbers | None]]:
    if columns.queue_id is not None and strict:
        yield from _kept(rows, columns, topic, queues_of(topic))
        return
    keys = None if columns.sharding_key is None else rows.column(columns.sharding_key)
    if columns.queue_id is not None:
        queues = queues_of(topic)
        for queue, chosen in _preferred(rows, columns, topic, queues):
            part = None if keys is None else keys.take(pa.array(chosen))
            for by_key, among in _by_key(part, queues):
                yield by_key or queue, chosen if among is None else chosen[among]
        return
    yield from _by_key(keys, None if keys is None else queues_of(topic))


def _by_key(
    keys: pa.Array | None, queues: Sequence[MessageQueue] | None
) -> Iterator[tuple[MessageQueue | None, Numbers | None]]:
    """The queues of sharding keys; None for rows without one."""
    if keys is None or queues is None or keys.null_count == len(keys):
        yield None, None
        return
    places = {queue: place for place, queue in enumerate(queues)}
    encoded = keys.dictionary_encode()
    # Like the property, an empty key is none; rows without one may use any queue.
    of_key = [places[by_hash(queues, key)] if key else -1 for key in encoded.dictionary.to_pylist()]
    indices = encoded.indices.fill_null(len(of_key)).to_numpy()
    targets = np.array([*of_key, -1])[indices]
    for target in np.unique(targets):
        chosen = np.flatnonzero(targets == target)
        yield queues[target] if target >= 0 else None, chosen


def _preferred(
    rows: pa.RecordBatch, columns: MessageColumns, topic: str, queues: Sequence[MessageQueue]
) -> Iterator[tuple[MessageQueue | None, Numbers]]:
    """The queue that rows name, or another one for all of them."""
    assert columns.queue_id is not None
    assert columns.broker is not None
    known = set(queues)
    for broker, of_broker in _groups(rows.column(columns.broker)):
        numbers = rows.column(columns.queue_id).take(pa.array(of_broker))
        for number, chosen in _groups(numbers):
            queue: MessageQueue | None = None
            if broker is not None and number is not None:
                queue = MessageQueue(topic, broker, number)
                if queue not in known:
                    queue = queues[(crc32(broker.encode()) + number) % len(queues)]
            yield queue, of_broker[chosen]


def _kept(
    rows: pa.RecordBatch, columns: MessageColumns, topic: str, queues: Sequence[MessageQueue]
) -> Iterator[tuple[MessageQueue | None, Numbers | None]]:
    assert columns.queue_id is not None
    assert columns.broker is not None
    known = set(queues)
    for broker, of_broker in _groups(rows.column(columns.broker)):
        numbers = rows.column(columns.queue_id).take(pa.array(of_broker))
        for number, chosen in _groups(numbers):
            if broker is None or number is None:
                raise InvalidArgument(
                    f"keepQueue, and a row for topic {topic!r} with broker {broker!r} and "
                    f"queue_id {number!r}",
                    expected="both in every row",
                )
            queue = MessageQueue(topic, broker, number)
            if queue not in known:
                raise InvalidArgument(
                    f"keepQueue, and a row for {queue}",
                    expected=f"one of the {len(known)} queues of topic {topic!r}",
                    hint="write without keepQueue, or give the topic as many queues",
                )
            yield queue, of_broker[chosen]


def _groups(column: pa.Array) -> Iterator[tuple[Any, Numbers]]:
    """Each value of a column, with its rows."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if not encoded.null_count and len(values) == 1:
        yield values[0], np.arange(len(column))
        return
    indices = encoded.indices.fill_null(len(values)).to_numpy()
    if encoded.null_count:
        values.append(None)
    for place, value in enumerate(values):
        yield value, np.flatnonzero(indices == place)
