"""The two places where a handler runs on an executor: inside the read, or in a stream's writer.

Inside the read, messages never become rows; Spark gets one small row a message, with its
disposition. In the writer, rows become messages again, as SQL left them; a failed message is
fetched from its broker before it is sent back.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from penstock.client.consuming.subscriptions import restored_topic
from penstock.client.requests import body_bytes
from penstock.columnar.bad_records import BadRecord
from penstock.errors import BodyDamaged, InvalidArgument, PenstockError, ProtocolError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import RETRY_PREFIX, Property, retry_topic
from penstock.protocol.codes import ResponseCode
from penstock.protocol.records.pulled import messages_from_pull
from penstock.spark.handlers.handler_task import DISPOSITION_NAMES, HandlerJob, HandlerTask, Pause
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.data_loss import BadRecords
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.group_progress import GroupProgress
from penstock.spark.source.group_starts import starts
from penstock.spark.source.options import ReadOptions, parse_read
from penstock.spark.source.planning import TaskRanges
from penstock.spark.source.ranges import Range
from penstock.spark.source.readers import StreamReader
from penstock.spark.source.stream_driver import Offsets, StreamDriver
from penstock.spark.source.topic_driver import TopicDriver

log = logging.getLogger(__name__)

OUTCOMES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("offset", LongType()),
        StructField("outcome", StringType()),
    ]
)
_ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("outcome", pa.string()),
    ]
)
_DISPOSITIONS: Final = pa.array(DISPOSITION_NAMES)
COLLECT_AFTER: Final = 100_000
PLACE: Final = ("topic", "broker", "queue_id", "offset")
"""The columns that identify the message of a row."""


# --------------------------------------------------------------------------- inside the read


class HandlerSource(DataSource):
    """A source whose rows are dispositions; `consume` gives it a job and registers it."""

    job: HandlerJob
    cores: int | None = None
    format_name = "penstock_handler"

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    def schema(self) -> StructType:
        return OUTCOMES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HandlerStream(parse_read(dict(self.options)), self.job, self.cores)


class HandlerStream(StreamReader):
    """A stream from topics whose tasks handle the messages they fetch."""

    def __init__(self, options: ReadOptions, job: HandlerJob, cores: int | None) -> None:
        super().__init__(options, (), cores)
        self._job = job

    def _open(self) -> StreamDriver:
        return _GroupDriver(self._options, self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskRanges):
            yield from run_handlers(partition, self._options, self._job)


class _GroupDriver(TopicDriver):
    """Begins where a consumer group does; used only without a checkpoint."""

    def _starts(self, queues: list[MessageQueue]) -> Offsets:
        assert self._options.group is not None
        return starts(self._positions, queues, self._options.group, self._options.starting)


def run_handlers(
    task: TaskRanges, options: ReadOptions, job: HandlerJob
) -> Iterator[pa.RecordBatch]:
    """Handle the messages of a task's ranges; batches have the disposition of each message."""
    fetcher = Fetcher(options)
    handler_task = HandlerTask(job)
    with relaxed_garbage_collection():
        if job.ordered:
            yield from _interleaved(
                [_in_order(part, fetcher, options, handler_task, job) for part in task.ranges]
            )
            return
        for part in task.ranges:
            for messages in _messages(part, fetcher, options, job):
                yield _outcomes(part.queue, messages, handler_task.run(messages))


def _in_order(
    part: Range, fetcher: Fetcher, options: ReadOptions, handler_task: HandlerTask, job: HandlerJob
) -> Iterator[pa.RecordBatch | Pause]:
    """Handle a range, one message after the other, with a pause before one is repeated."""
    for messages in _messages(part, fetcher, options, job):
        dispositions: list[int] = []
        for message in messages:
            while isinstance(disposition := handler_task.attempt(message), Pause):
                yield disposition
            dispositions.append(disposition)
        yield _outcomes(part.queue, messages, dispositions)


def _interleaved(
    ranges: Sequence[Iterator[pa.RecordBatch | Pause]],
) -> Iterator[pa.RecordBatch]:
    """The batches of all ranges: while one pauses, another continues."""
    waiting = [(0.0, place) for place in range(len(ranges))]
    while waiting:
        due, place = heappop(waiting)
        time.sleep(max(0.0, due - time.monotonic()))
        for batch in ranges[place]:
            if isinstance(batch, Pause):
                heappush(waiting, (time.monotonic() + batch.seconds, place))
                break
            yield batch


