"""Messages of others: no request reads or changes them by naming a topic or group of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, ask, guarded
from tests.auth.test_request_rights import _HEARTBEAT, _PULL, _SEND_V2

from penstock import Message, aio
from penstock.auth.model import Entry
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Peer, Pool

REFUSED = ResponseCode.NO_PERMISSION
MINE = (
    Entry.parse("Topic:orders", ["Pub", "Sub"]),
    Entry.parse("Group:billing", ["Sub"]),
)


@pytest.mark.spec("A29")
async def test_a_group_whose_name_begins_like_mine_keeps_its_retries(tmp_path: Path) -> None:
    async with guarded(tmp_path, *MINE) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_group("billing_victim")
        pull = Command(RequestCode.PULL_MESSAGE, ext={**_PULL, "topic": "%RETRY%billing_victim"})
        assert (await ask(servers.broker.address, pull)).code == REFUSED
        # Without such a group it is the name that pop gives to retries of (billing, victim).
        pull = Command(RequestCode.PULL_MESSAGE, ext={**_PULL, "topic": "%RETRY%billing_orders"})
        assert (await ask(servers.broker.address, pull)).code != REFUSED


@pytest.mark.spec("A33", "A43")
async def test_a_record_of_another_topic_is_not_sent_to_my_consumer(tmp_path: Path) -> None:
    async with guarded(tmp_path, *MINE) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("payroll", 1)
        async with aio.Producer("p", **servers.as_admin) as producer:
            secret = await producer.send(Message("payroll", b"salaries"))
            mine = await producer.send(Message("orders", b"mine"))
        for receipt, is_refused in ((secret, True), (mine, False)):
            for topic in ({}, {"topic": "orders"}):
                directly = Command(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY,
                    ext={
                        **{"consumerGroup": "billing", "clientId": "c", "brokerName": "broker-a"},
                        **{"msgId": receipt.offset_msg_id, **topic},
                    },
                )
                answer = await ask(servers.broker.address, directly)
                assert (answer.code == REFUSED) is is_refused, answer.remark


async def test_a_transaction_of_another_topic_is_not_decided_by_me(tmp_path: Path) -> None:
    async with guarded(tmp_path, *MINE) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("payroll", 1)
        async with aio.Producer("p", **servers.as_admin) as producer:
            await producer.send(Message("payroll", b"salaries"))
        end = Command(
            RequestCode.END_TRANSACTION,
            ext={
                **{"topic": "orders", "producerGroup": "p", "tranStateTableOffset": "0"},
                **{"commitLogOffset": "0", "commitOrRollback": "12", "fromTransactionCheck": "0"},
                **{"msgId": "x", "transactionId": "x"},
            },
        )
        answer = await ask(servers.broker.address, end)
        assert answer.code == REFUSED
        assert "Topic:payroll" in (answer.remark or "")


async def test_a_producer_is_asked_about_transactions_of_its_own_topics_only(
    tmp_path: Path,
) -> None:
    """The question has the message, and any user may name any producer group."""
    asked: dict[str, list[Command]] = {"app": [], "admin": []}
    often, app_asked = asyncio.Event(), asyncio.Event()

    def note(name: str) -> Callable[[Peer, Command], None]:
        def serve(peer: Peer, request: Command) -> None:
            asked[name].append(request)
            if name == "app":
                app_asked.set()
            if len(asked["admin"]) >= 4:
                often.set()

        return serve

    settings = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 100}
    async with (
        guarded(tmp_path, *MINE, settings=settings) as servers,
        Pool(note("app")) as app,
        Pool(note("admin")) as allowed,
    ):
        address = servers.broker.address
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("payroll", 1)
        body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "payers"}]}).encode()
        for pool, user in ((app, (APP, APP_SECRET)), (allowed, (ADMIN, ADMIN_SECRET))):
            heartbeat = Command(RequestCode.HEART_BEAT, body=body)
            assert (await ask(address, heartbeat, *user, pool=pool)).code == 0
        half = {**_SEND_V2, "a": "payers", "b": "payroll", "f": "4"}
        half["i"] = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01u\x02"
        sent = Command(RequestCode.SEND_MESSAGE_V2, ext=half, body=b"salaries")
        assert (await ask(address, sent, ADMIN, ADMIN_SECRET)).code == 0
        # Members take turns, so without a right on the topic half of the questions went to app.
        await asyncio.wait_for(often.wait(), 30)
        assert {one.code for one in asked["admin"]} == {RequestCode.CHECK_TRANSACTION_STATE}
        assert not asked["app"]
        servers.grant(Entry.parse("Topic:payroll", ["Pub"]))
        await asyncio.wait_for(app_asked.wait(), 30)
        assert b"salaries" in bytes(asked["app"][0].body)  # type: ignore[arg-type]  # received


async def test_a_request_that_is_passed_on_carries_no_signature(tmp_path: Path) -> None:
    seen: list[Command] = []
    forwarded = asyncio.Event()

    def serve(peer: Peer, request: Command) -> Command:
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            seen.append(request)
            forwarded.set()
        return Command(0, body=b"{}")

    async with guarded(tmp_path, *MINE) as servers, Pool(serve) as member:
        address = servers.broker.address
        heartbeat = Command(RequestCode.HEART_BEAT, body=json.dumps(_HEARTBEAT).encode())
        assert (await ask(address, heartbeat, pool=member)).code == 0
        ext = {"consumerGroup": "billing", "clientId": "c", "jstackEnable": "false"}
        question = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext)
        await ask(address, question, ADMIN, ADMIN_SECRET)
        await asyncio.wait_for(forwarded.wait(), 30)
    fields = seen[0].ext or {}
    assert fields["consumerGroup"] == "billing"
    assert not {acl.ACCESS_KEY, acl.SIGNATURE} & fields.keys()
