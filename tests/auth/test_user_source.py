"""Servers that follow the same user file."""

from __future__ import annotations

from pathlib import Path

from tests.support.fake_clock import FakeClock

from penstock.auth.user_file import UserFile
from penstock.auth.user_source import LOOK_SECONDS, UserSource
from penstock.auth.users import Users, new_user
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
