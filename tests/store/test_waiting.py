"""Tools on a store in which timer messages and transactions wait."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.broker.transactions.lab import end, prepared
from tests.support.stage import Stage, in_virtual_time

from penstock.cli.main import app
from penstock.model.names import HALF_TOPIC, TIMER_TOPIC
from penstock.store.segments import OS_FILES
from penstock.store.timers.checkpoint_page import CheckpointPage, load_checkpoint
from penstock.store.timers.timer_log import UNIT_BYTES
from penstock.store.timers.wheel_file import SLOT_BYTES, SLOTS
from penstock.store.tools import Exporter, ExportRange, Verification, survey, verify

TIMERS = 5


@in_virtual_time
async def fill(root: Path) -> None:
    """Five timer messages in two slots, one of them recalled; a transaction open, one committed."""
    async with Stage(root) as stage:
        broker = await stage.broker(mapped_file_size_timer_log=100 * UNIT_BYTES)
        wire = await stage.connect(broker)
        await wire.send("T", b"plain")
        for number in range(TIMERS):
            keys = {"TIMER_DELAY_SEC": str(60 + number % 2 * 10), "UNIQ_KEY": f"ID-{number}"}
            await wire.send("T", b"later", properties=keys)
        await prepared(wire, unique_id="open")
        await end(wire, await prepared(wire, unique_id="committed"))
        await stage.clock.sleep(5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store, stopped; tests that change it change it back."""
    directory = tmp_path_factory.mktemp("waiting")
    fill(directory)
    return directory / "broker-a"


@contextlib.contextmanager
def patched(path: Path, position: int, data: bytes) -> Iterator[None]:
    """Other bytes in a file, for a while."""
    with path.open("r+b") as file:
        file.seek(position)
        before = file.read(len(data))
        file.seek(position)
        file.write(data)
    try:
        yield
    finally:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(before)


def check(root: Path) -> Verification:
    return verify("store", str(root))


def slot_positions(root: Path) -> list[int]:
    """Where the slots with units are in the wheel."""
    content = (root / "timerwheel").read_bytes()
    found: list[int] = []
    at = 0
    while True:
        rest = content[at:].lstrip(b"\0")
        if not rest:
            return found
        at = (len(content) - len(rest)) // SLOT_BYTES * SLOT_BYTES
        found.append(at)
        at += SLOT_BYTES


def segment(root: Path) -> Path:
    [path] = sorted((root / "timerlog").iterdir())
    return path


def test_waiting_messages_are_counted_and_no_damage(root: Path) -> None:
    found = check(root)
    assert (found.damages, found.notes) == ([], [])
    assert (found.timers_waiting, found.open_transactions) == (TIMERS, 1)
    seen = survey("store", str(root))
    assert (seen.timers_waiting, seen.open_transactions, seen.foreign) == (TIMERS, 1, [])
    assert seen.last_due_ms - seen.first_due_ms == 10_000
    assert [kind.count for kind in seen.files if kind.kind.startswith("timer")] == [1, 1]


def test_they_are_printed(root: Path) -> None:
    for command in ("inspect", "verify"):
        shown = CliRunner().invoke(app, ["store", command, str(root)])
        assert shown.exit_code == 0, shown.output
        assert "waiting: 5 timer messages, 1 transaction without a decision" in shown.stdout


def test_delivered_slots_count_for_nothing(root: Path) -> None:
    saved = load_checkpoint(OS_FILES, str(root))
    assert saved is not None
    later = dataclasses.replace(saved.checkpoint, read_ms=saved.checkpoint.read_ms + 60_000)
    page = CheckpointPage(OS_FILES, str(root), saved.precision_ms)
    page.save(later, saved.progress)
    try:
        assert check(root).timers_waiting == TIMERS // 2
    finally:
        page.save(saved.checkpoint, saved.progress)
        page.close()


def test_a_wheel_of_another_size_is_damaged(root: Path) -> None:
    wheel = root / "timerwheel"
    with wheel.open("ab") as file:
        file.write(b"\0")
    try:
        [damage] = check(root).damages
        assert (damage.file, damage.position) == (str(wheel), 0)
        assert str(SLOTS * SLOT_BYTES) in damage.what
    finally:
        with wheel.open("r+b") as file:
            file.truncate(SLOTS * SLOT_BYTES)


def test_a_slot_that_links_nothing_is_damaged(root: Path) -> None:
    at = slot_positions(root)[0]
    with patched(root / "timerwheel", at + 16, (70 * UNIT_BYTES).to_bytes(8, "big")):
        [damage] = check(root).damages
        assert (damage.file, damage.position) == (str(root / "timerwheel"), at)
        assert f"links {70 * UNIT_BYTES}" in damage.what


def test_a_timer_log_that_ends_too_early_is_damaged(root: Path) -> None:
    with patched(segment(root), 3 * UNIT_BYTES, bytes(2 * UNIT_BYTES)):
        found = [(damage.file, damage.position) for damage in check(root).damages]
        assert (str(segment(root)), 3 * UNIT_BYTES) in found


def test_a_unit_that_is_cut_out_of_its_chain_is_damaged(root: Path) -> None:
    # Another time: the unit belongs to another slot then.
    with patched(segment(root), UNIT_BYTES + 16, (1_600_000_000_000).to_bytes(8, "big")):
        [damage] = check(root).damages
        assert (damage.file, damage.position) == (str(segment(root)), UNIT_BYTES)


def test_a_unit_of_another_record_is_damaged(root: Path) -> None:
    with patched(segment(root), 2 * UNIT_BYTES + 28, bytes(8)):
        [damage] = check(root).damages
        assert (damage.file, damage.position) == (str(segment(root)), 2 * UNIT_BYTES)
        assert "a record of T" in damage.what


def test_rubbish_behind_the_timer_log_is_damage_only_after_a_clean_stop(root: Path) -> None:
    with patched(segment(root), TIMERS * UNIT_BYTES, b"rubbish"):
        [damage] = check(root).damages
        assert (damage.file, damage.position) == (str(segment(root)), TIMERS * UNIT_BYTES)
        (root / "abort").touch()
        try:
            found = check(root)
            assert found.damages == []
            assert any("torn" in note for note in found.notes)
        finally:
            (root / "abort").unlink()


def test_a_missing_wheel_is_unfinished(root: Path) -> None:
    (root / "timerwheel").rename(root / "away")
    try:
        found = check(root)
        assert found.damages == []
        assert any("wheel is missing" in note for note in found.notes)
    finally:
        (root / "away").rename(root / "timerwheel")


def export(root: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["store", "export", str(root), *options])


def test_what_waits_is_exported_only_when_asked_for(root: Path) -> None:
    topics = [m["topic"] for m in Exporter(str(root), ExportRange(hides_internal=True))]
    assert topics == ["T", "orders"]
    done = export(root)
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 2
    # Five parked messages, two halves, and the record that closes one of them.
    assert "8 records of system topics left out" in done.stderr
    everything = export(root, "--internal", "--from", "first", "--to", "last")
    assert len(everything.stdout.splitlines()) == 10
    assert "left out" not in everything.stderr
    for topic, count in ((TIMER_TOPIC, 5), (HALF_TOPIC, 2)):
        assert len(export(root, "--topic", topic).stdout.splitlines()) == count
