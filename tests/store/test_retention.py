"""Retention: which segments go, and what a reader notices of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, DiskFull, StoreReadOnly
from penstock.protocol.records.codec import decode_records
from penstock.store import Draft, MessageStore, OsFiles, ReadStatus, StoreConfig
from penstock.store.files import DiskSpace
from penstock.store.retention import HOUR_MS, decide, disk_rules

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]

NOW = 1_700_000_000_000
OLD = NOW - 73 * HOUR_MS
YOUNG = NOW - HOUR_MS
EXPIRED_AND_LAST = [OLD, OLD, OLD, YOUNG]
CONFIG = StoreConfig(delete_when="04")
SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)


class DiskOf(OsFiles):
    """The real files on a disk that is as full as a test wants it."""

    def __init__(self, used_ratio: float) -> None:
        self.used_ratio = used_ratio

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(1000, round(1000 * (1 - self.used_ratio)))


@pytest.mark.parametrize(
    ("hour", "used", "manual", "expected"),
    [
        (4, 0.10, False, 3),
        (5, 0.10, False, 0),
        (5, 0.10, True, 3),
        (5, 0.76, False, 3),
        (5, 0.75, False, 0),
    ],
)
def test_expired_segments_go_in_their_hour_on_demand_or_when_the_disk_fills(
    hour: int, used: float, manual: bool, expected: int
) -> None:
    decision = decide(CONFIG, EXPIRED_AND_LAST, NOW, hour, used, is_manual=manual)
    assert decision.delete == expected
    assert not decision.is_disk_full


def test_deletion_stops_at_the_first_segment_that_must_stay() -> None:
    assert decide(CONFIG, [OLD, YOUNG, OLD, YOUNG], NOW, 4, 0.1).delete == 1


def test_a_segment_expires_with_its_reserved_time() -> None:
    edge = NOW - 72 * HOUR_MS
    assert decide(CONFIG, [edge, NOW], NOW, 4, 0.1).delete == 1
    assert decide(CONFIG, [edge + 1, NOW], NOW, 4, 0.1).delete == 0


def test_a_disk_that_is_too_full_loses_unexpired_segments_but_the_last() -> None:
    assert decide(CONFIG, [YOUNG] * 4, NOW, 5, 0.86).delete == 3
    assert decide(CONFIG, [YOUNG], NOW, 5, 0.99).delete == 0
    gentle = replace(CONFIG, clean_file_forcibly_enable=False)
    assert decide(gentle, [YOUNG] * 4, NOW, 5, 0.86).delete == 0


def test_one_round_deletes_no_more_than_a_batch() -> None:
    assert decide(CONFIG, [OLD] * 50, NOW, 4, 0.1).delete == 10


def test_messages_are_refused_above_the_warning_level() -> None:
    assert decide(CONFIG, [YOUNG] * 2, NOW, 5, 0.91).is_disk_full
    assert not decide(CONFIG, [YOUNG] * 2, NOW, 5, 0.90).is_disk_full


def test_ratios_are_kept_within_rocketmqs_bounds() -> None:
    wild = StoreConfig(disk_space_clean_forcibly_ratio=99, disk_space_warning_level_ratio=5)
    rules = disk_rules(wild)
    assert (rules.delete_unexpired, rules.refuse_messages) == (0.85, 0.35)


@given(
    modified=st.lists(st.sampled_from([OLD, YOUNG]), max_size=20),
    hour=st.integers(0, 23),
    used=st.floats(0, 1),
)
def test_the_last_segment_always_stays(modified: list[int], hour: int, used: float) -> None:
    assert decide(CONFIG, modified, NOW, hour, used).delete <= max(0, len(modified) - 1)


def test_hours_may_be_several_and_must_be_hours() -> None:
    assert StoreConfig(delete_when="04;16").delete_hours == (4, 16)
    for wrong in ("24", "x", "-1"):
        with pytest.raises(ConfigError, match="deleteWhen"):
            StoreConfig(delete_when=wrong)


def fill(store: MessageStore, make_draft: MakeDraft, count: int) -> None:
    for number in range(count):
        store.append(make_draft("orders", 0, bytes(900), KEYS=f"k-{number}"))
    store.write()
    store.flush(thorough=True)


def expire(store: MessageStore, segments: int) -> None:
    """Make the oldest segments look a week old."""
    directory = Path(store.root) / "commitlog"
    for path in sorted(directory.iterdir())[:segments]:
        os.utime(path, (1_600_000_000, 1_600_000_000))


def test_cleaning_moves_the_start_of_log_queues_and_index(
    open_store: OpenStore, make_draft: MakeDraft, clock: Any
) -> None:
    store = open_store()
    for _ in range(3):
        fill(store, make_draft, 40)
        clock.now += 1000
    expire(store, 10)
    store.request_clean()
    removed = store.clean()
    assert sum("commitlog" in path for path in removed) == 10
    assert store.min_position == 10 * 4096
    assert store.min_offset("orders", 0) == 40
    assert sum("consumequeue" in path for path in removed) == 4
    assert sum("/index/" in path for path in removed) == 1
    result = store.read("orders", 0, 39)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, 40)
    assert store.read("orders", 0, 40).status is ReadStatus.FOUND
    store.close()
    store = open_store()
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (40, 120)
    assert store.read("orders", 0, 40).count == 10, "to the end of the queue file"


def test_nothing_is_deleted_at_other_hours(
    open_store: OpenStore, make_draft: MakeDraft, clock: Any
) -> None:
    store = open_store(replace(SMALL, delete_when=""), files=DiskOf(0.1))
    fill(store, make_draft, 40)
    expire(store, 5)
    assert store.clean() == []


def test_a_slow_reader_keeps_what_it_holds_of_a_deleted_segment(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(files=DiskOf(0.88))
    fill(store, make_draft, 40)
    held = store.read("orders", 0, 0)
    expected = bytes(held.slices[0])
    store.clean()
    assert store.min_position > 0
    assert not (Path(store.root) / "commitlog/00000000000000000000").exists()
    assert bytes(held.slices[0]) == expected
    assert len(decode_records(expected)) == 4


def test_a_queue_whose_messages_are_all_deleted_keeps_its_place(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(files=DiskOf(0.88))
    for _ in range(3):
        store.append(make_draft("rare"))
    fill(store, make_draft, 60)
    while store.clean():
        pass
    assert (store.min_offset("rare", 0), store.max_offset("rare", 0)) == (3, 3)
    assert store.read("rare", 0, 0).next_offset == 3
    assert store.read("rare", 0, 3).status is ReadStatus.OFFSET_OVERFLOW_ONE
    store.abandon()
    store = open_store()
    assert store.append(make_draft("rare")).queue_offset == 3


def test_what_is_not_on_the_disk_yet_is_not_deleted(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    # The queue entries are in memory only: with the log they would be gone for good.
    store = open_store(files=DiskOf(0.88))
    for _ in range(40):
        store.append(make_draft(body=bytes(900)))
    store.write()
    assert store.clean() == []
    store.flush(thorough=True)
    assert len(store.clean()) >= 9


def test_a_full_disk_refuses_messages_until_there_is_room(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    files = DiskOf(0.95)
    store = open_store(files=files)
    store.append(make_draft())
    store.write()
    store.clean()
    assert store.is_disk_full
    assert "95%" in str(store.refusal)
    with pytest.raises(DiskFull, match="95% full; expected at most 90%"):
        store.append(make_draft())
    assert store.read("orders", 0, 0).count == 1, "reading goes on"
    files.used_ratio = 0.5
    store.clean()
    assert store.append(make_draft()).queue_offset == 1


def test_a_full_store_closes_cleanly(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(files=DiskOf(0.95))
    store.append(make_draft())
    store.write()
    store.clean()
    store.close()
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "clean"


def test_a_store_for_reading_only_cleans_nothing(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 1)
    reader = MessageStore.open_readonly(store.root)
    with pytest.raises(StoreReadOnly):
        reader.clean()
    with pytest.raises(StoreReadOnly):
        reader.delete_topic("orders")
    with pytest.raises(StoreReadOnly):
        reader.append(make_draft())
    with pytest.raises(StoreReadOnly):
        reader.flush()
    reader.close()


def test_segments_from_the_future_are_as_old_as_those_behind_them() -> None:
    """The clock was set back, after it had been wrong for a while."""
    hours = 3_600_000
    future, old, young = NOW + 9000 * hours, NOW - 100 * hours, NOW - hours
    assert decide(CONFIG, [future, future, old, NOW], NOW, 4, 0.1).delete == 3
    assert decide(CONFIG, [future, young, old, NOW], NOW, 4, 0.1).delete == 1
    assert decide(CONFIG, [future, young, NOW], NOW, 4, 0.1).delete == 0
    assert decide(CONFIG, [future, future + hours], NOW, 4, 0.1).delete == 0
    assert decide(CONFIG, [future, 0, young, NOW], NOW, 4, 0.1).delete == 0, "no time is known"


def test_nothing_is_deleted_for_its_age_while_the_clock_is_doubtful() -> None:
    assert decide(CONFIG, EXPIRED_AND_LAST, NOW, 4, 0.1, is_clock_doubtful=True).delete == 0
    # A full disk does not ask how old they are.
    assert decide(CONFIG, EXPIRED_AND_LAST, NOW, 4, 0.99, is_clock_doubtful=True).delete == 3


def test_a_clock_that_jumps_ahead_for_seconds_deletes_nothing(
    tmp_path: Path, make_draft: MakeDraft, caplog: pytest.LogCaptureFixture
) -> None:
    now, seconds = time.time_ns() // 1_000_000, 1000.0
    every_hour = replace(SMALL, delete_when=";".join(map(str, range(24))))
    store = MessageStore(
        tmp_path / "store", every_hour, time_ms=lambda: now, monotonic=lambda: seconds
    )

    def pass_time(passed: float, set_by: float = 0.0) -> None:
        nonlocal now, seconds
        seconds += passed
        now += int((passed + set_by) * 1000)

    with store:
        for _ in range(40):
            store.append(make_draft(body=bytes(400)))
        store.write()
        store.flush(thorough=True)
        pass_time(10)
        assert store.clean() == []
        pass_time(1, set_by=80 * 3600)
        assert store.clean() == []
        assert "clock was set ahead" in caplog.text
        pass_time(1, set_by=-80 * 3600)
        assert store.clean() == []
        # Set for good, after another while everything goes on as usual.
        pass_time(10, set_by=80 * 3600)
        assert store.clean() == []
        pass_time(29 * 60)
        assert store.clean() == []
        pass_time(2 * 60)
        assert len(store.clean()) > 2


def test_reserved_hours_are_hours() -> None:
    config = replace(CONFIG, file_reserved_hours=2)
    assert decide(config, [NOW - 7_200_000, NOW], NOW, 4, 0.1).delete == 1
    assert decide(config, [NOW - 7_199_999, NOW], NOW, 4, 0.1).delete == 0
