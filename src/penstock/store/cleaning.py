"""Cleaning: carries out what ``retention`` decides, and refuses messages on a full disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice

from penstock.errors import DiskFull, StoreBlocked
from penstock.store.disk_steps import DiskSteps
from penstock.store.files import DiskSpace
from penstock.store.opening import mark_open
from penstock.store.retention import MANUAL_ROUNDS, Decision, decide, disk_rules
from penstock.store.segments import segment_path
from penstock.store.store_context import StoreContext

log = logging.getLogger(__name__)

_JUMP_MS = 5 * 60_000
"""A clock that gains so much on the time that passed was set; it may be set back again soon."""
_DOUBT_SECONDS = 30 * 60.0
_QUEUES_PER_ROUND = 1_000
"""A queue that was not used yet is loaded for this, by the thread that serves clients."""


class Cleaner:
    """Deletes old files; belongs to the thread that appends."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._manual_rounds = 0
        self._sweep: Iterator[tuple[str, int]] = iter(())
        self._swept_for = -1
        self._seen = (context.time_ms(), context.monotonic())
        self._doubted_until = 0.0

    def request(self) -> None:
        """Let the next rounds of cleaning delete expired segments at any hour."""
        self._manual_rounds = MANUAL_ROUNDS

    def unblock(self) -> DiskSteps[bool]:
        """Try again what could not be written; True if messages are accepted now."""
        context = self._context
        space: DiskSpace = yield lambda: context.files.disk_space(context.root)
        is_full = space.used_ratio > disk_rules(context.config).refuse_messages
        yield from self._mind_disk(is_full, space.used_ratio)
        return context.refusal is None

    def _is_clock_doubtful(self) -> bool:
        """Whether the clock was set ahead a short while ago, so that everything looks old."""
        wall, passed = self._context.time_ms(), self._context.monotonic()
        gained = wall - self._seen[0] - (passed - self._seen[1]) * 1000
        self._seen = (wall, passed)
        if gained > _JUMP_MS:
            log.warning(
                "clock was set ahead, no segment is deleted for its age for a while "
                "seconds=%d while=%d", gained / 1000, _DOUBT_SECONDS,
            )  # fmt: skip
            self._doubted_until = passed + _DOUBT_SECONDS
        elif gained < -_JUMP_MS:
            self._doubted_until = 0.0
        return passed < self._doubted_until

    def clean(self, now: int | None = None) -> DiskSteps[list[str]]:
        """One round of retention; returns the files that were deleted.

        A time that is given is not doubted, unlike that of the clock.
        """
        context = self._context
        is_clock_doubtful = now is None and self._is_clock_doubtful()
        now = context.time_ms() if now is None else now
        is_manual = self._manual_rounds > 0
        self._manual_rounds = max(0, self._manual_rounds - 1)
        space: DiskSpace = yield lambda: context.files.disk_space(context.root)
        modified: list[int] = yield self._modified_ms
        decision = decide(
            context.config,
            modified,
            now,
            time.localtime(now / 1000).tm_hour,
            space.used_ratio,
            is_manual=is_manual,
            is_clock_doubtful=is_clock_doubtful,
        )
        segments = self._retire_segments(decision)
        index_files = self._begin_sweep()
        names: list[tuple[str, int]] = yield lambda: list(islice(self._sweep, _QUEUES_PER_ROUND))
        queue_files = self._retire_queue_files(names)

        def remove() -> None:
            context.commit_log.remove_retired()
            for path in index_files:
                context.files.remove(path)
            context.queues.remove_files(queue_files)

        yield remove
        yield from self._mind_disk(decision.is_disk_full, space.used_ratio)
        return segments + index_files + queue_files

    def _modified_ms(self) -> list[int]:
        files, commit_log = self._context.files, self._context.commit_log
        paths = [segment_path(commit_log.directory, base) for base in list(commit_log.bases)]
        entries = map(files.stat, paths)
        return [0 if entry is None else entry.modified_ns // 1_000_000 for entry in entries]

    def _retire_segments(self, decision: Decision) -> list[str]:
        commit_log = self._context.commit_log
        retired: list[str] = []
        for _ in range(decision.delete):
            end = commit_log.bases[0] + commit_log.segment_size
            if len(commit_log.bases) < 2 or end > self._context.deletable_before:
                break
            retired.append(commit_log.retire_first())
        if retired:
            log.info(
                "log segments deleted count=%d reason=%s start=%d",
                len(retired), decision.reason, commit_log.min_position,
            )  # fmt: skip
        return retired

    def _begin_sweep(self) -> list[str]:
        """Check all queues once for each new start of the log; returns index files to remove."""
        start = self._context.commit_log.min_position
        if self._swept_for == start:
            return []
        self._swept_for = start
        self._sweep = self._context.queues.listed()
        return [] if self._context.index is None else self._context.index.retire_before(start)

    def _retire_queue_files(self, names: list[tuple[str, int]]) -> list[str]:
        """Queue files that have only entries of deleted messages."""
        retired: list[str] = []
        for topic, queue_id in names:
            queue = self._context.queues.get(topic, queue_id)
            if queue is not None:
                retired += self._context.queues.retire_old_files(queue)
        return retired

    def _mind_disk(self, is_full: bool, used_ratio: float) -> DiskSteps[None]:
        """Refuse messages on a full disk, and accept them again when there is room."""
        context = self._context
        if is_full and context.refusal is None:
            context.refusal = DiskFull(
                f"disk of {context.root} is {used_ratio:.0%} full",
                expected=f"at most {context.config.disk_space_warning_level_ratio}%",
                hint="make room, or lower fileReservedTime",
            )
            return
        has_room = not is_full and isinstance(context.refusal, StoreBlocked)
        if has_room and (yield from self._catch_up()):
            context.refusal = None

    def _catch_up(self) -> DiskSteps[bool]:
        """Write the index and queue entries that had no room; True if nothing is left."""
        context = self._context
        stopped_at = context.index_builder.index_stopped_at
        if stopped_at is not None and not context.index_builder.catch_up(
            context.commit_log.scan(stopped_at, context.published[0], check_crc=False)
        ):
            return False

        def write() -> bool:
            if not context.is_marked_open:
                mark_open(context)
            return context.queues.persist()

        try:
            if not (yield write):
                return False
        except OSError:
            return False
        context.queues.drop_persisted()
        return True
