"""Tables on the disk: when they are saved, and what a failure costs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock

from penstock.errors import ProtocolError, StoreDamaged
from penstock.runtime.saved_tables import SavedTables
from penstock.testing.eventually import eventually


class Kept:
    """A table of one text."""

    def __init__(self, content: bytes = b"new") -> None:
        self.content = content
        self.dumps = 0

    def load(self, data: bytes) -> None:
        if data == b"damaged":
            raise ValueError("damaged")
        self.content = data

    def dump(self) -> bytes:
        self.dumps += 1
        return self.content


async def test_an_urgent_table_is_saved_at_once(tmp_path: Path) -> None:
    kept = Kept()
    tables = SavedTables(FakeClock(), tmp_path)
    await tables.add("t.json", load=kept.load, dump=kept.dump)
    async with tables:
        kept.content = b"changed"
        tables.changed("t.json")
        await eventually(lambda: (tmp_path / "t.json").exists())
        assert (tmp_path / "t.json").read_bytes() == b"changed"


async def test_a_burst_of_changes_is_few_saves(tmp_path: Path) -> None:
    kept = Kept()
    tables = SavedTables(FakeClock(), tmp_path)
    await tables.add("t.json", load=kept.load, dump=kept.dump)
    async with tables:
        for number in range(1000):
            kept.content = str(number).encode()
            tables.changed("t.json")
        saved = asyncio.Event()
        tables.when_saved("t.json", saved.set)
        await saved.wait()
        assert (tmp_path / "t.json").read_bytes() == b"999"
        assert kept.dumps < 10


def content_of(file: Path) -> bytes:
    """What a table's file holds; nothing in the moment in which a save has moved it away."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


async def test_a_periodic_table_waits_for_its_time(tmp_path: Path) -> None:
    clock, kept, file = FakeClock(), Kept(), tmp_path / "t.json"
    tables = SavedTables(clock, tmp_path)
    await tables.add("t.json", load=kept.load, dump=kept.dump, period=5.0, first=10.0)
    async with tables:
        tables.changed("t.json")
        await clock.advance(9.5)
        assert not file.exists()
        await clock.advance(1)
        await eventually(file.exists)
        kept.content = b"second"
        tables.changed("t.json")
        await clock.advance(4)
        assert file.read_bytes() == b"new"
        await clock.advance(1.5)
        await eventually(lambda: content_of(file) == b"second")


async def test_a_waiting_caller_makes_a_periodic_table_urgent(tmp_path: Path) -> None:
    kept = Kept()
    tables = SavedTables(FakeClock(), tmp_path)
    await tables.add("t.json", load=kept.load, dump=kept.dump, period=1000.0)
    async with tables:
        tables.changed("t.json")
        saved = asyncio.Event()
        tables.when_saved("t.json", saved.set)
        await saved.wait()
        assert (tmp_path / "t.json").read_bytes() == b"new"


async def test_who_waits_for_what_did_not_change_waits_for_nothing(tmp_path: Path) -> None:
    kept = Kept()
    tables = SavedTables(FakeClock(), tmp_path)
    await tables.add("t.json", load=kept.load, dump=kept.dump)
    called: list[bool] = []
    tables.when_saved("t.json", lambda: called.append(True))
    assert called == [True]


async def test_a_failed_save_is_logged_and_tried_again_and_never_reported_as_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "config"
    clock, kept = FakeClock(), Kept()
    tables = SavedTables(clock, directory / "deep")
    await tables.add("t.json", load=kept.load, dump=kept.dump)
    directory.write_bytes(b"a file is in the way")
    async with tables:
        tables.changed("t.json")
        saved = asyncio.Event()
        tables.when_saved("t.json", saved.set)
        await eventually(lambda: "table not saved" in caplog.text)
        assert not saved.is_set()
        directory.unlink()
        await clock.advance(2)
        await saved.wait()
        assert (directory / "deep/t.json").read_bytes() == b"new"


async def test_a_caller_that_does_not_wait_gets_an_error_when_there_is_no_room(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "config"
    clock, kept = FakeClock(), Kept()
    tables = SavedTables(clock, directory / "deep")
    await tables.add("t.json", load=kept.load, dump=kept.dump)
    directory.write_bytes(b"a file is in the way")
    said: list[str] = []
    async with tables:
        tables.changed("t.json")
        tables.when_saved("t.json", lambda: said.append("saved"), lambda e: said.append(str(e)))
        await eventually(lambda: said)
        assert "would be lost by a restart" in said[0]
        directory.unlink()
        await clock.advance(2)
        await eventually(lambda: content_of(directory / "deep/t.json") == b"new")
    assert len(said) == 1


class Unwritable(Kept):
    """A table that cannot be made bytes of."""

    def dump(self) -> bytes:
        super().dump()
        raise ProtocolError("a value nested too deeply for JSON")


async def test_a_table_that_cannot_be_written_is_logged_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, odd, sound = FakeClock(), Unwritable(), Kept()
    tables = SavedTables(clock, tmp_path)
    await tables.add("odd.json", load=odd.load, dump=odd.dump)
    await tables.add("sound.json", load=sound.load, dump=sound.dump)
    said: list[str] = []
    async with tables:
        tables.changed("odd.json")
        tables.when_saved("odd.json", lambda: said.append("saved"), lambda e: said.append(str(e)))
        await eventually(lambda: said)
        assert "nested too deeply" in said[0]
        tables.changed("sound.json")
        await eventually(lambda: content_of(tmp_path / "sound.json") == b"new")
        assert odd.dumps == 1
        await clock.advance(2)
        await eventually(lambda: odd.dumps > 1)
        tables.changed("sound.json")
    sound.content = b"at the end"
    await tables.save_all()
    assert (tmp_path / "sound.json").read_bytes() == b"at the end"
    assert not (tmp_path / "odd.json").exists()
    assert "table cannot be written" in caplog.text


async def test_at_the_end_everything_that_changed_is_saved(tmp_path: Path) -> None:
    one, other = Kept(b"one"), Kept(b"other")
    tables = SavedTables(FakeClock(), tmp_path)
    await tables.add("one.json", load=one.load, dump=one.dump, period=1000.0)
    await tables.add("other.json", load=other.load, dump=other.dump, period=1000.0)
    tables.changed("one.json")
    await tables.save_all()
    assert (tmp_path / "one.json").read_bytes() == b"one"
    assert not (tmp_path / "other.json").exists()


async def test_what_is_there_is_loaded_the_backup_if_need_be(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"damaged")
    (tmp_path / "t.json.bak").write_bytes(b"older")
    kept = Kept()
    tables = SavedTables(FakeClock(), tmp_path)
    await tables.add("t.json", load=kept.load, dump=kept.dump)
    assert kept.content == b"older"


async def test_a_broker_does_not_start_beside_two_damaged_files(tmp_path: Path) -> None:
    for name in ("t.json", "t.json.bak"):
        (tmp_path / name).write_bytes(b"damaged")
    tables = SavedTables(FakeClock(), tmp_path)
    with pytest.raises(StoreDamaged):
        await tables.add("t.json", load=Kept().load, dump=Kept().dump)


async def test_a_table_that_was_not_added_is_ignored(tmp_path: Path) -> None:
    tables = SavedTables(FakeClock(), tmp_path)
    tables.changed("unknown.json")
    await tables.save_all()
    assert not (tmp_path / "unknown.json").exists()
