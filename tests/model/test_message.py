"""A message to be sent: a value, made by keyword."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from penstock.model import Message

ALL = {
    "topic": "orders",
    "body": b"body",
    "tag": "a",
    "keys": ("k",),
    "properties": {"colour": "red"},
    "delay": "10s",
    "sharding_key": "s",
    "flag": 7,
    "deliver_at": 1767355200.0,
}


def test_every_field_is_what_it_was_given_and_has_a_default() -> None:
    assert [one.name for one in fields(Message)] == list(ALL)
    message = Message(**ALL)  # type: ignore[arg-type]
    assert {name: getattr(message, name) for name in ALL} == ALL
    assert Message("orders", b"body") == Message(
        "orders",
        b"body",
        **{one.name: one.default for one in fields(Message) if one.kw_only},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("field", ALL)
def test_a_field_cannot_be_set_and_counts_for_equality(field: str) -> None:
    message = Message(**ALL)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        setattr(message, field, "other")
    other = replace(message, **{field: "other"})  # type: ignore[arg-type]
    assert other != message
    assert replace(other, **{field: ALL[field]}) == message  # type: ignore[arg-type]


def test_all_but_topic_and_body_go_by_keyword() -> None:
    with pytest.raises(TypeError):
        Message("orders", b"body", "tag")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Message("orders", b"body", colour="red")  # type: ignore[call-arg]


def test_a_message_survives_pickling_and_copying() -> None:
    message = Message(**ALL)  # type: ignore[arg-type]
    for other in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
        assert other == message
        assert repr(other) == repr(message)
