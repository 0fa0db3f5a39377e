"""The session: name servers, routes, connections, and what brokers ask of a client."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from tests.support.loop_clients import Bench, loop_consumer, loop_session, on_bench

from penstock.client.cluster_access import Credentials
from penstock.client.consuming.outcomes import ConsumeContext, ConsumeResult
from penstock.client.producing.producer import ProducerCore
from penstock.client.session.members import TransactionAnswer
from penstock.client.settings import ProducerSettings, StartFrom
from penstock.errors import (
    LifecycleError,
    NameserverUnavailable,
    ServiceNotAvailable,
)
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.acl import verify
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.offsets import ConsumerStatus, ResetOffsets
from penstock.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunningInfo
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.transactions import TransactionDecision

GROUP = "billing"
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
FIRST = StartFrom("first")
QUEUE = MessageQueue("T", "broker-a", 0)


def ignore(message: StoredMessage) -> None:
    """A handler that is always done."""


async def ask(bench: Bench, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """What the client answers to a broker."""
    (peer,) = bench.broker.peers
    return await peer.request(Command(code, ext=ext, body=body), 20.0)


@on_bench()
async def test_another_name_server_is_asked_when_one_does_not_answer(bench: Bench) -> None:
    session = loop_session(f"127.0.0.1:1;{bench.cluster.namesrv};127.0.0.1:2", bench.clock)
    for _ in range(3):
        assert await session.refresh_route("T")
    # Once an answer was had, it stays with who gave it.
    assert session.nameservers.current == bench.cluster.namesrv
    await session.stop()


@on_bench()
async def test_without_any_name_server_the_error_names_them_all(bench: Bench) -> None:
    session = loop_session("127.0.0.1:1;127.0.0.1:2", bench.clock)
    with pytest.raises(NameserverUnavailable, match=r"topic 'T'.*127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        await session.refresh_route("T")
    await session.stop()


@on_bench()
async def test_an_outage_of_a_name_server_is_one_line_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.client.session.nameservers")
    session = bench.session()
    await session.refresh_route("T")
    await bench.cluster.nameserver.stop()
    for _ in range(5):
        with pytest.raises(NameserverUnavailable):
            await session.refresh_route("T")
        await asyncio.sleep(10)
    lines = [
        r.getMessage() for r in caplog.records if r.name == "penstock.client.session.nameservers"
    ]
    assert len(lines) == 1
    assert lines[0].startswith(f"name server failed address={bench.cluster.namesrv}")


@on_bench()
async def test_a_topic_without_a_route_is_logged_once_and_a_new_one_not_at_all(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await bench.consumer({"NEW": ignore})
    await asyncio.sleep(0.5)
    bench.cluster.add_topic("NEW", 1)
    await asyncio.sleep(10)
    assert "no route" not in caplog.text
    await bench.consumer({"TYPO": ignore}, group="other", name="c2")
    await asyncio.sleep(60)
    assert caplog.text.count("no route for topic, asking again every second topic=TYPO") == 1
    assert consumer.state.queues


@on_bench()
async def test_however_many_want_a_route_it_is_asked_for_once(bench: Bench) -> None:
    session = bench.session()
    assert all(await asyncio.gather(*(session.refresh_route("T") for _ in range(50))))
    assert len(bench.cluster.nameserver.asked(ROUTE, topic="T")) == 1
    assert not await session.refresh_route("UNKNOWN")


@on_bench()
async def test_a_dead_name_server_does_not_stop_consumption(bench: Bench) -> None:
    seen: list[bytes] = []
    await bench.consumer(lambda message: seen.append(message.body))
    await asyncio.sleep(3)
    await bench.cluster.nameserver.stop()
    await asyncio.sleep(100)
    bench.broker.put("T", 0, b"still here")
    await asyncio.sleep(1)
    assert seen == [b"still here"]


@on_bench(brokers=("broker-a", "broker-b"))
async def test_a_dead_broker_does_not_delay_the_heartbeats_of_the_others(bench: Bench) -> None:
    await bench.consumer(ignore)
    await asyncio.sleep(3)
    await bench.cluster.broker("broker-b").stop()
    bench.broker.forget()
    await asyncio.sleep(100)
    times = [request.at for request in bench.broker.asked(RequestCode.HEART_BEAT)]
    assert len(times) >= 3
    assert all(later - earlier < 31 for earlier, later in itertools.pairwise(times))


@on_bench()
async def test_a_new_connection_begins_with_a_heartbeat_before_any_pull(bench: Bench) -> None:
    await bench.consumer(ignore)
    await asyncio.sleep(3)
    for peer in bench.broker.peers:
        peer.abort("for a test")
    bench.broker.forget()
    await asyncio.sleep(3)
    codes = [request.code for request in bench.broker.requests]
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.PULL_MESSAGE)
    assert RequestCode.GET_CONSUMER_LIST_BY_GROUP in codes


@on_bench()
async def test_an_unknown_broker_is_an_error_that_names_the_queue(bench: Bench) -> None:
    session = bench.session()
    with pytest.raises(ServiceNotAvailable, match="broker 'missing' of T@missing:0"):
        await session.find_broker(MessageQueue("T", "missing", 0))


@on_bench()
async def test_a_stopped_session_stays_stopped(bench: Bench) -> None:
    session = bench.session()
    session.start()
    session.start()
    await session.stop()
    with pytest.raises(LifecycleError, match="was stopped"):
        session.start()
    with pytest.raises(LifecycleError, match="was stopped"):
        await session.refresh_route("T")


@on_bench()
async def test_requests_are_signed_when_there_are_credentials(bench: Bench) -> None:
    who = Credentials(access_key="me", secret_key="hush", security_token="token")
    session = loop_session(bench.cluster.namesrv, bench.clock, "signed", credentials=who)
    consumer = loop_consumer(session, GROUP, {"T": ignore}, start_from=FIRST)
    await consumer.start()
    await asyncio.sleep(2)
    requests = [*bench.broker.requests, *bench.cluster.nameserver.requests]
    assert {request.code for request in requests} >= {34, 38, 14, 11, 105}
    for request in requests:
        assert request.ext["AccessKey"] == "me"
        assert request.ext["SecurityToken"] == "token"
        assert verify(request.ext, request.body, "hush")
    await consumer.stop()
    await session.stop()


# --------------------------------------------------------------------- requests from brokers


@on_bench()
async def test_an_unknown_request_is_answered_with_not_supported(bench: Bench) -> None:
    await bench.consumer(ignore)
    answer = await ask(bench, 9999, {})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@on_bench(topics={"T": 1})
async def test_running_info_describes_a_consumer(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        await release.wait()

    bench.broker.put("T", 0, b"x" * 10, b"y" * 10)
    await bench.consumer(handler, start_from=FIRST)
    await asyncio.sleep(2)
    answer = await ask(
        bench,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": GROUP, "clientId": "127.0.0.1@c1", "jstackEnable": "true"},
    )
    assert isinstance(answer.body, bytes)
    info = decode_body(ConsumerRunningInfo, answer.body)
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "20"
    assert {s.topic for s in info.subscription_set} == {"T", "%RETRY%billing"}
    held = info.mq_table[QUEUE]
    assert (held.cached_min_offset, held.cached_max_offset, held.cached_count) == (0, 1, 2)
    assert not held.dropped
    assert abs(held.last_pull_timestamp - bench.clock.time_ms()) < 5000
    assert info.stack_trace is not None
    assert "MainThread" in info.stack_trace
    answer = await ask(
        bench,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": "unknown", "clientId": "x"},
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (ConsumeResult.SUCCESS, "CR_SUCCESS"),
        (ConsumeResult.RECONSUME_LATER, "CR_LATER"),
        (None, "CR_RETURN_NULL"),
        (ValueError("no"), "CR_THROW_EXCEPTION"),
    ],
)
@on_bench(topics={"T": 1})
async def test_a_message_can_be_handled_on_an_operators_word(
    bench: Bench, returned: ConsumeResult | ValueError | None, expected: str
) -> None:
    seen: list[bytes] = []

    async def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult | None:
        seen.append(message.body)
        await asyncio.sleep(0.5)
        if isinstance(returned, ValueError):
            raise returned
        return returned

    await bench.consumer(handler)
    await asyncio.sleep(2)
    bench.broker.put("T", 1, b"look at this")
    record = bench.broker.queue("T", 1).records[0]
    answer = await ask(
        bench,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": GROUP, "brokerName": "broker-a"},
        record,
    )
    assert answer.code == ResponseCode.SUCCESS
    assert isinstance(answer.body, bytes)
    result = decode_body(ConsumeDirectlyResult, answer.body)
    assert result.consume_result == expected
    assert result.spent_time_ms >= 500
    assert not result.order
    assert seen == [b"look at this"]


@on_bench(topics={"T": 2})
async def test_offsets_are_reset_on_an_operators_word(bench: Bench) -> None:
    seen: list[int] = []
    bench.broker.put("T", 0, *[b"x"] * 10)
    await bench.consumer(lambda message: seen.append(message.queue_offset), start_from=FIRST)
    await asyncio.sleep(3)
    (peer,) = bench.broker.peers
    peer.oneway(
        Command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ext={"topic": "T", "group": GROUP, "timestamp": "0", "isForce": "true"},
            body=encode_body(ResetOffsets({QUEUE: 4})),
        )
    )
    await asyncio.sleep(9)
    assert len(seen) == 10
    await asyncio.sleep(5)
    assert seen[10:] == [4, 5, 6, 7, 8, 9]


@on_bench(topics={"T": 1})
async def test_a_client_answers_with_its_offsets(bench: Bench) -> None:
    bench.broker.put("T", 0, *[b"x"] * 3)
    await bench.consumer(ignore, start_from=FIRST)
    await asyncio.sleep(2)
    answer = await ask(
        bench, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": GROUP}
    )
    assert isinstance(answer.body, bytes)
    assert decode_body(ConsumerStatus, answer.body).message_queue_table == {QUEUE: 3}


@on_bench()
async def test_garbage_from_a_broker_is_refused_without_further_effect(bench: Bench) -> None:
    seen: list[bytes] = []
    await bench.consumer(lambda message: seen.append(message.body))
    await asyncio.sleep(2)
    for code, ext, body in [
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "T"}, b""),
        (
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"topic": "T", "group": GROUP, "timestamp": "0"},
            b"{",
        ),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": GROUP}, b"short"),
        (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {}, b"x"),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {}, b""),
    ]:
        assert (await ask(bench, code, ext, body)).code == ResponseCode.SYSTEM_ERROR
    bench.broker.put("T", 0, b"fine")
    await asyncio.sleep(1)
    assert seen == [b"fine"]


@on_bench()
async def test_a_transaction_is_checked_and_answered_over_the_same_connection(
    bench: Bench,
) -> None:
    asked: list[str] = []

    def check(message: StoredMessage, answer: TransactionAnswer) -> None:
        asked.append(message.body.decode())
        answer(TransactionDecision.COMMIT)

    producer = ProducerCore(bench.session("p1"), ProducerSettings(group="shop"), check=check)
    producer.start()
    await producer.queues("T")
    await bench.session("p1").heartbeat_all()
    bench.broker.put("T", 0, b"half", properties={"PGROUP": "shop", "TRAN_MSG": "true"})
    (peer,) = bench.broker.peers
    peer.oneway(
        Command(
            RequestCode.CHECK_TRANSACTION_STATE,
            ext={"tranStateTableOffset": "7", "commitLogOffset": "9", "transactionId": "tx"},
            body=bench.broker.queue("T", 0).records[0],
        )
    )
    await asyncio.sleep(0.5)
    (end,) = bench.broker.asked(RequestCode.END_TRANSACTION)
    assert asked == ["half"]
    assert end.is_oneway
    assert end.ext["commitOrRollback"] == str(TransactionDecision.COMMIT)
    assert end.ext["fromTransactionCheck"] == "true"
    assert (end.ext["tranStateTableOffset"], end.ext["commitLogOffset"]) == ("7", "9")
    assert end.ext["transactionId"] == "tx"
    await producer.stop()
