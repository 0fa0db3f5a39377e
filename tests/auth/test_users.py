"""The table of users, and the file that keeps it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.failed_tries import FREE_TRIES, MAX_LINES, MAX_PAIRS, WINDOW_MS, FailedTries
from penstock.auth.model import Entry, Resource, Secret, User, UserLimits, UserStatus, UserType
from penstock.auth.secret_uses import SecretUses, load_uses
from penstock.auth.user_file import UserFile, decode_users, encode_users, resolve_secret
from penstock.auth.users import Users, new_user, rotated
from penstock.errors import ConfigError, NoPermission, PenstockError, StoreDamaged

entries = st.builds(
    Entry.parse,
    st.sampled_from(["*", "Topic:a*", "Group:g", "Cluster:c"]),
    st.lists(st.sampled_from(["Pub", "Sub", "All"]), min_size=1),
    st.sampled_from(["Allow", "Deny"]),
    st.lists(st.sampled_from(["10.0.0.0/8", "::1"])),
    st.sampled_from(["Custom", "Default"]),
)
users = st.builds(
    User,
    st.text("abcäö主", min_size=1, max_size=5),
    st.lists(
        st.builds(
            Secret,
            st.text("0123abcd", min_size=1, max_size=4),
            st.text(min_size=1, max_size=8).filter(lambda text: max(text, default="") < "\udc80"),
            st.integers(0, 2**41),
            st.none() | st.integers(0, 2**41),
        ),
        max_size=2,
    ).map(tuple),
    st.sampled_from(UserType),
    st.sampled_from(UserStatus),
    st.builds(UserLimits, *[st.none() | st.integers(1, 100)] * 4),
    st.lists(entries, max_size=3).map(tuple),
)


@given(st.lists(users, max_size=4), st.integers(0, 100))
def test_the_file_keeps_everything(rows: list[User], generation: int) -> None:
    table = Users({user.name: user for user in rows}, generation)
    assert decode_users(encode_users(table), "here") == table


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["format", "users", "rights", "secrets", "a"]), inner)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_content_of_the_file_is_more_than_an_error(data: bytes) -> None:
    with contextlib.suppress(StoreDamaged):
        decode_users(data, "here")


@pytest.mark.spec("A68")
def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "auth.json")
    file.change(lambda table: table.with_user(new_user("a", 0, type_=UserType.SUPER)))
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        file.load()


def test_a_change_holds_the_lock_from_reading_to_writing(tmp_path: Path) -> None:
    """Else of two changes at the same time the first one would be lost."""
    file = UserFile(tmp_path / "auth.json")

    def change(before: Users) -> Users:
        with (tmp_path / "auth.lock").open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return before

    file.change(change)
    with (tmp_path / "auth.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.spec("A68", "A70")
def test_a_damaged_file_is_named_without_its_secrets(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "auth.json")
    file.change(lambda table: table.with_user(new_user("a", 0, value="very-secret-value")))
    text = file.path.read_text().replace('"type": "Normal"', '"type": "Norml"')
    file.path.write_text(text)
    with pytest.raises(StoreDamaged, match="user type 'Norml'") as caught:
        file.load()
    assert "very-secret-value" not in str(caught.value)


@pytest.mark.spec("A65")
def test_the_last_super_user_stays() -> None:
    table = Users().with_user(new_user("root", 0, type_=UserType.SUPER))
    with pytest.raises(NoPermission, match="root is the last super user"):
        table.without_user("root")
    two = table.with_user(new_user("other", 0, type_=UserType.SUPER))
    assert two.without_user("root").get("root") is None


@pytest.mark.spec("A61")
def test_entries_of_a_resource_are_replaced_and_others_stay() -> None:
    table = Users().with_user(new_user("a", 0))
    table = table.with_entries(
        "a", [Entry.parse("Topic:t", ["Pub"]), Entry.parse("Group:g", ["Sub"])]
    )
    table = table.with_entries("a", [Entry.parse("Topic:t", ["Sub"], "Deny")])
    assert [str(entry) for entry in table.require("a").entries] == [
        "Allow Sub Group:g",
        "Deny Sub Topic:t",
    ]
    left = table.without_entries("a", Resource.parse("Topic:t")).require("a").entries
    assert [str(entry) for entry in left] == ["Allow Sub Group:g"]


def test_a_rotation_keeps_the_secret_that_is_in_use_for_a_while() -> None:
    def kept(user: User) -> dict[str, int | None]:
        return {one.value: one.expires_ms for one in user.secrets}

    user = rotated(new_user("a", 0, value="one"), 1000, grace_ms=500, value="two")
    assert kept(user) == {"one": 1500, "two": None}
    again = rotated(user, 1200, grace_ms=1000, value="three")
    assert kept(again) == {"two": 2200, "three": None}
    # What ends anyhow does not get more time.
    ending = replace(user, secrets=(replace(user.secrets[1], expires_ms=1300),))
    assert kept(rotated(ending, 1200, grace_ms=1000, value="four")) == {"two": 1300, "four": None}
    assert kept(rotated(user, 1200, grace_ms=0, value="five")) == {"five": None}


def test_a_secret_may_be_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").write_text("from-file\n")
    monkeypatch.setenv("APP_SECRET", "from-env")
    assert resolve_secret("env:APP_SECRET") == "from-env"
    assert resolve_secret(f"file:{tmp_path / 's'}") == "from-file"
    assert resolve_secret("plain") == "plain"
    assert resolve_secret("env:NOT_SET_ANYWHERE") is None
    assert resolve_secret(f"file:{tmp_path / 'missing'}") is None
    assert resolve_secret(f"file:{tmp_path}") is None
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", "/dev/zero"):
        # A pipe without a writer would keep the reader for ever.
        assert resolve_secret(f"file:{odd}") is None


def test_last_uses_do_not_bring_a_removed_directory_back(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "data" / "auth.json")
    file.change(lambda table: table.with_user(new_user("a", 0)))
    uses = SecretUses(file)
    uses.note("a", "one", 1_000_000)
    uses.save()
    assert load_uses(tmp_path / "data") == {"a": {"one": 1_000_000}}
    shutil.rmtree(tmp_path / "data")
    uses.note("a", "one", 2_000_000)
    uses.save()
    assert not (tmp_path / "data").exists()


@pytest.mark.spec("A21")
def test_failed_tries_are_bounded_and_forgotten() -> None:
    tries = FailedTries()
    for _ in range(FREE_TRIES - 1):
        tries.failed("1.2.3.4", "app", 0)
    assert not tries.must_wait("1.2.3.4", "app", 0)
    tries.failed("1.2.3.4", "app", 0)
    assert tries.must_wait("1.2.3.4", "app", 999)
    assert not tries.must_wait("1.2.3.4", "app", 1_000)
    assert not tries.must_wait("5.6.7.8", "app", 0)
    tries.failed("1.2.3.4", "app", 1_000)
    assert tries.must_wait("1.2.3.4", "app", 2_999)
    for number in range(MAX_PAIRS + 10):
        tries.failed("1.2.3.4", f"user-{number}", 0)
    assert len(tries) <= MAX_PAIRS
    # Nor do invented names fill the log; a minute later it goes on.
    logged = [tries.failed("6.6.6.6", f"name-{number}", 100_000) for number in range(10_000)]
    assert sum(logged) == MAX_LINES
    assert not tries.failed("6.6.6.6", "one more", 100_001)
    assert tries.failed("6.6.6.6", "and later", 100_000 + WINDOW_MS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "auth.json")
    file.change(lambda table: table.with_user(new_user("a", 0)))
    os.chown(file.path, 12345, 12345)
    with pytest.raises(PenstockError, match="belongs to user 12345"):
        file.load()
