"""State files survive a crash between any two instructions."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import DiskFull, ProtocolError, StoreDamaged, StoreError
from penstock.runtime import state_file
from penstock.runtime.state_file import StateFile

OLD, NEW = b'{"version": "old"}', b'{"version": "new"}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


# -- on a real disk ----------------------------------------------------------------------------


def test_what_was_saved_is_loaded(path: Path) -> None:
    assert StateFile(path).load() is None
    StateFile(path).save(OLD)
    assert StateFile(path).load() == OLD
    assert path.read_bytes() == OLD


def test_the_version_before_is_the_backup(path: Path) -> None:
    state = StateFile(path)
    for content in (b"1", b"2", b"3"):
        state.save(content)
    assert path.read_bytes() == b"3"
    assert backup_of(path).read_bytes() == b"2"
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]


def test_names_without_a_suffix_get_one_too(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "timermetrics")
    state.save(b"1")
    state.save(b"2")
    assert (tmp_path / "timermetrics.bak").read_bytes() == b"1"


@pytest.mark.parametrize("torn", [b"", b"\0" * 4096, b"  \n", b'{"version": "ne'])
def test_a_torn_file_is_replaced_by_its_backup_and_logged(
    path: Path, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateFile(path)
    state.save(OLD)
    state.save(NEW)
    path.write_bytes(torn)
    with caplog.at_level(logging.WARNING):
        assert StateFile(path).load(json.loads) == OLD
    assert caplog.records[0].levelno == logging.WARNING
    assert "state loaded from backup" in caplog.text
    assert str(backup_of(path)) in caplog.text


def test_a_torn_file_never_becomes_the_backup(path: Path) -> None:
    state = StateFile(path)
    state.save(b"1")
    state.save(b"2")
    path.write_bytes(b"torn {")
    assert state.load(json.loads) == b"1"
    state.save(b"3")
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"3", b"1")
    assert path.with_name("topics.json.damaged").read_bytes() == b"torn {"


def test_an_empty_file_never_becomes_the_backup_even_unread(path: Path) -> None:
    state = StateFile(path)
    state.save(b"1")
    state.save(b"2")
    path.write_bytes(b"")
    state.save(b"3")
    assert (path.read_bytes(), backup_of(path).read_bytes()) == (b"3", b"1")


def test_a_missing_file_is_loaded_from_its_backup(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    backup_of(path).write_bytes(OLD)
    with caplog.at_level(logging.WARNING):
        assert StateFile(path).load() == OLD
    assert "the file is missing" in caplog.text


def test_the_check_may_raise_errors_of_ours(path: Path) -> None:
    state = StateFile(path)
    state.save(OLD)
    state.save(NEW)

    def refuse_new(data: bytes) -> None:
        if data == NEW:
            raise ProtocolError("no table")

    assert state.load(refuse_new) == OLD


def test_a_bug_in_the_check_is_not_taken_for_damage(path: Path) -> None:
    StateFile(path).save(OLD)

    def buggy(data: bytes) -> None:
        raise AttributeError("a bug")

    with pytest.raises(AttributeError):
        StateFile(path).load(buggy)
    assert path.exists()


def test_a_torn_file_without_a_backup_is_not_taken_for_an_empty_one(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"torn {")
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="and there is no backup; try: repair it"):
            StateFile(path, has_sums=True).load(json.loads)
    assert path.read_bytes() == b"torn {"


def test_without_checksums_a_torn_file_without_a_backup_starts_empty_with_an_error(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(b"torn {")
    with caplog.at_level(logging.WARNING):
        assert StateFile(path).load(json.loads) is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "starting empty" in caplog.text


@pytest.mark.parametrize("content", [b"", bytes(100), b" \n"])
def test_an_empty_file_without_a_backup_is_what_a_crash_of_others_leaves(
    path: Path, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert StateFile(path, has_sums=True).load(json.loads) is None
    # Unless it had content once.
    StateFile(path, has_sums=True).save(OLD)
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="the file is empty"):
        StateFile(path, has_sums=True).load(json.loads)


# -- checksums -----------------------------------------------------------------------------------


def rot(path: Path, data: bytes) -> None:
    """Change the content without a trace in the times of the file."""
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_is_replaced_by_the_backup(path: Path) -> None:
    state = StateFile(path, has_sums=True)
    state.save(OLD)
    state.save(NEW)
    assert [int(line, 16) for line in (path.parent / "topics.json.sum").read_text().split()][
        :2
    ] == [zlib.crc32(NEW), zlib.crc32(OLD)]
    for bit in range(len(NEW) * 8):
        rot(path, flipped(NEW, bit))
        assert StateFile(path, has_sums=True).load() == OLD
        path.write_bytes(NEW)
    assert StateFile(path, has_sums=True).load() == NEW


def test_a_flipped_bit_without_a_backup_is_refused_with_the_way_out(path: Path) -> None:
    StateFile(path, has_sums=True).save(OLD)
    rot(path, flipped(OLD, 9))
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"if it was meant, delete .*topics.json.sum"):
            StateFile(path, has_sums=True).load()
    (path.parent / "topics.json.sum").unlink()
    assert StateFile(path, has_sums=True).load() == flipped(OLD, 9)


def test_what_another_program_wrote_needs_no_checksum(path: Path) -> None:
    StateFile(path, has_sums=True).save(OLD)
    path.write_bytes(b"theirs")
    assert StateFile(path, has_sums=True).load(may_be_changed=True) == b"theirs"
    StateFile(path, has_sums=True).save(NEW)
    # Their content is the backup now, and good as such.
    path.unlink()
    assert StateFile(path, has_sums=True).load() == b"theirs"


def test_checksums_that_are_damaged_themselves_count_for_nothing(path: Path) -> None:
    StateFile(path, has_sums=True).save(OLD)
    sums = path.parent / "topics.json.sum"
    whole = sums.read_bytes()
    for bit in range(0, len(whole) * 8, 3):
        sums.write_bytes(flipped(whole, bit))
        assert StateFile(path, has_sums=True).load() == OLD
    sums.write_bytes(b"")
    assert StateFile(path, has_sums=True).load() == OLD


def test_files_are_for_their_owner_alone(path: Path) -> None:
    StateFile(path, has_sums=True).save(OLD)
    StateFile(path, has_sums=True).save(NEW)
    assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_torn_files_are_not_thrown_away_silently(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"torn {")
    backup_of(path).write_bytes(b"torn too {")
    with pytest.raises(StoreDamaged, match="nor its backup") as caught:
        StateFile(path).load(json.loads)
    assert str(path) in str(caught.value)
    assert caught.value.hint is not None


def test_an_empty_backup_alone_is_as_good_as_none(path: Path) -> None:
    # RocketMQ 5 leaves an empty abort.bak behind for good.
    path.parent.mkdir()
    backup_of(path).write_bytes(b"")
    assert StateFile(path).load() is None


def test_a_file_too_large_is_refused_before_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "MAX_STATE_BYTES", 10)
    StateFile(path).save(b"12345678901")
    with pytest.raises(StoreDamaged, match="has 11 bytes; expected at most 10"):
        StateFile(path).load()


def test_what_is_written_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    StateFile(path).save(NEW)
    # The content before the name.
    content, name = path.stat().st_ino, path.parent.stat().st_ino
    assert content in synced
    assert name in synced[synced.index(content) :]


class Refusing:
    """The real file system, but one operation fails with one error."""

    def __init__(self, operation: str, number: int) -> None:
        self._operation = operation
        self._number = number

    def __getattr__(self, name: str) -> object:
        if name == self._operation:

            def refuse(*args: object) -> None:
                raise OSError(self._number, os.strerror(self._number))

            return refuse
        return getattr(state_file.OS_STATE_FILES, name)


def test_a_file_that_may_not_be_read_is_no_missing_file(path: Path) -> None:
    StateFile(path).save(OLD)
    files = Refusing("read", errno.EACCES)
    with pytest.raises(StoreError, match="cannot be read: Permission denied") as caught:
        StateFile(path, files=files).load()  # type: ignore[arg-type]  # made of attributes
    assert str(path) in str(caught.value)
    assert "chown" in str(caught.value)


@pytest.mark.parametrize("operation", ["write", "replace", "sync_directory", "make_directory"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_failed_save_says_so_and_loses_nothing(path: Path, operation: str, number: int) -> None:
    StateFile(path).save(b"1")
    StateFile(path).save(b"2")
    failing = StateFile(path, files=Refusing(operation, number))  # type: ignore[arg-type]
    with pytest.raises(DiskFull if number == errno.ENOSPC else StoreError):
        failing.save(b"3")
    assert StateFile(path).load() == b"2"
    StateFile(path).save(b"4")
    assert StateFile(path).load() == b"4"


# -- on a disk that loses power ------------------------------------------------------------------


class PowerCut(Exception):
    """The machine stops here."""


class Disk:
    """A file system that remembers what is really on the disk.

    Content is durable after `write` (which syncs), but a cut inside it leaves any part of it. Names
    are durable after `sync_directory`; before that any subset of the changes may have made it,
    which is less than any journal promises.
    """

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.durable: dict[str, bytes] = {}
        self.pending: list[tuple[str, str | None, bytes]] = []
        self.torn: tuple[str, bytes] | None = None
        self.operations_left: int | None = None

    def copy(self, cut_after: int | None = None) -> Disk:
        other = Disk()
        other.names, other.durable = dict(self.names), dict(self.durable)
        other.operations_left = cut_after
        return other

    def _step(self) -> None:
        if self.operations_left is not None:
            if not self.operations_left:
                raise PowerCut
            self.operations_left -= 1

    def read(self, path: Path) -> bytes:
        if path.name not in self.names:
            raise FileNotFoundError(path)
        return self.names[path.name]

    def write(self, path: Path, data: bytes) -> None:
        self.torn = (path.name, data)
        self._step()
        self.torn = None
        self.names[path.name] = data
        self.pending.append((path.name, None, data))

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        data = self.names[target.name] = self.names.pop(source.name)
        self.pending.append((target.name, source.name, data))

    def sync_directory(self, path: Path) -> None:
        self._step()
        self.durable = dict(self.names)
        self.pending.clear()

    def make_directory(self, path: Path) -> None:
        self._step()

    def remove(self, path: Path) -> None:
        self._step()
        self.names.pop(path.name, None)

    def after_the_cut(self) -> Iterator[Disk]:
        """Every state in which the machine may come up again."""
        pending = list(self.pending)
        contents: list[bytes | None] = [None]
        if self.torn is not None:
            name, data = self.torn
            pending.append((name, None, data))
            contents = [b"", data[: len(data) // 2], bytes(len(data)), data]
        for size in range(len(pending) + 1):
            for survivors in itertools.combinations(range(len(pending)), size):
                for content in contents:
                    disk = Disk()
                    disk.names = dict(self.durable)
                    for index in survivors:
                        target, source, data = pending[index]
                        is_torn = self.torn is not None and index == len(pending) - 1
                        if source is not None:
                            disk.names.pop(source, None)
                        disk.names[target] = content if is_torn and content is not None else data
                    disk.durable = dict(disk.names)
                    yield disk


PLACE = Path("config/topics.json")


def save_with_cuts(
    before: Disk, data: bytes, *, has_sums: bool = False
) -> Iterator[tuple[bool, Disk]]:
    """Save with a power cut before each operation, and once without: (returned, disk)."""
    for cut_after in itertools.count():
        disk = before.copy(cut_after)
        try:
            StateFile(PLACE, files=disk, has_sums=has_sums).save(data)
        except PowerCut:
            for state in disk.after_the_cut():
                yield False, state
            continue
        for state in disk.after_the_cut():
            yield True, state
        return


def load(disk: Disk, *, has_sums: bool = False) -> dict[str, int] | None:
    """What a broker that starts now would see."""
    disk.operations_left = None
    data = StateFile(PLACE, files=disk, has_sums=has_sums).load(json.loads)
    parsed: dict[str, int] | None = json.loads(data) if data is not None else None
    return parsed


def version(number: int) -> bytes:
    return json.dumps({"version": number}).encode()


def test_a_power_cut_at_any_point_leaves_the_old_or_the_new_version(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    states = 0
    for first_returned, after_first in save_with_cuts(Disk(), version(1)):
        found = load(after_first)
        assert found == {"version": 1} if first_returned else found in (None, {"version": 1})
        for returned, after_second in save_with_cuts(after_first, version(2)):
            states += 1
            allowed = [{"version": 2}] if returned else [found, {"version": 2}]
            seen = load(after_second)
            assert seen in allowed
            for third_returned, after_third in save_with_cuts(after_second, version(3)):
                states += 1
                allowed = [{"version": 3}] if third_returned else [seen, {"version": 3}]
                assert load(after_third) in allowed
    # So many ways for three saves to go wrong; the count guards against a test that does nothing.
    assert states > 500


def test_a_power_cut_leaves_no_version_without_its_checksum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    disk = Disk()
    for number in (1, 2, 3):
        StateFile(PLACE, files=disk, has_sums=True).save(version(number))
    states = 0
    for first_returned, after_first in save_with_cuts(disk, version(4), has_sums=True):
        found = load(after_first, has_sums=True)
        assert found in ([{"version": 4}] if first_returned else [{"version": 3}, {"version": 4}])
        for returned, after_second in save_with_cuts(after_first, version(5), has_sums=True):
            states += 1
            allowed = [{"version": 5}] if returned else [found, {"version": 5}]
            assert load(after_second, has_sums=True) in allowed
    assert states > 500


def test_what_another_program_wrote_later_is_taken(path: Path) -> None:
    StateFile(path, has_sums=True).save(OLD)
    path.write_bytes(NEW)
    later = path.stat().st_mtime + 60
    os.utime(path, (later, later))
    assert StateFile(path, has_sums=True).load() == NEW
