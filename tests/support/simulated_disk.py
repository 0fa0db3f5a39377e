"""The disk of a machine that may die: what readers see, and what would be left.

Each file has its bytes as processes see them (the page cache) and as they are on the disk, and the
changes in between; so have directories with their names. ``FaultyFiles`` is the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from penstock.store.files import PAGE_BYTES


class File:
    """A file: what its readers see, what the disk has, and what is on its way there."""

    def __init__(self, data: bytearray, on_disk: bytearray, modified_ns: int) -> None:
        self.data = data
        self.on_disk = on_disk
        self.pending: list[tuple[int, bytes | int]] = []
        """Changes not synced yet: bytes at a position, or a new length (position 0)."""
        self.is_mapped_writable = False
        self.modified_ns = modified_ns

    def change(self, position: int, content: bytes) -> None:
        if not content:
            return  # writing nothing behind the end makes no file longer
        end = position + len(content)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = content
        self.pending.append((position, content))

    def resize(self, size: int) -> None:
        self.data.extend(bytes(size - len(self.data)))
        self.pending.append((0, size))

    def sync(self) -> None:
        self._apply(self.pending)
        self.pending = []
        if self.is_mapped_writable:
            self.on_disk[:] = self.data

    def lose(self, random: Random) -> None:
        """What a failed sync does: some changes reached the disk, the rest is not tried again.

        Lengths do: a journal that failed would have ended all writing to the file system.
        """
        lengths = [change for change in self.pending if isinstance(change[1], int)]
        self._apply([*lengths, *_survivors(self.pending, random)])
        self.pending = []

    def after_process_crash(self) -> File:
        # Readers of the dead process may still hold views of the old buffer.
        copy = File(bytearray(self.data), bytearray(self.on_disk), self.modified_ns)
        copy.pending = self.pending + self._stored_pages()
        return copy

    def after_machine_crash(self, random: Random) -> File:
        self.pending += self._stored_pages()
        self._apply(_survivors(self.pending, random))
        self.pending = []
        return File(bytearray(self.on_disk), self.on_disk, self.modified_ns)

    def _stored_pages(self) -> list[tuple[int, bytes | int]]:
        """What was stored through a map, as writes of whole pages."""
        if not self.is_mapped_writable:
            return []
        pages: list[tuple[int, bytes | int]] = []
        for start in range(0, len(self.data), PAGE_BYTES):
            page = bytes(self.data[start : start + PAGE_BYTES])
            if page != self.on_disk[start : start + PAGE_BYTES]:
                pages.append((start, page))
        return pages

    def _apply(self, changes: Sequence[tuple[int, bytes | int]]) -> None:
        disk = self.on_disk
        for position, content in changes:
            end = content if isinstance(content, int) else position + len(content)
            if end > len(disk):
                disk.extend(bytes(end - len(disk)))
            if not isinstance(content, int):
                disk[position:end] = content


def _survivors(
    changes: Sequence[tuple[int, bytes | int]], random: Random
) -> list[tuple[int, bytes | int]]:
    """The changes, and parts of changes, that a dying machine put on the disk."""
    mood = random.randrange(4)
    if mood == 0:
        return []
    if mood == 1:
        return list(changes)
    if mood == 2:
        return list(changes[: random.randint(0, len(changes))])
    kept: list[tuple[int, bytes | int]] = []
    for position, content in changes:
        fate = random.randrange(3)
        if fate == 0:
            continue
        if fate == 1 or isinstance(content, int):
            kept.append((position, content))
            continue
        start = random.choice((0, random.randint(0, len(content))))
        end = random.choice((len(content), random.randint(start, len(content))))
        kept.append((position + start, content[start:end]))
    return kept


class Directory:
    """Names: as the process sees them, as the disk has them, and the changes in between."""

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.on_disk: dict[str, File | Directory] = {}
        self.pending: list[tuple[str | None, str | None, File | Directory | None]] = []
        """A name that went, a name that came and what it is; a rename is both at once."""

    def change(
        self, gone: str | None, come: str | None = None, node: File | Directory | None = None
    ) -> None:
        self.pending.append((gone, come, node))
        _rename(self.names, gone, come, node)

    def sync(self) -> None:
        self.on_disk = dict(self.names)
        self.pending = []

    def after_process_crash(self) -> Directory:
        copies: dict[int, File | Directory] = {}

        def copy_of(node: File | Directory) -> File | Directory:
            if id(node) not in copies:
                copies[id(node)] = node.after_process_crash()
            return copies[id(node)]

        copy = Directory()
        copy.names = {name: copy_of(node) for name, node in self.names.items()}
        copy.on_disk = {name: copy_of(node) for name, node in self.on_disk.items()}
        copy.pending = [
            (gone, come, None if node is None else copy_of(node))
            for gone, come, node in self.pending
        ]
        return copy

    def after_machine_crash(self, random: Random) -> Directory:
        mood = random.randrange(4)
        for change in self.pending:
            if mood == 1 or (mood >= 2 and random.randrange(2)):
                _rename(self.on_disk, *change)
        copy = Directory()
        for name, node in self.on_disk.items():
            copy.names[name] = copy.on_disk[name] = node.after_machine_crash(random)
        return copy


def _rename(
    names: dict[str, File | Directory],
    gone: str | None,
    come: str | None,
    node: File | Directory | None,
) -> None:
    if gone is not None:
        names.pop(gone, None)
    if come is not None and node is not None:
        names[come] = node


class SimulatedDisk:
    """The files of one machine, and who holds their locks."""

    def __init__(self, *, boot: int = 1, now_ns: Callable[[], int] = lambda: 0) -> None:
        self.root = Directory()
        self.boot = boot
        self.now_ns = now_ns
        self.locks: dict[str, object] = {}
        self.used_ratio = 0.1
        """What ``disk_space`` tells."""
        self.free_bytes: int | None = None
        """Bytes that can still be written; None for as many as you like."""
        self.has_failed_syncs = False
        """Whether readers may see what the disk has not, and no later sync puts there."""

    def after_process_crash(self) -> SimulatedDisk:
        """The same machine without its processes."""
        disk = self._successor(self.root.after_process_crash(), self.boot)
        disk.has_failed_syncs = self.has_failed_syncs
        return disk

    def after_machine_crash(self, random: Random) -> SimulatedDisk:
        """The machine after it lost power and was started anew."""
        return self._successor(self.root.after_machine_crash(random), self.boot + 1)

    def _successor(self, root: Directory, boot: int) -> SimulatedDisk:
        disk = SimulatedDisk(boot=boot, now_ns=self.now_ns)
        disk.root = root
        disk.used_ratio = self.used_ratio
        disk.free_bytes = self.free_bytes
        return disk
