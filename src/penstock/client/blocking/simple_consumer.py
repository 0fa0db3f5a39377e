"""`SimpleConsumer` for ordinary, blocking Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from penstock.client.blocking.entered import Member
from penstock.client.facades.simple_consumer import SimpleConsumerFacade, invisible_seconds
from penstock.model import StoredMessage
from penstock.runtime.durations import Duration


class SimpleConsumer(Member, SimpleConsumerFacade):
    """Receives messages and acknowledges each of them; for work queues.

    ``group`` (consumerGroup); ``namesrv`` (namesrvAddr); a received message is invisible to the
    other members of the group for the time ``invisible`` (invisibleDuration); acknowledged in that
    time it is finished, else it is delivered again. More consumers than queues share the work.
    ``start_from`` is where a group without an offset begins: last (with the newest message) or
    first. ``instance`` (instanceName) as in `PushConsumer`. Needs a broker with pop consumption:
    Penstock, or RocketMQ from 5.0.
    """

    def stop(self) -> None:
        """Leave the group; idempotent. What was not acknowledged comes again in a second."""
        super().stop()

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, tag: None = None
    ) -> None:
        """Receive messages of a topic, too; the same topic again replaces the filter."""
        topic = self._want(topic, tags, sql, tag)
        if self._lease is not None:
            self._host.run(self._core.subscribe(topic, tags=tags, sql=sql))

    def receive(
        self,
        max_messages: int = 16,
        wait: Duration = "15s",
        *,
        invisible: Duration | None = None,
    ) -> list[StoredMessage]:
        """The next messages, at most 32; an empty list when none came within ``wait``.

        ``invisible`` is the time for these messages, if not that of the consumer.
        """
        return self._host.run(self._receive(max_messages, wait, invisible))

    def ack(self, message: StoredMessage) -> None:
        """The message is done: it does not come again; `ReceiptExpired` if its time was up."""
        self._host.run(self._core.acknowledge([message]))

    def ack_all(self, messages: Iterable[StoredMessage]) -> None:
        """All these messages are done, in one request for each broker."""
        self._host.run(self._core.acknowledge(list(messages)))

    def extend(self, message: StoredMessage, duration: Duration) -> None:
        """Keep a message from others for ``duration``, counted from now."""
        self._host.run(self._core.extend(message, invisible_seconds(duration)))

    def reject(self, message: StoredMessage) -> None:
        """Let a message come again at once; it counts as a failed attempt."""
        self._host.run(self._core.extend(message, 0.0))

    @contextlib.contextmanager
    def acknowledging(self, messages: Iterable[StoredMessage]) -> Iterator[list[StoredMessage]]:
        """Acknowledge messages when the block ends, reject them all when it raises."""
        # A list: the block may use up an iterator.
        given = list(messages)
        try:
            yield given
        except BaseException:
            for message in given:
                with contextlib.suppress(Exception):
                    self.reject(message)
            raise
        self.ack_all(given)
