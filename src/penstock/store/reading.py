"""Reading a queue: which status, which entries, which bytes of the log.

The rules are RocketMQ's DefaultMessageStore.getMessage. A read that needs no filter and whose
messages lie side by side in the log, which is what one busy producer leaves, costs no work per
message in Python: the entries are unpacked and compared in one go and one slice is handed out.
Where they lie among those of other queues, each is one slice and nothing more. A read of more than
64, which only our own readers ask for, goes the same way in portions; it cuts out what lies side by
side, and copies what is scattered: thousands of slices would cost more than their bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Container
from itertools import compress, repeat
from operator import add, ne
from typing import Final, NamedTuple

from penstock.store.commit_log import CommitLog
from penstock.store.config import StoreConfig
from penstock.store.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES, ConsumeQueue
from penstock.store.scattered_records import at_equal_distances
from penstock.store.soundness import FoundDamages, are_records, is_sound

MAX_READ_BYTES: Final = 128 << 20
MAX_ASKED: Final = 1024
"""Records one read asks a filter about: about ten milliseconds that block other requests."""
MAX_FILTER_WORK: Final = 16 << 20
"""What one read lets a filter do: its steps times the bytes it may have to look at, about the same
ten milliseconds. The first record is always asked about, so that every read gets on."""
_ASK_BYTES = 512
_MAX_ASK_BYTES = 40_000
_CHUNK = 64
_PORTION = 1024
_MANY_PIECES = 64
_MAX_SPREAD = 4
"""Records that lie in so many times their bytes may be copied together with what is between."""
# Positions and sizes of so many entries; their tags codes are for filters only.
_unpack_units = {
    count: struct.Struct(">" + "qi8x" * count).unpack_from
    for count in (*range(1, _CHUNK + 1), 128, 256, 512, _PORTION)
}


class ReadStatus(enum.Enum):
    """What a read came to; the names are RocketMQ's and travel as the remark of a pull answer."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


class ReadResult(NamedTuple):
    """The answer to a read; ``slices`` are whole records each, parts of the mapped log.

    Of reads with limits of their own and many scattered records they are copies.
    """

    status: ReadStatus
    slices: list[memoryview]
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used here
    size: int
    next_offset: int
    min_offset: int
    max_offset: int
    suggest_slave: bool


class RecordTest(NamedTuple):
    """A question about tags code and record that takes so many steps to answer."""

    takes: Callable[[int, memoryview], bool]
    steps: int

    def __call__(self, tags_code: int, record: memoryview) -> bool:
        return self.takes(tags_code, record)


TagFilter = Container[int] | Callable[[int, memoryview], bool] | RecordTest
"""Tag codes to let through, or a question about tags code and record."""


