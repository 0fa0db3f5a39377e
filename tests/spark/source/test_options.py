"""Options: what is taken, what is refused, and with which words."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.access_options import AccessOptions
from penstock.spark.option_table import declared, options_table
from penstock.spark.sink.write_options import WriteOptions
from penstock.spark.source.options import Position, ReadOptions, Where, nested_offsets, parse_read

TOPIC = {"namesrv": "127.0.0.1:9876", "topic": "orders"}


def refusal(**options: str) -> str:
    with pytest.raises(InvalidArgument) as refused:
        parse_read({"namesrv": "127.0.0.1:9876", **options})
    return str(refused.value)


def test_every_option_is_read_in_lower_case_as_spark_hands_it_over() -> None:
    options = parse_read(
        {
            "namesrv": "10.0.0.1:9876;10.0.0.2:9876",
            "subscribe": "orders, payments",
            "group": "audit",
            "tags": "a || b",
            "keys": "o-1,o-2",
            "startingoffsets": "group",
            "endingtimestamp": "1700000000000",
            "maxoffsetspertrigger": "500",
            "minpartitions": "8",
            "failondataloss": "false",
            "includeproperties": "FALSE",
            "columns": "offset,body",
            "committogroup": "false",
            "ordered": "true",
            "polltimeoutms": "250",
            "fetchbytes": "65536",
            "namespace": "shop",
            "brokername": "b",
        }
    )
    assert options.access.namesrv == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert options.access.namespace == "shop"
    assert options.topics == ("orders", "payments")
    assert options.puller == "shop%audit"
    assert options.exact_tags == frozenset({"a", "b"})
    assert options.keys == frozenset({"o-1", "o-2"})
    assert options.starting == Position(Where.GROUP)
    assert options.ending == Position(Where.TIME, timestamp_ms=1_700_000_000_000)
    assert options.max_per_trigger == 500
    assert options.min_partitions == 8
    assert not options.fail_on_data_loss
    assert not options.include_properties
    assert options.columns == "offset,body"
    assert not options.commit_to_group
    assert options.ordered
    assert options.poll_seconds == 0.25
    assert options.fetch_bytes == 65_536
    assert options.broker_name == "b"


def test_defaults_are_those_of_the_documentation() -> None:
    options = parse_read(TOPIC)
    assert options.puller == "penstock_spark"
    assert options.exact_tags is None
    assert options.starting is None
    assert options.ending is None
    assert options.fail_on_data_loss
    assert options.include_properties
    assert not options.commit_to_group
    assert options.poll_seconds == 0.5


def test_a_group_is_committed_to_unless_that_is_turned_off() -> None:
    assert parse_read({**TOPIC, "group": "audit"}).commit_to_group
    assert not parse_read({**TOPIC, "group": "audit", "commitToGroup": "false"}).commit_to_group
    assert "option group beside it" in refusal(topic="orders", committogroup="true")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("topik", "topic"),
        ("startingoffset", "startingOffsets"),
        ("maxoffsetspertriger", "maxOffsetsPerTrigger"),
        ("commit_to_group", "commitToGroup"),
        ("secret", "secretKey"),
    ],
)
def test_an_unknown_option_names_the_nearest_one_as_it_is_documented(
    written: str, meant: str
) -> None:
    text = refusal(**{"topic": "orders", written: "x-value"})
    assert f"unknown option {written!r}" in text
    assert f"try: option {meant!r}" in text
    assert "x-value" not in text


def test_what_belongs_to_spark_is_let_through() -> None:
    own = {"checkpointlocation": "/c", "queryname": "q", "spark.sql.x": "1", "__internal": "1"}
    assert parse_read({**TOPIC, **own}).topics == ("orders",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "option topic, subscribePattern or assign"),
        ({"topic": "a", "subscribe": "b"}, "options topic and subscribe together"),
        ({"topic": "a", "assign": "{}"}, "options topic and assign together"),
        ({"topic": "no such/topic"}, "option topic"),
        ({"topic": " , "}, "names with commas between"),
        ({"subscribePattern": "orders["}, "not a regular expression"),
        ({"topic": "a", "group": "with space"}, "option group"),
        ({"topic": "a", "startingOffsets": "newest"}, "option startingOffsets is 'newest'"),
        ({"topic": "a", "startingOffsets": "group"}, "option group beside it"),
        ({"topic": "a", "startingOffsets": "{"}, "option startingOffsets is not JSON"),
        ({"topic": "a", "startingOffsets": '{"a": 1}'}, '{"orders": {"broker-a": {"0": 42}}}'),
        ({"topic": "a", "startingOffsets": '{"a": {"b": {"0": -3}}}'}, "-1 for the latest"),
        ({"topic": "a", "startingOffsets": '{"a": {"b": {"x": 3}}}'}, "queue 'x'"),
        (
            {"topic": "a", "startingOffsets": "latest", "startingTimestamp": "1"},
            "options startingOffsets and startingTimestamp together",
        ),
        ({"topic": "a", "endingTimestamp": "tomorrow"}, "option endingTimestamp: 'tomorrow'"),
        ({"topic": "a", "startingTimestamp": "20260101"}, "too few digits for milliseconds"),
        (
            {"topic": "a", "endingTimestamp": "1767225600"},
            "epoch milliseconds such as 1767225600000",
        ),
        (
            {"topic": "a", "keys": "o-1 || o-2"},
            "option keys: 'o-1 || o-2' has ||; expected keys with",
        ),
        ({"topic": "a", "maxOffsetsPerTrigger": "0"}, "a whole number from 1"),
        ({"topic": "a", "minPartitions": "many"}, "option minPartitions is 'many'"),
        ({"topic": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"topic": "a", "fetchBytes": "9000000"}, "1024 to 8388608"),
        ({"topic": "a", "tags": "||"}, "names no tag"),
        ({"topic": "a", "tls": '{"verify": true, "cafile": "x"}'}, "option tls has 'cafile'"),
        ({"assign": '{"a": {"b": []}}'}, "option assign"),
        ({"assign": '{"a": {"b": [-1]}}'}, "queue -1"),
        ({"assign": "[]"}, "option assign is a JSON list"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(
    options: dict[str, str], words: str
) -> None:
    assert words in refusal(**{name.lower(): value for name, value in options.items()})


def test_an_assignment_is_a_list_of_queues() -> None:
    options = parse_read({"assign": '{"a": {"broker-b": [1, 0]}, "b": {"broker-a": [3]}}'})
    assert options.assignment == (
        MessageQueue("a", "broker-b", 0),
        MessageQueue("a", "broker-b", 1),
        MessageQueue("b", "broker-a", 3),
    )


def test_times_are_milliseconds_or_iso_8601() -> None:
    at = Position(Where.TIME, timestamp_ms=1_700_000_000_000)
    for text in ("1700000000000", "2023-11-14T22:13:20Z", "2023-11-15T00:13:20+02:00"):
        assert parse_read({**TOPIC, "startingTimestamp": text}).starting == at


def test_offsets_are_written_in_one_order() -> None:
    queues = [MessageQueue(t, b, q) for t in "ba" for b in "yx" for q in (10, 2)]
    written = nested_offsets({queue: 7 for queue in queues})
    assert list(written) == ["a", "b"]
    assert list(written["a"]) == ["x", "y"]
    assert list(written["a"]["x"]) == ["2", "10"]


def test_nothing_shown_is_secret_and_everything_survives_pickling() -> None:
    options = parse_read(
        {**TOPIC, "accessKey": "AK-1", "secretKey": "SK-1", "securityToken": "TK-1", "tls": "true"}
    )
    shown = repr(options) + str(options)
    assert not any(secret in shown for secret in ("AK-1", "SK-1", "TK-1"))
    assert pickle.loads(pickle.dumps(options)) == options
    assert "SK-2" not in refusal(topic="a", secretkey="SK-2")


@pytest.mark.parametrize("word", ["earliest", "first", "FIRST"])
def test_both_vocabularies_name_the_ends_of_a_queue(word: str) -> None:
    assert parse_read({**TOPIC, "startingOffsets": word}).starting == Position(Where.EARLIEST)
    assert parse_read({**TOPIC, "endingOffsets": "last"}).ending == Position(Where.LATEST)


@pytest.mark.parametrize("owner", [ReadOptions, WriteOptions])
def test_every_option_is_declared_once_with_a_meaning_and_a_default(owner: type) -> None:
    options = declared(AccessOptions, owner).values()
    names = [name.lower() for option in options for name in option.names]
    assert len(set(names)) == len(names)
    assert all(option.meaning and option.default_text.strip("`") for option in options)


@pytest.mark.parametrize("owner", [ReadOptions, WriteOptions])
def test_every_field_but_the_access_is_an_option(owner: type) -> None:
    assert {field.name for field in fields(owner)} == {"access", *declared(owner)}


def test_the_table_of_options_is_made_from_their_declarations() -> None:
    rows = options_table(WriteOptions).splitlines()
    assert rows[2] == (
        "| `topic` | topic of all rows; overrides the column `topic` | the column `topic` |"
    )
    assert "| `keepQueue` | " in rows[3]
    assert rows[3].endswith(" | `false` |")
    assert "`paid \\|\\| created`" in options_table(ReadOptions)
