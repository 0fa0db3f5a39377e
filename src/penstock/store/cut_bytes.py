"""What recovery cuts off the log is kept: ``penstock.cut/<log position>``.

A torn record at the end of the log is worth nothing. But whether bytes behind the end are only that
cannot always be known, and what was cleared cannot be looked at any more. RocketMQ ignores the
directory; an operator may delete it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.store.files import FileLayer
from penstock.store.segments import NAME_DIGITS, write_fully

CUT_DIRECTORY: Final = "penstock.cut"
_CHUNK: Final = 1 << 20
_MAX_SAME: Final = 1_000


def keep_bytes(
    files: FileLayer, root: str, source: str, base: int, ranges: Iterable[tuple[int, int]]
) -> str | None:
    """Copy parts of the segment at ``base`` to a new file, which starts with the first of them.

    Returns its path when it is on the disk; None if there is nothing but zeros to keep.
    """
    descriptor, kept, first = -1, None, 0
    reading = files.open(source)
    try:
        for start, end in ranges:
            for at in range(start, end, _CHUNK):
                chunk = files.read(reading, min(_CHUNK, end - at), at)
                content = chunk.rstrip(b"\0")
                if not content:
                    continue
                if descriptor < 0:
                    kept, first = _free_name(files, root, f"{base + at:0{NAME_DIGITS}d}"), at
                    descriptor = files.create(kept, 0)
                write_fully(files, descriptor, (content,), at - first, len(content))
        if descriptor >= 0:
            files.sync(descriptor)
            files.sync_dir(f"{root}/{CUT_DIRECTORY}")
    except OSError:
        if kept is not None:
            files.remove(kept)
        raise
    finally:
        files.close(reading)
        if descriptor >= 0:
            files.close(descriptor)
    return kept


def _free_name(files: FileLayer, root: str, name: str) -> str:
    directory = f"{root}/{CUT_DIRECTORY}"
    if files.stat(directory) is None:
        files.make_dir(directory)
        files.sync_dir(root)
    for number in range(_MAX_SAME):
        path = f"{directory}/{name}" + (f".{number}" if number else "")
        if files.stat(path) is None:
            return path
    raise FileExistsError(f"{directory} has {_MAX_SAME} files called {name}")
