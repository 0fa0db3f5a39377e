"""Users and their rights, as 5.3 and later manage them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class UserName:
    """Which user to create, update, delete or get."""

    username: str


@dataclass(slots=True)
class ListUsers:
    filter: str | None = None


@dataclass(slots=True)
class AclSubject:
    """Whose rights to create, update or get: ``User:name``."""

    subject: str


@dataclass(slots=True)
class DeleteAcl:
    """Take away all rights of a subject, or those for one resource."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


@dataclass(slots=True)
class ListAcls:
    subject_filter: str | None = None
    resource_filter: str | None = None
