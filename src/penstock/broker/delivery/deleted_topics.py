"""Messages that wait for their time while their topic is deleted."""

from __future__ import annotations

import logging

from penstock.broker.tables.topics import Topics
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX
from penstock.store import MessageStore

log = logging.getLogger(__name__)


class DeletedTopics:
    """Tells which waiting messages are not delivered; logs each topic once."""

    def __init__(self, topics: Topics, store: MessageStore) -> None:
        self._topics = topics
        self._store = store
        self._logged: set[str] = set()

    def skips(self, topic: str, log_position: int) -> bool:
        """Whether the topic of a message was deleted: delivery would create it again.

        A topic that is missing in the table need not have been deleted: after a crash the table
        may lack a topic that a send had just created, and acknowledged messages are delivered.
        """
        if (
            topic in self._topics
            or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            or not self._store.was_deleted_since(topic, log_position)
        ):
            return False
        if topic not in self._logged:
            self._logged.add(topic)
            log.warning("delayed messages of a deleted topic skipped topic=%s", topic)
        return True
