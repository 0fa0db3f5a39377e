"""What others see of an index file at any instant, and what a kill at that instant leaves of it.

A writer adds keys in a process of its own; the test looks at the same bytes all the time. What it
sees in between is what a SIGKILL at that instant would leave behind.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock.store import OS_FILES
from penstock.store.index_files import HEADER_BYTES, IndexShape
from penstock.store.key_index import KeyIndex
from penstock.store.segments import SegmentMaps

SLOTS, UNITS = 8, 400_000
NOW = 1_700_000_000_000
LOOKS = 60_000
WRITER = f"""
import sys
from penstock.store import OS_FILES
from penstock.store.index_files import IndexShape
from penstock.store.key_index import KeyIndex
from penstock.store.segments import SegmentMaps

index = KeyIndex(OS_FILES, sys.argv[1], IndexShape({SLOTS}, {UNITS}), SegmentMaps(OS_FILES, 4))
index.add((1,), 1, {NOW})
print("ready", flush=True)
way = sys.argv[2]
for number in range(2, {UNITS} - 32, 16):
    entries = [(key, key, {NOW}) for key in range(number, number + 16)]
    if way == "many":
        index.add_many(entries)
    elif way == "by columns":
        index.add_columns(range(number, number + 16), range(number, number + 16), {NOW})
    else:
        for hashed, position, timestamp in entries:
            index.add((hashed,), position, timestamp)
"""


@pytest.fixture(params=["one by one", "many", "by columns"])
def live_file(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[mmap.mmap]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), str(request.param)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        (path,) = tmp_path.iterdir()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            yield mapped
        writer.kill()


def test_header_and_slots_are_whole_at_every_instant(live_file: mmap.mmap) -> None:
    count_at, slots = HEADER_BYTES - 4, struct.Struct(f">{SLOTS}i")
    last_count, last_slots = 2, (0,) * SLOTS
    for _ in range(LOOKS):
        count = int.from_bytes(live_file[count_at:HEADER_BYTES], "big")
        assert last_count <= count <= UNITS, "a count was cleared while it was changed"
        now = slots.unpack(live_file[HEADER_BYTES : HEADER_BYTES + slots.size])
        for before, after in zip(last_slots, now, strict=True):
            assert before <= after < UNITS, "a slot lost its chain while it was changed"
        last_count, last_slots = count, now
    assert last_count > 2, "the writer was not seen at work"


def test_the_first_key_of_a_file_is_found_by_its_time(tmp_path: Path) -> None:
    """Its seconds count from the end of the file before, which may be long ago."""
    index = KeyIndex(OS_FILES, str(tmp_path), IndexShape(8, 3), SegmentMaps(OS_FILES, 4))
    a_day_later = NOW + 86_400_000
    index.add((1,), 100, NOW)
    index.add((2,), 200, NOW)
    index.add((3,), 300, a_day_later)
    assert list(index.find(3, a_day_later, a_day_later)) == [300]
    index.close()


def test_messages_are_found_although_the_clock_went_back(tmp_path: Path) -> None:
    index = KeyIndex(OS_FILES, str(tmp_path), IndexShape(8, 3), SegmentMaps(OS_FILES, 4))
    for number, seconds in enumerate((0, 40, 20, 5), 1):
        index.add((number,), number * 100, NOW + seconds * 1000)
    for number, seconds in enumerate((0, 40, 20, 5), 1):
        stored_ms = NOW + seconds * 1000
        assert list(index.find(number, stored_ms, stored_ms)) == [number * 100]
    index.close()


def add_one_by_one(index: KeyIndex, keys: range) -> None:
    for key in keys:
        index.add((key,), key, NOW)


def add_together(index: KeyIndex, keys: range) -> None:
    index.add(list(keys), keys[-1], NOW)


def add_many(index: KeyIndex, keys: range) -> None:
    index.add_many([(key, key, NOW) for key in keys])


def add_columns(index: KeyIndex, keys: range) -> None:
    index.add_columns(keys, keys, NOW)


@pytest.mark.parametrize("add", [add_one_by_one, add_together, add_many, add_columns])
def test_a_slot_never_leads_to_a_unit_that_is_not_there_yet(
    tmp_path: Path, add: Callable[[KeyIndex, range], None]
) -> None:
    """Looked at after each line of the code that adds keys, as a kill there would leave it."""
    index = KeyIndex(OS_FILES, str(tmp_path), IndexShape(8, 400), SegmentMaps(OS_FILES, 4))
    index.add((1,), 1, NOW)
    (path,) = tmp_path.iterdir()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        data = path.read_bytes()
        for slot, number in enumerate(struct.unpack_from(">8i", data, HEADER_BYTES)):
            if number:
                hashed, position = struct.unpack_from(">iq", data, HEADER_BYTES + 32 + number * 20)
                assert hashed % 8 == slot, "a slot leads to what is no unit of it"
                assert position > 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.endswith("key_index.py"):
            look()
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        add(index, range(2, 26))
    finally:
        sys.settrace(before)
    assert looks > 10
    index.close()


@pytest.mark.parametrize("way", ["one by one", "many"])
def test_a_clock_set_back_by_hours_hides_no_message(tmp_path: Path, way: str) -> None:
    index = KeyIndex(OS_FILES, str(tmp_path), IndexShape(8, 6), SegmentMaps(OS_FILES, 4))
    hour = 3_600_000
    times = [NOW, NOW + 1000, NOW - 6 * hour, NOW - 6 * hour + 5000, NOW - 5 * hour, NOW - 4 * hour]
    times += [NOW - 4 * hour + 1, NOW + 2 * hour, NOW - 4 * hour + 2]
    entries = [(number, number * 100, stored) for number, stored in enumerate(times, 1)]
    if way == "many":
        index.add((entries[0][0],), *entries[0][1:])
        index.add_many(entries[1:])
    else:
        for hashed, position, stored in entries:
            index.add((hashed,), position, stored)
    assert len(index.headers) == 2
    for hashed, position, stored in entries:
        for begin, end in ((stored, stored), (stored - 10, 1 << 60), (0, stored + 10)):
            assert position in index.find(hashed, begin, end), (hashed, begin, end)
    index.close()
