"""Needs: the resource that a request touches, and the actions of which one is enough.

`request_rules` turns the ext fields and the body of a request into needs, `need_tables` has the
rule of each request code. All needs of a request must be met.

A retry topic belongs to its group: what would need a right on the topic needs SUB on the group
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.auth.model import Action, ResourceType
from penstock.errors import HeaderFieldError, ProtocolError, RequestRefused
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol.bodies.codec import decode_body

MAX_BODY_BYTES: Final = 16 << 20
"""The longest body that is read for the names in it; handlers have bounds of their own."""
_Body = TypeVar("_Body")


class Facts(Protocol):
    """What a server knows that decides about a need."""

    @property
    def cluster(self) -> str:
        """The name of the cluster."""

    def has_topic(self, topic: str) -> bool:
        """Whether the topic exists."""

    def has_group(self, group: str) -> bool:
        """Whether the group exists."""

    def topic_at(self, log_position: int) -> str | None:
        """The topic of the record at a position of the log."""


class Need(NamedTuple):
    """A resource, and the actions of which one is enough."""

    type: ResourceType
    name: str
    actions: frozenset[Action]
    otherwise: Need | None = None
    """Enough as well."""
    creates: bool = False
    """Whether a refusal means that the topic does not exist, since it is not created."""
    hidden_at: int | None = None
    """The log position of a message of which a refusal must not tell that it is there."""

    def __str__(self) -> str:
        return f"{'|'.join(a for a in Action if a in self.actions)} on {self.type}:{self.name}"


class Ask(NamedTuple):
    """A request as the rows see it."""

    ext: Mapping[str, str]
    body: bytes
    facts: Facts

    def field(self, name: str) -> str:
        """A field that must be there."""
        value = self.ext.get(name)
        if not value:
            raise HeaderFieldError(f"field {name!r} is missing", expected="a name")
        return value

    def json(self, cls: type[_Body]) -> _Body:
        """The body, read exactly as the handler reads it, so that both see the same names."""
        if len(self.body) > MAX_BODY_BYTES:
            raise ProtocolError(
                f"body of {len(self.body)} bytes", expected=f"at most {MAX_BODY_BYTES}"
            )
        return decode_body(cls, self.body)


def no_message_at(log_position: int) -> RequestRefused:
    """The answer to a request for a message that is not there, or must not be seen."""
    return RequestRefused(
        f"can not find message by the offset, {log_position}",
        expected="the log position of a message that is still there",
    )


Rule: TypeAlias = Callable[[Ask], Iterable[Need]]


def any_of(*actions: Action) -> frozenset[Action]:
    return frozenset(actions)


PUB: Final = any_of(Action.PUB)
SUB: Final = any_of(Action.SUB)
GET: Final = any_of(Action.GET)
UPDATE: Final = any_of(Action.UPDATE)
SUB_GET: Final = any_of(Action.SUB, Action.GET)
SUB_UPDATE: Final = any_of(Action.SUB, Action.UPDATE)


def topic_need(topic: str, actions: frozenset[Action]) -> Need:
    """The need for a topic; for a retry topic, SUB on its group."""
    if topic.startswith(RETRY_PREFIX):
        return group_need(retry_group(topic), SUB)
    if topic.startswith(DLQ_PREFIX) and actions <= SUB_GET:
        # A user who may see a group may read its dead letters.
        seen = group_need(topic.removeprefix(DLQ_PREFIX), GET)
        return Need(ResourceType.TOPIC, topic, actions, seen)
    return Need(ResourceType.TOPIC, topic, actions)


def retry_group(topic: str) -> str:
    """The group of a retry topic; those of pop are named ``group+topic`` or ``group_topic``."""
    return topic.removeprefix(RETRY_PREFIX).partition("+")[0]


def group_need(group: str, actions: frozenset[Action]) -> Need:
    return Need(ResourceType.GROUP, group, actions)


def belongs_to(topic: str, group: str, facts: Facts) -> bool:
    """Whether a retry topic is one of the group: of its pulls, or of its pops of a topic.

    Names have no plus sign, but they may have the other separator of pop: ``%RETRY%a_b`` is that of
    the group ``a_b``, if there is one.
    """
    rest = topic.removeprefix(RETRY_PREFIX)
    if rest == group or rest.startswith(group + "+"):
        return True
    return rest.startswith(group + "_") and not facts.has_group(rest)
