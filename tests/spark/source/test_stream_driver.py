"""The driver's half of a stream, asked as Spark asks it, but without Spark."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.source.brokers import (
    SMALL_SEGMENTS,
    Up,
    create,
    numbered,
    numbers,
    produce,
    running,
)

from penstock import MessageQueue
from penstock.errors import InvalidArgument, PenstockError
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import StreamReader
from penstock.spark.source.stream_driver import read_offsets
from penstock.testing.embedded import Embedded

ALL = ReadAllAvailable()


def stream(namesrv: str, **options: str) -> StreamReader:
    given = {"namesrv": namesrv, "topic": "orders", "pollTimeoutMs": "0", **options}
    return StreamReader(parse_read(given), ("body",), 2)


def content(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    """The numbers of a micro-batch."""
    return numbers(
        (body,)
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for body in batch.column(0).to_pylist()
    )


def queue(number: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", number)


def test_a_stream_begins_at_the_end_and_reads_what_comes(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(10)))
    reader = stream(mq.namesrv)
    start = reader.initialOffset()
    assert sum(read_offsets(start).values()) == 10
    assert reader.latestOffset(start, ALL) == start
    assert reader.partitions(start, start) == []
    produce(mq.namesrv, numbered("orders", range(10, 20)))
    end = reader.latestOffset(start, ALL)
    assert content(reader, start, end) == list(range(10, 20))
    assert reader.reportLatestOffset() == end
    reader.stop()


def test_offsets_are_the_same_text_for_the_same_place(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 12)
    first, second = stream(mq.namesrv), stream(mq.namesrv)
    written = json.dumps(first.initialOffset())
    assert json.dumps(second.initialOffset()) == written
    assert json.dumps(second.latestOffset(json.loads(written), ALL)) == written
    first.stop()
    second.stop()


def test_a_message_ends_the_wait_for_it(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 4)
    reader = stream(mq.namesrv, pollTimeoutMs="10000")
    place = reader.initialOffset()
    for number in range(3):
        sender = threading.Timer(0.05, produce, (mq.namesrv, numbered("orders", [number])))
        sender.start()
        begun = time.monotonic()
        end = reader.latestOffset(place, ALL)
        waited = time.monotonic() - begun
        sender.join()
        assert content(reader, place, end) == [number]
        assert waited < 9, "the poll was over before the message was noticed"
        place = end
    reader.stop()


def test_a_limit_is_kept_unless_all_is_asked_for(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 3)
    produce(mq.namesrv, numbered("orders", range(50)))
    reader = stream(mq.namesrv, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    place = reader.initialOffset()
    sizes: list[int] = []
    seen: list[int] = []
    while (end := reader.latestOffset(place, limit)) != place:
        seen += content(reader, place, end)
        sizes.append(len(seen) - sum(sizes))
        place = end
    assert sizes == [20, 20, 10]
    assert sorted(seen) == list(range(50))
    assert sum(read_offsets(reader.latestOffset(reader.initialOffset(), ALL)).values()) == 50
    reader.stop()


def test_available_now_ends_at_what_was_there(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(30)))
    reader = stream(mq.namesrv, startingOffsets="earliest", pollTimeoutMs="10000")
    reader.prepareForTriggerAvailableNow()
    produce(mq.namesrv, numbered("orders", range(30, 40)))
    place, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(place, ReadMaxRows(8))) != place:
        seen += content(reader, place, end)
        place = end
    assert sorted(seen) == list(range(30))
    reader.stop()


def test_a_queue_that_is_added_is_read_from_its_beginning(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.source.cluster.ROUTE_SECONDS", 0.0)
    create(mq.namesrv, "orders", 1)
    reader = stream(mq.namesrv)
    start = reader.initialOffset()
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(5)), queue(1))
    end = reader.latestOffset(start, ALL)
    assert read_offsets(end) == {queue(0): 0, queue(1): 5}
    assert content(reader, start, end) == list(range(5))
    reader.stop()


def test_a_queue_that_is_added_without_its_first_messages_is_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data", settings=SMALL_SEGMENTS) as up:
        create(up.namesrv, "orders", 2)
        produce(up.namesrv, numbered("orders", range(400), size=500), queue(1))
        up.stop()
        up.expire(2)
        up.start()
        start: dict[str, object] = {"offsets": {"orders": {"broker-a": {"0": 0}}}}
        strict, lenient = stream(up.namesrv), stream(up.namesrv, failOnDataLoss="false")
        with pytest.raises(DataLost, match="orders@broker-a:1 was added to the stream, and its"):
            strict.latestOffset(start, ALL)
        end = lenient.latestOffset(start, ALL)
        left = content(lenient, start, end)
        assert left == list(range(400 - len(left), 400))
        assert f"its first {left[0]} messages are gone" in caplog.text
        with pytest.raises(DataLost, match="orders@broker-a:1 was added"):
            strict.partitions(start, end)
        strict.stop()
        lenient.stop()


def test_a_pattern_may_match_nothing_yet(mq: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.source.cluster.ROUTE_SECONDS", 0.0)
    options = {"namesrv": mq.namesrv, "subscribePattern": "shop-.*", "pollTimeoutMs": "0"}
    reader = StreamReader(parse_read(options), ("body",), 2)
    start = reader.initialOffset()
    create(mq.namesrv, "shop-a", 1)
    produce(mq.namesrv, numbered("shop-a", [1, 2]))
    end = reader.latestOffset(start, ALL)
    assert content(reader, start, end) == [1, 2]
    reader.stop()


def test_progress_is_shown_in_the_group_when_the_next_batch_is_asked_for(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(10)))
    reader = stream(mq.namesrv, group="audit", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert [row.lag for row in mq.admin.group_lag("audit")] == [10], "not before it is finished"
    reader.latestOffset(end, ALL)
    assert [(row.committed, row.lag) for row in mq.admin.group_lag("audit")] == [(10, 0)]
    reader.stop()
    resumed = stream(mq.namesrv, group="audit", startingOffsets="group", commitToGroup="false")
    assert read_offsets(resumed.initialOffset()) == {queue(0): 10}
    resumed.stop()


def test_the_offsets_say_whom_the_listener_moves_and_nothing_secret(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(mq.namesrv, "orders", 1)
    plain = stream(mq.namesrv, group="audit")
    assert plain.initialOffset() == {
        "group": "audit",
        "namesrv": mq.namesrv,
        "offsets": {"orders": {"broker-a": {"0": 0}}},
    }
    assert set(stream(mq.namesrv).initialOffset()) == {"offsets"}
    secrets = {"accessKey": "AK-secret", "secretKey": "SK-secret"}
    signed = stream(mq.namesrv, group="audit", **secrets).initialOffset()
    # The listener could not sign, so it is not asked.
    assert set(signed) == {"offsets"}
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "AK-secret")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "SK-secret")
    from_environment = stream(mq.namesrv, group="audit").initialOffset()
    assert from_environment["group"] == "audit"
    assert "secret" not in json.dumps([signed, from_environment])


def test_an_outage_is_waited_out_with_a_word_about_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data") as up:
        create(up.namesrv, "orders", 1)
        reader = stream(up.namesrv, group="audit", pollTimeoutMs="200")
        start = reader.initialOffset()
        up.kill()
        with caplog.at_level(logging.WARNING):
            assert reader.latestOffset(start, ALL) == start
        assert "the stream of topic 'orders' waits" in caplog.text
        with pytest.raises(PenstockError):
            reader.prepareForTriggerAvailableNow()
        up.start()
        produce(up.namesrv, numbered("orders", [1, 2]))
        deadline = time.monotonic() + 30
        while (end := reader.latestOffset(start, ALL)) == start:
            assert time.monotonic() < deadline
        assert content(reader, start, end) == [1, 2]
        reader.stop()


def test_topics_with_a_route_go_on_without_one_that_has_none(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.spark.source.cluster.ROUTE_SECONDS", 0.0)
    create(mq.namesrv, "orders", 1)
    create(mq.namesrv, "gone", 1)
    produce(mq.namesrv, numbered("gone", [1, 2]))
    assigned = json.dumps({"orders": {"broker-a": [0]}, "gone": {"broker-a": [0]}})
    readers = [
        stream(mq.namesrv, topic="gone,orders"),
        StreamReader(parse_read({"namesrv": mq.namesrv, "assign": assigned}), ("body",), 2),
    ]
    starts = [reader.initialOffset() for reader in readers]
    mq.admin.delete_topic("gone")
    produce(mq.namesrv, numbered("orders", range(3)))
    for reader, start in zip(readers, starts, strict=True):
        caplog.clear()
        end = reader.latestOffset(start, ALL)
        assert content(reader, start, end) == [0, 1, 2]
        assert read_offsets(end)[MessageQueue("gone", "broker-a", 0)] == 2, "for its return"
        assert "no route for topic 'gone'" in caplog.text
        reader.stop()


def test_a_topic_that_was_made_anew_is_noticed(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.source.cluster.ROUTE_SECONDS", 0.0)
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(20)))
    strict, lenient = stream(mq.namesrv), stream(mq.namesrv, failOnDataLoss="false")
    start = strict.initialOffset()
    mq.admin.delete_topic("orders")
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", [100, 101]))
    with pytest.raises(DataLost, match="orders@broker-a:0 ends at 2, and the stream has read up"):
        strict.latestOffset(start, ALL)
    back = lenient.latestOffset(start, ALL)
    assert content(lenient, start, back) == []
    assert content(lenient, back, lenient.latestOffset(back, ALL)) == [100, 101]


def test_available_now_reads_a_topic_that_was_made_anew(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(3)))
    reader = stream(mq.namesrv, failOnDataLoss="false", maxOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    place: dict[str, object] = {"offsets": {"orders": {"broker-a": {"0": 20}}}}
    seen: list[int] = []
    while (end := reader.latestOffset(place, ReadMaxRows(2))) != place:
        seen += content(reader, place, end)
        place = end
    assert seen == [0, 1, 2]


@pytest.fixture
def older(tmp_path: Path) -> Iterator[tuple[Up, dict[str, object]]]:
    """A stopped broker with the first ten of twenty messages that a stream has read."""
    with running(tmp_path / "data", settings=SMALL_SEGMENTS) as up:
        create(up.namesrv, "orders", 1)
        produce(up.namesrv, numbered("orders", range(10)))
        up.stop()
        shutil.copytree(up.data, tmp_path / "copy")
        up.start()
        produce(up.namesrv, numbered("orders", range(10, 20)))
        reader = stream(up.namesrv)
        start = reader.initialOffset()
        reader.stop()
        up.stop()
        up.data.rename(tmp_path / "newer")
        (tmp_path / "copy").rename(up.data)
        yield up, start


def test_a_replica_that_lags_is_waited_for(
    older: tuple[Up, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.source.truncated_queues.SHORT_PATIENCE", 0.0)
    up, start = older
    up.configure(f"{SMALL_SEGMENTS}brokerId=1\n")
    up.start()
    reader = stream(up.namesrv)
    assert reader.latestOffset(start, ALL) == start
    assert reader.latestOffset(start, ALL) == start, "and not only for a moment"
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, ALL) == start
    up.stop()
    shutil.rmtree(up.data)
    up.data.with_name("newer").rename(up.data)
    up.configure(SMALL_SEGMENTS)
    up.start()
    produce(up.namesrv, numbered("orders", [20, 21]))
    reader = stream(up.namesrv)
    assert content(reader, start, reader.latestOffset(start, ALL)) == [20, 21]
    reader.stop()


def test_a_lost_tail_is_an_error_or_gone_on_after_without_a_repeat(
    older: tuple[Up, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    up, start = older
    up.start()
    strict, lenient = stream(up.namesrv), stream(up.namesrv, failOnDataLoss="false")
    assert strict.latestOffset(start, ALL) == start, "it may be recovering still"
    assert lenient.latestOffset(start, ALL) == start
    monkeypatch.setattr("penstock.spark.source.truncated_queues.SHORT_PATIENCE", 0.0)
    with pytest.raises(DataLost, match="ends at 10, and the stream has read up to 20"):
        strict.latestOffset(start, ALL)
    back = lenient.latestOffset(start, ALL)
    assert content(lenient, start, back) == []
    with pytest.raises(DataLost, match="ended at 10, and the stream had read up to 20"):
        strict.partitions(start, back)
    produce(up.namesrv, numbered("orders", [30, 31]))
    assert content(lenient, back, lenient.latestOffset(back, ALL)) == [30, 31]
    strict.stop()
    lenient.stop()


def test_a_stream_has_no_end_and_no_foreign_checkpoint(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    with pytest.raises(InvalidArgument, match="endingOffsets or endingTimestamp in a stream"):
        stream(mq.namesrv, endingOffsets="latest")
    with pytest.raises(InvalidArgument, match="does the checkpoint belong to another query"):
        stream(mq.namesrv).latestOffset({"orders": {"0": 5}}, ALL)


def test_a_topic_that_the_stream_no_longer_names_is_not_left_in_silence(
    mq: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    create(mq.namesrv, "orders", 1)
    create(mq.namesrv, "refunds", 1)
    before = stream(mq.namesrv, topic="orders,refunds").initialOffset()
    for subject in (
        {"topic": "orders"},
        {"subscribePattern": "ord.*"},
        {"assign": '{"orders": {"broker-a": [0]}}'},
    ):
        given = {"namesrv": mq.namesrv, "pollTimeoutMs": "0", **subject}
        reader = StreamReader(parse_read(given), ("body",), 2)
        with pytest.raises(DataLost, match=r"has refunds@broker-a:0, .*name it again"):
            reader.latestOffset(before, ALL)
    produce(mq.namesrv, numbered("orders", range(3)))
    left = stream(mq.namesrv, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = left.latestOffset(before, ALL)
    assert "left for good" in caplog.text
    assert read_offsets(end) == {queue(0): 3}
    assert content(left, before, end) == [0, 1, 2]


@pytest.mark.parametrize("cut", ["before", "while"])
def test_a_wait_survives_the_loss_of_its_connection(tmp_path: Path, cut: str) -> None:
    with running(tmp_path / "data") as up:
        create(up.namesrv, "orders", 2)
        reader = stream(up.namesrv, pollTimeoutMs="300")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start
        if cut == "before":
            up.kill()
            up.start()
        else:
            killer = threading.Timer(0.1, up.kill)
            killer.start()
            assert reader.latestOffset(start, ALL) == start
            killer.join()
            up.start()
        produce(up.namesrv, numbered("orders", [7]))
        deadline = time.monotonic() + 30
        while (end := reader.latestOffset(start, ALL)) == start:
            assert time.monotonic() < deadline
        assert content(reader, start, end) == [7]
        reader.stop()
