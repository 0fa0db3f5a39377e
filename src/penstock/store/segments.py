"""Fixed-size files, and the only module of the store that calls ``os``, ``mmap`` and ``fcntl``.

A segment is created at its full size and named with the 20-digit position of its first byte. It is
written with ``pwritev`` and read through a shared read-only map of the same file, which Linux keeps
coherent. Writing never goes through the map: on a full disk a store to a hole of a mapped file
kills the process with SIGBUS, while ``pwritev`` returns an error, which the producer gets.

Maps are kept in a bounded cache. Dropping one from the cache, and even removing its file, does not
hurt a reader that still holds a slice: the slice keeps the map, the map keeps the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ConfigError, StoreDamaged
from penstock.store.files import PAGE_BYTES, Buffer, DiskSpace, FileEntry, FileLayer, WritableMap
from penstock.store.memory_disks import is_memory_device

NAME_DIGITS: Final = 20

_sync_data = getattr(os, "fdatasync", os.fsync)
_IOV_MAX = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024
_CLEAR_CHUNK = bytes(1 << 20)
_NO_SEEK_HOLE = (errno.EINVAL, errno.ENOTSUP)


class _OsWritableMap:
    """A file mapped for reading and writing, with its descriptor."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE)
        self.view = memoryview(self._map)

    def sync(self) -> None:
        if sys.platform == "linux":
            # Linux writes pages back per file, however they became dirty; unlike mmap.flush()
            # this call does not hold the interpreter lock while the disk works.
            _sync_data(self._descriptor)
        else:
            self._map.flush()
            os.fsync(self._descriptor)

    def close(self) -> None:
        self.view = memoryview(b"")
        del self._map
        os.close(self._descriptor)


class OsFiles:
    """The operating system's files."""

    def list_dir(self, path: str) -> list[FileEntry]:
        found: list[FileEntry] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    # One that just went, or a link to nowhere, must not hide all the others.
                    with contextlib.suppress(FileNotFoundError):
                        found.append(_file_entry(entry.name, entry.stat()))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return found

    def stat(self, path: str) -> FileEntry | None:
        try:
            return _file_entry(path.rpartition("/")[2], os.stat(path))  # noqa: PTH116 - thrice as fast
        except (FileNotFoundError, NotADirectoryError):
            return None

    def make_dir(self, path: str) -> None:
        # Messages are for the user of the broker alone, also under a lax umask.
        missing = [parent for parent in Path(path).parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(mode=0o700, exist_ok=True)
        Path(path).mkdir(mode=0o700, exist_ok=True)

    def create(self, path: str, size: int) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            Path(path).unlink()
            raise
        return descriptor

    def open(self, path: str, *, write: bool = False) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        return os.pread(descriptor, length, position)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        if len(buffers) > _IOV_MAX:
            buffers = (b"".join(buffers),)
        return os.pwritev(descriptor, buffers, position)

    def clear(self, descriptor: int, start: int, end: int) -> None:
        for begin, stop in self.data_ranges(descriptor, start, end):
            at = begin
            while at < stop:
                zeros = memoryview(_CLEAR_CHUNK)[: stop - at]
                at += os.pwrite(descriptor, zeros, at)

    def data_ranges(self, descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        while start < end:
            try:
                start = os.lseek(descriptor, start, os.SEEK_DATA)
                stop = min(end, os.lseek(descriptor, start, os.SEEK_HOLE))
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # nothing but holes up to the end of the file
                if error.errno not in _NO_SEEK_HOLE:
                    raise
                stop = end
            if start < stop:
                ranges.append((start, stop))
            start = stop
        return ranges

    def is_same_file(self, descriptor: int, path: str) -> bool:
        held = os.fstat(descriptor)
        return _identity(path) == (held.st_dev, held.st_ino)

    def sync(self, descriptor: int) -> None:
        _sync_data(descriptor)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def map(self, descriptor: int, size: int) -> memoryview:
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))

    def map_writable(self, descriptor: int, size: int) -> WritableMap:
        return _OsWritableMap(descriptor, size)

    def rename(self, old: str, new: str) -> None:
        Path(old).replace(new)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def remove_dir(self, path: str) -> None:
        Path(path).rmdir()

    def disk_space(self, path: str) -> DiskSpace:
        numbers = os.statvfs(path)
        # What only root may use counts as used, as in RocketMQ (getUsableSpace).
        used = numbers.f_blocks - numbers.f_bfree
        return DiskSpace(
            (used + numbers.f_bavail) * numbers.f_frsize, numbers.f_bavail * numbers.f_frsize
        )

    def is_in_memory(self, path: str) -> bool:
        try:
            return is_memory_device(os.stat(path).st_dev)  # noqa: PTH116 - as `stat`
        except OSError:
            return False

    def lock(self, path: str) -> int:
        # A process never conflicts with its own POSIX locks, and closing any descriptor of a file
        # drops them all: whether we hold it already must be known before the file is opened.
        with _held_locks_guard:
            entry = _identity(path)
            if entry is not None and any(entry == held.identity for held in _held_locks.values()):
                raise BlockingIOError(errno.EAGAIN, "lock is held by this process")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # A record lock on the first byte is what Java's FileChannel.tryLock takes.
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
                if os.fstat(descriptor).st_size != len(_LOCK_TEXT):
                    os.pwrite(descriptor, _LOCK_TEXT, 0)
                identity = _identity(path)
                if identity is None:
                    raise FileNotFoundError(errno.ENOENT, "lock file was removed", path)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise BlockingIOError(error.errno, "lock is held by a process") from error
                raise
            try:
                directory = _lock_directory(path.rpartition("/")[0])
            except OSError:
                os.close(descriptor)
                raise
            _held_locks[descriptor] = _HeldLock(identity, directory)
        return descriptor

    def unlock(self, token: int) -> None:
        with _held_locks_guard:
            held = _held_locks.pop(token)
            os.close(token)
            if held.directory is not None:
                os.close(held.directory)

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def process_id(self) -> int:
        return os.getpid()

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _HeldLock(NamedTuple):
    """A lock of this process."""

    identity: tuple[int, int]
    """Of the lock file: its device and number."""
    directory: int | None
    """A descriptor of the directory, which is locked, too."""


