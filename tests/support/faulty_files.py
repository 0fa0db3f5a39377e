"""A file system in memory that fails where a real one may: for tests of everything that must last.

`SimulatedDisk` is the machine. `FaultyFiles` is one process on it, a `penstock.store.FileLayer` to
hand to a store. It can die at any operation, refuse, run out of room and write less than asked.

    files = FaultyFiles(disk, random)
    files.crash_after = 17                   # the 18th change of anything raises Crashed
    ...
    disk = disk.after_process_crash()        # every byte written is there, nothing staged
    disk = disk.after_machine_crash(random)  # only what was synced is there for sure

After the death of a machine every change since the last sync of its file survives whole, in part
or not at all, one independently of the other; names likewise, until their directory was synced.
Everything random comes from the generator handed in, so a seed gives the same faults again.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

from tests.support.simulated_disk import Directory, File, SimulatedDisk

from penstock.store.files import Buffer, DiskSpace, FileEntry, WritableMap

__all__ = ["Crashed", "FaultyFiles", "SimulatedDisk"]

_LOCK_TEXT = b"lock"


class Crashed(BaseException):
    """The process died here; no ordinary ``except`` may keep it alive."""


class FaultyFiles:
    """One process's way to a `SimulatedDisk`; implements `penstock.store.FileLayer`."""

    def __init__(self, disk: SimulatedDisk, random: Random | None = None) -> None:
        self.disk = disk
        self._random = random or Random(0)
        self._open: dict[int, File] = {}
        self._next_descriptor = 3
        self.is_dead = False
        self.operations = 0
        """Changes made so far."""
        self.crash_after: int | None = None
        """Changes still allowed; the next one kills the process, perhaps half done."""
        self.failing_syncs = 0
        """How many syncs fail from now on."""
        self.short_writes = False

    # Faults

    def _live(self) -> None:
        if self.is_dead:
            raise Crashed

    def _change(self) -> bool:
        """Count a change; True if it is the one the process dies of."""
        self._live()
        self.operations += 1
        if self.crash_after is None:
            return False
        self.crash_after -= 1
        return self.crash_after < 0

    def _die(self) -> None:
        self.is_dead = True
        raise Crashed

    def _change_or_die(self) -> None:
        """Count a change that happens as a whole or not at all."""
        if self._change():
            self._die()

    # Finding

    def _find(self, path: str) -> File | Directory | None:
        node: File | Directory | None = self.disk.root
        for name in _names(path):
            if not isinstance(node, Directory):
                return None
            node = node.names.get(name)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        *parents, name = _names(path)
        parent = self._find("/".join(parents))
        if not isinstance(parent, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return parent, name

    def list_dir(self, path: str) -> list[FileEntry]:
        self._live()
        node = self._find(path)
        if not isinstance(node, Directory):
            return []
        entries = [_entry(name, child) for name, child in node.names.items()]
        # A real directory has no order either.
        self._random.shuffle(entries)
        return entries

    def stat(self, path: str) -> FileEntry | None:
        self._live()
        node = self._find(path)
        return None if node is None else _entry((_names(path) or ["/"])[-1], node)

    # Names

    def make_dir(self, path: str) -> None:
        self._live()
        node = self.disk.root
        for name in _names(path):
            child = node.names.get(name)
            if child is None:
                self._change_or_die()
                child = Directory()
                node.change(None, name, child)
            if not isinstance(child, Directory):
                raise FileExistsError(errno.EEXIST, "a file has that name", path)
            node = child

    def create(self, path: str, size: int) -> int:
        dies = self._change()
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        if dies and self._random.randrange(2):
            self._die()
        file = File(bytearray(), bytearray(), self.disk.now_ns())
        parent.change(None, name, file)
        if dies and self._random.randrange(2):
            self._die()
        if size:
            file.resize(size)
        if dies:
            self._die()
        return self._descriptor(file)

    def open(self, path: str, *, write: bool = False) -> int:
        self._live()
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return self._descriptor(node)

    def _descriptor(self, file: File) -> int:
        descriptor = self._next_descriptor
        self._next_descriptor += 1
        self._open[descriptor] = file
        return descriptor

    def close(self, descriptor: int) -> None:
        # A dead process may close anything; it has no effect.
        if not self.is_dead and self._open.pop(descriptor, None) is None:
            raise OSError(errno.EBADF, f"descriptor {descriptor} is not open")

    @property
    def open_files(self) -> int:
        """Descriptors that were not given back."""
        return len(self._open)

    def rename(self, old: str, new: str) -> None:
        self._change_or_die()
        parent, old_name = self._parent(old)
        new_parent, new_name = self._parent(new)
        assert parent is new_parent, "the store renames within a directory only"
        node = parent.names.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        parent.change(old_name, new_name, node)

    def remove(self, path: str) -> None:
        self._live()
        if self._find(path) is None:
            return
        self._change_or_die()
        parent, name = self._parent(path)
        parent.change(name)

    def remove_dir(self, path: str) -> None:
        self._change_or_die()
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if node.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        parent, name = self._parent(path)
        parent.change(name)

    def sync_dir(self, path: str) -> None:
        self._change_or_die()
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._fail_sync()
        node.sync()

    # Bytes

    def _file(self, descriptor: int) -> File:
        try:
            return self._open[descriptor]
        except KeyError:
            raise OSError(errno.EBADF, f"descriptor {descriptor} is not open") from None

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        self._live()
        return bytes(self._file(descriptor).data[position : position + length])

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        dies = self._change()
        file = self._file(descriptor)
        content = b"".join(buffers)
        if dies:
            file.change(position, content[: self._random.randint(0, len(content))])
            self._die()
        size = len(content)
        if self.short_writes and size > 1 and self._random.randrange(2):
            size = self._random.randint(1, size - 1)
        size = self._take_room(size)
        file.change(position, content[:size])
        file.modified_ns = self.disk.now_ns()
        return size

    def _take_room(self, size: int) -> int:
        free = self.disk.free_bytes
        if free is None:
            return size
        if size and not free:
            raise OSError(errno.ENOSPC, "no space left on device")
        taken = min(size, free)
        self.disk.free_bytes = free - taken
        return taken

    def clear(self, descriptor: int, start: int, end: int) -> None:
        dies = self._change()
        file = self._file(descriptor)
        end = min(end, len(file.data))
        if dies:
            end = self._random.randint(start, max(start, end))
        if any(file.data[start:end]):
            file.change(start, bytes(end - start))
            file.modified_ns = self.disk.now_ns()
        if dies:
            self._die()

    def data_ranges(self, descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
        self._live()
        end = min(end, len(self._file(descriptor).data))
        return [(start, end)] if start < end else []

    def is_same_file(self, descriptor: int, path: str) -> bool:
        self._live()
        return self._find(path) is self._file(descriptor)

    def sync(self, descriptor: int) -> None:
        self._change_or_die()
        file = self._file(descriptor)
        self._fail_sync(file)
        file.sync()

    def _fail_sync(self, file: File | None = None) -> None:
        if self.failing_syncs:
            self.failing_syncs -= 1
            self.disk.has_failed_syncs = True
            if file is not None:
                file.lose(self._random)
            raise OSError(errno.EIO, "input/output error")

    # Maps

    def map(self, descriptor: int, size: int) -> memoryview:
        self._live()
        file = self._file(descriptor)
        if size > len(file.data):
            raise ValueError("mmap length is greater than file size")
        return memoryview(file.data).toreadonly()[:size]

    def map_writable(self, descriptor: int, size: int) -> WritableMap:
        self._live()
        file = self._file(descriptor)
        if size > len(file.data):
            raise ValueError("mmap length is greater than file size")
        file.is_mapped_writable = True
        return _FaultyMap(self, descriptor, memoryview(file.data)[:size])

    # The machine

    def is_in_memory(self, path: str) -> bool:
        return False

    def disk_space(self, path: str) -> DiskSpace:
        self._live()
        total = 1_000_000
        return DiskSpace(total, total - int(total * self.disk.used_ratio))

    def lock(self, path: str) -> int:
        self._live()
        if self.disk.locks.get(path, self) is not self:
            raise BlockingIOError(errno.EAGAIN, "lock is held by another process")
        descriptor = self.create(path, 0) if self._find(path) is None else self.open(path)
        if not self._file(descriptor).data:
            self.write(descriptor, (_LOCK_TEXT,), 0)
        self.disk.locks[path] = self
        return descriptor

    def unlock(self, token: int) -> None:
        self.disk.locks = {
            path: owner for path, owner in self.disk.locks.items() if owner is not self
        }
        self.close(token)

    def boot_id(self) -> str:
        return f"boot-{self.disk.boot}"

    def process_id(self) -> int:
        return 1

    def memory_bytes(self) -> int:
        return 1 << 30


class _FaultyMap:
    """A file as writable memory."""

    def __init__(self, files: FaultyFiles, descriptor: int, view: memoryview) -> None:
        self._files = files
        self._descriptor = descriptor
        self.view = view

    def sync(self) -> None:
        self._files.sync(self._descriptor)

    def close(self) -> None:
        self.view = memoryview(b"")
        self._files.close(self._descriptor)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _entry(name: str, node: File | Directory) -> FileEntry:
    if isinstance(node, Directory):
        return FileEntry(name, 0, True, 0)
    return FileEntry(name, len(node.data), False, node.modified_ns)
