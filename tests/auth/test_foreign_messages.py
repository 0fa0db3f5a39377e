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
from penstock.model.hosts import offset_message_id
from penstock.model.names import TRANSACTION_GIVEN_UP_TOPIC
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Peer, Pool
from penstock.store import Draft
from penstock.testing.eventually import eventually

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
        # Without such a group it is the name that pop gives to retries of (billing, orders).
        pull = Command(RequestCode.PULL_MESSAGE, ext={**_PULL, "topic": "%RETRY%billing_orders"})
        assert (await ask(servers.broker.address, pull)).code != REFUSED


@pytest.mark.spec("A29", "A38")
async def test_retries_of_pop_belong_to_a_group_and_a_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path, *MINE) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            for group in ("billing", "billing_eu"):
                await admin.create_group(group)
            for topic in ("orders", "eu_orders"):
                await admin.create_topic(topic, 1)

        async def is_refused(topic: str, group: str = "billing") -> bool:
            ext = {**_PULL, "topic": topic, "consumerGroup": group}
            answers = [
                await ask(servers.broker.address, Command(one, ext=dict(ext)))
                for one in (RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET)
            ]
            assert len({answer.code == REFUSED for answer in answers}) == 1
            return answers[0].code == REFUSED

        for mark in "_+":
            assert not await is_refused(f"%RETRY%billing{mark}orders")
            assert await is_refused(f"%RETRY%billing{mark}payroll"), "the topic of another"
            assert await is_refused(f"%RETRY%billing_eu{mark}orders"), "the group of another"
        # It may be that of (billing, eu_orders), but it may be that of (billing_eu, orders), too.
        servers.grant(Entry.parse("Topic:eu_orders", ["Sub"]))
        await servers.take_changes()
        assert await is_refused("%RETRY%billing_eu_orders")
        assert not await is_refused("%RETRY%billing+eu_orders")
        servers.grant(Entry.parse("Group:billing_eu", ["Sub"]))
        await servers.take_changes()
        assert not await is_refused("%RETRY%billing_eu_orders")
        # The other way round: the longer group does not read what may be of the shorter one.
        servers.users.change(
            lambda users: users.without_entries(APP).with_entries(
                APP,
                [Entry.parse("Group:billing_eu", ["Sub"]), Entry.parse("Topic:orders", ["Sub"])],
            )
        )
        await servers.take_changes()
        assert await is_refused("%RETRY%billing_eu_orders", "billing_eu")
        assert not await is_refused("%RETRY%billing_eu", "billing_eu")
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.delete_topic("eu_orders")
        assert not await is_refused("%RETRY%billing_eu_orders", "billing_eu")


async def test_a_reply_is_no_way_to_another_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path, *MINE) as servers:
        topics = {config.topic_name for config in servers.broker.state.topics}
        for topic, is_refused in (
            *(("invented", True), ("orders", True), ("%RETRY%billing", True)),
            ("DefaultCluster_REPLY_TOPIC", False),
        ):
            reply = Command(
                RequestCode.SEND_REPLY_MESSAGE_V2, ext={**_SEND_V2, "b": topic}, body=b"x"
            )
            answer = await ask(servers.broker.address, reply)
            assert (answer.code == REFUSED) is is_refused, (topic, answer.remark)
        assert {config.topic_name for config in servers.broker.state.topics} == topics


async def test_the_replies_of_all_users_need_an_entry_with_their_name(tmp_path: Path) -> None:
    everything = [Entry.parse("Topic:*", ["Sub"]), Entry.parse("Group:billing", ["Sub"])]
    async with guarded(tmp_path, *everything) as servers:
        for topic, is_refused in (("orders", False), ("DefaultCluster_REPLY_TOPIC", True)):
            pull = Command(RequestCode.PULL_MESSAGE, ext={**_PULL, "topic": topic})
            answer = await ask(servers.broker.address, pull)
            assert (answer.code == REFUSED) is is_refused, (topic, answer.remark)
        # To send a reply a client looks for the way first.
        way = Command(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "DefaultCluster_REPLY_TOPIC"}
        )
        answer = await ask(servers.name_server.address, way)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_denial_of_dead_letters_holds_for_members_too(tmp_path: Path) -> None:
    may_see = Entry.parse("Group:billing", ["Sub", "Get"])
    denied = Entry.parse("Topic:%DLQ%billing", ["Sub", "Get"], "Deny")
    ask_key = {"topic": "%DLQ%billing", "queueId": "0"}
    async with guarded(tmp_path, may_see) as servers:
        look = Command(RequestCode.GET_MAX_OFFSET, ext=dict(ask_key))
        assert (await ask(servers.broker.address, look)).code != REFUSED
        servers.grant(denied)
        await servers.take_changes()
        look = Command(RequestCode.GET_MAX_OFFSET, ext=dict(ask_key))
        assert (await ask(servers.broker.address, look)).code == REFUSED


async def test_a_check_is_resumed_for_the_topic_of_its_record(tmp_path: Path) -> None:
    rights = [Entry.parse("Topic:mine", ["Update"])]
    async with guarded(tmp_path, *rights) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("payroll", 1)
        async with aio.Producer("p", **servers.as_admin) as producer:
            receipt = await producer.send(Message("payroll", b"salaries"))
        ext = {"topic": "mine", "msgId": receipt.offset_msg_id}
        answer = await ask(
            servers.broker.address, Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext=ext)
        )
        assert answer.code == REFUSED
        assert "Topic:payroll" in (answer.remark or "")
        # A half that was given up is kept in another topic, and belongs to its own.
        storage = servers.broker.state.storage
        half = Draft(TRANSACTION_GIVEN_UP_TOPIC, 0, b"half", b"REAL_TOPIC\x01payroll\x02")
        position = storage.append(half).log_position
        store_host = servers.broker.state.store_host
        ext = {"topic": "mine", "msgId": offset_message_id(store_host, position)}
        answer = await ask(
            servers.broker.address, Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext=ext)
        )
        assert "Topic:payroll" in (answer.remark or "")


async def test_a_client_id_belongs_to_the_user_whose_connection_has_it(tmp_path: Path) -> None:
    def beat(client_id: str = "victim@1") -> Command:
        body = {"clientID": client_id, "producerDataSet": [{"groupName": "p"}]}
        return Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())

    async with guarded(tmp_path) as servers:
        address, clients = servers.broker.address, servers.broker.state.clients
        pool = Pool(lambda peer, request: None)
        async with pool as victim, Pool(lambda peer, request: None) as eve:
            assert (await ask(address, beat(), ADMIN, ADMIN_SECRET, pool=victim)).code == 0
            refused = await ask(address, beat(), pool=eve)
            assert (refused.code, "victim@1" in (refused.remark or "")) == (REFUSED, True)
            assert (await ask(address, beat("eve@1"), pool=eve)).code == 0
            # The same user connects again, before the first connection has closed.
            async with Pool(lambda peer, request: None) as again:
                assert (await ask(address, beat(), ADMIN, ADMIN_SECRET, pool=again)).code == 0
            found = clients.producer_by_client_id("victim@1")
            assert found is not None
            await victim.close()
            await eventually(lambda: clients.producer_by_client_id("victim@1") is None)
            assert (await ask(address, beat(), pool=eve)).code == 0, "the id is free again"


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
        for pool, user in ((app, (APP, APP_SECRET)), (allowed, (ADMIN, ADMIN_SECRET))):
            data = {"clientID": user[0], "producerDataSet": [{"groupName": "payers"}]}
            body = json.dumps(data).encode()
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
