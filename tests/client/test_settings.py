"""Settings of clients, and values that are refused before anything starts."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.client.settings import (
    CONCURRENT_RETRIES,
    PROFILES,
    UNLIMITED,
    ConsumerSettings,
    ProducerSettings,
    StartFrom,
    profile,
)
from penstock.errors import ConfigError, IllegalName


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("threads", 1, 1000),
        ("max_span", 1, 65_535),
        ("queue_limit", 1, 65_535),
        ("topic_limit", 1, 6_553_500),
        ("queue_limit_mib", 1, 1024),
        ("topic_limit_mib", 1, 102_400),
        ("pull_interval", 0, 65.535),
        ("batch_size", 1, 1024),
        ("pull_batch_size", 1, 1024),
    ],
)
def test_consumer_settings_have_the_ranges_of_the_java_client(
    key: str, low: float, high: float
) -> None:
    def make(value: float) -> ConsumerSettings:
        arguments: dict[str, Any] = {key: value}
        return ConsumerSettings(group="billing", **arguments)

    make(low)
    make(high)
    for outside in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=f"{key} is .*expected {low} to {high}"):
            make(outside)


def test_more_threads_than_the_maximum_are_refused() -> None:
    ConsumerSettings(group="billing", threads=4, max_threads=8)
    with pytest.raises(ConfigError, match="threads is 9, max_threads is 8"):
        ConsumerSettings(group="billing", threads=9, max_threads=8)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="model is 'cluster'"):
        ConsumerSettings(group="billing", model="cluster")  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["", "has blank", "x" * 121, "DEFAULT_CONSUMER"])
def test_an_illegal_group_is_refused_before_anything_starts(group: str) -> None:
    with pytest.raises(IllegalName):
        ConsumerSettings(group=group)


def test_a_producer_needs_a_legal_group_too() -> None:
    with pytest.raises(IllegalName):
        ProducerSettings(group="DEFAULT_PRODUCER")
    with pytest.raises(ConfigError, match="retries is -1"):
        ProducerSettings(group="shop", retries=-1)


@pytest.mark.spec("S95", "S143")
def test_the_number_of_retries_depends_on_the_kind_of_consumer() -> None:
    assert ConsumerSettings(group="g").max_reconsume_times == CONCURRENT_RETRIES == 16
    assert ConsumerSettings(group="g", orderly=True).max_reconsume_times == UNLIMITED
    for orderly in (False, True):
        settings = ConsumerSettings(group="g", orderly=orderly, max_retries=3)
        assert settings.max_reconsume_times == 3


def test_the_defaults_are_those_of_the_java_client() -> None:
    settings = ConsumerSettings(group="g")
    assert settings.is_clustering
    assert (settings.batch_size, settings.pull_batch_size, settings.threads) == (1, 32, 20)
    assert asdict(settings.limits) == {"count": 1000, "size_mib": 100, "span": 2000}
    assert settings.consume_timeout == 900.0
    producer = ProducerSettings(group="p")
    assert (producer.send_timeout, producer.retries, producer.compress_over) == (3.0, 2, 4096)


def test_both_profiles_give_a_value_for_each_difference() -> None:
    current, documents = profile("current"), profile("documents")
    assert set(PROFILES) == {"current", "documents"}
    differing = {
        key for key, value in asdict(current).items() if value != asdict(documents)[key]
    } - {"name"}
    assert differing == set(asdict(current)) - {"name"}
    with pytest.raises(ConfigError, match="profile is 'old'; expected one of current, documents"):
        profile("old")


def test_where_to_start_has_a_name_on_the_wire() -> None:
    assert StartFrom("last").wire_name == "CONSUME_FROM_LAST_OFFSET"
    assert StartFrom("first").wire_name == "CONSUME_FROM_FIRST_OFFSET"
    assert StartFrom("time", 5).wire_name == "CONSUME_FROM_TIMESTAMP"


@pytest.mark.parametrize("module", [penstock, penstock.aio], ids=["blocking", "awaiting"])
@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "PullConsumer"])
def test_errors_of_arguments_name_the_class(module: Any, name: str) -> None:
    client = getattr(module, name)
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 .* argument: 'group'$"):
        client()
    with pytest.raises(TypeError, match=rf"^{name}\(\) takes 2 positional arguments"):
        client("g", "127.0.0.1:9876")
    # What tools show is still the whole signature.
    assert list(inspect.signature(client).parameters)[:2] == ["group", "namesrv"]


def test_a_class_of_ones_own_keeps_its_own_arguments() -> None:
    class Shop(penstock.Producer):
        def __init__(self, name: str) -> None:
            super().__init__(f"shop-{name}")

    with pytest.raises(TypeError, match=r"Shop\.__init__\(\) missing 1 .*'name'"):
        Shop()  # type: ignore[call-arg]
    assert Shop("a")._settings.group == "shop-a"
