"""Rows that a task sends again are stored once; without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.scripted import ThreadedCluster

from penstock.columnar.encode import MessageColumns
from penstock.columnar.row_ids import Origin, RowIds
from penstock.errors import IllegalMessage, InvalidArgument, RequestRefused
from penstock.model import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.extensions import REPEAT, REPEAT_MARK
from penstock.protocol.records.batches import BatchItem, decode_batch, encode_batch
from penstock.remoting.peer import Peer
from penstock.spark.sink.row_names import RowNames
from penstock.spark.sink.sink_columns import message_columns
from penstock.spark.sink.task_sender import Post, TaskSender
from penstock.spark.sink.write_options import parse_write
from penstock.spark.sink.writers import Written, write_rows
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import parse_read
from penstock.spark.source.planning import tasks
from penstock.spark.source.positions import Positions
from penstock.testing.embedded import Embedded, embedded
from penstock.testing.eventually import eventually

FIRST = RowNames(Origin("query", 3, 1), may_be_stored=False)
AGAIN = RowNames(Origin("query", 3, 1), may_be_stored=True)
PLAIN = MessageColumns(body=0)


class Crash(Exception):
    """The end of a task."""


def rows(numbers: Sequence[int], **columns: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in numbers], **columns})


def write(
    mq: Embedded,
    batches: Iterator[pa.RecordBatch],
    names: RowNames,
    columns: MessageColumns = PLAIN,
    **options: str,
) -> Written:
    given = parse_write({"namesrv": mq.namesrv, "topic": "out", "batchBytes": "1024", **options})
    return write_rows(batches, given, columns, names)


def fails_after(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise Crash


def stored(mq: Embedded, *columns: str) -> list[dict[str, object]]:
    options = parse_read({"namesrv": mq.namesrv, "topic": "out"})
    return [
        row
        for task in tasks(Positions(options).batch_ranges())
        for batch in Fetcher(options).batches(task.ranges, columns or ("body",))
        for row in batch.to_pylist()
    ]


def counted(mq: Embedded) -> Counter[int]:
    return Counter(int(row["body"]) for row in stored(mq))  # type: ignore[call-overload]


PARTS = [rows(range(start, start + 100)) for start in range(0, 500, 100)]
KEYED = [
    rows(range(start, start + 100), sharding_key=[f"k{n % 7}" for n in range(100)],
         delay=["1s" if n % 50 == 3 else None for n in range(100)])
    for start in range(0, 300, 100)
]  # fmt: skip


@pytest.mark.parametrize("ids", ["false", "true"])
def test_a_task_that_runs_again_stores_what_is_missing(mq: Embedded, ids: str) -> None:
    mq.admin.create_topic("out", queues=3)
    with pytest.raises(Crash):
        write(mq, fails_after(*PARTS[:3]), FIRST, messageIds=ids)
    assert 0 < len(stored(mq)) <= 300
    written = write(mq, iter(PARTS), AGAIN, messageIds=ids)
    assert counted(mq) == Counter(range(500))
    assert sum(written.counts.values()) == 500
    # What another partition or batch sends is another row, though it has the same body.
    write(mq, iter(PARTS), RowNames(Origin("query", 3, 2), may_be_stored=True), messageIds=ids)
    assert counted(mq) == Counter({number: 2 for number in range(500)})


def test_rows_of_queues_and_rows_sent_singly_are_stored_once_too(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    columns = MessageColumns(body=0, sharding_key=1, delay=2)
    with pytest.raises(Crash):
        write(mq, fails_after(*KEYED[:2]), FIRST, columns)
    write(mq, iter(KEYED), AGAIN, columns)
    asyncio.run(_eventually_all(mq, 300))
    assert counted(mq) == Counter(range(300))


async def _eventually_all(mq: Embedded, count: int) -> None:
    await eventually(lambda: len(stored(mq)) >= count, 30)


def test_a_first_attempt_that_was_overtaken_adds_nothing(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    write(mq, iter(PARTS), AGAIN)
    write(mq, iter(PARTS), FIRST)
    assert counted(mq) == Counter(range(500))


def test_without_exactly_once_rows_are_stored_again_with_the_same_names(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    write(mq, iter(PARTS[:1]), FIRST, exactlyOnce="false")
    write(mq, iter(PARTS[:1]), AGAIN, exactlyOnce="false")
    found = stored(mq, "body", "properties")
    assert len(found) == 200
    assert len({dict(row["properties"])["PENSTOCK_ROW"] for row in found}) == 100  # type: ignore[call-overload]


def test_rows_with_ids_of_their_own_may_come_in_another_order(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    columns = MessageColumns(body=0, id=1)

    def part(numbers: Sequence[int]) -> pa.RecordBatch:
        return rows(numbers, id=[f"row-{number}" for number in numbers])

    with pytest.raises(Crash):
        write(mq, fails_after(part(range(600))), FIRST, columns)
    other = RowNames(Origin("query", 3, 0), may_be_stored=True)
    write(mq, iter([part(range(899, 300, -1))]), other, columns)
    write(mq, iter([part(range(300, -1, -1))]), AGAIN, columns)
    found = stored(mq, "msg_id", "body", "properties")
    assert sorted(int(row["body"]) for row in found) == list(range(900))  # type: ignore[call-overload]
    prefix = Origin("query", 3, 1).id_prefix.decode()
    assert all(row["msg_id"] == f"{prefix}row-{int(row['body'])}" for row in found)  # type: ignore[call-overload]
    assert {dict(row["properties"])["PENSTOCK_ROW"] for row in found} == {  # type: ignore[call-overload]
        f"query/3/id/row-{number}" for number in range(900)
    }


def with_ids(numbers: Sequence[int], ids: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return iter([rows(numbers, id=list(ids))])


BY_ID = MessageColumns(body=0, id=1)


def test_rows_with_ids_are_looked_for_when_a_stage_runs_again(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    ids = [f"row-{number}" for number in range(20)]
    write(mq, with_ids(range(20), ids), FIRST, BY_ID)
    # Spark counts the attempts of tasks anew then, and rows may be in another partition.
    again = RowNames(Origin("query", 3, 0), may_be_stored=False)
    write(mq, with_ids(range(19, -1, -1), ids[::-1]), again, BY_ID)
    assert counted(mq) == Counter(range(20))


def test_rows_with_ids_come_to_the_broker_that_may_have_them() -> None:
    with embedded(brokers=2) as mq:
        mq.admin.create_topic("out", queues=2)
        ids = [f"row-{number}" for number in range(50)]
        write(mq, with_ids(range(50), ids), FIRST, BY_ID)
        for partition in range(3):
            again = RowNames(Origin("query", 3, partition), may_be_stored=True)
            write(mq, with_ids(range(49, -1, -1), ids[::-1]), again, BY_ID)
        assert counted(mq) == Counter(range(50))
        assert len({row["broker"] for row in stored(mq, "broker")}) == 2


@pytest.mark.parametrize("may_be_stored", [False, True])
def test_an_id_that_comes_back_with_an_earlier_body_is_another_row(
    mq: Embedded, may_be_stored: bool
) -> None:
    mq.admin.create_topic("out", queues=3)
    for batch, status in enumerate([1, 2, 1]):
        names = RowNames(Origin("query", batch, 0), may_be_stored)
        write(mq, with_ids([status], ["order-1"]), names, BY_ID)
        write(mq, with_ids([status], ["order-1"]), names._replace(may_be_stored=True), BY_ID)
    assert counted(mq) == Counter({1: 2, 2: 1})


def test_delayed_rows_with_ids_of_two_batches_are_two_rows(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=1)
    columns = MessageColumns(body=0, id=1, delay=2)
    for batch in range(2):
        row = rows([7], id=["order-1"], delay=["1s"])
        write(mq, iter([row]), RowNames(Origin("query", batch, 0), may_be_stored=False), columns)
    asyncio.run(_eventually_all(mq, 2))
    assert counted(mq) == Counter({7: 2})


def test_an_id_is_needed_in_every_row(mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=1)
    bad = rows([1, 2], id=["a", None])
    with pytest.raises(IllegalMessage, match="an id of 0 bytes in row 1 of partition 1"):
        write(mq, iter([bad]), FIRST, MessageColumns(body=0, id=1))
    schema = StructType([StructField("body", StringType()), StructField("number", LongType())])
    with pytest.raises(InvalidArgument, match="idColumn 'number', and in the frame it is bigint"):
        message_columns(schema, topic="out", keep_queue=False, id_column="number")
    with pytest.raises(InvalidArgument, match="idColumn 'order', and in the frame it is 0"):
        message_columns(schema, topic="out", keep_queue=False, id_column="order")


def test_what_another_broker_has_is_not_sent_again() -> None:
    with embedded(brokers=2) as mq:
        mq.admin.create_topic("out", queues=2)
        access = parse_write({"namesrv": mq.namesrv}).access
        confirmed: list[tuple[MessageQueue, int]] = []

        def send(mark: str, first_turn: int) -> None:
            body = encode_batch([BatchItem(b"1", b"UNIQ_KEY\x01one\x02"), BatchItem(b"2")])
            post = Post("out", None, body, count=2, is_batch=True, unique_id="one", mark=mark)
            with TaskSender(
                access,
                lambda _, queue, offset: confirmed.append((queue, offset)),
                seconds=5,
                retries=0,
                first_turn=first_turn,
            ) as sender:
                sender.post(post)

        send("", 0)
        for first_turn in range(4):
            send(REPEAT_MARK, first_turn)
        assert counted(mq) == Counter([1, 2])
        assert len(confirmed) == 5
        assert len(set(confirmed)) == 1, "each time where it is stored"


def test_rows_are_not_lost_where_another_broker_has_the_first_id_of_other_rows() -> None:
    with embedded(brokers=2) as mq:
        mq.admin.create_topic("out", queues=2)
        access = parse_write({"namesrv": mq.namesrv}).access

        def send(name: str, mark: str, first_turn: int, *bodies: bytes) -> None:
            head = BatchItem(bodies[0], f"UNIQ_KEY\x01{name}\x02".encode())
            body = encode_batch([head, *map(BatchItem, bodies[1:])])
            post = Post("out", None, body, is_batch=True, unique_id=name, mark=mark)
            with TaskSender(
                access, lambda *stored: None, seconds=5, retries=0, first_turn=first_turn
            ) as sender:
                sender.post(post)

        for first_turn in range(4):
            send(f"{first_turn}", "", 0, b"1", b"2")
            # Now the rows are cut into requests in another way.
            send(f"{first_turn}", REPEAT_MARK, first_turn, b"1", b"2", b"3")
        assert counted(mq)[3] == 4


@contextmanager
def two_brokers() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=("broker-a", "broker-b")) as cluster:
        cluster.cluster.add_topic("out", 2)
        for broker in cluster.cluster.brokers.values():
            broker.language = Language.PYTHON
        yield cluster


def post_of(
    name: str, mark: str = REPEAT_MARK, broker: str | None = None, queue_id: int = 0
) -> Post:
    body = encode_batch([BatchItem(name.encode(), f"UNIQ_KEY\x01{name}\x02".encode())])
    queue = None if broker is None else MessageQueue("out", broker, queue_id)
    return Post("out", queue, body, is_batch=True, unique_id=name, mark=mark)


def post_all(cluster: ThreadedCluster, posts: Sequence[Post], retries: int = 3) -> None:
    access = parse_write({"namesrv": cluster.namesrv}).access
    with TaskSender(
        access, lambda *stored: None, seconds=5, retries=retries, first_turn=0
    ) as sender:
        for post in posts:
            sender.post(post)


def sent_bodies(cluster: ThreadedCluster, *brokers: str) -> list[bytes]:
    return [
        item.body
        for name in brokers
        for _, body in cluster.cluster.broker(name).sent
        for item in decode_batch(body)
    ]


def test_a_broker_that_does_not_answer_the_lookup_is_an_error() -> None:
    with two_brokers() as cluster:
        for broker in cluster.cluster.brokers.values():
            broker.script[RequestCode.QUERY_MESSAGE] = lambda peer, request: Command(
                ResponseCode.NO_PERMISSION, remark="not allowed"
            )
        with pytest.raises(RequestRefused, match=r"not allowed.*exactlyOnce"):
            post_all(cluster, [post_of("one")], retries=0)
        assert not sent_bodies(cluster, "broker-a", "broker-b")


def test_a_failed_lookup_at_one_broker_leaves_requests_to_another_alone() -> None:
    with two_brokers() as cluster:
        busy = [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]

        def lookup(peer: Peer, request: Command) -> Command | None:
            if len(busy) == 2:
                peer.close()
            return Command(busy.pop() if busy else ResponseCode.QUERY_NOT_FOUND)

        for broker in cluster.cluster.brokers.values():
            broker.script[RequestCode.QUERY_MESSAGE] = lookup
        post_all(cluster, [post_of(f"{n}", "", "broker-a", n) for n in range(2)] + [post_of("x")])
        sent = sent_bodies(cluster, "broker-a", "broker-b")
        assert sorted(sent) == [b"0", b"1", b"x"], "none was sent twice"
        assert not busy


def test_requests_to_one_queue_keep_their_order() -> None:
    with two_brokers() as cluster:
        script = cluster.broker.script

        def refuse_once(peer: Peer, request: Command) -> Command:
            del script[RequestCode.SEND_BATCH_MESSAGE]
            return Command(ResponseCode.SYSTEM_BUSY)

        script[RequestCode.SEND_BATCH_MESSAGE] = refuse_once
        post_all(cluster, [post_of(f"{n}", "", "broker-a") for n in range(4)])
        assert sent_bodies(cluster, "broker-a") == [b"0", b"1", b"2", b"3"]


def test_a_request_that_another_broker_did_not_answer_goes_elsewhere() -> None:
    with two_brokers() as cluster:
        brokers = cluster.cluster.brokers

        def vanish(peer: Peer, request: Command) -> Command:
            for broker in brokers.values():
                if not any(one.peer is peer for one in broker.requests):
                    broker.script.clear()
            peer.close()
            return Command(ResponseCode.SYSTEM_ERROR)

        for broker in brokers.values():
            broker.language = Language.JAVA
            broker.script[RequestCode.SEND_BATCH_MESSAGE] = vanish
        post_all(cluster, [post_of("one", "")])
        assert sent_bodies(cluster, "broker-a", "broker-b") == [b"one"]


def test_other_brokers_get_no_marks() -> None:
    with ThreadedCluster() as cluster:
        cluster.cluster.add_topic("out", 1)
        given = parse_write({"namesrv": cluster.namesrv, "topic": "out"})
        write_rows(iter([PARTS[0]]), given, PLAIN, AGAIN)
        sent = cluster.broker.asked(RequestCode.SEND_BATCH_MESSAGE)
        assert sent
        assert not any(REPEAT in str(request.ext) for request in sent)


def test_ids_follow_from_names() -> None:
    ids = RowIds.of(Origin("query", 3, 1))
    texts = [text.decode() for text in ids.columns(70_000).to_pylist()]
    assert texts == [ids.text(row) for row in range(70_000)]
    assert len(texts[0]) == 32
    assert RowIds.of(Origin("query", 3, 1)).text(0) == texts[0]
    assert RowIds.of(Origin("query", 4, 1)).text(0) != texts[0]
