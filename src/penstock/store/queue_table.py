"""All queues of a store: loaded on first use, kept small, written later.

A queue costs a few hundred bytes once it was used and nothing before: after a clean stop
ten thousand directories are not read to serve one of them.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from penstock.errors import IllegalName
from penstock.model.names import SCHEDULE_TOPIC
from penstock.model.record_layout import head_struct
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import (
    FILLER,
    UNIT_BYTES,
    ConsumeQueue,
    QueueEntry,
    QueueFiles,
    pack_unit,
)
from penstock.store.files import FileLayer
from penstock.store.queue_ends import QueueEnds
from penstock.store.segments import SegmentMaps

# A tail is written when it fills a page; all of them together may wait for a flush up to this.
TAIL_BYTES: Final = 4096
MAX_TAILS_BYTES: Final = 8 << 20
_MAX_NAME_BYTES = 255
_MAX_ABSENT = 65_536
_QUEUE_KEY = head_struct("queue_id", "queue_offset")
_MAX_QUEUE_OFFSET = (1 << 63) // UNIT_BYTES


class QueueTable:
    """Queues by topic and number."""

    def __init__(
        self,
        files: FileLayer,
        directory: str,
        segment_bytes: int,
        maps: SegmentMaps,
        commit_log: CommitLog,
        *,
        read_only: bool = False,
    ) -> None:
        self._shared = QueueFiles(files, directory, segment_bytes, maps, {}, read_only)
        self._log = commit_log
        self._read_only = read_only
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues with a tail, the one that waits longest first."""
        self._tail_bytes = 0
        self._absent: set[tuple[str, int]] = set()
        """Queues that have neither files nor messages."""
        self.replayed: set[ConsumeQueue] = set()
        """While recovering: queues whose end follows from the records dispatched so far."""
        self.trusted_before: int | None = None
        """While recovering: entries that point behind this log position count for nothing."""
        self.has_persisted = False
        """Whether a flush wrote tails that are still in memory."""
        self.is_after_crash = False
        self.has_gap = False
        """Whether replaying the log found entries missing that should have been on the disk."""
        self.lock = threading.Lock()
        """Held while tails go to files; never while something waits for the disk."""
        self._removing: Counter[str] = Counter()
        """Topics whose files are being removed. A queue of that name can be created meanwhile and
        stays in memory: its files would have the names of those that are about to go."""
        self.failed_writes: OSError | None = None
        self.is_held: Callable[[], bool] = lambda: True
        """Whether the directory is still ours: files are opened by name."""
        self.known_ends: QueueEnds = {}
        """After a clean stop: where queues ended then; it counts until a queue is loaded."""

    @property
    def segment_bytes(self) -> int:
        """The size of a queue's files."""
        return self._shared.segment_bytes

    @property
    def directory(self) -> str:
        """Where the queues are."""
        return self._shared.directory

    # Finding

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it ever had a message."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if (
                (topic, queue_id) in self._absent
                or topic in self._removing
                or not _is_possible(topic, queue_id)
            ):
                return None
            path = f"{self._shared.directory}/{topic}/{queue_id}"
            if self._shared.files.stat(path) is None and (topic, queue_id) not in self.known_ends:
                self._note_absent(topic, queue_id)
                return None
            queue = self._load(topic, queue_id)
        if queue.min_checked_at != self._log.min_position:
            queue.correct_min(self._log.min_position)
        return queue

    def _note_absent(self, topic: str, queue_id: int) -> None:
        """A queue without a message is asked for by every pull: look at the disk once only."""
        if self._read_only:
            return  # The process that writes may create it.
        if len(self._absent) >= _MAX_ABSENT:
            self._absent.clear()
        self._absent.add((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one exists in memory only, until it gets a message."""
        queue = self.get(topic, queue_id)
        if queue is None:
            if not _is_possible(topic, queue_id):
                raise IllegalName(
                    f"topic {topic!r} with queue {queue_id}",
                    expected="a topic that can name a directory, and a queue from 0 to 2147483647",
                )
            queue = self._make(topic, queue_id)
            queue.min_checked_at = self._log.min_position
            self.queues[topic, queue_id] = queue
            self._absent.discard((topic, queue_id))
        return queue

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self._shared, topic, queue_id)
        queue.is_schedule = topic == SCHEDULE_TOPIC
        return queue

    def _load(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._make(topic, queue_id)
        limit = self.trusted_before
        queue.load(
            self._log.written[0] if limit is None else limit,
            self._is_record,
            after_crash=self.is_after_crash,
            # Recovery loads all queues, so what is loaded later was left by a clean stop.
            is_clean=limit is None and not self.is_after_crash and not self._read_only,
        )
        known = self.known_ends.get((topic, queue_id)) if limit is None else None
        if known is not None and queue.max_offset != known[0]:
            raise queue.damaged(
                f"{queue.directory} ends at queue offset {queue.max_offset}, not at {known[0]}"
            )
        if not self._read_only and queue.has_rubbish():
            with self.lock:
                queue.clear_files_behind()
        self.queues[topic, queue_id] = queue
        return queue

    def _is_record(self, queue: ConsumeQueue, queue_offset: int, entry: QueueEntry) -> bool:
        """Whether an entry is about the message that the log has there."""
        if not self._log.bases or entry.log_position < self._log.min_position:
            return True  # deleted with its segment; cannot be checked any more
        record = self._log.record_at(entry.log_position)
        if record is None or len(record) != entry.size:
            return False
        return _QUEUE_KEY.unpack_from(record) == (queue.queue_id, queue_offset)

    def names(self) -> Iterator[tuple[str, int]]:
        """Topic and number of every queue, those not loaded included.

        The tables are read by this call, the directories while the result is iterated over, which
        may happen in another thread.
        """
        # A queue that was only asked for, or given half messages, is none yet.
        loaded = sorted(key for key, queue in self.queues.items() if queue.max_offset)
        known, removing = set(self.queues), set(self._removing)
        others = (key for key in self.listed() if key not in known and key[0] not in removing)
        return chain(loaded, others)

    def listed(self) -> Iterator[tuple[str, int]]:
        """Topic and number of every queue that has a directory; for any thread."""
        files = self._shared.files
        for topic in files.list_dir(self._shared.directory):
            if not topic.is_dir or not _is_possible(topic.name, 0):
                continue
            for queue in files.list_dir(f"{self._shared.directory}/{topic.name}"):
                if queue.is_dir and queue.name.isascii() and queue.name.isdigit():
                    key = (topic.name, int(queue.name))
                    if queue.name == str(key[1]):
                        yield key

    def is_empty(self) -> bool:
        """Whether no queue has a directory."""
        files = self._shared.files
        return not any(entry.is_dir for entry in files.list_dir(self._shared.directory))

    def load_all(self) -> int:
        """Load every queue; return where the last message ends that any of them knows."""
        end = 0
        for topic, queue_id in self.names():
            queue = self.get(topic, queue_id)
            if queue is not None and queue.max_offset > queue.min_offset:
                last = queue.entry(queue.max_offset - 1)
                if last is not None:
                    end = max(end, last.log_position + last.size)
        return end

    # Writing behind

    def bound_tails(self, added: int) -> None:
        """Keep all tails together within bounds, after ``added`` entries more."""
        self._tail_bytes += added * UNIT_BYTES
        while self._tail_bytes > MAX_TAILS_BYTES and self.failed_writes is None:
            # Many queues with short tails: the one that waits longest goes first.
            oldest = next((queue for queue in self.dirty if self._is_writable(queue)), None)
            if oldest is None:
                break
            self.flush_tail(oldest)

    def _is_writable(self, queue: ConsumeQueue) -> bool:
        return queue.topic not in self._removing

    def flush_tail(self, queue: ConsumeQueue) -> None:
        """Move a tail from memory to its file."""
        before = len(queue.tail)
        if self._read_only or not self._is_writable(queue):
            return
        if not self.is_held():
            self.failed_writes = OSError(errno.ESTALE, "the directory was removed or replaced")
            return
        with self.lock:
            try:
                queue.persist()
            except OSError as error:
                # The log has the messages, so nothing is lost; memory is bounded by refusing
                # further appends while this lasts.
                self.failed_writes = error
                return
            queue.drop_persisted()
        self.dirty.pop(queue, None)
        self._tail_bytes = max(0, self._tail_bytes - before)

    def persist(self, at_most: int | None = None) -> bool:
        """Write tails, those that wait longest first, ``at_most`` so many or all.

        May run in another thread than the one that appends. False: some had to be left out, since
        files of their topic are being removed.
        """
        is_complete = True
        try:
            for queue in list(self.dirty)[:at_most]:
                with self.lock:
                    if not self._is_writable(queue):
                        is_complete = False
                    elif not queue.is_deleted:
                        queue.persist()
        except OSError as error:
            self.failed_writes = error
            raise
        self.failed_writes = None
        self.has_persisted = True
        return is_complete

    def drop_persisted(self) -> None:
        """Forget what ``persist`` wrote; only for the thread that appends."""
        self.has_persisted = False
        with self.lock:
            for queue in list(self.dirty):
                queue.drop_persisted()
                if not queue.tail:
                    del self.dirty[queue]
        self._tail_bytes = sum(len(queue.tail) for queue in self.dirty)

    def sync(self) -> None:
        """Return when every file written since the last call is on the disk."""
        files = self._shared.files
        with self.lock:
            touched = dict(self._shared.touched)
            self._shared.touched.clear()
        directories = {path.rpartition("/")[0] for path, is_new in touched.items() if is_new}
        for path in touched:
            try:
                descriptor = files.open(path, write=True)
            except FileNotFoundError:
                continue  # removed meanwhile, with its topic or by retention
            try:
                files.sync(descriptor)
            finally:
                files.close(descriptor)
        topics = {path.rpartition("/")[0] for path in directories}
        for path in [*directories, *topics, *({self._shared.directory} if topics else ())]:
            with contextlib.suppress(FileNotFoundError):
                files.sync_dir(path)

    # Replaying the log

    def get_for_recovery(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue of a record found in the log; None for a name no queue can have."""
        queue = self.queues.get((topic, queue_id))
        if queue is None and _is_possible(topic, queue_id):
            queue = self.get_or_create(topic, queue_id)
        return queue

    def replay_entry(
        self, queue: ConsumeQueue, queue_offset: int, position: int, size: int, code: int
    ) -> None:
        """Enter a record of the log at the queue offset it states.

        The first record of a queue decides where the queue goes on; entries that the files had
        from there on are replaced, since a crash may have left holes in them.
        """
        if not 0 <= queue_offset < _MAX_QUEUE_OFFSET:
            return
        if queue not in self.replayed or queue_offset != queue.max_offset:
            if queue_offset > queue.max_offset and queue.first_base >= 0:
                self.has_gap = True
            self.replayed.add(queue)
            with self.lock:
                queue.restart_at(queue_offset)
        self.dirty[queue] = None
        queue.tail += pack_unit(position, size, code)
        queue.max_offset = queue.next_offset = queue_offset + 1
        if len(queue.tail) >= TAIL_BYTES:
            self.flush_tail(queue)

    def skip_to(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Let an empty queue go on at an offset, with an entry about nothing that says so."""
        with self.lock:
            queue.restart_at(queue_offset - 1)
        self.dirty[queue] = None
        queue.tail += FILLER
        queue.max_offset = queue.next_offset = queue_offset
        queue.correct_min(self._log.min_position)

    def start_over(self) -> None:
        """Forget what was replayed so far."""
        self.has_gap = False
        self.replayed.clear()

    def end_recovery(self, log_end: int) -> None:
        """Drop entries that point behind the end of the log, then go on as usual."""
        self.replayed.clear()
        self.trusted_before = None
        self.is_after_crash = False
        for queue in list(self.queues.values()):
            end = queue.max_offset
            while end > queue.min_offset:
                entry = queue.entry(end - 1)
                if entry is None or entry.log_position + entry.size <= log_end:
                    break
                end -= 1
            if end < queue.max_offset:
                with self.lock:
                    queue.truncate(end)

    # Removing

    def remove_topic(self, topic: str) -> int:
        """Delete all queues of a topic; return how many there were."""
        loaded = self.begin_removal(topic)
        try:
            return len(loaded | self.remove_topic_files(topic))
        finally:
            self.end_removal(topic)

    def begin_removal(self, topic: str) -> set[int]:
        """Take the queues of a topic out of the table; return their numbers.

        `remove_topic_files` is to follow, in any thread, and `end_removal` in this one.
        """
        prefix = f"{self._shared.directory}/{topic}/"
        with self.lock:
            self._removing[topic] += 1
            gone = {queue_id for name, queue_id in self.queues if name == topic}
            for queue_id in gone:
                queue = self.queues.pop((topic, queue_id))
                queue.is_deleted = True
                self.dirty.pop(queue, None)
            for path in [path for path in self._shared.touched if path.startswith(prefix)]:
                del self._shared.touched[path]
        self.known_ends = {key: end for key, end in self.known_ends.items() if key[0] != topic}
        self._shared.maps.forget_below(prefix)
        return gone

    def remove_topic_files(self, topic: str) -> set[int]:
        """Remove the directories of a topic's queues; return their numbers. Waits for the disk."""
        files = self._shared.files
        if not _is_possible(topic, 0):
            return set()
        parent = f"{self._shared.directory}/{topic}"
        gone: set[int] = set()
        for directory in files.list_dir(parent):
            if not directory.is_dir:
                continue
            for entry in files.list_dir(f"{parent}/{directory.name}"):
                if not entry.is_dir:
                    files.remove(f"{parent}/{directory.name}/{entry.name}")
            files.remove_dir(f"{parent}/{directory.name}")
            if directory.name.isdigit():
                gone.add(int(directory.name))
        if files.stat(parent) is not None:
            files.remove_dir(parent)
        if files.stat(self._shared.directory) is not None:
            # Even if nothing was there: an earlier try may have died before this point.
            files.sync_dir(self._shared.directory)
        return gone

    def end_removal(self, topic: str) -> None:
        """Let queues of the topic have files again."""
        self._removing[topic] -= 1
        if not self._removing[topic]:
            del self._removing[topic]

    def retire_old_files(self, queue: ConsumeQueue) -> list[str]:
        """Take files that only know deleted messages out of a queue, for `remove_files`."""
        with self.lock:
            return queue.retire_files_before(queue.min_offset)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove retired files, the oldest of a queue first. Waits for the disk."""
        files = self._shared.files
        for path in paths:
            files.remove(path)
            # One at a time: a dead machine may bring back the last one removed, never a gap.
            with contextlib.suppress(FileNotFoundError):
                files.sync_dir(path.rpartition("/")[0])


def _is_possible(topic: str, queue_id: int) -> bool:
    """Whether a topic can be the name of a directory right below that of the queues."""
    if not topic or "/" in topic or "\0" in topic or topic in (".", ".."):
        return False
    if len(topic) > _MAX_NAME_BYTES or not 0 <= queue_id <= 0x7FFF_FFFF:
        return False
    try:
        return len(topic.encode()) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False  # the name of a directory that is no text
