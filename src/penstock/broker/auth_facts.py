"""What a broker knows that decides about rights."""

from __future__ import annotations

from typing import Final

from penstock.broker.state import BrokerState
from penstock.errors import ProtocolError
from penstock.model.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    Property,
)
from penstock.model.properties import get_property
from penstock.protocol.records.codec import decode_record

# The broker parks messages here and keeps their real topic; elsewhere a sender may have set it.
_PARKING_TOPICS: Final = frozenset(
    {HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_GIVEN_UP_TOPIC}
)


class BrokerFacts:
    """See `penstock.auth.needs.Facts`."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @property
    def cluster(self) -> str:
        return self._state.config.broker_cluster_name

    def has_topic(self, topic: str) -> bool:
        return topic in self._state.topics

    def has_group(self, group: str) -> bool:
        return self._state.groups.get(group) is not None

    def topic_at(self, log_position: int) -> str | None:
        found = self._state.storage.record_at(log_position)
        if found is None:
            return None
        try:
            record = decode_record(found)
        except ProtocolError:
            return None
        if record.topic in _PARKING_TOPICS:
            real = get_property(record.properties, Property.REAL_TOPIC.encode())
            if real:
                return real.decode("utf-8", "replace")
        return record.topic
