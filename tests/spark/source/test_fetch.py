"""Fetching: exact content, and what happens when messages or brokers go away. No Spark here."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.spark.source.brokers import (
    SMALL_SEGMENTS,
    create,
    numbered,
    numbers,
    produce,
    read,
    running,
)

from penstock import Message, MessageQueue, Producer
from penstock.errors import InvalidArgument, NameserverUnavailable, TopicNotFound
from penstock.spark.source import fetch
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import parse_read
from penstock.spark.source.planning import TaskRanges
from penstock.spark.source.ranges import Range
from penstock.testing.embedded import Embedded


def test_every_message_comes_once_with_all_it_has(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 3)
    create(mq.namesrv, "payments", 1)
    big = b"compress me " * 1000
    sent = [
        Message(
            topic,
            big + b"%d" % n if n % 5 == 0 else b"%s %d" % (topic.encode(), n),
            keys=[f"{topic}-{n}", "all"],
            tag="even" if n % 2 == 0 else "odd",
            properties={"n": str(n)},
        )
        for topic in ("orders", "payments")
        for n in range(60)
    ]
    with Producer("p", namesrv=mq.namesrv) as producer:
        receipts = [producer.send(message) for message in sent]
        together = [Message("orders", b"batch %d" % n, tag="odd") for n in range(20)]
        batch = producer.send_batch(together)
    columns = ("topic", "broker", "queue_id", "offset", "msg_id", "keys", "tags", "body")
    rows = read(mq.namesrv, (*columns, "properties"), topic="orders,payments")
    by_place = {(row[0], row[1], row[2], row[3]): row for row in rows}
    assert len(by_place) == len(rows) == len(sent) + len(together)
    for message, receipt in zip(sent, receipts, strict=True):
        row = by_place[(*receipt.queue, receipt.queue_offset)]
        assert row[4] == receipt.msg_id
        assert row[5] == list(message.keys)
        assert row[6] == message.tag
        assert row[7] == message.body
        properties = dict(row[8])  # type: ignore[call-overload]
        assert properties["n"] == (message.properties or {})["n"]
    for index, message in enumerate(together):
        row = by_place[(*batch.queue, batch.queue_offset + index)]
        assert row[6:8] == (message.tag, message.body)


def test_tags_are_filtered_exactly_although_brokers_go_by_their_hash(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    # Java's hash of these two is the same, so the broker lets both through.
    produce(mq.namesrv, [Message("orders", b"1", tag="Aa"), Message("orders", b"2", tag="BB")])
    produce(mq.namesrv, [Message("orders", b"%d" % n, tag="x") for n in range(3, 300)])
    assert numbers(read(mq.namesrv, topic="orders", tags="Aa")) == [1]
    assert numbers(read(mq.namesrv, topic="orders", tags="Aa || BB")) == [1, 2]
    assert numbers(read(mq.namesrv, topic="orders", tags="absent")) == []


def test_keys_are_filtered(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, [Message("orders", b"%d" % n, keys=[f"k{n}", "k"]) for n in range(50)])
    assert numbers(read(mq.namesrv, topic="orders", keys="k7,k31,k99")) == [7, 31]


def test_an_empty_topic_has_no_rows(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 4)
    assert read(mq.namesrv, topic="orders") == []


def test_a_range_is_cut_at_its_offsets_however_large_the_answers_are(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(500), size=100))
    start = '{"orders": {"broker-a": {"0": 123}}}'
    end = '{"orders": {"broker-a": {"0": 321}}}'
    for fetch_bytes in ("1024", "8388608"):
        rows = read(
            mq.namesrv,
            topic="orders",
            startingOffsets=start,
            endingOffsets=end,
            fetchBytes=fetch_bytes,
        )
        assert numbers(rows) == list(range(123, 321))


def test_an_end_before_the_beginning_is_refused(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(9)))

    def at(offset: int) -> str:
        return f'{{"orders": {{"broker-a": {{"0": {offset}}}}}}}'

    with pytest.raises(InvalidArgument, match=r"begins at 5 and ends at 3; expected an end that"):
        read(mq.namesrv, topic="orders", startingOffsets=at(5), endingOffsets=at(3))
    with pytest.raises(InvalidArgument, match=r"begins at 20 and ends at 9"):
        read(mq.namesrv, topic="orders", startingOffsets=at(20))
    assert read(mq.namesrv, topic="orders", startingOffsets=at(3), endingOffsets=at(3)) == []
    # An end that the cluster found is no mistake: there is just nothing to read.
    assert read(mq.namesrv, topic="orders", startingOffsets=at(5), endingTimestamp="1000") == []


def test_topics_are_found_by_pattern_and_queues_by_assignment(mq: Embedded) -> None:
    for index, topic in enumerate(("shop-a", "shop-b", "other")):
        create(mq.namesrv, topic, 2)
        for number in (0, 1):
            queue = MessageQueue(topic, "broker-a", number)
            produce(mq.namesrv, numbered(topic, [10 * index + number]), queue)
    assert numbers(read(mq.namesrv, subscribePattern="shop-.*")) == [0, 1, 10, 11]
    assert numbers(read(mq.namesrv, subscribePattern=".*")) == [0, 1, 10, 11, 20, 21]
    assigned = '{"shop-b": {"broker-a": [1]}, "other": {"broker-a": [0]}}'
    assert numbers(read(mq.namesrv, assign=assigned)) == [11, 20]
    with pytest.raises(InvalidArgument, match="shop-a@broker-a:7, which does not exist"):
        read(mq.namesrv, assign='{"shop-a": {"broker-a": [7]}}')
    with pytest.raises(InvalidArgument, match=r"topics matching 'none\.\*' at"):
        read(mq.namesrv, subscribePattern="none.*")


def test_a_namespace_is_the_users_own_business(mq: Embedded) -> None:
    create(mq.namesrv, "ns%orders", 1)
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("ns%orders", [1]))
    produce(mq.namesrv, numbered("orders", [2]))
    columns = ("body", "topic")
    assert read(mq.namesrv, columns, namespace="ns", topic="orders") == [(b"1", "orders")]
    assert read(mq.namesrv, columns, namespace="ns", subscribePattern=".*") == [(b"1", "orders")]


def test_a_missing_topic_and_a_missing_name_server_are_named(mq: Embedded) -> None:
    with pytest.raises(TopicNotFound, match="no route for topic 'absent' at name servers"):
        read(mq.namesrv, topic="absent")
    with pytest.raises(NameserverUnavailable, match=r"none of the name servers 127\.0\.0\.1:1 "):
        read("127.0.0.1:1", topic="orders")


def test_messages_that_expired_are_an_error_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data", settings=SMALL_SEGMENTS) as up:
        create(up.namesrv, "orders", 1)
        produce(up.namesrv, numbered("orders", range(400), size=500))
        up.stop()
        up.expire(2)
        up.start()
        left = numbers(read(up.namesrv, topic="orders"))
        assert 0 < len(left) < 400
        assert left == list(range(left[0], 400))
        planned = TaskRanges([Range(MessageQueue("orders", "broker-a", 0), 0, 400)])
        strict = Fetcher(parse_read({"namesrv": up.namesrv, "topic": "orders"}))
        with pytest.raises(DataLost, match=rf"messages 0 to {left[0] - 1} of orders@broker-a:0"):
            list(strict.batches(planned.ranges, ("body",)))
        lenient = Fetcher(
            parse_read({"namesrv": up.namesrv, "topic": "orders", "failOnDataLoss": "false"})
        )
        with caplog.at_level(logging.WARNING, "penstock.spark.source.fetch"):
            batches = list(lenient.batches(planned.ranges, ("body",)))
        rows = [(body,) for batch in batches for body in batch.column(0).to_pylist()]
        assert numbers(rows) == left
        assert f"messages 0 to {left[0] - 1} of orders@broker-a:0 are gone" in caplog.text


def test_a_queue_that_became_shorter_is_an_error_or_ends_the_range(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SHORT_PATIENCE", 0.3)
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(10)))
    planned = TaskRanges([Range(MessageQueue("orders", "broker-a", 0), 0, 25)])
    options = {"namesrv": mq.namesrv, "topic": "orders"}
    with pytest.raises(DataLost, match=r"ends at 10 on .*, and 10 to 24 were to be read"):
        list(Fetcher(parse_read(options)).batches(planned.ranges, ("body",)))
    lenient = Fetcher(parse_read({**options, "failOnDataLoss": "false"}))
    rows = [
        (b,) for batch in lenient.batches(planned.ranges, ("body",)) for b in batch[0].to_pylist()
    ]
    assert numbers(rows) == list(range(10))


def test_a_broker_that_restarts_in_the_middle_is_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "data") as up:
        create(up.namesrv, "orders", 1)
        produce(up.namesrv, numbered("orders", range(300), size=3000))
        options = parse_read({"namesrv": up.namesrv, "topic": "orders", "fetchBytes": "16384"})
        planned = TaskRanges([Range(MessageQueue("orders", "broker-a", 0), 0, 300)])
        rows: list[tuple[object, ...]] = []
        for index, chunk in enumerate(Fetcher(options).batches(planned.ranges, ("body",))):
            rows += [(body,) for body in chunk.column(0).to_pylist()]
            if index == 0:
                assert len(rows) < 300
                up.kill()
                up.start()
        assert numbers(rows) == list(range(300))
        assert len(rows) == 300


def test_a_queue_that_is_too_short_after_an_outage_gets_time_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shorter than a broker's start.
    monkeypatch.setattr(fetch, "SHORT_PATIENCE", 0.05)
    with running(tmp_path / "data") as up:
        create(up.namesrv, "orders", 1)
        produce(up.namesrv, numbered("orders", range(10)))
        up.kill()

        class Helper(logging.Handler):
            """Does what the fetcher says it waits for."""

            def emit(self, record: logging.LogRecord) -> None:
                if "ends at 10" in record.getMessage():
                    produce(up.namesrv, numbered("orders", range(10, 12)))
                else:
                    up.start()

        helper = Helper()
        fetch.log.addHandler(helper)
        try:
            options = parse_read({"namesrv": up.namesrv, "topic": "orders"})
            planned = TaskRanges([Range(MessageQueue("orders", "broker-a", 0), 10, 12)])
            batches = list(Fetcher(options).batches(planned.ranges, ("body",)))
        finally:
            fetch.log.removeHandler(helper)
    assert numbers((b,) for batch in batches for b in batch[0].to_pylist()) == [10, 11]


def test_a_broker_that_gives_32_messages_at_a_time_is_read_as_well(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Names the broker does not know, as Apache's does not know ours.
    monkeypatch.setattr(fetch, "PULL_BYTES", "unknownBytes")
    monkeypatch.setattr(fetch, "PULL_COUNT", "unknownCount")
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, [Message("orders", b"%d" % n, tag="ab"[n % 2]) for n in range(500)])
    rows = read(mq.namesrv, ("body", "queue_id", "offset"), topic="orders")
    assert numbers(rows) == list(range(500))
    assert rows == sorted(rows, key=lambda row: (row[1], row[2]))
    assert numbers(read(mq.namesrv, topic="orders", tags="b")) == list(range(1, 500, 2))
