"""Reading one property and adding some, in the raw and in the parsed form of a message."""

from __future__ import annotations

import pytest

from penstock.model import MessageQueue, StoredMessage

QUEUE = MessageQueue("orders", "broker-a", 0)


def stored(properties: bytes | dict[str, str]) -> StoredMessage:
    return StoredMessage("orders", b"body", properties, QUEUE, 7)


@pytest.mark.parametrize(
    "properties",
    [b"TAGS\x01a\x02KEYS\x01k\x02", b"TAGS\x01a\x02KEYS\x01k", {"TAGS": "a", "KEYS": "k"}],
    ids=["raw", "raw without the last separator", "parsed"],
)
def test_one_property_can_be_read_and_others_added(properties: bytes | dict[str, str]) -> None:
    message = stored(properties)
    assert message.peek("TAGS") == "a"
    assert message.peek("AGS") is None
    message.append_properties(b"TAGS\x01b\x02MAX_OFFSET\x019\x02")
    assert message.peek("TAGS") == "b"
    assert message.peek("MAX_OFFSET") == "9"
    assert message.properties == {"TAGS": "b", "KEYS": "k", "MAX_OFFSET": "9"}
    message.append_properties(b"MAX_OFFSET\x0110\x02")
    assert message.properties["MAX_OFFSET"] == "10"


def test_properties_are_added_to_a_message_without_any() -> None:
    message = stored(b"")
    message.append_properties(b"A\x01b\x02")
    assert message.properties == {"A": "b"}


def test_adding_leaves_a_mapping_that_was_handed_in_alone() -> None:
    given = {"A": "b"}
    message = stored(given)
    message.append_properties(b"C\x01d\x02")
    assert given == {"A": "b"}
    assert message.properties == {"A": "b", "C": "d"}
