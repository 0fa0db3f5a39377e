"""Users and access rules of 5.x brokers."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.bodies.codec import whole


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user; the password is never sent back by a broker that is set up well."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, slots=True)
class UserList:
    """Users, as a bare list."""

    users: tuple[UserInfo, ...] = field(metadata=whole())


@dataclass(frozen=True, slots=True)
class AclEntry:
    """What is allowed or denied on a resource."""

    resource: str | None = None
    actions: tuple[str, ...] = ()
    source_ips: tuple[str, ...] = ()
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """Rules of one kind."""

    policy_type: str | None = None
    entries: tuple[AclEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class AclInfo:
    """The rules of one user or role."""

    subject: str | None = None
    policies: tuple[AclPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class AclList:
    """Rules of many subjects, as a bare list."""

    acls: tuple[AclInfo, ...] = field(metadata=whole())
