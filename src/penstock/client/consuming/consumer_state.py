"""What the parts of a push consumer share."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.consuming.flow_control import FlowLimits
from penstock.client.consuming.offset_stores import OffsetStore
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.subscriptions import Subscriptions
from penstock.client.observing.statistics import ConsumerStatistics
from penstock.client.session.client_session import ClientSession
from penstock.client.session.tasks import Tasks
from penstock.client.settings import ConsumerSettings, Profile
from penstock.model import MessageQueue
from penstock.runtime.clock import Clock


@dataclass(slots=True)
class ConsumerState:
    """One consumer group of one session. Lives on the session's loop."""

    session: ClientSession
    settings: ConsumerSettings
    subscriptions: Subscriptions
    offsets: OffsetStore
    statistics: ConsumerStatistics
    tasks: Tasks
    limits: FlowLimits
    queues: dict[MessageQueue, ProcessQueue] = field(default_factory=dict)
    """What the consumer holds."""
    refused_locks: dict[MessageQueue, str] = field(default_factory=dict)
    """Queues in its share that it could not lock, and the client that has them, if it is known."""
    is_running: bool = False
    is_paused: bool = False
    paused_queues: set[MessageQueue] = field(default_factory=set)
    """Held queues that are not pulled because the program said so."""
    is_full: bool = False
    """Whether all queues together hold as much as they may."""
    is_stopping: bool = False

    @property
    def clock(self) -> Clock:
        return self.session.clock

    @property
    def profile(self) -> Profile:
        return self.session.settings.profile

    @property
    def group(self) -> str:
        return self.settings.group

    def share_limits(self) -> None:
        """Divide the limits of topics among the queues that are held now."""
        self.limits = self.settings.limits.shared(
            self.settings.topic_limit, self.settings.topic_limit_mib, len(self.queues)
        )
