"""Keeps tables on disk: a broker's topics, groups and offsets, a name server's key-value texts.

Tables change in memory, often many times in a row. A table that must not be lost is saved as soon
as the save before it is done; progress that may be repeated is saved at intervals. Saving means
fsync, so it happens in a thread; the bytes are made on the loop, which owns the tables.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError, StoreError
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.state_file import OS_STATE_FILES, StateFile, StateFileSystem
from penstock.runtime.threads import run_to_end

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
_RETRY_SECONDS = 1.0


class _Waiting(NamedTuple):
    """Callbacks for when a table is on the disk, or cannot be saved."""

    done: Callable[[], object]
    failed: Callable[[PenstockError], object] | None


@dataclass(slots=True)
class _Table:
    """One file: how its content is made, and how long it may wait to be saved."""

    file: StateFile
    dump: Callable[[], bytes]
    period: float
    """Seconds between two saves; 0 saves at once."""
    is_dirty: bool = False
    is_being_saved: bool = False
    has_failed: bool = False
    next_save: float = 0.0
    when_saved: list[_Waiting] = field(default_factory=list)
    """To be called after the next save."""
    when_this_is_saved: list[_Waiting] = field(default_factory=list)
    """To be called after the save under way."""


class SavedTables(Service):
    """Saves tables that changed."""

    def __init__(
        self,
        clock: Clock,
        directory: Path,
        *,
        files: StateFileSystem = OS_STATE_FILES,
        check: Callable[[], None] | None = None,
        may_be_changed: bool = False,
    ) -> None:
        """``check`` is called before each save, in its thread; it raises to prevent the save.

        ``may_be_changed``: another program may have written the tables since they were saved.
        """
        self._may_be_changed = may_be_changed
        self._clock = clock
        self._check = check
        self._directory = directory
        self._files = files
        self._tables: dict[str, _Table] = {}
        self._changed = asyncio.Event()

    async def add(
        self,
        name: str,
        *,
        load: Callable[[bytes], object],
        dump: Callable[[], bytes],
        period: float = 0.0,
        first: float = 0.0,
    ) -> None:
        """Manage a table, and load it if its file is there; ``load`` is called in a thread."""
        file = StateFile(self._directory / name, files=self._files, has_sums=True)
        await run_to_end(
            None, functools.partial(file.load, load, may_be_changed=self._may_be_changed)
        )
        now = self._clock.monotonic()
        self._tables[name] = _Table(file, dump, period, next_save=now + (first or period))

    def changed(self, name: str) -> None:
        """Save a table soon."""
        table = self._tables.get(name)
        if table is not None:
            if not table.period or not table.is_dirty:
                self._changed.set()
            table.is_dirty = True

    def when_saved(
        self,
        name: str,
        done: Callable[[], object],
        failed: Callable[[PenstockError], object] | None = None,
    ) -> None:
        """Call ``done`` when a table is on the disk as it is now.

        ``failed`` is called instead, and once, if the next attempt fails; without it ``done``
        waits for an attempt that succeeds.
        """
        table = self._tables[name]
        waiting = _Waiting(done, failed)
        if table.is_dirty:
            table.when_saved.append(waiting)
            self._changed.set()
        elif table.is_being_saved:
            table.when_this_is_saved.append(waiting)
        else:
            done()

    async def save_all(self) -> None:
        """Save everything that changed; for a shutdown, after the service has stopped."""
        for name, table in self._tables.items():
            if table.is_dirty:
                data = self._dump(name, table)
                if isinstance(data, bytes):
                    await run_to_end(None, functools.partial(self._save, name, table, data))

    async def _run(self, ready: Callable[[], None]) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-tables") as thread:
            ready()
            while True:
                await self._wait()
                for name, table in self._due():
                    await self._save_due(thread, name, table)

    async def _save_due(self, thread: ThreadPoolExecutor, name: str, table: _Table) -> None:
        data = self._dump(name, table)
        table.is_dirty, table.is_being_saved = False, True
        table.when_this_is_saved, table.when_saved = table.when_saved, []
        # Counted from here, so that a slow disk does not stretch the period.
        table.next_save = self._clock.monotonic() + (table.period or _RETRY_SECONDS)
        error: PenstockError | None
        try:
            error = (
                await run_to_end(thread, functools.partial(self._save, name, table, data))
                if isinstance(data, bytes)
                else data
            )
        except asyncio.CancelledError:
            # The result is not known here: `save_all` saves the table once more.
            table.is_dirty = True
            raise
        finally:
            table.is_being_saved = False
        waiting, table.when_this_is_saved = table.when_this_is_saved, []
        if error is None:
            for one in waiting:
                one.done()
            return
        table.is_dirty = True
        table.when_saved += [one for one in waiting if one.failed is None]
        for one in waiting:
            if one.failed is not None:
                one.failed(error)

    async def _wait(self) -> None:
        """Until a table must be saved at once, or the next periodic save is due."""
        now = self._clock.monotonic()
        periods = [table.next_save - now for table in self._tables.values() if table.is_dirty]
        wait = min(periods, default=None)
        if wait is not None and wait <= 0:
            return
        # With nothing to save there is no timer: the first change ends the wait.
        timer = None
        if wait is not None:
            timer = self._clock.call_later(max(wait, _TICK_SECONDS), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()

    def _due(self) -> list[tuple[str, _Table]]:
        now = self._clock.monotonic()
        return [
            (name, table)
            for name, table in self._tables.items()
            if table.is_dirty
            and (table.next_save <= now or (not table.has_failed and self._is_urgent(table)))
        ]

    def _is_urgent(self, table: _Table) -> bool:
        return not table.period or bool(table.when_saved)

    def _dump(self, name: str, table: _Table) -> bytes | PenstockError:
        try:
            return table.dump()
        except Exception as error:
            # One table that cannot be encoded must not keep the others from being saved.
            log.exception("table cannot be written file=%s", self._directory / name)
            return self._failed(table, error)

    def _save(self, name: str, table: _Table, data: bytes) -> PenstockError | None:
        try:
            if self._check is not None:
                self._check()
            table.file.save(data)
        except (OSError, PenstockError) as error:
            # The table in memory is right; the save is repeated after a while.
            log.error("table not saved file=%s error=%s", self._directory / name, error)
            return self._failed(table, error)
        table.has_failed = False
        return None

    def _failed(self, table: _Table, error: Exception) -> PenstockError:
        table.has_failed = True
        return StoreError(f"the change is in force, but would be lost by a restart: {error}")
