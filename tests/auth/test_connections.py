"""Connections of users: several on one, limits, TLS with and without certificates, reload."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, ask, guarded
from tests.support.fake_clock import FakeClock

from penstock.auth.certificate_files import CertificateFiles
from penstock.auth.certificates import make_certificates
from penstock.auth.model import Entry, UserLimits
from penstock.auth.server_auth import ServerAuth
from penstock.auth.user_file import UserFile
from penstock.auth.users import new_user
from penstock.broker import Broker, BrokerConfig
from penstock.errors import ConfigError, RemotingError
from penstock.protocol import acl
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Pool, Server, ServerTls, Tls, TlsMode
from penstock.remoting.certificate_reload import LOOK_SECONDS, CertificateReload
from penstock.runtime.clock import SystemClock
from penstock.testing.eventually import eventually

REFUSED = ResponseCode.NO_PERMISSION
HOSTS = ("127.0.0.1", "localhost")


def max_offset() -> Command:
    return Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "orders", "queueId": "0"})


@pytest.mark.spec("A14")
async def test_each_request_is_judged_by_its_own_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers, Pool(lambda peer, request: None) as pool:
        address = servers.broker.address
        for _ in range(3):
            admin = await ask(address, max_offset(), ADMIN, ADMIN_SECRET, pool=pool)
            assert admin.code != REFUSED
            assert (await ask(address, max_offset(), APP, APP_SECRET, pool=pool)).code == REFUSED


@pytest.mark.spec("A90")
async def test_a_limit_of_connections_counts_for_its_user_only(tmp_path: Path) -> None:
    async with guarded(tmp_path, Entry.parse("Topic:orders", ["Get"])) as servers:
        servers.users.change(
            lambda users: users.with_user(
                replace(users.require(APP), limits=UserLimits(connections=2))
            )
        )
        await servers.take_changes()
        address = servers.broker.address
        pools = [Pool(lambda peer, request: None) for _ in range(3)]
        answers = []
        for pool in pools:
            await pool.__aenter__()
            answers.append((await ask(address, max_offset(), pool=pool)).code == REFUSED)
        assert answers == [False, False, True]
        assert (await ask(address, max_offset(), ADMIN, ADMIN_SECRET)).code != REFUSED
        await pools[0].__aexit__(None, None, None)
        await eventually(lambda: _served(address))
        for pool in pools[1:]:
            await pool.__aexit__(None, None, None)


async def _served(address: str) -> bool:
    return (await ask(address, max_offset())).code != REFUSED


def answer(peer: object, command: Command) -> Command:
    return Command(0)


async def connect(server: Server, tls: Tls | None) -> int:
    async with Pool(lambda peer, request: None, tls=tls) as pool:
        return (await pool.request(f"127.0.0.1:{server.port}", Command(1), 10)).code


@pytest.mark.spec("A77", "A82")
async def test_modes_decide_about_plain_and_tls_connections(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, HOSTS)
    trusting = Tls(ca_file=files.authority)
    for mode, plain, encrypted in (
        (TlsMode.PERMISSIVE, True, True),
        (TlsMode.ENFORCING, False, True),
    ):
        tls = ServerTls(mode=mode, certificate_file=files.certificate, key_file=files.key)
        async with Server(answer, tls=tls) as server:
            for wanted, client in ((plain, None), (encrypted, trusting)):
                if wanted:
                    assert await connect(server, client) == 0
                else:
                    with pytest.raises(RemotingError):
                        await connect(server, client)
            with pytest.raises(RemotingError):
                await connect(server, Tls())  # An authority that the system does not know.


@pytest.mark.spec("A78")
def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="permisive"):
        TlsMode("permisive")
    with pytest.raises(ConfigError, match="without a certificate"):
        ServerTls(mode=TlsMode.ENFORCING)


@pytest.mark.spec("A79")
async def test_versions_before_1_2_are_refused(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, HOSTS)
    tls = ServerTls(certificate_file=files.certificate, key_file=files.key)
    context = tls.context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    async with Server(answer, tls=tls) as server:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            client = Tls(ca_file=files.authority).context()
            client.minimum_version = client.maximum_version = version
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client)
            assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
            writer.close()


@pytest.mark.spec("A80")
async def test_client_certificates_are_demanded(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "ours", HOSTS)
    foreign = make_certificates(tmp_path / "foreign", HOSTS)
    tls = ServerTls(
        mode=TlsMode.ENFORCING,
        certificate_file=files.certificate,
        key_file=files.key,
        client_ca_file=files.authority,
    )

    def client(own: CertificateFiles | None) -> Tls:
        return Tls(
            ca_file=files.authority,
            certificate_file=None if own is None else own.client_certificate,
            key_file=None if own is None else own.client_key,
        )

    async with Server(answer, tls=tls) as server:
        assert await connect(server, client(files)) == 0
        for wrong in (None, foreign):
            with pytest.raises(RemotingError):
                await connect(server, client(wrong))


@pytest.mark.spec("A83")
async def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "now", HOSTS)
    later = make_certificates(tmp_path / "later", HOSTS)
    tls = ServerTls(mode=TlsMode.ENFORCING, certificate_file=files.certificate, key_file=files.key)
    old, new = Tls(ca_file=files.authority), Tls(ca_file=tmp_path / "later-ca.pem")
    (tmp_path / "later-ca.pem").write_bytes(later.authority.read_bytes())
    old_authority = tmp_path / "old-ca.pem"
    old_authority.write_bytes(files.authority.read_bytes())
    old = Tls(ca_file=old_authority)

    async def accepts(client: Tls) -> bool:
        try:
            return await connect(server, client) == 0
        except RemotingError:
            return False

    async with Server(answer, tls=tls) as server:
        reload = server.certificate_reload(SystemClock())
        assert reload is not None
        async with reload:
            assert await accepts(old)
            # A pair that does not fit leaves the old one in use.
            files.certificate.write_bytes(later.certificate.read_bytes())
            await asyncio.sleep(LOOK_SECONDS * 1.5)
            assert await accepts(old)
            files.key.write_bytes(later.key.read_bytes())
            await eventually(lambda: accepts(new), 30)
            assert not await accepts(old)


@pytest.mark.spec("A80", "A83")
async def test_an_authority_of_clients_that_is_taken_out_is_trusted_no_longer(
    tmp_path: Path,
) -> None:
    files = make_certificates(tmp_path / "ours", HOSTS)
    foreign = make_certificates(tmp_path / "foreign", HOSTS)
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(files.authority.read_bytes() + foreign.authority.read_bytes())
    tls = ServerTls(
        mode=TlsMode.ENFORCING,
        certificate_file=files.certificate,
        key_file=files.key,
        client_ca_file=trusted,
    )

    async def accepts(own: CertificateFiles) -> bool:
        client = Tls(
            ca_file=files.authority,
            certificate_file=own.client_certificate,
            key_file=own.client_key,
        )
        try:
            return await connect(server, client) == 0
        except RemotingError:
            return False

    clock = FakeClock()
    async with Server(answer, tls=tls) as server:
        assert await accepts(foreign)
        # Before the reload starts: a broker reads its store in between.
        trusted.write_bytes(files.authority.read_bytes())
        reload = server.certificate_reload(clock)
        assert reload is not None
        async with reload:
            await clock.advance(LOOK_SECONDS)
            await eventually(lambda: _not(accepts(foreign)))
            assert await accepts(files)
            trusted.write_bytes(foreign.authority.read_bytes())
            await clock.advance(LOOK_SECONDS)
            await eventually(lambda: _not(accepts(files)))
            assert await accepts(foreign)


async def _not(one: Awaitable[bool]) -> bool:
    return not await one


@pytest.mark.spec("A83")
async def test_a_key_that_is_missing_for_a_while_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_certificates(tmp_path / "now", HOSTS)
    later = make_certificates(tmp_path / "later", HOSTS)
    tls = ServerTls(mode=TlsMode.ENFORCING, certificate_file=files.certificate, key_file=files.key)
    context = tls.context()
    assert context is not None
    clock = FakeClock()
    async with CertificateReload(tls, context, clock):
        before = context.stamps
        files.certificate.write_bytes(later.certificate.read_bytes())
        key = files.key.rename(tmp_path / "away.pem")
        for _ in range(3):
            await clock.advance(LOOK_SECONDS)
        await eventually(lambda: "the old one stays" in caplog.text)
        assert caplog.text.count("the old one stays") == 1
        key.write_bytes(later.key.read_bytes())
        key.rename(files.key)
        await clock.advance(LOOK_SECONDS)
        await eventually(lambda: context.stamps != before)


@pytest.mark.spec("A1")
async def test_servers_without_users_take_signed_and_unsigned_requests(tmp_path: Path) -> None:
    async with Broker(BrokerConfig(listen_port=0), tmp_path) as broker:
        for name in (None, APP):
            command = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "TBW102", "queueId": "0"})
            assert (await ask(broker.address, command, name)).code == 0
        # The C++ client sends an empty key if it has none.
        command = Command(
            RequestCode.GET_MAX_OFFSET, ext={"topic": "TBW102", "queueId": "0", "AccessKey": ""}
        )
        assert (await ask(broker.address, command, None)).code == 0


@pytest.mark.spec("A17")
async def test_a_white_listed_code_gives_no_identity(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "auth.json")
    file.change(lambda users: users.with_user(new_user(ADMIN, 0, value=ADMIN_SECRET)))
    codes = frozenset({RequestCode.GET_MAX_OFFSET})
    auth = ServerAuth(user_file=file.path, served_without_user=codes, served_without_right=codes)
    async with (
        Broker(BrokerConfig(listen_port=0), tmp_path / "broker-a", auth=auth) as broker,
        Pool(lambda peer, request: None) as pool,
    ):
        free = Command(
            RequestCode.GET_MAX_OFFSET,
            ext={acl.ACCESS_KEY: ADMIN, "topic": "TBW102", "queueId": "0"},
        )
        assert (await ask(broker.address, free, None, pool=pool)).code == 0
        other = Command(RequestCode.GET_BROKER_CONFIG, ext={acl.ACCESS_KEY: ADMIN})
        assert (await ask(broker.address, other, None, pool=pool)).code == REFUSED


@pytest.mark.spec("A69")
async def test_a_change_through_one_broker_holds_on_the_others(tmp_path: Path) -> None:
    right = Entry.parse("Topic:orders", ["Get"])
    async with guarded(tmp_path) as servers:
        auth = ServerAuth(user_file=servers.users.path)
        config = BrokerConfig(listen_port=0, broker_name="broker-b")
        async with Broker(config, tmp_path / "broker-b", auth=auth) as second:
            assert (await ask(second.address, max_offset())).code == REFUSED
            grant = Command(
                RequestCode.AUTH_CREATE_ACL,
                ext={"subject": "User:app"},
                body=b'{"policies":[{"entries":[{"resource":"%s","actions":["Get"],'
                b'"decision":"Allow"}]}]}' % str(right.resource).encode(),
            )
            answered = await ask(servers.broker.address, grant, ADMIN, ADMIN_SECRET)
            assert answered.code == 0, answered.remark
            await eventually(lambda: _served(second.address), 30)
