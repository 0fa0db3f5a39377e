"""Fetches the messages of ranges from brokers, on executors.

Pulls follow one another on one connection. As soon as an answer has come, the next pull is sent;
while the answer is decoded here, the broker reads and the kernel receives the next one. A broker of
Penstock is asked for megabytes at a time (a private ext field), others limit the size themselves.

After a broken connection or a restart of the broker, the pull continues where it stopped. Planned
messages that are gone are data loss, which fails the task or, with failOnDataLoss=false, is logged
and skipped.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

import pyarrow as pa

from penstock.client.cluster_access import ClusterAccess
from penstock.client.requests import refusal
from penstock.columnar.decode import to_batches
from penstock.errors import (
    ConnectionLost,
    PenstockError,
    ProtocolError,
    RemotingError,
    TopicNotFound,
)
from penstock.model.record_layout import MIN_RECORD_BYTES
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import PULL_BYTES, PULL_COUNT
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.pull import PullMessageResult
from penstock.spark.connection import Connection
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.data_loss import BadRecords, DataLost, lost, wanted
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range

log = logging.getLogger(__name__)

PULL_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 20.0
"""How long a broker may be away before the task fails; Spark then retries the task."""
SHORT_PATIENCE: Final = 5.0
"""How long a queue may be shorter than planned."""
ROUTE_SECONDS: Final = 30.0
RETRY_DELAY: Final = 0.2
MAX_PULL_COUNT: Final = 65_536
USUAL_PULL_COUNT: Final = 1024
"""The count for other brokers, which have their own limit, usually 32."""
SMALL_PULLS: Final = 16
"""Pulls in flight at once, if their answers are small."""
SMALL_CHUNK: Final = 256 * 1024
"""Answers smaller than this are decoded together: a batch of 32 rows costs like one of 500."""

_FOUND = ResponseCode.SUCCESS
_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_QUEUE_OFFSET = Struct(">q")
_QUEUE_OFFSET_AT: Final = 20  # behind size, magic, checksum, queue and flag
_REMOVED = "MESSAGE_WAS_REMOVING"
"""The remark of a broker whose commit log no longer has what its consume queue points to."""


@dataclass(slots=True)
class _Cursor:
    part: Range
    offset: int
    failing_since: float | None = None
    short_since: float | None = None
    """Since when the queue has ended before the range."""

    @property
    def is_done(self) -> bool:
        return self.offset >= self.part.high


@functools.lru_cache(maxsize=16)
def _cluster(pid: int, access: ClusterAccess, group: str) -> Cluster:
    """The cluster of this process, with its cached routes; it outlives tasks, but not a fork."""
    return Cluster(access, group, ROUTE_SECONDS)


class Fetcher:
    """Reads ranges, for one task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = _cluster(os.getpid(), options.access, options.puller)

    def batches(
        self, ranges: Iterable[Range], columns: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """The messages of ranges as Arrow batches."""
        options = self._options
        wish = wanted(options, columns)
        for part in ranges:
            short = part.queue.topic
            # Records have the brokers' name of the topic; with a namespace it is not the user's.
            is_renamed = "topic" in columns and options.access.long_name(short) != short
            on_bad = BadRecords(options, part, f"DIR of {part.queue.broker_name}")
            for chunk in _gathered(self.chunks(part)):
                for batch in to_batches(
                    chunk,
                    broker=part.queue.broker_name,
                    wanted=wish,
                    lo=part.low,
                    hi=part.high,
                    on_bad=on_bad,
                ):
                    yield _renamed(batch, short) if is_renamed else batch

    def chunks(self, part: Range) -> Iterator[memoryview]:
        """The stored records of a range, many at a time; some may be before or after it."""
        cursor = _Cursor(part, part.low)
        while not cursor.is_done:
            try:
                yield from self._pulled(cursor)
            except PenstockError as error:
                if isinstance(error, DataLost) or not _may_pass(error):
                    raise
                if not self._wait(cursor, error):
                    return

    def _pulled(self, cursor: _Cursor) -> Iterator[memoryview]:
        """Pull until the end of the range, or until an error."""
        address = self._cluster.address(cursor.part.queue)
        with self._cluster.pool.connection(address) as connection:
            ahead = _Ahead(connection)
            while not cursor.is_done:
                self._ask(ahead, cursor)
                answer = ahead.next_answer()
                before = cursor.offset
                body = self._take(cursor, answer, address)
                taken = cursor.offset - before
                if taken:
                    cursor.failing_since = cursor.short_since = None
                is_small = body is not None and body.nbytes < SMALL_CHUNK
                failure: PenstockError | None = None
                try:
                    ahead.turn(cursor.offset, taken if is_small and self._is_unfiltered else 0)
                    self._ask(ahead, cursor)
                except PenstockError as error:
                    failure = error
                # Also if the next pull failed: the cursor has passed these records.
                if body is not None:
                    yield body
                if failure is not None:
                    raise failure

    @property
    def _is_unfiltered(self) -> bool:
        return self._options.exact_tags is None

    def _ask(self, ahead: _Ahead, cursor: _Cursor) -> None:
        """Keep as many pulls in flight as are useful."""
        if cursor.is_done:
            return
        while (offset := ahead.wanted(cursor)) is not None:
            ahead.send(offset, self._request(cursor.part, offset, ahead.stride))

    def _request(self, part: Range, offset: int, stride: int) -> Command:
        options = self._options
        left = min(part.high - offset, stride or part.high)
        return self._cluster.pull(
            part.queue,
            offset,
            count=min(left, USUAL_PULL_COUNT),
            tags=options.tags,
            max_bytes=options.fetch_bytes,
            extra={
                PULL_BYTES: str(options.fetch_bytes),
                PULL_COUNT: str(min(left, MAX_PULL_COUNT)),
            },
        )

    def _take(self, cursor: _Cursor, answer: Command, address: str) -> memoryview | None:
        """Advance the cursor by an answer; return its records, if any."""
        queue, offset = cursor.part.queue, cursor.offset
        if answer.code == ResponseCode.GO_AWAY:
            raise ConnectionLost(f"{address} is going away")
        if answer.code not in _CODES:
            raise refusal(answer, RequestCode.PULL_MESSAGE, address, f"{queue} at {offset}")
        result = decode_header(PullMessageResult, answer.ext)
        following = result.next_begin_offset
        if answer.code == _FOUND:
            if following <= offset:
                raise ProtocolError(
                    f"{address} found messages of {queue} at {offset}, but goes on at {following}",
                    expected="a later offset",
                )
            body = answer.body
            if not isinstance(body, memoryview) or body.nbytes < MIN_RECORD_BYTES:
                raise ProtocolError(
                    f"{address} found messages of {queue} at {offset}, but sent none"
                )
            self._check_first(cursor, body, result)
            cursor.offset = following
            return body
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and following > offset:
            # Either no message up to there has the tags, or the commit log has lost them.
            if answer.remark == _REMOVED:
                self._skip(cursor, following, result)
            else:
                cursor.offset = following
            return None
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and offset < result.min_offset:
            self._skip(cursor, result.min_offset, result)
            return None
        # The queue ends before the range: a slave that lags, a broker that is still recovering, or
        # messages that are gone for good. Only waiting shows which.
        raise _EndsEarly(
            f"{queue} ends at {result.max_offset} on {address}, and {offset} to "
            f"{cursor.part.high - 1} were to be read"
        )

    def _check_first(self, cursor: _Cursor, body: memoryview, result: PullMessageResult) -> None:
        """A broker that deletes while it reads returns what is left; the rest is lost."""
        if self._is_unfiltered:
            (first,) = _QUEUE_OFFSET.unpack_from(body, _QUEUE_OFFSET_AT)
        else:
            first = result.min_offset
        if first > cursor.offset:
            self._skip(cursor, first, result)

    def _skip(self, cursor: _Cursor, following: int, result: PullMessageResult) -> None:
        """Messages before ``following`` are gone."""
        following = min(following, cursor.part.high)
        what = (
            f"messages {cursor.offset} to {following - 1} of {cursor.part.queue} are gone; "
            f"the broker has {result.min_offset} to {result.max_offset - 1}"
        )
        if self._options.fail_on_data_loss:
            raise lost(what)
        log.warning("%s; skipped", what)
        cursor.offset = following

    def _wait(self, cursor: _Cursor, error: PenstockError) -> bool:
        """Wait before the next attempt; False when the rest of the range is skipped."""
        now = time.monotonic()
        is_short = isinstance(error, _EndsEarly)
        if is_short:
            since = cursor.short_since = cursor.short_since or now
        else:
            # After an outage the broker may be recovering: its end gets a new time limit.
            cursor.short_since = None
            since = cursor.failing_since = cursor.failing_since or now
        if since == now:
            log.warning("fetching %s waits: %s", cursor.part.queue, error)
        elif now - since > (SHORT_PATIENCE if is_short else PATIENCE_SECONDS):
            if not is_short:
                raise error
            if self._options.fail_on_data_loss:
                raise lost(error.what) from error
            log.warning("%s; skipped", error)
            return False
        time.sleep(RETRY_DELAY)
        self._cluster.forget_routes()
        return True


class _Ahead:
    """The pulls in flight on one connection, in the order of their offsets.

    There is one, as long as answers are large. A broker that returns 32 messages at a time gets
    several pulls at once, each where the one before should end. If one ends elsewhere, the answers
    to those after it are dropped.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._in_flight: deque[tuple[int, int]] = deque()
        self._early: dict[int, Command] = {}
        self.stride = 0
        """The number of messages in an answer, if it is small; else 0."""

    def wanted(self, cursor: _Cursor) -> int | None:
        """The offset of the next pull, if there should be one more."""
        if not self._in_flight:
            return cursor.offset
        if not self.stride or len(self._in_flight) >= SMALL_PULLS:
            return None
        following = self._in_flight[-1][1] + self.stride
        return following if following < cursor.part.high else None

    def send(self, offset: int, command: Command) -> None:
        self._in_flight.append((self._connection.send(command), offset))

    def next_answer(self) -> Command:
        """The answer to the pull with the lowest offset."""
        number, _ = self._in_flight.popleft()
        while number not in self._early:
            answer = self._connection.receive(time.monotonic() + PULL_SECONDS)
            self._early[answer.request_id] = answer
        return self._early.pop(number)

    def turn(self, offset: int, stride: int) -> None:
        """Continue at ``offset``; answers have ``stride`` messages, or many (0)."""
        if self._in_flight and self._in_flight[0][1] != offset:
            while self._in_flight:
                self.next_answer()
        if not self._in_flight:
            self.stride = stride


class _EndsEarly(PenstockError):
    """A queue ends before the planned range."""

    retriable = True


def _may_pass(error: PenstockError) -> bool:
    # A broker or name server that has just started may not know its topics yet.
    return isinstance(error, RemotingError | TopicNotFound) or error.retriable


def _gathered(chunks: Iterator[memoryview]) -> Iterator[memoryview]:
    """Small chunks joined, others unchanged."""
    small: list[memoryview] = []
    size = 0
    for chunk in chunks:
        if not small and chunk.nbytes >= SMALL_CHUNK:
            yield chunk
            continue
        small.append(chunk)
        size += chunk.nbytes
        if size >= SMALL_CHUNK:
            yield memoryview(b"".join(small))
            small, size = [], 0
    if small:
        yield small[0] if len(small) == 1 else memoryview(b"".join(small))


def _renamed(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    index = batch.schema.get_field_index("topic")
    names = pa.array([topic], pa.string()).take(pa.array([0] * batch.num_rows, pa.int32()))
    return batch.set_column(index, batch.schema.field(index), names)
