"""The log: all messages of all topics in order of arrival, in segments of one size.

    record | record | ... | record | blank: size:4 magic:4, rest undefined      (one segment)

Records are those of ``protocol.records.codec``. One never crosses a segment: where it would
leave less than the eight bytes of a blank, the blank is written and the record opens the next
segment.

Three positions move forward: ``position`` (staged), ``written`` (in the page cache) and ``flushed``
(on the disk). Staged records are buffers in memory; ``write`` hands all of them to the system in
one call per segment, mostly one call. A failed write leaves nothing behind: its bytes are cleared,
so that no later recovery finds a message in them whose sender got an error.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable

from penstock.errors import FlushFailed, StoreError
from penstock.model.record_layout import (
    BLANK_HEAD_BYTES,
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    head_offset,
    head_part,
    head_struct,
)
from penstock.protocol.records.codec import (
    encode_blank,
)
from penstock.store.files import FileLayer
from penstock.store.log_scan import LogScan
from penstock.store.segments import (
    SegmentList,
    SegmentMaps,
    rewrite,
    segment_path,
    write_fully,
)

log = logging.getLogger(__name__)

# Sealed segments kept open until they are flushed; one more is flushed on the spot.
_MAX_UNFLUSHED_SEGMENTS = 16

_IDENTITY = head_struct("size", "magic", "log_position")
_SYS_FLAG = head_struct("sys_flag")
_STORE_TIMESTAMP = head_part("store_timestamp", "store_timestamp")
_STORE_TIMESTAMP_AT = head_offset("store_timestamp")
_STORE_TIMESTAMP_V6_AT = head_offset("store_timestamp", BORN_HOST_V6)


class CommitLog:
    """The segments of the log, one writer, any number of readers."""

    def __init__(
        self, files: FileLayer, directory: str, segments: SegmentList, maps: SegmentMaps
    ) -> None:
        self._files = files
        self.directory = directory
        self.segment_size = segments.size
        self.bases = segments.bases
        self._maps = maps
        self._view_base = -1
        self._view = memoryview(b"")
        self.position = 0
        self.segment_end = 0
        self.staged: list[bytes] = []
        self._staged_start = 0
        self._full_groups: list[tuple[int, list[bytes]]] = []
        self.written: tuple[int, int] = (0, 0)
        """End of what is in the page cache, and the store time of the last record before it."""
        self.flushed = 0
        self.last_record = -1
        self.refuses_zeros = False
        """Whether every record was appended by us, with properties free of zero bytes."""
        self._descriptors: dict[int, int] = {}
        self._directory_is_dirty = False
        self._retired: deque[int] = deque()
        """Segments that are not part of the log any more, but still have a file."""
        self.before_create: Callable[[], None] | None = None
        """Called before a segment is created; raises if the directory is not ours any more."""
        self._sync_lock = threading.Lock()
        self._sync_error: OSError | None = None

    @property
    def min_position(self) -> int:
        """Where the oldest segment starts."""
        return self.bases[0] if self.bases else 0

    def start_at(self, position: int, timestamp: int) -> None:
        """Go on writing at ``position``, which recovery found to be the end."""
        left = self.segment_size - position % self.segment_size
        if left < BLANK_HEAD_BYTES:
            position += left
        self.position = self._staged_start = self.flushed = position
        self.segment_end = position - position % self.segment_size + self.segment_size
        self.written = (position, timestamp)

    # Staging and writing

    def create_first(self) -> None:
        """Create the first segment of a new log, in advance: it waits for the disk.

        A dead machine may forget a new name and keep the next one. That shows as a gap, but not if
        it forgets the first of all.
        """
        self._descriptor(self.position - self.position % self.segment_size)

    def roll(self) -> int:
        """Close the segment that is being staged with a blank; return where the next starts."""
        self.staged.append(encode_blank(self.segment_end - self.position))
        self._full_groups.append((self._staged_start, self.staged))
        self.staged = []
        self.position = self._staged_start = self.segment_end
        self.segment_end += self.segment_size
        return self.position

    def write(self, timestamp: int) -> None:
        """Put everything staged into the page cache, or nothing: on ``OSError`` it is gone."""
        base = self._staged_start - self._staged_start % self.segment_size
        descriptor = self._descriptors.get(base)
        if self._full_groups or descriptor is None:
            self._write_groups()
        else:
            parts, self.staged = self.staged, []
            start, size = self._staged_start - base, self.position - self._staged_start
            try:
                if self._files.write(descriptor, parts, start) != size:
                    write_fully(self._files, descriptor, parts, start, size)
            except OSError:
                self._undo([(self._staged_start, self.position)])
                raise
        self._staged_start = self.position
        self.written = (self.position, timestamp)

    def _write_groups(self) -> None:
        """Write what is staged for several segments, or for the first time to one."""
        groups, self._full_groups = self._full_groups, []
        if self.staged:
            groups.append((self._staged_start, self.staged))
            self.staged = []
        done: list[tuple[int, int]] = []
        try:
            for start, parts in groups:
                descriptor = self._descriptor(start - start % self.segment_size)
                size = sum(map(len, parts))
                done.append((start, start + size))
                write_fully(self._files, descriptor, parts, start % self.segment_size, size)
        except (OSError, StoreError):
            self._undo(done)
            raise

    def _undo(self, done: list[tuple[int, int]]) -> None:
        """Clear what a failed write left in the log, and stage again from before it."""
        end = self.written[0]
        self.position = self._staged_start = end
        self.segment_end = end - end % self.segment_size + self.segment_size
        self.flushed = min(self.flushed, end)
        for start, stop in reversed(done):
            base = start - start % self.segment_size
            try:
                self._clear(base, start - base, stop - base)
            except OSError as error:
                raise StoreError(
                    f"write at {start} in {self.directory} failed and could not be undone: {error}",
                    hint="check the disk, then restart the broker: recovery cuts the log there",
                ) from error
        # Empty now and ahead of the end, they must not count as the oldest ones to be flushed. No
        # lock: the thread that flushes holds it while it waits, and never looks behind the end.
        for base in [base for base in list(self._descriptors) if base > end]:
            self._files.close(self._descriptors.pop(base))

    def _clear(self, base: int, start: int, stop: int) -> None:
        descriptor = self._descriptors.get(base)
        if descriptor is not None:
            self._files.clear(descriptor, start, stop)
            return
        # Flushed and closed within the write that failed, since it went to so many segments.
        descriptor = self._files.open(segment_path(self.directory, base), write=True)
        try:
            self._files.clear(descriptor, start, stop)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def _descriptor(self, base: int) -> int:
        descriptor = self._descriptors.get(base)
        if descriptor is not None:
            return descriptor
        path = segment_path(self.directory, base)
        if base in self.bases:
            descriptor = self._files.open(path, write=True)
        else:
            if self.before_create is not None:
                self.before_create()
            self._files.make_dir(self.directory)
            descriptor = self._files.create(path, self.segment_size)
            self._directory_is_dirty = True
            self.bases.append(base)
        self._descriptors[base] = descriptor
        try:
            if len(self.bases) == 1:
                # See `create_first`, which did it unless there was no room.
                self.sync(base)
            if len(self._descriptors) > _MAX_UNFLUSHED_SEGMENTS:
                self.sync(min(self._descriptors) + self.segment_size)
        except OSError as error:
            raise FlushFailed(
                f"flush of {self.directory} failed: {error}",
                hint="check the disk, then restart the broker",
            ) from error
        return descriptor

    def sync(self, target: int) -> None:
        """Return when everything before ``target`` is on the disk; may run in another thread."""
        with self._sync_lock:
            if self._sync_error is not None:
                # A later sync may succeed without having written what this one could not.
                raise OSError(*self._sync_error.args)
            try:
                self._sync(target)
            except OSError as error:
                self._sync_error = error
                raise
            self.flushed = max(self.flushed, target)

    def is_in_place(self) -> bool:
        """Whether the segment that is written to still has its name; any thread may ask."""
        newest = max(list(self._descriptors.items()), default=None)
        if newest is None:
            return True
        base, descriptor = newest
        try:
            if self._files.is_same_file(descriptor, segment_path(self.directory, base)):
                return True
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
        # The other thread may have flushed and closed it meanwhile.
        return self._descriptors.get(base) != descriptor

    @property
    def has_failed_sync(self) -> bool:
        """Whether a sync failed, so that the content of the disk is unknown."""
        return self._sync_error is not None

    def _sync(self, target: int) -> None:
        if self._directory_is_dirty:
            self._directory_is_dirty = False
            self._files.sync_dir(self.directory)
        for base, descriptor in sorted(self._descriptors.items()):
            if base >= target:
                break
            self._files.sync(descriptor)
            if base + self.segment_size <= target:
                # Sealed and flushed: it is not written to again.
                del self._descriptors[base]
                self._files.close(descriptor)

    # Reading

    def segment_view(self, base: int) -> memoryview | None:
        """The bytes of the segment at ``base``; None if it is gone or not there yet."""
        if base == self._view_base:
            return self._view
        bases = self.bases
        if not bases or not bases[0] <= base <= bases[-1]:
            return None
        view = self._maps.view(segment_path(self.directory, base), self.segment_size)
        if view is not None:
            self._view_base, self._view = base, view
        return view

    def slice(self, position: int, size: int) -> memoryview | None:
        """``size`` bytes at ``position`` as they are in the log; None if they are not all there."""
        at = position % self.segment_size
        if (
            size <= 0
            or position < self.min_position
            or position + size > self.written[0]
            or at + size > self.segment_size
        ):
            return None
        view = self.segment_view(position - at)
        return None if view is None else view[at : at + size]

    def record_at(self, position: int) -> memoryview | None:
        """The record that starts at ``position``; None if none does."""
        head = self.slice(position, MIN_RECORD_BYTES)
        if head is None:
            return None
        size, magic, stated_position = _IDENTITY.unpack_from(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or stated_position != position:
            return None
        return self.slice(position, size)

    def store_timestamp(self, position: int) -> int:
        """When the record at ``position`` was stored; -1 if there is none."""
        record = self.record_at(position)
        return -1 if record is None else store_timestamp_of(record)

    # Scanning

    def scan(self, start: int, end: int | None = None, *, check_crc: bool = True) -> LogScan:
        """Walk the records from ``start``, which must be the start of one, or of a segment."""
        return LogScan(self, start, end, check_crc=check_crc)

    def data_ranges(self, base: int, start: int) -> list[tuple[int, int]]:
        """The parts of a segment from ``start`` on that are no holes."""
        descriptor = self._files.open(segment_path(self.directory, base))
        try:
            return self._files.data_ranges(descriptor, start, self.segment_size)
        finally:
            self._files.close(descriptor)

    def read_bytes(self, base: int, start: int, stop: int) -> bytes:
        """Bytes of a segment as they are, without its map: there may be holes among them."""
        descriptor = self._files.open(segment_path(self.directory, base))
        try:
            return self._files.read(descriptor, stop - start, start)
        finally:
            self._files.close(descriptor)

    # Cutting

    def parts_behind(self, position: int) -> list[tuple[str, list[tuple[int, int]]]]:
        """The files that `truncate` would change, and which parts of them may have content."""
        return [
            (segment_path(self.directory, base), self.data_ranges(base, max(position - base, 0)))
            for base in self.bases
            if base + self.segment_size > position
        ]

    def truncate(self, position: int) -> None:
        """Remove what is behind ``position``: later segments, and the rest of its own.

        The rest is cleared, not just forgotten: a record that recovery dropped could otherwise
        come back to life when new ones happen to end where it starts.
        """
        self._forget_views()
        cut_base = position - position % self.segment_size
        # The one that starts at the position stays, empty as it is: where retention took all
        # before it, it alone knows where the log goes on.
        for base in [base for base in self.bases if base > cut_base]:
            self._files.remove(segment_path(self.directory, base))
            self._maps.forget(segment_path(self.directory, base))
            self.bases.remove(base)
        if cut_base in self.bases:
            descriptor = self._files.open(segment_path(self.directory, cut_base), write=True)
            try:
                self._files.clear(descriptor, position - cut_base, self.segment_size)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        if self._files.stat(self.directory) is not None:
            self._files.sync_dir(self.directory)

    def sync_all(self, doubtful_from: int, end: int) -> None:
        """Put every segment on the disk: a process that died may have left some in memory.

        Nothing is behind ``end``: a segment is mostly a hole, which takes seconds to read.
        """
        for base in self.bases:
            path = segment_path(self.directory, base)
            if self._files.stat(path) is not None:
                start = min(max(doubtful_from - base, 0), self.segment_size)
                stop = min(max(end - base, start), self.segment_size)
                rewrite(self._files, path, start, stop)
        if self.bases:
            self._files.sync_dir(self.directory)

    def reload(self, bases: list[int]) -> None:
        """Take note of segments that the writer of the log made or deleted."""
        self.bases = bases
        self._forget_views()

    def remove_stray(self, path: str) -> None:
        """Delete a segment that is not part of the log."""
        self._maps.forget(path)
        self._files.remove(path)

    def retire_first(self) -> str:
        """Take the oldest segment out of the log; readers that hold slices of it keep them.

        Returns its path; `remove_retired` deletes the file.
        """
        base = self.bases[0]
        if len(self.bases) < 2 or base + self.segment_size > self.written[0]:
            raise StoreError(f"segment {base} of {self.directory} is still being written")
        path = segment_path(self.directory, base)
        self._forget_views()
        self._maps.forget(path)
        del self.bases[0]
        self._retired.append(base)
        return path

    def remove_retired(self) -> None:
        """Delete the files of retired segments, oldest first. Waits for the disk; any thread."""
        while self._retired:
            base = self._retired[0]
            # One at a time: a dead machine may bring back the last one removed, never a gap.
            self.sync(base)
            with self._sync_lock:
                descriptor = self._descriptors.pop(base, None)
                if descriptor is not None:
                    self._files.close(descriptor)
                self._files.remove(segment_path(self.directory, base))
                self._directory_is_dirty = True
            self._retired.popleft()

    def _forget_views(self) -> None:
        self._view_base, self._view = -1, memoryview(b"")

    def close(self) -> None:
        """Give all files back."""
        self._forget_views()
        with self._sync_lock:
            for descriptor in self._descriptors.values():
                self._files.close(descriptor)
            self._descriptors.clear()


def store_timestamp_of(record: memoryview) -> int:
    """The store time in a record's head, whose place depends on the length of the born host."""
    (sys_flag,) = _SYS_FLAG.unpack_from(record)
    at = _STORE_TIMESTAMP_V6_AT if sys_flag & BORN_HOST_V6 else _STORE_TIMESTAMP_AT
    timestamp: int = _STORE_TIMESTAMP.unpack_from(record, at)[0]
    return timestamp
