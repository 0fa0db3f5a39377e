"""Mistakes that are easy to make: each is refused with a sentence that says what was meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scripted import ThreadedCluster

from penstock import (
    Message,
    PenstockError,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    aio,
)
from penstock.model.properties import parse_properties


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((b"x",), r"send\(\) of b'x', of type bytes; expected a Message, or a topic and a body"),
        (("T",), r"send\('T'\) without a body; expected .*; try: send\('T', b\"...\"\)"),
        ((Message("T", b"x"), b"y"), r"expected a Message alone, or a topic and a body"),
        ((None, b"x"), r"of type NoneType"),
        (("T", "text"), r"a message body of type str; expected bytes; try: body.encode\(\)"),
        ((Message("T", b"x", tag="a || b"),), r"tag 'a \|\| b': a message has one tag"),
        ((Message("T", b"x", tag="a||b", keys=["k"]),), r"tag 'a\|\|b': a message has one tag"),
        (
            (Message("T", b"x", keys=["ok", "a b"]),),
            r"key 'a b' has a blank, which ends a key; .*try: keys=\['a', 'b'\]",
        ),
    ],
)
@pytest.mark.parametrize("linger", [0, 0.01])
def test_a_wrong_send_says_what_is_expected(
    cluster: ThreadedCluster, arguments: Any, sentence: str, linger: float
) -> None:
    with Producer("shop", namesrv=cluster.namesrv, linger=linger) as producer:
        sends: list[Callable[..., object]] = [producer.send, producer.send_oneway]
        for send in (*sends, lambda *given: producer.submit(*given).result()):
            with pytest.raises(PenstockError, match=sentence) as caught:
                send(*arguments)
            assert isinstance(caught.value, ValueError)

    async def face() -> None:
        async with aio.Producer("shop", namesrv=cluster.namesrv, linger=linger) as producer:
            with pytest.raises(PenstockError, match=sentence):
                await producer.send(*arguments)
            with pytest.raises(PenstockError, match=sentence):
                await (await producer.submit(*arguments))
            with pytest.raises(PenstockError, match=sentence):
                await producer.send_oneway(*arguments)

    asyncio.run(face())
    assert not cluster.broker.sent


def test_a_topic_and_a_body_are_a_message(cluster: ThreadedCluster) -> None:
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send("T", b"1")
        producer.submit("T", b"2").result()
        producer.send_oneway("T", b"3")
        producer.send(Message("T", b"4"))

    async def face() -> None:
        async with aio.Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send("T", b"5", timeout="5s")
            await (await producer.submit("T", b"6"))
            await producer.send_oneway("T", b"7")
            await producer.send("T", b"8")

    asyncio.run(face())
    assert sorted(body for _, body in cluster.broker.sent) == [b"%d" % n for n in range(1, 9)]


def test_tags_of_a_message_are_refused_with_the_right_name() -> None:
    with pytest.raises(ValueError, match=r"with tags='a'; expected one tag: .*try: tag="):
        Message("T", b"x", tags="a")  # type: ignore[arg-type]


def test_the_key_of_a_message_is_refused_with_both_names_it_may_mean() -> None:
    with pytest.raises(ValueError, match=r"with key='k'; .*try: keys=\['k'\], or sharding_key='k'"):
        Message("T", b"x", key="k")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([b"x"], r"a list with b'x', of type bytes; expected messages; try: Message\("),
        ([Message("T", b"x"), "T"], r"a list with 'T', of type str"),
        (Message("T", b"x"), r"of type Message; expected a list of messages; try: send_batch\(\["),
        (b"x", r"of type bytes; expected a list of messages"),
        (None, r"of type NoneType; expected a list of messages"),
    ],
)
def test_a_wrong_batch_says_what_is_expected(
    cluster: ThreadedCluster, messages: Any, sentence: str
) -> None:
    with (
        Producer("shop", namesrv=cluster.namesrv) as producer,
        pytest.raises(PenstockError, match=sentence),
    ):
        producer.send_batch(messages)

    async def face() -> None:
        async with aio.Producer("shop", namesrv=cluster.namesrv) as producer:
            with pytest.raises(PenstockError, match=sentence):
                await producer.send_batch(messages)

    asyncio.run(face())
    assert not cluster.broker.sent


def test_a_tag_of_a_handler_is_refused_with_the_right_name() -> None:
    consumer = PushConsumer("billing", namesrv="127.0.0.1:1")
    with pytest.raises(ValueError, match=r"on\('T', tag='a'\).*; try: on\('T', tags='a'\)"):
        consumer.on("T", tag="a")  # type: ignore[call-overload]


WRONG_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"tag": "a"}, r"\('T', tag='a'\).*; try: \w+\('T', tags='a'\)"),
    ({"tags": ["a", "b"]}, r"tags of type list; expected text, .*; try: tags='a \|\| b'"),
    ({"tags": 5}, r"tags of type int; expected text"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG_FILTERS)
def test_a_wrong_filter_says_what_is_expected_and_is_not_kept(
    cluster: ThreadedCluster, given: dict[str, Any], sentence: str
) -> None:
    push = PushConsumer("billing", namesrv=cluster.namesrv)
    pull = PullConsumer("billing", namesrv=cluster.namesrv)
    simple = SimpleConsumer("billing", namesrv=cluster.namesrv)
    for subscribe in (push.on, pull.subscribe, simple.subscribe):
        with pytest.raises(ValueError, match=sentence):
            subscribe("T", **given)
    # A subscription that was kept would forbid this.
    pull.assign([])

    async def face() -> None:
        for consumer in (
            aio.PullConsumer("billing", namesrv=cluster.namesrv),
            aio.SimpleConsumer("billing", namesrv=cluster.namesrv),
        ):
            with pytest.raises(ValueError, match=sentence):
                await consumer.subscribe("T", **given)

    asyncio.run(face())


def test_keys_given_as_one_text_stay_several_keys(cluster: ThreadedCluster) -> None:
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("T", b"x", keys="a b"))
        producer.send(Message("T", b"x", keys=["a", "b", ""]))
    found = [parse_properties(header.properties or "")["KEYS"] for header, _ in cluster.broker.sent]
    assert found == ["a b", "a b "]
