"""Requests of servers to each other: over TLS, and no broker takes the place of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.auth.servers import APP, APP_SECRET, SERVERS, SERVERS_SECRET, Guarded, ask, guarded

from penstock.auth.certificates import make_certificates
from penstock.auth.model import Entry
from penstock.cli.server_security import SecurityPlan, prepare
from penstock.errors import ConnectFailed
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.nameserver import RegisterBroker
from penstock.remoting import Pool, Server, ServerTls, Tls, TlsMode
from penstock.testing.eventually import eventually

REFUSED = ResponseCode.NO_PERMISSION
HOSTS = ("127.0.0.1", "localhost")
ELSEWHERE = "10.0.0.66:10911"


def registration(
    name: str, address: str = ELSEWHERE, *, cluster: str = "DefaultCluster", broker_id: int = 0
) -> Command:
    header = RegisterBroker(name, address, cluster, "10.0.0.66:10912", broker_id)
    topics = TopicConfigTable({topic: TopicConfig(topic, 2, 2) for topic in ("T", "U")})
    body = encode_body(RegisterBrokerBody(topics))
    return Command(RequestCode.REGISTER_BROKER, ext=encode_header(header), body=body)


def pool_of(tls: Tls | None = None) -> Pool:
    return Pool(lambda peer, request: None, tls=tls)


@pytest.mark.spec("A81")
async def test_a_broker_asks_for_routes_over_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", HOSTS)
    tls = ServerTls(mode=TlsMode.ENFORCING, certificate_file=files.certificate, key_file=files.key)
    client_tls = Tls(ca_file=files.authority)
    async with (
        guarded(tmp_path, tls=tls, client_tls=client_tls) as servers,
        pool_of(client_tls) as pool,
    ):
        address = servers.name_server.address
        done = await ask(address, registration("broker-b"), SERVERS, SERVERS_SECRET, pool=pool)
        assert done.code == 0, done.remark
        answer: asyncio.Future[tuple[MessageQueue, ...]] = asyncio.Future()
        servers.broker.state.pop.routes.queues("T", answer.set_result)
        # A topic of another broker only: without the name server there would be no queue.
        assert len(await asyncio.wait_for(answer, 10)) == 2


@pytest.mark.spec("A81")
async def test_a_broker_sends_a_name_server_nothing_in_clear(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", HOSTS)
    first_bytes: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first_bytes.append(await reader.read(1))
        writer.close()

    async with guarded(tmp_path) as servers, await asyncio.start_server(take, "127.0.0.1") as heard:
        # The name server of the broker has gone, and another process has its port.
        port = heard.sockets[0].getsockname()[1]
        routes = servers.broker.state.pop.routes
        other = type(routes)(
            servers.broker.state.clock,
            [f"127.0.0.1:{port}"],
            handler=lambda peer, request: None,
            own_queues=lambda topic: (),
            tls=Tls(ca_file=files.authority),
        )
        async with other:
            answer: asyncio.Future[tuple[MessageQueue, ...]] = asyncio.Future()
            other.queues("T", answer.set_result)
            assert await asyncio.wait_for(answer, 10) == ()
    assert first_bytes == [b"\x16"]


@pytest.mark.parametrize("has_authority", [True, False])
async def test_a_server_of_another_name_is_no_server_of_ours(
    tmp_path: Path,
    has_authority: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The authorities of the system sign for every host of the world."""
    files = make_certificates(tmp_path / "tls", HOSTS)
    world = make_certificates(tmp_path / "world", ("elsewhere.example",))
    monkeypatch.setenv("SSL_CERT_FILE", str(world.authority))
    if not has_authority:
        files.authority.unlink()
    plan = SecurityPlan(tls=str(tmp_path / "tls"))
    client_tls = prepare(plan, tmp_path / "data", "DefaultCluster", ()).client_tls
    assert client_tls is not None
    assert ("ca.pem is missing" in capsys.readouterr().err) is not has_authority
    tls = ServerTls(mode=TlsMode.ENFORCING, certificate_file=world.certificate, key_file=world.key)
    async with Server(lambda peer, request: Command(0), tls=tls) as rogue, pool_of(client_tls) as p:
        with pytest.raises(ConnectFailed):
            await p.request(f"127.0.0.1:{rogue.port}", Command(105), 10)


