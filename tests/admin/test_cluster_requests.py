"""How an Admin reaches its cluster: lazily, past dead name servers, with errors that name them."""

from __future__ import annotations

import inspect
import socket
import threading

import pytest

from penstock import Admin, aio
from penstock.admin import BrokerAddress, admin
from penstock.admin.cluster_requests import ClusterRequests
from penstock.errors import (
    ConfigError,
    LifecycleError,
    NameserverUnavailable,
    PenstockError,
    ServiceNotAvailable,
)
from penstock.nameserver import NameServer, NameServerConfig
from penstock.testing.embedded import Embedded, embedded


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nothing_is_connected_before_the_first_call() -> None:
    before = set(threading.enumerate())
    unused = Admin(namesrv="127.0.0.1:1")
    assert set(threading.enumerate()) == before
    unused.close()


def test_the_brokers_of_the_cluster_are_shown(mq: Embedded) -> None:
    assert mq.admin.cluster() == [
        BrokerAddress("DefaultCluster", "broker-a", 0, "10.0.1.1:10911"),
        BrokerAddress("DefaultCluster", "broker-b", 0, "10.0.1.2:10911"),
    ]


def test_a_broker_tells_of_itself_by_name_and_by_address(mq: Embedded) -> None:
    info = mq.admin.broker_info("broker-a")
    assert info["brokerVersionDesc"].startswith("V")
    assert mq.admin.broker_info("10.0.1.1:10911")["bootTimestamp"] == info["bootTimestamp"]
    assert mq.admin.broker_config("broker-b")["brokerName"] == "broker-b"
    with pytest.raises(ServiceNotAvailable, match=r"'broker-z'.*broker-a, broker-b"):
        mq.admin.broker_info("broker-z")
    with pytest.raises(PenstockError, match=r"10\.0\.1\.9:10911"):
        mq.admin.broker_info("10.0.1.9:10911")


def test_settings_of_a_running_broker_change(mq: Embedded) -> None:
    mq.admin.update_broker_config("broker-a", {"autoCreateTopicEnable": "false"})
    assert mq.admin.broker_config("broker-a")["autoCreateTopicEnable"] == "false"
    assert mq.admin.broker_config("broker-b")["autoCreateTopicEnable"] == "true"


def test_a_name_server_that_is_away_is_passed_over() -> None:
    dead = f"127.0.0.1:{free_port()}"
    with embedded() as mq, Admin(namesrv=[dead, mq.namesrv]) as both:
        for _ in range(3):
            assert [row.broker_name for row in both.cluster()] == ["broker-a"]
        assert both.create_topic("orders", 1).queues


def test_when_none_answers_all_are_named() -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with Admin(namesrv=";".join(dead), timeout=1) as lost:
        for ask in (lost.cluster, lost.topics, lost.groups):
            with pytest.raises(NameserverUnavailable) as caught:
                ask()
            assert all(address in str(caught.value) for address in dead)


async def test_a_name_server_without_brokers_is_an_error_with_a_way_out() -> None:
    config = NameServerConfig(bind_host="127.0.0.1", listen_port=0)
    async with NameServer(config) as server, aio.Admin(namesrv=server.address) as lonely:
        assert await lonely.cluster() == []
        assert await lonely.topics() == []
        with pytest.raises(ServiceNotAvailable, match=f"{server.address}.*penstock broker"):
            await lonely.create_topic("orders")


def test_a_closed_admin_says_so_and_closing_twice_is_harmless() -> None:
    before = set(threading.enumerate())
    with embedded() as mq:
        client = Admin(namesrv=mq.namesrv)
        assert client.topics() == []
        client.close()
        client.close()
        with pytest.raises(LifecycleError, match=f"{mq.namesrv} was closed"):
            client.topics()
    assert set(threading.enumerate()) <= before


async def test_a_closed_admin_of_coroutines_says_so_too() -> None:
    async with aio.embedded() as mq:
        async with aio.Admin(namesrv=mq.namesrv) as client:
            assert await client.topics() == []
        await client.close()
        with pytest.raises(LifecycleError, match="was closed"):
            await client.topics()


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'colour'"):
        Admin(colour="blue")  # type: ignore[call-arg]  # what the test is about


def test_half_of_the_credentials_are_refused_and_secrets_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="secret_key is missing"):
        Admin(access_key="me")
    whole = Admin(access_key="me", secret_key="very-secret")
    assert "very-secret" not in repr(whole._actions._settings)


def test_both_classes_have_the_same_actions() -> None:
    """The blocking class has the signature and the documentation of each coroutine."""

    def actions(cls: type) -> dict[str, inspect.Signature]:
        found = {}
        for name, value in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith("_") or name in {"close", "give_up"}:
                continue
            if value.__qualname__.startswith("ClusterRequests.") or name in _NOT_ACTIONS:
                continue
            found[name] = inspect.signature(value)
        return found

    blocking, awaiting = actions(Admin), actions(admin.Admin)
    assert blocking == awaiting
    assert len(blocking) > 20
    for name in blocking:
        assert inspect.getdoc(getattr(Admin, name)) == inspect.getdoc(getattr(admin.Admin, name))
        assert inspect.iscoroutinefunction(getattr(admin.Admin, name))
        assert not inspect.iscoroutinefunction(getattr(Admin, name))


_NOT_ACTIONS = {name for name in vars(ClusterRequests) if name[0] != "_"}
