"""Decisions of users about transactions, and what the broker receives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.support.scripted import ThreadedCluster
from tests.support.waiting import wait_for

from penstock import Message, PreparedMessage, Producer, SendStatus, StoredMessage, aio
from penstock.client.facades import producer as producer_facade
from penstock.client.producing.transactions import decision_of
from penstock.errors import InvalidArgument, RequestRefused
from penstock.model.hosts import pack_host
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.transactions import CheckTransactionState, TransactionDecision
from penstock.protocol.records.codec import encode_record
from penstock.remoting import Peer
from penstock.testing.eventually import eventually

END = RequestCode.END_TRANSACTION
HOST = pack_host("127.0.0.1", 10911)


def ask(cluster: ThreadedCluster, times: int = 1, *, group: str = "shop") -> None:
    """Have the broker ask all its clients what became of a transaction of a group."""
    properties = encode_properties({"PGROUP": group, "UNIQ_KEY": "id-1"})
    record = encode_record(b"T", b"x", properties, 0, 0, 0, 1, 1, HOST, HOST)
    header = encode_header(
        CheckTransactionState(tran_state_table_offset=1, commit_log_offset=2, msg_id="id-1")
    )

    def send() -> None:
        for peer in cluster.broker.peers * times:
            peer.oneway(Command(RequestCode.CHECK_TRANSACTION_STATE, ext=dict(header), body=record))

    cluster._host.call_soon(send)


def decisions(cluster: ThreadedCluster) -> list[int]:
    """The decisions the broker received, in order."""
    return [int(end.ext["commitOrRollback"]) for end in cluster.broker.asked(END)]


@pytest.mark.spec("X43")
@pytest.mark.parametrize("answer", [1, 0, "ROLLBACK", "", [], object()])
def test_only_true_and_false_decide(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    assert decision_of(answer, "id-1") == TransactionDecision.UNKNOWN
    assert "no decision about a transaction, it stays open msg_id=id-1" in caplog.text


def test_none_leaves_it_open_and_is_nothing_to_report(caplog: pytest.LogCaptureFixture) -> None:
    assert decision_of(None, "id-1") == TransactionDecision.UNKNOWN
    assert decision_of(True, "id-1") == TransactionDecision.COMMIT
    assert decision_of(False, "id-1") == TransactionDecision.ROLLBACK
    assert not caplog.records


def test_a_coroutine_is_no_decision(caplog: pytest.LogCaptureFixture) -> None:
    async def check(message: StoredMessage) -> bool:
        return False

    coroutine = check(StoredMessage("T", b"x", b"", None, 0))  # type: ignore[arg-type]
    assert decision_of(coroutine, "id-1") == TransactionDecision.UNKNOWN
    assert "coroutine object" in caplog.text


def test_a_blocking_producer_refuses_coroutine_functions(cluster: ThreadedCluster) -> None:
    async def decide(message: object) -> bool:
        return False

    class Decides:
        async def __call__(self, message: object) -> bool:
            return False

    for wrong in (decide, Decides()):
        with pytest.raises(InvalidArgument, match="check_transaction is a coroutine function"):
            Producer(group="shop", namesrv=cluster.namesrv, check_transaction=wrong)
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="execute is a coroutine function"):
            producer.send_in_transaction(Message("T", b"x"), decide)  # type: ignore[arg-type]
        # Before anything was sent: there is no half message to decide about.
        assert not cluster.broker.sent


@pytest.mark.parametrize("decision", [True, False])
async def test_a_coroutine_check_is_awaited_on_the_loop_of_start(
    cluster: ThreadedCluster, decision: bool
) -> None:
    threads: list[int] = []

    async def check(message: StoredMessage) -> bool:
        threads.append(threading.get_ident())
        await asyncio.sleep(0)
        assert message.msg_id == "id-1"
        return decision

    async with aio.Producer(
        group="shop", namesrv=cluster.namesrv, check_transaction=check
    ) as producer:
        await producer.send(Message("T", b"x"))
        ask(cluster)
        await eventually(lambda: cluster.broker.asked(END))
    assert decisions(cluster) == [decision_of(decision, "")]
    assert threads == [threading.get_ident()]


async def fails(message: StoredMessage) -> bool:
    raise ValueError("the database is down")


def ill(message: StoredMessage) -> bool:
    return "ROLLBACK"  # type: ignore[return-value]


@pytest.mark.spec("X43")
@pytest.mark.parametrize("check", [fails, ill])
async def test_a_check_that_does_not_tell_leaves_the_transaction_open(
    cluster: ThreadedCluster,
    check: Callable[[StoredMessage], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with aio.Producer(
        group="shop", namesrv=cluster.namesrv, check_transaction=check
    ) as producer:
        await producer.send(Message("T", b"x"))
        ask(cluster)
        await eventually(lambda: cluster.broker.asked(END))
    assert decisions(cluster) == [TransactionDecision.UNKNOWN]
    assert "msg_id=id-1" in caplog.text


async def test_a_check_that_is_under_way_when_the_producer_stops_is_given_up(
    cluster: ThreadedCluster,
) -> None:
    begun = asyncio.Event()

    async def check(message: StoredMessage) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    async with aio.Producer(
        group="shop", namesrv=cluster.namesrv, check_transaction=check
    ) as producer:
        await producer.send(Message("T", b"x"))
        ask(cluster)
        await begun.wait()
    assert not decisions(cluster)


# Halves that are not safe


def not_ok(code: int) -> Callable[[Peer, Command], Command]:
    """The answer of a broker that may lose the message."""
    ext = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
    return lambda peer, request: Command(code, ext=dict(ext))


@pytest.mark.spec("X42")
@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_half_that_is_not_safe_is_rolled_back_and_nothing_is_done(
    cluster: ThreadedCluster, code: int
) -> None:
    ran: list[Message] = []

    def execute(message: Message) -> bool:
        ran.append(message)
        return True

    cluster.broker.script[RequestCode.SEND_MESSAGE_V2] = not_ok(code)
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        receipt = producer.send_in_transaction(Message("T", b"x"), execute)
        assert receipt.status is not SendStatus.OK
        assert receipt.decision is False
        wait_for(lambda: decisions(cluster) == [TransactionDecision.ROLLBACK])
    assert not ran


@pytest.mark.spec("X42")
@pytest.mark.parametrize("code", [10, 11, 12])
async def test_the_same_with_asyncio(cluster: ThreadedCluster, code: int) -> None:
    ran: list[Message] = []

    async def execute(message: Message) -> bool:
        ran.append(message)
        return True

    cluster.broker.script[RequestCode.SEND_MESSAGE_V2] = not_ok(code)
    async with aio.Producer(group="shop", namesrv=cluster.namesrv) as producer:
        receipt = await producer.send_in_transaction(Message("T", b"x"), execute)
        assert receipt.decision is False
        await eventually(lambda: decisions(cluster) == [TransactionDecision.ROLLBACK])
    assert not ran


@pytest.mark.spec("X42")
def test_a_half_that_is_refused_raises_and_nothing_is_done(cluster: ThreadedCluster) -> None:
    ran: list[Message] = []
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2] = lambda peer, request: Command(
        13, remark="too big"
    )
    with (
        Producer(group="shop", namesrv=cluster.namesrv) as producer,
        pytest.raises(RequestRefused, match="too big"),
    ):
        producer.send_in_transaction(Message("T", b"x"), lambda message: ran.append(message))
    assert not ran
    assert not decisions(cluster)


def test_the_local_transaction_gets_the_id_that_a_check_shows(cluster: ThreadedCluster) -> None:
    seen: list[PreparedMessage] = []

    def execute(message: PreparedMessage) -> bool | None:
        seen.append(message)
        return None

    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        receipt = producer.send_in_transaction(Message("T", b"x", keys=["k"]), execute)
    assert [one.transaction_id for one in seen] == [receipt.msg_id]
    assert receipt.decision is None
    assert (seen[0].topic, seen[0].keys) == ("T", ["k"])


def test_the_error_of_a_local_transaction_is_sent_along(cluster: ThreadedCluster) -> None:
    remarks: list[str | None] = []

    def end(peer: Peer, request: Command) -> None:
        remarks.append(request.remark)

    cluster.broker.script[END] = end

    def execute(message: Message) -> bool:
        raise ValueError("the database is down")

    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        assert producer.send_in_transaction(Message("T", b"x"), execute).decision is None
        wait_for(lambda: remarks == ["ValueError: the database is down"])


@pytest.mark.parametrize("key", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_no_delay_in_a_transaction(cluster: ThreadedCluster, key: str) -> None:
    delayed = (Message("T", b"x", delay=3), Message("T", b"x", properties={key: "1"}))
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        for message in delayed:
            with pytest.raises(InvalidArgument, match=r"delayed message .* in a transaction"):
                producer.send_in_transaction(message, lambda message: True)
        assert not cluster.broker.sent


def test_brokers_of_the_named_topics_know_the_producer_before_it_sends(
    cluster: ThreadedCluster,
) -> None:
    with Producer(
        group="shop", namesrv=cluster.namesrv, check_transaction=lambda m: True, topics=["T"]
    ):
        wait_for(lambda: cluster.broker.members.get("shop") or cluster.broker.heartbeats)
        ask(cluster)
        wait_for(lambda: decisions(cluster) == [TransactionDecision.COMMIT])
    with pytest.raises(InvalidArgument, match="topics is 'T'"):
        Producer(group="shop", namesrv=cluster.namesrv, topics="T")


@pytest.mark.spec("X44")
def test_thousands_of_checks_do_not_delay_heartbeats(
    cluster: ThreadedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()

    def check(message: StoredMessage) -> bool:
        let_go.wait(30)
        return True

    with Producer(
        group="shop",
        namesrv=cluster.namesrv,
        check_transaction=check,
        heartbeat_interval=0.1,
        topics=["T"],
    ):
        wait_for(lambda: cluster.broker.heartbeats)
        try:
            ask(cluster, 3000)
            ask(cluster, group="strangers")
            wait_for(lambda: "unknown producer group group=strangers" in caplog.text)
            seen = len(cluster.broker.heartbeats)
            wait_for(lambda: len(cluster.broker.heartbeats) > seen + 2)
            assert not decisions(cluster)
        finally:
            let_go.set()
        wait_for(lambda: len(decisions(cluster)) == 3000)
    assert set(decisions(cluster)) == {TransactionDecision.COMMIT}


def test_more_checks_than_can_wait_are_dropped(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_facade, "MAX_WAITING_CHECKS", 5)
    let_go = threading.Event()

    def check(message: StoredMessage) -> bool:
        let_go.wait(30)
        return True

    with Producer(group="shop", namesrv=cluster.namesrv, check_transaction=check, topics=["T"]):
        wait_for(lambda: cluster.broker.heartbeats)
        try:
            ask(cluster, 8)
            wait_for(lambda: caplog.text.count("too many transaction checks") == 3)
        finally:
            let_go.set()
        wait_for(lambda: len(decisions(cluster)) == 5)
        ask(cluster)
        wait_for(lambda: len(decisions(cluster)) == 6)


def test_a_half_names_the_group_that_is_asked_about_it(cluster: ThreadedCluster) -> None:
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        producer.send_in_transaction(Message("T", b"x"), lambda message: True)
    header, _ = cluster.broker.sent[0]
    properties = parse_properties((header.properties or "").encode())
    assert properties["PGROUP"] == "shop"
    assert properties["TRAN_MSG"] == "true"
