"""The accounts of RocketMQ 4.x, ``plain_acl.yml``, as users and rights.

An admin becomes a super user. Each permission of a topic or group becomes an entry with its name,
the two defaults become entries of the policy Default for all names. A text that is no permission is
refused: it must not turn into a right. White lists are not taken over, and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.auth.model import Action, Decision, Entry, Policy, Resource, User, UserType
from penstock.auth.users import Users, new_user
from penstock.errors import ConfigError, InvalidArgument, MissingPackage

try:
    import yaml  # type: ignore[import-untyped]  # its types are another package
except ImportError as error:
    raise MissingPackage(
        "plain_acl.yml is read with the package PyYAML, which is not installed",
        hint="pip install 'penstock[security]'",
    ) from error

_MAX_FILE_BYTES: Final = 16 << 20
_PERMISSIONS: Final[Mapping[str, tuple[Decision, frozenset[Action]]]] = {
    "DENY": (Decision.DENY, frozenset({Action.ALL})),
    "PUB": (Decision.ALLOW, frozenset({Action.PUB})),
    "SUB": (Decision.ALLOW, frozenset({Action.SUB})),
    "PUB|SUB": (Decision.ALLOW, frozenset({Action.PUB, Action.SUB})),
    "SUB|PUB": (Decision.ALLOW, frozenset({Action.PUB, Action.SUB})),
}


class ImportedUsers(NamedTuple):
    """The users of a file, and what could not be taken over."""

    users: tuple[User, ...]
    warnings: tuple[str, ...]

    def add_to(self, users: Users) -> Users:
        """Add the users; one that exists already is an error, and nothing is changed."""
        for user in self.users:
            users = users.created(user)
        return users


def read_plain_acl(path: Path, now_ms: int) -> ImportedUsers:
    """Read the file; an error names the account, never a secret."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} is longer than {_MAX_FILE_BYTES} bytes")
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise ConfigError(f"{path} is no YAML{where}", expected="a plain_acl.yml") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} has no accounts", expected="a plain_acl.yml")
    warnings = []
    if document.get("globalWhiteRemoteAddresses"):
        warnings.append("globalWhiteRemoteAddresses is not taken over: every request is signed")
    users = []
    for account in document.get("accounts") or ():
        if not isinstance(account, dict):
            raise ConfigError(f"{path} has an account that is no mapping")
        user = _user(account, now_ms)
        users.append(user)
        if account.get("whiteRemoteAddress"):
            warnings.append(f"whiteRemoteAddress of {user.name} is not taken over")
    return ImportedUsers(tuple(users), tuple(warnings))


def _user(account: Mapping[str, Any], now_ms: int) -> User:
    name, secret = account.get("accessKey"), account.get("secretKey")
    if not isinstance(name, str) or secret is None:
        raise InvalidArgument("an account without accessKey or secretKey", expected="both")
    is_admin = account.get("admin") is True
    entries = tuple(_entries(name, account))
    # An admin with lists of its own is bound by them, so it is no super user.
    type_ = UserType.SUPER if is_admin and not entries else UserType.NORMAL
    user = new_user(name, now_ms, value=str(secret), type_=type_)
    return replace(user, entries=entries)


def _entries(name: str, account: Mapping[str, Any]) -> Iterator[Entry]:
    for kind, member in (("Topic", "topicPerms"), ("Group", "groupPerms")):
        for line in account.get(member) or ():
            resource, _, permission = str(line).partition("=")
            yield _entry(name, f"{kind}:{resource.strip()}", permission, Policy.CUSTOM)
    for kind, member in (("Topic", "defaultTopicPerm"), ("Group", "defaultGroupPerm")):
        default = account.get(member)
        if default is not None and account.get("admin") is not True:
            yield _entry(name, f"{kind}:*", str(default), Policy.DEFAULT)


def _entry(name: str, resource: str, permission: str, policy: Policy) -> Entry:
    found = _PERMISSIONS.get(permission.strip().upper())
    if found is None:
        raise InvalidArgument(
            f"permission {permission[:64]!r} of {name} on {resource[:64]}",
            expected=", ".join(_PERMISSIONS),
        )
    decision, actions = found
    return Entry(Resource.parse(resource), actions, decision, (), policy)
