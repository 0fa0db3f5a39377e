"""The table of users as the guard reads it, and the changes that may be made to it.

A table is never changed: a change makes a new one, with the next generation. So a request is
judged by one consistent state, and a file that is being edited by hand never shows through.
"""

from __future__ import annotations

import secrets as random_secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.auth.evaluate import replaces
from penstock.auth.model import (
    MAX_SECRET_CHARACTERS,
    Entry,
    Policy,
    Resource,
    Secret,
    User,
    UserStatus,
    UserType,
    check_user_name,
)
from penstock.errors import InvalidArgument, NoPermission

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Users:
    """All users, by name."""

    by_name: Mapping[str, User] = field(default_factory=dict)
    generation: int = 0

    def get(self, name: str) -> User | None:
        return self.by_name.get(name)

    def require(self, name: str) -> User:
        user = self.by_name.get(name)
        if user is None:
            # RocketMQ's words; its tools show them.
            raise NoPermission(f"The user is not exist: {name[:64]}")
        return user

    # Changes

    def with_user(self, user: User) -> Users:
        """Add or replace a user; the last super user stays what it is."""
        check_user_name(user.name)
        changed = Users({**self.by_name, user.name: user}, self.generation + 1)
        return self._checked(changed, user.name)

    def created(self, user: User) -> Users:
        if user.name in self.by_name:
            raise NoPermission(f"The user is existed: {user.name[:64]}")
        if not user.secrets:
            raise NoPermission("The password can not be blank")
        return self.with_user(user)

    def without_user(self, name: str) -> Users:
        rest = {key: user for key, user in self.by_name.items() if key != name}
        return self._checked(Users(rest, self.generation + 1), name)

    def with_entries(self, name: str, entries: Iterable[Entry]) -> Users:
        """Replace the entries of the same resources, keep the others."""
        user = self.require(name)
        added: dict[tuple[Resource, Policy], list[Entry]] = {}
        for entry in entries:
            added.setdefault((entry.resource, entry.policy), []).append(entry)
        kept = [one for one in user.entries if (one.resource, one.policy) not in added]
        merged = (*kept, *(entry for group in added.values() for entry in group))
        return self.with_user(replace(user, entries=merged))

    def without_entries(
        self, name: str, resource: Resource | None = None, policy: Policy | None = None
    ) -> Users:
        """Remove the entries of a resource, or all."""
        user = self.require(name)
        policies = tuple(Policy) if policy is None else (policy,)
        kept = tuple(
            entry
            for entry in user.entries
            if not any(
                entry.policy is one if resource is None else replaces(entry, resource, one)
                for one in policies
            )
        )
        return self.with_user(replace(user, entries=kept))

    def _checked(self, changed: Users, name: str) -> Users:
        """``changed``, unless it has no super user left that can log in."""
        if self.has_super and not changed.has_super:
            raise NoPermission(
                f"{name} is the last super user",
                hint="create another one first: penstock user create NAME --super",
            )
        return changed

    @property
    def has_super(self) -> bool:
        return any(user.is_super and user.is_enabled for user in self.by_name.values())


def new_secret(now_ms: int, value: str | None = None) -> Secret:
    """A secret with a random value, or with the one given."""
    if value is None:
        value = random_secrets.token_urlsafe(SECRET_BYTES)
    elif not value.strip() or len(value) > MAX_SECRET_CHARACTERS:
        raise InvalidArgument(
            f"secret of {len(value)} characters", expected=f"1 to {MAX_SECRET_CHARACTERS}"
        )
    return Secret(random_secrets.token_hex(4), value, now_ms)


def new_user(
    name: str, now_ms: int, *, value: str | None = None, type_: UserType = UserType.NORMAL
) -> User:
    """An enabled user with one secret and no rights."""
    return User(check_user_name(name), (new_secret(now_ms, value),), type_, UserStatus.ENABLE)


def rotated(user: User, now_ms: int, *, grace_ms: int, value: str | None = None) -> User:
    """The user with a new secret; the newest of the old ones stays valid for ``grace_ms``."""
    latest = max(user.secrets, key=lambda one: one.created_ms, default=None)
    kept: tuple[Secret, ...] = ()
    if latest is not None and grace_ms > 0:
        end = now_ms + grace_ms
        expires = end if latest.expires_ms is None else min(end, latest.expires_ms)
        kept = (replace(latest, expires_ms=expires),)
    return replace(user, secrets=(*kept, new_secret(now_ms, value)))
