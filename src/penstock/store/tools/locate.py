"""Which stores a directory holds: it is one itself, or has one for each broker."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.errors import InvalidArgument
from penstock.store import layout
from penstock.store.files import FileLayer
from penstock.store.segments import OS_FILES

_SIGNS = (layout.COMMIT_LOG, layout.CONSUME_QUEUE)


class FoundStore(NamedTuple):
    """A store root, and the broker it belongs to as far as its name tells."""

    name: str
    root: str


def find_stores(directory: Path | str, *, files: FileLayer = OS_FILES) -> list[FoundStore]:
    """The store roots of a store directory or a DATA directory, by name."""
    path = str(directory)
    entry = files.stat(path)
    if entry is None or not entry.is_dir:
        raise InvalidArgument(
            f"{path} is not a directory",
            expected="a store (with 'commitlog' in it) or a directory of stores",
        )
    if _is_store(path, files):
        return [FoundStore(Path(path).resolve().name, path)]
    found = [
        FoundStore(child.name, f"{path}/{child.name}")
        for child in sorted(files.list_dir(path))
        if child.is_dir and _is_store(f"{path}/{child.name}", files)
    ]
    if not found:
        raise InvalidArgument(
            f"no store in {path}",
            expected="'commitlog' in it, or in the directories right below it",
            hint="give the storePathRootDir of the broker, or the --data directory of penstock up",
        )
    return found


def _is_store(path: str, files: FileLayer) -> bool:
    names = {entry.name for entry in files.list_dir(path) if entry.is_dir}
    return not names.isdisjoint(_SIGNS)