# A name belongs to its broker


def _address_of(servers: Guarded, name: str = "broker-a", broker_id: int = 0) -> str | None:
    broker = servers.name_server.routes.cluster_info().broker_addr_table.get(name)
    return None if broker is None else broker.broker_addrs.get(broker_id)


Attack = Callable[[str], Command]
ATTACKS: dict[str, Attack] = {
    "another address": lambda own: registration("broker-a", cluster="staging"),
    "the same address": lambda own: registration("broker-a", own, cluster="staging"),
    "a slave of another cluster": lambda own: registration(
        "broker-a", cluster="staging", broker_id=1
    ),
    "the own cluster": lambda own: registration("broker-a"),
    "the own cluster and address": lambda own: registration("broker-a", own),
    "another name at its address": lambda own: registration("broker-x", own),
}


@pytest.mark.spec("A72")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_live_broker_is_not_replaced_by_another_user(
    tmp_path: Path, attack: Attack
) -> None:
    rights = [Entry.parse(f"Cluster:{name}", ["Update"]) for name in ("staging", "DefaultCluster")]
    async with guarded(tmp_path, *rights) as servers, pool_of() as pool:
        own = servers.broker.address
        routes = servers.name_server.routes
        assert _address_of(servers) == own
        before = routes.cluster_info(), routes.topics()
        refused = await ask(servers.name_server.address, attack(own), pool=pool)
        assert refused.code == REFUSED, refused.remark
        assert "broker-a" in (refused.remark or "")
        assert (routes.cluster_info(), routes.topics()) == before


@pytest.mark.spec("A72", "A75")
async def test_a_broker_comes_back_and_a_name_that_is_free_is_given(tmp_path: Path) -> None:
    async with guarded(tmp_path, Entry.parse("Cluster:DefaultCluster", ["Update"])) as servers:
        name_server = servers.name_server.address
        async with pool_of() as first:
            done = await ask(name_server, registration("broker-b"), APP, APP_SECRET, pool=first)
            assert done.code == 0
            # Its machine was lost, so the old connection looks open: the same user comes back,
            # from the same address or from a new one.
            for address in (ELSEWHERE, "10.0.0.67:10911"):
                async with pool_of() as again:
                    request = registration("broker-b", address)
                    assert (await ask(name_server, request, APP, APP_SECRET, pool=again)).code == 0
                    assert _address_of(servers, "broker-b") == address
                await eventually(lambda: _address_of(servers, "broker-b") is None)
        async with pool_of() as other:
            request = registration("broker-b", cluster="DefaultCluster")
            done = await ask(name_server, request, SERVERS, SERVERS_SECRET, pool=other)
            assert done.code == 0, "the connection of the other user has closed"


def test_a_link_under_the_name_of_a_key_is_not_followed(tmp_path: Path) -> None:
    """Certificates may be made in a directory that others can write to."""
    directory, victim = tmp_path / "tls", tmp_path / "victim"
    directory.mkdir()
    victim.write_text("mine")
    for name in ("server.key", "client.key", "ca.pem"):
        (directory / f"{name}.tmp").symlink_to(victim)
    files = make_certificates(directory, HOSTS)
    assert victim.read_text() == "mine"
    modes = [file.stat().st_mode & 0o777 for file in (files.key, files.client_key, files.authority)]
    assert modes == [0o600, 0o600, 0o644]
    assert not [
        one for one in directory.iterdir() if one.name.count(".") > 1 and not one.is_symlink()
    ]
