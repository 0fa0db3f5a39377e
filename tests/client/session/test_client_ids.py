"""What a client calls itself."""

from __future__ import annotations

import ipaddress
import os

import pytest

from penstock.client.session.client_ids import client_id, local_ip, new_instance, renamed


@pytest.mark.spec("S7")
def test_a_client_id_is_ip_instance_and_the_unit_if_there_is_one() -> None:
    assert client_id("10.0.0.5", "workers") == "10.0.0.5@workers"
    assert client_id("10.0.0.5", "workers", "unit-1") == "10.0.0.5@workers@unit-1"
    assert client_id("10.0.0.5", "workers", "") == "10.0.0.5@workers"


@pytest.mark.spec("S7")
def test_generated_instances_are_unique_and_tell_the_process() -> None:
    names = {new_instance(by_process=False) for _ in range(100)}
    assert len(names) == 100
    assert {name.partition("#")[0] for name in names} == {str(os.getpid())}


@pytest.mark.spec("S7")
def test_the_old_rule_names_an_instance_after_the_process() -> None:
    assert new_instance(by_process=True) == str(os.getpid())


@pytest.mark.parametrize("unit", [None, "unit-1"])
def test_a_client_that_is_named_anew_keeps_its_address_and_unit(unit: str | None) -> None:
    old = client_id("10.0.0.5", new_instance(by_process=False), unit)
    new = renamed(old, by_process=False)
    assert new != old
    ip, instance, *rest = new.split("@")
    assert (ip, rest) == ("10.0.0.5", [unit] if unit else [])
    assert instance.startswith(f"{os.getpid()}#")


def test_the_local_address_is_the_one_that_faces_the_name_server() -> None:
    assert local_ip(["127.0.0.1:9876"]) == "127.0.0.1"


@pytest.mark.parametrize("addresses", [[], ["broker.internal:9876"], ["[::1]:9876"], ["x"]])
def test_an_address_is_found_without_resolving_names(addresses: list[str]) -> None:
    ipaddress.IPv4Address(local_ip(addresses))
