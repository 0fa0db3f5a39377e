"""What push and pull consumers have in common, on their session's loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from penstock.client import requests
from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.offset_stores import OffsetStore
from penstock.client.consuming.subscriptions import Subscriptions
from penstock.client.observing.statistics import ConsumerStatistics
from penstock.client.session.client_session import ClientSession
from penstock.client.session.tasks import Tasks
from penstock.client.settings import ConsumerSettings
from penstock.model import MessageQueue
from penstock.protocol.bodies.clients import ConsumerData
from penstock.protocol.bodies.common import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)


class ConsumerCore(ABC):
    """A consumer group of one session."""

    consume_type: ClassVar[ConsumeType]

    def __init__(
        self,
        session: ClientSession,
        settings: ConsumerSettings,
        offsets: OffsetStore,
        *,
        with_retry: bool,
    ) -> None:
        self.session = session
        self.settings = settings
        self.state = ConsumerState(
            session=session,
            settings=settings,
            subscriptions=Subscriptions(
                settings.group,
                with_retry=with_retry,
                now_ms=session.clock.time_ms,
                namespace=settings.namespace,
            ),
            offsets=offsets,
            statistics=ConsumerStatistics(session.clock, settings.group),
            tasks=Tasks(f"consumer {settings.group}"),
            limits=settings.limits,
        )
        self.started_ms = 0

    async def _join_group(self) -> None:
        """Take part in the session, and have the brokers of all topics know this member."""
        self.session.start()
        await self.state.statistics.start()
        self.state.is_running = True
        await self.session.refresh_all_routes()
        await self.session.heartbeat_all()

    @property
    def group(self) -> str:
        return self.settings.group

    @property
    def topics(self) -> Collection[str]:
        return self.state.subscriptions.topics

    def consumer_data(self) -> ConsumerData:
        settings = self.settings
        return ConsumerData(
            settings.group,
            self.consume_type,
            MessageModel.CLUSTERING if settings.is_clustering else MessageModel.BROADCASTING,
            ConsumeFromWhere(settings.start_from.wire_name),
            tuple(SubscriptionData.from_model(wanted) for wanted in self.state.subscriptions.all),
            settings.unit_mode,
        )

    async def persist_offsets(self) -> None:
        if self.state.is_running:
            await self.state.offsets.persist_all(set(self.state.queues))

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        return self.state.offsets.snapshot(topic)

    @abstractmethod
    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset of a queue that is held."""

    async def seek_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at that time or later."""
        address = (await self.session.find_broker(queue)).address
        found = await self.session.calls.call(address, requests.offset_at(queue, timestamp_ms))
        await self.seek(queue, found)
