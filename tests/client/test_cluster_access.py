"""Where a cluster is and who asks: keywords, environment, and what is never shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock.client.cluster_access import ClusterAccess, Credentials, credentials, nameservers
from penstock.errors import ConfigError, InvalidArgument
from penstock.remoting.tls import Tls

VARIABLES = ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN", "TLS", "NAMESPACE")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    for name in VARIABLES:
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)


def test_the_environment_fills_in_what_the_keywords_leave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ClusterAccess.of() == ClusterAccess(namesrv=("127.0.0.1:9876",))
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    for name, value in zip(VARIABLES, ("me", "hush", "token", "on", "eu"), strict=True):
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    found = ClusterAccess.of()
    assert found.addresses == "a:1;b:2"
    assert found.credentials == Credentials(
        access_key="me", secret_key="hush", security_token="token"
    )
    assert (found.tls, found.namespace) == (Tls(), "eu")
    given = ClusterAccess.of(["c:3"], access_key="you", secret_key="k", tls=False, namespace="asia")
    assert given.namesrv == ("c:3",)
    assert given.credentials is not None
    assert given.credentials.access_key == "you"
    assert (given.tls, given.namespace) == (None, "asia")


def test_its_keywords_make_it_again_in_another_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for access in (
        ClusterAccess.of("a:1;b:2", access_key="me", secret_key="hush", tls=True, namespace="eu"),
        ClusterAccess.of("a:1"),
    ):
        monkeypatch.setenv("PENSTOCK_TLS", "false" if access.tls else "true")
        monkeypatch.setenv("NAMESRV_ADDR", "elsewhere:9")
        monkeypatch.setenv("PENSTOCK_NAMESPACE", "elsewhere")
        monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "another")
        monkeypatch.setenv("PENSTOCK_SECRET_KEY", "another")
        monkeypatch.setenv("PENSTOCK_SECURITY_TOKEN", "another")
        assert ClusterAccess.of(**access.as_keywords()) == access


def test_it_travels_to_other_processes_and_shows_no_secret() -> None:
    access = ClusterAccess.of(
        "a:1",
        access_key="me",
        secret_key="hush",
        security_token="t0ken",
        tls=Tls(ca_file=Path("ca.pem"), key_password="pass"),
    )
    assert pickle.loads(pickle.dumps(access)) == access
    assert hash(access) == hash(pickle.loads(pickle.dumps(access)))
    for shown in (repr(access), str(access), f"{access!r:.500}"):
        assert not any(secret in shown for secret in ("hush", "t0ken", "'pass'"))
    assert "a:1" in repr(access)


def test_names_are_those_of_its_namespace() -> None:
    access = ClusterAccess.of("a:1", namespace="eu")
    assert access.long_name("orders") == "eu%orders"
    assert access.short_name("%RETRY%eu%billing") == "%RETRY%billing"
    assert ClusterAccess.of("a:1").long_name("orders") == "orders"


def test_name_servers_come_as_text_or_a_list() -> None:
    assert nameservers("a:1;b:2") == ("a:1", "b:2")
    assert nameservers([" a:1 ", "b:2", "a:1"]) == ("a:1", "b:2")


def test_name_servers_come_from_the_environment_else_from_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "n1:9876;n2:9876")
    assert nameservers(None) == ("n1:9876", "n2:9876")
    monkeypatch.delenv("NAMESRV_ADDR")
    assert nameservers(None) == ("127.0.0.1:9876",)


@pytest.mark.parametrize("namesrv", ["", ";", [], 9876, [9876]])
def test_no_name_server_at_all_is_an_error(namesrv: Any) -> None:
    with pytest.raises(ConfigError, match="at least one name server"):
        nameservers(namesrv)


def test_an_address_without_a_port_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="'somewhere'"):
        nameservers("somewhere")


def test_credentials_come_in_pairs_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN"):
        monkeypatch.delenv(f"PENSTOCK_{key}", raising=False)
    assert credentials(None, None, None) is None
    given = credentials("me", "hush", "token")
    assert given == Credentials(access_key="me", secret_key="hush", security_token="token")
    assert "hush" not in repr(given)
    assert "token=" not in repr(given)
    with pytest.raises(ConfigError, match="secret_key is missing"):
        credentials("me", None, None)
    with pytest.raises(ConfigError, match="access_key is missing") as caught:
        credentials(None, "hush", None)
    assert "hush" not in str(caught.value)


def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "me")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "hush")
    monkeypatch.delenv("PENSTOCK_SECURITY_TOKEN", raising=False)
    assert credentials(None, None, None) == Credentials(access_key="me", secret_key="hush")
