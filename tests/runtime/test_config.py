"""Config classes: loaded, checked, written back, documented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import pytest

from penstock.errors import ConfigError
from penstock.runtime.config import (
    Loaded,
    check_settings,
    from_mapping,
    markdown_table,
    setting,
    settings,
    to_mapping,
)
from penstock.runtime.properties_format import format_properties, parse_properties


class Mode(Enum):
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A config class with one field of each kind."""

    broker_name: str = setting("broker-a", key="brokerName", doc="its name; a | in it is no good")
    listen_port: int = setting(
        10911, key="listenPort", least=0, most=65_535, changeable=True, doc="port"
    )
    file_reserved_hours: int = setting(72, key="fileReservedTime", least=0)
    flush_disk_type: str = setting(
        "ASYNC_FLUSH", key="flushDiskType", choices=["ASYNC_FLUSH", "SYNC_FLUSH"]
    )
    auto_create_topic_enable: bool = setting(True, key="autoCreateTopicEnable")
    disk_ratio: float = setting(0.75, most=1.0)
    segment_bytes: int | None = setting(None, key="mappedFileSizeCommitLog")
    secret_key: str = setting("", key="secretKey", secret=True)
    tls_mode: Mode = setting(Mode.PERMISSIVE, key="tls.server.mode")  # noqa: RUF009  # a field
    camel_case_key: int = setting(5)
    plain_field: int = 5
    structure: Sequence[int] = (1, 2)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Required:
    address: str = setting(key="address")


Config = TypeVar("Config")


def from_text(cls: type[Config], text: str, **overrides: object) -> Loaded[Config]:
    """Load a config as the command line does."""
    parsed = parse_properties(text)
    loaded = from_mapping(cls, parsed.values, **overrides)
    return Loaded(loaded.config, loaded.unknown, parsed.duplicates)


def test_defaults_are_a_config() -> None:
    loaded = from_mapping(Settings, {})
    assert loaded.config == Settings()
    assert loaded.warnings() == []


def test_texts_are_converted_to_the_type_of_the_field() -> None:
    loaded = from_text(
        Settings,
        """
        brokerName = broker-b
        listenPort = 20911
        fileReservedTime=48
        flushDiskType=SYNC_FLUSH
        autoCreateTopicEnable=false
        diskRatio=0.5
        mappedFileSizeCommitLog=1073741824L
        secretKey=s3cret
        tls.server.mode=enforcing
        camelCaseKey=6
        """,
    )
    assert loaded.config == Settings(
        broker_name="broker-b",
        listen_port=20911,
        file_reserved_hours=48,
        flush_disk_type="SYNC_FLUSH",
        auto_create_topic_enable=False,
        disk_ratio=0.5,
        segment_bytes=1 << 30,
        secret_key="s3cret",
        tls_mode=Mode.ENFORCING,
        camel_case_key=6,
    )


def test_our_own_names_load_too_but_not_both() -> None:
    assert from_mapping(Settings, {"file_reserved_hours": "1"}).config.file_reserved_hours == 1
    with pytest.raises(ConfigError, match="fileReservedTime is also given as file_reserved_hours"):
        from_mapping(Settings, {"fileReservedTime": "1", "file_reserved_hours": "2"})


@pytest.mark.parametrize("text", ["true", "True", "yes", "on", "1", " true "])
def test_truth_has_several_spellings(text: str) -> None:
    assert from_mapping(Settings, {"autoCreateTopicEnable": text}).config.auto_create_topic_enable


