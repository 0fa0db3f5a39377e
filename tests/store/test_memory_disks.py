"""A store on a tmpfs that is full: refused with a sentence, where reading would end the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import DiskFull
from penstock.store.files import DiskSpace
from penstock.store.memory_disks import SPARE_BYTES, check_room, is_memory_device
from penstock.store.segments import OsFiles

# Runs in a namespace of its own, where it may mount; default file sizes, so with large holes.
PROGRAM = """
import subprocess, sys
from penstock.errors import DiskFull
from penstock.store import Draft, MessageStore
from penstock.store.tools import Exporter, survey, verify

root = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", root], check=True)
with MessageStore(f"{root}/store") as store:
    count = 0
    try:
        while True:
            store.append(Draft("T", count % 4, bytes(1000), b"KEYS\\1k%d\\2" % count))
            store.write()
            count += 1
    except DiskFull:
        pass
    assert store.read("T", 0, 0, max_count=10).count == 10, "what is stored is served"
for tool in (lambda at: verify("store", at), Exporter, lambda at: MessageStore(at).open()):
    try:
        tool(f"{root}/store")
    except DiskFull as error:
        print(error)
print(survey("store", f"{root}/store").problem)
"""


def can_mount() -> bool:
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


def test_a_store_on_a_full_tmpfs_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this machine lets users mount nothing")
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"{tmp_path}/store is in memory (tmpfs)") for line in lines)


class FullMemory(OsFiles):
    """A file system that is a tmpfs with a given rest."""

    left = SPARE_BYTES - 1
    is_memory = True

    def is_in_memory(self, path: str) -> bool:
        return self.is_memory

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(1 << 30, self.left)


def test_only_memory_without_room_is_refused(tmp_path: Path) -> None:
    files = FullMemory()
    with pytest.raises(DiskFull, match=f"{SPARE_BYTES - 1} bytes left"):
        check_room(files, str(tmp_path))
    check_room(files, str(tmp_path / "new"))
    files.left += 1
    check_room(files, str(tmp_path))
    files.left, files.is_memory = 0, False
    check_room(files, str(tmp_path))


def test_a_tmpfs_is_recognized() -> None:
    assert not is_memory_device(os.makedev(4095, 1))
    if "tmpfs" in Path("/proc/filesystems").read_text() and Path("/dev/shm").is_mount():
        assert OsFiles().is_in_memory("/dev/shm")