_LOCK_TEXT = b"lock"
_held_locks: dict[int, _HeldLock] = {}
_held_locks_guard = threading.Lock()


def _lock_directory(path: str) -> int | None:
    """Lock the directory itself: the lock file may be removed while its holder runs.

    RocketMQ knows nothing of this lock, and some file systems do not have it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BlockingIOError(error.errno, "its directory is locked by a process") from error
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _identity(path: str) -> tuple[int, int] | None:
    try:
        numbers = os.stat(path)  # noqa: PTH116  # a Path costs more than the call; appends wait
    except FileNotFoundError:
        return None
    return numbers.st_dev, numbers.st_ino


OS_FILES: Final = OsFiles()


def _file_entry(name: str, numbers: os.stat_result) -> FileEntry:
    # S_IFDIR without the stat module: the store has one module for all of this.
    return FileEntry(
        name, numbers.st_size, numbers.st_mode & 0o170000 == 0o040000, numbers.st_mtime_ns
    )


def segment_path(directory: str, base: int) -> str:
    """Where the segment is that starts at ``base``."""
    return f"{directory}/{base:020d}"


def make_durable_dir(files: FileLayer, path: str) -> None:
    """Create a directory whose name survives a crash of the machine."""
    missing = [path]
    while (parent := _parent(missing[-1])) != missing[-1] and files.stat(parent) is None:
        missing.append(parent)
    files.make_dir(path)
    for made in reversed(missing):
        # Not only if it was missing: who made it may have died before this point. A parent that
        # we may not even list was made by another user, long ago.
        with contextlib.suppress(PermissionError):
            files.sync_dir(_parent(made))


def _parent(path: str) -> str:
    return str(Path(path).parent)


def write_fully(
    files: FileLayer, descriptor: int, buffers: Sequence[Buffer], position: int, size: int
) -> None:
    """Write ``size`` bytes, in one call unless the system takes less of them."""
    written = files.write(descriptor, buffers, position)
    if written == size:
        return
    rest = memoryview(b"".join(buffers))
    while written < size:
        step = files.write(descriptor, (rest[written:],), position + written)
        if step <= 0:
            raise OSError(errno.EIO, f"write of {size - written} bytes wrote {step}")
        written += step


def rewrite(files: FileLayer, path: str, start: int, end: int) -> None:
    """Write what a file holds from ``start`` to ``end`` once more, and sync it.

    If a sync failed, the system may have forgotten that the pages were never written and call
    them clean. So a second sync that succeeds proves nothing about such a file.

    Reads, not a map: a look at a hole through a map takes room on some file systems, and where
    there is none left it ends the process.
    """
    descriptor = files.open(path, write=True)
    try:
        for begin, stop in files.data_ranges(descriptor, start, end):
            for at in range(begin, stop, len(_CLEAR_CHUNK)):
                chunk = files.read(descriptor, min(len(_CLEAR_CHUNK), stop - at), at)
                for first, last in _used_pages(chunk):
                    write_fully(files, descriptor, (chunk[first:last],), at + first, last - first)
        files.sync(descriptor)
    finally:
        files.close(descriptor)


def _used_pages(chunk: bytes) -> list[tuple[int, int]]:
    """The parts of a chunk that are not just zeros, by pages: what is a hole stays one."""
    used: list[tuple[int, int]] = []
    for first in range(0, len(chunk), PAGE_BYTES):
        last = min(first + PAGE_BYTES, len(chunk))
        if chunk[first:last] != _CLEAR_CHUNK[: last - first]:
            if used and used[-1][1] == first:
                first = used.pop()[0]
            used.append((first, last))
    return used


class SegmentMaps:
    """Read-only maps of segments, the most recently used ones, at most ``limit``."""

    def __init__(self, files: FileLayer, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._views: dict[str, memoryview] = {}

    def view(self, path: str, size: int) -> memoryview | None:
        """The bytes of a segment, or None if there is no such file."""
        views = self._views
        view = views.pop(path, None)
        if view is None:
            view = self._map(path, size)
            if view is None:
                return None
            while len(views) >= self._limit:
                del views[next(iter(views))]
        views[path] = view
        return view

    def _map(self, path: str, size: int) -> memoryview | None:
        try:
            descriptor = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            return self._files.map(descriptor, size)
        except ValueError as error:
            raise StoreDamaged(f"{path} cannot be mapped", expected=f"{size} bytes") from error
        finally:
            self._files.close(descriptor)

    def forget(self, path: str) -> None:
        """Drop a segment that is removed or cut; slices of it stay valid."""
        self._views.pop(path, None)

    def forget_below(self, prefix: str) -> None:
        """Drop the segments whose paths begin with ``prefix``."""
        for path in [path for path in self._views if path.startswith(prefix)]:
            del self._views[path]

    def clear(self) -> None:
        """Drop every map."""
        self._views.clear()

    def __len__(self) -> int:
        return len(self._views)


class SegmentList(NamedTuple):
    """The segments found in a directory, oldest first."""

    bases: list[int]
    size: int
    stray: list[str]
    """Files that hold nothing the store may use: without a byte, or behind a gap."""


def find_segments(
    files: FileLayer,
    directory: str,
    *,
    size: int | None,
    default: int = 0,
    after_crash: bool = False,
) -> SegmentList:
    """The segments in ``directory``, checked: names, sizes, no gaps.

    The size is ``size``, else that of the files, else ``default``. Anything else is
    refused: the store must not start beside data that it cannot read. Only a last file without any
    byte is normal; a crash leaves one that died while it was created. A machine that crashed may
    also have forgotten a new file and kept the one behind it: ``after_crash`` what follows a gap
    is listed as stray, and recovery must know whether anything was lost.
    """
    found = _named_segments(files, directory)
    stray: list[str] = []
    while found and found[-1][1].size == 0:
        stray.append(f"{directory}/{found.pop()[1].name}")
        if not after_crash:
            break
    if not found:
        return SegmentList([], size or default, stray)
    actual = size or usual_size([entry.size for _, entry in found if entry.size])
    first = found[0][0]
    for index, (base, entry) in enumerate(found):
        expected = first + index * actual
        # Only a size we know can tell a file cut short by a crash from one made otherwise.
        is_cut = entry.size == 0 or (size is not None and entry.size < actual)
        if after_crash and (is_cut or base > expected) and base % actual == 0:
            stray += [f"{directory}/{later.name}" for _, later in found[index:]]
            return SegmentList([base for base, _ in found[:index]], actual, stray)
        if entry.size != actual:
            raise StoreDamaged(
                f"{directory}/{entry.name} has {entry.size} bytes",
                expected=f"{actual}, like every segment here",
                hint="restore the file from a copy",
            )
        if base != expected or base % actual:
            raise StoreDamaged(
                f"{directory} has no segment at position {expected} but one at {base}",
                expected=f"names {actual} apart",
                hint="restore the missing file, or move the ones behind the gap away",
            )
    return SegmentList([base for base, _ in found], actual, stray)


def _named_segments(files: FileLayer, directory: str) -> list[tuple[int, FileEntry]]:
    found: list[tuple[int, FileEntry]] = []
    for entry in files.list_dir(directory):
        is_named = len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()
        if entry.is_dir:
            if is_named:
                raise StoreDamaged(
                    f"{directory}/{entry.name} is a directory",
                    expected="a segment of that name",
                    hint="move it elsewhere and restore the file from a copy",
                )
            continue
        if not is_named:
            raise StoreDamaged(
                f"{directory}/{entry.name} is not a segment",
                expected=f"names of {NAME_DIGITS} digits",
                hint="move the file elsewhere if it does not belong to this store",
            )
        found.append((int(entry.name), entry))
    return sorted(found)


def usual_size(sizes: Sequence[int]) -> int:
    """The size most of some files have: the others are short."""
    return max(set(sizes), key=lambda size: (sizes.count(size), size))


def adopted_size(found: int, configured: int | None, key: str, directory: str) -> int:
    """The size of the files found, unless another one was asked for."""
    if configured is not None and found != configured:
        raise ConfigError(
            f"{key} is {configured}, but the files in {directory} were made with {found}",
            expected="the size the store was created with",
            hint=f"leave {key} out to adopt the size found",
        )
    return found
