"""The reading half of `MessageStore`: queues by offset, by time, messages by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.errors import LifecycleError
from penstock.store.appending import Appender
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, QueueEntry
from penstock.store.key_query import QueryResult, find_by_key, possible_keys
from penstock.store.queue_table import QueueTable
from penstock.store.reading import Reader, ReadResult, TagFilter, offset_by_time
from penstock.store.store_context import StoreContext

_MAX_TIME: Final = (1 << 63) - 1


class StoreReading:
    """What readers ask of an open store; they see all that was written, published or not."""

    root: str
    _opened: StoreContext | None
    _appender: Appender
    _reader: Reader
    _queue_table: QueueTable
    _log: CommitLog

    @property
    def _context(self) -> StoreContext:
        if self._opened is None:
            raise LifecycleError(f"store {self.root} is not open", hint="call open() first")
        return self._opened

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue with all its messages, as every reader must see it."""
        if self._appender.unpublished:
            self._appender.publish()
        return self._queue_table.get(topic, queue_id)

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_count: int = 32,
        max_bytes: int | None = None,
        matches: TagFilter | None = None,
    ) -> ReadResult:
        """Messages of a queue from ``queue_offset`` on.

        Without ``max_bytes`` RocketMQ's limits of one pull are in force (32 messages or 256 KiB,
        8 or 64 KiB for old ones), with it only those given. The first message is always returned.
        """
        queue = self._queue(topic, queue_id)
        result = self._reader.read(queue, queue_offset, max_count, max_bytes, matches)
        counts = self._context.counts
        counts.read_calls += 1
        if result.count:
            counts.read_count += result.count
            counts.read_bytes += result.size
        else:
            counts.read_misses += 1
        return result

    def record_at(self, log_position: int) -> memoryview | None:
        """The record that starts at a position of the log; None if none does."""
        return self._log.record_at(log_position)

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> QueueEntry | None:
        """A queue's entry; None outside the queue."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        return queue.entry(queue_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset that is still there; 0 for an unknown queue."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset the next visible message will have; 0 for an unknown queue."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_at(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """The first offset stored at or after a time; with ``upper`` the last at or before it."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        return offset_by_time(queue, self._log, timestamp_ms, upper=upper)

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored, in milliseconds; -1 if it is not there."""
        entry = self.entry(topic, queue_id, queue_offset)
        return -1 if entry is None else self._log.store_timestamp(entry.log_position)

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """When the oldest message of a queue, or of the whole log, was stored; -1 if none."""
        if topic is None:
            return self._log.store_timestamp(self._log.min_position)
        return self.store_time_at(topic, queue_id, self.min_offset(topic, queue_id))

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether a message is there and young enough to count as being in the page cache."""
        entry = self.entry(topic, queue_id, queue_offset)
        return entry is not None and self._reader.is_in_memory(entry.log_position)

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 32,
        begin_ms: int = 0,
        end_ms: int = _MAX_TIME,
    ) -> QueryResult:
        """Messages of a topic by unique id or key, stored within a range of time.

        The newest ones, as far as they fit into one answer; one of them always does.
        """
        index = self._context.index
        if index is None:
            return QueryResult([], 0, 0)
        self._appender.publish()
        return find_by_key(index, self._log, topic, key, max_count, begin_ms, end_ms)

    def possible_keys(self, topic: str, keys: Sequence[bytes]) -> list[int]:
        """The places of the keys for which `query` may find a message; it finds none of others."""
        index = self._context.index
        if index is None:
            return []
        self._appender.publish()
        return possible_keys(index, topic, keys)

    def queues(self) -> Iterator[tuple[str, int]]:
        """Topic and number of every queue."""
        self._appender.publish()
        return self._queue_table.names()
