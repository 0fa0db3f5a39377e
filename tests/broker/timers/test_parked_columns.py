"""Parked messages that are put into the wheel by columns leave the same files as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from penstock.broker.timers import timer_files
from penstock.broker.timers.parked_columns import FEW, parked_columns
from penstock.broker.timers.timer_files import TimerFiles
from penstock.broker.timers.timer_shape import TimerShape
from penstock.protocol.records.codec import encode_record
from penstock.store import OS_FILES
from penstock.store.timers.timer_log import BLANK_BYTES, UNIT_BYTES

NOW = 1_793_999_999_000
HOST = bytes((127, 0, 0, 1, 0, 0, 1, 2))
SHAPE = TimerShape(1000, 1000, 300 * UNIT_BYTES + BLANK_BYTES + 7, slots=2048)


def parked(
    number: int,
    *,
    body: bytes = b"a body",
    queue_id: str = "3",
    slot: str = str(NOW + 20_000),
    more: str = "TAGS\x01t\x02",
    end: str = "\x02",
    topic: str = "orders",
    timer_topic: bytes = b"rmq_sys_wheel_timer",
    host: bytes = HOST,
    queue_offset: int | None = None,
    sys_flag: int = 0,
) -> bytes:
    properties = (
        f"UNIQ_KEY\x01{number:08X}\x02{more}TIMER_OUT_MS\x01{slot}\x02"
        f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}{end}"
    )
    offset = number if queue_offset is None else queue_offset
    return encode_record(
        *(timer_topic, body, properties.encode(), 0, offset, 1000 * number, NOW, NOW),
        *(host, HOST, 0, sys_flag),
    )


CHANGES: list[dict[str, object]] = [
    {},
    {"queue_id": "12"},
    {"queue_id": "x"},
    {"body": b""},
    {"body": b"a longer body"},
    {"slot": str(NOW + 21_000)},
    {"slot": str(NOW)},
    {"slot": str(NOW - 5_000)},
    {"slot": str(NOW + 999_000)},
    {"slot": str(NOW + 1_000_000)},
    {"slot": str(NOW + 2_000_000)},
    {"slot": str(NOW + 30_000_000)},
    {"slot": "17939999990xx"},
    {"more": "TIMER_DEL_UNIQKEY\x01U\x02"},
    {"more": "TIMER_DEL_UNIQKEY\x01\x02"},
    {"more": "TAGS\x01other\x02"},
    {"more": "TAGS\x01u\x02"},
    {"end": ""},
    {"end": "\x02a\x01b\x02"},
    {"topic": "orderz"},
    {"topic": "\u00fc\u00fc\u00fc"},
    {"timer_topic": b"rmq_sys_wheel_timex"},
    {"host": bytes(20)},
    {"sys_flag": 8},
    {"queue_offset": 1},
]


def portion(random: Random, first: int, change: dict[str, object]) -> list[bytes]:
    """Messages that are alike, but for those with a change."""
    count = random.choice((FEW - 1, FEW, 40, 100))
    changed = first + random.randrange(count) if random.random() < 0.5 else -1
    return [
        parked(
            number,
            **{  # type: ignore[arg-type]  # keywords of a test
                "body": random.randbytes(6),
                "queue_id": random.choice("0123"),
                "slot": str(NOW + 1000 * random.randrange(20, 23)),
                **(change if changed in (-1, number) else {}),
            },
        )
        for number in range(first, first + count)
    ]


def sliced(random: Random, records: Sequence[bytes]) -> list[memoryview]:
    """Some of them lie side by side, as a read finds them."""
    slices: list[list[bytes]] = [[]]
    for record in records:
        if slices[-1] and random.random() < 0.1:
            slices.append([])
        slices[-1].append(record)
    return [memoryview(b"".join(one)) for one in slices]


def state(files: TimerFiles, root: Path) -> object:
    content = {file.name: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    return (files.read_ms, files.queue_offset, files.pending, files.slots, content)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_rebuilding", [False, True])
def test_columns_leave_the_files_that_single_records_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], is_rebuilding: bool
) -> None:
    for seed in range(6):
        random = Random(seed)
        both = []
        for name in ("columns", "single"):
            root = tmp_path / f"{name}-{seed}"
            root.mkdir()
            files = TimerFiles(OS_FILES, str(root), SHAPE)
            if is_rebuilding:
                files.read_ms, files._rebuilt_until = NOW - 60_000, 50
            both.append((files, root))
        first = 0
        for turn in range(5):
            records = portion(random, first, change)
            first += len(records)
            slices, now_ms = sliced(random, records), NOW + 500 * turn
            results = []
            for files, _ in both:
                with monkeypatch.context() as patched:
                    if files is both[1][0]:
                        patched.setattr(timer_files, "parked_columns", lambda slices: None)
                    results.append(files.enqueue(slices, now_ms))
            assert results[0] == results[1]
            assert state(*both[0]) == state(*both[1])
        for files, _ in both:
            files.close()


@pytest.mark.parametrize("count", [FEW, 512])
def test_usual_messages_are_read_by_columns(count: int) -> None:
    found = parked_columns([memoryview(b"".join(parked(number) for number in range(count)))])
    assert found is not None
    assert found.topic == "orders"
    assert found.slots_ms == [NOW + 20_000] * count
    assert list(found.log_positions) == [1000 * number for number in range(count)]


def test_bytes_that_are_no_records_are_left_to_the_plain_path() -> None:
    usual = b"".join(parked(number) for number in range(FEW))
    for bad in (b"", b"short", bytes(len(usual)), usual[:-1], usual[:4] + bytes(500)):
        assert parked_columns([memoryview(bad)]) is None
    assert parked_columns([]) is None
    # A size that is right for the first record only.
    assert parked_columns([memoryview(usual), memoryview(usual[:-3])]) is None
