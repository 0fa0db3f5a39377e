"""State tables on disk: replaced as a whole, with a backup, and never both lost.

RocketMQ keeps ``topics.json`` and its like as a file and the version before it as ``.bak``. The
same names and meanings here, so either broker reads what the other left. How a save goes, and what
a crash after each step leaves behind:

    write .tmp, fsync it            file old   .bak older
    file -> .bak, fsync directory   file gone  .bak old      load takes .bak
    .tmp -> file, fsync directory   file new   .bak old

RocketMQ writes the new file in place in the last step; going through ``.tmp`` means that a file of
ours is never torn. Files of others may be, so `load` takes a check: a file that is empty or fails
it is put aside as ``.damaged``, where it can neither be loaded nor become the backup.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.errors import DiskFull, PenstockError, StoreDamaged, StoreError

log = logging.getLogger(__name__)

MAX_STATE_BYTES = 1 << 30


class StateFileSystem(Protocol):
    """The operations a `StateFile` is made of; a test hands in one that crashes."""

    def read(self, path: Path) -> bytes:
        """All of the file; ``FileNotFoundError`` if it is not there."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or empty the file, write ``data`` and return when it is on the disk."""

    def replace(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``, atomically."""

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are on the disk."""

    def make_directory(self, path: Path) -> None:
        """Create the directory and its parents, if missing."""

    def remove(self, path: Path) -> None:
        """Remove the file, if it is there."""


class _OsFileSystem:
    def read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_STATE_BYTES:
                raise StoreDamaged(
                    f"{path} has {size} bytes", expected=f"at most {MAX_STATE_BYTES}"
                )
            return file.read()

    def write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


OS_STATE_FILES: StateFileSystem = _OsFileSystem()


class StateFile:
    """One state table on disk. Calls block; one owner at a time."""

    def __init__(self, path: Path, *, files: StateFileSystem = OS_STATE_FILES) -> None:
        self.path = Path(path)
        self.backup_path = _with_suffix(self.path, ".bak")
        self._temporary = _with_suffix(self.path, ".tmp")
        self._damaged = _with_suffix(self.path, ".damaged")
        self._files = files

    def load(self, check: Callable[[bytes], object] | None = None) -> bytes | None:
        """The content, or that of the backup, or None where there is neither.

        ``check`` is given the bytes and raises ``ValueError`` or a `PenstockError` if they mean
        nothing; usually it is the parser. A backup that fails it too is `StoreDamaged`: to start
        empty would forget what is still there to be repaired.
        """
        data = self._read(self.path)
        trouble = _trouble(data, check)
        if data is not None and trouble is None:
            return data
        if data is not None:
            self._put_aside()
        backup = self._read(self.backup_path)
        if backup is None:
            if data:
                log.error(
                    "state file unreadable and no backup, starting empty file=%s kept=%s error=%s",
                    self.path,
                    self._damaged,
                    trouble,
                )
            return None
        trouble_of_backup = _trouble(backup, check)
        if trouble_of_backup is None:
            log.warning(
                "state loaded from backup file=%s backup=%s reason=%s",
                self.path,
                self.backup_path,
                trouble or "the file is missing",
            )
            return backup
        if not backup and data is None:
            return None
        raise StoreDamaged(
            f"{self.path} cannot be read ({trouble or 'missing'}), "
            f"nor its backup {self.backup_path} ({trouble_of_backup})",
            hint="repair one of them, or move both away to start empty",
        )

    def save(self, data: bytes) -> None:
        """Replace the content; when this returns, it survives a power cut."""
        try:
            self._files.make_directory(self.path.parent)
            self._files.write(self._temporary, data)
            if self._has_content(self.path):
                self._files.replace(self.path, self.backup_path)
                # Before the new file takes the name: the backup must not be the one that is lost.
                self._files.sync_directory(self.path.parent)
            self._files.replace(self._temporary, self.path)
            self._files.sync_directory(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(self._temporary)
            raise _store_error("written", self.path, error) from error

    def _has_content(self, path: Path) -> bool:
        # An empty file is what a crash of another program left; the backup is worth more.
        try:
            return bool(self._files.read(path))
        except FileNotFoundError:
            return False

    def _read(self, path: Path) -> bytes | None:
        try:
            return self._files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _store_error("read", path, error) from error

    def _put_aside(self) -> None:
        try:
            self._files.replace(self.path, self._damaged)
        except OSError as error:
            raise _store_error("moved away", self.path, error) from error


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _trouble(data: bytes | None, check: Callable[[bytes], object] | None) -> str | None:
    """What is wrong with ``data``; None: nothing, or it is not there at all."""
    if data is None:
        return None
    # A hole of zeros is what some file systems show for bytes that never reached the disk.
    if not data.strip(b"\0 \t\r\n"):
        return "the file is empty"
    if check is not None:
        try:
            check(data)
        except (PenstockError, ValueError) as error:
            return str(error) or type(error).__name__
    return None


def _store_error(done: str, path: Path, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    text = f"state file {path} cannot be {done}: {reason}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(text, hint="make room; the content before it is kept")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(
            text,
            expected=f"a file that user {os.geteuid()} may read and write",
            hint=f"chown -R {os.geteuid()} {path.parent}",
        )
    return StoreError(text)
