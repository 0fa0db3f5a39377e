"""One cluster, as options of Spark and back, also on machines with another environment."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import ClusterAccess
from penstock.remoting.tls import Tls
from penstock.spark.access_options import access_options
from penstock.spark.source.options import parse_read
from penstock.testing.embedded import Embedded

ENVIRONMENT = {
    "NAMESRV_ADDR": "10.0.0.9:9876",
    "PENSTOCK_ACCESS_KEY": "AK",
    "PENSTOCK_SECRET_KEY": "SK",
    "PENSTOCK_SECURITY_TOKEN": "ST",
    "PENSTOCK_NAMESPACE": "shop",
    "PENSTOCK_TLS": "true",
}


def parsed(access: ClusterAccess) -> ClusterAccess:
    return parse_read({**access_options(access), "topic": "orders"}).access


@pytest.mark.parametrize(
    "access",
    [
        ClusterAccess(namesrv=("a:1", "b:2")),
        ClusterAccess.of(
            "a:1", access_key="AK", secret_key="SK", security_token="ST", namespace="shop"
        ),
        ClusterAccess.of(
            "a:1",
            tls=Tls(verify=False, ca_file=Path("/etc/ca.pem"), key_password="hush"),
        ),
    ],
)
def test_options_give_the_same_access_back(access: ClusterAccess) -> None:
    assert parsed(access) == access


def test_the_environment_of_the_driver_reaches_the_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    access = ClusterAccess.of()
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    there = pickle.loads(pickle.dumps(access))
    assert there == access
    assert "SK" not in repr(there)
    assert parsed(there) == ClusterAccess.of(
        "10.0.0.9:9876",
        access_key="AK",
        secret_key="SK",
        security_token="ST",
        namespace="shop",
        tls=True,
    )


def test_no_tls_on_the_driver_means_no_tls_on_the_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = ClusterAccess.of("127.0.0.1:9876")
    monkeypatch.setenv("PENSTOCK_TLS", "true")
    assert parsed(access).tls is None


def test_an_executor_sees_the_topics_of_the_drivers_namespace(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_NAMESPACE", "shop")
    access = ClusterAccess.of(mq.namesrv)
    monkeypatch.delenv("PENSTOCK_NAMESPACE")
    with Admin(**pickle.loads(pickle.dumps(access)).as_keywords()) as admin:
        admin.create_topic("orders", 1)
    assert "shop%orders" in mq.admin.topics()
