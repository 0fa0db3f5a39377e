"""Bodies and parts of bodies that many requests share."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model import Subscription
from penstock.protocol.bodies.codec import wire
from penstock.protocol.bodies.values import WireEnum


class MessageModel(WireEnum):
    """Whether each member of a group gets every message, or one of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(WireEnum):
    """How a member of a group gets its messages."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class ConsumeFromWhere(WireEnum):
    """Where a new group starts; the names between the first and the last two are deprecated."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class RequestMode(WireEnum):
    """Whether a group pulls or pops a topic."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table; peers compare it to learn whether they must read the table again."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None
    """None: written by 4.9, which has no such number."""

    def same_as(self, other: DataVersion | None) -> bool:
        """Whether both stand for the same state of the table."""
        return other is not None and self._key() == other._key()

    def _key(self) -> tuple[int, int, int]:
        return self.state_version or 0, self.timestamp, self.counter

    def following(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, now_ms, self.state_version or 0)


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a group wants of a topic.

    ``code_set`` is what the client sent: Go sends the hashes as text, C++ sends zeros. Filter by
    the parsed expression, not by it.
    """

    topic: str
    sub_string: str
    sub_version: int
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    def subscription(self) -> Subscription:
        """The subscription as the rest of Penstock knows it."""
        return Subscription(
            self.topic,
            self.sub_string,
            self.sub_version,
            self.expression_type,
            frozenset(self.tags_set),
            frozenset(self.code_set),
            self.class_filter_mode,
        )

    @classmethod
    def from_model(cls, subscription: Subscription) -> SubscriptionData:
        """The wire form of a subscription."""
        return cls(
            subscription.topic,
            subscription.expression,
            subscription.version,
            tuple(sorted(subscription.tags)),
            tuple(sorted(subscription.tag_codes)),
            subscription.expression_type,
            subscription.class_filter_mode,
        )


@dataclass(frozen=True, slots=True)
class KvTable:
    """A table of texts: broker runtime info, a namespace of the name server's KV store."""

    table: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicList:
    """Names of topics; with the broker to ask next where the name server knows no more."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class GroupList:
    """Names of consumer groups."""

    group_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Connection:
    """One connected client."""

    client_id: str
    client_addr: str
    language: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class ProducerConnections:
    """The connected clients of a producer group."""

    connection_set: tuple[Connection, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The connected clients of a consumer group, and its subscriptions."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """One connected producer."""

    client_id: str
    remote_ip: str = field(metadata=wire("remoteIP"))
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTable:
    """Every connected producer by group."""

    data: dict[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """What one group wants of one topic, as an admin asks it."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
