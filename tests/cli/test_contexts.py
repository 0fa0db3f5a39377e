"""Clusters by name, and which one a command is for."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import fail, succeed

from penstock.cli import context_file
from penstock.cli.context_file import Context, Contexts
from penstock.cli.target import DEFAULT_NAMESRV, Target
from penstock.client.cluster_access import ClusterAccess, Credentials
from penstock.remoting.tls import Tls
from penstock.testing.embedded import Embedded


def keep(current: str | None = None, **named: Context) -> None:
    context_file.save(Contexts(named, current))


def test_without_options_the_cluster_is_on_this_machine() -> None:
    target = Target.from_options()
    assert target.namesrv == DEFAULT_NAMESRV
    assert target.access == ClusterAccess(namesrv=(DEFAULT_NAMESRV,))


def test_options_win_over_contexts_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("kept", kept=Context(namesrv="kept:1"), other=Context(namesrv="other:1"))
    assert Target.from_options().namesrv == "kept:1"
    monkeypatch.setenv("NAMESRV_ADDR", "variable:1")
    assert Target.from_options().namesrv == "variable:1"
    assert Target.from_options(context="other").namesrv == "other:1"
    assert Target.from_options(context="other", namesrv="flag:1").namesrv == "flag:1"
    assert Target.from_options(namesrv="flag:1").namesrv == "flag:1"


def test_keys_of_one_cluster_are_not_sent_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(**options: Any) -> Credentials | None:
        return Target.from_options(**options).access.credentials

    keep("kept", kept=Context(namesrv="kept:1", access_key="me", secret_key="proof"))
    mine = Credentials(access_key="me", secret_key="proof")
    assert keys() == mine
    assert keys(namesrv="elsewhere:1") is None
    yours = Credentials(access_key="you", secret_key="yours")
    assert keys(namesrv="elsewhere:1", access_key="you", secret_key="yours") == yours
    # A named context supplies its keys for any address.
    assert keys(namesrv="elsewhere:1", context="kept") == mine
    monkeypatch.setenv("NAMESRV_ADDR", "variable:1")
    assert keys() is None


def test_options_come_before_the_context() -> None:
    keep("kept", kept=Context(namesrv="kept:1", namespace="shop", tls=True))
    changed = Target.from_options(tls=False, namespace="bank").access
    assert (changed.tls, changed.namespace) == (None, "bank")
    kept = Target.from_options().access
    assert (kept.tls, kept.namespace) == (Tls(), "shop")


def test_certificates_to_trust_imply_tls(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    assert Target.from_options(tls_ca=file).access.tls == Tls(ca_file=file)
    assert Target.from_options(tls_ca=file, tls=False).access.tls is None


def test_no_secret_is_in_the_text_of_a_target() -> None:
    target = Target.from_options(secret_key="proof", security_token="pass")
    assert "proof" not in repr(target)
    assert "pass" not in repr(target)


def test_a_context_is_used_when_asked_and_not_before(home: Path) -> None:
    assert succeed("context", "list").out == ""
    added = succeed("context", "add", "one", "--namesrv", "one:9876").out
    assert "Commands do not go there yet" in added
    assert "penstock context use one" in added
    assert Target.from_options().namesrv == DEFAULT_NAMESRV
    added = succeed("context", "add", "one", "--namesrv", "one:9876", "--use").out
    assert added == "Changed one: one:9876.\n"
    succeed("context", "add", "two", "--namesrv", "two:9876; three:9876", "--tls")
    rows = succeed("context", "list", "--json").json
    assert [(row["name"], row["current"], row["namesrv"]) for row in rows] == [
        ("one", True, "one:9876"),
        ("two", False, "two:9876;three:9876"),
    ]
    assert succeed("context", "use", "two", "--json").json["current"] is True
    assert Target.from_options().access.tls == Tls()
    assert succeed("context", "list").lines[2][:3] == ["*", "two", "two:9876;three:9876"]
    assert (home / "penstock" / "contexts.json").exists()


def test_secrets_are_kept_for_their_owner_and_never_shown(home: Path) -> None:
    (home.parent / "me.secret").write_text("proof\n")
    keys = ["--access-key", "me", "--secret-key-file", str(home.parent / "me.secret")]
    keys += ["--security-token", "pass"]
    added = succeed("context", "add", "guarded", "--namesrv", "one:9876", *keys)
    listed = succeed("context", "list", "--json")
    for done in (added, listed, succeed("context", "list")):
        assert "proof" not in done.out + done.err
        assert "pass" not in done.out + done.err
    assert listed.json[0]["access_key"] == "me"
    file = home / "penstock" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    saved = Target.from_options(context="guarded").access.credentials
    assert saved == Credentials(access_key="me", secret_key="proof", security_token="pass")


def test_the_user_of_the_environment_wins_over_the_current_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Context(namesrv="one:1", access_key="admin", secret_key="a", tls=True)
    keep("local", local=admin)
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "app")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "b")
    used = Target.from_options().access
    assert (used.addresses, used.tls) == ("one:1", Tls())
    assert used.credentials == Credentials(access_key="app", secret_key="b")
    asked_for = Target.from_options(context="local").access.credentials
    assert asked_for == Credentials(access_key="admin", secret_key="a")


def test_a_removed_context_is_gone_and_no_longer_in_use() -> None:
    keep("one", one=Context(namesrv="one:1"), two=Context(namesrv="two:1"))
    assert "--yes" in fail("context", "remove", "one")
    assert Target.from_options().namesrv == "one:1"
    succeed("context", "remove", "one", "--yes")
    assert Target.from_options().namesrv == DEFAULT_NAMESRV
    assert [row["name"] for row in succeed("context", "list", "--json").json] == ["two"]


def test_a_context_that_is_not_there_suggests_the_nearest() -> None:
    keep(None, staging=Context(namesrv="one:1"))
    assert "did you mean staging?" in fail("topic", "list", "--context", "stagin")
    assert "did you mean staging?" in fail("context", "remove", "stagin")
    assert "penstock context add live" in fail("context", "use", "live")


@pytest.mark.parametrize("address", ["nonsense", "", "one:9876;http://two", "one:0"])
def test_a_context_needs_an_address_that_is_one(address: str) -> None:
    assert "host:port" in fail("context", "add", "one", "--namesrv", address)
    assert context_file.load().named == {}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"contexts": []}',
        '{"contexts": {"one": {}}}',
        '{"contexts": {"one": {"namesrv": 7}}}',
        '{"contexts": {"one": {"namesrv": "one:1", "colour": "red"}}}',
        '{"contexts": {"one": "one:1"}}',
        '{"contexts": {}, "current": 7}',
        b"\xff\xfe".decode("latin1"),
    ],
)
def test_a_file_of_something_else_is_one_sentence(content: str, home: Path) -> None:
    file = home / "penstock" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(content, encoding="latin1")
    said = fail("context", "list")
    assert str(file) in said
    assert context_file.complete_names(None, None, "") == []


def test_a_current_context_that_is_gone_is_none(home: Path) -> None:
    file = home / "penstock" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"contexts": {"one": {"namesrv": "one:1"}}, "current": "two"}))
    assert context_file.load().current is None


def test_a_home_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    said = fail("context", "add", "one", "--namesrv", "one:1")
    assert "XDG_CONFIG_HOME" in said


def test_without_a_config_home_it_is_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert context_file.path() == tmp_path / ".config" / "penstock" / "contexts.json"
    # The specification wants relative paths to be ignored.
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    assert context_file.path() == tmp_path / ".config" / "penstock" / "contexts.json"


def test_a_user_without_a_home_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert Target.from_options().namesrv == DEFAULT_NAMESRV
    assert "XDG_CONFIG_HOME" in fail("context", "add", "one", "--namesrv", "one:1")


def test_a_command_goes_to_the_cluster_of_a_context(running_cluster: Embedded) -> None:
    running_cluster.admin.create_topic("contexts-lead-here", 1)
    succeed("context", "add", "here", "--namesrv", running_cluster.namesrv, "--use")
    assert "contexts-lead-here" in succeed("topic", "list", "--names").out
    succeed("context", "add", "nowhere", "--namesrv", "127.0.0.1:1", "--use")
    assert "context nowhere: none of the name servers" in fail("topic", "list", "--names")
    assert "context" not in fail("topic", "list", "-n", "127.0.0.1:1").partition("; try:")[0]
    assert "contexts-lead-here" in succeed("topic", "list", "--names", "--context", "here").out


def test_the_shell_completes_names_of_contexts() -> None:
    keep(None, staging=Context(namesrv="one:1"), live=Context(namesrv="two:1"))
    assert context_file.complete_names(None, None, "sta") == ["staging"]
    assert context_file.complete_names(None, None, "") == ["live", "staging"]
