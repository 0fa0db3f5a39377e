"""Lines and JSON lines become messages, and what cannot is named with its line."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.input_messages import (
    Defaults,
    bounded_lines,
    from_json,
    from_json_lines,
    from_lines,
    pairs,
    whole,
)
from penstock.errors import InvalidArgument
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.model.message_json import message_json
from penstock.protocol.validation import MAX_MESSAGE_BYTES

PLAIN = Defaults("orders")


def parse(line: bytes | dict[str, Any], defaults: Defaults = PLAIN) -> Message:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    return from_json(data, defaults, where="line 7")


def test_each_line_is_a_body_and_empty_ones_are_none() -> None:
    found = list(from_lines([b"one\n", b"\n", b"two\r\n", b" three"], PLAIN))
    assert [(n, m.body) for n, m in found] == [(1, b"one"), (3, b"two"), (4, b" three")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_is_as_long_as_the_largest_message_and_no_longer(end: bytes) -> None:
    lines = [b"a\n", b"x" * MAX_MESSAGE_BYTES + end]
    assert list(bounded_lines(io.BytesIO(b"".join(lines)))) == lines
    lines[1] = b"x" + lines[1]
    taken = bounded_lines(io.BytesIO(b"".join(lines)))
    assert next(taken) == b"a\n"
    with pytest.raises(InvalidArgument, match="line 2 has more than 4,194,304 bytes"):
        next(taken)
    # Escapes make a JSON line longer than its body.
    assert list(bounded_lines(io.BytesIO(b"".join(lines)), is_json=True)) == lines


def test_an_input_is_as_long_as_the_largest_message_and_no_longer() -> None:
    body = b"x\n" * (MAX_MESSAGE_BYTES // 2)
    assert whole(io.BytesIO(body)) == body
    with pytest.raises(InvalidArgument, match="the input has more than 4,194,304 bytes"):
        whole(io.BytesIO(body + b"x"))


def test_a_json_line_says_all_a_message_can_have() -> None:
    message = parse(
        {
            "body": "hi",
            "tag": "t",
            "keys": ["a", "b"],
            "properties": {"x": "y"},
            "delay": "10s",
            "sharding_key": "c-1",
        }
    )
    assert message == Message(
        "orders",
        b"hi",
        tag="t",
        keys=("a", "b"),
        properties={"x": "y"},
        delay="10s",
        sharding_key="c-1",
    )


def test_what_a_line_leaves_open_comes_from_the_flags() -> None:
    flags = Defaults("orders", "t", ("k",), {"a": "1", "b": "1"}, 3, "c")
    message = parse({"body": "hi", "properties": {"b": "2"}, "keys": "x y"}, flags)
    assert message.tag == "t"
    assert message.keys == ("x", "y")
    assert message.properties == {"a": "1", "b": "2"}
    assert (message.delay, message.sharding_key) == (3, "c")
    assert parse({"body": "hi", "delay": "4"}).delay == 4


@pytest.mark.parametrize(
    ("body", "sent"),
    [("text", b"text"), ({"a": 1}, b'{"a":1}'), ([1, None], b"[1,null]"), (0, b"0")],
)
def test_a_body_is_text_or_json(body: object, sent: bytes) -> None:
    assert parse({"body": body}).body == sent


@given(st.binary(min_size=1))
def test_other_bytes_come_in_base64(body: bytes) -> None:
    assert parse({"body_base64": base64.b64encode(body).decode()}).body == body


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "line 7 is not JSON"),
        (b"[1]", "line 7 is a JSON list"),
        (b"{}", "line 7 has no body"),
        (b'{"bod": "x"}', r"'bod'.*did you mean body\?"),
        (b'{"body": "x", "msg_id": "1", "colour": 1}', "'colour'"),
        (b'{"body_base64": "?"}', "not base64"),
        (b'{"body_base64": 1}', "body_base64"),
        (b'{"body": "x", "body_base64": "eA=="}', "no body beside it"),
        (b'{"body": "x", "keys": [1]}', "keys"),
        (b'{"body": "x", "properties": {"a": 1}}', "properties"),
        (b'{"body": "x", "tag": 1}', "tag"),
        (b'{"body": "x", "delay": 1.5}', "delay"),
        (b'{"body": "x", "delay": true}', "delay"),
        (b'\xff{"body": "x"}', "line 7 is not JSON"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(line: bytes, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse(line)


@given(st.binary(max_size=60))
def test_no_line_does_anything_but_parse_or_be_refused(line: bytes) -> None:
    refusal = "line 1 "
    try:
        list(from_json_lines([line], PLAIN))
    except InvalidArgument as error:
        refusal = str(error)
    assert refusal.startswith("line 1 ")


def test_what_was_stored_can_be_sent_again_as_it_was_printed() -> None:
    stored = StoredMessage(
        "elsewhere",
        b"\xff body",
        {"TAGS": "t", "KEYS": "a b", "UNIQ_KEY": "7F", "mine": "1", "__SHARDINGKEY": "c"},
        MessageQueue("elsewhere", "broker-a", 0),
        3,
    )
    expected = Message(
        "orders",
        b"\xff body",
        tag="t",
        keys=("a", "b"),
        properties={"mine": "1"},
        sharding_key="c",
    )
    assert parse(json.dumps(message_json(stored)).encode()) == expected
    exported = {
        **message_json(stored),
        "log_position": 0,
        "size": 100,
        "flag": 0,
        "prepared_transaction_offset": 0,
        "body": base64.b64encode(stored.body).decode(),
    }
    exported.pop("body_base64")
    exported.pop("broker")
    assert parse(exported) == expected


def test_properties_are_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for text in ("a", "=1"):
        with pytest.raises(InvalidArgument, match="KEY=VALUE"):
            pairs([text])
