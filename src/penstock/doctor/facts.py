"""What is known about a cluster and a group at one moment; what is unknown is None.

Gathered once (`gathering`, `gathering_topics`, `members`), then only read: a check is a function of
these and nothing else. Names of topics, groups and queues are those that users see, without a
namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.admin.reports import UndecidedTransaction
from penstock.model import MessageQueue, Subscription, TopicRoute
from penstock.protocol.bodies.groups import SubscriptionGroupConfig


@dataclass(frozen=True, slots=True)
class NameserverFacts:
    """A name server, and the brokers registered there."""

    address: str
    error: str | None = None
    """Why it did not answer."""
    brokers: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Addresses by broker name and id."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker that some name server knows."""

    name: str
    broker_id: int
    address: str
    error: str | None = None
    """Why it did not answer."""
    version: str | None = None
    said_name: str | None = None
    """The name that it reports."""
    clock_ahead_ms: int | None = None
    """How far its clock is ahead of this machine's; negative: behind."""
    clock_precision_ms: int = 0
    """The true value is at most this far away."""
    permission: int | None = None
    """brokerPermission"""
    disk_used: float | None = None
    """The part of its disk that is full, 0 to 1."""
    store_damage: str | None = None
    """Messages that it found it cannot read; only our own brokers say so."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Name servers and brokers."""

    nameservers: tuple[NameserverFacts, ...]
    brokers: tuple[BrokerFacts, ...] = ()

    @property
    def masters(self) -> dict[str, str]:
        """The addresses of masters that answer, by broker name."""
        return {b.name: b.address for b in self.brokers if b.broker_id == 0 and b.error is None}

    @property
    def silent(self) -> frozenset[str]:
        """The names of masters that do not answer."""
        return frozenset(b.name for b in self.brokers if b.broker_id == 0 and b.error is not None)


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """A queue as the member that holds it sees it."""

    cached: int
    cached_mib: int
    cached_span: int
    taken: int
    """Messages being consumed in order."""
    is_locked: bool
    last_lock_ms: int
    last_pull_ms: int
    last_consume_ms: int


@dataclass(frozen=True, slots=True)
class RunningMessage:
    """A message whose handler has not returned."""

    queue: str
    offset: int
    msg_id: str
    running_ms: int


@dataclass(frozen=True, slots=True)
class HandlingFacts:
    """Rates and failures of a member's handlers, over all its topics."""

    ok_per_second: float
    """In the last minute."""
    failed_per_second: float
    failed_last_hour: int


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The newest message whose handler failed."""

    queue: str
    msg_id: str
    reason: str
    ago_ms: int


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A connected member of a group, and what it reported about itself."""

    client_id: str
    address: str
    language: str
    broker_names: tuple[str, ...]
    error: str | None = None
    """Why it reported nothing."""
    subscriptions: tuple[Subscription, ...] | None = None
    queues: Mapping[MessageQueue, HeldQueue] | None = None
    polls: bool | None = None
    """Whether its program asks for messages, instead of having handlers called."""
    pops: bool = False
    """Whether it takes messages one by one, from any queue."""
    is_orderly: bool | None = None
    model: str | None = None
    """CLUSTERING or BROADCASTING."""
    starts_from: str | None = None
    """Where it begins when there is no offset: consumeFromWhere."""
    started_ms: int | None = None
    count_limit: int | None = None
    mib_limit: int | None = None
    span_limit: int | None = None
    consume_timeout_seconds: float | None = None
    clock_ms: int | None = None
    asked_ms: int = 0
    """The local time of its report."""
    is_paused: bool | None = None
    paused_queues: tuple[str, ...] | None = None
    running: int | None = None
    """Handler calls under way."""
    longest: RunningMessage | None = None
    tells_longest: bool = False
    """Whether no `longest` means that no handler runs."""
    handling: HandlingFacts | None = None
    last_failure: LastFailure | None = None
    flow_stops: Mapping[str, int] | None = None
    stopped_queues: Mapping[str, str] | None = None
    refused_locks: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Where a queue begins and ends, and where the group stands in it."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None
    """None: the group never committed there."""
    is_committed_known: bool = True
    """False: no broker answered, or offsets are not kept on brokers."""
    last_stored_ms: int = 0
    """When the last message came, by the broker's clock; 0: none is there."""
    is_remade: bool = False
    """Whether a topic of this name was deleted before; only brokers of Penstock report it."""
    read_error: str | None = None
    """Why the group's next message cannot be read; None: it can, or there is none."""

    @property
    def lag(self) -> int:
        """Messages the group has yet to consume."""
        committed = self.committed
        if committed is None:
            return self.max_offset - self.min_offset
        return max(0, self.max_offset - max(committed, self.min_offset))


