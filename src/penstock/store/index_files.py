"""The files of the key index from outside: which there are, and how large their parts are."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.store.files import FileEntry, FileLayer
from penstock.store.segments import adopted_size, usual_size

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
UNIT_BYTES: Final = 20
NAME_DIGITS: Final = 17


class IndexShape(NamedTuple):
    """How many slots and units every file of an index has."""

    slots: int
    units: int

    @property
    def file_bytes(self) -> int:
        """The size of a file of this shape."""
        return HEADER_BYTES + self.slots * SLOT_BYTES + self.units * UNIT_BYTES


def find_index_files(files: FileLayer, directory: str) -> tuple[list[FileEntry], list[str]]:
    """The index files of a directory, oldest first, and the names that are none."""
    entries, others = [], []
    for entry in files.list_dir(directory):
        if entry.is_dir or len(entry.name) != NAME_DIGITS or not entry.name.isdigit():
            others.append(entry.name)
        else:
            entries.append(entry)
    return sorted(entries), others


def index_shape(
    entries: list[FileEntry],
    directory: str,
    slots: int | None,
    units: int | None,
    default: IndexShape,
) -> IndexShape:
    """The shape of the files found, or the configured one, or the default.

    Files do not state their shape. A file of another size than configured is refused; where
    nothing is configured, RocketMQ's four units for each slot are assumed.
    """
    shape = IndexShape(slots or default.slots, units or default.units)
    entries = [entry for entry in entries if entry.size]
    if not entries:
        return shape
    size = usual_size([entry.size for entry in entries])
    if slots is None and units is None and size != shape.file_bytes:
        count, rest = divmod(size - HEADER_BYTES, SLOT_BYTES + 4 * UNIT_BYTES)
        if rest == 0 and count > 0:
            shape = IndexShape(count, 4 * count)
    elif slots is not None or units is not None:
        adopted_size(size, shape.file_bytes, "maxHashSlotNum and maxIndexNum", directory)
    for entry in entries:
        if entry.size != shape.file_bytes:
            raise StoreDamaged(
                f"{directory}/{entry.name} has {entry.size} bytes",
                expected=f"{shape.file_bytes}: {shape.slots} slots and {shape.units} keys",
                hint="set maxHashSlotNum and maxIndexNum to the values it was written with",
            )
    return shape
