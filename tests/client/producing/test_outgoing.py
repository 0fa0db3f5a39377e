"""From a message to what a send carries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.producing.outgoing import (
    check_batch,
    make_outgoing,
    make_outgoing_copy,
    sent_properties,
)
from penstock.client.producing.receipts import Receipt, SendStatus, receipt, receipts_of_batch
from penstock.client.settings import ProducerSettings
from penstock.errors import IllegalMessage, IllegalName, InvalidArgument, ProtocolError
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.model.properties import parse_properties
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.records.compression import decompress
from penstock.protocol.validation import RESERVED_PROPERTIES

SETTINGS = ProducerSettings(group="shop")
QUEUE = MessageQueue("T", "broker-a", 1)
text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02 "),
    min_size=1,
    max_size=20,
)


@given(
    tag=st.none() | text,
    keys=st.lists(text, max_size=3),
    properties=st.dictionaries(
        text.filter(lambda key: key not in RESERVED_PROPERTIES), text, max_size=4
    ),
    sharding_key=st.none() | text,
    delay=st.none() | st.integers(1, 18),
)
def test_properties_survive_the_way_to_the_wire(
    tag: str | None,
    keys: list[str],
    properties: dict[str, str],
    sharding_key: str | None,
    delay: int | None,
) -> None:
    message = Message(
        "T",
        b"x",
        tag=tag,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        delay=delay,
    )
    sent = parse_properties(make_outgoing(message, "ID", SETTINGS).properties)
    expected = dict(properties)
    if tag:
        expected["TAGS"] = tag
    if keys:
        expected["KEYS"] = " ".join(keys)
    if sharding_key:
        expected["__SHARDINGKEY"] = sharding_key
    if delay:
        expected["DELAY"] = str(delay)
    assert sent == {**expected, "WAIT": "true", "UNIQ_KEY": "ID"}


@given(body=st.binary(min_size=1, max_size=200), limit=st.integers(1, 200))
def test_a_body_is_compressed_from_the_limit_on_and_reads_back(body: bytes, limit: int) -> None:
    outgoing = make_outgoing(
        Message("T", body), "ID", ProducerSettings(group="p", compress_over=limit)
    )
    assert bool(outgoing.sys_flag) is (len(body) >= limit)
    assert decompress(outgoing.body, outgoing.sys_flag) == body
    assert outgoing.may_batch is (outgoing.sys_flag == 0)


def test_compression_can_be_turned_off() -> None:
    off = ProducerSettings(group="p", compress_over=0)
    assert make_outgoing(Message("T", b"x" * 100_000), "ID", off).sys_flag == 0


def test_a_single_key_may_be_a_text_and_a_body_any_bytes() -> None:
    assert sent_properties(Message("T", b"x", keys="o-1"), "ID")["KEYS"] == "o-1"
    outgoing = make_outgoing(Message("T", bytearray(b"x")), "ID", SETTINGS)  # type: ignore[arg-type]
    assert outgoing.body == b"x"
    assert make_outgoing(Message("T", memoryview(b"y")), "ID", SETTINGS).body == b"y"  # type: ignore[arg-type]


def test_a_delay_of_level_zero_is_no_delay() -> None:
    assert "DELAY" not in sent_properties(Message("T", b"x", delay=0), "ID")


def test_delayed_messages_and_those_with_extra_properties_do_not_batch() -> None:
    assert make_outgoing(Message("T", b"x"), "ID", SETTINGS).may_batch
    assert not make_outgoing(Message("T", b"x", delay=3), "ID", SETTINGS).may_batch
    assert not make_outgoing(Message("T", b"x"), "ID", SETTINGS, {"TTL": "1"}).may_batch


def test_a_namespace_is_a_property_of_the_message() -> None:
    settings = ProducerSettings(group="p", namespace="eu")
    sent = parse_properties(make_outgoing(Message("eu%T", b"x"), "ID", settings).properties)
    assert sent["INSTANCE_ID"] == "eu"


def test_a_message_sent_again_keeps_its_id_and_says_how_often_it_failed() -> None:
    stored = StoredMessage("T", b"z" * 5000, {"UNIQ_KEY": "FIRST"}, QUEUE, 7, flag=9)
    outgoing = make_outgoing_copy(
        "%RETRY%g",
        stored,
        {"UNIQ_KEY": "FIRST", "DELAY": "3"},
        SETTINGS,
        reconsume_times=2,
        max_reconsume_times=16,
    )
    assert (outgoing.topic, outgoing.flag, outgoing.msg_id) == ("%RETRY%g", 9, "FIRST")
    assert (outgoing.reconsume_times, outgoing.max_reconsume_times) == (2, 16)
    assert decompress(outgoing.body, outgoing.sys_flag) == b"z" * 5000
    assert parse_properties(outgoing.properties)["UNIQ_KEY"] == "FIRST"


def test_a_batch_has_one_topic_and_nothing_delayed() -> None:
    assert check_batch([Message("T", b"1"), Message("T", b"2")]) == "T"
    with pytest.raises(InvalidArgument):
        check_batch([])
    with pytest.raises(IllegalMessage):
        check_batch([Message("T", b"1"), Message("U", b"2")])
    with pytest.raises(IllegalMessage):
        check_batch([Message("T", b"1", delay=1)])
    with pytest.raises(IllegalName):
        check_batch([Message("%RETRY%g", b"1")])


def answer(**ext: str) -> Command:
    fields = {"msgId": "AA", "queueId": "1", "queueOffset": "42", **ext}
    return Command(
        ResponseCode.SUCCESS, ext={key: value for key, value in fields.items() if value != "absent"}
    )


def test_a_receipt_has_the_queue_the_broker_used() -> None:
    assert receipt(answer(), "ID", QUEUE) == Receipt(SendStatus.OK, "ID", "AA", QUEUE, 42)
    moved = receipt(answer(queueId="3", transactionId="tx"), "ID", QUEUE)
    assert moved is not None
    assert moved.queue == MessageQueue("T", "broker-a", 3)
    assert moved.transaction_id == "tx"


def test_a_refusal_is_no_receipt() -> None:
    assert receipt(Command(ResponseCode.SYSTEM_BUSY), "ID", QUEUE) is None


@pytest.mark.parametrize(
    "fields",
    [{"msgId": "absent"}, {"queueId": "x"}, {"queueOffset": ""}, {"queueOffset": "absent"}],
)
def test_an_unreadable_answer_is_a_protocol_error(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="T@broker-a:1"):
        receipt(answer(**fields), "ID", QUEUE)
    with pytest.raises(ProtocolError):
        receipt(Command(ResponseCode.SUCCESS), "ID", QUEUE)


def test_each_message_of_a_batch_gets_its_receipt() -> None:
    whole = Receipt(SendStatus.OK, "1,2", "AA,BB", QUEUE, 10)
    assert (whole.msg_ids, whole.offset_msg_ids) == (("1", "2"), ("AA", "BB"))
    first, second = receipts_of_batch(whole, ["1", "2"])
    assert first == Receipt(SendStatus.OK, "1", "AA", QUEUE, 10)
    assert second == Receipt(SendStatus.OK, "2", "BB", QUEUE, 11)
    # Some brokers answer with one id for all.
    assert [r.offset_msg_id for r in receipts_of_batch(whole, ["1", "2", "3"])] == ["", "", ""]


@given(tag=st.none() | text | st.just("t" * 400))
def test_a_message_with_nothing_but_a_tag_carries_the_same_as_any_other(tag: str | None) -> None:
    plain = make_outgoing(Message("T", b"x", tag=tag), "ID", SETTINGS)
    assert parse_properties(plain.properties) == sent_properties(Message("T", b"x", tag=tag), "ID")
    assert plain.may_batch
    assert (plain.reconsume_times, plain.max_reconsume_times) == (0, None)


@pytest.mark.parametrize("tag", ["a\x01b", "a\x02b", "\ud800"])
def test_a_tag_that_cannot_be_written_is_refused_each_time(tag: str) -> None:
    for _ in range(2):
        with pytest.raises(IllegalMessage):
            make_outgoing(Message("T", b"x", tag=tag), "ID", SETTINGS)


def test_receipts_of_a_batch_are_ordinary_receipts() -> None:
    batch = Receipt(SendStatus.OK, "a,b", "O1,O2", QUEUE, 7)
    assert receipts_of_batch(batch, ["a", "b"]) == [
        Receipt(SendStatus.OK, "a", "O1", QUEUE, 7),
        Receipt(SendStatus.OK, "b", "O2", QUEUE, 8),
    ]


@pytest.mark.parametrize(
    ("fields", "said", "hint"),
    [
        ({"properties": {"amount": 7}}, "'amount' = 7 is of type int", "str(7)"),
        ({"properties": {"amount": None}}, "'amount' = None is of type NoneType", "leave"),
        ({"properties": {"raw": b"x"}}, "'raw' = b'x' is of type bytes", "b'x'.decode()"),
        ({"properties": {7: "amount"}}, "the key of message property 7", "'7'"),
        ({"properties": ["colour"]}, "message properties of type list", None),
        ({"tag": 7}, "message tag 7 is of type int", "str(7)"),
        ({"keys": [7]}, "message key 7 is of type int", "str(7)"),
        ({"keys": 7}, "message keys 7 are of type int", None),
        ({"keys": b"o-1"}, "message keys b'o-1' are of type bytes", None),
        ({"sharding_key": 7}, "message sharding_key 7 is of type int", "str(7)"),
    ],
)
def test_what_is_no_text_is_refused_and_not_guessed(
    fields: dict[str, Any], said: str, hint: str | None
) -> None:
    with pytest.raises(IllegalMessage) as refused:
        make_outgoing(Message("T", b"x", **fields), "ID", SETTINGS)
    assert said in refused.value.what
    assert refused.value.expected
    assert hint is None or hint in str(refused.value.hint)


@pytest.mark.parametrize("delay", [2.5, 3.0, True, -1, 19])
def test_a_delay_is_one_of_the_levels(delay: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay levels"):
        make_outgoing(Message("T", b"x", delay=delay), "ID", SETTINGS)
