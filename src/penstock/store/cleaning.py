"""Cleaning: carries out what ``retention`` decides, and minds the room on the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from penstock.errors import DiskFull
from penstock.store.opening import mark_open
from penstock.store.retention import MANUAL_ROUNDS, decide
from penstock.store.segments import segment_path
from penstock.store.store_context import StoreContext

log = logging.getLogger(__name__)

# Ten thousand queues are not looked through at once: the thread that cleans also serves.
_QUEUES_PER_ROUND = 1_000


class Cleaner:
    """Deletes old files; used by the thread that appends."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._manual_rounds = 0
        self._sweep: Iterator[tuple[str, int]] = iter(())
        self._swept_for = -1

    def request(self) -> None:
        """Let the next rounds of ``clean`` delete expired segments at any hour."""
        self._manual_rounds = MANUAL_ROUNDS

    def clean(self, now: int) -> list[str]:
        """One round of retention; returns the files that were deleted."""
        commit_log = self._context.commit_log
        is_manual = self._manual_rounds > 0
        self._manual_rounds = max(0, self._manual_rounds - 1)
        space = self._context.files.disk_space(self._context.root)
        decision = decide(
            self._context.config,
            self._modified_ms(),
            now,
            time.localtime(now / 1000).tm_hour,
            space.used_ratio,
            is_manual=is_manual,
        )
        removed: list[str] = []
        for _ in range(decision.delete):
            base = commit_log.bases[0]
            is_deletable = base + commit_log.segment_size <= self._context.deletable_before
            if len(commit_log.bases) < 2 or not is_deletable:
                break
            commit_log.remove_first()
            removed.append(segment_path(commit_log.directory, base))
        if removed:
            log.info(
                "log segments deleted count=%d reason=%s start=%d",
                len(removed), decision.reason, commit_log.min_position,
            )  # fmt: skip
        removed += self._clean_queues_and_index()
        self._mind_disk(decision.is_disk_full, space.used_ratio)
        return removed

    def _modified_ms(self) -> list[int]:
        files, commit_log = self._context.files, self._context.commit_log
        paths = (segment_path(commit_log.directory, base) for base in commit_log.bases)
        entries = map(files.stat, paths)
        return [0 if entry is None else entry.modified_ns // 1_000_000 for entry in entries]

    def _clean_queues_and_index(self) -> list[str]:
        """Remove files that only know deleted messages, some queues at a time."""
        start = self._context.commit_log.min_position
        removed: list[str] = []
        if self._swept_for != start:
            self._swept_for = start
            self._sweep = self._context.queues.names()
            if self._context.index is not None:
                removed += self._context.index.remove_before(start)
        for _, (topic, queue_id) in zip(range(_QUEUES_PER_ROUND), self._sweep, strict=False):
            queue = self._context.queues.get(topic, queue_id)
            if queue is not None:
                removed += self._context.queues.remove_old_files(queue)
        return removed

    def _mind_disk(self, is_full: bool, used_ratio: float) -> None:
        """Refuse messages on a full disk, and take them again when there is room."""
        context = self._context
        if is_full and context.refusal is None:
            context.refusal = DiskFull(
                f"disk of {context.root} is {used_ratio:.0%} full",
                expected=f"at most {context.config.disk_space_warning_level_ratio}%",
                hint="make room, or lower fileReservedTime",
            )
        elif not is_full and isinstance(context.refusal, DiskFull) and self._catch_up():
            context.refusal = None

    def _catch_up(self) -> bool:
        """Write what had no room in index and queues; True if nothing is left."""
        context = self._context
        stopped_at = context.index_builder.index_stopped_at
        if stopped_at is not None and not context.index_builder.catch_up(
            context.commit_log.scan(stopped_at, context.published[0], check_crc=False)
        ):
            return False
        try:
            if not context.is_marked_open:
                mark_open(context)
            context.queues.persist()
        except OSError:
            return False
        context.queues.drop_persisted()
        return True
