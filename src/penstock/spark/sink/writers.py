"""The sink of ``format("penstock")``: Arrow batches in, messages in topics.

A task encodes each Arrow batch as a whole, assigns the rows to queues and sends them in batches. It
ends when every message is confirmed, so a micro-batch that Spark commits is stored. If it runs
again, it sends the same batches, whose first messages have the same unique ids, and a Penstock
broker stores them once.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
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

from penstock.client.producing.outgoing import checked_topic
from penstock.client.producing.row_placement import Placement, place
from penstock.columnar.encode import (
    EncodedRows,
    MessageColumns,
    cut,
    encode_rows,
    with_first_id,
)
from penstock.columnar.encode import halves as in_portions
from penstock.columnar.row_ids import RowIds
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX, Property
from penstock.model.properties import END_MARK, VALUE_MARK
from penstock.model.record_layout import MIN_ITEM_BYTES
from penstock.spark.sink.row_names import (
    RowNames,
    is_in_micro_batch,
    of_micro_batch,
    of_named_write,
    of_single_write,
)
from penstock.spark.sink.sink_columns import message_columns
from penstock.spark.sink.task_sender import BATCH_PROPERTIES, Post, TaskSender
from penstock.spark.sink.write_options import (
    MAX_BATCH_BYTES,
    KeepQueue,
    WriteOptions,
    parse_write,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

MAX_LOOKED_UP: Final = 1024
"""Rows in a request that a broker may have to look for one by one, while others wait.

If none of them is there, which it usually knows at once, this is a short request.
"""


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
        schema,
        topic=parsed.topic,
        keep_queue=parsed.keep_queue is not KeepQueue.NO,
        id_column=parsed.id_column,
    )


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once; the write has its own random name, which its tasks share.

    Inside ``foreachBatch``, too, where Spark gives query and batch: two writes of one batch to one
    topic would have the same names, and look like copies of each other. With the option
    ``writeName`` the user says that they have not; outside of ``foreachBatch`` it makes another
    run of the same write a repeat of this one. ``batch`` is the micro-batch, where `batch_writer`
    passed it on.
    """

    def __init__(
        self, options: WriteOptions, columns: MessageColumns, batch: int | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._batch = batch
        # No longer than needed: every message carries it.
        self._name = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        name = self._options.write_name
        if name is None:
            names = of_single_write(task, self._name)
        elif is_in_micro_batch(task):
            names = of_micro_batch(task, name)
        else:
            names = of_named_write(task, name, self._batch)
        return write_rows(iterator, self._options, self._columns, names)

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
        return write_rows(iterator, self._options, self._columns, of_micro_batch(_task()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages, f"micro-batch {batchId} done")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _report(self._options, messages, f"micro-batch {batchId} given up")


def write_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    columns: MessageColumns,
    names: RowNames,
) -> Written:
    """Send the rows of one task and return when all of them are confirmed."""
    written = Written()
    origin = names.origin
    ids = RowIds.of(origin) if options.message_ids and columns.id is None else None
    by_place = columns
    if columns.id is not None and columns.sharding_key is None:
        # A row that is sent again must come to the broker that may have it.
        by_place = replace(columns, sharding_key=columns.id)
    row = 0
    with TaskSender(
        options.access,
        written.stored,
        seconds=options.send_seconds,
        retries=options.retries,
        # Tasks with a few rows each must not all begin with the same queue.
        first_turn=crc32(origin.query.encode()) + origin.batch + origin.partition,
    ) as sender:
        requests = _RequestBuilder(sender, options, columns, names)
        for batch in batches:
            for rows in in_portions(batch):
                if not rows.num_rows:
                    continue
                encoded = encode_rows(rows, columns, origin, row, ids)
                for placed in place(
                    rows,
                    by_place,
                    options.topic,
                    sender.routes.queues,
                    strict=options.keep_queue is KeepQueue.YES,
                ):
                    part = encoded if placed.rows is None else encoded.take(placed.rows)
                    requests.send(placed, part)
                row += rows.num_rows
    return written


class _RequestBuilder:
    """Makes requests of encoded rows."""

    def __init__(
        self, sender: TaskSender, options: WriteOptions, columns: MessageColumns, names: RowNames
    ) -> None:
        self._sender = sender
        self._batch_bytes = options.batch_bytes
        self._is_once = options.exactly_once
        self._by_column = columns.id is not None
        self._mark = names.mark(by_column=self._by_column) if self._is_once else ""
        self._single_mark = names.mark(by_column=False) if self._is_once else ""
        self._has_ids = self._by_column or options.message_ids
        self._ids = RowIds.of(names.origin)
        self._max_rows = MAX_LOOKED_UP if self._by_column and self._mark else None

    def send(self, placed: Placement, rows: EncodedRows) -> None:
        """Send rows of one topic to one queue, or to any."""
        topic = checked_topic(placed.topic)
        if topic.startswith(RETRY_PREFIX):
            # No broker takes batches for retry topics.
            self._singly(placed, rows)
            return
        if rows.delayed is not None:
            late = rows.delayed.nonzero()[0]
            self._singly(placed, rows.take(late))
            rows = rows.take((~rows.delayed).nonzero()[0])
        for first, end, body in cut(rows.items, self._batch_bytes, self._max_rows):
            if end - first == 1 and len(body) > MAX_BATCH_BYTES + MIN_ITEM_BYTES:
                self._singly(placed, rows.take(np.arange(first, end)))
                continue
            post = Post(topic, placed.queue, body, BATCH_PROPERTIES, end - first, is_batch=True)
            if self._is_once:
                post.unique_id = self._id(rows, first)
                post.mark = self._mark
                if not self._has_ids:
                    post.body = with_first_id(body, post.unique_id)
            self._sender.post(post)

    def _singly(self, placed: Placement, rows: EncodedRows) -> None:
        for index, (body, properties) in enumerate(zip(rows.bodies, rows.properties, strict=True)):
            post = Post(placed.topic, placed.queue, body.as_py(), properties.as_py().decode())
            if self._is_once:
                post.unique_id = self._id(rows, index)
                post.mark = self._single_mark
                if not self._has_ids:
                    post.properties += (
                        f"{Property.UNIQUE_KEY}{VALUE_MARK}{post.unique_id}{END_MARK}"
                    )
            self._sender.post(post)

    def _id(self, rows: EncodedRows, index: int) -> str:
        """The unique id of a row."""
        return rows.given_id(index) if self._by_column else self._ids.text(rows.number(index))


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
