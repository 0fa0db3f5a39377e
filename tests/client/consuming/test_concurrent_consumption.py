"""Concurrent handlers: batches, results, send-backs, offsets, stuck handlers, middleware."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import pull_result

from penstock.client.consuming.outcomes import ConsumeContext, ConsumeResult, DeadLetter, RetryLater
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.middleware import HandlerCall, Middleware
from penstock.client.settings import StartFrom
from penstock.errors import PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure
from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise

GROUP = "billing"
RETRY = "%RETRY%billing"
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
SEND = RequestCode.SEND_MESSAGE_V2
FIRST = StartFrom("first")
QUEUE = MessageQueue("T", "broker-a", 0)
one_queue = on_bench(topics={"T": 1})


def refuse(peer: Peer, request: Command) -> Command:
    return Command(ResponseCode.SYSTEM_ERROR, remark="not today")


def committed(consumer: PushConsumerCore) -> int | None:
    return consumer.state.offsets.snapshot().get(QUEUE)


@pytest.mark.spec("S65")
@pytest.mark.parametrize("threads", [1, 20])
@one_queue
async def test_as_many_handlers_run_at_once_as_there_are_threads(
    bench: Bench, threads: int
) -> None:
    running = most = 0

    async def handler(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    bench.broker.put("T", 0, *[b"x"] * 60)
    await bench.consumer(handler, start_from=FIRST, threads=threads)
    await asyncio.sleep(10)
    assert most == threads


@pytest.mark.spec("S66")
@one_queue
async def test_only_the_smaller_number_of_threads_counts(bench: Bench) -> None:
    running = most = 0

    async def handler(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    bench.broker.put("T", 0, *[b"x"] * 40)
    await bench.consumer(handler, start_from=FIRST, threads=4, max_threads=8)
    await asyncio.sleep(12)
    assert most == 4


@pytest.mark.spec("S67", "S64")
@one_queue
async def test_a_pull_is_split_into_batches_in_order(bench: Bench) -> None:
    batches: list[list[int]] = []

    def handler(messages: list[StoredMessage]) -> None:
        batches.append([message.queue_offset for message in messages])

    bench.broker.put("T", 0, *[b"x"] * 32)
    await bench.consumer(handler, start_from=FIRST, batch_size=10)
    await asyncio.sleep(1)
    assert [len(batch) for batch in batches] == [10, 10, 10, 2]
    assert [offset for batch in batches for offset in batch] == list(range(32))


@pytest.mark.spec("S67")
@one_queue
async def test_without_a_batch_size_a_handler_gets_one_message(bench: Bench) -> None:
    seen: list[object] = []
    bench.broker.put("T", 0, b"x", b"y")
    await bench.consumer(seen.append, start_from=FIRST)
    await asyncio.sleep(1)
    assert all(isinstance(item, StoredMessage) for item in seen)
    assert len(seen) == 2


@pytest.mark.spec("S68")
@one_queue
async def test_what_the_pool_refuses_comes_again_in_one_batch_after_five_seconds(
    bench: Bench,
) -> None:
    batches: list[tuple[float, int]] = []

    async def handler(messages: list[StoredMessage]) -> None:
        batches.append((bench.loop.time(), len(messages)))
        await asyncio.sleep(1)

    bench.broker.put("T", 0, *[b"x"] * 32)
    await bench.consumer(handler, start_from=FIRST, batch_size=4, threads=1, task_limit=2)
    await asyncio.sleep(0.6)
    refused_at = bench.loop.time()
    await asyncio.sleep(20)
    sizes = [size for _, size in batches]
    assert sizes == [4, 4, 24]
    assert 4.5 < batches[2][0] - refused_at < 5.5


@pytest.mark.spec("S70", "S119")
@one_queue
async def test_a_retried_message_has_its_original_topic_and_its_handler(bench: Bench) -> None:
    seen: list[tuple[str, str, int]] = []

    def handler(message: StoredMessage) -> None:
        seen.append((message.topic, message.queue.topic, message.reconsume_times))

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put(RETRY, 0, b"again", properties={"RETRY_TOPIC": "T"}, reconsume_times=2)
    await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(2)
    assert seen == [("T", RETRY, 2)]


@one_queue
async def test_a_batch_of_the_retry_topic_never_mixes_handlers(bench: Bench) -> None:
    seen: list[tuple[str, list[bytes]]] = []
    bench.cluster.add_topic(RETRY, 1)
    for body, topic in ((b"1", "T"), (b"2", "U"), (b"3", "T"), (b"4", "GONE")):
        bench.broker.put(RETRY, 0, body, properties={"RETRY_TOPIC": topic})
    await bench.consumer(
        {
            "T": lambda messages: seen.append(("T", [m.body for m in messages])),
            "U": lambda messages: seen.append(("U", [m.body for m in messages])),
        },
        start_from=FIRST,
        batch_size=8,
    )
    await asyncio.sleep(3)
    assert sorted(seen) == [("T", [b"1", b"3"]), ("U", [b"2"])]
    # The fourth has no handler; it is retried again, with the reason.
    (back,) = bench.broker.asked(BACK)
    assert "no handler for topic 'GONE'" in back.ext["penstockReasonMessage"]


class Watching(Middleware):
    """Notes what it sees; may fail."""

    def __init__(self, log: list[tuple[str, ...]], name: str, *, fails: bool = False) -> None:
        self.log = log
        self.name = name
        self.fails = fails
        self.calls: list[HandlerCall] = []

    def before_handle(self, call: HandlerCall) -> None:
        self.log.append((self.name, "before", str(call.success), call.outcome))
        self.calls.append(call)
        if self.fails:
            raise ValueError("middleware that fails")

    def after_handle(self, call: HandlerCall) -> None:
        self.log.append((self.name, "after", str(call.success), call.outcome, call.return_type))
        if self.fails:
            raise ValueError("middleware that fails")


@pytest.mark.spec("S71", "S72", "S74")
@one_queue
async def test_middleware_is_called_around_each_batch_in_order_and_may_fail(bench: Bench) -> None:
    calls: list[tuple[str, ...]] = []
    first, second = Watching(calls, "first", fails=True), Watching(calls, "second")
    bench.broker.put("T", 0, b"x", b"y")
    seen: list[int] = []
    await bench.consumer(
        lambda messages: seen.append(len(messages)),
        start_from=FIRST,
        batch_size=2,
        middleware=[first, second],
        namespace=None,
    )
    await asyncio.sleep(1)
    assert calls == [
        ("first", "before", "False", ""),
        ("second", "before", "False", ""),
        ("second", "after", "True", "SUCCESS", "SUCCESS"),
        ("first", "after", "True", "SUCCESS", "SUCCESS"),
    ]
    assert seen == [2]
    (call,) = second.calls
    assert (call.group, call.queue, call.namespace, call.attempt) == (GROUP, QUEUE, None, 1)
    assert [message.body for message in call.messages] == [b"x", b"y"]


@pytest.mark.spec("S74", "S75", "S76", "S77")
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("later", ("False", "RECONSUME_LATER", "FAILED")),
        ("raise", ("False", "RECONSUME_LATER", "EXCEPTION")),
        ("exit", ("False", "RECONSUME_LATER", "EXCEPTION")),
        ("none", ("False", "RECONSUME_LATER", "RETURNNULL")),
        ("slow", ("True", "SUCCESS", "TIME_OUT")),
    ],
)
@one_queue
async def test_after_handle_sees_how_the_call_ended(
    bench: Bench, how: str, expected: tuple[str, ...]
) -> None:
    async def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult | None:
        if how == "raise":
            raise ValueError("no")
        if how == "exit":
            raise SystemExit(3)
        if how == "slow":
            await asyncio.sleep(31)
        return {"later": ConsumeResult.RECONSUME_LATER, "slow": ConsumeResult.SUCCESS}.get(how)

    calls: list[tuple[str, ...]] = []
    bench.broker.put("T", 0, b"x")
    consumer = await bench.consumer(
        handler, start_from=FIRST, middleware=[Watching(calls, "h")], consume_timeout=30.0
    )
    await asyncio.sleep(40)
    assert calls[-1] == ("h", "after", *expected)
    assert {kind.value for kind in consumer.state.statistics.returns} == {expected[-1]}
    if how != "slow":
        assert len(bench.broker.asked(BACK)) == 1


@pytest.mark.spec("S73")
@one_queue
async def test_a_message_knows_when_its_handler_started(bench: Bench) -> None:
    seen: list[int] = []
    bench.broker.put("T", 0, b"x")
    await bench.consumer(
        lambda message: seen.append(int(message.properties["CONSUME_START_TIME"])),
        start_from=FIRST,
    )
    await asyncio.sleep(1)
    assert bench.clock.time_ms() - 2000 < seen[0] <= bench.clock.time_ms()


@pytest.mark.spec("S78")
@one_queue
async def test_statistics_count_messages_by_the_ack_index(bench: Bench) -> None:
    async def handler(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeResult:
        await asyncio.sleep(0.2)
        context.ack_index = 1
        return ConsumeResult.SUCCESS

    bench.broker.put("T", 0, *[b"x"] * 5)
    consumer = await bench.consumer(handler, start_from=FIRST, batch_size=5)
    await asyncio.sleep(30)
    assert consumer.state.statistics.totals("T") == (2, 3)
    status = consumer.running_info(with_stacks=False).status_table["T"]
    assert status.consume_rt == pytest.approx(200, abs=2)
    assert status.consume_ok_tps > 0
    assert status.consume_failed_tps > status.consume_ok_tps


@pytest.mark.spec("S80", "S83", "S95")
@one_queue
async def test_messages_after_the_ack_index_are_sent_back_one_by_one(bench: Bench) -> None:
    async def handler(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeResult:
        context.ack_index = 1
        context.delay_level = 4
        return ConsumeResult.SUCCESS

    bench.broker.put("T", 0, *[b"x"] * 5)
    consumer = await bench.consumer(handler, start_from=FIRST, batch_size=5)
    await asyncio.sleep(1)
    backs = bench.broker.asked(BACK)
    assert [back.ext["offset"] for back in backs] == ["2000", "3000", "4000"]
    assert not any(back.is_oneway for back in backs)
    back = backs[0].ext
    assert back["group"] == GROUP
    assert back["originTopic"] == "T"
    assert back["originMsgId"] == "T-0-2"
    assert back["delayLevel"] == "4"
    assert back["maxReconsumeTimes"] == "16"
    assert back["unitMode"] == "false"
    assert committed(consumer) == 5


@pytest.mark.spec("S81", "S83")
@one_queue
async def test_a_failed_batch_is_sent_back_as_a_whole(bench: Bench) -> None:
    def handler(messages: list[StoredMessage]) -> ConsumeResult:
        return ConsumeResult.RECONSUME_LATER

    bench.broker.put("T", 0, *[b"x"] * 3)
    consumer = await bench.consumer(handler, start_from=FIRST, batch_size=5)
    await asyncio.sleep(1)
    assert len(bench.broker.asked(BACK)) == 3
    assert {back.ext["delayLevel"] for back in bench.broker.asked(BACK)} == {"0"}
    assert committed(consumer) == 3
    assert consumer.state.statistics.sent_back == 3


@pytest.mark.spec("S98")
@one_queue
async def test_a_handler_chooses_the_delay_of_the_retry(bench: Bench) -> None:
    def handler(message: StoredMessage) -> None:
        raise RetryLater("1m", "the bank is closed")

    bench.broker.put("T", 0, b"x")
    await bench.consumer(handler, start_from=FIRST, max_retries=3)
    await asyncio.sleep(1)
    (back,) = bench.broker.asked(BACK)
    assert back.ext["delayLevel"] == "5"
    assert back.ext["maxReconsumeTimes"] == "3"
    assert back.ext["penstockReasonType"] == "RetryLater"
    assert back.ext["penstockReasonMessage"] == "the bank is closed"
    assert back.ext["penstockReasonHost"] == "127.0.0.1@c1"
    assert back.ext["penstockReasonAttempt"] == "1"


@pytest.mark.spec("S96")
@one_queue
async def test_a_level_below_zero_asks_for_the_dead_letters(bench: Bench) -> None:
    def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult:
        context.delay_level = -1
        return ConsumeResult.RECONSUME_LATER

    bench.broker.put("T", 0, b"x")
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    (back,) = bench.broker.asked(BACK)
    assert back.ext["delayLevel"] == "-1"
    assert consumer.state.statistics.dead_letters == 1


@pytest.mark.spec("S96", "S112")
@one_queue
async def test_a_dead_letter_keeps_its_reason_on_brokers_that_would_drop_it(bench: Bench) -> None:
    def handler(message: StoredMessage) -> None:
        raise DeadLetter("not JSON")

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put("T", 0, b"x", properties={"KEYS": "k1"})
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    assert not bench.broker.asked(BACK)
    ((header, body),) = bench.broker.sent
    assert (header.topic, body) == (RETRY, b"x")
    # Failed more often than it may: the broker makes it a dead letter, 4.9 and 5.x alike.
    assert header.max_reconsume_times is not None
    assert header.reconsume_times > header.max_reconsume_times
    properties = parse_properties(header.properties or "")
    assert properties[Failure.MESSAGE] == "not JSON"
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["KEYS"] == "k1"
    assert properties["UNIQ_KEY"] == "T-0-0"
    assert properties["ORIGIN_MESSAGE_ID"] == "T-0-0"
    assert "CONSUME_START_TIME" not in properties
    assert "DELAY" not in properties
    assert committed(consumer) == 1


@pytest.mark.spec("S96")
@one_queue
async def test_a_broker_that_keeps_reasons_gets_a_dead_letter_as_a_send_back(bench: Bench) -> None:
    bench.broker.language = Language.PYTHON
    bench.broker.put("T", 0, b"x")

    def handler(message: StoredMessage) -> None:
        raise DeadLetter("not JSON")

    await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    (back,) = bench.broker.asked(BACK)
    assert back.ext["delayLevel"] == "-1"
    assert back.ext["penstockReasonMessage"] == "not JSON"
    assert bench.broker.sent == []


@pytest.mark.spec("S82")
@one_queue
async def test_a_broadcast_message_that_fails_is_dropped_and_the_offset_moves(
    bench: Bench, tmp_path: Path
) -> None:
    def handler(message: StoredMessage) -> None:
        raise ValueError("no")

    bench.broker.put("T", 0, b"x", b"y")
    consumer = await bench.consumer(
        handler, start_from=FIRST, model="broadcasting", offsets_dir=tmp_path
    )
    await asyncio.sleep(1)
    assert not bench.broker.asked(BACK)
    assert committed(consumer) == 2


@pytest.mark.spec("S84")
@one_queue
async def test_a_message_that_cannot_be_sent_back_is_handled_again_after_five_seconds(
    bench: Bench,
) -> None:
    attempts: list[tuple[float, int]] = []

    def handler(message: StoredMessage) -> None:
        if message.queue_offset == 0:
            attempts.append((bench.loop.time(), message.reconsume_times))
            raise ValueError("no")

    bench.broker.script[BACK] = bench.broker.script[SEND] = refuse
    bench.broker.put("T", 0, b"x", b"y")
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(13)
    assert [times for _, times in attempts] == [0, 1, 2]
    assert attempts[1][0] - attempts[0][0] >= 5.0
    assert attempts[2][0] - attempts[1][0] >= 5.0
    assert committed(consumer) in (None, 0)
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0
    assert consumer.state.statistics.local_retries >= 2


@pytest.mark.spec("S84")
@one_queue
async def test_a_refused_send_back_becomes_a_message_to_the_retry_topic(bench: Bench) -> None:
    def handler(message: StoredMessage) -> None:
        raise ValueError("no")

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.script[BACK] = refuse
    bench.cluster.add_topic("T", 1)
    bench.broker.put("T", 0, b"x", properties={"TAGS": "a", "REAL_TOPIC": "old", "DELAY": "3"})
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    ((header, body),) = bench.broker.sent
    properties = parse_properties(header.properties or "")
    assert (header.topic, body) == (RETRY, b"x")
    assert (header.reconsume_times, header.max_reconsume_times) == (1, 16)
    assert properties["DELAY"] == "3"
    assert properties["TAGS"] == "a"
    assert properties[Failure.TYPE] == "ValueError"
    assert "REAL_TOPIC" not in properties
    assert committed(consumer) == 1


@pytest.mark.spec("S86", "S87")
@one_queue
async def test_the_committed_offset_waits_for_the_lowest_unfinished_message(bench: Bench) -> None:
    release = {offset: asyncio.Event() for offset in range(6)}

    async def handler(message: StoredMessage) -> None:
        await release[message.queue_offset].wait()

    bench.broker.put("T", 0, *[b"x"] * 6)
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    seen: list[int | None] = []
    for offset in (5, 0, 2, 1, 4, 3):
        release[offset].set()
        await asyncio.sleep(0.1)
        seen.append(committed(consumer))
    assert seen == [0, 1, 1, 3, 3, 6]


@pytest.mark.spec("S87")
@one_queue
async def test_the_committed_offset_does_not_fall_when_a_broker_goes_back(bench: Bench) -> None:
    """As a slave that lags does: it has less, and its messages are handled a second time."""
    calls: list[int] = []
    release = asyncio.Event()

    def go_back(peer: Peer, request: Command) -> Command | None:
        if request.ext is None or request.ext["queueOffset"] != "6":
            return None
        del bench.broker.script[RequestCode.PULL_MESSAGE]
        return pull_result(ResponseCode.PULL_RETRY_IMMEDIATELY, 2, 0, 6)

    async def handler(message: StoredMessage) -> None:
        calls.append(message.queue_offset)
        if calls.count(message.queue_offset) == 2 and message.queue_offset > 2:
            await release.wait()

    bench.broker.put("T", 0, *[b"x"] * 6)
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    assert committed(consumer) == 6
    bench.broker.script[RequestCode.PULL_MESSAGE] = go_back
    # The pull that is held ends first.
    await asyncio.sleep(40)
    assert sorted(calls) == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert committed(consumer) == 6
    release.set()
    await asyncio.sleep(1)
    assert committed(consumer) == 6


@pytest.mark.spec("S87")
@one_queue
async def test_the_committed_offset_does_not_fall_to_a_smaller_next_one(bench: Bench) -> None:
    def nothing_up_to_2(peer: Peer, request: Command) -> Command | None:
        return pull_result(ResponseCode.PULL_NOT_FOUND, 2, 0, 2)

    bench.broker.put("T", 0, *[b"x"] * 6)
    consumer = await bench.consumer(lambda message: None, start_from=FIRST)
    await asyncio.sleep(1)
    bench.broker.script[RequestCode.PULL_MESSAGE] = nothing_up_to_2
    await asyncio.sleep(40)
    assert committed(consumer) == 6


@pytest.mark.spec("S88")
@one_queue
async def test_offsets_are_committed_after_ten_seconds_and_then_every_five(bench: Bench) -> None:
    bench.broker.put("T", 0, b"x")
    begun = bench.loop.time()
    await bench.consumer(lambda message: None, start_from=FIRST)
    await asyncio.sleep(27)
    times = [round(commit.at - begun, 1) for commit in bench.broker.asked(COMMIT)]
    assert times == [10.0, 15.0, 20.0, 25.0]
    assert all(commit.is_oneway for commit in bench.broker.asked(COMMIT))
    assert bench.broker.offsets[GROUP, "T", 0] == 1


@pytest.mark.spec("S94")
@one_queue
async def test_a_stuck_message_is_sent_back_at_level_three_and_its_late_result_ignored(
    bench: Bench,
) -> None:
    release = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        if message.queue_offset == 0:
            await release.wait()
            raise ValueError("too late to matter")

    bench.broker.put("T", 0, b"x", b"y")
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(15 * 60 - 10)
    assert not bench.broker.asked(BACK)
    await asyncio.sleep(80)
    (back,) = bench.broker.asked(BACK)
    assert (back.ext["delayLevel"], back.ext["offset"]) == ("3", "0")
    assert back.ext["penstockReasonType"] == "ConsumeTimeout"
    assert 0 not in consumer.state.queues[QUEUE]
    release.set()
    await asyncio.sleep(5)
    assert len(bench.broker.asked(BACK)) == 1


@pytest.mark.spec("S94")
@one_queue
async def test_a_message_that_ends_while_another_is_sent_back_is_not_sent_back(
    bench: Bench,
) -> None:
    release = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        await (release.wait() if message.queue_offset else asyncio.sleep(10_000))

    def answer(peer: Peer, request: Command) -> Promise:
        promise = Promise()
        release.set()
        bench.clock.call_later(1.0, promise.resolve, Command(ResponseCode.SUCCESS))
        return promise

    bench.broker.script[BACK] = answer
    bench.broker.put("T", 0, b"x", b"y")
    consumer = await bench.consumer(handler, start_from=FIRST, consume_timeout=30.0)
    await asyncio.sleep(70)
    (back,) = bench.broker.asked(BACK)
    assert back.ext["offset"] == "0"
    assert consumer.state.queues[QUEUE].is_empty


@one_queue
async def test_a_stuck_message_that_has_no_retry_left_is_counted_and_keeps_its_reason(
    bench: Bench,
) -> None:
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(10_000)

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put("T", 0, b"x")
    consumer = await bench.consumer(handler, start_from=FIRST, consume_timeout=30.0, max_retries=0)
    await asyncio.sleep(70)
    assert not bench.broker.asked(BACK)
    ((header, body),) = bench.broker.sent
    assert (header.topic, body) == (RETRY, b"x")
    assert parse_properties(header.properties or "")[Failure.TYPE] == "ConsumeTimeout"
    statistics = consumer.state.statistics
    assert (statistics.sent_back, statistics.dead_letters) == (1, 1)


@one_queue
async def test_a_last_failure_without_an_exception_keeps_its_reason_too(bench: Bench) -> None:
    def handler(message: StoredMessage) -> ConsumeResult:
        return ConsumeResult.RECONSUME_LATER

    bench.cluster.add_topic(RETRY, 1)
    bench.broker.put("T", 0, b"x")
    await bench.consumer(handler, start_from=FIRST, max_retries=0)
    await asyncio.sleep(2)
    # The broker is one of those that forget what a send-back says about the reason.
    assert not bench.broker.asked(BACK)
    ((header, _),) = bench.broker.sent
    properties = parse_properties(header.properties or "")
    assert (properties[Failure.TYPE], properties[Failure.ATTEMPT]) == ("FAILED", "1")


@pytest.mark.spec("S94")
@one_queue
async def test_with_the_documents_profile_a_late_failure_is_sent_back_twice(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        await release.wait()
        raise ValueError("late")

    bench.broker.put("T", 0, b"x")
    await bench.consumer(handler, start_from=FIRST, profile="documents", consume_timeout=30.0)
    await asyncio.sleep(70)
    assert len(bench.broker.asked(BACK)) == 1
    release.set()
    await asyncio.sleep(5)
    assert len(bench.broker.asked(BACK)) == 2


@pytest.mark.spec("S94")
@one_queue
async def test_one_round_sends_sixteen_back_at_most(bench: Bench) -> None:
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(10_000)

    bench.broker.put("T", 0, *[b"x"] * 32)
    await bench.consumer(handler, start_from=FIRST, threads=32, consume_timeout=30.0)
    await asyncio.sleep(62)
    assert len(bench.broker.asked(BACK)) == 16
    await asyncio.sleep(30)
    assert len(bench.broker.asked(BACK)) == 32


@one_queue
async def test_a_stuck_broadcast_message_is_kept_because_its_retry_topic_is_not_read(
    bench: Bench, tmp_path: Path
) -> None:
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(10_000)

    bench.broker.put("T", 0, b"x")
    consumer = await bench.consumer(
        handler,
        start_from=FIRST,
        model="broadcasting",
        offsets_dir=tmp_path,
        consume_timeout=30.0,
    )
    await asyncio.sleep(100)
    assert not bench.broker.asked(BACK)
    assert 0 in consumer.state.queues[QUEUE]


@one_queue
async def test_stopping_drains_commits_and_leaves_in_this_order(bench: Bench) -> None:
    ended: list[int] = []

    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(3)
        ended.append(message.queue_offset)

    bench.broker.put("T", 0, *[b"x"] * 10)
    consumer = await bench.consumer(handler, start_from=FIRST, threads=4)
    await asyncio.sleep(1)
    bench.broker.forget()
    assert await consumer.stop() == []
    # The four that ran were finished and committed; the rest was never started.
    assert sorted(ended) == [0, 1, 2, 3]
    assert bench.broker.offsets[GROUP, "T", 0] == 4
    codes = [request.code for request in bench.broker.requests]
    assert [code for code in codes if code != RequestCode.HEART_BEAT] == [
        COMMIT,
        RequestCode.UNREGISTER_CLIENT,
    ]
    assert not bench.broker.asked(COMMIT)[0].is_oneway
    await asyncio.sleep(10)
    assert sorted(ended) == [0, 1, 2, 3]


@one_queue
async def test_a_handler_that_does_not_end_is_named_and_its_message_not_committed(
    bench: Bench,
) -> None:
    async def handler(message: StoredMessage) -> None:
        if message.queue_offset == 1:
            await asyncio.sleep(10_000)

    bench.broker.put("T", 0, b"0", b"1", b"2")
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    begun = bench.loop.time()
    unfinished = await consumer.stop(5.0)
    assert [message.queue_offset for message in unfinished] == [1]
    assert 5.0 <= bench.loop.time() - begun < 6.0
    assert bench.broker.offsets[GROUP, "T", 0] == 1


@one_queue
async def test_a_hurried_stop_does_not_wait(bench: Bench) -> None:
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(10_000)

    bench.broker.put("T", 0, b"0")
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    begun = bench.loop.time()
    stopping = asyncio.ensure_future(consumer.stop(1000.0))
    await asyncio.sleep(2)
    consumer.hurry()
    assert len(await stopping) == 1
    assert bench.loop.time() - begun < 4.0


@one_queue
async def test_failures_on_the_way_out_are_still_sent_back(bench: Bench) -> None:
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(2)
        raise ValueError("no")

    bench.broker.put("T", 0, b"0")
    consumer = await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(1)
    assert await consumer.stop() == []
    assert len(bench.broker.asked(BACK)) == 1
    assert bench.broker.offsets[GROUP, "T", 0] == 1


@one_queue
async def test_seeking_goes_on_at_another_offset_of_a_held_queue(bench: Bench) -> None:
    seen: list[int] = []
    bench.broker.put("T", 0, *[b"x"] * 10)
    consumer = await bench.consumer(
        lambda message: seen.append(message.queue_offset), start_from=FIRST
    )
    await asyncio.sleep(2)
    assert seen == list(range(10))
    await consumer.seek(QUEUE, 7)
    await asyncio.sleep(2)
    assert seen[10:] == [7, 8, 9]
    assert bench.broker.offsets[GROUP, "T", 0] in (7, 10)


@one_queue
async def test_a_seek_that_the_broker_does_not_take_raises_and_changes_nothing(
    bench: Bench,
) -> None:
    seen: list[int] = []
    bench.broker.put("T", 0, *[b"x"] * 10)
    consumer = await bench.consumer(
        lambda message: seen.append(message.queue_offset), start_from=FIRST
    )
    await asyncio.sleep(12)
    bench.broker.forget()
    bench.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda peer, request: Command(
        ResponseCode.SYSTEM_ERROR, remark="not today"
    )
    with pytest.raises(PenstockError, match="not today"):
        await consumer.seek(QUEUE, 7)
    assert consumer.assignment() == {QUEUE}
    assert await consumer.committed(QUEUE) == 10
    del bench.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET]
    bench.broker.put("T", 0, b"y")
    await asyncio.sleep(12)
    assert seen == [*range(11)]
    assert bench.broker.offsets[GROUP, "T", 0] == 11
    await consumer.seek(QUEUE, 7)
    await asyncio.sleep(12)
    assert seen == [*range(11), *range(7, 11)]
