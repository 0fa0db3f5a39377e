"""Handlers without Spark: the same code that runs in tasks, against a real broker."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock import DeadLetter, Message, Producer, RetryLater
from penstock.client.consuming.outcomes import ConsumeContext, ConsumeResult
from penstock.client.middleware import HandlerCall, Middleware
from penstock.errors import PenstockError, StoreDamaged, TopicNotFound
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure
from penstock.model.record_layout import BODY_POSITION
from penstock.spark.connection_pool import ConnectionPool
from penstock.spark.handlers import send_back
from penstock.spark.handlers.handler_sources import (
    Originals,
    messages_of_rows,
    relaxed_garbage_collection,
    run_handlers,
)
from penstock.spark.handlers.handler_task import Disposition, HandlerJob, HandlerTask
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import ReadOptions, parse_read
from penstock.spark.source.planning import TaskRanges
from penstock.spark.source.positions import Positions
from penstock.spark.source.ranges import Range
from penstock.testing.embedded import Embedded, embedded
from penstock.testing.eventually import eventually

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def options(mq: Embedded) -> ReadOptions:
    return filled(mq)


def filled(mq: Embedded) -> ReadOptions:
    mq.admin.create_topic("orders", queues=1)
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for number in range(6):
            producer.send(Message("orders", b"%d" % number, keys=[f"k{number}"]))
    return parse_read({"namesrv": mq.namesrv, "topic": "orders", "group": "billing"})


def dispositions(options: ReadOptions, handler: object, **job: object) -> list[str]:
    made = HandlerJob(handler, "billing", options.access, **job)  # type: ignore[arg-type]
    task = TaskRanges([Range(QUEUE, 0, 6)])
    batches = list(run_handlers(task, options, made))
    return [disposition for batch in batches for disposition in batch.column("outcome").to_pylist()]


def stored(options: ReadOptions, topic: str) -> dict[str, dict[str, str]]:
    reading = parse_read({"namesrv": ";".join(options.access.namesrv), "topic": topic})

    def has_route() -> bool:
        # The name server hears of a new topic a little later.
        with suppress(TopicNotFound):
            return bool(ConnectionPool.shared(reading.access).route(topic).brokers)
        return False

    asyncio.run(eventually(has_route))
    found: dict[str, dict[str, str]] = {}
    for part in Positions(reading).batch_ranges():
        for batch in Fetcher(reading).batches([part], ("body", "properties")):
            for row in batch.to_pylist():
                found[row["body"].decode()] = dict(row["properties"])
    return found


def raising(errors: Mapping[bytes, BaseException]) -> object:
    def handler(message: StoredMessage) -> None:
        if message.body in errors:
            raise errors[message.body]

    return handler


def test_each_message_has_its_own_fate(options: ReadOptions) -> None:
    errors = {b"1": ValueError("bad"), b"2": RetryLater("2h"), b"4": DeadLetter("never")}
    assert dispositions(options, raising(errors)) == [
        "done",
        "retry",
        "retry",
        "done",
        "dead",
        "done",
    ]
    assert set(stored(options, "%DLQ%billing")) == {"4"}
    waiting = stored(options, "SCHEDULE_TOPIC_XXXX")
    assert {body: said["DELAY"] for body, said in waiting.items()} == {"1": "3", "2": "18"}
    assert waiting["1"]["PENSTOCK_REASON_TYPE"] == "ValueError"
    assert waiting["1"]["REAL_TOPIC"] == "%RETRY%billing"


def test_no_failure_of_a_handler_fails_the_task(
    options: ReadOptions, caplog: pytest.LogCaptureFixture
) -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text of me")

    def handler(message: StoredMessage) -> object:
        match message.body:
            case b"1":
                raise Speechless
            case b"2":
                raise DeadLetter(ValueError("no card"))  # type: ignore[arg-type]
            case b"3":
                raise SystemExit(3)
            case b"4":
                return "charged"
        return None

    assert dispositions(options, handler) == ["done", "retry", "dead", "retry", "retry", "done"]
    letter = stored(options, "%DLQ%billing")["2"]
    assert letter["PENSTOCK_REASON_MESSAGE"] == "no card"
    # Otherwise the author of the function would find no error.
    assert "how=RETURNNULL returned='charged'" in caplog.text


def test_a_handler_with_a_context_says_what_java_handlers_say(options: ReadOptions) -> None:
    def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult | None:
        assert (context.group, context.queue) == ("billing", QUEUE)
        if message.body == b"1":
            context.delay_level = 4
            return ConsumeResult.RECONSUME_LATER
        if message.body == b"2":
            context.ack_index = -1
        return None if message.body == b"3" else ConsumeResult.SUCCESS

    assert dispositions(options, handler) == ["done", "retry", "retry", "retry", "done", "done"]
    waiting = stored(options, "SCHEDULE_TOPIC_XXXX")
    assert {body: said["DELAY"] for body, said in waiting.items()} == {"1": "4", "2": "3", "3": "3"}


def test_while_one_ordered_queue_waits_another_goes_on(mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=2)
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for number in range(6):
            queue = MessageQueue("orders", "broker-a", number % 2)
            producer.send(Message("orders", b"%d" % number), queue=queue)
    options = parse_read({"namesrv": mq.namesrv, "topic": "orders", "ordered": "true"})
    calls: list[tuple[str, int]] = []

    def handler(message: StoredMessage) -> None:
        calls.append((message.body.decode(), message.reconsume_times))
        if message.body == b"2" and message.reconsume_times < 2:
            raise ValueError("not yet")

    job = HandlerJob(handler, "billing", options.access, ordered=True, suspend_seconds=0.05)
    ranges = [Range(MessageQueue("orders", "broker-a", number), 0, 3) for number in range(2)]
    batches = list(run_handlers(TaskRanges(ranges), options, job))
    assert calls == [
        *(("0", 0), ("2", 0)),
        *(("1", 0), ("3", 0), ("5", 0)),
        *(("2", 1), ("2", 2), ("4", 0)),
    ]
    assert sorted((row["queue_id"], row["offset"]) for b in batches for row in b.to_pylist()) == [
        (queue, offset) for queue in range(2) for offset in range(3)
    ]


def test_a_coroutine_is_a_handler_too(options: ReadOptions) -> None:
    async def handler(message: StoredMessage) -> None:
        if message.body == b"5":
            raise DeadLetter("no")

    assert dispositions(options, handler) == ["done"] * 5 + ["dead"]


def test_what_a_coroutine_keeps_serves_the_next_task_as_well(options: ReadOptions) -> None:
    clients: list[tuple[asyncio.Queue[asyncio.Future[None]], asyncio.Task[None]]] = []

    async def answer(calls: asyncio.Queue[asyncio.Future[None]]) -> None:
        while True:
            (await calls.get()).set_result(None)

    async def handler(message: StoredMessage) -> None:
        if not clients:
            made: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
            clients.append((made, asyncio.create_task(answer(made))))
        call = asyncio.get_running_loop().create_future()
        clients[0][0].put_nowait(call)
        await asyncio.wait_for(call, 10)

    assert dispositions(options, handler) == ["done"] * 6
    assert dispositions(options, handler) == ["done"] * 6


def test_a_broker_that_takes_nothing_back_fails_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ExitStack()
    options = filled(cluster.enter_context(embedded()))
    monkeypatch.setattr(send_back, "PATIENCE_SECONDS", 0.5)
    calls: list[bytes] = []

    def handler(message: StoredMessage) -> None:
        calls.append(message.body)
        if message.body == b"2":
            cluster.close()
            raise ValueError("and now the broker is gone")

    with pytest.raises(PenstockError) as caught:
        dispositions(options, handler)
    assert "orders@broker-a:0" in str(caught.value)
    assert "billing" in str(caught.value)
    assert calls[:3] == [b"0", b"1", b"2"]


def test_a_message_made_of_a_row_is_found_where_it_is_stored(options: ReadOptions) -> None:
    columns = ("topic", "broker", "queue_id", "offset")
    (batch,) = Fetcher(options).batches([Range(QUEUE, 0, 6)], columns)
    messages = messages_of_rows(batch)
    assert [message.queue_offset for message in messages] == list(range(6))
    job = HandlerJob(raising({}), "billing", options.access)  # type: ignore[arg-type]
    found = Originals(job).find(messages[3])
    assert (found.body, found.keys, found.queue) == (b"3", ("k3",), QUEUE)
    assert found.log_position > 0
    gone = messages_of_rows(
        pa.RecordBatch.from_pydict(
            {
                "topic": ["orders"],
                "broker": ["broker-a"],
                "queue_id": [0],
                "offset": [99],
                "body": [b"only here"],
                "properties": pa.array([[("KEYS", "k")]], pa.map_(pa.string(), pa.string())),
            }
        )
    )
    bad = raising({b"only here": DeadLetter("bad")})
    job = HandlerJob(bad, "billing", options.access)  # type: ignore[arg-type]
    assert HandlerTask(job, Originals(job).find).run(gone) == [Disposition.DEAD]
    assert stored(options, "%DLQ%billing")["only here"]["PENSTOCK_REASON_MESSAGE"] == "bad"


def test_garbage_is_collected_as_before_when_a_task_ends() -> None:
    before = gc.get_threshold()

    def task() -> Generator[int, None, None]:
        with relaxed_garbage_collection():
            yield 1
            yield 2

    running = task()
    next(running)
    assert gc.get_threshold()[0] > before[0]
    running.close()
    assert gc.get_threshold() == before


class Noting(Middleware):
    """Notes each call of a handler, before and after it."""

    def __init__(self, notes: list[tuple[object, ...]], name: str = "one") -> None:
        self.notes = notes
        self.name = name

    def before_handle(self, call: HandlerCall) -> None:
        self.notes.append((self.name, "before", call.messages[0].body, call.attempt))

    def after_handle(self, call: HandlerCall) -> None:
        self.notes.append((self.name, call.outcome, call.messages[0].body, repr(call.error)))


def test_middleware_runs_around_each_handler_call(options: ReadOptions) -> None:
    notes: list[tuple[object, ...]] = []
    around = (Noting(notes), Noting(notes, "two"))
    handler = raising({b"1": ValueError("bad")})
    found = dispositions(options, handler, middleware=around)
    assert found == ["done", "retry", "done", "done", "done", "done"]
    assert notes[4:8] == [
        ("one", "before", b"1", 1),
        ("two", "before", b"1", 1),
        ("two", "RECONSUME_LATER", b"1", "ValueError('bad')"),
        ("one", "RECONSUME_LATER", b"1", "ValueError('bad')"),
    ]
    assert [note[1] for note in notes[:4]] == ["before", "before", "SUCCESS", "SUCCESS"]


def test_middleware_can_decide_about_a_message_without_its_handler(options: ReadOptions) -> None:
    class Deciding(Middleware):
        def before_handle(self, call: HandlerCall) -> None:
            match call.messages[0].body:
                case b"0":
                    call.skip = True
                case b"1":
                    raise DeadLetter("known to be bad")
                case b"2":
                    raise RuntimeError("an error of the middleware changes nothing")

    handled: list[bytes] = []
    found = dispositions(
        options, lambda message: handled.append(message.body), middleware=(Deciding(),)
    )
    assert found == ["done", "dead", "done", "done", "done", "done"]
    assert handled == [b"2", b"3", b"4", b"5"]
    assert stored(options, "%DLQ%billing")["1"][Failure.MESSAGE] == "known to be bad"


def test_middleware_of_ordered_handlers_sees_every_attempt(options: ReadOptions) -> None:
    notes: list[tuple[object, ...]] = []
    failed: list[bytes] = []

    def fails_once(message: StoredMessage) -> None:
        if message.body == b"1" and not failed:
            failed.append(message.body)
            raise ValueError("once")

    found = dispositions(
        options, fails_once, middleware=(Noting(notes),), ordered=True, suspend_seconds=0.01
    )
    assert found == ["done"] * 6
    before = [(note[2], note[3]) for note in notes if note[1] == "before"]
    assert before[:4] == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]


def test_coroutine_handlers_may_have_coroutine_middleware(options: ReadOptions) -> None:
    notes: list[str] = []

    class Slow(Middleware):
        async def before_handle(self, call: HandlerCall) -> None:
            await asyncio.sleep(0)
            notes.append("before")

        async def after_handle(self, call: HandlerCall) -> None:
            notes.append(call.outcome)

    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(0)
        notes.append("handler")
        if message.body == b"5":
            raise DeadLetter("last")

    found = dispositions(options, handler, middleware=(Slow(),))
    assert found == ["done"] * 5 + ["dead"]
    assert notes[:3] == ["before", "handler", "SUCCESS"]
    assert notes[-1] == "RECONSUME_LATER"


def test_no_handler_gets_a_damaged_body(
    mq: Embedded, options: ReadOptions, caplog: pytest.LogCaptureFixture
) -> None:
    part = mq.admin.messages(QUEUE, 2, count=1)
    [log] = sorted((mq.data / "broker-a" / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(part.messages[0].log_position + BODY_POSITION)
        file.write(b"?")
    seen: list[bytes] = []

    def handler(message: StoredMessage) -> None:
        seen.append(message.body)

    with pytest.raises(StoreDamaged, match="offset 2"):
        dispositions(options, handler)
    assert b"?" not in seen
    seen.clear()
    assert dispositions(replace(options, fail_on_data_loss=False), handler) == ["done"] * 5
    assert seen == [b"0", b"1", b"3", b"4", b"5"]
    assert "offset 2" in caplog.text
