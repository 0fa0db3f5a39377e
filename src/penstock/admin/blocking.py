"""`Admin` for ordinary, blocking Python: each call forwarded to the coroutine of the same name."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.admin import admin
from penstock.admin.reports import (
    BrokerAddress,
    Client,
    DeadLetterQueue,
    DeadLetterRow,
    QueueLag,
    QueueRange,
    QueueSlice,
)
from penstock.client.arguments import AccessOptions, Time
from penstock.client.producing.receipts import Receipt
from penstock.model import MessageQueue, StoredMessage, Subscription, TopicRoute
from penstock.model.names import READ, WRITE
from penstock.protocol import bodies
from penstock.runtime.durations import Duration

_T = TypeVar("_T")


class Admin:
    """Looks at a cluster and changes it; connects on the first call.

    ``namesrv`` as for all clients; ``timeout`` for one request. `close`, or leaving a ``with``
    block, gives the connections back; without it they last as long as the process.
    """

    def __init__(
        self,
        *,
        namesrv: str | Iterable[str] | None = None,
        timeout: Duration = 5,
        **options: Unpack[AccessOptions],
    ) -> None:
        self._actions = admin.Admin(namesrv=namesrv, timeout=timeout, **options)

    def _run(self, action: Coroutine[Any, Any, _T]) -> _T:
        try:
            host = self._actions.host
        except BaseException:
            action.close()
            raise
        return host.run(action)

    def close(self) -> None:
        """Give the connections back; idempotent."""
        lease = self._actions.give_up()
        if lease is not None:
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------- topics

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics.

        ``internal`` adds those that brokers and groups have for themselves: system topics, retry
        and dead-letter topics.
        """
        return self._run(self._actions.topics(internal=internal))

    def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        permission: int = READ | WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Iterable[str] | None = None,
    ) -> TopicRoute:
        """Make a topic, or change it; return its route once the name servers know it.

        ``queues`` counts per broker: with two brokers there are twice as many. ``read_queues`` is
        given when a topic shrinks: first write fewer, then read fewer. ``brokers`` are names; left
        out, every master gets the topic. ``order`` also tells producers to leave a queue alone
        when its broker is away, instead of choosing another.
        """
        return self._run(
            self._actions.create_topic(
                topic,
                queues,
                read_queues=read_queues,
                permission=permission,
                order=order,
                attributes=attributes,
                brokers=brokers,
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, on every broker and at every name server."""
        self._run(self._actions.delete_topic(topic))

    def route(self, topic: str) -> TopicRoute:
        """Which brokers have a topic, at which addresses, with how many queues."""
        return self._run(self._actions.route(topic))

    def topic_config(self, topic: str) -> dict[str, bodies.topics.TopicConfig]:
        """A topic's settings by broker name."""
        return self._run(self._actions.topic_config(topic))

    def topic_stats(self, topic: str) -> list[QueueRange]:
        """What each queue of a topic holds."""
        return self._run(self._actions.topic_stats(topic))

    def topic_groups(self, topic: str) -> list[str]:
        """The groups that consume a topic, connected or not."""
        return self._run(self._actions.topic_groups(topic))

    # ------------------------------------------------------------------------------- groups

    def groups(self, *, internal: bool = False) -> list[str]:
        """The names of all consumer groups; ``internal`` adds those of RocketMQ itself."""
        return self._run(self._actions.groups(internal=internal))

    def group_config(self, group: str) -> dict[str, bodies.groups.SubscriptionGroupConfig]:
        """A group's settings by broker name; brokers that do not know it are left out."""
        return self._run(self._actions.group_config(group))

    def create_group(
        self,
        group: str,
        *,
        consume_enable: bool = True,
        consume_from_min_enable: bool = True,
        consume_broadcast_enable: bool = True,
        consume_message_orderly: bool = False,
        retry_queue_nums: int = 1,
        retry_max_times: int = 16,
        broker_id: int = 0,
        which_broker_when_consume_slowly: int = 1,
        notify_consumer_ids_changed_enable: bool = True,
    ) -> None:
        """Make a consumer group on every master, or change it; the keywords are RocketMQ's."""
        self._run(
            self._actions.create_group(
                group,
                consume_enable=consume_enable,
                consume_from_min_enable=consume_from_min_enable,
                consume_broadcast_enable=consume_broadcast_enable,
                consume_message_orderly=consume_message_orderly,
                retry_queue_nums=retry_queue_nums,
                retry_max_times=retry_max_times,
                broker_id=broker_id,
                which_broker_when_consume_slowly=which_broker_when_consume_slowly,
                notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable,
            )
        )

    def delete_group(self, group: str, *, keep_offsets: bool = False) -> None:
        """Forget a group on every broker, with its retry and dead-letter topics.

        A group that is connected comes back with its next heartbeat: stop its consumers first.
        """
        self._run(self._actions.delete_group(group, keep_offsets=keep_offsets))

    def connections(self, group: str) -> dict[str, bodies.common.ConsumerConnections]:
        """Who is connected for a group, by broker name; brokers that see nobody are left out."""
        return self._run(self._actions.connections(group))

    def clients(self, group: str) -> list[Client]:
        """The connected members of a consumer group; nobody: an empty list."""
        return self._run(self._actions.clients(group))

    def subscriptions(self, group: str) -> list[Subscription]:
        """What the connected members of a group want, as the brokers know it."""
        return self._run(self._actions.subscriptions(group))

    def producers(self, group: str) -> list[Client]:
        """The connected members of a producer group; nobody: an empty list."""
        return self._run(self._actions.producers(group))

    def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> bodies.running.ConsumerRunningInfo:
        """Everything a connected consumer knows about itself, asked through a broker it is at."""
        return self._run(self._actions.running_info(group, client_id, stacks=stacks))

    # ------------------------------------------------------------------------------ offsets

    def group_lag(self, group: str, *, topic: str | None = None) -> list[QueueLag]:
        """How far a group is behind, queue by queue, its retries included.

        Every master is asked, so the group needs no retry topic that could be found by its route.
        """
        return self._run(self._actions.group_lag(group, topic=topic))

    def offsets_at(self, topic: str, time: Time) -> dict[MessageQueue, int]:
        """Where each queue of a topic has its first message stored at ``time`` or later.

        ``"first"`` and ``"last"`` are the ends. Brokers of 4.9 search for the nearest message,
        which may be the one before: look at its timestamp where that matters.
        """
        return self._run(self._actions.offsets_at(topic, time))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: int | Time,
        *,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """Move a group in a topic, or in one queue of it; return where it stands then.

        ``to`` is ``"first"``, ``"last"`` or a time (a datetime or its text); with ``queue`` it may
        also be an offset. Connected consumers are told. Without ``force`` a group is only moved
        back, never past messages that it has not seen.
        """
        return self._run(self._actions.reset_offsets(group, topic, to, queue=queue, force=force))

    # ----------------------------------------------------------------------------- messages

    def message(self, msg_id: str, *, topic: str | None = None) -> StoredMessage:
        """The message with an id: the one its producer gave it, or the broker's offset id.

        A producer's id is looked up in ``topic``, or else in one topic after the other.
        """
        return self._run(self._actions.message(msg_id, topic=topic))

    def query(
        self,
        topic: str,
        key: str,
        *,
        count: int = 64,
        begin: Time | None = None,
        end: Time | None = None,
    ) -> list[StoredMessage]:
        """The messages of a topic with a key, oldest first: at most ``count`` of each broker."""
        return self._run(self._actions.query(topic, key, count=count, begin=begin, end=end))

    def messages(self, queue: MessageQueue, offset: int, *, count: int = 32) -> QueueSlice:
        """Read a queue from an offset on, without a group and without a trace."""
        return self._run(self._actions.messages(queue, offset, count=count))

    def consume_directly(
        self, group: str, client_id: str, msg_id: str, *, topic: str | None = None
    ) -> bodies.running.ConsumeDirectlyResult:
        """Have a connected consumer handle one stored message now, and tell how that went."""
        return self._run(self._actions.consume_directly(group, client_id, msg_id, topic=topic))

    # ------------------------------------------------------------------------- dead letters

    def dead_letter_groups(self) -> list[str]:
        """The groups that have ever given a message up."""
        return self._run(self._actions.dead_letter_groups())

    def dead_letter_queues(self, group: str) -> list[DeadLetterQueue]:
        """Where a group's dead letters are, and which of them nobody has dealt with."""
        return self._run(self._actions.dead_letter_queues(group))

    def dead_letters(
        self, group: str, *, count: int = 100, settled: bool = False
    ) -> list[DeadLetterRow]:
        """The newest messages that a group gave up on, oldest first, with the reason if known.

        ``settled`` adds those that were purged, and those before which all were redriven.
        """
        return self._run(self._actions.dead_letters(group, count=count, settled=settled))

    def redriven(
        self, group: str, letters: Iterable[DeadLetterRow], *, to: str | None = None
    ) -> set[str]:
        """The offset ids of those letters that were redriven already, to the group or to ``to``.

        Copies are found by the key index, which a broker may be configured to do without.
        """
        return self._run(self._actions.redriven(group, letters, to=to))

    def redrive(
        self, group: str, letters: Iterable[DeadLetterRow], *, to: str | None = None
    ) -> list[Receipt]:
        """Give dead letters to their group again, as if they had never been tried.

        Nobody else sees them. With ``to`` they are sent to that topic instead, where every group
        that reads it does. A letter that fails again becomes a new dead letter. What was redriven
        stays pending until `settle_dead_letters` says otherwise.
        """
        return self._run(self._actions.redrive(group, letters, to=to))

    def settle_dead_letters(
        self, group: str, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Say that all dead letters before these offsets are dealt with; return the marks.

        Without ``offsets`` that is all there are. A mark may be moved back, too.
        """
        return self._run(self._actions.settle_dead_letters(group, offsets))

    def delete_dead_letters(self, group: str) -> None:
        """Delete a group's dead-letter topic, with its mark; the next dead letter makes it anew.

        Nobody can read the letters afterwards. One that comes in meanwhile is gone as well.
        """
        self._run(self._actions.delete_dead_letters(group))

    # ------------------------------------------------------------------------------ brokers

    def cluster(self) -> list[BrokerAddress]:
        """Every registered broker, masters first within their name."""
        return self._run(self._actions.cluster())

    def broker_info(self, broker: str) -> dict[str, str]:
        """What a broker, given by name or address, says of itself: version, rates, totals, disk."""
        return self._run(self._actions.broker_info(broker))

    def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a broker, under RocketMQ's keys."""
        return self._run(self._actions.broker_config(broker))

    def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        self._run(self._actions.update_broker_config(broker, settings))
