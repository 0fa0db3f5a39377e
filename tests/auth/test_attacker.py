"""A peer without rights tries everything; afterwards nothing has changed."""

from __future__ import annotations

import hashlib
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, guarded
from tests.support.raw_connection import RawConnection

from penstock import Message, aio
from penstock.auth.certificates import make_certificates
from penstock.auth.model import Entry
from penstock.auth.need_tables import BROKER, NAME_SERVER
from penstock.auth.request_rules import FREE
from penstock.broker import Broker
from penstock.broker.config import VIP_PORT_DISTANCE
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode, request_name
from penstock.protocol.commands import Command
from penstock.remoting import ServerTls, Tls, TlsMode

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
        # Audit file and last uses are there to change; every start and stop changes the others.
        if path.is_file()
        and path.suffix not in (".bak", ".sum")
        and path.name
        not in ("audit.jsonl", "auth-uses.json", "lock", "checkpoint", "penstock.state")
    }


class Attacker:
    """Sends requests to a port, signed or not, and connects again when the server has enough."""

    def __init__(self, port: int, name: str | None, tls: ssl.SSLContext | None) -> None:
        self._port = port
        self._name = name
        self._tls = tls
        self._connection: RawConnection | None = None
        self._sent = 0

    async def ask(self, code: int, body: bytes, more: Mapping[str, str] | None = None) -> Command:
        ext = {**fields(), **(more or {})}
        if self._name is not None:
            ext |= acl.sign(ext, body, self._name, APP_SECRET)
        self._sent += 1
        if self._connection is None or self._sent % 90 == 0:
            await self.close()
            self._connection = await RawConnection.open(
                self._port, tls=self._tls, server_hostname="localhost" if self._tls else None
            )
        return await self._connection.ask(Command(code, ext=ext, body=body))

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


