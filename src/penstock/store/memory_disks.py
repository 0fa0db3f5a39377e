"""Stores in memory (tmpfs): opening one must not end the process.

Files are created with their full size and written from the front; the rest is a hole. On a disk a
hole takes no room and reads as zeros. On a tmpfs, reading one through a map takes a page, and if
the tmpfs is full the kernel ends the process with SIGBUS. Opening a store means to look behind the
end of its data, so that is refused without some room. Later, only what was written is read.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

from penstock.errors import DiskFull
from penstock.store.files import FileLayer

SPARE_BYTES: Final = 1 << 20


def check_room(files: FileLayer, root: str) -> None:
    """Raise `DiskFull` if it is not safe to look for the end of a store."""
    if files.stat(root) is None or not files.is_in_memory(root):
        return
    left = files.disk_space(root).available
    if left < SPARE_BYTES:
        raise DiskFull(
            f"{root} is in memory (tmpfs), which has {left} bytes left",
            expected=f"{SPARE_BYTES} bytes: opening a store there takes some",
            hint="make room, or copy the store to a disk",
        )


@functools.lru_cache(64)
def is_memory_device(device: int) -> bool:
    """Whether a device number is that of a tmpfs."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return False
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        if wanted in place.split()[2:3]:
            return kind.split()[:1] == ["tmpfs"]
    return False
