"""A name server and a broker with users, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from tests.support.stage import SMALL_STORE

from penstock.auth.model import Entry, UserType
from penstock.auth.server_auth import ServerAuth
from penstock.auth.user_file import UserFile
from penstock.auth.users import new_user
from penstock.broker import Broker, BrokerConfig
from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol import acl
from penstock.protocol.commands import Command
from penstock.remoting import Limits, Pool, ServerTls, Tls

ADMIN, ADMIN_SECRET = "admin", "admin-secret-1"
APP, APP_SECRET = "app", "app-secret-1"
SERVERS, SERVERS_SECRET = "servers", "servers-secret-1"


class Access(TypedDict):
    namesrv: str
    access_key: str
    secret_key: str


@dataclass
class Guarded:
    """The running servers and their users."""

    name_server: NameServer
    broker: Broker
    users: UserFile
    data: Path

    def as_user(self, name: str = APP, secret: str = APP_SECRET) -> Access:
        return Access(namesrv=self.name_server.address, access_key=name, secret_key=secret)

    @property
    def as_admin(self) -> Access:
        return self.as_user(ADMIN, ADMIN_SECRET)

    def grant(self, *entries: Entry, name: str = APP) -> None:
        self.users.change(lambda users: users.with_entries(name, entries))

    async def take_changes(self) -> None:
        """Wait until the broker has seen what the file has."""
        source = self.broker.state.users
        assert source is not None
        await source.load()


@asynccontextmanager
async def guarded(
    data: Path,
    *entries: Entry,
    audit_all: bool = False,
    requires_fresh: bool = False,
    tls: ServerTls | None = None,
    client_tls: Tls | None = None,
    limits: Limits | None = None,
    exports_metrics: bool = False,
    settings: Mapping[str, int] | None = None,
) -> AsyncIterator[Guarded]:
    """Servers with the users admin (super), servers (super) and app with ``entries``."""
    file = UserFile(data / "auth.json")
    for name, secret, type_ in (
        ()
        if file.exists()
        else (
            (ADMIN, ADMIN_SECRET, UserType.SUPER),
            (SERVERS, SERVERS_SECRET, UserType.SUPER),
            (APP, APP_SECRET, UserType.NORMAL),
        )
    ):
        user = new_user(name, 0, value=secret, type_=type_)
        file.change(lambda users, user=user: users.with_user(user))  # type: ignore[misc]
    if entries:
        file.change(lambda users: users.with_entries(APP, entries))
    auth = ServerAuth(
        user_file=file.path,
        audit_file=data / "audit.jsonl",
        audit_all=audit_all,
        access_key=SERVERS,
        secret_key=SERVERS_SECRET,
        requires_fresh=requires_fresh,
    )
    async with NameServer(
        NameServerConfig(listen_port=0), auth=auth, tls=tls, limits=limits
    ) as name_server:
        config = BrokerConfig(
            listen_port=0,
            metrics_exporter_type="PROM" if exports_metrics else "DISABLE",
            metrics_prom_exporter_port=0,
            **(settings or {}),  # type: ignore[arg-type]  # numbers only
        )
        async with Broker(
            config,
            data / "broker-a",
            store_config=SMALL_STORE,
            name_servers=[name_server.address],
            auth=auth,
            tls=tls,
            client_tls=client_tls,
            limits=limits,
        ) as broker:
            yield Guarded(name_server, broker, file, data)


async def ask(
    address: str,
    command: Command,
    name: str | None = APP,
    secret: str = APP_SECRET,
    *,
    pool: Pool | None = None,
) -> Command:
    """Send one request, signed unless ``name`` is None."""
    if name is not None:
        proof = acl.sign(command.ext, command.body, name, secret)
        command.ext = {**(command.ext or {}), **proof}
    if pool is not None:
        return await pool.request(address, command, 10)
    async with Pool(lambda peer, request: None) as own:
        return await own.request(address, command, 10)