async def _try_metrics(address: str, topic: str) -> None:
    """The metrics port answers any request or closes the connection; nothing changes."""
    host, port = address.rsplit(":", 1)
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        for path in ("/metrics", "/healthz", f"/{topic}", "/../auth.json", "//etc/passwd"):
            async with await RawConnection.open(int(port), host) as raw:
                body = b"x" * 10
                request = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n"
                await raw.send((request + "Connection: close\r\n\r\n").encode() + body)
                answer = await raw.wait_closed()
                assert APP_SECRET.encode() not in answer
                assert b"root:" not in answer


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [None, APP], ids=["unsigned", "signed without rights"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
async def test_nothing_changes(tmp_path: Path, name: str | None, is_tls: bool) -> None:
    tls, client_tls = None, None
    if is_tls:
        files = make_certificates(tmp_path / "tls", ("localhost", "127.0.0.1"))
        client_tls = Tls(ca_file=files.authority)
        tls = ServerTls(
            mode=TlsMode.ENFORCING, certificate_file=files.certificate, key_file=files.key
        )
    data = tmp_path / "data"
    async with guarded(data, tls=tls, client_tls=client_tls) as servers:
        async with aio.Admin(**servers.as_admin, tls=client_tls) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_group("billing")
        async with aio.Producer("p", **servers.as_admin, tls=client_tls) as producer:
            await producer.send(Message("orders", b"x", keys=["k"]))
    # A clean stop writes everything, so only requests can change the files between two stops.
    before = digests(data)
    context = None if client_tls is None else client_tls.context()
    async with guarded(data, tls=tls, client_tls=client_tls, exports_metrics=True) as servers:
        routes = servers.name_server.routes.cluster_info()
        broker = servers.broker
        for port, table in (
            (broker.port, BROKER),
            (broker.port - VIP_PORT_DISTANCE, BROKER),
            (servers.name_server.port, NAME_SERVER),
        ):
            attacker = Attacker(port, name, context)
            # The codes of the other server, and one that none knows, are refused as well.
            for code in (*BROKER, *NAME_SERVER, 9999):
                for body in BODIES:
                    answer = await attacker.ask(code, body)
                    if name is None or code not in table or code not in HARMLESS | NO_NEEDS:
                        assert answer.code != ResponseCode.SUCCESS, request_name(code)
                    if name is None:
                        assert answer.code == ResponseCode.NO_PERMISSION, request_name(code)
                        assert answer.remark == "username cannot be null."
                        assert not answer.ext
                        assert not answer.body
            await attacker.close()
        assert broker.metrics_address is not None
        await _try_metrics(broker.metrics_address, "orders")
        assert servers.name_server.routes.cluster_info() == routes
        assert not broker.state.clients.consumer_group("billing")
    assert digests(data) == before


VICTIM_NAMES = {"topic": "orders", "b": "orders", "topicList": "orders"}
VICTIM_GROUPS = ("consumerGroup", "group", "groupName", "srcGroup", "destGroup", "compareGroup")
SECRET_BODY = b"for billing only"


def mixed_fields() -> Iterator[dict[str, str]]:
    """Fields with names of the user's own, but one; and with names of the victim, but one."""
    victim = {**VICTIM_NAMES, **dict.fromkeys(VICTIM_GROUPS, "billing")}
    own = dict.fromkeys(victim, "mine")
    yield victim
    for name in victim:
        yield {**own, name: victim[name]}
        yield {**victim, name: own[name]}


def mixed_bodies() -> Iterator[bytes]:
    text = BODIES[2].decode()
    own = text.replace("orders", "mine").replace("billing", "mine")
    yield own.encode()
    yield own.replace('"topic": "mine"', '"topic": "orders"').encode()
    yield own.replace('"consumerGroup": "mine"', '"consumerGroup": "billing"').encode()
    yield own.replace('"mqSet": [{"topic": "mine"', '"mqSet": [{"topic": "orders"').encode()
    yield own.replace('"t": "mine"', '"t": "orders"').encode()
    yield own.replace('"c": "mine"', '"c": "billing"').encode()


def view_of_victim(broker: Broker) -> object:
    """What the requests of another user must not change."""
    state = broker.state
    store = state.storage
    topics = ("orders", "%RETRY%billing", "%DLQ%billing", "RMQ_SYS_TRANS_HALF_TOPIC")
    return (
        [state.topics.get(topic) for topic in topics],
        state.groups.get("billing"),
        state.offsets.of_group("billing"),
        [(store.min_offset(t, q), store.max_offset(t, q)) for t in topics for q in range(2)],
        state.clients.consumer_group("billing"),
        state.pop.modes.get("orders", "billing"),
        state.settings.texts(),
        [entry.decision for entry in state.transactions.open],
    )


@pytest.mark.timeout(180)
async def test_rights_on_own_names_reach_no_others(tmp_path: Path) -> None:
    """A user with all rights on a topic and a group mixes their names with those of others."""
    rights = (Entry.parse("Topic:mine", ["All"]), Entry.parse("Group:mine", ["All"]))
    async with guarded(tmp_path, *rights) as servers:
        broker = servers.broker
        async with aio.Admin(**servers.as_admin) as admin:
            for topic in ("orders", "mine"):
                await admin.create_topic(topic, 1)
            for group in ("billing", "mine"):
                await admin.create_group(group)
        async with aio.Producer("p", **servers.as_admin) as producer:
            # The first record of the log, at the position 0 that the fields name.
            receipt = await producer.send(Message("orders", SECRET_BODY, keys=["k"]))
        before, users = view_of_victim(broker), servers.users.path.read_bytes()
        routes = servers.name_server.routes.cluster_info()
        for port, table in ((broker.port, BROKER), (servers.name_server.port, NAME_SERVER)):
            attacker = Attacker(port, APP, None)
            for code in table:
                for number, names in enumerate(mixed_fields()):
                    bodies = mixed_bodies() if number == 0 else (b"", BODIES[2])
                    for body in bodies:
                        more = {**names, "msgId": receipt.offset_msg_id, "key": "k"}
                        answer = await attacker.ask(code, body, more)
                        shown = answer.body if isinstance(answer.body, bytes) else b""
                        assert SECRET_BODY not in shown, (request_name(code), names)
                        assert view_of_victim(broker) == before, (request_name(code), names, body)
            await attacker.close()
        assert servers.users.path.read_bytes() == users
        assert servers.name_server.routes.cluster_info() == routes


async def test_a_plain_connection_to_a_tls_port_changes_nothing(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", ("localhost", "127.0.0.1"))
    tls = ServerTls(mode=TlsMode.ENFORCING, certificate_file=files.certificate, key_file=files.key)
    client_tls = Tls(ca_file=files.authority)
    async with guarded(tmp_path / "data", tls=tls, client_tls=client_tls) as servers:
        for port in (servers.broker.port, servers.name_server.port):
            async with await RawConnection.open(port) as raw:
                ext = fields() | acl.sign(fields(), b"", ADMIN, ADMIN_SECRET)
                await raw.send_command(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext))
                assert await raw.wait_closed() == b""
        assert "orders" not in servers.broker.state.topics
