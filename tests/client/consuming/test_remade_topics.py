"""A topic is deleted and created again under its consumers: they begin at its first message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.loop_clients import Bench, on_bench

from penstock import Message, Producer, PullConsumer, PushConsumer, embedded
from penstock.client.settings import StartFrom
from penstock.model import StoredMessage
from penstock.protocol.codes import RequestCode
from penstock.protocol.extensions import TOPIC_EPOCH
from penstock.testing.embedded import Embedded

WARNING = "topic was deleted and created again, beginning at its first message"


@pytest.fixture
def mq() -> Iterator[Embedded]:
    with embedded(clock="virtual") as running:
        yield running


def send(mq: Embedded, *numbers: int) -> None:
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in numbers:
            producer.send(Message("orders", b"%d" % number))


def remake(mq: Embedded) -> None:
    mq.admin.delete_topic("orders")
    mq.admin.create_topic("orders", queues=1)


@pytest.mark.parametrize("later", [100, 300])
@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"model": "broadcasting"}])
def test_every_message_of_the_new_topic_arrives(
    mq: Embedded,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    later: int,
    tmp_path: Any,
) -> None:
    """Fewer messages than before, and more: then the old offset exists in the new topic."""
    mq.admin.create_topic("orders", queues=1)
    seen: list[int] = []
    if options.get("model") == "broadcasting":
        options = {**options, "offsets_dir": tmp_path}
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first", **options)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        seen.append(int(message.body))

    send(mq, *range(200))
    with consumer:
        mq.clock.advance("20s")
        assert sorted(seen) == list(range(200))
        seen.clear()
        remake(mq)
        send(mq, *range(1000, 1000 + later))
        mq.clock.advance("30s")
        assert sorted(seen) == list(range(1000, 1000 + later))
        assert caplog.text.count(WARNING) == 1
        if not options.get("model"):
            (row,) = (one for one in mq.admin.group_lag("billing") if one.topic == "orders")
            assert (row.committed, row.lag) == (later, 0)
        seen.clear()
        remake(mq)
        send(mq, 1, 2)
        mq.clock.advance("30s")
        assert sorted(seen) == [1, 2], "and once more"


def test_a_broadcasting_client_that_was_stopped_meanwhile_begins_anew(
    mq: Embedded, tmp_path: Path
) -> None:
    mq.admin.create_topic("orders", queues=1)
    seen: list[int] = []

    def consume() -> None:
        consumer = PushConsumer(
            "billing",
            namesrv=mq.namesrv,
            start_from="first",
            model="broadcasting",
            offsets_dir=tmp_path,
            instance="one",
        )
        consumer.on("orders")(lambda message: seen.append(int(message.body)))
        with consumer:
            mq.clock.advance("20s")

    send(mq, *range(50))
    consume()
    consume()
    assert sorted(seen) == list(range(50)), "the second one goes on where the first one stopped"
    seen.clear()
    remake(mq)
    send(mq, *range(1000, 1080))
    consume()
    assert sorted(seen) == list(range(1000, 1080))


def test_a_pull_consumer_begins_anew_too(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1)
    send(mq, *range(50))
    with PullConsumer("billing", namesrv=mq.namesrv, start_from="first") as consumer:
        consumer.subscribe("orders")
        seen: list[int] = []
        while len(seen) < 50:
            seen += [int(message.body) for message in consumer.poll(5)]
        remake(mq)
        send(mq, *range(1000, 1080))
        mq.clock.advance("10s")
        again: list[int] = []
        while batch := consumer.poll(5):
            again += [int(message.body) for message in batch]
        assert again == list(range(1000, 1080))


@on_bench(topics={"T": 1})
async def test_the_epoch_is_returned_with_pulls_and_commits(bench: Bench) -> None:
    bench.broker.put("T", 0, b"x")
    ask = bench.broker._handlers[RequestCode.QUERY_CONSUMER_OFFSET]
    bench.broker.offsets["billing", "T", 0] = 0

    def with_epoch(peer: Any, request: Any) -> Any:
        answer: Any = ask(peer, request)
        answer.ext = {**(answer.ext or {}), TOPIC_EPOCH: "4711"}
        return answer

    bench.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = with_epoch
    await bench.consumer(lambda message: None, start_from=StartFrom("first"))
    await asyncio.sleep(15)
    pulls = bench.broker.asked(RequestCode.PULL_MESSAGE, topic="T")
    commits = bench.broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET, topic="T")
    assert commits
    assert {request.ext[TOPIC_EPOCH] for request in pulls + commits} == {"4711"}
