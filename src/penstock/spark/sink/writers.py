"""The sink of ``format("penstock")``: Arrow batches in, messages in topics.

A task encodes each Arrow batch as a whole, assigns the rows to queues and sends them in batches. It
ends when every message is confirmed, so a micro-batch that Spark commits is stored. If it runs
again, it sends the same rows with the same row properties.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.client.producing.arrow_sends import new_ids
from penstock.client.producing.outgoing import checked_topic
from penstock.client.producing.row_placement import Placement, place
from penstock.columnar.encode import (
    EncodedRows,
    MessageColumns,
    Origin,
    cut,
    encode_rows,
)
from penstock.columnar.encode import halves as in_portions
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX
from penstock.model.record_layout import MIN_ITEM_BYTES
from penstock.spark.sink.outbox import Outbox, Post
from penstock.spark.sink.sink_columns import message_columns
from penstock.spark.sink.write_options import (
    MAX_BATCH_BYTES,
    KeepQueue,
    WriteOptions,
    parse_write,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The messages that a task sent, by queue, and the last offset of each."""

    counts: dict[MessageQueue, int] = field(default_factory=dict)
    last_offsets: dict[MessageQueue, int] = field(default_factory=dict)

    def stored(self, post: Post, queue: MessageQueue, queue_offset: int) -> None:
        """Count a confirmed request."""
        self.counts[queue] = self.counts.get(queue, 0) + post.count
        last = queue_offset + post.count - 1
        self.last_offsets[queue] = max(last, self.last_offsets.get(queue, -1))


def checked_write(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> tuple[WriteOptions, MessageColumns]:
    """The arguments of a writer; refuses options and columns that cannot work."""
    if overwrite:
        raise InvalidArgument(
            "a topic cannot be overwritten",
            expected="messages to be added",
            hint='df.write.mode("append"), or outputMode("append") of a stream',
        )
    parsed = parse_write(options)
    return parsed, message_columns(
        schema, topic=parsed.topic, keep_queue=parsed.keep_queue is not KeepQueue.NO
    )


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; the write has its own random name, which its tasks share.

    Inside ``foreachBatch``, too, where Spark gives query and batch: two writes of one batch to one
    topic would have the same names, and look like copies of each other. With the option
    ``writeName`` the user says that they have not.
    """

    def __init__(self, options: WriteOptions, columns: MessageColumns) -> None:
        self._options = options
        self._columns = columns
        # No longer than needed: every message carries it.
        self._name = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        if self._options.write_name is None:
            origin = Origin(self._name, 0, task.partitionId())
        else:
            origin = batch_origin(task, self._options.write_name)
        return write_rows(iterator, self._options, self._columns, origin)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _report(self._options, messages, "write done")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _report(self._options, messages, "write given up")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches; names come from the query, so they stay the same after a restart."""

    def __init__(self, options: WriteOptions, columns: MessageColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(iterator, self._options, self._columns, stream_origin(_task()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages, f"micro-batch {batchId} done")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages, f"micro-batch {batchId} given up")


def write_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    columns: MessageColumns,
    origin: Origin,
) -> Written:
    """Send the rows of one task and return when all of them are confirmed."""
    written = Written()
    ids = new_ids() if options.message_ids else None
    row = 0
    with Outbox(
        options.access,
        written.stored,
        seconds=options.send_seconds,
        retries=options.retries,
        # Tasks with a few rows each must not all begin with the same queue.
        first_turn=crc32(origin.query.encode()) + origin.batch + origin.partition,
    ) as outbox:
        for batch in batches:
            for rows in in_portions(batch):
                if not rows.num_rows:
                    continue
                encoded = encode_rows(rows, columns, origin, row, ids)
                for placed in place(
                    rows,
                    columns,
                    options.topic,
                    outbox.routes.queues,
                    strict=options.keep_queue is KeepQueue.YES,
                ):
                    part = encoded if placed.rows is None else encoded.take(placed.rows)
                    _post_all(outbox, placed, part, options.batch_bytes)
                row += rows.num_rows
    return written


def _post_all(outbox: Outbox, placed: Placement, rows: EncodedRows, batch_bytes: int) -> None:
    topic = checked_topic(placed.topic)
    if topic.startswith(RETRY_PREFIX):
        # No broker takes batches for retry topics.
        _post_singly(outbox, placed, rows)
        return
    if rows.delayed is not None:
        late = rows.delayed.nonzero()[0]
        _post_singly(outbox, placed, rows.take(late))
        rows = rows.take((~rows.delayed).nonzero()[0])
    for first, end, body in cut(rows.items, batch_bytes):
        if end - first == 1 and len(body) > MAX_BATCH_BYTES + MIN_ITEM_BYTES:
            _post_singly(outbox, placed, rows.take(np.arange(first, end)))
            continue
        outbox.post(Post(topic, placed.queue, body, count=end - first, is_batch=True))


def _post_singly(outbox: Outbox, placed: Placement, rows: EncodedRows) -> None:
    for body, properties in zip(rows.bodies, rows.properties, strict=True):
        text = properties.as_py().decode()
        outbox.post(Post(placed.topic, placed.queue, body.as_py(), text))


def stream_origin(task: TaskContext) -> Origin:
    """The origin of the rows that a task of a micro-batch writes."""
    query, batch = task.getLocalProperty(QUERY_PROPERTY), task.getLocalProperty(BATCH_PROPERTY)
    return Origin(query or "unknown", int(batch or 0), task.partitionId())


def batch_origin(task: TaskContext, write_name: str) -> Origin:
    """The origin of rows that a function of ``foreachBatch`` writes under a name."""
    if task.getLocalProperty(QUERY_PROPERTY) is None:
        raise InvalidArgument(
            f"option writeName {write_name!r} outside of foreachBatch",
            expected="a write of a micro-batch, whose query and batch name its rows",
            hint="leave the option out",
        )
    of_batch = stream_origin(task)
    return replace(of_batch, query=f"{of_batch.query}:{write_name}")


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark writes in tasks"
    return task


def _report(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], what: str
) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    log.info(
        "%s topic=%s tasks=%d of %d messages=%d queues=%d",
        what,
        options.topic or "by row",
        len(done),
        len(messages),
        sum(sum(message.counts.values()) for message in done),
        len({queue for message in done for queue in message.counts}),
    )
