"""Users and their rights, on brokers with authentication: ours, and Apache's from 5.3 on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.admin.cluster_requests import ClusterRequests, on_host
from penstock.admin.reports import UserRight, UserRow
from penstock.client.requests import body_bytes
from penstock.errors import NoPermission
from penstock.protocol import bodies, headers
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.codes import RequestCode

if TYPE_CHECKING:
    from penstock.protocol.headers.codec import Header

_SUBJECT = "User:"
_EXISTS = "The user is existed"


class AccessActions(ClusterRequests):
    """Actions on users. A change is made on every master, a question is asked of the first."""

    @on_host
    async def users(self) -> list[UserRow]:
        """Every user, without secrets."""
        answer = await self.ask(
            await self._first_master(),
            RequestCode.AUTH_LIST_USER,
            headers.auth.ListUsers(),
            about="all users",
        )
        body = body_bytes(answer)
        rows = decode_body(bodies.auth.UserList, body).users if body else ()
        return [
            UserRow(row.username or "", row.user_type == "Super", row.user_status != "disable")
            for row in rows
        ]

    @on_host
    async def create_user(self, name: str, secret: str, *, is_super: bool = False) -> None:
        """Add a user without rights."""
        body = bodies.auth.UserInfo(name, secret, "Super" if is_super else "Normal")
        await self._change_user(RequestCode.AUTH_CREATE_USER, name, body)

    @on_host
    async def update_user(
        self,
        name: str,
        *,
        secret: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
    ) -> None:
        """Change a user; what is left out stays."""
        # Brokers of 5.3 change one thing at a time.
        if secret is not None:
            body = bodies.auth.UserInfo(name, password=secret)
            await self._change_user(RequestCode.AUTH_UPDATE_USER, name, body)
        if is_super is not None:
            body = bodies.auth.UserInfo(name, user_type="Super" if is_super else "Normal")
            await self._change_user(RequestCode.AUTH_UPDATE_USER, name, body)
        if is_enabled is not None:
            body = bodies.auth.UserInfo(name, user_status="enable" if is_enabled else "disable")
            await self._change_user(RequestCode.AUTH_UPDATE_USER, name, body)

    @on_host
    async def delete_user(self, name: str) -> None:
        """Remove a user and its rights."""
        await self._change_user(RequestCode.AUTH_DELETE_USER, name, None)

    @on_host
    async def rights(self, name: str | None = None) -> list[UserRight]:
        """The rights of one user, or of all."""
        subject = None if name is None else _SUBJECT + name
        answer = await self.ask(
            await self._first_master(),
            RequestCode.AUTH_LIST_ACL,
            headers.auth.ListAcls(subject_filter=subject),
            about="rights of all users" if name is None else f"rights of user {name!r}",
        )
        body = body_bytes(answer)
        found = decode_body(bodies.auth.AclList, body).acls if body else ()
        return [
            UserRight(
                (acl.subject or "").removeprefix(_SUBJECT),
                entry.resource or "",
                tuple(entry.actions),
                entry.decision or "",
                tuple(entry.source_ips),
                policy.policy_type or "Custom",
            )
            for acl in found
            if subject is None or acl.subject == subject
            for policy in acl.policies
            for entry in policy.entries
        ]

    @on_host
    async def grant(
        self,
        name: str,
        resources: Iterable[str],
        actions: Iterable[str],
        *,
        decision: str = "Allow",
        sources: Iterable[str] = (),
        policy: str = "Custom",
    ) -> None:
        """Give or deny a user rights; those it has on the same resources are replaced."""
        what, where = tuple(actions), tuple(sources)
        kind = None if policy == "Custom" else policy  # As mqadmin sends it.
        entries = tuple(
            bodies.auth.AclEntry(resource, what, where, decision) for resource in resources
        )
        acl = bodies.auth.AclInfo(_SUBJECT + name, (bodies.auth.AclPolicy(kind, entries),))
        await self._on_masters(
            RequestCode.AUTH_CREATE_ACL,
            headers.auth.AclSubject(_SUBJECT + name),
            encode_body(acl),
            f"rights of user {name!r}",
        )

    @on_host
    async def revoke(self, name: str, resource: str | None = None) -> None:
        """Take away the rights on a resource, or all."""
        await self._on_masters(
            RequestCode.AUTH_DELETE_ACL,
            headers.auth.DeleteAcl(_SUBJECT + name, resource=resource),
            b"",
            f"rights of user {name!r}",
        )

    async def _change_user(self, code: int, name: str, body: bodies.auth.UserInfo | None) -> None:
        data = b"" if body is None else encode_body(body)
        await self._on_masters(code, headers.auth.UserName(name), data, f"user {name!r}")

    async def _on_masters(self, code: int, header: Header, body: bytes, about: str) -> None:
        """One after the other, so that brokers that share their users do not collide."""
        is_first = True
        for address in (await self.masters()).values():
            try:
                await self.ask(address, code, header, body, about=about)
            except NoPermission as error:
                # The brokers of one directory share their users: the first one has added it.
                if code != RequestCode.AUTH_CREATE_USER or is_first or _EXISTS not in str(error):
                    raise
            is_first = False

    async def _first_master(self) -> str:
        return next(iter((await self.masters()).values()))
