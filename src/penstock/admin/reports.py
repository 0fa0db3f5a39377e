"""The results of operator actions, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure, Property, Redrive

_ORIGIN_TOPIC_5 = "DLQ_ORIGIN_TOPIC"
_ORIGIN_ID_5 = "DLQ_ORIGIN_MESSAGE_ID"

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Partial(Generic[_Row]):
    """The rows of the brokers that answered, and why the others did not."""

    rows: tuple[_Row, ...]
    silent: Mapping[str, str]
    """Errors by broker name."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in a table of all topics."""

    name: str
    kind: str
    """``retry``, ``dead letters``, ``system``, or empty for a topic of applications."""
    read_queues: int
    """The sum over all brokers."""
    write_queues: int
    permission: int
    broker_names: tuple[str, ...]
    message_type: str
    """RocketMQ 5's ``message.type``, in lower case; empty if there is none."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker of a cluster; id 0 is the master of its name."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user of a broker with authentication; a super user has every right."""

    name: str
    is_super: bool
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class UserRight:
    """What one entry allows or denies a user."""

    user: str
    resource: str
    actions: tuple[str, ...]
    decision: str
    sources: tuple[str, ...]
    policy: str


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    committed: int
    latest: int
    lag: int
    last_timestamp: int
    """When the last message the group has consumed was stored, in ms; 0 when that is unknown."""
    in_flight: int = 0
    """Messages that were popped and are not finished; they are part of the lag."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, in one row."""

    group: str
    topics: tuple[str, ...]
    lag: int
    """Without retries."""
    retries: int
    """Failed messages whose next attempt is due."""
    in_flight: int
    behind_since: int
    """Store time of the last consumed message in the queue furthest behind, in ms; 0: unknown."""
    queues: tuple[QueueLag, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A queue in the plan of a reset: where the group stands, and where it would go."""

    queue: MessageQueue
    committed: int | None
    target: int
    latest: int

    @property
    def change(self) -> int | None:
        """How far it moves; None without a committed offset."""
        return None if self.committed is None else self.target - self.committed

    @property
    def lag(self) -> int:
        """How far the group is behind afterwards."""
        return max(0, self.latest - self.target)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages one queue has: ``min_offset`` up to, and without, ``max_offset``."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_timestamp: int
    """When the last message was stored, in ms; 0 for an empty queue."""

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class Client:
    """A connected client, and the brokers that see it."""

    client_id: str
    address: str
    language: str
    version: int
    broker_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A connected member of a consumer group, with what it reports about itself.

    What a member does not report is None.
    """

    client: Client
    queues: tuple[MessageQueue, ...] | None
    """The queues that it holds, its retries included."""
    is_orderly: bool | None


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """A stretch of a queue; go on at ``next_offset``, which is ``max_offset`` at the end."""

    messages: tuple[StoredMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter of a group. What was not recorded is None."""

    message: StoredMessage
    origin_topic: str | None
    origin_msg_id: str | None
    reason_type: str | None
    reason: str | None
    host: str | None
    attempt: int | None

    @classmethod
    def from_message(cls, message: StoredMessage) -> DeadLetterRow:
        """What the properties of a message in a dead-letter topic tell."""
        said = message.properties
        return cls(
            message,
            said.get(Property.RETRY_TOPIC) or said.get(_ORIGIN_TOPIC_5),
            said.get(Property.ORIGIN_MESSAGE_ID) or said.get(_ORIGIN_ID_5),
            said.get(Failure.TYPE),
            said.get(Failure.MESSAGE),
            said.get(Failure.HOST),
            _number(said.get(Failure.ATTEMPT)),
        )

    @property
    def attempts(self) -> int:
        """How often the group has tried it: what was recorded, else what the broker counted."""
        return self.message.reconsume_times if self.attempt is None else self.attempt

    @property
    def redrives(self) -> int:
        """How often it was redriven before it died once more."""
        return _number(self.message.properties.get(Redrive.TIMES)) or 0


@dataclass(frozen=True, slots=True)
class LetterEdit:
    """What is sent in place of a dead letter's own body, tag and keys."""

    body: bytes
    tag: str | None
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """The dead letters of a group on one broker.

    Letters from the offset ``settled`` on are pending: neither redriven nor purged.
    """

    queue: MessageQueue
    min_offset: int
    settled: int
    max_offset: int
    last_timestamp: int
    """When the last one was stored, in ms; 0 when there is none."""

    @property
    def count(self) -> int:
        """All that are still stored."""
        return self.max_offset - self.min_offset

    @property
    def pending(self) -> int:
        """Those neither redriven nor purged."""
        return self.max_offset - self.settled


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) < 10 and text.isascii() and text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedTransaction:
    """A message of a transaction that is neither committed nor rolled back."""

    msg_id: str
    """The id of the transaction, which its message has after a commit, too."""
    offset_msg_id: str
    """Where its newest copy is stored; ``resume_transaction`` takes that of one given up."""
    group: str
    """The producer group whose members are asked about it."""
    topic: str
    queue_id: int
    broker_name: str
    checks: int
    """How often a member was asked."""
    born_ms: int
    stored_ms: int
    """When its newest copy was stored, in ms."""
    is_given_up: bool
    """Whether the broker asks no more."""
    keys: tuple[str, ...]

    def at(self, broker_name: str) -> Self:
        """The same with the name of its broker."""
        return replace(self, broker_name=broker_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTimer:
    """A timer message that a broker keeps back until its time."""

    msg_id: str
    topic: str
    """Where it will be delivered."""
    queue_id: int
    broker_name: str
    due_ms: int
    stored_ms: int
    keys: tuple[str, ...]
    recall_handle: str
    """What ``recall_timer`` takes it back with."""


@dataclass(frozen=True, slots=True)
class GroupMode:
    """Whether a group pulls or pops a topic at one broker, as it was set there."""

    topic: str
    broker_name: str
    mode: str
    share: int
    """How many members share a popped queue with its owner; 0 or less: all."""
