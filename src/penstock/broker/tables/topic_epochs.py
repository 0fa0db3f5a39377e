"""Whether a topic was deleted and created again since a client learned its offsets.

A client that stays connected keeps its offsets while its topic is deleted and created again. The
offsets then mean other messages, and the client would skip as many of the new ones. The epoch of a
topic is the log position at which a topic of its name was last deleted. Our clients get it with
their offsets and return it (`extensions.TOPIC_EPOCH`), so the broker sees offsets that have become
meaningless. Other clients do not send it, and have RocketMQ's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.errors import InvalidArgument
from penstock.protocol.extensions import TOPIC_EPOCH

_MAX_DIGITS = 19


class TopicEpochs:
    """The epochs of all topics; the store saves them."""

    def __init__(self, deleted_topics: Callable[[], Mapping[str, int]]) -> None:
        self._deleted_topics = deleted_topics
        self.known: Mapping[str, int] = {}
        """The epochs that are not 0; empty in most brokers, which makes requests cheap."""
        self.refresh()

    def refresh(self) -> None:
        """Read the epochs again; called after each deletion."""
        self.known = self._deleted_topics()

    def is_outdated(self, topic: str, ext: Mapping[str, str] | None) -> bool:
        """Whether a request carries an offset of a topic that was deleted since."""
        text = ext.get(TOPIC_EPOCH) if ext else None
        if text is None:
            return False
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise InvalidArgument(
                f"{TOPIC_EPOCH} is {text[:100]!r}", expected="the number of an earlier answer"
            )
        return int(text) < self.known.get(topic, 0)

    def fields(self, topic: str) -> dict[str, str]:
        """What is added to an answer about a queue of the topic."""
        epoch = self.known.get(topic, 0)
        return {TOPIC_EPOCH: str(epoch)} if epoch else {}
