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

A flipped bit may leave a file that means something else: another topic, another offset. So tables
of a server have their checksums in ``.sum`` beside them, which RocketMQ ignores: of the newest
content and of the two before it, and of these lines. It is written before the file gets its name.
Other programs change a table without it; whether one did, the caller must know.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.errors import DiskFull, PenstockError, StoreDamaged, StoreError

log = logging.getLogger(__name__)

MAX_STATE_BYTES = 1 << 30
_KEPT_SUMS = 3
_EMPTY = "the file is empty"

_SAVE_SECONDS = 1.0
"""More than lies between the checksums of a save and its file."""


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
        # For its owner alone: tables name users, and say who reads what.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
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
        for parent in reversed(path.parents):
            if not parent.exists():
                parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


OS_STATE_FILES: StateFileSystem = _OsFileSystem()


class StateFile:
    """One state table on disk. Calls block; one owner at a time."""

    def __init__(
        self, path: Path, *, files: StateFileSystem = OS_STATE_FILES, has_sums: bool = False
    ) -> None:
        """``has_sums``: keep checksums beside it, and refuse a damaged file without a backup."""
        self.path = Path(path)
        self._sums = _with_suffix(self.path, ".sum") if has_sums else None
        self.backup_path = _with_suffix(self.path, ".bak")
        self._temporary = _with_suffix(self.path, ".tmp")
        self._damaged = _with_suffix(self.path, ".damaged")
        self._files = files

    def load(
        self, check: Callable[[bytes], object] | None = None, *, may_be_changed: bool = False
    ) -> bytes | None:
        """The content, or that of the backup, or None where there is neither.

        ``check`` is given the bytes and raises ``ValueError`` or a `PenstockError` if they mean
        nothing; usually it is the parser. A file that fails it, without a backup that does not, is
        `StoreDamaged`: to start empty would forget what is still there to be repaired. Only a
        file without checksums may start empty if there is no backup at all.
        ``may_be_changed``: another program may have written it, so its checksum does not matter.
        """
        sums = None if may_be_changed or self._is_rewritten() else self._load_sums()
        data = self._read(self.path)
        trouble = self._trouble(data, check, sums)
        if data is not None and trouble is None:
            return data
        backup = self._read(self.backup_path)
        if backup is None:
            if sums is None and (data is None or trouble == _EMPTY):
                return None  # a new store, or what a crash of another program left
            if data is None:
                log.warning("state file is gone, starting empty file=%s", self.path)
                return None
            if self._sums is None:
                # Offsets of a client: RocketMQ's starts anew, and so may this one.
                self._put_aside()
                log.error(
                    "state file unreadable and no backup, starting empty file=%s kept=%s error=%s",
                    self.path,
                    self._damaged,
                    trouble,
                )
                return None
            raise StoreDamaged(
                f"{self.path} cannot be read ({trouble}), and there is no backup",
                hint="repair it, or move it away to start empty",
            )
        trouble_of_backup = self._trouble(backup, check, sums)
        if trouble_of_backup is None:
            if data is not None:
                self._put_aside()
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
            before = self._content(self.path)
            if self._sums is not None:
                self._save_sums(self._sums, data, before)
            if before:
                self._files.replace(self.path, self.backup_path)
                # Before the new file takes the name: the backup must not be the one that is lost.
                self._files.sync_directory(self.path.parent)
            self._files.replace(self._temporary, self.path)
            self._files.sync_directory(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(self._temporary)
            raise _store_error("written", self.path, error) from error

    def _content(self, path: Path) -> bytes:
        # An empty file is what a crash of another program left; the backup is worth more.
        try:
            return self._files.read(path)
        except FileNotFoundError:
            return b""

    def _save_sums(self, path: Path, data: bytes, before: bytes) -> None:
        """Note the checksums of the new content and of those that file and backup may have."""
        sums = [zlib.crc32(data), *([zlib.crc32(before)] if before else [])]
        sums += [one for one in self._load_sums() or [] if one not in sums]
        lines = "".join(f"{one:08x}\n" for one in sums[:_KEPT_SUMS]).encode()
        fresh = _with_suffix(path, ".tmp")
        self._files.write(fresh, lines + b"%08x\n" % zlib.crc32(lines))
        self._files.replace(fresh, path)

    def _load_sums(self) -> list[int] | None:
        """The checksums beside the file; None if there are none, or not whole."""
        if self._sums is None:
            return None
        content = self._content(self._sums)
        lines, own = content[:-9], content[-9:]
        if not lines or own != b"%08x\n" % zlib.crc32(lines):
            return None
        return [int(line, 16) for line in lines.split()]

    def _is_rewritten(self) -> bool:
        """Whether the file was written after its checksums, as only another program does.

        A program that was killed leaves no other trace. Rot changes bytes, but no times.
        """
        if self._sums is None:
            return False
        try:
            return self.path.stat().st_mtime > self._sums.stat().st_mtime + _SAVE_SECONDS
        except OSError:
            return False

    def _trouble(
        self,
        data: bytes | None,
        check: Callable[[bytes], object] | None,
        sums: list[int] | None,
    ) -> str | None:
        """What is wrong with ``data``; None: nothing, or it is not there at all."""
        trouble = _trouble(data, None)
        is_known = data is None or sums is None or zlib.crc32(data) in sums
        if trouble is None and not is_known:
            return f"changed, but not by this program; if it was meant, delete {self._sums}"
        return trouble or _trouble(data, check)

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
        return _EMPTY
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
