"""Users and their rights, as 5.3 and later manage them."""

from __future__ import annotations

from penstock.protocol.headers.codec import Header


class UserName(Header):
    """Which user to create, update, delete or get."""

    username: str


class ListUsers(Header):
    filter: str | None = None


class AclSubject(Header):
    """Whose rights to create, update or get: ``User:name``."""

    subject: str


class DeleteAcl(Header):
    """Take away all rights of a subject, or those for one resource."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAcls(Header):
    subject_filter: str | None = None
    resource_filter: str | None = None
