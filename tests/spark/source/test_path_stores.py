"""Reading stores as they are in life: running, copied, several at once, with old messages gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.spark.source.stores import Row, Writer

from penstock.errors import InvalidArgument, StoreDamaged
from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC, revive_topic
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import BatchReader
from penstock.testing.embedded import Embedded

Read = Callable[..., list[Row]]

PLACE = ("topic", "broker", "queue_id", "offset", "body")


def places(rows: list[Row]) -> list[tuple[str, int, int, bytes]]:
    return sorted((row["topic"], row["queue_id"], row["offset"], row["body"]) for row in rows)


@pytest.mark.parametrize("cores", [None, 1, 3])
def test_a_live_store_gives_every_message_written_so_far(
    writer: Callable[..., Writer], read: Read, cores: int | None
) -> None:
    live = writer()
    for count in (1, 30, 200):
        live.send("orders", 0, count)
        live.send("orders", 1, 3)
        live.send("invoices", 0, count // 2)
        assert places(read(live.root, PLACE, cores=cores)) == sorted(live.sent)


def test_messages_that_wait_are_hidden(writer: Callable[..., Writer], read: Read) -> None:
    live = writer()
    live.send("orders", 0, 3)
    for topic in (HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC, revive_topic("DefaultCluster")):
        live.send(topic, 0, 2)
    assert {place[0] for place in places(read(live.root, PLACE))} == {"orders"}
    assert len(read(live.root, PLACE, topic=TIMER_TOPIC)) == 2


def test_entries_that_are_in_memory_alone_are_sent_along(
    writer: Callable[..., Writer], read: Read
) -> None:
    live = writer()
    live.send("orders", 0, 35)
    assert not list((live.root / "consumequeue").glob("orders/0/*"))
    assert places(read(live.root, PLACE, minPartitions="5")) == sorted(live.sent)
    live.store.flush(thorough=True)
    live.send("orders", 0, 35)
    assert list((live.root / "consumequeue").glob("orders/0/*"))
    assert places(read(live.root, PLACE, minPartitions="5")) == sorted(live.sent)


def test_a_copy_of_a_live_store_and_one_without_its_queues_read_the_same(
    writer: Callable[..., Writer], read: Read, tmp_path: Path
) -> None:
    live = writer()
    live.send("orders", 0, 100)
    live.store.flush(thorough=True)
    live.send("orders", 0, 20)
    copy = tmp_path / "copy"
    shutil.copytree(live.root, copy)
    rows = read(copy, PLACE)
    assert places(rows) == sorted(live.sent)
    assert {row["broker"] for row in rows} == {"copy"}
    shutil.rmtree(copy / "consumequeue")
    assert places(read(copy, PLACE)) == sorted(live.sent)


def test_a_data_directory_gives_the_stores_of_all_its_brokers(
    writer: Callable[..., Writer], read: Read
) -> None:
    first, second = writer("broker-a"), writer("broker-b")
    first.send("orders", 0, 12)
    second.send("orders", 0, 7)
    rows = read(first.root.parent, PLACE, cores=2)
    by_broker = {
        name: places([row for row in rows if row["broker"] == name])
        for name in ("broker-a", "broker-b")
    }
    assert by_broker == {"broker-a": sorted(first.sent), "broker-b": sorted(second.sent)}
    with pytest.raises(InvalidArgument, match="broker-a, broker-b"):
        read(first.root.parent, brokerName="mine")


def test_reading_changes_nothing(writer: Callable[..., Writer], read: Read) -> None:
    live = writer()
    live.send("orders", 0, 50)
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in live.root.rglob("*")
        if path.is_file()
    }
    assert len(read(live.root)) == 50
    assert before == {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in live.root.rglob("*")
        if path.is_file()
    }


def test_a_range_by_offsets_by_time_and_by_tag(writer: Callable[..., Writer], read: Read) -> None:
    live = writer()
    live.send("orders", 0, 10, tag="a")
    live.send("orders", 0, 10, tag="b")
    ends = {
        "startingOffsets": '{"orders": {"broker-a": {"0": 5}}}',
        "endingOffsets": '{"orders": {"broker-a": {"0": 12}}}',
    }
    assert [row["offset"] for row in read(live.root, **ends)] == list(range(5, 12))
    assert [row["offset"] for row in read(live.root, tags="b", **ends)] == [10, 11]
    moment = datetime.fromtimestamp(1_700_000_015, UTC).isoformat()
    rows = read(live.root, startingTimestamp=moment, endingTimestamp="1700000018000")
    assert [row["offset"] for row in rows] == [15, 16, 17]
    future = read(live.root, startingTimestamp="2100-01-01T00:00:00Z")
    assert future == []


def test_where_a_group_stands_is_known_from_the_brokers_notes(
    writer: Callable[..., Writer], read: Read
) -> None:
    live = writer()
    live.send("orders", 0, 10)
    (live.root / "config").mkdir()
    notes = live.root / "config" / "consumerOffset.json"
    notes.write_text('{"offsetTable": {"orders@billing": {"0": 7}}}')
    rows = read(live.root, startingOffsets="group", group="billing")
    assert [row["offset"] for row in rows] == [7, 8, 9]
    assert len(read(live.root, startingOffsets="group", group="others")) == 10


def test_topics_by_pattern_and_queues_by_name(writer: Callable[..., Writer], read: Read) -> None:
    live = writer()
    for topic in ("orders-eu", "orders-us", "invoices", "%RETRY%orders-eu"):
        live.send(topic, 0, 2)
        live.send(topic, 1, 1)
    found = {row["topic"] for row in read(live.root, subscribePattern="orders-.*")}
    assert found == {"orders-eu", "orders-us"}
    rows = read(live.root, assign='{"invoices": {"broker-a": [1]}}')
    assert [(row["topic"], row["queue_id"]) for row in rows] == [("invoices", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "order"}, r"topic 'order' is not in .*; expected .*orders.*; try: orders"),
        (
            {"assign": '{"orders": {"broker-a": [7]}}'},
            r"option assign names orders@broker-a:7 is not in",
        ),
        ({"path": "s3://bucket/store"}, r"option path 's3://bucket/store'; expected a directory"),
        ({"path": "/nowhere/at/all"}, r"/nowhere/at/all is not a directory"),
    ],
)
def test_what_is_not_there_is_named(
    writer: Callable[..., Writer], read: Read, options: dict[str, str], message: str
) -> None:
    live = writer()
    live.send("orders", 0, 1)
    path = options.pop("path", str(live.root))
    with pytest.raises(InvalidArgument, match=message):
        read(path, **options)


def test_an_empty_store_has_no_rows(writer: Callable[..., Writer], read: Read) -> None:
    assert read(writer().root) == []


def test_a_topic_without_messages_has_no_rows(mq: Embedded, read: Read) -> None:
    mq.admin.create_topic("quiet", queues=2)
    assert read(mq.data, topic="quiet") == []
    with pytest.raises(InvalidArgument, match=r"'quit' is not in .*; try: quiet"):
        read(mq.data, topic="quit")


def test_a_path_may_say_file(writer: Callable[..., Writer], read: Read) -> None:
    live = writer()
    live.send("orders", 0, 3)
    for form in (f"file:{live.root}", f"file://{live.root}"):
        assert len(read(form)) == 3


def test_expired_messages_are_not_planned(writer: Callable[..., Writer], read: Read) -> None:
    live = writer()
    live.send("orders", 0, 100)
    live.store.flush(thorough=True)
    segments = sorted((live.root / "commitlog").iterdir())
    segments[0].unlink()
    rows = read(live.root, PLACE)
    assert 0 < len(rows) < 100
    assert places(rows) == sorted(live.sent)[-len(rows) :]


def test_messages_that_go_between_planning_and_reading_are_a_loss_or_skipped(
    writer: Callable[..., Writer],
) -> None:
    live = writer()
    live.send("orders", 0, 100)
    live.store.flush(thorough=True)
    options = parse_read({"path": str(live.root)})
    reader = BatchReader(options, ("offset",), 1)
    (task,) = reader.partitions()
    sorted((live.root / "commitlog").iterdir())[0].unlink()
    with pytest.raises(DataLost, match=r"messages 0 to \d+ of .*orders.* are gone"):
        list(reader.read(task))
    lenient = parse_read({"path": str(live.root), "failOnDataLoss": "false"})
    offsets = [
        row["offset"]
        for batch in BatchReader(lenient, ("offset",), 1).read(task)
        for row in batch.to_pylist()
    ]
    assert offsets == list(range(offsets[0], 100))
    assert offsets[0] > 0


def test_an_entry_that_points_to_another_message_is_damage_not_data(
    writer: Callable[..., Writer],
) -> None:
    live = writer()
    live.send("orders", 0, 8)
    live.store.flush(thorough=True)
    options = parse_read({"path": str(live.root)})
    reader = BatchReader(options, ("offset",), 1)
    (task,) = reader.partitions()
    (file,) = (live.root / "consumequeue" / "orders" / "0").iterdir()
    entries = bytearray(file.read_bytes())
    entries[20:40] = entries[40:60]
    file.write_bytes(entries)
    with pytest.raises(
        StoreDamaged, match=r"queue offset 2; expected the one with 1.*penstock store verify"
    ):
        list(reader.read(task))
