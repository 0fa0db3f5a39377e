"""Builds queue entries and index entries from records, new ones and those found in the log.

Appended records are applied from memory; the log is not parsed a second time. After a crash the
same records are replayed from the log, with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, repeat

from penstock.model.properties import DELAY, KEYS, TAGS, indexed_values, value_of
from penstock.protocol.filters.tags import tag_code
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store.bulk.alike import shared_tag
from penstock.store.bulk.batch_encoding import EncodedBatch
from penstock.store.bulk.columnar_batch import BatchKeys, read_batch_keys
from penstock.store.bulk.rows import pack_rows
from penstock.store.config import StoreConfig
from penstock.store.consume_queue import UNIT_BYTES, UNIT_LAYOUT, ConsumeQueue, pack_unit
from penstock.store.key_hashes import Keyed, TopicHash, hash_keys
from penstock.store.key_index import KeyIndex
from penstock.store.log_scan import Scanned
from penstock.store.queue_table import TAIL_BYTES, QueueTable

log = logging.getLogger(__name__)

Arrival = Callable[[str, int, int, int, int, bytes], None]
"""Called with topic, queue id, next queue offset, tags code, store timestamp and properties."""

_TRANSACTION = SysFlag.TRANSACTION_MASK
_ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
_UNQUEUED = (SysFlag.TRANSACTION_PREPARED, _ROLLBACK)
_MAX_CACHED_TAGS = 4096
_MAX_CACHED_TOPICS = 4096
_PORTION = 256
"""Records replayed together."""
_UNKNOWN_LEVEL_MS = 1_000
ENOUGH = 24
"""Fewer single records are made visible one by one: work by columns has its price, too."""

Staged = tuple[ConsumeQueue, int, int, int, int, int, bytes, bytes]
"""A record on its way to queue and index: queue, log position, size, queue offset, system
flag, store timestamp, properties, unique id (empty: to be read from the properties). A plain tuple,
since one is made for every append."""

StagedBatch = tuple[ConsumeQueue, int, int, int, int, int, EncodedBatch, bytes]
"""Records of one batch: queue, log position of the first, size of all, queue offset of the
first, system flag, store timestamp, the encoded batch, and an empty id as in `Staged`."""

_Visible = tuple[ConsumeQueue, int, int, int, bytes]
"""A record that readers see now: queue, next queue offset, tags code, store timestamp, properties.
"""


def message_keys(properties: bytes) -> list[bytes]:
    """The keys a message is indexed by: its unique id, then the words of KEYS."""
    unique_id, words, _ = indexed_values(properties)
    return ([unique_id] if unique_id else []) + [word for word in words.split(b" ") if word]


def _opened(staged: StagedBatch) -> list[Staged]:
    """The messages of a batch one by one."""
    queue, _, _, queue_offset, sys_flag, timestamp, batch, _ = staged
    return [
        (queue, position, size, offset, sys_flag, timestamp, properties, b"")
        for offset, (position, size, properties) in enumerate(
            zip(batch.positions, batch.sizes, batch.properties, strict=True), queue_offset
        )
    ]


class IndexBuilder:
    """Builds queue entries and index entries, and calls listeners that wait for messages."""

    def __init__(self, config: StoreConfig, queues: QueueTable, index: KeyIndex | None) -> None:
        self._queues = queues
        self._index = index
        self._index_tags = config.index_tags
        self._delays = tuple(config.delay_levels_ms)
        self._tag_codes: dict[bytes, int] = {}
        self._topic_hashes: dict[str, TopicHash] = {}
        self.listeners: list[tuple[Arrival, Collection[tuple[str, int]] | None]] = []
        self.deleted_topics: dict[str, int] = {}
        """Where the log ended when a topic was deleted. Replaced, never changed, once the store is
        open: the thread that flushes writes it to the disk."""
        self.index_stopped_at: int | None = None
        """From where on keys are missing; the thread that flushes notes it for the next start."""
        self.index_error: OSError | None = None
        """Why nothing is added to the index now, if so."""

    def is_awaited(self, staged: Sequence[Staged | StagedBatch]) -> bool:
        """Whether a listener waits for a message of one of these queues."""
        for _, waiting in self.listeners:
            if waiting is None:
                return True
            if waiting:
                for queue in {one[0] for one in staged}:
                    if queue.key in waiting:
                        return True
        return False

    def apply_appended(self, staged: Sequence[Staged | StagedBatch]) -> None:
        """Make appended records and batches visible, in the order of the log."""
        single: list[Staged] = []
        for one in staged:
            tail = one[6]
            if isinstance(tail, bytes):
                single.append(one)  # type: ignore[arg-type]  # the last part says which it is
                continue
            keys = self._read_batch(one[0], one[4], tail)
            if keys is None:
                single += _opened(one)  # type: ignore[arg-type]
                continue
            if single:
                self.apply_records(single)
                single = []
            self._apply_batch(one[0], one[3], one[5], tail, keys)
        if single:
            self.apply_records(single)

    def _read_batch(
        self, queue: ConsumeQueue, sys_flag: int, batch: EncodedBatch
    ) -> BatchKeys | None:
        """The tag and keys of a batch, if they can be read for all messages at once."""
        if (
            sys_flag & _TRANSACTION
            or queue.is_schedule
            or queue.is_deleted
            or self._index_tags
            or any(waiting is None for _, waiting in self.listeners)
        ):
            return None
        is_indexed = self._index is not None and self.index_error is None
        return read_batch_keys(batch, self._topic_hash_of(queue) if is_indexed else None)

    def _apply_batch(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        timestamp: int,
        batch: EncodedBatch,
        keys: BatchKeys,
    ) -> None:
        """Make a batch visible, as `apply_records` would its messages one by one."""
        queues = self._queues
        code = self._tag_code(keys.tag)
        count = len(batch.sizes)
        tail = queue.tail
        if not tail:
            queues.dirty[queue] = None
        tail += pack_rows(UNIT_LAYOUT, count, [0, 0, code], {0: batch.positions, 1: batch.sizes})
        queue.max_offset = queue_offset + count
        if len(tail) >= TAIL_BYTES:
            queues.flush_tail(queue)
        queues.bound_tails(count)
        if keys.hashes or batch.first_id:
            self._add_batch_keys(queue, batch, keys, timestamp)
        key = queue.key
        for listener, waiting in self.listeners:
            for next_offset, properties in enumerate(batch.properties, queue_offset + 1):
                # Usually no listener waits, or only for the first message.
                if waiting is None or key not in waiting:
                    break
                listener(*key, next_offset, code, timestamp, properties)

    def _add_batch_keys(
        self, queue: ConsumeQueue, batch: EncodedBatch, keys: BatchKeys, timestamp: int
    ) -> None:
        if self._index is None or self.index_error is not None:
            return
        positions = batch.positions
        if keys.keys_each > 1:
            positions = [one for one in positions for _ in range(keys.keys_each)]
        try:
            if batch.first_id:
                hashed = self._topic_hash_of(queue).hash(batch.first_id)
                self._index.add((hashed,), positions[0], timestamp)
            if keys.hashes:
                self._index.add_columns(keys.hashes, positions, timestamp)
        except OSError as error:
            self._stop_index(positions[0], error)

    def apply_records(self, staged: Sequence[Staged]) -> None:
        """Make appended records visible."""
        if len(staged) < ENOUGH or not self._apply_columns(staged):
            self._apply_one_by_one(staged)

    def _apply_columns(self, staged: Sequence[Staged]) -> bool:
        """Make usual records of one moment visible; False, and no change, if one is unusual.

        `_apply_one_by_one` is the specification. Here each step is one call for all records, or a
        loop with little in it.
        """
        index = self._index
        if (
            index is None
            or self.index_error is not None
            or self._index_tags
            # Words of KEYS differ from message to message.
            or KEYS in staged[0][6]
        ):
            return False
        queues, positions, sizes, offsets, flags, times, properties, ids = zip(*staged, strict=True)
        timestamp = times[0]
        topic_hash = self._topic_hash_of(queues[0])
        if times.count(timestamp) != len(times) or any(flag & _TRANSACTION for flag in set(flags)):
            return False
        for queue in set(queues):
            if (
                queue.is_schedule
                or queue.is_deleted
                or self._topic_hash_of(queue) is not topic_hash
            ):
                return False
        tag = shared_tag(properties, ids)
        if tag is None:
            return False
        code = self._tag_code(tag)
        is_awaited = self.is_awaited(staged)
        columns = {0: positions, 1: sizes}
        self._add_entries(queues, offsets, pack_rows(UNIT_LAYOUT, len(ids), [0, 0, code], columns))
        try:
            index.add_columns(topic_hash.hash_all(b"", ids), positions, timestamp)
        except OSError as error:
            self._stop_index(positions[0], error)
        if is_awaited:
            following = [offset + 1 for offset in offsets]
            self._tell([*zip(queues, following, repeat(code), times, properties)])
        return True

    def _add_entries(
        self, queues: Sequence[ConsumeQueue], offsets: Sequence[int], units: bytes
    ) -> None:
        """Add an entry to each of these queues."""
        table = self._queues
        start = 0
        for queue, queue_offset in zip(queues, offsets, strict=True):
            tail = queue.tail
            if not tail:
                table.dirty[queue] = None
            end = start + UNIT_BYTES
            tail += units[start:end]
            start = end
            queue.max_offset = queue_offset + 1
            if len(tail) >= TAIL_BYTES:
                table.flush_tail(queue)
        table.bound_tails(len(queues))

    def _apply_one_by_one(self, staged: Sequence[Staged]) -> None:
        """Make appended records visible: the plain path."""
        index = self._index if self.index_error is None else None
        keys: list[Keyed] = []
        arrivals: list[_Visible] = []
        # Usually no listener waits for these queues; skip collecting the arrivals.
        is_awaited = self.is_awaited(staged)
        queues = self._queues
        tag_codes = self._tag_codes
        index_tags = self._index_tags
        for (
            queue,
            position,
            size,
            queue_offset,
            sys_flag,
            timestamp,
            properties,
            known_id,
        ) in staged:
            kind = sys_flag & _TRANSACTION
            unique_id, words, tag = indexed_values(properties, known_id)
            if index is not None and kind != _ROLLBACK:
                topic_hash = queue.topic_hash or self._topic_hash_of(queue)
                if unique_id:
                    keys.append((topic_hash, unique_id, position, timestamp))
                if words or index_tags:
                    for key in self._further_keys(words, tag):
                        keys.append((topic_hash, key, position, timestamp))
            if kind in _UNQUEUED or queue.is_deleted:
                continue
            code = 0
            if queue.is_schedule:
                code = self._tags_code(queue, properties, timestamp)
            elif tag:
                known = tag_codes.get(tag)
                code = self._tag_code(tag) if known is None else known
            tail = queue.tail
            if not tail:
                queues.dirty[queue] = None
            tail += pack_unit(position, size, code)
            queue.max_offset = queue_offset + 1
            if len(tail) >= TAIL_BYTES:
                queues.flush_tail(queue)
            if is_awaited:
                arrivals.append((queue, queue_offset + 1, code, timestamp, properties))
        queues.bound_tails(len(staged))
        if index is not None and keys:
            self._add_keys(index, keys)
        if arrivals:
            self._tell(arrivals)

    def _add_keys(self, index: KeyIndex, keys: list[Keyed]) -> None:
        _, _, position, timestamp = keys[0]
        try:
            if keys[-1][2] == position:
                # Hashing together pays off for several messages only.
                hashes = [topic_hash.hash(key) for topic_hash, key, _, _ in keys]
                index.add(hashes, position, timestamp)
            else:
                index.add_many(hash_keys(keys))
        except OSError as error:
            # The messages are in the log and have their queue entries; their keys follow when
            # there is room again, see catch_up.
            self._stop_index(position, error)

    def _tell(self, arrivals: list[_Visible]) -> None:
        for listener, waiting in self.listeners:
            for queue, next_offset, code, timestamp, properties in arrivals:
                if waiting is None or queue.key in waiting:
                    listener(queue.topic, queue.queue_id, next_offset, code, timestamp, properties)

    def _stop_index(self, position: int, error: OSError) -> None:
        log.error("index cannot be written position=%d error=%s", position, error)
        self.index_stopped_at = position
        self.index_error = error

    def catch_up(self, records: Iterable[Scanned]) -> bool:
        """Index what was left out since the index could not be written; True if that worked."""
        self.index_error = None
        self.replay(records, include_queues=False)
        if self.index_error is not None:
            return False
        # Not sooner: a process that dies halfway must leave the note that keys are missing.
        self.index_stopped_at = None
        return True

    def replay(self, records: Iterable[Scanned], *, include_queues: bool = True) -> int:
        """Apply records of the log; repeating it changes nothing. Returns how many there were."""
        total = 0
        remaining = iter(records)
        while portion := list(islice(remaining, _PORTION)):
            self._replay_index(portion)
            if include_queues:
                self._replay_queues(portion)
            total += len(portion)
        if self._index is not None:
            self._index.finish()
        return total

    def _replay_index(self, records: Sequence[Scanned]) -> None:
        index = self._index
        if index is None or self.index_error is not None:
            return
        start = index.end_position
        keys: list[Keyed] = []
        for position, _, topic, _, _, sys_flag, timestamp, properties in records:
            if position < start or sys_flag & _TRANSACTION == _ROLLBACK:
                continue
            topic_hash = self._topic_hash(topic)
            for key in self._keys(properties):
                keys.append((topic_hash, key, position, timestamp))
        if keys:
            self._add_keys(index, keys)

    def _replay_queues(self, records: Sequence[Scanned]) -> None:
        queues = self._queues
        known, replayed = queues.queues, queues.replayed
        deleted = self.deleted_topics
        for record in records:
            position, size, topic, queue_id, queue_offset, sys_flag, timestamp, properties = record
            if sys_flag & _TRANSACTION in _UNQUEUED or (
                deleted and position < deleted.get(topic, 0)
            ):
                continue
            queue = known.get((topic, queue_id)) or queues.get_for_recovery(topic, queue_id)
            if queue is None:
                log.warning(
                    "record without a possible queue position=%d topic=%r queue_id=%d",
                    position, topic, queue_id,
                )  # fmt: skip
                continue
            code = 0
            if TAGS in properties or queue.is_schedule:
                code = self._tags_code(queue, properties, timestamp)
            tail = queue.tail
            if tail and queue_offset == queue.max_offset and queue in replayed:
                # What replay_entry does for a queue that goes on where it was.
                tail += pack_unit(position, size, code)
                queue.max_offset = queue.next_offset = queue_offset + 1
                if len(tail) >= TAIL_BYTES:
                    queues.flush_tail(queue)
            else:
                queues.replay_entry(queue, queue_offset, position, size, code)
        queues.bound_tails(len(records))

    def _topic_hash_of(self, queue: ConsumeQueue) -> TopicHash:
        if queue.topic_hash is None:
            queue.topic_hash = self._topic_hash(queue.topic)
        return queue.topic_hash

    def _topic_hash(self, topic: str) -> TopicHash:
        topic_hash = self._topic_hashes.get(topic)
        if topic_hash is None:
            if len(self._topic_hashes) >= _MAX_CACHED_TOPICS:
                self._topic_hashes.clear()
            topic_hash = self._topic_hashes[topic] = TopicHash(topic.encode())
        return topic_hash

    def _keys(self, properties: bytes) -> list[bytes]:
        """The keys a message is indexed by: its unique id, the words of KEYS, its tag if wanted."""
        unique_id, words, tag = indexed_values(properties)
        return ([unique_id] if unique_id else []) + self._further_keys(words, tag)

    def _further_keys(self, words: bytes, tag: bytes) -> list[bytes]:
        keys = [word for word in words.split(b" ") if word]
        if tag and self._index_tags:
            keys.append(b"T#" + tag)
        return keys

    def _tags_code(self, queue: ConsumeQueue, properties: bytes, timestamp: int) -> int:
        """The number kept of a tag; for a delayed message the time of its delivery instead."""
        if queue.is_schedule:
            delivery = self._delivery_time(value_of(properties, DELAY), timestamp)
            if delivery is not None:
                return delivery
        return self._tag_code(value_of(properties, TAGS))

    def _tag_code(self, tag: bytes) -> int:
        code = self._tag_codes.get(tag)
        if code is None:
            code = tag_code(tag.decode("utf-8", "replace"))
            if len(self._tag_codes) >= _MAX_CACHED_TAGS:
                self._tag_codes.clear()
            self._tag_codes[tag] = code
        return code

    def _delivery_time(self, level: bytes, timestamp: int) -> int | None:
        try:
            number = min(int(level), len(self._delays))
        except ValueError:
            return None
        if number <= 0:
            return None
        wait = self._delays[number - 1] if self._delays else _UNKNOWN_LEVEL_MS
        return timestamp + wait
