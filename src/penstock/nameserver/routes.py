"""Who the brokers are and where topics live: the tables of a name server.

    brokers   broker name           -> cluster, {broker id -> address}
    topics    topic                 -> {broker name -> queues and permission}
    live      (cluster, address)    -> when it was last heard of, what it said then, its connection

and three indexes, so that a broker that comes or goes costs only what it has itself:

    members       broker name  -> {broker id -> its key in live}
    topics of     broker name  -> its topics
    connections   connection   -> the keys of what registered last over it

Plain and synchronous: the caller passes the time and the connection, and closes what expired.
A broker is known exactly as long as it is live, a broker name as long as it has an address, and a
topic as long as a broker name has queues of it.

A registration only adds. A broker that created a topic sends that topic alone, so what it does
not mention stays until the topic is deleted here or the broker leaves. Queue data is taken from
the master, or from the slave with the lowest id where the broker says that slaves may act as
master; it is replaced only when the broker's data version changed, so that write permission
wiped by an operator stays wiped meanwhile.

``generation`` changes with every change that a route, or the list of brokers, can show:
encoded answers may be kept as long as it stays the same.

Where brokers have users, a name that is live belongs to its cluster, and each of its brokers to the
user that registered it, as long as the connection of that broker lasts.

Any peer may register, so brokers and routes have a bound. At the bound a new broker or topic is
refused; what is known stays, and is heard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

from penstock.errors import NoPermission, RequestRefused
from penstock.model import BrokerRoute, QueueRoute, TopicRoute
from penstock.model.names import READ, WRITE
from penstock.model.route import MASTER_ID
from penstock.nameserver.broker_registration import (
    BrokerRegistration,
    LiveBroker,
    RegisterOutcome,
    RegisterResult,
    VersionAnswer,
)
from penstock.protocol.bodies.common import DataVersion, TopicList
from penstock.protocol.bodies.routes import BrokerData, BrokerMemberGroup, ClusterInfo, MemberGroup

UNIT = 1
UNIT_SUBSCRIPTION = 2
MAX_BROKERS = 4096
MAX_ROUTES = 1 << 19
"""Pairs of a topic and a broker name. Twenty brokers may have 26,000 topics each; about 150 MB."""

_Key = tuple[str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")
_T = TypeVar("_T")


class RouteTable:
    """The tables; see the module's docstring for their laws."""

    def __init__(
        self,
        *,
        refuse_single_topic_first: bool = True,
        delete_unmentioned_topics: bool = False,
        support_acting_master: bool = False,
        max_brokers: int = MAX_BROKERS,
        max_routes: int = MAX_ROUTES,
    ) -> None:
        """The options are 5.x's defaults; 4.9 takes a first registration with one topic."""
        self._max_brokers = max_brokers
        self._max_routes = max_routes
        self._refuse_single_topic_first = refuse_single_topic_first
        self._delete_unmentioned_topics = delete_unmentioned_topics
        self._support_acting_master = support_acting_master
        self._brokers: dict[str, BrokerRoute] = {}
        self._topics: dict[str, dict[str, QueueRoute]] = {}
        self._live: dict[_Key, LiveBroker] = {}
        self._members: dict[str, dict[int, _Key]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        self._connections: dict[object, dict[_Key, None]] = {}
        self._routes = 0
        self._filter_servers: dict[str, tuple[str, ...]] = {}
        self.generation = 0

    # Brokers come and go --------------------------------------------------------------------------

    def register(self, registration: BrokerRegistration, now_ms: int) -> RegisterResult:
        """Take in what a broker says about itself.

        Raises `RequestRefused` if there is no room for it, `NoPermission` if it would take the
        place of a live broker of others.
        """
        key = registration.cluster, registration.address
        if registration.owner is not None:
            self._check_owner(key, registration)
        self._need_room(key, registration, now_ms)
        former = self._live.get(key)
        if former is not None and former.broker_name != registration.broker_name:
            former = None
        holder = self._holder_of_id(registration)
        if holder is None and self._is_increment(registration):
            return RegisterResult(RegisterOutcome.REFUSED)
        if holder is not None and holder.key != key:
            if holder.state_version > registration.state_version:
                # A former master that does not know yet that it was replaced.
                self._drop(key)
                return RegisterResult(RegisterOutcome.IGNORED)
            self._forget(holder)
            self._filter_servers.pop(holder.address, None)
        if former is None:
            # The address may belong to a broker that had another name.
            self._drop(key)
        version = registration.topics.data_version
        is_news = holder is None or former is None or not version.same_as(former.version)
        self._put_live(LiveBroker.of(registration, now_ms))
        self._put_broker(registration)
        if self._gives_queue_data(registration):
            self._take_topics(registration, everything=is_news)
        self._put_filter_servers(registration)
        return self._applied(registration)

    def heartbeat(self, cluster: str, address: str, now_ms: int) -> bool:
        """Note that a broker is alive; False if no broker of that address has registered."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        self._live[cluster, address] = live._replace(heard_ms=now_ms)
        return True

    def query_data_version(
        self, cluster: str, address: str, version: DataVersion, now_ms: int
    ) -> VersionAnswer:
        """Whether a broker must register again; asking counts as a heartbeat."""
        self.heartbeat(cluster, address, now_ms)
        live = self._live.get((cluster, address))
        if live is None:
            return VersionAnswer(True, None)
        return VersionAnswer(not version.same_as(live.version), live.version)

    def unregister(self, cluster: str, broker_name: str, address: str) -> bool:
        """A broker leaves; False if it was not there under that name."""
        live = self._live.get((cluster, address))
        if live is None or live.broker_name != broker_name:
            return False
        self._drop((cluster, address))
        return True

    def connection_lost(self, connection: object) -> list[LiveBroker]:
        """Remove the brokers that registered last over this connection; return them."""
        return self._drop_all(self._live[key] for key in self._connections.get(connection, ()))

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Remove the brokers not heard of for too long; their connections are to be closed."""
        return self._drop_all(
            live for live in self._live.values() if live.heard_ms + live.timeout_ms < now_ms
        )

    def live_brokers(self) -> list[LiveBroker]:
        """Every broker known at the moment."""
        return list(self._live.values())

    # What clients and tools ask -------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Where a topic's queues are; None if no broker that is known has it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        brokers = [self._brokers[name] for name in queues]
        if self._support_acting_master:
            brokers = [_with_acting_master(b, queues[b.broker_name]) for b in brokers]
        servers = self._filter_servers
        return TopicRoute(
            tuple(queues.values()),
            tuple(brokers),
            filter_servers={
                address: servers[address]
                for broker in brokers
                for address in broker.addresses.values()
                if address in servers
            },
        )

    def cluster_info(self) -> ClusterInfo:
        """Every broker, and the broker names of each cluster."""
        return ClusterInfo(
            {name: BrokerData.from_model(broker) for name, broker in self._brokers.items()},
            {cluster: tuple(names) for cluster, names in self._clusters().items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The brokers of one broker name; empty if it is unknown."""
        broker = self._brokers.get(broker_name)
        addresses = dict(sorted(broker.addresses.items())) if broker else {}
        return BrokerMemberGroup(MemberGroup(cluster, broker_name, addresses))

    def topics(self) -> TopicList:
        """Every topic."""
        return TopicList(tuple(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """The topics that have queues in a cluster."""
        names = self._clusters().get(cluster, {}).keys()
        return self._topics_where(lambda queues: not names.isdisjoint(queues))

    def system_topics(self) -> TopicList:
        """The topics named like clusters and brokers, and a broker that knows the rest."""
        clusters = self._clusters()
        listed = dict.fromkeys(clusters) | {n: None for names in clusters.values() for n in names}
        address = next((live.address for live in self._live.values()), None)
        return TopicList(tuple(listed), address)

    def topics_with_flags(self, set_flags: int = 0, clear_flags: int = 0) -> TopicList:
        """The topics whose system flag has these bits set and those clear, for unit topics."""
        return self._topics_where(
            lambda queues: any(
                q.topic_sys_flag & set_flags == set_flags and not q.topic_sys_flag & clear_flags
                for q in queues.values()
            )
        )

    # What operators change ------------------------------------------------------------------------

    def wipe_write_permission(self, broker_name: str) -> int:
        """Stop producers from using a broker; how many topics that concerns."""
        return self._change_permission(broker_name, lambda permission: permission & ~WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let producers use a broker again; how many topics that concerns."""
        return self._change_permission(broker_name, lambda permission: READ | WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forget a topic, or its queues in one cluster; False if there was nothing to forget."""
        if cluster is None:
            names: Iterable[str] = list(self._topics.get(topic, ()))
        else:
            clusters = self._clusters()
            if cluster not in clusters and topic in clusters:
                # The admin tool of 4.9 hands the two over the wrong way round.
                topic, cluster = cluster, topic
            names = clusters.get(cluster, {})
        return any([self._remove_queue(topic, name) for name in names])

    def register_topic(self, topic: str, queues: Iterable[QueueRoute]) -> bool:
        """Make a topic known before its broker registers again; only of brokers that are known."""
        queues = list(queues)
        if not queues or any(queue.broker_name not in self._brokers for queue in queues):
            return False
        known = self._topics.get(topic, {})
        self._need_routes(sum(queue.broker_name not in known for queue in queues))
        for queue in queues:
            self._put_queue(topic, queue)
        return True

    # The tables -----------------------------------------------------------------------------------

    def _holder_of_id(self, registration: BrokerRegistration) -> LiveBroker | None:
        """Who has the broker id at the moment: the same broker, or another it replaces."""
        key = self._members.get(registration.broker_name, {}).get(registration.broker_id)
        return None if key is None else self._live[key]

    def _check_owner(self, key: _Key, registration: BrokerRegistration) -> None:
        """Refuse a broker that would take over a name, an id or an address of others.

        The right on a cluster was checked for the cluster that the broker names, so it must not
        reach brokers of another one.
        """
        name = registration.broker_name
        if any(cluster != registration.cluster for cluster, _ in self._members_of(name)):
            raise NoPermission(
                f"broker {name[:255]} is live in another cluster",
                expected=f"a name that is free, or cluster {self._brokers[name].cluster}",
                hint="give the broker another name, or stop the one that has it",
            )
        for rival in (self._holder_of_id(registration), self._live.get(key)):
            if (
                rival is not None
                and rival.owner != registration.owner
                and rival.connection is not registration.connection
            ):
                raise NoPermission(
                    f"broker {rival.broker_name[:255]} at {rival.address[:255]} is live, and "
                    "another user has registered it",
                    expected=f"another name and address than those of id {rival.broker_id}",
                    hint="stop that broker first, or register with its user",
                )

    def _members_of(self, broker_name: str) -> Iterable[_Key]:
        return self._members.get(broker_name, {}).values()

    def _need_room(self, key: _Key, registration: BrokerRegistration, now_ms: int) -> None:
        live = self._live.get(key)
        if live is None and len(self._live) >= self._max_brokers:
            raise RequestRefused(
                f"no room for broker {registration.broker_name} at {registration.address}",
                expected=f"at most {self._max_brokers} brokers at a name server",
            )
        table = registration.topics.topic_config_table
        if self._routes + len(table) <= self._max_routes:
            return
        if live is not None and live.broker_name == registration.broker_name:
            # The broker is alive, even if its new topics are refused.
            self._live[key] = live._replace(heard_ms=now_ms)
        known = self._topics_of.get(registration.broker_name, {})
        self._need_routes(sum(topic not in known for topic in table))

    def _need_routes(self, new: int) -> None:
        if new and self._routes + new > self._max_routes:
            raise RequestRefused(
                f"no room for {new} more topics of a broker, there are {self._routes}",
                expected=f"at most {self._max_routes} at a name server, counted for each broker",
                hint="delete unused topics, or run a name server for each cluster",
            )

    def _is_increment(self, registration: BrokerRegistration) -> bool:
        """One topic alone: a broker sends that after it created it, never as its whole table."""
        return self._refuse_single_topic_first and len(registration.topics.topic_config_table) == 1

    def _gives_queue_data(self, registration: BrokerRegistration) -> bool:
        if registration.broker_id == MASTER_ID:
            return True
        # A slave from before 5.0 never speaks for its master.
        lowest = min(self._brokers[registration.broker_name].addresses)
        return registration.enable_acting_master is not None and registration.broker_id == lowest

    def _applied(self, registration: BrokerRegistration) -> RegisterResult:
        if registration.broker_id != MASTER_ID:
            master = self._brokers[registration.broker_name].master
            live = self._live.get((registration.cluster, master)) if master else None
            if live is not None:
                return RegisterResult(RegisterOutcome.APPLIED, master, live.ha_address)
        return RegisterResult(RegisterOutcome.APPLIED)

    def _put_broker(self, registration: BrokerRegistration) -> None:
        broker = BrokerRoute(
            registration.broker_name,
            registration.cluster,
            self._addresses_of(registration.broker_name),
            bool(registration.enable_acting_master),
            registration.zone_name,
        )
        if self._brokers.get(registration.broker_name) != broker:
            self._brokers[registration.broker_name] = broker
            self.generation += 1

    def _addresses_of(self, broker_name: str) -> dict[int, str]:
        return {
            broker_id: address
            for broker_id, (_, address) in self._members.get(broker_name, {}).items()
        }

    def _put_filter_servers(self, registration: BrokerRegistration) -> None:
        if self._filter_servers.get(registration.address, ()) == registration.filter_servers:
            return
        self.generation += 1
        if registration.filter_servers:
            self._filter_servers[registration.address] = registration.filter_servers
        else:
            del self._filter_servers[registration.address]

    def _take_topics(self, registration: BrokerRegistration, *, everything: bool) -> None:
        """Queue data from a broker: of all topics it mentions, or of those not known from it."""
        name = registration.broker_name
        table = registration.topics.topic_config_table
        # Not from an increment: it mentions one topic and means all the others, too.
        if self._delete_unmentioned_topics and len(table) > 1:
            for topic in list(self._topics_of.get(name, ())):
                if topic not in table:
                    self._remove_queue(topic, name)
        # While a slave acts as master its queues can be read, not written.
        acts = registration.broker_id != MASTER_ID and registration.enable_acting_master
        allowed = ~WRITE if acts else ~0
        for topic, config in table.items():
            if everything or name not in self._topics.get(topic, ()):
                self._put_queue(
                    topic,
                    QueueRoute(
                        name,
                        config.read_queue_nums,
                        config.write_queue_nums,
                        config.perm & allowed,
                        config.topic_sys_flag,
                    ),
                )

    def _put_queue(self, topic: str, queue: QueueRoute) -> None:
        queues = self._topics.setdefault(topic, {})
        before = queues.get(queue.broker_name)
        if before == queue:
            return
        if before is None:
            self._topics_of.setdefault(queue.broker_name, {})[topic] = None
            self._routes += 1
        queues[queue.broker_name] = queue
        self.generation += 1

    def _remove_queue(self, topic: str, broker_name: str) -> bool:
        queues = self._topics.get(topic, {})
        if queues.pop(broker_name, None) is None:
            return False
        if not queues:
            del self._topics[topic]
        _remove(self._topics_of, broker_name, topic)
        self._routes -= 1
        self.generation += 1
        return True

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(broker_name, {})
        for topic in topics:
            queue = self._topics[topic][broker_name]
            permission = change(queue.permission)
            self._put_queue(topic, dataclasses.replace(queue, permission=permission))
        return len(topics)

    def _drop_all(self, lost: Iterable[LiveBroker]) -> list[LiveBroker]:
        lost = list(lost)
        for live in lost:
            self._drop(live.key)
        return lost

    def _put_live(self, live: LiveBroker) -> None:
        before = self._live.get(live.key)
        # An entry that stays keeps its place: clients see brokers in the order they came.
        if before is not None and (before.broker_id, before.connection) != (
            live.broker_id,
            live.connection,
        ):
            self._unlink(before)
        self._live[live.key] = live
        self._members.setdefault(live.broker_name, {})[live.broker_id] = live.key
        self._connections.setdefault(live.connection, {})[live.key] = None

    def _forget(self, live: LiveBroker) -> None:
        del self._live[live.key]
        self._unlink(live)

    def _unlink(self, live: LiveBroker) -> None:
        """Remove a broker from the indexes."""
        _remove(self._members, live.broker_name, live.broker_id)
        _remove(self._connections, live.connection, live.key)

    def _drop(self, key: _Key) -> None:
        """Remove a broker; with the last one of its name go its queues, and topics left empty."""
        live = self._live.get(key)
        if live is None:
            return
        self._forget(live)
        self.generation += 1
        self._filter_servers.pop(live.address, None)
        addresses = self._addresses_of(live.broker_name)
        if not addresses:
            del self._brokers[live.broker_name]
            for topic in list(self._topics_of.get(live.broker_name, ())):
                self._remove_queue(topic, live.broker_name)
            return
        broker = dataclasses.replace(self._brokers[live.broker_name], addresses=addresses)
        self._brokers[live.broker_name] = broker
        if broker.enable_acting_master and broker.master is None:
            self.wipe_write_permission(live.broker_name)

    def _clusters(self) -> dict[str, dict[str, None]]:
        """Cluster to broker names, both in the order of their first registration."""
        clusters: dict[str, dict[str, None]] = {}
        for live in self._live.values():
            clusters.setdefault(live.cluster, {})[live.broker_name] = None
        return clusters

    def _topics_where(self, holds: Callable[[dict[str, QueueRoute]], bool]) -> TopicList:
        return TopicList(tuple(topic for topic, queues in self._topics.items() if holds(queues)))


def _remove(index: dict[_K, dict[_V, _T]], key: _K, value: _V) -> None:
    """Remove an entry of an index, and the key with its last one."""
    entries = index[key]
    del entries[value]
    if not entries:
        del index[key]


def _with_acting_master(broker: BrokerRoute, queue: QueueRoute) -> BrokerRoute:
    """Show the slave that acts as master, the one with the lowest id, under the id of a master."""
    if not broker.enable_acting_master or broker.master is not None or queue.permission & WRITE:
        return broker
    lowest, *others = sorted(broker.addresses)
    addresses = {MASTER_ID: broker.addresses[lowest]} | {i: broker.addresses[i] for i in others}
    return dataclasses.replace(broker, addresses=addresses)
