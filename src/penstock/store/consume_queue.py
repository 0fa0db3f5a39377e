"""One queue of a topic: where its messages are in the log, in order.

    log_position:8 | size:4 | tags_code:8          (20 bytes; byte position / 20 = queue offset)

New entries go to ``tail``, a buffer in memory, and from there to the files in one write for many
of them. Readers see both as one queue. What a crash takes from the tail, recovery makes again from
the log, which is the only truth: records carry their own queue offset.

Who does what: the thread that appends owns every field. Another thread may call ``persist`` (the
flush does), which reads the tail and moves ``persisted`` on; only the owner drops what was
persisted. Both hold the lock of the queue table meanwhile, so that neither sees half a step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.store.files import FileLayer
from penstock.store.key_hashes import TopicHash
from penstock.store.segments import SegmentMaps, find_segments, segment_path, write_fully

UNIT_BYTES: Final = 20
UNIT_LAYOUT: Final = "qiq"
UNIT: Final = struct.Struct(">" + UNIT_LAYOUT)
pack_unit: Final = UNIT.pack

# What RocketMQ fills the part of a first file with that is before the queue's first entry.
FILLER_SIZE: Final = 0x7FFF_FFFF
FILLER: Final = pack_unit(0, FILLER_SIZE, 0)
_NOTHING = bytes(UNIT_BYTES)
_MAX_FILL = 100_000


class QueueEntry(NamedTuple):
    """One unit of a queue."""

    log_position: int
    size: int
    tags_code: int


class QueueFiles(NamedTuple):
    """What all queues of a store share."""

    files: FileLayer
    directory: str
    segment_bytes: int
    maps: SegmentMaps
    touched: dict[str, bool]
    """Files written to since they were last synced, and whether their names may be new."""
    read_only: bool


class ConsumeQueue:
    """The entries of one queue, in files and in memory."""

    __slots__ = (
        "_shared",
        "directory",
        "first_base",
        "has_old_names",
        "is_deleted",
        "is_schedule",
        "key",
        "max_offset",
        "min_checked_at",
        "min_offset",
        "next_offset",
        "persisted",
        "queue_id",
        "tail",
        "tail_start",
        "topic",
        "topic_bytes",
        "topic_hash",
    )

    def __init__(self, shared: QueueFiles, topic: str, queue_id: int) -> None:
        self._shared = shared
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        """Both together, as waiting listeners name it."""
        self.directory = f"{shared.directory}/{topic}/{queue_id}"
        self.next_offset = 0
        """The queue offset the next appended message gets; ahead of ``max_offset`` while staged."""
        self.max_offset = 0
        self.min_offset = 0
        self.min_checked_at = 0
        """The log's start when ``min_offset`` was last looked for."""
        self.tail = bytearray()
        self.tail_start = 0
        self.persisted = 0
        self.first_base = -1
        self.has_old_names = False
        self.is_deleted = False
        self.is_schedule = False
        self.topic_hash: TopicHash | None = None

    # Finding what is there

    def load(
        self,
        log_end: int,
        is_record: Callable[[ConsumeQueue, int, QueueEntry], bool],
        *,
        after_crash: bool = False,
        is_clean: bool = False,
    ) -> None:
        """Find the end of the queue in its files: entries about the log before ``log_end``.

        ``is_record`` tells whether an entry is about a message of this queue and offset. It is
        asked about the last one only: entries are written in order, so one that holds vouches for
        those before it.

        After a clean stop (``is_clean``) the files hold this queue and nothing else. What is not
        an entry of it then stands where one was: to end the queue before it would hide messages.
        """
        shared = self._shared
        found = find_segments(
            shared.files, self.directory, size=shared.segment_bytes, after_crash=after_crash
        )
        if is_clean and found.stray:
            raise self.damaged(f"{found.stray[0]} is empty")
        if not shared.read_only:
            for path in found.stray:
                shared.files.remove(path)
        self.first_base = found.bases[0] if found.bases else -1
        end = found.bases[0] // UNIT_BYTES if found.bases else 0
        for base in reversed(found.bases):
            view = self._file_view(base)
            count = _valid_units(view, log_end)
            if count and not self._holds(base, view, count, is_record):
                count = self._count_carefully(base, view, log_end, is_record)
            if count:
                end = base // UNIT_BYTES + count
                break
        self.max_offset = self.next_offset = self.tail_start = self.persisted = end
        self.min_offset = max(0, self.first_base) // UNIT_BYTES
        self.min_checked_at = -1
        if is_clean and self.has_rubbish():
            raise self.damaged(f"entry {end} in {self.directory} is about no message of the queue")

    def damaged(self, what: str) -> StoreDamaged:
        """The error for a queue that is not as a clean stop left it."""
        return StoreDamaged(
            what,
            expected="the entries that a clean stop left there",
            hint="stop the broker, and rebuild all queues from the log with penstock store repair",
        )

    def _holds(
        self,
        base: int,
        view: memoryview,
        count: int,
        is_record: Callable[[ConsumeQueue, int, QueueEntry], bool],
    ) -> bool:
        entry = QueueEntry._make(UNIT.unpack_from(view, (count - 1) * UNIT_BYTES))
        if entry.size == FILLER_SIZE:
            return True
        return is_record(self, base // UNIT_BYTES + count - 1, entry)

    def _count_carefully(
        self,
        base: int,
        view: memoryview,
        log_end: int,
        is_record: Callable[[ConsumeQueue, int, QueueEntry], bool],
    ) -> int:
        """Count entries one by one, for a file in which they do not simply end."""
        count, previous = 0, -1
        for position, size, _ in UNIT.iter_unpack(view):
            if size <= 0 or position < 0:
                break
            if size != FILLER_SIZE:
                if position <= previous or position + size > log_end:
                    break
                previous = position
            count += 1
        while count and not self._holds(base, view, count, is_record):
            count -= 1
        return count

    def has_rubbish(self) -> bool:
        """Whether the files hold anything behind the queue's end."""
        if self.first_base < 0:
            return False
        at = self.persisted * UNIT_BYTES
        shared = self._shared
        base = at - at % shared.segment_bytes
        following = shared.files.stat(segment_path(self.directory, base + shared.segment_bytes))
        if following is not None:
            return True
        view = shared.maps.view(segment_path(self.directory, base), shared.segment_bytes)
        return view is not None and view[at - base : at - base + UNIT_BYTES] != _NOTHING

    def correct_min(self, log_start: int) -> None:
        """Move ``min_offset`` to the first entry whose record is still in the log."""
        low = max(self.min_offset, max(0, self.first_base) // UNIT_BYTES)
        high = self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if (
                entry is None
                # An entry that cannot be is damage, and no sign that its message was deleted.
                or (0 <= entry.log_position < log_start and entry.size > 0)
                or (entry.size == FILLER_SIZE and entry.log_position == 0)
            ):
                low = middle + 1
            else:
                high = middle
        self.min_offset = low
        self.min_checked_at = log_start

    # Reading

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """One entry; None if there is none or its file is gone."""
        buffer, at, count = self.units(queue_offset, 1)
        return QueueEntry._make(UNIT.unpack_from(buffer, at)) if count else None

    def units(
        self, queue_offset: int, wanted: int
    ) -> tuple[bytes | bytearray | memoryview, int, int]:
        """Up to ``wanted`` entries: a buffer, where they start in it, and how many there are.

        There are fewer at the end of the queue and at the end of a file. The buffer must not be
        kept: it may be the tail itself, which cannot grow while a view of it exists.
        """
        tail_start = self.tail_start
        if queue_offset >= tail_start:
            return (
                self.tail,
                (queue_offset - tail_start) * UNIT_BYTES,
                min(wanted, self.max_offset - queue_offset),
            )
        shared = self._shared
        at = queue_offset * UNIT_BYTES
        in_file = at % shared.segment_bytes
        view = shared.maps.view(segment_path(self.directory, at - in_file), shared.segment_bytes)
        if view is None:
            return b"", 0, 0
        room = (shared.segment_bytes - in_file) // UNIT_BYTES
        count = min(wanted, room, tail_start - queue_offset)
        rest = min(wanted, room, self.max_offset - queue_offset) - count
        if rest > 0:
            stop = in_file + count * UNIT_BYTES
            joined = bytes(view[in_file:stop]) + self.tail[: rest * UNIT_BYTES]
            return joined, 0, count + rest
        return view, in_file, count

    @property
    def units_per_file(self) -> int:
        """How many entries one file takes."""
        return self._shared.segment_bytes // UNIT_BYTES

    # Writing

    def restart_at(self, queue_offset: int) -> None:
        """Make ``queue_offset`` the next entry: drop what is behind, fill what is missing.

        Replaying the log calls this where a queue's own idea of its end differs from the
        record's, which is the truth.
        """
        gap = queue_offset - self.max_offset
        if gap < 0:
            self.truncate(queue_offset)
        elif 0 < gap <= _MAX_FILL and self.max_offset > max(0, self.first_base) // UNIT_BYTES:
            self.tail += FILLER * gap
            self.max_offset = queue_offset
        elif gap:
            # Nothing before it, or too far away to be bridged: the queue starts here.
            self.truncate(max(0, self.first_base) // UNIT_BYTES)
            self.remove_all_files()
            self.tail_start = self.persisted = queue_offset
            self.min_offset = self.max_offset = queue_offset
        self.next_offset = queue_offset

    def remove_all_files(self) -> None:
        """Leave nothing of the queue but its directory."""
        shared = self._shared
        if shared.read_only:
            return
        for entry in shared.files.list_dir(self.directory):
            path = f"{self.directory}/{entry.name}"
            shared.maps.forget(path)
            shared.touched.pop(path, None)
            shared.files.remove(path)
        self.first_base = -1

    def truncate(self, queue_offset: int) -> None:
        """Remove the entries from ``queue_offset`` on, in memory and in the files."""
        self.max_offset = self.next_offset = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)
        del self.tail[max(0, queue_offset - self.tail_start) * UNIT_BYTES :]
        self.tail_start = min(self.tail_start, queue_offset)
        self.persisted = min(self.persisted, queue_offset)
        self.clear_files_behind()

    def clear_files_behind(self) -> None:
        """Remove everything behind the last persisted entry from the files."""
        shared = self._shared
        if self.first_base < 0 or shared.read_only:
            return
        at = self.persisted * UNIT_BYTES
        cut_base = at - at % shared.segment_bytes
        for entry in shared.files.list_dir(self.directory):
            path = f"{self.directory}/{entry.name}"
            base = int(entry.name)
            if base > cut_base or (base == cut_base == at and base > self.first_base):
                shared.maps.forget(path)
                shared.touched.pop(path, None)
                shared.files.remove(path)
            elif base == cut_base:
                descriptor = shared.files.open(path, write=True)
                try:
                    shared.files.clear(descriptor, at - base, shared.segment_bytes)
                finally:
                    shared.files.close(descriptor)
                self._touch(path)
        shared.files.sync_dir(self.directory)
        if at < self.first_base:
            self.first_base = -1

    def persist(self) -> None:
        """Write the entries of the tail that no file has yet."""
        start = self.persisted
        data = bytes(self.tail[(start - self.tail_start) * UNIT_BYTES :])
        if not data:
            return
        shared = self._shared
        at, done = start * UNIT_BYTES, 0
        while done < len(data):
            base = at - at % shared.segment_bytes
            step = min(len(data) - done, base + shared.segment_bytes - at)
            path = segment_path(self.directory, base)
            descriptor = self._open_for_writing(path, base, at)
            try:
                write_fully(shared.files, descriptor, (data[done : done + step],), at - base, step)
            finally:
                shared.files.close(descriptor)
            self._touch(path)
            at += step
            done += step
            self.persisted = at // UNIT_BYTES

    def _touch(self, path: str) -> None:
        """Let the next flush sync a file, and its name unless that is known to be on the disk."""
        touched = self._shared.touched
        touched[path] = touched.get(path, False) or not self.has_old_names
        # A process that died may have left names unsynced, so the first touch counts as new.
        self.has_old_names = True

    def _open_for_writing(self, path: str, base: int, at: int) -> int:
        files = self._shared.files
        try:
            return files.open(path, write=True)
        except FileNotFoundError:
            pass
        if self.first_base < 0:
            files.make_dir(self.directory)
        descriptor = files.create(path, self._shared.segment_bytes)
        self.has_old_names = False
        if self.first_base < 0:
            fill = FILLER * ((at - base) // UNIT_BYTES)
            if fill:
                write_fully(files, descriptor, (fill,), 0, len(fill))
            self.first_base = base
        return descriptor

    def drop_persisted(self) -> None:
        """Forget the part of the tail that the files have."""
        del self.tail[: (self.persisted - self.tail_start) * UNIT_BYTES]
        self.tail_start = self.persisted

    def retire_files_before(self, queue_offset: int) -> list[str]:
        """Forget the files whose entries are all before ``queue_offset``; the last one stays.

        Returns their paths, oldest first, for the caller to remove.
        """
        shared = self._shared
        retired: list[str] = []
        while self.first_base >= 0:
            following = self.first_base + shared.segment_bytes
            if following > queue_offset * UNIT_BYTES or following >= self.persisted * UNIT_BYTES:
                break
            path = segment_path(self.directory, self.first_base)
            shared.maps.forget(path)
            retired.append(path)
            self.first_base = following
        return retired

    def _file_view(self, base: int) -> memoryview:
        shared = self._shared
        path = segment_path(self.directory, base)
        view = shared.maps.view(path, shared.segment_bytes)
        if view is None:
            raise StoreDamaged(f"{path} disappeared while it was read")
        return view


def _valid_units(view: memoryview, log_end: int) -> int:
    """How many entries a file starts with, found by halving: behind them there are zeros."""
    low, high = 0, len(view) // UNIT_BYTES
    while low < high:
        middle = (low + high) // 2
        position, size, _ = UNIT.unpack_from(view, middle * UNIT_BYTES)
        if size > 0 and position >= 0 and (size == FILLER_SIZE or position + size <= log_end):
            low = middle + 1
        else:
            high = middle
    return low
