"""What the endpoint has to know of topics and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.model.names import READ, WRITE
from penstock.protocol.bodies.groups import GroupRetryPolicy, RetryPolicyType
from penstock.proxy.wire.codes import MessageType, Permission

MIXED: Final = "MIXED"
_MIXED_TYPES: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
CUSTOMIZED_DELAYS: Final = tuple(
    [1, 5, 10, 30] + [60 * minutes for minutes in (*range(1, 11), 20, 30)] + [3600, 7200]
)
"""Seconds: the delays of a group without any of its own."""
_EXPONENTIAL: Final = (5.0, 7200.0, 2.0)


class Queue(NamedTuple):
    """One queue of a topic."""

    broker_name: str
    queue_id: int
    permission: Permission


@dataclass(frozen=True, slots=True)
class TopicAtBroker:
    """A topic as one broker has it."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & READ) and self.read_queues > 0

    def queues(self) -> list[Queue]:
        """Its queues; ids count up: those that can only be read or written, then all others."""
        can_read, can_write = bool(self.perm & READ), bool(self.perm & WRITE)
        read, write = self.read_queues * can_read, self.write_queues * can_write
        if not can_read and not can_write:
            kinds = [Permission.NONE] * max(1, self.read_queues, self.write_queues)
        else:
            both = min(read, write)
            kinds = [Permission.READ] * (read - both) + [Permission.WRITE] * (write - both)
            kinds += [Permission.READ_WRITE] * both
        return [Queue(self.broker_name, index, kind) for index, kind in enumerate(kinds)]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic: its type, and where it is."""

    name: str
    message_type: str
    """As the attribute of the topic has it; empty means NORMAL."""
    brokers: Sequence[TopicAtBroker]
    writable: Sequence[tuple[str, int]] = field(init=False, compare=False)
    """The queues that messages are sent to: broker and id, in order. Each send needs them."""

    def __post_init__(self) -> None:
        queues = sorted(
            (at.broker_name, queue_id)
            for at in self.brokers
            if at.perm & WRITE
            for queue_id in range(at.write_queues)
        )
        object.__setattr__(self, "writable", queues)

    def accepted_types(self) -> Sequence[MessageType]:
        """The types of messages that the topic takes."""
        if self.message_type == MIXED:
            return _MIXED_TYPES
        try:
            return (MessageType[self.message_type or MessageType.NORMAL.name],)
        except KeyError:
            return (MessageType.UNSPECIFIED,)

    def accepts(self, message_type: MessageType) -> bool:
        """Whether messages of a type may be sent to it."""
        return self.message_type == MIXED or message_type in self.accepted_types()

    def readable(self) -> list[TopicAtBroker]:
        """The brokers where it can be read."""
        return [at for at in self.brokers if at.is_readable]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group: how it consumes and how long its failed messages wait."""

    name: str
    is_fifo: bool = False
    max_attempts: int = 17
    policy: GroupRetryPolicy | None = None

    @property
    def is_exponential(self) -> bool:
        return self.policy is not None and self.policy.type is RetryPolicyType.EXPONENTIAL

    def exponential(self) -> tuple[float, float, float]:
        """Seconds of the first and the longest delay, and the factor between two delays."""
        found = None if self.policy is None else self.policy.exponential_retry_policy
        if found is None:
            return _EXPONENTIAL
        return found.initial / 1000, found.max / 1000, float(found.multiplier)

    def customized(self) -> Sequence[float]:
        """Seconds of each delay; the last one is repeated."""
        found = None if self.policy is None else self.policy.customized_retry_policy
        if found is None or not found.next:
            return CUSTOMIZED_DELAYS
        return [delay / 1000 for delay in found.next]

    def delay_after(self, attempt: int) -> float:
        """Seconds that a message waits after its failed delivery number ``attempt``."""
        if self.is_exponential:
            initial, longest, factor = self.exponential()
            try:
                return min(initial * factor ** min(max(0, attempt - 1), 64), longest)
            except OverflowError:
                return longest
        delays = self.customized()
        return delays[min(max(1, attempt), len(delays)) - 1]
