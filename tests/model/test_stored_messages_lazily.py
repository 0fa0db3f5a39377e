"""Pulled messages are unpacked on demand, without a visible difference."""

from __future__ import annotations

import copy
import pickle

import pytest

from penstock.model import StoredMessage
from penstock.model.message import append_to_all
from penstock.protocol.records.codec import decode_record, encode_record
from penstock.protocol.records.pulled import message_from_record, messages_from_pull

HOST = b"\x7f\x00\x00\x01\x00\x00\x1f\x90"
PROPERTIES = b"TAGS\x01a\x02UNIQ_KEY\x01ABC\x02"
FIELDS = {
    "flag": 5,
    "log_position": 4711,
    "sys_flag": 8,
    "born_timestamp": 1_000,
    "store_timestamp": 2_000,
    "reconsume_times": 3,
    "prepared_transaction_offset": 77,
}


def record(offset: int = 9, properties: bytes = PROPERTIES) -> bytes:
    return encode_record(
        b"orders", b"body", properties, 2, offset, 4711, 2_000, 1_000, HOST, HOST, 5, 8, 3, 77
    )


def pulled(properties: bytes = PROPERTIES) -> StoredMessage:
    (message,) = messages_from_pull(record(properties=properties), "broker-a")
    return message


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_what_the_record_says(field: str) -> None:
    assert getattr(pulled(), field) == FIELDS[field]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_was_set_stays_set_and_the_others_stay_as_they_were(field: str) -> None:
    message = pulled()
    setattr(message, field, 99)
    assert {name: getattr(message, name) for name in FIELDS} == {**FIELDS, field: 99}


def test_a_packed_message_equals_one_that_was_unpacked() -> None:
    unpacked = message_from_record(decode_record(record()), "broker-a")
    assert pulled() == unpacked
    assert repr(pulled()) == repr(unpacked)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_message_survives_pickling_and_copying(is_read: bool) -> None:
    message = pulled()
    message.append_properties(b"MORE\x01x\x02")
    if is_read:
        assert (message.msg_id, message.flag, message.born_host) == ("ABC", 5, "127.0.0.1:8080")
    for other in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
        assert other == message
        assert other.properties["MORE"] == "x"


@pytest.mark.parametrize("properties", [PROPERTIES, PROPERTIES[:-1], b""])
def test_all_of_a_pull_get_the_same_properties(properties: bytes) -> None:
    body = b"".join(record(offset, properties) for offset in range(4))
    messages = messages_from_pull(body, "broker-a")
    messages[1].append_properties(b"OWN\x011\x02")
    assert messages[2].properties == pulled(properties).properties  # parsed before
    append_to_all(messages, b"MAX_OFFSET\x015\x02")
    append_to_all(messages, b"MAX_OFFSET\x016\x02TAGS\x01b\x02")
    for message in messages:
        assert (message.peek("MAX_OFFSET"), message.peek("TAGS")) == ("6", "b")
        assert message.properties["MAX_OFFSET"] == "6"
    assert [message.properties.get("OWN") for message in messages] == [None, "1", None, None]


def test_records_of_one_shape_and_of_others_are_distinguished() -> None:
    def of(topic: bytes, body: bytes, queue_id: int, properties: bytes) -> bytes:
        return encode_record(topic, body, properties, queue_id, 0, 0, 0, 0, HOST, HOST)

    shapes = [
        (b"orders", b"12", 0, b"A\x01b\x02"),
        (b"orders", b"34", 0, b"C\x01d\x02"),
        (b"others", b"56", 0, b"A\x01b\x02"),  # as long, another topic
        (b"others", b"78", 1, b"A\x01b\x02"),  # another queue
        (b"other", b"90", 1, b"AB\x01c\x02"),  # as long, cut elsewhere
        (b"others", b"123", 1, b"A\x01\x02"),
    ]
    messages = messages_from_pull(b"".join(of(*shape) for shape in shapes), "broker-a")
    found = [(message.topic, message.body, message.queue.queue_id) for message in messages]
    assert found == [(topic.decode(), body, queue_id) for topic, body, queue_id, _ in shapes]
    assert [message.properties for message in messages] == [
        {"A": "b"},
        {"C": "d"},
        {"A": "b"},
        {"A": "b"},
        {"AB": "c"},
        {},
    ]