def _messages(
    part: Range, fetcher: Fetcher, options: ReadOptions, job: HandlerJob
) -> Iterator[list[StoredMessage]]:
    """The messages of a range to handle, a chunk at a time."""
    for chunk in fetcher.chunks(part):
        messages = _wanted(bytes(chunk), part, options)
        if messages:
            _restore_topics(messages, job)
            yield messages


@contextmanager
def relaxed_garbage_collection() -> Iterator[None]:
    """Collect cyclic garbage after many new objects, not after a few hundred.

    A chunk makes ten thousand messages that live until it is handled; collecting again and again
    among them takes longer than making them.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], COLLECT_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _wanted(chunk: bytes, part: Range, options: ReadOptions) -> list[StoredMessage]:
    """The messages of a chunk that belong to the range and pass the filters."""
    on_bad = BadRecords(options, part, f"DIR of {part.queue.broker_name}")
    damaged: set[int] = set()

    def tell(queue: MessageQueue, queue_offset: int, error: ProtocolError) -> None:
        is_damaged = isinstance(error, BodyDamaged)
        if is_damaged:
            damaged.add(queue_offset)
        on_bad(BadRecord(queue_offset, str(error), is_damaged))

    messages = messages_from_pull(
        chunk,
        part.queue.broker_name,
        check_crc=options.check_crcs,
        keep_unreadable=True,
        tell_unreadable=tell,
    )
    if damaged:
        # No handler gets a body that is not the one that was sent.
        messages = [one for one in messages if one.queue_offset not in damaged]
    if messages and (messages[0].queue_offset < part.low or messages[-1].queue_offset >= part.high):
        messages = [one for one in messages if part.low <= one.queue_offset < part.high]
    tags, keys = options.exact_tags, options.keys
    if tags is not None:
        messages = [one for one in messages if one.peek(Property.TAGS) in tags]
    if keys is not None:
        messages = [one for one in messages if not keys.isdisjoint(one.keys)]
    return messages


def _restore_topics(messages: Sequence[StoredMessage], job: HandlerJob) -> None:
    """Give messages their original topic, as a push consumer does."""
    namespace = job.access.namespace
    if not namespace and not messages[0].topic.startswith(RETRY_PREFIX):
        return
    retry = retry_topic(job.access.long_name(job.group))
    for message in messages:
        message.topic = restored_topic(message, retry, namespace)


def _outcomes(
    queue: MessageQueue, messages: Sequence[StoredMessage], dispositions: Sequence[int]
) -> pa.RecordBatch:
    count = len(messages)
    same = pa.array(np.zeros(count, np.int8))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([queue.topic]).take(same),
            pa.array([queue.broker_name]).take(same),
            pa.array([queue.queue_id], pa.int32()).take(same),
            pa.array([message.queue_offset for message in messages], pa.int64()),
            _DISPOSITIONS.take(pa.array(np.array(dispositions, np.int8))),
        ],
        schema=_ARROW,
    )


# ------------------------------------------------------------------------------ in the writer


class HandlerSink(DataSource):
    """A sink that calls a handler for each row; `consume` gives it a job and registers it."""

    job: HandlerJob
    commits = False
    """Whether the group's offsets are committed here, because the stream does not do it."""
    format_name = "penstock_handler"

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if missing := [name for name in PLACE if name not in schema.names]:
            raise InvalidArgument(
                f"a handler's stream without {', '.join(missing)}",
                expected=f"a stream that kept {', '.join(PLACE)}",
            )
        return HandlerWriter(self.job, self.commits)


@dataclass
class HandledBatch(WriterCommitMessage):
    """The dispositions of a task's messages."""

    dispositions: Counter[str] = field(default_factory=Counter)
    ends: dict[MessageQueue, int] = field(default_factory=dict)
    """One past the last message of each queue."""


