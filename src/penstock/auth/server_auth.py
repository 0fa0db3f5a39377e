"""Authentication of one server: its settings, and the parts that run while it serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.auth.audit import AuditFile
from penstock.auth.guard import Guard
from penstock.auth.needs import Rule
from penstock.auth.user_file import UserFile
from penstock.auth.user_source import UserSource
from penstock.protocol import acl
from penstock.protocol.commands import Command
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
    white_list: tuple[int, ...] = ()
    """Request codes that are served without a user."""

    def sign(self, command: Command) -> Command:
        """Sign a request of this server to another one, if it has a user for that."""
        if self.access_key and self.secret_key:
            proof = acl.sign(command.ext, command.body, self.access_key, self.secret_key)
            command.ext = {**(command.ext or {}), **proof}
        return command

    @asynccontextmanager
    async def running(
        self, rules: Mapping[int, Rule], *, server: str, clock: Clock
    ) -> AsyncIterator[Guard]:
        """The guard of a server, while its users are followed and its audit file is open."""
        source = UserSource(UserFile(self.user_file), clock)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(source)
            audit: AuditFile | None = None
            if self.audit_file is not None:
                audit = AuditFile(self.audit_file)
                stack.push_async_callback(run_to_end, None, audit.close)
            yield Guard(
                source,
                rules,
                server=server,
                now_ms=clock.time_ms,
                audit=audit,
                audit_all=self.audit_all,
                white_list=self.white_list,
            )
