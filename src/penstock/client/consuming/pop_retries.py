"""What members that popped have left: a member that pulls a topic pulls its pop retry topics, too.

A group that pops has a retry topic of its own for each topic. When the group changes to pulling,
messages whose receipts expire still go there. RocketMQ's clients read it in its first spelling and
only where the broker assigns; here each member that pulls does, in both spellings.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.errors import PenstockError
from penstock.model.names import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2


class PopRetries:
    """The pop retry topics that one member pulls."""

    def __init__(self, state: ConsumerState, popped_topics: Collection[str]) -> None:
        """``popped_topics`` is a live view: with these topics their retries are popped."""
        self._state = state
        self._popped_topics = popped_topics

    async def rebalance(self) -> None:
        """Subscribe to those that exist and are not popped, and to no others."""
        state = self._state
        if not state.settings.is_clustering or state.is_stopping:
            return
        wanted = [name for name in self._names() if await self._exists(name)]
        if state.subscriptions.follow_retries(wanted):
            await state.session.heartbeat_all()

    def _names(self) -> list[str]:
        group = self._state.group
        return [
            name
            for topic in self._state.subscriptions.topics
            if not topic.startswith(RETRY_PREFIX) and topic not in self._popped_topics
            for name in (pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic))
        ]

    async def _exists(self, topic: str) -> bool:
        session = self._state.session
        if topic in session.routes:
            return True
        # A Penstock broker says so. Others are asked only where a change of the mode is expected:
        # an ordinary member costs no request more.
        if topic not in session.pop_retry_topics and self._state.settings.mode != "auto":
            return False
        try:
            return await session.refresh_route(topic)
        except PenstockError:
            return False
