"""Which cluster a pipeline talks to, also on machines with another environment."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.remoting.tls import ClientTls
from penstock.spark.option_reader import OptionReader, parse_access
from penstock.spark.pipelines.cluster import Cluster
from penstock.spark.source.options import READ_OPTIONS
from penstock.testing.embedded import Embedded

ENVIRONMENT = {
    "NAMESRV_ADDR": "10.0.0.9:9876",
    "PENSTOCK_ACCESS_KEY": "AK",
    "PENSTOCK_SECRET_KEY": "SK",
    "PENSTOCK_SECURITY_TOKEN": "ST",
    "PENSTOCK_NAMESPACE": "shop",
    "PENSTOCK_TLS": "true",
}


def test_what_the_drivers_environment_says_goes_to_the_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster.of(None, {})
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    there = pickle.loads(pickle.dumps(cluster))
    assert there.namesrv == "10.0.0.9:9876"
    assert there.access == {
        "access_key": "AK",
        "secret_key": "SK",
        "security_token": "ST",
        "namespace": "shop",
        "tls": ClientTls(),
    }
    assert "SK" not in repr(there)
    # The source and the sink are told the same.
    told = parse_access(OptionReader(there.options(), READ_OPTIONS))
    assert (told.access_key, told.secret_key, told.security_token) == ("AK", "SK", "ST")
    assert (told.namespace, told.tls) == ("shop", ClientTls())


def test_no_tls_on_the_driver_is_none_on_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.of("127.0.0.1:9876", {})
    monkeypatch.setenv("PENSTOCK_TLS", "true")
    assert parse_access(OptionReader(cluster.options(), READ_OPTIONS)).tls is None
    assert cluster.access["tls"] is False


def test_what_is_given_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    tls = ClientTls(ca_file=Path("/etc/ca.pem"))
    cluster = Cluster.of(["a:1", "b:2"], {"namespace": "bank", "tls": tls})
    assert cluster.namesrv == "a:1;b:2"
    assert (cluster.access["namespace"], cluster.access["tls"]) == ("bank", tls)


def test_an_executor_sees_the_topics_of_the_drivers_namespace(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_NAMESPACE", "shop")
    cluster = Cluster.of(mq.namesrv, {})
    monkeypatch.delenv("PENSTOCK_NAMESPACE")
    with pickle.loads(pickle.dumps(cluster)).admin() as admin:
        admin.create_topic("orders", 1)
    assert "shop%orders" in mq.admin.topics()
