"""Decisions of users about transactions, and what the broker receives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.support.scripted import ThreadedCluster

from penstock import Message, Producer, StoredMessage, aio
from penstock.client.producing.transactions import decision_of
from penstock.errors import InvalidArgument
from penstock.model.hosts import pack_host
from penstock.model.properties import encode_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.transactions import CheckTransactionState, TransactionDecision
from penstock.protocol.records.codec import encode_record
from penstock.testing.eventually import eventually

END = RequestCode.END_TRANSACTION
HOST = pack_host("127.0.0.1", 10911)


def ask(cluster: ThreadedCluster) -> None:
    """Have the broker ask all its clients what became of a transaction of group shop."""
    properties = encode_properties({"PGROUP": "shop", "UNIQ_KEY": "id-1"})
    record = encode_record(b"T", b"x", properties, 0, 0, 0, 1, 1, HOST, HOST)
    header = encode_header(
        CheckTransactionState(tran_state_table_offset=1, commit_log_offset=2, msg_id="id-1")
    )

    def send() -> None:
        for peer in cluster.broker.peers:
            peer.oneway(Command(RequestCode.CHECK_TRANSACTION_STATE, ext=header, body=record))

    cluster._host.call_soon(send)


def decisions(cluster: ThreadedCluster) -> list[int]:
    """The decisions the broker received, in order."""
    return [int(end.ext["commitOrRollback"]) for end in cluster.broker.asked(END)]


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
