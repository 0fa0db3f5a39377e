"""Messages as lines and JSON, and the filters of tail, query and dlq."""

from __future__ import annotations

import pytest

from penstock.cli.messages import Expression, Filter, as_line, body_text
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage
from penstock.model.message_json import message_json


def message(body: bytes = b'{"total": 120}', **properties: str) -> StoredMessage:
    return StoredMessage(
        "orders",
        body,
        {"TAGS": "paid", "KEYS": "o-1 c-7", "UNIQ_KEY": "7F01", **properties},
        MessageQueue("orders", "broker-a", 3),
        17,
        born_timestamp=1794839400000,
        store_timestamp=1794839400500,
        reconsume_times=2,
    )


@pytest.mark.parametrize(
    "text",
    [
        "json['total'] > 100",
        "tag == 'paid' and 'o-1' in keys",
        "any(key.startswith('c-') and tag == 'paid' for key in keys)",
        "(lambda limit: json['total'] > limit)(100)",
        "re.search(r'tot.l', text)",
        "offset == 17 and queue_id == 3 and broker == 'broker-a' and topic == 'orders'",
        "body.startswith(b'{') and size == 14 and msg_id == '7F01'",
        "stored > born and stored.year == 2026",
        "reconsume_times == 2 and attempts == 2 and reason is None",
        "message.properties['TAGS'] == properties['TAGS']",
    ],
)
def test_an_expression_is_true_of_a_message(text: str) -> None:
    assert Expression(text)(message())


def test_the_words_of_a_dead_letter_can_be_used() -> None:
    dead = message(
        RETRY_TOPIC="orders",
        PENSTOCK_REASON_TYPE="KeyError",
        PENSTOCK_REASON_MESSAGE="'total'",
        PENSTOCK_REASON_ATTEMPT="4",
    )
    text = "reason_type == 'KeyError' and 'total' in reason and attempts == 4"
    assert Expression(f"{text} and origin_topic == 'orders'")(dead)


def test_a_body_that_is_no_json_is_none() -> None:
    assert Expression("json is None")(message(b"\xff"))
    assert not Expression("json and json['total']")(message(b"plain"))


def test_an_expression_that_fails_leaves_the_message_out_and_is_reported() -> None:
    wanted = Filter(where="json['price'] > 1")
    assert not wanted(message())
    assert not wanted(message())
    complaint = wanted.complaint()
    assert complaint is not None
    assert "failed for 2 messages" in complaint
    assert "KeyError: 'price'" in complaint


def test_a_typing_error_in_a_name_is_found_before_anything_is_read() -> None:
    with pytest.raises(InvalidArgument, match=r"uses 'tga'.*did you mean tag\?"):
        Expression("tga == 'paid'")


@pytest.mark.parametrize("text", ["tag ==", "import os", "tag = 1", ""])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not Python"):
        Expression(text)


def test_tags_keys_and_expression_must_all_agree() -> None:
    assert Filter()(message())
    assert Filter().is_open
    assert Filter("created || paid", ["o-1", "o-2"], "size > 1")(message())
    assert not Filter("created")(message())
    assert not Filter("paid", ["o-2"])(message())
    assert not Filter("paid", ["o-1"], "size < 1")(message())
    assert Filter("*")(message(TAGS=""))
    with pytest.raises(InvalidArgument, match="--tag"):
        Filter(" || ")


def test_a_line_tells_when_where_what() -> None:
    line = as_line(message(b"two\nlines"))
    assert line.endswith("broker-a:3@17  [paid]  o-1,c-7  (tried 2 times)  two\\nlines")


def test_nothing_that_others_wrote_reaches_the_terminal_unescaped() -> None:
    line = as_line(message(b"\x1b[31mred\x1b[0m", TAGS="\x1b]0;title\x07"))
    assert line.isprintable()


def test_a_long_body_is_cut_and_its_size_shown() -> None:
    assert body_text(b"x" * 1000, 10) == "xxxxxxxxxx... (1000 bytes)"
    assert body_text(b"\xff\xfe" * 10).startswith("(20 bytes: ff fe ")


def test_json_has_the_body_as_text_or_as_base64() -> None:
    assert message_json(message("größer".encode()))["body"] == "größer"
    other = message_json(message(b"\xff\x00"))
    assert (other["body"], other["body_base64"]) == (None, "/wA=")
