"""Needs: the resource that a request touches, and the actions of which one is enough.

`request_rules` turns the ext fields and the body of a request into needs, `need_tables` has the
rule of each request code. All needs of a request must be met.

A retry topic belongs to its group: what would need a right on the topic needs SUB on the group
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.auth.model import Action, ResourceType
from penstock.errors import HeaderFieldError, ProtocolError, RequestRefused
from penstock.model.names import DLQ_PREFIX, POP_RETRY_MARKS, RETRY_PREFIX
from penstock.protocol.bodies.codec import decode_body
from penstock.remoting.dispatch import MAX_JSON_BYTES

MAX_LIST_BYTES: Final = 2 << 20
"""The longest body of a request for a whole list, as its handler bounds it."""
_SHARED_MARK: Final = "_"
"""The mark of pop retry topics that names may contain, too."""
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

    def json(self, cls: type[_Body], max_bytes: int = MAX_JSON_BYTES) -> _Body:
        """The body, read exactly as the handler reads it, so that both see the same names.

        It is read on the loop, so the bounds are those of the handlers, too.
        """
        if len(self.body) > max_bytes:
            raise ProtocolError(
                f"body of {len(self.body)} bytes",
                expected=f"at most {max_bytes}",
                hint="send it in several requests",
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


def retry_topic_needs(
    topic: str, group: str, actions: frozenset[Action], facts: Facts
) -> Iterator[Need]:
    """What a member needs for a retry topic, besides the right on its own group.

    The one of its pulls comes with the group. That of its pops of a topic needs the right on that
    topic, too; one of another group, the right on that group.
    """
    rest = topic.removeprefix(RETRY_PREFIX)
    if rest == group:
        return
    mark, popped = rest[len(group) : len(group) + 1], rest[len(group) + 1 :]
    if not rest.startswith(group) or mark not in POP_RETRY_MARKS or not popped:
        yield group_need(retry_group(topic), actions)
        return
    yield topic_need(popped, actions)
    if mark == _SHARED_MARK:
        for other in _other_groups(rest, group, facts):
            yield group_need(other, actions)


def _other_groups(rest: str, group: str, facts: Facts) -> Iterator[str]:
    """The groups whose retry topic may have the same name, since names may contain the mark.

    ``a_b_c`` may be of the group ``a_b_c``, ``a_b`` or ``a``. A longer one counts whenever it
    exists; a shorter one if there is a topic that it may have popped, or each group would need the
    right on all groups that its name begins with.
    """
    for end in (*(at for at, mark in enumerate(rest) if mark == _SHARED_MARK), len(rest)):
        other = rest[:end]
        if other == group or not other or not facts.has_group(other):
            continue
        if len(other) > len(group) or facts.has_topic(rest[end + 1 :]):
            yield other
