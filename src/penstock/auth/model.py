"""Users, secrets and the entries that grant or deny rights; strict parsing of their texts.

The texts are those of RocketMQ's ACL 2.0, as mqadmin sends them and as the user file has them:

    resource   *   Topic:*   Topic:order*   Topic:orders   Group:...   Cluster:...
    actions    All Pub Sub Create Update Delete Get List
    decision   Allow Deny

A word may be written in any case; names are exact. What cannot be understood is refused with the
words that exist, because a right that is dropped in silence grants too much or too little.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

from penstock.errors import InvalidArgument

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_NAME_CHARACTERS: Final = 255
MAX_SECRET_CHARACTERS: Final = 1024
_ANY_NAME: Final = "*"


class ResourceType(StrEnum):
    """What a right is about."""

    ANY = "Any"
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """What a user may do with a resource."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    """Whether an entry grants or denies."""

    ALLOW = "Allow"
    DENY = "Deny"


class Policy(StrEnum):
    """Entries of DEFAULT count only where none of CUSTOM applies."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class UserType(StrEnum):
    """A super user passes every check of rights."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """A disabled user is refused like an unknown one."""

    ENABLE = "enable"
    DISABLE = "disable"


_Word = TypeVar("_Word", bound=StrEnum)


def parse_word(words: type[_Word], text: str) -> _Word:
    """The word that ``text`` is, in any case."""
    for word in words:
        if word.value.lower() == text.strip().lower():
            return word
    kind = {"ResourceType": "resource type", "UserType": "user type", "UserStatus": "user status"}
    raise InvalidArgument(
        f"{kind.get(words.__name__, words.__name__.lower())} {text[:64]!r}",
        expected="one of " + ", ".join(words),
    )


@dataclass(frozen=True, slots=True)
class Resource:
    """A pattern of names: one name, all that begin with a prefix, or all."""

    type: ResourceType
    name: str = ""
    """The name or the prefix; empty for all names."""
    is_prefix: bool = False

    @property
    def is_literal(self) -> bool:
        return bool(self.name) and not self.is_prefix

    @classmethod
    def parse(cls, text: str) -> Resource:
        text = text.strip()
        if text == _ANY_NAME:
            return cls(ResourceType.ANY)
        kind, colon, name = text.partition(":")
        expected = "*, or Topic:, Group: or Cluster: with a name, a prefix* or *"
        if not colon:
            raise InvalidArgument(f"resource {text[:64]!r} without a type", expected=expected)
        type_ = parse_word(ResourceType, kind)
        if type_ is ResourceType.ANY or not name:
            raise InvalidArgument(f"resource {text[:64]!r}", expected=expected)
        if _ANY_NAME in name[:-1] or len(name) > MAX_NAME_CHARACTERS:
            raise InvalidArgument(
                f"resource {text[:64]!r}",
                expected=f"* at the end only, at most {MAX_NAME_CHARACTERS} characters",
            )
        if name.endswith(_ANY_NAME):
            return cls(type_, name[:-1], is_prefix=len(name) > 1)
        return cls(type_, name)

    def __str__(self) -> str:
        if self.type is ResourceType.ANY:
            return _ANY_NAME
        if not self.name:
            return f"{self.type}:*"
        return f"{self.type}:{self.name}{'*' if self.is_prefix else ''}"

    def matches(self, type_: ResourceType, name: str) -> bool:
        """Whether the pattern covers a resource."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not type_:
            return False
        return name.startswith(self.name) if self.is_prefix else self.name in ("", name)


@dataclass(frozen=True, slots=True)
class Entry:
    """Grants or denies actions on the resources of one pattern."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision = Decision.ALLOW
    sources: tuple[Network, ...] = ()
    """Where the user may connect from; empty: from anywhere."""
    policy: Policy = Policy.CUSTOM

    @classmethod
    def parse(
        cls,
        resource: str,
        actions: Iterable[str],
        decision: str = Decision.ALLOW,
        sources: Iterable[str] = (),
        policy: str = Policy.CUSTOM,
    ) -> Entry:
        words = frozenset(parse_word(Action, action) for action in actions)
        if not words:
            raise InvalidArgument(
                f"no action on {resource[:64]!r}", expected="one or more of " + ", ".join(Action)
            )
        return cls(
            Resource.parse(resource),
            words,
            parse_word(Decision, decision),
            tuple(parse_network(source) for source in sources),
            parse_word(Policy, policy),
        )

    def covers_actions(self, actions: Iterable[Action]) -> bool:
        """Whether one of ``actions`` is among those of the entry."""
        return Action.ALL in self.actions or not self.actions.isdisjoint(actions)

    def covers_source(self, address: Address | None) -> bool:
        """Whether the entry counts for a peer at ``address``."""
        return not self.sources or (
            address is not None
            and any(
                address.version == network.version and address in network
                for network in self.sources
            )
        )

    def __str__(self) -> str:
        actions = "|".join(action for action in Action if action in self.actions)
        where = f" from {', '.join(map(str, self.sources))}" if self.sources else ""
        default = " (default)" if self.policy is Policy.DEFAULT else ""
        return f"{self.decision} {actions} {self.resource}{where}{default}"


def parse_network(text: str) -> Network:
    """An address or a network such as 10.0.0.0/8, in any spelling of IPv6."""
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise InvalidArgument(
            f"source address {text[:64]!r}: {error}", expected="an address, or one with /bits"
        ) from error
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        return ipaddress.ip_network(f"{mapped}/{network.prefixlen - _MAPPED_BITS}")
    return network


_MAPPED_BITS: Final = 96


def parse_address(text: str) -> Address | None:
    """The address of a peer; ``::ffff:a.b.c.d`` is an IPv4 address. None if it is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret of a user. Two may be valid at a time, so that programs can change over."""

    id: str
    value: str = field(repr=False)
    """The secret itself, or ``env:NAME`` or ``file:PATH``, where it is kept."""
    created_ms: int = 0
    expires_ms: int | None = None

    def is_valid(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What a user may use of each server; None: as much as all together."""

    connections: int | None = None
    requests: int | None = None
    """A second."""
    bytes: int | None = None
    """Of requests, a second."""
    creations: int | None = None
    """Topics and groups, an hour."""

    @property
    def has_rates(self) -> bool:
        """Whether requests are counted."""
        return self.requests is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class User:
    """A user, who is known by an access key."""

    name: str
    secrets: tuple[Secret, ...] = ()
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    limits: UserLimits = UserLimits()
    entries: tuple[Entry, ...] = ()

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE


def check_user_name(name: str) -> str:
    """The name, if it can be one."""
    if not name.strip():
        raise InvalidArgument("the username is blank", expected="a name")
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        raise InvalidArgument(
            f"username {name[:64]!r}",
            expected=f"at most {MAX_NAME_CHARACTERS} printable characters, no blanks around them",
        )
    return name
