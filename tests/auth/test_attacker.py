"""A peer without rights tries everything; afterwards nothing has changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.auth.servers import APP, APP_SECRET, ask, guarded

from penstock import Message, aio
from penstock.auth.need_tables import BROKER, NAME_SERVER
from penstock.auth.request_rules import FREE
from penstock.protocol.codes import RequestCode, ResponseCode, request_name
from penstock.protocol.commands import Command
from penstock.remoting import Pool

# What a signed user without any right may still do: ask for what is filtered by row or harmless.
HARMLESS = {code for table in (BROKER, NAME_SERVER) for code, rule in table.items() if rule is FREE}
NO_NEEDS = {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}


def fields() -> dict[str, str]:
    """Every field that any request has, all aimed at what exists."""
    names = ("topic", "b", "consumerGroup", "group", "groupName", "srcGroup", "destGroup")
    aimed = {name: "orders" if name in ("topic", "b") else "billing" for name in names}
    numbers = {
        name: "0"
        for name in (
            *("queueId", "queueOffset", "offset", "commitOffset", "commitLogOffset", "timestamp"),
            *("tranStateTableOffset", "commitOrRollback", "maxMsgNums", "sysFlag", "subVersion"),
            *("suspendTimeoutMillis", "e", "f", "g", "h", "j", "d", "beginTimestamp", "maxNum"),
            *("readQueueNums", "writeQueueNums", "perm", "delayLevel", "invisibleTime", "brokerId"),
        )
    }
    texts = {"a": "p", "c": "TBW102", "producerGroup": "p", "brokerName": "broker-a", "key": "k"}
    more = {"namespace": "n", "value": "v", "username": "admin", "subject": "User:app"}
    cluster = {"clusterName": "DefaultCluster", "brokerAddr": "10.0.0.66:10911", "clientID": "c"}
    return {**aimed, **numbers, **texts, **more, **cluster}


BODIES = (
    b"",
    b"fileReservedTime=1\n",
    json.dumps(
        {
            "clientID": "c",
            "clientId": "c",
            "consumerGroup": "billing",
            "group": "billing",
            "groupName": "billing",
            "topic": "orders",
            "mode": "POP",
            "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}],
            "subscriptionData": {"topic": "orders", "subString": "*", "subVersion": 0},
            "consumerDataSet": [
                {"groupName": "billing", "subscriptionDataSet": [{"topic": "orders"}]}
            ],
            "topicConfigList": [{"topicName": "orders", "readQueueNums": 1}],
            "groupConfigList": [{"groupName": "billing"}],
            "acks": [{"c": "billing", "t": "orders", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 0,
                      "it": 0, "b": ""}],
            "password": "pw-of-eve", "userType": "Super",
        }
    ).encode(),
)  # fmt: skip


def digests(data: Path) -> dict[str, str]:
    """The content of every file that requests could change."""
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(data.rglob("*"))
        # The audit file is there to grow; every start and stop changes the others.
        if path.is_file()
        and path.suffix not in (".bak", ".sum")
        and path.name not in ("audit.jsonl", "lock", "checkpoint", "penstock.state")
    }


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [None, APP], ids=["unsigned", "signed without rights"])
async def test_nothing_changes(tmp_path: Path, name: str | None) -> None:
    async with guarded(tmp_path) as servers:
        async with aio.Admin(**servers.as_admin) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_group("billing")
        async with aio.Producer("p", **servers.as_admin) as producer:
            await producer.send(Message("orders", b"x", keys=["k"]))
    # A clean stop writes everything, so only requests can change the files between two stops.
    before = digests(tmp_path)
    async with guarded(tmp_path) as servers:
        routes = servers.name_server.routes.cluster_info()
        for address, table in (
            (servers.broker.address, BROKER),
            (servers.name_server.address, NAME_SERVER),
        ):
            for code in table:
                # A connection ends after many wrong requests, so each code gets its own.
                async with Pool(lambda peer, request: None) as pool:
                    for body in BODIES:
                        command = Command(code, ext=fields(), body=body)
                        answer = await ask(address, command, name, APP_SECRET, pool=pool)
                        if name is None or code not in HARMLESS | NO_NEEDS:
                            assert answer.code != ResponseCode.SUCCESS, request_name(code)
        assert servers.name_server.routes.cluster_info() == routes
        assert not servers.broker.state.clients.consumer_group("billing")
    assert digests(tmp_path) == before