@dataclass(frozen=True, slots=True)
class SampledMessage:
    """The part of a recent message that filters use."""

    tag: str | None
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that the group subscribes to, or has an offset in."""

    name: str
    is_subscribed: bool
    routes: Mapping[str, TopicRoute | None] = field(default_factory=dict)
    """The route at each name server that answered; None: it does not know the topic."""
    route_error: str | None = None
    """Why no name server answered."""
    queues: tuple[QueueFacts, ...] = ()
    missing_on: tuple[str, ...] = ()
    """Brokers that the route names and that do not have the topic."""
    forbidden_on: tuple[str, ...] = ()
    """Brokers that do not let this group read this topic."""
    sample: tuple[SampledMessage, ...] | None = None
    """Recent messages; None: not read, or not allowed."""

    @property
    def route(self) -> TopicRoute | None:
        """The route, if any name server has it."""
        return next((route for route in self.routes.values() if route is not None), None)


@dataclass(frozen=True, slots=True)
class DeadLetterFacts:
    """The dead letters of a group."""

    count: int = 0
    newest_reason: str | None = None
    newest_msg_id: str | None = None
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class PopFacts:
    """Popped messages of a group, as its brokers count them."""

    in_flight: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Handed out and not finished, by queue."""
    expired_last_hour: int = 0
    """Not acknowledged within their invisible time."""
    late_last_hour: int = 0
    """Acknowledged after it."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Everything known about a consumer group."""

    group: str
    now_ms: int
    cluster: ClusterFacts
    configs: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    """Its settings by broker name; brokers that do not know it are left out."""
    known_groups: tuple[str, ...] = ()
    members: tuple[MemberFacts, ...] = ()
    streams: tuple[str, ...] = ()
    """The client ids of running Spark streams, which read for the group without being members."""
    model: str | None = None
    """CLUSTERING or BROADCASTING, as the brokers understood it."""
    topics: tuple[TopicFacts, ...] = ()
    retries: tuple[QueueFacts, ...] = ()
    """The queues of the group's retry topic."""
    dead_letters: DeadLetterFacts | None = None
    popped: PopFacts = PopFacts()
    transactions: tuple[UndecidedTransaction, ...] = ()
    """Transactions of its topics that are not decided."""
    timers: Mapping[str, int] = field(default_factory=dict)
    """Timer messages that wait, by topic; only of its topics."""

    @property
    def had_members(self) -> bool:
        """Whether a member ever connected, as far as that is known.

        Brokers make the retry topic of a group when its first member connects. A program that only
        commits offsets, as Spark does, leaves a group with offsets and without that topic.
        """
        has_offsets = any(q.committed is not None for t in self.topics for q in t.queues)
        return bool(self.members or self.retries) or not has_offsets

    @property
    def pops(self) -> bool:
        """Whether members take messages from any queue."""
        return any(member.pops for member in self.members)

    @property
    def is_broadcasting(self) -> bool:
        return self.model == "BROADCASTING"

    @property
    def lag(self) -> int:
        """Messages the group has yet to consume, retries left out."""
        return sum(queue.lag for topic in self.topics for queue in topic.queues)

    @property
    def retry_lag(self) -> int:
        """Failed messages whose next attempt is due."""
        return sum(queue.lag for queue in self.retries)
