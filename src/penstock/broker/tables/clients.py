"""Connected consumers and producers by group, as heartbeats describe them.

Members are keyed by connection: one connection may carry several groups, and a client id may
appear on a new connection before the old one is closed. The registry only keeps tables: it returns
which groups have changed, and its caller notifies them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.auth.peer_user import user_of
from penstock.errors import NoPermission, RequestRefused
from penstock.model import Subscription
from penstock.model.subscription import EVERYTHING
from penstock.remoting import Peer

log = logging.getLogger(__name__)

CLIENT_EXPIRY_SECONDS = 120.0
BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"
MAX_GROUPS_OF_CLIENT = 4096
"""Bounds the consumer groups, and the producer groups, of one connection."""
_SHOWN_TOPICS = 5

Expression: TypeAlias = tuple[str, str]
"""Kind and text of a filter expression."""


@dataclass(slots=True)
class ClientChannel:
    """One client on one connection, as its last heartbeat described it."""

    peer: Peer
    client_id: str
    language: str
    version: int
    last_seen: float
    last_seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a consumer group and what the group subscribes to."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = CLUSTERING
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    channels: dict[Peer, ClientChannel] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    wanted: dict[Peer, Mapping[str, Expression]] = field(default_factory=dict)
    """The expressions of each member by topic, to find members that differ."""
    last_heartbeat: Peer | None = None
    has_logged_split: bool = False

    def client_ids(self) -> list[str]:
        """The client ids of the members, each once."""
        return list(dict.fromkeys(channel.client_id for channel in self.channels.values()))

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """The newest connection of a member."""
        found = [c for c in self.channels.values() if c.client_id == client_id]
        return max(found, key=lambda c: c.last_seen, default=None)

    def replace_subscriptions(self, subscriptions: Iterable[Subscription]) -> bool:
        """Apply the subscriptions of a heartbeat; True when the set of topics changed.

        A subscription gives way only to one with a larger version: two members that were
        updated one after the other must not undo each other. Topics that the heartbeat does not
        name are dropped.
        """
        latest = {subscription.topic: subscription for subscription in subscriptions}
        changed = latest.keys() != self.subscriptions.keys()
        for topic, subscription in latest.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.version > known.version:
                self.subscriptions[topic] = subscription
        for topic in self.subscriptions.keys() - latest.keys():
            del self.subscriptions[topic]
        return changed

    def compare_subscriptions(
        self, channel: ClientChannel, subscriptions: Iterable[Subscription]
    ) -> None:
        """Warn once when two members of a group have different subscriptions.

        The broker keeps one subscription per group, so such members overwrite each other's and
        skip messages. Each heartbeat is compared with the previous one of another member only:
        the cost does not depend on the number of members, and a difference between two members
        is found within two heartbeats.
        """
        wanted = {s.topic: (s.expression_type, s.expression) for s in subscriptions}
        before, self.last_heartbeat = self.last_heartbeat, channel.peer
        self.wanted[channel.peer] = wanted
        if before is None or before is channel.peer or before not in self.channels:
            return
        others, other_id = self.wanted[before], self.channels[before].client_id
        if self.has_logged_split or others == wanted or other_id == channel.client_id:
            return
        self.has_logged_split = True
        log.warning(
            "members of a group disagree and skip each other's messages; give all of them the same "
            "subscriptions, or groups of their own group=%s client=%s wants=%s client=%s wants=%s",
            self.name, other_id, _shown(others, wanted), channel.client_id, _shown(wanted, others),
        )  # fmt: skip

    def forget(self, peer: Peer) -> bool:
        """Remove a connection; True when it was a member."""
        self.wanted.pop(peer, None)
        if self.last_heartbeat is peer:
            self.last_heartbeat = None
        return self.channels.pop(peer, None) is not None


def _shown(wanted: Mapping[str, Expression], others: Mapping[str, Expression]) -> str:
    """The first topics in which one member differs from another."""
    topics = sorted(topic for topic in wanted if others.get(topic) != wanted[topic])
    shown = [f"{topic}:{wanted[topic][1] or EVERYTHING}" for topic in topics[:_SHOWN_TOPICS]]
    more = [f"and {len(topics) - len(shown)} more"] if len(topics) > len(shown) else []
    return "[" + ", ".join(shown + more) + "]"


class Clients:
    """All connected consumers and producers."""

    def __init__(self, expiry_seconds: float = CLIENT_EXPIRY_SECONDS) -> None:
        self._expiry_seconds = expiry_seconds
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, ClientChannel]] = {}
        # The groups of each connection, so that closing it costs only its own groups.
        self._consumer_groups_of: dict[Peer, set[str]] = {}
        self._producer_groups_of: dict[Peer, set[str]] = {}
        # The connections of each producer's client id, with the number of their groups.
        self._holders: dict[str, dict[Peer, int]] = {}

    # Consumers

    def register_consumer(
        self,
        group: str,
        channel: ClientChannel,
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Collection[Subscription] | None,
    ) -> bool:
        """Apply a heartbeat; True when members or topics changed.

        ``subscriptions`` is None when the heartbeat left them out as unchanged.
        """
        _need_room(self._consumer_groups_of, channel.peer, group)
        entry = self._consumers.get(group)
        if entry is None:
            entry = self._consumers[group] = ConsumerGroup(group)
        entry.consume_type = consume_type
        entry.message_model = message_model
        entry.consume_from_where = consume_from_where
        is_new = channel.peer not in entry.channels
        entry.channels[channel.peer] = channel
        self._consumer_groups_of.setdefault(channel.peer, set()).add(group)
        if subscriptions is None:
            return is_new
        entry.compare_subscriptions(channel, subscriptions)
        return entry.replace_subscriptions(subscriptions) or is_new

    def unregister_consumer(self, group: str, peer: Peer) -> bool:
        """Remove a member; True when it was one."""
        entry = self._consumers.get(group)
        if entry is None or not entry.forget(peer):
            return False
        if not entry.channels:
            del self._consumers[group]
        _forget(self._consumer_groups_of, peer, group)
        return True

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """The connected members of a group; None when there are none."""
        return self._consumers.get(group)

    def groups_of_topic(self, topic: str) -> list[str]:
        """The connected groups that subscribe to a topic."""
        return [g.name for g in self._consumers.values() if topic in g.subscriptions]

    # Producers

    def register_producer(self, group: str, channel: ClientChannel) -> None:
        """Apply a heartbeat of a producer.

        Replies are sent to a client id, so one that a connection of another user holds is refused.
        """
        peer = channel.peer
        _need_room(self._producer_groups_of, peer, group)
        self._check_holders(channel)
        channels = self._producers.setdefault(group, {})
        before = channels.get(peer)
        channels[peer] = channel
        self._hold(channel)
        if before is not None:
            self._release(before)
        self._producer_groups_of.setdefault(peer, set()).add(group)

    def _check_holders(self, channel: ClientChannel) -> None:
        user = user_of(channel.peer)
        holders = self._holders.get(channel.client_id, ())
        if any(user_of(peer) != user and not peer.is_closed for peer in holders):
            raise NoPermission(
                f"client id {channel.client_id[:255]} is that of a client of another user",
                expected="an id of its own for each client",
                hint="set another instance name",
            )

    def _hold(self, channel: ClientChannel) -> None:
        holders = self._holders.setdefault(channel.client_id, {})
        holders[channel.peer] = holders.get(channel.peer, 0) + 1

    def _release(self, channel: ClientChannel) -> None:
        holders = self._holders[channel.client_id]
        holders[channel.peer] -= 1
        if not holders[channel.peer]:
            del holders[channel.peer]
        if not holders:
            del self._holders[channel.client_id]

    def unregister_producer(self, group: str, peer: Peer) -> None:
        """Remove a producer."""
        channels = self._producers.get(group)
        channel = None if channels is None else channels.pop(peer, None)
        if channels is None or channel is None:
            return
        self._release(channel)
        if not channels:
            del self._producers[group]
        _forget(self._producer_groups_of, peer, group)

    def producer_group(self, group: str) -> list[ClientChannel]:
        """The connected members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[ClientChannel]]:
        """All connected producers by group."""
        return {group: list(channels.values()) for group, channels in self._producers.items()}

    def producer_by_client_id(self, client_id: str) -> ClientChannel | None:
        """The newest connection of a producer: where replies and checks go."""
        found = [
            channel
            for channels in self._producers.values()
            for channel in channels.values()
            if channel.client_id == client_id and not channel.peer.is_closed
        ]
        return max(found, key=lambda c: c.last_seen, default=None)

    # Leaving

    def drop_peer(self, peer: Peer) -> list[str]:
        """Remove a closed connection; return the consumer groups that lost a member."""
        for group in list(self._producer_groups_of.get(peer, ())):
            self.unregister_producer(group, peer)
        groups = sorted(self._consumer_groups_of.get(peer, ()))
        for group in groups:
            self.unregister_consumer(group, peer)
        return groups

    def expired(self, now: float) -> list[Peer]:
        """The connections without a heartbeat for too long."""
        limit = now - self._expiry_seconds
        late = {
            channel.peer: None
            for group in self._consumers.values()
            for channel in group.channels.values()
            if channel.last_seen < limit
        }
        late.update(
            (channel.peer, None)
            for channels in self._producers.values()
            for channel in channels.values()
            if channel.last_seen < limit
        )
        return list(late)


def _need_room(groups_of: Mapping[Peer, Collection[str]], peer: Peer, group: str) -> None:
    groups = groups_of.get(peer, ())
    if len(groups) >= MAX_GROUPS_OF_CLIENT and group not in groups:
        raise RequestRefused(
            f"group {group[:255]} is one more than a client may be in",
            expected=f"at most {MAX_GROUPS_OF_CLIENT} groups over one connection",
        )


def _forget(groups_of: dict[Peer, set[str]], peer: Peer, group: str) -> None:
    groups = groups_of.get(peer)
    if groups is not None:
        groups.discard(group)
        if not groups:
            del groups_of[peer]
