"""Stamps of files: whether a file is another one than when it was read.

A file of secrets is refused while others may read it, so its mode and owner count as well; the time
of the last change of the entry tells even files apart that were copied with their old time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

FileStamp: TypeAlias = tuple[int, int, int, int, int, int]


def file_stamp(path: Path) -> FileStamp | None:
    """The stamp of the file of that name; None without one."""
    try:
        return stamp_of(path.stat())
    except FileNotFoundError:
        return None


def stamp_of(status: os.stat_result) -> FileStamp:
    return (
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
        status.st_mode,
        status.st_uid,
    )
