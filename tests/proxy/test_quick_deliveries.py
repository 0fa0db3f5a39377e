"""Deliveries as bytes beside the objects of protobuf, which are their specification."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.records.sys_flags import SysFlag
from penstock.proxy.delivered import make_message
from penstock.proxy.handlers import finishing, sending
from penstock.proxy.quick_deliveries import delivery_response
from penstock.proxy.statuses import OK, make_status
from penstock.proxy.submitted_messages import RESERVED
from penstock.proxy.times import timestamp
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire import quick_responses as quick
from penstock.proxy.wire.codes import Code

KEYS = [*sorted(RESERVED), "__SHARDINGKEY", "TRACE_CONTEXT", "colour", "größe"]
NUMBERS = st.one_of(st.integers(0, 1 << 21), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
IDS = TEXTS.filter(bool)


def stored(properties: dict[str, str], **more: object) -> StoredMessage:
    facts: dict[str, object] = {
        "body": b"hello",
        "queue_offset": 7,
        "log_position": 900,
        "born_timestamp": 1_790_000_000_123,
        "store_timestamp": 1_790_000_000_000,
        "reconsume_times": 0,
        "sys_flag": 0,
        "queue_id": 3,
        **more,
    }
    queue_id = facts.pop("queue_id")
    assert isinstance(queue_id, int)
    return StoredMessage(
        topic="orders",
        properties=properties,
        queue=MessageQueue("orders", "broker-a", queue_id),
        born_host="192.0.2.1:4000",
        store_host="192.0.2.2:10911",
        **facts,  # type: ignore[arg-type]  # names and types as above
    )


def objects(message: StoredMessage, handle: str) -> wire.ReceiveMessageResponse:
    return wire.ReceiveMessageResponse(message=make_message(message, "asked", handle))


def same(one: dict[str, str], **more: object) -> None:
    made = delivery_response(stored(dict(one), **more), "asked", "a handle")
    expected = objects(stored(dict(one), **more), "a handle")
    assert wire.ReceiveMessageResponse.FromString(made) == expected
    if len(one) < 2:
        # A map has no order; all else has that of the numbers.
        assert made == expected.SerializeToString()


@pytest.mark.parametrize("key", ["", *KEYS])
@pytest.mark.parametrize("value", ["x", "true", "1790000000000", "a b  c"])
def test_a_message_with_any_property(key: str, value: str) -> None:
    same({key: value} if key else {})


@pytest.mark.parametrize("flag", [0, SysFlag.COMPRESSED, SysFlag.TRANSACTION_COMMIT])
def test_flags(flag: int) -> None:
    same({"TRAN_MSG": "true", "UNIQ_KEY": "U"}, sys_flag=flag)
    same({}, sys_flag=flag)


def test_messages_by_chance() -> None:
    chance = random.Random(5)
    for _ in range(500):
        names = chance.sample(KEYS, chance.randrange(8))
        values = {name: chance.choice(["x", "true", "12", "ü" * 100, "a b"]) for name in names}
        same(
            values,
            body=bytes(chance.choice([0, 1, 127, 128, 20_000])),
            queue_offset=chance.choice([0, 127, 128, 1 << 40]),
            queue_id=chance.choice([0, 5, 300]),
            born_timestamp=chance.choice([0, -1, 999, 1_790_000_000_999]),
            reconsume_times=chance.choice([0, 1, 16]),
        )


@given(IDS, NUMBERS, TEXTS)
def test_responses_to_sends(message_id: str, offset: int, recall_handle: str) -> None:
    for status in (OK, make_status(Code.SLAVE_PERSISTENCE_TIMEOUT)):
        entry = wire.SendResultEntry(
            status=status,
            message_id=message_id,
            transaction_id=message_id,
            offset=offset,
            recall_handle=recall_handle,
        )
        made = quick.send_response(status.SerializeToString(), message_id, offset, recall_handle)
        assert made == sending.single_response(entry).SerializeToString()


@given(TEXTS, TEXTS)
def test_responses_to_acknowledgements(message_id: str, handle: str) -> None:
    for status in (OK, make_status(Code.INVALID_RECEIPT_HANDLE, "ü" * 500)):
        entry = finishing.result_entry(
            wire.AckMessageEntry(message_id=message_id, receipt_handle=handle), status
        )
        made = quick.ack_response(status.SerializeToString(), message_id, handle)
        assert made == finishing.single_response(entry).SerializeToString()


@given(st.integers(-(2**60), 2**60))
def test_times(time_ms: int) -> None:
    made = quick.timestamp(b"\x1a", time_ms)
    response = wire.ReceiveMessageResponse(delivery_timestamp=timestamp(time_ms))
    assert made == response.SerializeToString()
