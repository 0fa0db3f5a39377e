"""Keywords of the public classes: what is refused, and in which words."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict
from typing import Any, get_type_hints

import pytest

from penstock import Producer, PullConsumer, PushConsumer, aio
from penstock.client.arguments import (
    AccessOptions,
    ConsumerOptions,
    ProducerOptions,
    PullConsumerOptions,
)
from penstock.client.cluster_access import ACCESS_OPTIONS
from penstock.client.facades.producer import ProducerFacade
from penstock.client.facades.push_consumer import PushConsumerFacade
from penstock.client.options import options_of, options_table
from penstock.client.settings import (
    IDENTITY_OPTIONS,
    ConsumerSettings,
    ProducerSettings,
    SessionSettings,
)
from penstock.errors import ConfigError, IllegalName
from penstock.runtime.durations import Duration


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("orderly", True), ("threads", 5), ("max_retries", 3), ("model", "broadcasting")],
)
def test_what_means_nothing_to_a_pull_consumer_is_refused(keyword: str, value: object) -> None:
    options: dict[str, Any] = {keyword: value}
    with pytest.raises(ConfigError, match=rf"unknown keyword: '{keyword}'; try: one of .*batch_"):
        PullConsumer("readers", **options)
    with pytest.raises(ConfigError, match=rf"unknown keyword: '{keyword}'; try: one of .*batch_"):
        aio.PullConsumer("readers", **options)


def test_how_far_a_pull_consumer_reads_ahead_can_be_set() -> None:
    reader = PullConsumer(
        "readers", max_span=500, queue_limit=50, queue_limit_mib=8, pull_interval="10ms"
    )
    assert asdict(reader._settings.limits) == {"count": 50, "size_mib": 8, "span": 500}
    assert reader._settings.pull_interval == 0.01


@pytest.mark.parametrize(
    ("client", "keyword", "value", "expected"),
    [
        (Producer, "retries", "2", "a whole number, 0 to 100"),
        (Producer, "retries", None, "a whole number, 0 to 100"),
        (Producer, "max_in_flight", True, "a whole number, 1 to 1000000"),
        (Producer, "linger_bytes", 0, "1 to 2147483647"),
        (Producer, "compression", 5, "zlib, lz4 or zstd"),
        (Producer, "avoid_slow_brokers", "no", "True or False"),
        (PushConsumer, "threads", "20", "a whole number, 1 to 1000"),
        (PushConsumer, "batch_size", 2.5, "a whole number, 1 to 1024"),
        (PushConsumer, "max_retries", "3", "a whole number, 0 to 2147483647"),
        (PushConsumer, "orderly", "yes", "True or False"),
        (PushConsumer, "heartbeat_interval", 0, "0.001 to 86400"),
        (PushConsumer, "offsets_dir", 5, "a path"),
        (PullConsumer, "batch_size", 2.5, "a whole number, 1 to 1024"),
        (PullConsumer, "batch_size", 0, "1 to 1024"),
        (PullConsumer, "auto_commit", "no", "True or False"),
        (PullConsumer, "persist_interval", 0, "0.001 to 86400"),
        (PullConsumer, "tls", "false", "True, False or a Tls"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_keyword(
    client: type[Producer], keyword: str, value: object, expected: str
) -> None:
    options: dict[str, Any] = {keyword: value}
    shown = rf"{keyword} is ({re.escape(repr(value))}|0.0)"
    with pytest.raises(ConfigError, match=rf"^{shown}; expected {re.escape(expected)}$"):
        client("g", **options)


def test_errors_name_the_keyword_and_show_no_secret() -> None:
    with pytest.raises(ConfigError, match=r"^send_timeout: None is not a duration; expected sec"):
        Producer("shop", send_timeout=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^route_interval: 'soon' is not a duration"):
        Producer("shop", route_interval="soon")
    with pytest.raises(ConfigError, match=r"^secret_key is of type bytes; expected text$"):
        Producer("shop", access_key="me", secret_key=b"hush")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^namespace is of type int; expected text$"):
        Producer("shop", namespace=5)  # type: ignore[arg-type]
    with pytest.raises(IllegalName, match="group name 5 is of type int"):
        Producer(5, namespace="eu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="compression 'gzip'"):
        Producer("shop", compression="gzip")


SHARED = {**ACCESS_OPTIONS, **IDENTITY_OPTIONS, **options_of(SessionSettings)}


@pytest.mark.parametrize(
    ("facade", "keywords", "settings"),
    [
        (ProducerFacade, ProducerOptions, ProducerSettings),
        (PushConsumerFacade, ConsumerOptions, ConsumerSettings),
    ],
)
def test_the_keywords_of_a_class_are_the_declared_options(
    facade: type, keywords: Any, settings: type
) -> None:
    declared = {**SHARED, **options_of(settings)}
    parameters = inspect.signature(facade).parameters
    named = {name for name in parameters if name in declared}
    assert named | keywords.__optional_keys__ == set(declared)
    assert not named & keywords.__optional_keys__
    for name in named - {"start_from", "allocation"}:
        assert parameters[name].default == declared[name].default, name


def test_a_typed_keyword_has_the_type_of_its_option() -> None:
    for keywords, settings in (
        (ProducerOptions, ProducerSettings),
        (ConsumerOptions, ConsumerSettings),
        (PullConsumerOptions, ConsumerSettings),
        (AccessOptions, SessionSettings),
    ):
        typed, fields = get_type_hints(keywords), get_type_hints(settings)
        for name, option in options_of(settings).items():
            if name in typed and name not in ("compression", "offsets_dir"):
                assert typed[name] == (Duration if option.is_duration else fields[name]), name


def test_pull_consumers_take_options_of_consumers() -> None:
    own = PullConsumerOptions.__optional_keys__ - AccessOptions.__optional_keys__
    assert own < set(options_of(ConsumerSettings))


def test_each_option_has_a_meaning_a_java_setting_and_a_legal_default() -> None:
    for options in (
        SHARED,
        options_of(ProducerSettings),
        options_of(ConsumerSettings),
    ):
        for name, option in options.items():
            assert option.java, name
            assert option.doc, name
            if option.check is not None and option.default is not None:
                option.check(name, option.default)
    table = options_table(options_of(ProducerSettings))
    assert "| `retries` | `2` | further attempts" in table
    assert "| `send_timeout` | `3.0 s` |" in table


@pytest.mark.parametrize("kind", [Producer, PushConsumer])
def test_each_named_keyword_is_documented_with_the_setting_of_java(kind: type) -> None:
    text = " ".join((kind.__doc__ or "").split())
    parameters = inspect.signature(kind).parameters.values()
    named = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    assert named[:2] == ["group", "namesrv"]
    # The setting stands in brackets after the keyword.
    shown = {name for name in named if re.search(rf"``{name}``[^`]*?\(\w*[a-z][A-Z]", text)}
    assert shown == set(named)