class HandlerWriter(DataSourceStreamArrowWriter):
    """Handles the rows of a micro-batch; it is committed when all dispositions are known."""

    def __init__(self, job: HandlerJob, commits: bool) -> None:
        self._job = job
        self._commits = commits

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HandledBatch:
        dispositions: Counter[int] = Counter()
        ends: dict[MessageQueue, int] = {}
        original = Originals(self._job).find
        handler_task = HandlerTask(self._job, original)
        with relaxed_garbage_collection():
            for batch in iterator:
                messages = messages_of_rows(batch)
                if messages:
                    _restore_each(messages, self._job)
                    dispositions.update(handler_task.run(messages))
                    for message in messages:
                        queue, end = message.queue, message.queue_offset + 1
                        if end > ends.get(queue, 0):
                            ends[queue] = end
        named = Counter(
            {DISPOSITION_NAMES[disposition]: count for disposition, count in dispositions.items()}
        )
        return HandledBatch(named, ends)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        total: Counter[str] = Counter()
        ends: dict[MessageQueue, int] = {}
        for message in messages:
            if isinstance(message, HandledBatch):
                total.update(message.dispositions)
                for queue, end in message.ends.items():
                    ends[queue] = max(end, ends.get(queue, 0))
        log.info("batch handled group=%s batch=%d %s", self._job.group, batchId, dict(total))
        if self._commits and ends:
            # Spark's checkpoint is what counts, so a failed commit is only logged.
            access = self._job.access
            GroupProgress(Cluster(access, access.long_name(self._job.group))).commit(ends)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("batch not handled group=%s batch=%d", self._job.group, batchId)


def _restore_each(messages: Sequence[StoredMessage], job: HandlerJob) -> None:
    # Rows of several topics may be mixed, and have the user's names already.
    retry = retry_topic(job.group)
    for message in messages:
        if message.topic.startswith(RETRY_PREFIX):
            message.topic = restored_topic(message, retry, job.access.namespace)


def messages_of_rows(rows: pa.RecordBatch) -> list[StoredMessage]:
    """Rows as messages; columns that a frame did not keep are empty."""
    count = rows.num_rows
    columns = {name: _values(rows.column(place)) for place, name in enumerate(rows.schema.names)}

    def column(name: str, otherwise: Any) -> Sequence[Any]:
        return columns.get(name) or [otherwise] * count

    queues: dict[tuple[str, str, int], MessageQueue] = {}
    messages = []
    for topic, broker, queue_id, offset, body, pairs, times, born, stored, msg_id, flags in zip(
        columns["topic"],
        columns["broker"],
        columns["queue_id"],
        columns["offset"],
        column("body", b""),
        column("properties", ()),
        column("reconsume_times", 0),
        column("born_timestamp", 0),
        column("store_timestamp", 0),
        column("msg_id", None),
        column("sys_flag", 0),
        strict=True,
    ):
        key = (topic, broker, queue_id)
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = MessageQueue(*key)
        message = StoredMessage(
            topic,
            body if isinstance(body, bytes) else (body or "").encode(),
            dict(pairs or ()),
            queue,
            offset,
            -1,
            born or 0,
            stored or 0,
            reconsume_times=times or 0,
            sys_flag=flags or 0,
            msg_id=msg_id,
        )
        messages.append(message)
    return messages


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


class Originals:
    """Finds the stored messages of rows, for one task."""

    def __init__(self, job: HandlerJob) -> None:
        self._access = job.access
        self._cluster = Cluster(job.access, job.access.long_name(job.group))

    def find(self, message: StoredMessage) -> StoredMessage:
        """The message as it is stored; if it is no longer stored, as the row has it."""
        queue, offset = message.queue, message.queue_offset
        try:
            answer = self._cluster.pool.exchange(
                self._cluster.address(queue), self._cluster.pull(queue, offset, count=1)
            )
        except PenstockError as error:
            self._cluster.forget_routes()
            if not message.body:
                raise
            log.warning("failed message sent back from its row queue=%s error=%s", queue, error)
            return message
        if answer.code == ResponseCode.SUCCESS:
            broker = queue.broker_name
            for stored in messages_from_pull(body_bytes(answer), broker, keep_unreadable=True):
                if stored.queue_offset == offset:
                    stored.topic = message.topic
                    return stored
        if not message.body:
            raise InvalidArgument(
                f"message {offset} of {queue} failed, and is no longer stored to be sent back",
                expected="a frame that kept body and properties, to send it back from",
            )
        return message
