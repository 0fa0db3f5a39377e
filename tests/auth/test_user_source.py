"""Servers that follow the same user file."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from tests.support.fake_clock import FakeClock

from penstock.auth.user_file import UserFile
from penstock.auth.user_source import LOOK_SECONDS, UserSource
from penstock.auth.users import Users, new_user
from penstock.remoting.file_stamps import FileStamp
from penstock.testing.eventually import eventually


def with_user(users: Users) -> Users:
    return users.with_user(new_user("app", 0))


async def test_a_change_is_in_force_at_all_servers_of_the_process_at_once(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(lambda users: users)
    UserFile(tmp_path / "other.json").change(lambda users: users)
    async with (
        UserSource(UserFile(path), clock) as broker,
        UserSource(UserFile(path), clock) as name_server,
        UserSource(UserFile(tmp_path / "other.json"), clock) as other,
    ):
        await broker.change(with_user)
        assert name_server.users.get("app") is not None
        assert other.users.get("app") is None


async def test_a_change_by_another_process_is_in_force_after_a_look(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(lambda users: users)
    async with UserSource(UserFile(path), clock) as source:
        UserFile(path).change(with_user)
        assert source.users.get("app") is None
        await clock.advance(LOOK_SECONDS)
        await eventually(lambda: source.users.get("app") is not None)


class SlowFile(UserFile):
    """A user file whose reader is held up between its reading and its return."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_return = threading.Event()
        self.may_return.set()
        self.has_read = threading.Event()

    def load_stamped(self) -> tuple[Users, FileStamp]:
        loaded = super().load_stamped()
        self.has_read.set()
        assert self.may_return.wait(30)
        return loaded


async def test_a_slow_look_does_not_undo_a_change(tmp_path: Path) -> None:
    """A user that is deleted stays deleted although a look has read the file before."""
    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(with_user)
    file = SlowFile(path)
    async with UserSource(file, clock) as source:
        # Another process has changed the file, and the look reads what it wrote.
        UserFile(path).change(lambda users: users.with_user(new_user("other", 0)))
        file.has_read.clear()
        file.may_return.clear()
        look = asyncio.create_task(source.look())
        await asyncio.to_thread(file.has_read.wait, 30)
        change = asyncio.create_task(source.change(lambda users: users.without_user("app")))
        await asyncio.sleep(0.1)
        file.may_return.set()
        await asyncio.gather(look, change)
        assert source.users.get("app") is None
        assert source.users.get("other") is not None


async def test_a_change_right_after_ours_is_seen(tmp_path: Path) -> None:
    """The stamp is that of our own change, not of what another process wrote after it."""
    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(lambda users: users)

    class Overtaken(UserFile):
        def change_stamped(self, change):  # type: ignore[no-untyped-def]  # as in the base
            result = super().change_stamped(change)
            UserFile(path).change(lambda users: users.with_user(new_user("late", 0)))
            return result

    async with UserSource(Overtaken(path), clock) as source:
        await source.change(with_user)
        assert source.users.get("late") is None
        assert await source.look()
        assert source.users.get("late") is not None


async def test_a_file_that_is_private_again_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A change of the mode alone leaves time and size as they were."""
    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(lambda users: users)
    async with UserSource(UserFile(path), clock) as source:
        UserFile(path).change(with_user)
        path.chmod(0o644)
        for _ in range(3):
            assert not await source.look()
        assert caplog.text.count("users stay as they were") == 1
        path.chmod(0o600)
        assert await source.look()
        assert source.users.get("app") is not None


async def test_a_file_with_the_old_time_and_size_is_seen(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(with_user)
    async with UserSource(UserFile(path), clock) as source:
        status, text = path.stat(), path.read_text()
        path.write_text(text.replace('"app"', '"ape"'))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_size == status.st_size
        assert await source.look()
        assert source.users.get("ape") is not None


async def test_a_disk_error_passes_without_a_change_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(UserFile):
        fails = False

        def load_stamped(self) -> tuple[Users, FileStamp]:
            if self.fails:
                raise OSError(24, "Too many open files")
            return super().load_stamped()

    clock, path = FakeClock(), tmp_path / "auth.json"
    UserFile(path).change(lambda users: users)
    file = Failing(path)
    async with UserSource(file, clock) as source:
        UserFile(path).change(with_user)
        file.fails = True
        for _ in range(3):
            assert not await source.look()
        assert caplog.text.count("users stay as they were") == 1
        file.fails = False
        assert await source.look()
        assert source.users.get("app") is not None
