"""The parts of a broker that handlers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from penstock.auth.guard import Senders
from penstock.auth.user_source import UserSource
from penstock.broker.broker_properties import BrokerProperties
from penstock.broker.config import BrokerConfig
from penstock.broker.delivery.delay_service import DelayService
from penstock.broker.delivery.filters import Filters
from penstock.broker.delivery.held_pulls import HeldPulls
from penstock.broker.hooks import SendBackHook
from penstock.broker.lock_endings import LockEndings
from penstock.broker.pop.pop_state import PopState
from penstock.broker.rate_sampler import RateSampler
from penstock.broker.settings import Settings
from penstock.broker.stats import BrokerStats
from penstock.broker.storage import Storage
from penstock.broker.tables.clients import Clients
from penstock.broker.tables.groups import Groups
from penstock.broker.tables.offsets import Offsets
from penstock.broker.tables.queue_locks import QueueLocks
from penstock.broker.tables.topic_epochs import TopicEpochs
from penstock.broker.tables.topics import Topics, template_topic
from penstock.broker.timers.timer_service import TimerService
from penstock.broker.transactions.transactions import Transactions
from penstock.model.names import DEFAULT_TOPIC
from penstock.protocol.delays import DelayLevels
from penstock.runtime.clock import Clock
from penstock.runtime.saved_tables import SavedTables


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """The parts of one broker; the broker owns them."""

    settings: Settings
    clock: Clock
    storage: Storage
    topics: Topics
    topic_epochs: TopicEpochs
    groups: Groups
    offsets: Offsets
    tables: SavedTables
    clients: Clients
    locks: QueueLocks
    lock_endings: LockEndings
    held: HeldPulls
    pop: PopState
    filters: Filters
    stats: BrokerStats
    rate_sampler: RateSampler
    broker_properties: BrokerProperties
    delay_service: DelayService
    delay_levels: DelayLevels
    timers: TimerService
    transactions: Transactions
    address: str
    """``ip:port`` that clients connect to."""
    store_host: bytes
    """The same, packed, as records carry it."""
    started_ms: int
    when_topics_known: Callable[[Callable[[], object], Collection[str]], None]
    """Calls back when the name servers know the current topics; sends the given ones again."""
    random_below: Callable[[int], int]
    """A number from 0 up to, but not including, the argument."""
    send_back_hooks: list[SendBackHook] = field(default_factory=list)
    users: UserSource | None = None
    """Without authentication there are no users."""
    senders: Senders | None = None
    """For the fast path of sends, where requests are signed: see `Guard.senders`."""
    background: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that answer a request later; kept here so that they are not collected."""

    @property
    def config(self) -> BrokerConfig:
        """The current settings of the broker; some change while it runs."""
        return self.settings.broker

    def apply_settings(self, settings: Settings) -> None:
        """What a change of settings causes; no part keeps a copy of one, all read `config`."""
        if settings.broker.auto_create_topic_enable and DEFAULT_TOPIC not in self.topics:
            self.topics.put(template_topic(settings.broker.default_topic_queue_nums))
        self.storage.store.reconfigure(settings.store)
        # Name servers know the permissions of the broker, which may have changed.
        self.topics.touch()
