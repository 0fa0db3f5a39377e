"""The files of the timer wheel: their bytes, and what is found in them after every kind of loss."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from penstock.broker.timers.admission import refuse_crowded, slot_of
from penstock.errors import InvalidArgument, RequestRefused, StoreDamaged
from penstock.model.java_hash import java_hash
from penstock.protocol.recall_handles import RecallHandle, decode_handle, encode_handle
from penstock.store import OS_FILES
from penstock.store.timers.checkpoint_page import (
    CheckpointPage,
    SlotProgress,
    TimerCheckpoint,
    load_checkpoint,
)
from penstock.store.timers.timer_log import BLANK_BYTES, UNIT_BYTES, TimerLog, encode_unit
from penstock.store.timers.wheel_file import SLOT_BYTES, SLOTS, Slot, WheelFile

HASH = java_hash("TopicTest")
WRITTEN = 1_700_000_000_000
SLOT = 1_700_000_010_000
UNITS = (
    "00000034ffffffffffffffff000000010000018bcfe568000000271000000000000004000000012c8e9876410000000000000000",
    "000000340000000000000000000000050000018bcfe573b800001b58000000000000052c000001188e9876410000000000000000",
    "00000034ffffffffffffffff000000030000018bcfe5680005265c0000000000000008000000012c8e9876410000000000000000",
)


def test_units_have_the_bytes_that_apache_writes() -> None:
    message = encode_unit(-1, 1, WRITTEN, SLOT, 1024, 300, HASH)
    mark = encode_unit(0, 5, WRITTEN + 3000, SLOT, 1324, 280, HASH)
    rolled = encode_unit(-1, 3, WRITTEN, WRITTEN + 86_400_000, 2048, 300, HASH)
    assert [unit.hex() for unit in (message, mark, rolled)] == list(UNITS)


def test_a_slot_has_the_bytes_that_apache_writes(tmp_path: Path) -> None:
    wheel = WheelFile(OS_FILES, str(tmp_path / "timerwheel"), 1000)
    wheel.put(Slot(SLOT, 0, 52, 0))
    wheel.write()
    content = (tmp_path / "timerwheel").read_bytes()
    assert len(content) == SLOTS * SLOT_BYTES == 38_707_200
    at = 512_010 * SLOT_BYTES
    assert at == 16_384_320
    expected = "000000006553f10a000000000000000000000000000000340000000000000000"
    assert content[at : at + SLOT_BYTES].hex() == expected
    assert content.count(0) == len(content) - SLOT_BYTES + content[at:][:SLOT_BYTES].count(0)


def test_the_checkpoint_has_the_bytes_that_apache_writes(tmp_path: Path) -> None:
    page = CheckpointPage(OS_FILES, str(tmp_path), 1000)
    page.save(TimerCheckpoint(1794793105000, 104, 2, 1794793105555, 68), SlotProgress())
    content = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(content) == 4096
    assert content[:56].hex() == (
        "000001a1e20166680000000000000068000000000000000200000000000000020000000000000000"
        "000001a1e20168930000000000000044"
    )
    found = load_checkpoint(OS_FILES, str(tmp_path))
    assert found is not None
    assert found.is_ours
    assert found.checkpoint.queue_offset == 2


def test_a_checkpoint_of_another_program_and_a_torn_one_are_told_apart(tmp_path: Path) -> None:
    page = CheckpointPage(OS_FILES, str(tmp_path), 1000)
    old = TimerCheckpoint(1000, 52, 1, 5, 7)
    page.save(old, SlotProgress(2000, 52))
    path = tmp_path / "config" / "timercheck"
    before = path.read_bytes()
    newer = TimerCheckpoint(9000, 520, 10, 9, 8).encode()
    # Another program writes its 56 bytes and leaves the rest.
    path.write_bytes(newer + before[56:])
    found = load_checkpoint(OS_FILES, str(tmp_path))
    assert found is not None
    assert not found.is_ours
    assert found.checkpoint.read_ms == 9000
    # A power failure tears our own save: the counter, its last number, is still the old one.
    path.write_bytes(newer[:20] + before[20:])
    found = load_checkpoint(OS_FILES, str(tmp_path))
    assert found is not None
    assert (found.checkpoint, found.progress) == (old, SlotProgress(2000, 52))


@pytest.mark.parametrize(
    ("deliver", "slot"),
    [
        (1700000010000, 1700000009000),
        (1700000010001, 1700000010000),
        (1700000010400, 1700000010000),
        (1700000010999, 1700000010000),
        (1700000011000, 1700000010000),
    ],
)
def test_a_time_is_rounded_to_the_slot_before_it(deliver: int, slot: int) -> None:
    assert slot_of(deliver, 1000) == slot


@pytest.mark.spec("Y17")
def test_a_slot_refuses_the_more_the_fuller_it_is() -> None:
    refuse_crowded(10, 10, 0.0)
    refuse_crowded(15, 10, 0.5)
    with pytest.raises(RequestRefused, match="under flow control"):
        refuse_crowded(15, 10, 0.49)
    with pytest.raises(RequestRefused, match="under flow control"):
        refuse_crowded(20, 10, 0.999)


# The log


@pytest.mark.spec("Y21")
def test_the_blank_of_a_segment_of_default_size(tmp_path: Path) -> None:
    log = TimerLog(OS_FILES, str(tmp_path / "timerlog"), 104_857_600)
    log.end = 104_857_584 - UNIT_BYTES
    assert log.next_position() == 104_857_584 - UNIT_BYTES
    log.end = 104_857_584
    assert log.next_position() == 104_857_600


@pytest.mark.spec("Y21")
@pytest.mark.parametrize(
    ("size", "blank"), [(1_048_576, 1_048_528), (52 * 3 + 17, 52 * 3), (52 * 4 + 10, 52 * 3)]
)
def test_a_full_segment_ends_with_a_blank(tmp_path: Path, size: int, blank: int) -> None:
    log = TimerLog(OS_FILES, str(tmp_path / "timerlog"), size)
    positions = []
    previous = -1
    for _ in range(size // UNIT_BYTES + 3):
        position = log.next_position()
        log.stage(encode_unit(previous, 1, WRITTEN, SLOT, 1, 1, 0))
        positions.append(position)
        previous = position
    log.write()
    first = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert len(first) == size
    left = size - blank
    assert first[blank : blank + BLANK_BYTES] == struct.pack(">iqI", left, 0, 0xCBD43194)
    assert size in positions
    # The chain goes on behind it.
    last = log.unit(positions[-1])
    assert last is not None
    walked = [positions[-1]]
    while last is not None and last.previous >= 0:
        walked.append(last.previous)
        last = log.unit(last.previous)
    assert walked == positions[::-1]
    assert [at for at, _ in log.scan(positions[0])] == positions
    log.sync()
    log.close()


def test_a_scan_ends_at_the_first_bytes_that_are_no_unit(tmp_path: Path) -> None:
    directory = tmp_path / "timerlog"
    log = TimerLog(OS_FILES, str(directory), 1 << 16)
    for _ in range(10):
        log.next_position()
        log.stage(encode_unit(-1, 1, WRITTEN, SLOT, 1, 1, 0))
    log.write()
    log.close()
    path = directory / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[52 * 4 + 12 : 52 * 4 + 16] = b"\x7f\0\0\0"
    path.write_bytes(content)
    log = TimerLog(OS_FILES, str(directory), 1 << 16)
    assert [at // 52 for at, _ in log.scan(0)] == [0, 1, 2, 3]
    log.cut(52 * 4)
    assert log.end == 52 * 4
    assert not any(path.read_bytes()[52 * 4 :])
    log.close()


def test_a_wheel_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(b"x" * 100)
    with pytest.raises(StoreDamaged, match="has 100 bytes"):
        WheelFile(OS_FILES, str(tmp_path / "timerwheel"), 1000)


def test_the_next_slot_is_found_over_the_end_of_the_wheel(tmp_path: Path) -> None:
    wheel = WheelFile(OS_FILES, str(tmp_path / "wheel"), 1000, slots=1000)
    wheel.put(Slot(1_000_005_000, 0, 0, 1))
    wheel.put(Slot(999_990_000, 0, 0, 1))
    wheel.write()
    found = wheel.next_slot(999_980_000, 1_000_900_000)
    assert found is not None
    assert found.slot_ms == 999_990_000
    found = wheel.next_slot(999_991_000, 1_000_900_000)
    assert found is not None
    assert found.slot_ms == 1_000_005_000
    # A slot of an earlier lap is none.
    assert wheel.get(5_000) is None
    assert sorted(slot.slot_ms for slot in wheel.all_slots()) == [999_990_000, 1_000_005_000]
    wheel.close()


# Recall handles

GOLDEN = (
    "djEgZ29sZGVuLW9uZSBicm9rZXItYSAxNzk0NzkzOTM0MDAxIDdGMDAwMDAxMkE5NjMwOTQ2RTA5NERBNTNDREEwMDE2",
    RecallHandle("golden-one", "broker-a", "1794793934001", "7F0000012A9630946E094DA53CDA0016"),
)
PADDED = (
    "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMTAwMDEgMEEwMDAwMDUxMjM0MThCNEFBQzIwNzVCQ0QxNTAwMDc=",
    RecallHandle("TopicTest", "broker-a", "1700000010001", "0A000005123418B4AAC2075BCD150007"),
)


@pytest.mark.spec("Y31")
@pytest.mark.parametrize(("text", "handle"), [GOLDEN, PADDED])
def test_handles_have_the_text_of_apache(text: str, handle: RecallHandle) -> None:
    assert handle.time_ms is not None
    made = encode_handle(handle.topic, handle.broker_name, handle.time_ms, handle.unique_id)
    assert made == text
    assert decode_handle(text) == decode_handle(text.rstrip("=")) == handle


@pytest.mark.parametrize("text", ["", "!!", "djE=", "x" * 5000, "djIgYSBiIDEgYw==", "_w=="])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="recall handle is invalid"):
        decode_handle(text)


def test_the_mark_of_a_page_is_a_checksum(tmp_path: Path) -> None:
    page = CheckpointPage(OS_FILES, str(tmp_path), 100)
    page.save(TimerCheckpoint(1000, 52, 1, 5, 7), SlotProgress())
    content = (tmp_path / "config" / "timercheck").read_bytes()
    assert content[64:72] == b"penstock"
    assert int.from_bytes(content[96:104], "big") == zlib.crc32(content[:96])
