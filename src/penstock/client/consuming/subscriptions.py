"""The subscriptions of a consumer: topics with filter expressions, and a handler for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from penstock.client.consuming.listeners import HandlerFunction, Listener
from penstock.client.session.namespaces import unwrap, wrap
from penstock.errors import InvalidArgument, SubscriptionIllegal
from penstock.model import StoredMessage, Subscription
from penstock.model.names import POP_RETRY_MARKS, RETRY_PREFIX, Property, retry_topic
from penstock.model.subscription import SQL92, TAG
from penstock.protocol.filters.tags import subscription
from penstock.protocol.validation import check_topic


class Subscriptions:
    """The topics of one consumer; the group's retry topic is among them in clustering mode."""

    def __init__(
        self,
        group: str,
        *,
        with_retry: bool,
        now_ms: Callable[[], int],
        namespace: str | None = None,
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._now_ms = now_ms
        self._retry_topic = retry_topic(group)
        self._pop_retries = tuple(retry_topic(group) + mark for mark in POP_RETRY_MARKS)
        self._subscriptions: dict[str, Subscription] = {}
        self._accepted: dict[str, int] = {}
        self._listeners: dict[str, Listener] = {}
        if with_retry:
            self._subscriptions[self._retry_topic] = subscription(
                self._retry_topic, "*", TAG, now_ms()
            )

    def add(
        self,
        topic: str,
        function: HandlerFunction,
        *,
        tags: str = "*",
        sql: str | None = None,
        takes_batch: bool,
        body: object = None,
    ) -> Subscription:
        """Have ``function`` handle the messages of ``topic`` that pass the filter."""
        if topic in self._listeners:
            raise InvalidArgument(
                f"topic {topic!r} has two handlers",
                expected="one handler that distinguishes the messages",
            )
        listener = Listener(topic, function, takes_batch=takes_batch, body=body)
        wanted = self.want(topic, tags=tags, sql=sql)
        self._listeners[topic] = listener
        return wanted

    def want(self, topic: str, *, tags: str = "*", sql: str | None = None) -> Subscription:
        """Subscribe to a topic; the same topic again replaces the filter."""
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise InvalidArgument(
                f"a subscription to the retry topic {topic!r}",
                expected="the original topic: its handler gets the retried messages, too",
            )
        if sql is not None and tags != "*":
            raise SubscriptionIllegal(
                f"tags {tags!r} and sql {sql!r} for topic {topic!r}", expected="one of them"
            )
        expression, kind = (tags, TAG) if sql is None else (sql, SQL92)
        wanted = subscription(topic, expression, kind, self._now_ms())
        self._subscriptions[topic] = wanted
        self._accepted.pop(topic, None)
        return wanted

    def remove(self, topic: str) -> None:
        """End the subscription to ``topic``."""
        self._subscriptions.pop(topic, None)
        self._listeners.pop(topic, None)

    def follow_retries(self, topics: Collection[str]) -> bool:
        """Pull exactly these pop retry topics of the group, too; whether that is a change."""
        followed = [topic for topic in self._subscriptions if topic.startswith(self._pop_retries)]
        for topic in set(followed).difference(topics):
            self.remove(topic)
        missing = [topic for topic in topics if topic not in self._subscriptions]
        for topic in missing:
            self._subscriptions[topic] = subscription(topic, "*", TAG, self._now_ms())
        return bool(missing) or set(followed) != set(topics)

    def renew(self, topic: str) -> None:
        """Give a subscription a newer version, so that brokers take the next heartbeat's."""
        known = self._subscriptions.get(topic)
        if known is not None:
            newer = max(known.version + 1, self._now_ms())
            self._subscriptions[topic] = replace(known, version=newer)

    def accept(self, topic: str) -> None:
        """Brokers know the newest version; pulls may name it from now on.

        A pull that names a version its broker has not heard of yet is refused.
        """
        if topic in self._subscriptions:
            self._accepted[topic] = self._subscriptions[topic].version

    def __getitem__(self, topic: str) -> Subscription | None:
        """What pulls ask for."""
        wanted = self._subscriptions.get(topic)
        if wanted is None:
            return None
        version = self._accepted.setdefault(topic, wanted.version)
        return wanted if version == wanted.version else replace(wanted, version=version)

    def listener(self, topic: str) -> Listener | None:
        """The handler of a topic, which is named as `restore_topic` names it."""
        return self._listeners.get(topic) or self._listeners.get(wrap(self._namespace, topic))

    @property
    def has_handlers(self) -> bool:
        return bool(self._listeners)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics to be pulled, the retry topic included."""
        return tuple(self._subscriptions)

    @property
    def all(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    def is_as_handled(self, topic: str) -> bool:
        """Whether messages of a queue already have the topic their handler knows."""
        return not self._namespace and not topic.startswith(RETRY_PREFIX)

    def is_of_group(self, message: StoredMessage) -> bool:
        """Whether a message of a pop retry topic is one of this group's.

        In the first spelling, group ``g_a`` with topic ``t`` and group ``g`` with topic ``a_t``
        have one retry topic.
        """
        if not message.topic.startswith(self._pop_retries):
            return True
        return message.peek(Property.ORIGIN_GROUP) in (None, self._group)

    def restore_topic(self, message: StoredMessage) -> None:
        """Give a message the topic its handler knows: no retry topic, no namespace."""
        message.topic = restored_topic(message, self._retry_topic, self._namespace)


def restored_topic(message: StoredMessage, retry: str, namespace: str | None) -> str:
    """The topic a message was sent to, by the user's name, if it came over the topic ``retry``."""
    topic = message.topic
    if topic == retry:
        topic = message.peek(Property.RETRY_TOPIC) or topic
    for mark in POP_RETRY_MARKS:
        # What pop consumers retry goes to a retry topic for each original topic. Brokers take that
        # for the original one of a message that fails there when it is pulled.
        topic = topic.removeprefix(retry + mark)
    return unwrap(namespace, topic)


def takes_all(wanted: Subscription) -> bool:
    """Whether all that a broker brings is wanted, without a look at it."""
    return not wanted.tags or wanted.class_filter_mode or wanted.expression_type != TAG


def passes(wanted: Subscription, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """The messages whose tag is wanted.

    Brokers compare hashes only, so messages with an equal hash also arrive; they are dropped here.
    """
    if takes_all(wanted):
        return list(messages)
    return [message for message in messages if message.peek(Property.TAGS) in wanted.tags]
