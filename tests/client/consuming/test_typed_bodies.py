"""Handlers that get parsed bodies; what does not parse is a dead letter with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from tests.support.loop_clients import Bench, on_bench

from penstock import (
    HandlerCall,
    Message,
    Middleware,
    Producer,
    PushConsumer,
    TypedMessage,
    aio,
    embedded,
)
from penstock.client.settings import StartFrom
from penstock.errors import IllegalMessage, InvalidArgument
from penstock.testing.embedded import AsyncEmbedded, Embedded


@dataclass
class Order:
    number: int
    goods: list[str]


class Payment(msgspec.Struct):
    order: int
    amount: float = 0.0


class Model(pydantic.BaseModel):
    name: str


@pytest.fixture
def mq() -> Iterator[Embedded]:
    with embedded(clock="virtual") as running:
        running.admin.create_topic("orders", queues=1)
        yield running


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
        (None, b"null"),
        (Order(1, ["a"]), b'{"number":1,"goods":["a"]}'),
        (Payment(7, 1.5), b'{"order":7,"amount":1.5}'),
        (Model(name="x"), b'{"name":"x"}'),
    ],
)
def test_a_message_can_be_made_of_a_value(value: object, body: bytes) -> None:
    assert Message("orders", json=value, tag="t").body == body


def test_values_that_are_no_json_are_refused() -> None:
    with pytest.raises(IllegalMessage, match=r"a body of type complex that cannot be written"):
        Message("orders", json=1j)
    with pytest.raises(IllegalMessage, match="both body and json"):
        Message("orders", b"x", json={})


@pytest.mark.parametrize(
    ("kind", "sent", "fields"),
    [
        (Order, Order(1, ["a", "b"]), ("number", "goods")),
        (Payment, Payment(7), ("order", "amount")),
        (Model, Model(name="x"), ("name",)),
        (dict, {"a": 1}, ()),
    ],
)
def test_a_handler_gets_the_value_and_the_message(
    mq: Embedded, kind: type, sent: Any, fields: tuple[str, ...]
) -> None:
    seen: list[TypedMessage[Any]] = []
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

    @consumer.on("orders", body=kind)
    def bill(message: TypedMessage[Any]) -> None:
        seen.append(message)

    with consumer, Producer("shop", namesrv=mq.namesrv) as producer:
        receipt = producer.send(Message("orders", json=sent, keys=["o-1"], tag="new"))
        mq.clock.advance("2s")
    (message,) = seen
    assert isinstance(message.value, kind)
    assert [getattr(message.value, name) for name in fields] == [
        getattr(sent, name) for name in fields
    ]
    assert (message.msg_id, message.keys, message.tag) == (receipt.msg_id, ("o-1",), "new")


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("orderly", [False, True])
def test_what_does_not_parse_is_a_dead_letter_with_the_reason(
    mq: Embedded, orderly: bool, batch_size: int
) -> None:
    seen: list[int] = []
    consumer = PushConsumer(
        "billing", namesrv=mq.namesrv, start_from="first", orderly=orderly, batch_size=batch_size
    )

    @consumer.on("orders", body=Order)
    def bill(given: Any) -> None:
        seen.extend(one.value.number for one in (given if isinstance(given, list) else [given]))

    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(5):
            producer.send(Message("orders", json=Order(number, [])))
        producer.send("orders", b"{}")
        producer.send("orders", b"no json")
        for number in range(5, 10):
            producer.send(Message("orders", json=Order(number, [])))
    with consumer:
        mq.clock.advance("10s")
        assert sorted(seen) == list(range(10))
        letters = {one.message.body: one for one in mq.admin.dead_letters("billing")}
        assert letters.keys() == {b"{}", b"no json"}
        assert "the body is no Order: Object missing required field `number`" in str(
            letters[b"{}"].reason
        )
        assert "malformed" in str(letters[b"no json"].reason)
        assert letters[b"{}"].attempts == 1
        mq.clock.advance("10s")
        (row,) = (one for one in mq.admin.group_lag("billing") if one.topic == "orders")
        assert row.lag == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"name":1}', "the body is no Model: name: Input should be a valid string"),
        (b"no", "the body is no Model: Invalid JSON: expected ident at line 1 column 2"),
    ],
)
def test_the_reason_of_a_pydantic_model_is_one_line(mq: Embedded, body: bytes, reason: str) -> None:
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first")
    consumer.on("orders", body=Model)(lambda message: None)
    with consumer, Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send("orders", body)
        mq.clock.advance("10s")
        (letter,) = mq.admin.dead_letters("billing")
    assert letter.reason == reason


async def test_coroutine_handlers_get_values_too(penstock_aio: AsyncEmbedded) -> None:
    seen: list[int] = []
    consumer = aio.PushConsumer("billing", namesrv=penstock_aio.namesrv, start_from="first")

    @consumer.on("orders", body=Order)
    async def bill(message: TypedMessage[Order]) -> None:
        await asyncio.sleep(0)
        seen.append(message.value.number)

    async with consumer, aio.Producer("shop", namesrv=penstock_aio.namesrv) as producer:
        await producer.send(Message("orders", json=Order(3, [])))
        await penstock_aio.clock.advance("3s")
    assert seen == [3]


def test_a_type_that_cannot_be_parsed_is_refused_at_once() -> None:
    consumer = PushConsumer("billing", namesrv="127.0.0.1:1")
    with pytest.raises(InvalidArgument, match=r"bodies of type .*; expected a dataclass"):
        consumer.on("orders", body=Order | Payment)(lambda message: None)
    # The refused handler is not kept.
    consumer.on("orders", body=Order)(lambda message: None)


@on_bench(topics={"T": 1})
async def test_a_dead_letter_that_cannot_be_stored_yet_is_tried_again(bench: Bench) -> None:
    """Neither the send-back nor the retry topic takes it: it is not lost."""
    from penstock.protocol.codes import RequestCode, ResponseCode
    from penstock.protocol.commands import Command

    back = RequestCode.CONSUMER_SEND_MSG_BACK
    bench.broker.script[back] = lambda peer, request: Command(ResponseCode.SYSTEM_ERROR)
    bench.broker.put("T", 0, b"no json")
    consumer = await bench.consumer({}, start=False, start_from=StartFrom("first"))
    consumer.subscribe("T", lambda message: None, body=Order)
    await consumer.start()
    await asyncio.sleep(20)
    assert bench.broker.offsets.get(("billing", "T", 0), 0) == 0
    del bench.broker.script[back]
    await asyncio.sleep(20)
    assert bench.broker.asked(back)
    assert bench.broker.offsets["billing", "T", 0] == 1


@pytest.mark.parametrize("orderly", [False, True])
def test_middleware_sees_what_does_not_parse_as_a_failure(mq: Embedded, orderly: bool) -> None:
    seen: list[tuple[bytes, str]] = []

    class Watch(Middleware):
        def after_handle(self, call: HandlerCall) -> None:
            seen.append((call.messages[0].body, type(call.error).__name__))

    consumer = PushConsumer(
        "billing",
        namesrv=mq.namesrv,
        start_from="first",
        orderly=orderly,
        threads=1,
        middleware=[Watch()],
    )

    @consumer.on("orders", body=Order)
    def bill(message: TypedMessage[Order]) -> None:
        """Always done."""

    with consumer, Producer("shop", namesrv=mq.namesrv) as producer:
        for body in (b"no json", b'{"number": 1, "goods": []}'):
            producer.send("orders", body)
        mq.clock.advance("10s")
        assert [letter.message.body for letter in mq.admin.dead_letters("billing")] == [b"no json"]
    assert seen == [(b"no json", "DeadLetter"), (b'{"number": 1, "goods": []}', "NoneType")]
