"""A disk so slow that each wait for it lasts several turns of the event loop.

An operation that waits for the device returns when the loop has made `BEATS` more turns. On the
loop's own thread that would be never, and where the loop waits for a lock that the operation holds
it is never, too: both are noted as violations. The delay is counted in turns of the loop and not in
seconds, so a busy machine does not fail a test.

What waits for the device: syncing files and directories, removing and renaming files, and all that
is done to tables. What the kernel answers from memory may run on the loop: creating and opening
files, writes to the page cache, maps, free space, the directory of a queue at its first use.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from penstock.runtime.state_file import OS_STATE_FILES
from penstock.store.files import WritableMap
from penstock.store.segments import OsFiles

BEATS: Final = 3
_GIVE_UP_SECONDS: Final = 20.0


class SlowDisk:
    """Delays operations while a loop is watched."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        """Operations that were delayed."""
        self.violations: list[str] = []
        self.files = SlowFiles(self)
        self.state_files = SlowStateFiles(self)
        self._loop_thread = 0
        self._beats = 0
        self._held = ""
        self._beat = threading.Condition()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Make the disk slow, and fail at the end if this loop had to wait for it."""
        self._loop_thread = threading.get_ident()
        heart = asyncio.create_task(self._keep_beating())
        try:
            yield
        finally:
            self._loop_thread = 0
            heart.cancel()
        assert not self.violations, self.violations

    @contextmanager
    def hold(self, operation: str) -> Iterator[None]:
        """Let no such operation end within the block."""
        self._held = operation
        try:
            yield
        finally:
            self._held = ""

    async def _keep_beating(self) -> None:
        while True:
            with self._beat:
                self._beats += 1
                self._beat.notify_all()
            await asyncio.sleep(0)

    def wait(self, operation: str, subject: object) -> None:
        """Return when the loop has made some turns."""
        if not self._loop_thread:
            return
        self.waits[operation] += 1
        if threading.get_ident() == self._loop_thread:
            self.violations.append(f"{operation} {subject} on the loop")
            return
        with self._beat:
            end = self._beats + BEATS
            if not self._beat.wait_for(
                lambda: (self._beats >= end and self._held != operation) or not self._loop_thread,
                _GIVE_UP_SECONDS,
            ):
                self.violations.append(f"the loop stood still during {operation} {subject}")


class _SlowMap:
    def __init__(self, disk: SlowDisk, inner: WritableMap) -> None:
        self._disk = disk
        self._inner = inner
        self.view = inner.view

    def sync(self) -> None:
        self._disk.wait("sync map", "")
        self._inner.sync()

    def close(self) -> None:
        self.view = memoryview(b"")
        self._inner.close()


class SlowFiles(OsFiles):
    """The store's files on a slow disk."""

    def __init__(self, disk: SlowDisk) -> None:
        self._disk = disk

    def sync(self, descriptor: int) -> None:
        self._disk.wait("sync", descriptor)
        super().sync(descriptor)

    def sync_dir(self, path: str) -> None:
        self._disk.wait("sync_dir", path)
        super().sync_dir(path)

    def map_writable(self, descriptor: int, size: int) -> WritableMap:
        return _SlowMap(self._disk, super().map_writable(descriptor, size))

    def rename(self, old: str, new: str) -> None:
        self._disk.wait("rename", old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._disk.wait("remove", path)
        super().remove(path)

    def remove_dir(self, path: str) -> None:
        self._disk.wait("remove_dir", path)
        super().remove_dir(path)


class SlowStateFiles:
    """Tables on a slow disk; every operation waits for it."""

    def __init__(self, disk: SlowDisk) -> None:
        self._disk = disk

    def read(self, path: Path) -> bytes:
        self._disk.wait("read table", path)
        return OS_STATE_FILES.read(path)

    def write(self, path: Path, data: bytes) -> None:
        self._disk.wait("write table", path)
        OS_STATE_FILES.write(path, data)

    def replace(self, source: Path, target: Path) -> None:
        self._disk.wait("replace table", target)
        OS_STATE_FILES.replace(source, target)

    def sync_directory(self, path: Path) -> None:
        self._disk.wait("sync tables", path)
        OS_STATE_FILES.sync_directory(path)

    def make_directory(self, path: Path) -> None:
        self._disk.wait("make directory of tables", path)
        OS_STATE_FILES.make_directory(path)

    def remove(self, path: Path) -> None:
        self._disk.wait("remove table", path)
        OS_STATE_FILES.remove(path)
