"""The stream from a store, asked what Spark asks it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.source.stores import Writer

from penstock import Message, Producer
from penstock.errors import InvalidArgument
from penstock.spark.source import path_driver, truncated_queues
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import StreamReader
from penstock.testing.embedded import Embedded

Offset = dict[str, Any]
Place = tuple[str, int, int, bytes]


def stream(path: Path, **options: str) -> StreamReader:
    settings = {"path": str(path), "startingOffsets": "earliest", "pollTimeoutMs": "0", **options}
    return StreamReader(parse_read(settings), ("topic", "queue_id", "offset", "body"), 2)


def batch(reader: StreamReader, start: Offset, end: Offset) -> list[Place]:
    return sorted(
        (row["topic"], row["queue_id"], row["offset"], row["body"])
        for task in reader.partitions(start, end)
        for found in reader.read(task)
        for row in found.to_pylist()
    )


def test_each_batch_has_what_was_written_since(writer: Callable[..., Writer]) -> None:
    live = writer()
    live.send("orders", 0, 5)
    reader = stream(live.root)
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    seen: list[Place] = []
    for topic, queue_id, count in (("orders", 0, 70), ("orders", 1, 3), ("invoices", 0, 1)):
        live.send(topic, queue_id, count)
        end = reader.latestOffset(start, ReadAllAvailable())
        seen += batch(reader, start, end)
        assert sorted(seen) == sorted(live.sent)
        start = json.loads(json.dumps(end))
    assert json.dumps(reader.latestOffset(start, ReadAllAvailable())) == json.dumps(start)
    reader.stop()


def test_a_stream_may_begin_before_the_first_message_of_its_topic(mq: Embedded) -> None:
    mq.admin.create_topic("quiet", queues=1)
    reader = stream(mq.data, topic="quiet")
    start = reader.initialOffset()
    with Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("quiet", b"the first"))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert batch(reader, start, end) == [("quiet", 0, 0, b"the first")]
    reader.stop()


def test_a_replayed_batch_is_the_same_after_a_restart(writer: Callable[..., Writer]) -> None:
    live = writer()
    live.send("orders", 0, 30)
    first = stream(live.root)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(12))
    before = batch(first, start, end)
    assert len(before) == 12
    live.send("orders", 0, 30)
    assert batch(stream(live.root), start, end) == before


def test_a_new_stream_begins_at_the_latest_message(writer: Callable[..., Writer]) -> None:
    live = writer()
    live.send("orders", 0, 4)
    reader = stream(live.root, startingOffsets="latest")
    start = reader.initialOffset()
    live.send("orders", 0, 2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert batch(reader, start, end) == live.sent[4:]


def test_available_now_ends_at_what_was_there(writer: Callable[..., Writer]) -> None:
    live = writer()
    live.send("orders", 0, 4)
    reader = stream(live.root)
    start = reader.initialOffset()
    live.send("orders", 0, 2)
    reader.prepareForTriggerAvailableNow()
    live.send("orders", 0, 5)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert batch(reader, start, end) == live.sent[:6]


def test_a_store_read_for_long_is_opened_anew_before_its_entries_fill_the_memory(
    writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_driver, "MAX_TAIL_BYTES", 400)
    live = writer()
    live.send("orders", 0, 1)
    reader = stream(live.root)
    start = reader.initialOffset()
    opened = set()
    seen: list[Place] = []
    for _ in range(6):
        live.send("orders", 0, 15)
        live.store.flush(thorough=True)
        end = reader.latestOffset(start, ReadAllAvailable())
        seen += batch(reader, start, end)
        driver = reader._driver
        assert isinstance(driver, path_driver.PathDriver)
        opened.add(id(driver.catalog))
        start = end
    assert seen == live.sent
    assert len(opened) > 1


def test_a_copy_that_is_older_than_the_checkpoint_is_data_loss(
    writer: Callable[..., Writer], tmp_path: Path
) -> None:
    live = writer()
    live.send("orders", 0, 10)
    copy = tmp_path / "copy"
    shutil.copytree(live.root, copy)
    live.send("orders", 0, 10)
    reader = stream(live.root)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLost, match=r"ends at 10, and messages up to 19 were to be read"):
        stream(copy, brokerName="broker-a").partitions(start, end)
    lenient = stream(copy, brokerName="broker-a", failOnDataLoss="false")
    assert batch(lenient, start, end) == live.sent[:10]


def test_a_queue_shorter_than_the_checkpoint_is_data_loss_or_gone_on_with_at_its_end(
    writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncated_queues, "SHORT_PATIENCE", 0.2)
    live = writer()
    live.send("orders", 0, 3)
    start: Offset = {"offsets": {"orders": {"broker-a": {"0": 8}}}}
    reader = stream(live.root)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match=r"ends at 3, and the stream has read up to 8"):
        reader.latestOffset(start, ReadAllAvailable())
    lenient = stream(live.root, failOnDataLoss="false")
    lenient.prepareForTriggerAvailableNow()
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert batch(lenient, start, end) == []
    live.send("orders", 0, 2)
    lenient = stream(live.root, failOnDataLoss="false")
    assert batch(lenient, end, lenient.latestOffset(end, ReadAllAvailable())) == live.sent[3:]


def test_a_stream_has_no_end(writer: Callable[..., Writer]) -> None:
    with pytest.raises(InvalidArgument, match="endingOffsets"):
        stream(writer().root, endingOffsets="latest")
