"""Keeps the broker's tables on disk: topics, groups, consumer offsets, delay progress.

Tables change in memory, often many times in a row. A table that must not be lost is saved as soon
as the one save before it is done; progress that may be repeated is saved on a clock. Saving means
fsync, so it happens in a thread; the bytes are made on the loop, where the tables live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError, StoreError
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.state_file import StateFile

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
_RETRY_SECONDS = 1.0


class _Waiting(NamedTuple):
    """Somebody who wants to know that a table is on the disk, or that it cannot be."""

    done: Callable[[], object]
    failed: Callable[[PenstockError], object] | None


@dataclass(slots=True)
class Table:
    """One file: how its content is made, and how long it may wait to be saved."""

    file: StateFile
    dump: Callable[[], bytes]
    period: float
    """Seconds between two saves; 0 saves at once."""
    is_dirty: bool = False
    has_failed: bool = False
    next_save: float = 0.0
    when_saved: list[_Waiting] = field(default_factory=list)


class Tables(Service):
    """Saves tables that changed."""

    def __init__(self, clock: Clock, directory: Path) -> None:
        self._clock = clock
        self._directory = directory
        self._tables: dict[str, Table] = {}
        self._changed = asyncio.Event()

    def add(
        self,
        name: str,
        *,
        load: Callable[[bytes], None],
        dump: Callable[[], bytes],
        period: float = 0.0,
        first: float = 0.0,
    ) -> None:
        """Take care of a table, and load it if its file is there."""
        file = StateFile(self._directory / name)
        file.load(check=load)
        now = self._clock.monotonic()
        self._tables[name] = Table(file, dump, period, next_save=now + (first or period))

    def changed(self, name: str) -> None:
        """Save a table soon."""
        table = self._tables.get(name)
        if table is not None:
            table.is_dirty = True
            if not table.period:
                self._changed.set()

    def when_saved(
        self,
        name: str,
        done: Callable[[], object],
        failed: Callable[[PenstockError], object] | None = None,
    ) -> None:
        """Call ``done`` when a table that changed just now is on the disk.

        ``failed`` is called instead, and once, if the next try does not get it there; without it
        ``done`` waits for a try that does.
        """
        table = self._tables[name]
        if not table.is_dirty:
            done()
            return
        table.when_saved.append(_Waiting(done, failed))
        self._changed.set()

    def save_all(self) -> None:
        """Save everything that changed, now; for the end."""
        for name, table in self._tables.items():
            if table.is_dirty:
                data = self._dump(name, table)
                if isinstance(data, bytes):
                    self._save(name, table, data)

    async def _run(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-tables") as thread:
            ready()
            while True:
                await self._wait()
                for name, table in self._due():
                    data = self._dump(name, table)
                    table.is_dirty = False
                    waiting, table.when_saved = table.when_saved, []
                    # Counted from here, so that a slow disk does not stretch the period.
                    table.next_save = self._clock.monotonic() + (table.period or _RETRY_SECONDS)
                    error: PenstockError | None
                    try:
                        error = (
                            await loop.run_in_executor(thread, self._save, name, table, data)
                            if isinstance(data, bytes)
                            else data
                        )
                    except asyncio.CancelledError:
                        # Nobody will hear how it went: the last save does it again.
                        table.is_dirty = True
                        raise
                    if error is None:
                        for one in waiting:
                            one.done()
                    else:
                        table.is_dirty = True
                        table.when_saved += [one for one in waiting if one.failed is None]
                        for one in waiting:
                            if one.failed is not None:
                                one.failed(error)

    async def _wait(self) -> None:
        """Until a table must be saved at once, or the next periodic save is due."""
        now = self._clock.monotonic()
        periods = [table.next_save - now for table in self._tables.values() if table.is_dirty]
        wait = min(periods, default=1.0)
        if wait <= 0:
            return
        timer = self._clock.call_later(max(wait, _TICK_SECONDS), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        self._changed.clear()

    def _due(self) -> list[tuple[str, Table]]:
        now = self._clock.monotonic()
        return [
            (name, table)
            for name, table in self._tables.items()
            if table.is_dirty
            and (table.next_save <= now or (not table.has_failed and self._is_urgent(table)))
        ]

    def _is_urgent(self, table: Table) -> bool:
        return not table.period or bool(table.when_saved)

    def _dump(self, name: str, table: Table) -> bytes | PenstockError:
        try:
            return table.dump()
        except Exception as error:
            # Whatever is wrong with this table, the others are to be saved and the broker to live.
            log.exception("table cannot be written file=%s", self._directory / name)
            return self._failed(table, error)

    def _save(self, name: str, table: Table, data: bytes) -> PenstockError | None:
        try:
            table.file.save(data)
        except (OSError, PenstockError) as error:
            # The table in memory is right; it is tried again in a while.
            log.error("table not saved file=%s error=%s", self._directory / name, error)
            return self._failed(table, error)
        table.has_failed = False
        return None

    def _failed(self, table: Table, error: Exception) -> PenstockError:
        table.has_failed = True
        return StoreError(f"what was changed counts, but would not outlive the broker: {error}")