class Reader:
    """Reads queues of one store; decides nothing about the store itself."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        memory_bytes: int,
        *,
        checked_before: int = 0,
    ) -> None:
        self._log = commit_log
        self._checked_before = checked_before
        """Records before this log position are looked at before they are delivered."""
        self.damages = FoundDamages()
        self._memory_span = memory_bytes * config.access_message_in_memory_max_ratio // 100
        self._memory_limits = (
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
        )
        self._disk_limits = (
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
        )
        self._max_filter_bytes = config.max_filter_message_size
        self._overflow_returns_to_min = config.overflow_returns_to_min
        self._corrects = config.broker_role != "SLAVE" or config.offset_check_in_slave

    def is_in_memory(self, log_position: int) -> bool:
        """Whether a record is so young that it counts as being in the page cache."""
        return self._log.written[0] - log_position <= self._memory_span

    def read(
        self,
        queue: ConsumeQueue | None,
        queue_offset: int,
        max_count: int,
        max_bytes: int | None,
        matches: TagFilter | None,
    ) -> ReadResult:
        """Read from ``queue_offset`` on; see ``MessageStore.read``."""
        if queue is None:
            return self._nothing(ReadStatus.NO_MATCHED_LOGIC_QUEUE, queue_offset, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            return self._outside(queue_offset, low, high)
        commit_log = self._log
        if matches is None and max_count <= _CHUNK:
            buffer, at, count = queue.units(queue_offset, max_count)
            if count:
                numbers = _unpack_units[count](buffer, at)
                positions = numbers[::2]
                sizes = numbers[1::2]
                first, size = positions[0], sum(sizes)
                in_memory_from = commit_log.written[0] - self._memory_span
                if max_bytes is None:
                    byte_limit, count_limit = self._memory_limits
                    fits = first >= in_memory_from and count <= count_limit
                else:
                    byte_limit, fits = max_bytes, True
                if fits and size <= byte_limit:
                    # Records do not overlap, so those that fill their span lie side by side.
                    if positions[-1] + sizes[-1] - first == size and sizes[-1] > 0:
                        view = commit_log.slice(first, size)
                        slices = None if view is None else [view]
                    else:
                        slices = self._scattered(positions, sizes)
                    if (
                        slices is not None
                        and is_sound(slices[0], 0, sizes[0], first)
                        and (
                            first >= self._checked_before
                            or self._are_sound(slices, positions, sizes)
                        )
                    ):
                        return ReadResult(
                            ReadStatus.FOUND,
                            slices,
                            count,
                            size,
                            queue_offset + count,
                            low,
                            high,
                            positions[-1] < in_memory_from,
                        )
        elif matches is None and max_bytes is not None:
            many = self._read_many(queue, queue_offset, max_count, max_bytes)
            if many is not None:
                return many
        return self._read_each(queue, queue_offset, max_count, max_bytes, matches)

    def _are_sound(
        self, slices: list[memoryview], positions: tuple[int, ...], sizes: tuple[int, ...]
    ) -> bool:
        """Whether each of these old records is one."""
        if len(slices) == 1:
            return are_records(slices[0], positions, sizes)
        return all(map(is_sound, slices, repeat(0), sizes, positions))

    def _read_many(
        self, queue: ConsumeQueue, queue_offset: int, max_count: int, max_bytes: int
    ) -> ReadResult | None:
        """What a queue has from here on, in portions; None where not even one entry is ordinary.

        A portion that is too large, or reaches over the end of a log segment, is tried again with
        half of its entries.
        """
        buffer, at, available = queue.units(queue_offset, max_count)
        limit = min(max_bytes, MAX_READ_BYTES)
        slices: list[memoryview] = []
        count = size = last = 0
        largest = _PORTION
        while largest and count < available:
            portion = min(largest, available - count)
            if portion > _CHUNK:
                portion = 1 << portion.bit_length() - 1
            numbers = _unpack_units[portion](buffer, at + count * UNIT_BYTES)
            positions = numbers[::2]
            sizes = numbers[1::2]
            more = sum(sizes)
            found = self._pieces(positions, sizes, more) if size + more <= limit else None
            if found is None or (not count and not is_sound(found[0], 0, sizes[0], positions[0])):
                largest = portion // 2
                continue
            slices += found
            count += portion
            size += more
            last = positions[-1]
        if not count:
            return None
        return ReadResult(
            ReadStatus.FOUND,
            slices,
            count,
            size,
            queue_offset + count,
            queue.min_offset,
            queue.max_offset,
            not self.is_in_memory(last),
        )

    def _pieces(
        self, positions: tuple[int, ...], sizes: tuple[int, ...], size: int
    ) -> list[memoryview] | None:
        """Records of one segment, those side by side in one piece; a copy where pieces are many."""
        first = positions[0]
        whole = self._log.slice(first, positions[-1] + sizes[-1] - first)
        if whole is None:
            return None
        if len(whole) == size and sizes[-1] > 0:
            return [whole]
        if len(positions) > _MANY_PIECES:
            alike = at_equal_distances(whole, positions, sizes)
            if alike is not None:
                return [memoryview(alike)]
        if min(positions) < first or 0 in sizes:
            return None
        ends = list(map(add, positions, sizes))
        is_apart = list(map(ne, positions[1:], ends))
        starts = [first, *compress(positions[1:], is_apart)]
        stops = [*compress(ends, is_apart), ends[-1]]
        source: memoryview | bytes = whole
        if len(starts) > _MANY_PIECES and len(whole) <= _MAX_SPREAD * size:
            # Parts of bytes are made sooner than views, which garbage collection has to visit.
            source = whole.tobytes()
        pieces = [
            source[start - first : stop - first] for start, stop in zip(starts, stops, strict=True)
        ]
        if sum(map(len, pieces)) != size:
            return None
        if len(pieces) > _MANY_PIECES:
            return [memoryview(b"".join(pieces))]
        return pieces  # type: ignore[return-value]  # few are views

    def _scattered(
        self, positions: tuple[int, ...], sizes: tuple[int, ...]
    ) -> list[memoryview] | None:
        """The records one by one, if all of them are there and in one segment."""
        first = positions[0]
        whole = self._log.slice(first, positions[-1] + sizes[-1] - first)
        if whole is None or min(positions) < first or 0 in sizes:
            return None
        slices = [
            whole[position - first : position - first + size]
            for position, size in zip(positions, sizes, strict=True)
        ]
        return slices if sum(map(len, slices)) == sum(sizes) else None

    def _outside(self, queue_offset: int, low: int, high: int) -> ReadResult:
        if high == 0:
            return self._nothing(ReadStatus.NO_MESSAGE_IN_QUEUE, queue_offset, 0, low, high)
        if queue_offset < low:
            return self._nothing(ReadStatus.OFFSET_TOO_SMALL, queue_offset, low, low, high)
        if queue_offset == high:
            return self._nothing(
                ReadStatus.OFFSET_OVERFLOW_ONE, queue_offset, queue_offset, low, high
            )
        corrected = low if self._overflow_returns_to_min and low == 0 else high
        return self._nothing(ReadStatus.OFFSET_OVERFLOW_BADLY, queue_offset, corrected, low, high)

    def _nothing(
        self, status: ReadStatus, asked: int, corrected: int, low: int, high: int
    ) -> ReadResult:
        # A slave that lags must not send readers back; it lets them ask the master.
        next_offset = corrected if self._corrects else asked
        return ReadResult(status, [], 0, 0, next_offset, low, high, False)

    def _read_each(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_count: int,
        max_bytes: int | None,
        matches: TagFilter | None,
        *,
        is_checked: bool = False,
    ) -> ReadResult:
        """Read entry by entry: for filters, limits that cut, scattered and damaged records."""
        scan_limit = max(self._max_filter_bytes, max_count * UNIT_BYTES) // UNIT_BYTES
        if callable(matches):
            # A limit for foreign clients; they continue at once where this read ends.
            scan_limit = min(scan_limit, MAX_ASKED)
        buffer, at, available = queue.units(queue_offset, scan_limit)
        low, high = queue.min_offset, queue.max_offset
        if not available:
            per_file = queue.units_per_file
            following = queue_offset - queue_offset % per_file + per_file
            return self._nothing(ReadStatus.OFFSET_FOUND_NULL, queue_offset, following, low, high)
        # A copy of a few kilobytes: the tail must stay free to grow while filters run.
        units = bytes(buffer[at : at + available * UNIT_BYTES])
        commit_log = self._log
        codes = None if matches is None or callable(matches) else matches
        asks = matches if callable(matches) else None
        steps = matches.steps if isinstance(matches, RecordTest) else 1
        runs: list[tuple[int, int]] = []
        status = ReadStatus.NO_MATCHED_MESSAGE
        count = size = scanned = work = 0
        position = removed_before = 0
        for position, record_size, code in UNIT.iter_unpack(units):
            if work > MAX_FILTER_WORK:
                break
            if count and self._is_full(position, record_size, count, size, max_count, max_bytes):
                break
            scanned += 1
            if 0 <= position < removed_before or (codes is not None and code not in codes):
                continue
            if record_size == FILLER_SIZE:
                continue  # a place that a queue was moved past
            if 0 <= position < commit_log.min_position and record_size > 0:
                # The segment was deleted after the queue was looked at; skip all of it.
                removed_before = position - position % commit_log.segment_size
                removed_before += commit_log.segment_size
                status = ReadStatus.MESSAGE_WAS_REMOVING
                continue
            record = None
            if (
                is_checked
                or asks is not None
                or position < self._checked_before
                or not count
                or record_size <= 0
            ):
                record = commit_log.slice(position, record_size)
                if record is None or not is_sound(record, 0, record_size, position):
                    damage = self.damages.note(queue, queue_offset + scanned - 1, position)
                    scanned -= 1
                    if not scanned:
                        raise damage
                    break
            if asks is not None and record is not None:
                # Only properties are looked at, and there are 32 KiB of them at most.
                work += steps * (_ASK_BYTES + min(record_size, _MAX_ASK_BYTES))
                if not asks(code, record):
                    continue
            if runs and runs[-1][0] + runs[-1][1] == position:
                runs[-1] = (runs[-1][0], runs[-1][1] + record_size)
            else:
                runs.append((position, record_size))
            count += 1
            size += record_size
        slices = [view for view in (commit_log.slice(*run) for run in runs) if view is not None]
        if len(slices) != len(runs):
            return self._read_each(
                queue, queue_offset, max_count, max_bytes, matches, is_checked=True
            )
        if count:
            status = ReadStatus.FOUND
        return ReadResult(
            status,
            slices,
            count,
            size,
            queue_offset + scanned,
            low,
            high,
            commit_log.written[0] - position > self._memory_span,
        )

    def _is_full(
        self,
        position: int,
        record_size: int,
        count: int,
        size: int,
        max_count: int,
        max_bytes: int | None,
    ) -> bool:
        """Whether another record would be too much; the first one never is."""
        if count >= max_count or size + record_size > MAX_READ_BYTES:
            return True
        if max_bytes is not None:
            return size + record_size > max_bytes
        byte_limit, count_limit = (
            self._memory_limits if self.is_in_memory(position) else self._disk_limits
        )
        return size + record_size > byte_limit or count >= count_limit


def offset_by_time(
    queue: ConsumeQueue, commit_log: CommitLog, timestamp_ms: int, *, upper: bool
) -> int:
    """The first queue offset stored at or after a time; with ``upper`` the last at or before it."""
    low, high = queue.min_offset, queue.max_offset
    # Find the first entry that is too late; entries whose record is gone count as early.
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        stored = -1 if entry is None else commit_log.store_timestamp(entry.log_position)
        if stored > timestamp_ms or (stored == timestamp_ms and not upper):
            high = middle
        else:
            low = middle + 1
    if upper:
        low -= 1
    return min(max(low, queue.min_offset), queue.max_offset)
