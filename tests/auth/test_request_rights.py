"""For each kind of request: the rights that are enough, and that none of them can be left out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, Guarded, ask, guarded

from penstock import Message, aio
from penstock.auth.model import Entry
from penstock.protocol.codes import RequestCode as Code
from penstock.protocol.codes import ResponseCode, request_name
from penstock.protocol.commands import Command

REFUSED = ResponseCode.NO_PERMISSION
T, G, C = "Topic:orders", "Group:billing", "Cluster:DefaultCluster"
NEW_TOPIC, NEW_GROUP = "Topic:fresh", "Group:fresh"

_SUBSCRIPTION = {"topic": "orders", "subString": "*", "subVersion": 0}
_HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [
        {
            "groupName": "billing",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [_SUBSCRIPTION],
            "unitMode": False,
        }
    ],
    "producerDataSet": [],
}
_LOCK = {
    "consumerGroup": "billing",
    "clientId": "c",
    "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}],
}
_PULL = {
    **{"consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0"},
    **{"maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0"},
    **{"subscription": "*", "subVersion": "0", "expressionType": "TAG"},
}
_SEND_V1 = {
    **{"producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102"},
    **{"defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1"},
    **{"flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false"},
}
_SEND_V2 = {
    **{"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"},
    **{"i": "", "j": "0", "k": "false", "m": "false"},
}
_POP = {
    **{"consumerGroup": "billing", "topic": "orders", "queueId": "0", "maxMsgNums": "1"},
    **{"invisibleTime": "60000", "pollTime": "0", "bornTime": "1", "initMode": "0"},
}
_ACK = {
    **{"consumerGroup": "billing", "topic": "orders", "queueId": "0", "offset": "0"},
    "extraInfo": "0 0 60000 0 0 broker-a 0 0",
}
_TOPIC_FIELDS = {
    **{"defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"},
    **{"topicFilterType": "SINGLE_TAG", "order": "false"},
}


class Case(NamedTuple):
    """A request, the rights it needs, and the rows of the checklist that it belongs to."""

    code: int
    needs: tuple[tuple[str, str], ...]
    rows: str
    ext: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: object = None

    def command(self) -> Command:
        body = self.body if isinstance(self.body, bytes) else b""
        if self.body is not None and not isinstance(self.body, bytes):
            body = json.dumps(self.body).encode()
        return Command(self.code, ext=dict(self.ext) or None, body=body)


_BOTH_SUB = ((T, "Sub"), (G, "Sub"))
_GROUP_TOPIC = {"topic": "orders", "group": "billing"}

CASES = (
    Case(Code.SEND_MESSAGE, ((T, "Pub"),), "A23", _SEND_V1, b"x"),
    Case(Code.SEND_MESSAGE_V2, ((T, "Pub"),), "A23", _SEND_V2, b"x"),
    Case(Code.SEND_BATCH_MESSAGE, ((T, "Pub"),), "A23", {**_SEND_V2, "m": "true"}, b"x"),
    Case(Code.SEND_MESSAGE_V2, ((G, "Sub"),), "A24", {**_SEND_V2, "b": "%RETRY%billing"}, b"x"),
    Case(Code.PULL_MESSAGE, _BOTH_SUB, "A27", _PULL),
    Case(Code.PULL_MESSAGE, ((T, "Sub"),), "A27", {**_PULL, "consumerGroup": "TOOLS_CONSUMER"}),
    Case(
        Code.PULL_MESSAGE,
        ((T, "Sub"), ("Group:TOOLS_CONSUMER", "Sub")),
        "A27",
        {**_PULL, "consumerGroup": "TOOLS_CONSUMER", "sysFlag": "1"},
    ),
    Case(Code.LITE_PULL_MESSAGE, _BOTH_SUB, "A28", _PULL),
    Case(
        Code.PULL_MESSAGE,
        ((G, "Sub"), ("Group:victim", "Sub")),
        "A29",
        {**_PULL, "topic": "%RETRY%victim"},
    ),
    Case(
        Code.PULL_MESSAGE,
        ((G, "Sub"), ("Topic:SCHEDULE_TOPIC_XXXX", "Sub")),
        "A30",
        {**_PULL, "topic": "SCHEDULE_TOPIC_XXXX"},
    ),
    Case(Code.PULL_MESSAGE, ((G, "Sub"),), "A27", {**_PULL, "topic": "%RETRY%billing"}),
    Case(Code.HEART_BEAT, _BOTH_SUB, "A34", {}, _HEARTBEAT),
    Case(Code.HEART_BEAT, (), "A34", {}, {"clientID": "c", "producerDataSet": []}),
    Case(
        Code.QUERY_CONSUMER_OFFSET,
        ((T, "Get"), (G, "Get")),
        "A35",
        {"consumerGroup": "billing", "topic": "orders", "queueId": "0"},
    ),
    Case(
        Code.UPDATE_CONSUMER_OFFSET,
        ((T, "Update"), (G, "Update")),
        "A35",
        {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "0"},
    ),
    Case(Code.LOCK_BATCH_MQ, _BOTH_SUB, "A36", {}, _LOCK),
    Case(Code.UNLOCK_BATCH_MQ, _BOTH_SUB, "A36", {}, _LOCK),
    Case(
        Code.QUERY_MESSAGE,
        ((T, "Get"),),
        "A37",
        {
            **{"topic": "orders", "key": "k", "maxNum": "1", "beginTimestamp": "0"},
            "endTimestamp": "9",
        },
    ),
    Case(
        Code.UNREGISTER_CLIENT, ((G, "Sub"),), "A37", {"clientID": "c", "consumerGroup": "billing"}
    ),
    Case(Code.GET_CONSUMER_LIST_BY_GROUP, ((G, "Get"),), "A37", {"consumerGroup": "billing"}),
    Case(
        Code.CHECK_CLIENT_CONFIG,
        _BOTH_SUB,
        "A37",
        {},
        {"clientId": "c", "group": "billing", "subscriptionData": _SUBSCRIPTION},
    ),
    Case(
        Code.QUERY_ASSIGNMENT,
        _BOTH_SUB,
        "A37",
        {},
        {"topic": "orders", "consumerGroup": "billing", "clientId": "c"},
    ),
    Case(
        Code.SET_MESSAGE_REQUEST_MODE,
        ((T, "Update"), (G, "Update")),
        "A37",
        {},
        {"topic": "orders", "consumerGroup": "billing", "mode": "PULL"},
    ),
    Case(Code.POP_MESSAGE, _BOTH_SUB, "A38", _POP),
    Case(Code.PEEK_MESSAGE, _BOTH_SUB, "A38", _POP),
    Case(Code.ACK_MESSAGE, _BOTH_SUB, "A38", _ACK),
    Case(Code.CHANGE_MESSAGE_INVISIBLETIME, _BOTH_SUB, "A38", {**_ACK, "invisibleTime": "1000"}),
    Case(
        Code.BATCH_ACK_MESSAGE,
        _BOTH_SUB,
        "A38",
        {},
        {
            "brokerName": "broker-a",
            "acks": [
                {
                    **{"c": "billing", "t": "orders", "r": "0", "so": 0, "q": 0, "rq": 0},
                    **{"pt": 0, "it": 0, "b": ""},
                }
            ],
        },
    ),
    Case(
        Code.UPDATE_AND_CREATE_TOPIC,
        ((NEW_TOPIC, "Create"),),
        "A39",
        {"topic": "fresh", **_TOPIC_FIELDS},
    ),
    Case(
        Code.UPDATE_AND_CREATE_TOPIC, ((T, "Update"),), "A39", {"topic": "orders", **_TOPIC_FIELDS}
    ),
    Case(
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        ((T, "Update"), ("Topic:fresher", "Create")),
        "A39",
        {},
        {"topicConfigList": [{"topicName": "orders"}, {"topicName": "fresher"}]},
    ),
    Case(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        ((NEW_GROUP, "Create"),),
        "A40",
        {},
        {"groupName": "fresh"},
    ),
    Case(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        ((G, "Update"),),
        "A40",
        {},
        {"groupName": "billing"},
    ),
    Case(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        ((G, "Update"), ("Group:fresher", "Create")),
        "A40",
        {},
        {"groupConfigList": [{"groupName": "billing"}, {"groupName": "fresher"}]},
    ),
    Case(Code.DELETE_SUBSCRIPTIONGROUP, (("Group:gone", "Delete"),), "A40", {"groupName": "gone"}),
    Case(Code.DELETE_TOPIC_IN_BROKER, (("Topic:gone", "Delete"),), "A41", {"topic": "gone"}),
    Case(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        ((T, "Update"), (G, "Update")),
        "A41",
        {**_GROUP_TOPIC, "timestamp": "-1", "isForce": "true"},
    ),
    Case(
        Code.CLONE_GROUP_OFFSET,
        (("Group:src", "Get"), ("Group:dest", "Update"), (T, "Update")),
        "A41",
        {"srcGroup": "src", "destGroup": "dest", "topic": "orders"},
    ),
    *(
        Case(code, ((T, right),), "A42", {"topic": "orders", "queueId": "0", "timestamp": "0"})
        for code in (
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_MAX_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME,
        )
        for right in ("Get", "Sub")
    ),
    *(
        Case(code, ((T, "Get"),), "A42", {"topic": "orders"})
        for code in (
            Code.GET_TOPIC_STATS_INFO,
            Code.QUERY_TOPIC_CONSUME_BY_WHO,
            Code.GET_TOPIC_CONFIG,
        )
    ),
    *(
        Case(code, ((T, "Get"), (G, "Get")), "A42", _GROUP_TOPIC)
        for code in (Code.QUERY_CONSUME_TIME_SPAN, Code.QUERY_SUBSCRIPTION_BY_CONSUMER)
    ),
    Case(
        Code.GET_CONSUME_STATS,
        ((T, "Get"), (G, "Get")),
        "A42",
        {"consumerGroup": "billing", "topic": "orders"},
    ),
    Case(
        Code.QUERY_CONSUME_QUEUE,
        ((T, "Get"), (G, "Get")),
        "A42",
        {
            **{"topic": "orders", "queueId": "0", "index": "0"},
            "count": "1",
            "consumerGroup": "billing",
        },
    ),
    Case(Code.GET_CONSUMER_CONNECTION_LIST, ((G, "Get"),), "A43", {"consumerGroup": "billing"}),
    Case(Code.QUERY_TOPICS_BY_CONSUMER, ((G, "Get"),), "A43", {"group": "billing"}),
    Case(Code.GET_SUBSCRIPTIONGROUP_CONFIG, ((G, "Get"),), "A43", {"group": "billing"}),
    Case(
        Code.GET_CONSUMER_RUNNING_INFO,
        ((G, "Get"),),
        "A43",
        {"consumerGroup": "billing", "clientId": "nosuch"},
    ),
    Case(
        Code.GET_CONSUMER_RUNNING_INFO,
        ((G, "Get"), (C, "Get")),
        "A43",
        {"consumerGroup": "billing", "clientId": "nosuch", "jstackEnable": "true"},
    ),
    Case(
        Code.CONSUME_MESSAGE_DIRECTLY,
        ((G, "Sub"), (T, "Sub")),
        "A43",
        {"consumerGroup": "billing", "clientId": "nosuch", "msgId": "x", "topic": "orders"},
    ),
    Case(Code.UPDATE_BROKER_CONFIG, ((C, "Update"),), "A44", {}, b"fileReservedTime=48\n"),
    *(
        Case(code, ((C, "Get"),), "A45 A46", {})
        for code in (
            Code.GET_BROKER_CONFIG,
            Code.GET_BROKER_RUNTIME_INFO,
            Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_ALL_DELAY_OFFSET,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Code.GET_BROKER_CONSUME_STATS,
            Code.GET_ALL_PRODUCER_INFO,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
        )
    ),
    Case(Code.GET_PRODUCER_CONNECTION_LIST, ((C, "Get"),), "A46", {"producerGroup": "p"}),
    Case(
        Code.VIEW_BROKER_STATS_DATA,
        ((C, "Get"),),
        "A46",
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"},
    ),
    *(
        Case(code, ((C, "Update"),), "A47", {})
        for code in (
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.CLEAN_UNUSED_TOPIC,
            Code.DELETE_EXPIRED_COMMITLOG,
        )
    ),
)
_ROWS = sorted({row for case in CASES for row in case.rows.split()})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    data = Path(tmp_path_factory.mktemp("rights"))
    async with guarded(data) as running:
        async with aio.Admin(**running.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_group("billing")
        async with aio.Producer("p", **running.as_admin) as producer:
            await producer.send(Message("orders", b"x", keys=["k"]))
        yield running


async def put_rights(servers: Guarded, *rights: tuple[str, str]) -> None:
    """Give the user exactly these rights."""
    actions: dict[str, list[str]] = {}
    for resource, action in rights:
        actions.setdefault(resource, []).append(action)
    entries = [Entry.parse(resource, words) for resource, words in actions.items()]
    servers.users.change(lambda users: users.without_entries(APP).with_entries(APP, entries))
    await servers.take_changes()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("A22", *_ROWS)
@pytest.mark.parametrize(
    "case", CASES, ids=[f"{request_name(case.code)}-{index}" for index, case in enumerate(CASES)]
)
async def test_the_rights_of_a_request(servers: Guarded, case: Case) -> None:
    address = servers.broker.address
    for left_out in range(len(case.needs)):
        rest = [need for index, need in enumerate(case.needs) if index != left_out]
        await put_rights(servers, *rest)
        answer = await ask(address, case.command())
        assert answer.code == REFUSED, f"without {case.needs[left_out]}: {answer.remark}"
        assert "no matched policies" in str(answer.remark)
        # Patterns of other kinds do not help, nor does the wrong action on the right resource.
        resource, action = case.needs[left_out]
        wrong = "List"
        await put_rights(servers, *rest, (resource, wrong))
        assert (await ask(address, case.command())).code == REFUSED, action
    await put_rights(servers, *case.needs)
    answer = await ask(address, case.command())
    assert answer.code != REFUSED or "no permission to access" not in str(answer.remark)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("A32", "A33")
async def test_a_message_is_judged_by_its_own_topic(servers: Guarded) -> None:
    address = servers.broker.address
    view = Command(Code.VIEW_MESSAGE_BY_ID, ext={"offset": "0", "topic": "mine"})
    back = Command(
        Code.CONSUMER_SEND_MSG_BACK,
        ext={
            **{"offset": "0", "group": "billing", "delayLevel": "1", "originTopic": "mine"},
            **{"originMsgId": "x", "unitMode": "false", "maxReconsumeTimes": "16"},
        },
    )
    retries = servers.broker.state.storage.max_offset("%RETRY%billing", 0)
    await put_rights(servers, ("Topic:mine", "All"), (G, "Sub"))
    hidden = await ask(address, Command(view.code, ext=dict(view.ext or {})))
    # As if there were none: who guesses positions does not learn which topics there are.
    nothing = Command(view.code, ext={**(view.ext or {}), "offset": "7"})
    absent = await ask(address, nothing)
    assert hidden.code == absent.code == ResponseCode.SYSTEM_ERROR
    assert (hidden.remark or "") == (absent.remark or "").replace("offset, 7", "offset, 0")
    assert (await ask(address, Command(back.code, ext=dict(back.ext or {})))).code == REFUSED
    assert servers.broker.state.storage.max_offset("%RETRY%billing", 0) == retries
    await put_rights(servers, (T, "Sub"), (G, "Sub"))
    assert (await ask(address, Command(view.code, ext=dict(view.ext or {})))).code == 0
    assert (await ask(address, Command(back.code, ext=dict(back.ext or {})))).code == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("A26")
async def test_a_topic_is_created_only_by_users_who_may_create_it(servers: Guarded) -> None:
    send = {**_SEND_V2, "b": "unborn"}
    await put_rights(servers, ("Topic:unborn", "Pub"))
    answer = await ask(servers.broker.address, Command(Code.SEND_MESSAGE_V2, ext=send, body=b"x"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "unborn" not in servers.broker.state.topics
    await put_rights(servers, ("Topic:unborn", "Pub"), ("Topic:unborn", "Create"))
    answer = await ask(servers.broker.address, Command(Code.SEND_MESSAGE_V2, ext=send, body=b"x"))
    assert answer.code == 0, answer.remark
    assert "unborn" in servers.broker.state.topics


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("A45")
async def test_settings_show_no_secret(servers: Guarded) -> None:
    await put_rights(servers, (C, "Get"))
    answer = await ask(servers.broker.address, Command(Code.GET_BROKER_CONFIG))
    assert b"secret" not in bytes(answer.body)  # type: ignore[arg-type]  # received


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("A62", "A63", "A64")
async def test_a_manager_of_users_is_no_super_user(servers: Guarded) -> None:
    address = servers.broker.address

    async def change(code: int, ext: dict[str, str], body: object = None) -> Command:
        data = b"" if body is None else json.dumps(body).encode()
        return await ask(address, Command(code, ext=dict(ext), body=data))

    def rights(resource: str) -> dict[str, object]:
        entry = {"resource": resource, "actions": ["Pub"], "decision": "Allow"}
        return {"policies": [{"entries": [entry]}]}

    await put_rights(servers, (C, "Update"), (C, "Get"))
    new = {"password": "pw-0123456789", "userType": "Normal", "username": "alice"}
    assert (await change(Code.AUTH_CREATE_USER, {"username": "alice"}, new)).code == 0
    mighty = {**new, "userType": "Super", "username": "eve"}
    assert (await change(Code.AUTH_CREATE_USER, {"username": "eve"}, mighty)).code == 1
    up = {"userType": "Super"}
    assert (await change(Code.AUTH_UPDATE_USER, {"username": "alice"}, up)).code == REFUSED
    assert (await change(Code.AUTH_DELETE_USER, {"username": "admin"})).code == REFUSED
    own = await change(Code.AUTH_CREATE_ACL, {"subject": "User:app"}, rights("Topic:x"))
    assert (own.code, "its own rights" in str(own.remark)) == (REFUSED, True)
    for resource in ("Topic:a", "Topic:b"):
        given = await change(Code.AUTH_CREATE_ACL, {"subject": "User:alice"}, rights(resource))
        assert given.code == 0
    mistyped = {"subject": "User:alice", "resource": "Tpoic:a"}
    assert (await change(Code.AUTH_DELETE_ACL, mistyped)).code == ResponseCode.INVALID_PARAMETER
    other = {**rights("Topic:c"), "subject": "User:bob"}
    answer = await change(Code.AUTH_CREATE_ACL, {"subject": "User:alice"}, other)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    shown = await change(Code.AUTH_GET_ACL, {"subject": "User:alice"})
    entries = json.loads(bytes(shown.body))["policies"][0]["entries"]  # type: ignore[arg-type]
    assert [entry["resource"] for entry in entries] == ["Topic:a", "Topic:b"]
    user = await change(Code.AUTH_GET_USER, {"username": "alice"})
    assert json.loads(bytes(user.body)).get("password") is None  # type: ignore[arg-type]
    assert (await change(Code.AUTH_DELETE_USER, {"username": "alice"})).code == 0
    unknown = await change(Code.AUTH_GET_USER, {"username": "alice"})
    assert (unknown.code, unknown.body) == (0, b"")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("code", [Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER])
@pytest.mark.parametrize("password", ["env:HOME", "file:/etc/hostname"])
async def test_a_request_chooses_no_file_or_variable_of_the_server(
    servers: Guarded, code: int, password: str
) -> None:
    name = "referring" if code == Code.AUTH_CREATE_USER else APP
    body = json.dumps({"username": name, "password": password}).encode()
    request = Command(code, ext={"username": name}, body=body)
    before = servers.users.path.read_bytes()
    answer = await ask(servers.broker.address, request, ADMIN, ADMIN_SECRET)
    assert answer.code != 0
    assert "refers to a variable or a file" in (answer.remark or "")
    assert servers.users.path.read_bytes() == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("A61")
async def test_references_of_5_3_clients_are_followed(servers: Guarded) -> None:
    body = (
        b'{"policies":[{"entries":[{"actions":["Pub"],"decision":"Allow","resource":"Topic:a"},'
        b'{"actions":{"$ref":"$.policies[0].entries[0].actions"},"decision":"Allow",'
        b'"resource":"Topic:b"}]}],"subject":"User:app"}'
    )
    await put_rights(servers)
    command = Command(Code.AUTH_CREATE_ACL, ext={"subject": "User:app"}, body=body)
    answer = await ask(servers.broker.address, command, "admin", "admin-secret-1")
    assert answer.code == 0, answer.remark
    entries = servers.users.load().require(APP).entries
    assert [str(entry) for entry in entries] == ["Allow Pub Topic:a", "Allow Pub Topic:b"]
    for wrong in (
        b"$.policies[9].entries[0].actions",
        b"$..x",
        b"$.policies[0].entries[0].decision",
    ):
        bad = body.replace(b"$.policies[0].entries[0].actions", wrong)
        command = Command(Code.AUTH_CREATE_ACL, ext={"subject": "User:app"}, body=bad)
        answer = await ask(servers.broker.address, command, "admin", "admin-secret-1")
        assert answer.code == 1
        assert "reference" in str(answer.remark)
