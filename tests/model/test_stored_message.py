"""Stored messages: lazy fields have the same values in any order of reading."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import MessageQueue, StoredMessage
from penstock.model.hosts import offset_message_id, pack_host, unpack_host

QUEUE = MessageQueue("orders", "broker-a", 3)
LAZY = ("properties", "msg_id", "offset_msg_id", "born_host", "store_host", "tag", "keys")

messages = st.builds(
    StoredMessage,
    topic=st.text(max_size=5),
    body=st.binary(max_size=10),
    properties=st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"TAGS\x01a\x02KEYS\x01x y\x02UNIQ_KEY\x01U\x02", b"UNIQ_KEY\x01V"]),
        st.just({"TAGS": "a"}),
    ),
    queue=st.just(QUEUE),
    queue_offset=st.integers(0, 1 << 62),
    log_position=st.integers(0, 1 << 62),
    born_host=st.one_of(st.binary(min_size=8, max_size=8), st.just("10.0.0.7:1")),
    store_host=st.one_of(
        st.binary(min_size=8, max_size=8),
        st.binary(min_size=20, max_size=20),
        st.sampled_from(["10.0.0.5:10911", "[2001:db8::1]:10911", ""]),
    ),
)


@given(messages, st.permutations(LAZY))
def test_the_order_of_reading_does_not_matter(message: StoredMessage, order: list[str]) -> None:
    fresh = pickle.loads(pickle.dumps(message))
    ordered = {name: getattr(message, name) for name in order}
    assert ordered == {name: getattr(fresh, name) for name in reversed(order)}
    assert message == fresh
    assert repr(message) == repr(fresh)
    # And reading again gives the same.
    assert ordered == {name: getattr(message, name) for name in LAZY}


@given(messages)
def test_a_message_equals_its_pickled_self_read_or_not(message: StoredMessage) -> None:
    before = pickle.dumps(message)
    for name in LAZY:
        getattr(message, name)
    assert pickle.loads(before) == message == pickle.loads(pickle.dumps(message))


@pytest.mark.parametrize("port", [0, 65535, 65536, 0x7FFF_FFFF, -1])
def test_a_port_that_no_socket_has_still_makes_an_id(port: int) -> None:
    host = bytes([10, 0, 0, 5]) + port.to_bytes(4, "big", signed=True)
    message = StoredMessage("t", b"", b"", QUEUE, 0, 1024, store_host=host)
    assert message.store_host == f"10.0.0.5:{port}"
    assert message.offset_msg_id == offset_message_id(host, 1024) == message.msg_id


@pytest.mark.parametrize("text", ["10.0.0.5:10911", "[2001:db8::1]:10911"])
def test_hosts_may_be_given_as_text_or_packed(text: str) -> None:
    ip, _, port = text.rpartition(":")
    packed = pack_host(ip, int(port))
    by_text = StoredMessage("t", b"", {}, QUEUE, 0, 7, born_host=text, store_host=text)
    by_bytes = StoredMessage("t", b"", {}, QUEUE, 0, 7, born_host=packed, store_host=packed)
    assert by_text == by_bytes
    assert by_text.store_host == by_bytes.store_host == unpack_host(packed)
    assert by_text.offset_msg_id == by_bytes.offset_msg_id


FIELDS = {
    "topic": "other",
    "body": b"other",
    "properties": b"A\x01b\x02",
    "queue": MessageQueue("orders", "broker-b", 3),
    "queue_offset": 99,
    "log_position": 99,
    "born_timestamp": 99,
    "store_timestamp": 99,
    "born_host": "1.2.3.4:5",
    "store_host": "1.2.3.4:5",
    "reconsume_times": 99,
    "sys_flag": 99,
    "flag": 99,
    "prepared_transaction_offset": 99,
    "msg_id": "other",
    "offset_msg_id": "other",
}


@pytest.mark.parametrize(("field", "value"), list(FIELDS.items()))
def test_every_field_counts_for_equality(field: str, value: object) -> None:
    plain = {"topic": "t", "body": b"", "properties": b"", "queue": QUEUE, "queue_offset": 0}
    changed = {**plain, field: value}
    assert StoredMessage(**plain) == StoredMessage(**plain)  # type: ignore[arg-type]
    assert StoredMessage(**plain) != StoredMessage(**changed)  # type: ignore[arg-type]


def test_a_pickled_copy_has_properties_of_its_own() -> None:
    message = StoredMessage("t", b"", {"A": "b"}, QUEUE, 0)
    copied = pickle.loads(pickle.dumps(message))
    copied.properties["A"] = "c"
    assert message.properties == {"A": "b"}


def test_keys_are_split_at_any_space() -> None:
    message = StoredMessage("t", b"", {"KEYS": " a  b\tc "}, QUEUE, 0)
    assert message.keys == ("a", "b", "c")


@pytest.mark.parametrize("length", [0, 32, 33, 1 << 20])
def test_a_long_body_is_shown_by_its_start(length: int) -> None:
    text = repr(StoredMessage("t", b"x" * length, b"", QUEUE, 0))
    assert f"({length} bytes)" in text
    assert text.count("x") <= 33
    assert ("..." in text) is (length > 32)