def test_an_optional_setting_may_be_empty() -> None:
    assert from_mapping(Settings, {"mappedFileSizeCommitLog": ""}).config.segment_bytes is None


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("listenPort", "many", "a whole number from 0 to 65535"),
        ("listenPort", "70000", "a whole number from 0 to 65535"),
        ("listenPort", "", "a whole number"),
        ("listenPort", "1.5", "a whole number"),
        ("fileReservedTime", "-1", "a whole number of 0 or more (h)"),
        ("flushDiskType", "SOMETIMES", "one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("autoCreateTopicEnable", "maybe", "true or false"),
        ("diskRatio", "2", "a number of 1 or less (%)"),
        ("diskRatio", "half", "a number"),
        ("tls.server.mode", "loose", "one of permissive, enforcing"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_expectation(
    key: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_text(Settings, f"{key}={text}")
    shown = str(caught.value)
    assert key in shown
    assert text in shown
    assert expected in shown


@pytest.mark.parametrize(
    "values",
    [
        {"listen_port": 70_000},
        {"listen_port": "10911"},
        {"listen_port": True},
        {"listen_port": None},
        {"auto_create_topic_enable": 1},
        {"broker_name": 5},
        {"flush_disk_type": "SOMETIMES"},
        {"disk_ratio": 1.5},
        {"disk_ratio": True},
    ],
)
def test_values_from_code_are_checked_by_the_same_rules(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**values)


def test_a_whole_number_will_do_for_a_number() -> None:
    assert Settings(disk_ratio=1).disk_ratio == 1


def test_unknown_keys_are_handed_back_with_a_guess() -> None:
    loaded = from_text(Settings, "brokerNam=x\nsomethingElse=y\n")
    assert loaded.unknown == {"brokerNam": "x", "somethingElse": "y"}
    assert loaded.warnings() == [
        "unknown setting brokerNam ignored; did you mean brokerName?",
        "unknown setting somethingElse ignored",
    ]


def test_a_file_for_two_components_is_wrong_only_about_what_neither_knows() -> None:
    text = "brokerName=x\naddress=y\nadress=z\n"
    broker, other = from_text(Settings, text), from_text(Required, text)
    assert broker.warnings(other) == other.warnings(broker)
    assert broker.warnings(other) == ["unknown setting adress ignored; did you mean address?"]


def test_duplicates_are_reported_without_their_values() -> None:
    loaded = from_text(Settings, "secretKey=one\nsecretKey=two\n")
    assert loaded.config.secret_key == "two"
    assert loaded.warnings() == ["setting secretKey given twice; the last one counts"]


def test_overrides_win_over_the_file() -> None:
    loaded = from_text(Settings, "listenPort=1\nbrokerName=file\n", listen_port=2)
    assert (loaded.config.listen_port, loaded.config.broker_name) == (2, "file")


def test_a_required_setting_must_be_there() -> None:
    assert from_mapping(Required, {"address": "x"}).config.address == "x"
    with pytest.raises(TypeError, match="address"):
        from_mapping(Required, {})
    assert "| `address` | `address` | `required` |" in markdown_table(Required)


def test_a_config_is_written_back_and_read_again() -> None:
    config = Settings(broker_name="b = c", segment_bytes=4096, tls_mode=Mode.ENFORCING)
    text = format_properties(to_mapping(config))
    assert "brokerName=b = c\n" in text
    assert "autoCreateTopicEnable=true\n" in text
    assert "tls.server.mode=enforcing\n" in text
    assert from_text(Settings, text).config == config


def test_secrets_and_unset_settings_are_not_written() -> None:
    written = to_mapping(Settings(secret_key="s3cret"))
    assert "secretKey" not in written
    assert "mappedFileSizeCommitLog" not in written
    assert "s3cret" not in written.values()


def test_a_secret_is_not_shown_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(secret_key=12345)  # type: ignore[arg-type]  # the point of the test
    assert "12345" not in str(caught.value)
    assert "(hidden)" in str(caught.value)


def test_settings_know_their_kind_unit_and_key() -> None:
    by_name = {item.name: item for item in settings(Settings)}
    assert by_name["file_reserved_hours"].unit == "h"
    assert by_name["listen_port"].kind is int
    assert by_name["listen_port"].is_changeable
    assert not by_name["broker_name"].is_changeable
    assert by_name["segment_bytes"].is_optional
    assert by_name["camel_case_key"].key == "camelCaseKey"
    assert "structure" not in by_name
    assert "plain_field" not in by_name


def test_the_docs_table_has_a_row_for_each_setting() -> None:
    lines = markdown_table(Settings).splitlines()
    assert len(lines) == 2 + len(settings(Settings))
    assert (
        "| `listenPort` | `listen_port` | `10911` | a whole number from 0 to 65535 | yes | port |"
        in lines
    )
    assert any(r"a \| in it is no good" in line for line in lines)
