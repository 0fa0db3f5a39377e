"""The sink's sending without Spark: what a task does when brokers misbehave."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.columnar.encode import MessageColumns
from penstock.columnar.row_ids import Origin
from penstock.errors import NameserverUnavailable, RequestRefused, TopicNotFound
from penstock.model import MessageQueue
from penstock.runtime.child_process import ChildProcess
from penstock.spark.sink.row_names import RowNames
from penstock.spark.sink.task_sender import Post, TaskSender
from penstock.spark.sink.write_options import parse_write
from penstock.spark.sink.writers import Written, write_rows
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import parse_read
from penstock.spark.source.planning import tasks
from penstock.spark.source.positions import Positions
from penstock.testing.embedded import Embedded

NAMES = RowNames(Origin("query", 0, 0), may_be_stored=False)
UP = (sys.executable, "-m", "penstock", "up")
FREE_PORTS = ("--nameserver-port", "0", "--broker-port", "0")
READY = r"ready namesrv=(\S+:(\d+)) broker=\S+:(\d+)"


def rows(numbers: range) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in numbers]})


def write(batches: Iterator[pa.RecordBatch], namesrv: str, **options: str) -> Written:
    given = parse_write({"namesrv": namesrv, "topic": "orders", **options})
    return write_rows(batches, given, MessageColumns(body=0), NAMES)


def stored(namesrv: str, *columns: str) -> list[dict[str, object]]:
    options = parse_read({"namesrv": namesrv, "topic": "orders"})
    return [
        row
        for task in tasks(Positions(options).batch_ranges())
        for batch in Fetcher(options).batches(task.ranges, columns)
        for row in batch.to_pylist()
    ]


def test_a_task_knows_where_its_messages_went(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=3)
    written = write(iter([rows(range(100)), rows(range(100, 150))]), mq.namesrv, batchBytes="2000")
    found = stored(mq.namesrv, "queue_id", "offset", "body")
    assert sorted(int(row["body"]) for row in found) == list(range(150))  # type: ignore[call-overload]
    counts = Counter(row["queue_id"] for row in found)
    assert {queue.queue_id: count for queue, count in written.counts.items()} == counts
    assert {queue.queue_id: last + 1 for queue, last in written.last_offsets.items()} == counts


def test_small_tasks_begin_with_different_queues_and_take_turns_from_there(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=4)
    given = parse_write({"namesrv": mq.namesrv, "topic": "orders", "batchBytes": "1024"})
    first = [
        write_rows(
            iter([rows(range(2))]),
            given,
            MessageColumns(body=0),
            RowNames(Origin("query", 0, partition), may_be_stored=False),
        )
        for partition in range(4)
    ]
    assert len({queue for written in first for queue in written.counts}) == 4
    long = write_rows(iter([rows(range(100))]), given, MessageColumns(body=0), NAMES)
    assert len(long.counts) == 4


def test_the_first_message_makes_the_topic_where_brokers_allow_it(mq: Embedded) -> None:
    written = write(iter([rows(range(10))]), mq.namesrv)
    assert sum(written.counts.values()) == 10
    assert len(stored(mq.namesrv, "body")) == 10


def test_a_namespace_is_part_of_the_topic_that_brokers_see(mq: Embedded) -> None:
    mq.admin.create_topic("shop%orders", queues=1)
    write(iter([rows(range(3))]), mq.namesrv, namespace="shop")
    assert [part.count for part in mq.admin.topic_stats("shop%orders")] == [3]


def test_a_missing_topic_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("autoCreateTopicEnable=false\n")
    config = ("--config", tmp_path / "broker.conf")
    with ChildProcess([*UP, *FREE_PORTS, *config, "--data", tmp_path / "data"]) as up:
        namesrv = up.wait_for_line(READY)[1]
        with pytest.raises(TopicNotFound, match="orders"):
            write(iter([rows(range(3))]), namesrv)


def test_a_refusal_that_will_not_change_names_the_queue(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1)
    access = parse_write({"namesrv": mq.namesrv}).access
    queue = MessageQueue("orders", "broker-a", 0)
    with (
        pytest.raises(RequestRefused, match="orders@broker-a:0"),
        TaskSender(access, lambda *stored: None, seconds=5, retries=5) as sender,
    ):
        sender.post(Post("orders", queue, b"no batch at all", count=7, is_batch=True))


def test_an_unreachable_broker_is_an_error_after_all_attempts() -> None:
    with pytest.raises(NameserverUnavailable) as caught:
        write(iter([rows(range(3))]), "127.0.0.1:9", retries="1", sendTimeoutMs="500")
    found = re.search(
        r"3 messages to topic 'orders' not confirmed after (\d+) attempts within (\d\.\d) s",
        str(caught.value),
    )
    assert found is not None
    assert int(found[1]) > 2, "attempts that reach no broker are not counted for half a second"
    assert float(found[2]) >= 0.5


def test_a_broker_that_is_killed_and_comes_back_gets_every_row(tmp_path: Path) -> None:
    data = ("--data", tmp_path)
    with ChildProcess([*UP, *data, *FREE_PORTS]) as first:
        namesrv, *ports = first.wait_for_line(READY).groups()
        same_ports = ("--nameserver-port", ports[0], "--broker-port", ports[1])
        second = ChildProcess([*UP, *data, *same_ports])

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(20):
                if number == 10:
                    first.kill()
                    second.start().wait_for_line(READY)
                yield rows(range(100 * number, 100 * number + 100))

        try:
            write(batches(), namesrv, batchBytes="4000", retries="20")
            names = [
                (int(row["body"]), dict(row["properties"])["PENSTOCK_ROW"])  # type: ignore[call-overload]
                for row in stored(namesrv, "body", "properties")
            ]
        finally:
            second.kill()
    assert sorted(body for body, _ in names) == list(range(2000))
    assert all(row.endswith(f"/{body}") for body, row in names), "a copy has the name of its row"
