"""Authentication of one server: its settings, and the parts that run while it serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.auth.audit import AuditFile
from penstock.auth.auth_config import check_white_list
from penstock.auth.freshness import Freshness, stamps
from penstock.auth.guard import Guard
from penstock.auth.needs import Rule
from penstock.auth.unknown_peers import MAX_MESSAGE_BYTES, UNKNOWN_SHARE, UnknownPeers
from penstock.auth.user_file import UserFile
from penstock.auth.user_source import UserSource
from penstock.protocol import acl
from penstock.protocol.commands import Command
from penstock.remoting.limits import Limits
from penstock.runtime.clock import Clock
from penstock.runtime.threads import run_to_end


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAuth:
    """Settings: a server that has them refuses every request of an unknown user."""

    user_file: Path
    cluster: str = "DefaultCluster"
    """What rights on ``Cluster:`` are about at a name server, which has no cluster of its own."""
    audit_file: Path | None = None
    audit_all: bool = False
    """Whether sends and pulls are written to the audit file, too."""
    access_key: str | None = None
    """The user that this server is for other servers, such as its name server."""
    secret_key: str | None = field(default=None, repr=False)
    served_without_user: frozenset[int] = frozenset()
    """Request codes that need no user, if they need no right."""
    served_without_right: frozenset[int] = frozenset()
    """Request codes that need no right."""
    checks_rights: bool = True
    """Whether requests need rights; otherwise every user may do everything."""
    requires_fresh: bool = False
    """Whether requests of administrators must have their time; see `freshness`."""

    def __post_init__(self) -> None:
        check_white_list(self.served_without_user, "served_without_user")
        check_white_list(self.served_without_right, "served_without_right")

    @property
    def account(self) -> tuple[str, str] | None:
        """Name and secret of the user that this server is, if it has one."""
        if self.access_key is None or self.secret_key is None:
            return None
        return self.access_key, self.secret_key

    def sign(self, command: Command) -> Command:
        """Sign a request of this server to another one, if it has a user for that."""
        if self.access_key and self.secret_key:
            ext = {**(command.ext or {}), **stamps.fields(command.code)}
            command.ext = {**ext, **acl.sign(ext, command.body, self.access_key, self.secret_key)}
        return command

    @asynccontextmanager
    async def running(
        self,
        rules: Mapping[int, Rule],
        *,
        server: str,
        clock: Clock,
        max_connections: int = Limits().max_connections,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> AsyncIterator[Guard]:
        """The guard of a server, while its users are followed and its audit file is open."""
        source = UserSource(UserFile(self.user_file), clock)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(source)
            audit: AuditFile | None = None
            if self.audit_file is not None:
                audit = AuditFile(self.audit_file)
                stack.push_async_callback(run_to_end, None, audit.close)
            guard = Guard(
                source,
                rules,
                server=server,
                clock=clock,
                audit=audit,
                audit_all=self.audit_all,
                served_without_user=self.served_without_user,
                served_without_right=self.served_without_right,
                checks_rights=self.checks_rights,
                freshness=Freshness() if self.requires_fresh else None,
                unknown_peers=UnknownPeers(
                    max(1, max_connections // UNKNOWN_SHARE), max_message_bytes
                ),
            )
            # Before the audit file is closed.
            stack.callback(guard.close)
            yield guard
