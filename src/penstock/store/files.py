"""What the store needs of a file system, so that another one can stand in for it.

``segments.OS_FILES`` is the real one. A test hands in its own to cut, tear, reorder or refuse what
the store writes; the store must come back from every state such a layer leaves behind.

The contract, which a fake must keep too:

* ``write`` goes to the page cache: it survives the death of the process, not of the machine. It
  may write less than it was given, and raises ``OSError`` (``ENOSPC`` among others).
* What was written before ``sync`` of the same file returned survives the machine. Unsynced writes
  may reach the disk in any order, in part, or not at all.
* A new or removed name survives the machine after ``sync_dir`` of its directory.
* ``map`` sees every ``write`` to the same file at once, also those of other descriptors.
* Stores through ``map_writable`` behave like ``write`` of single pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview

PAGE_BYTES = 4096


class FileEntry(NamedTuple):
    """A name in a directory."""

    name: str
    size: int
    is_dir: bool
    modified_ns: int


class DiskSpace(NamedTuple):
    """Bytes of the file system that a path is on."""

    total: int
    available: int

    @property
    def used_ratio(self) -> float:
        """The share in use, 0 to 1; a file system that tells nothing counts as empty."""
        return 1 - self.available / self.total if self.total > 0 else 0.0


class WritableMap(Protocol):
    """A whole file as memory that can be stored to."""

    @property
    def view(self) -> memoryview:
        """The bytes of the file."""

    def sync(self) -> None:
        """Return when everything stored so far is on the disk."""

    def close(self) -> None:
        """Give the memory back; views that are still out stay valid."""


class FileLayer(Protocol):
    """Files by path and descriptor; every method may raise ``OSError``."""

    def list_dir(self, path: str) -> list[FileEntry]:
        """What is in a directory, in no order; nothing if there is no such directory."""

    def stat(self, path: str) -> FileEntry | None:
        """One name, or None if there is nothing of that name."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, unless they are there."""

    def create(self, path: str, size: int) -> int:
        """A new file of ``size`` zero bytes that take no room yet, open for writing."""

    def open(self, path: str, *, write: bool = False) -> int:
        """An existing file as a descriptor."""

    def close(self, descriptor: int) -> None:
        """Give a descriptor back."""

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer at the end of the file."""

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one behind the other in one call; return how many bytes went in."""

    def clear(self, descriptor: int, start: int, end: int) -> None:
        """Make the bytes from ``start`` to ``end`` zero; what is a hole stays one."""

    def data_ranges(self, descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
        """The parts between ``start`` and ``end`` that are no holes; all of it where unknown."""

    def is_same_file(self, descriptor: int, path: str) -> bool:
        """Whether ``path`` still names the file that is open as ``descriptor``."""

    def sync(self, descriptor: int) -> None:
        """Return when the file's bytes are on the disk."""

    def sync_dir(self, path: str) -> None:
        """Return when the names in a directory are on the disk."""

    def map(self, descriptor: int, size: int) -> memoryview:
        """A file as read-only memory; the descriptor may be closed, slices keep the memory."""

    def map_writable(self, descriptor: int, size: int) -> WritableMap:
        """A file as writable memory; the map owns the descriptor from now on."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""

    def remove(self, path: str) -> None:
        """Remove a file; open descriptors and maps keep its bytes."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""

    def disk_space(self, path: str) -> DiskSpace:
        """Room on the file system of ``path``."""

    def is_in_memory(self, path: str) -> bool:
        """Whether the file system of ``path`` is memory, as a tmpfs."""

    def lock(self, path: str) -> int:
        """Take the exclusive lock of a file for this process; ``BlockingIOError`` if taken."""

    def unlock(self, token: int) -> None:
        """Give the lock back."""

    def boot_id(self) -> str:
        """A text that is the same until the machine starts anew; empty where unknown."""

    def process_id(self) -> int:
        """The number of this process."""

    def memory_bytes(self) -> int:
        """Physical memory of the machine."""
