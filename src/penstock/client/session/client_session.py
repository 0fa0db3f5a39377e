"""The session of one client id: connections, routes, heartbeats and periodic work.

    start ─┬─ routes      every 30 s for all topics in use; for topics without one every 100 ms in
           │              the first ten seconds, then every second
           ├─ heartbeats  every 30 s to all brokers, and as the first request of a connection
           ├─ offsets     after 10 s, then every 5 s: each consumer commits its offsets
           └─ rebalance   every 20 s, or on request; at least one second apart

Each runs in a task of its own, so a dead broker delays none of the others (RocketMQ's client runs
all but the last on one thread). A session belongs to one event loop, on which no code of the user
runs: heartbeats are sent even while handlers block.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable

from penstock.client import requests
from penstock.client.session.broker_requests import BrokerRequests
from penstock.client.session.calls import Calls
from penstock.client.session.members import ConsumerMember, ProducerMember
from penstock.client.session.nameservers import NameServers
from penstock.client.session.routes import BrokerAddress, RouteTable, template_route
from penstock.client.session.tasks import Tasks
from penstock.client.settings import SessionSettings
from penstock.errors import (
    LifecycleError,
    NoPermission,
    PenstockError,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model import MessageQueue, StoredMessage, TopicRoute
from penstock.model.names import DEFAULT_TOPIC, RETRY_PREFIX
from penstock.model.route import MASTER_ID
from penstock.protocol import bodies
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.commands import Language
from penstock.protocol.extensions import POP_RETRY_TOPICS
from penstock.remoting.peer import Peer
from penstock.remoting.pool import Backoff, Pool
from penstock.runtime.clock import Clock

log = logging.getLogger(__name__)

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
FIRST_ROUTES = 0.01
FIRST_HEARTBEAT = 1.0
FIRST_PERSIST = 10.0
MISSING_ROUTE_INTERVAL = 1.0
NEW_TOPIC_INTERVAL = 0.1
"""At first: a topic that is subscribed before its first message is usually made soon."""
NEW_TOPIC_SECONDS = 10.0
UNROUTED_SECONDS = 1.5
GREETED = "greeted"
SHORTEST_WAIT = 0.001
EXTRA_HEARTBEAT = "extra heartbeat"
RECONNECTS = Backoff(first=0.1, cap=0.5)
"""Short pauses: sends wait for a broker that restarts, but only as long as their timeout."""


class ClientSession:
    """One client id at one cluster."""

    def __init__(
        self, settings: SessionSettings, *, clock: Clock, chance: random.Random | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.chance: random.Random = chance or random.Random()
        self.routes: RouteTable = RouteTable()
        self.replies: dict[str, Callable[[StoredMessage], None]] = {}
        """Open requests that wait for a reply, by correlation id."""
        self.tasks: Tasks = Tasks(f"session {settings.client_id}")
        self.consumers: dict[str, ConsumerMember] = {}
        self.producers: dict[str, ProducerMember] = {}
        self.broker_versions: dict[str, int] = {}
        self._pop_retries: dict[str, str] = {}
        """By address: the pop retry topics a broker named last."""
        self._reason_keepers: set[str] = set()
        self._requests = BrokerRequests(self)
        self.pool: Pool = Pool(
            self._requests.serve,
            tls=settings.access.tls,
            connect_timeout=settings.connect_timeout,
            backoff=RECONNECTS,
            chance=self.chance.random,
        )
        self.calls: Calls = Calls(self.connect, settings.access.credentials, settings.api_timeout)
        # Without a first heartbeat: for name servers, and for the heartbeat itself.
        self._plain_calls = Calls(self.pool.peer, settings.access.credentials, settings.api_timeout)
        self.nameservers: NameServers = NameServers(
            settings.access.namesrv,
            self._plain_calls,
            self.chance.randrange(len(settings.access.namesrv)),
        )
        self._greetings: dict[str, asyncio.Task[None]] = {}
        self._refreshes: dict[str, asyncio.Future[None]] = {}
        self._unrouted: dict[str, float] = {}
        self._route_is_missing = asyncio.Event()
        self._missing_since: dict[str, float] = {}
        self._rebalance_due = asyncio.Event()
        self._may_rebalance_now = False
        self._state = "new"

    @property
    def client_id(self) -> str:
        return self.settings.client_id

    @property
    def is_running(self) -> bool:
        return self._state == "running"

    @property
    def is_unused(self) -> bool:
        """Whether the last client has left."""
        return not self.consumers and not self.producers

    # -------------------------------------------------------------------------- lifecycle

    def start(self) -> None:
        """Begin the periodic work; no effect when it already runs."""
        if self._state == "running":
            return
        if self._state != "new":
            raise LifecycleError(f"session {self.client_id} was stopped", hint="make a new client")
        self._state = "running"
        settings = self.settings
        for name, work in {
            "routes": self._every(FIRST_ROUTES, settings.route_interval, self.refresh_all_routes),
            "missing routes": self._find_missing_routes(),
            "heartbeats": self._every(
                FIRST_HEARTBEAT, settings.heartbeat_interval, self._clean_and_greet
            ),
            "offsets": self._every(FIRST_PERSIST, settings.persist_interval, self._persist_offsets),
            "rebalance": self._rebalance_by_the_clock(),
        }.items():
            self.tasks.spawn(work, name)
        log.info(
            "session started client=%s name_servers=%s",
            self.client_id,
            settings.access.addresses,
        )

    async def stop(self) -> None:
        """End the periodic work and close the connections."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        await self.tasks.close()
        await self.pool.close()
        log.info("session stopped client=%s", self.client_id)

    async def _every(
        self, first: float, period: float, work: Callable[[], Awaitable[None]]
    ) -> None:
        await self.clock.sleep(first)
        while True:
            try:
                await work()
            except Exception:
                log.exception("periodic work failed client=%s work=%s", self.client_id, work)
            await self.clock.sleep(period)

    # ------------------------------------------------------------------------ membership

    def add_consumer(self, member: ConsumerMember) -> None:
        """Add a consumer group; a session has each group once."""
        if member.group in self.consumers:
            raise LifecycleError(
                f"consumer group {member.group!r} is already running as client {self.client_id}",
                hint="give the second consumer another instance, or subscribe both topics in one",
            )
        self.consumers[member.group] = member

    def add_producer(self, member: ProducerMember) -> None:
        """Add a producer group; a session has each group once."""
        if member.group in self.producers:
            raise LifecycleError(
                f"producer group {member.group!r} is already running as client {self.client_id}",
                hint="share the producer, or give the second one another instance",
            )
        self.producers[member.group] = member

    async def remove_consumer(self, group: str) -> None:
        """Remove a consumer group, here and at all brokers."""
        if self.consumers.pop(group, None) is not None:
            await self._unregister(consumer_group=group)

    async def remove_producer(self, group: str) -> None:
        """Remove a producer group, here and at all brokers."""
        if self.producers.pop(group, None) is not None:
            await self._unregister(producer_group=group)

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        leave = requests.unregister(
            self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )

        async def unregister(address: str) -> None:
            try:
                await self.calls.call(address, leave)
            except PenstockError as error:
                # The broker removes the client anyway when the connection ends.
                log.info("unregister failed address=%s error=%s", address, error)

        # A broker without a connection has no member to remove.
        addresses = [one for one in self.broker_addresses() if self.pool.find(one)]
        await asyncio.gather(*map(unregister, addresses))

    @property
    def topics_in_use(self) -> set[str]:
        """Every topic whose route a member needs."""
        topics = {topic for member in self.consumers.values() for topic in member.topics}
        return topics.union(*(member.topics for member in self.producers.values()))

    # ----------------------------------------------------------------------- connections

    async def connect(self, address: str) -> Peer:
        """The connection to a broker; a new one begins with a heartbeat.

        Before that, the broker does not know the groups of this client: it refuses their pulls and
        sends no notifications. As members may have changed meanwhile, a rebalance follows.
        """
        peer = self.open_connection(address)
        if peer is not None:
            return peer
        peer = await self.pool.peer(address)
        if GREETED in peer.data or self.is_unused:
            return peer
        greeting = self._greetings.get(address)
        if greeting is None:
            greeting = self.tasks.spawn(self._greet(address, peer), f"greet {address}")
            if greeting is None:
                raise self._stopped()
            self._greetings[address] = greeting
        await asyncio.wait((greeting,))
        return peer

    def open_connection(self, address: str) -> Peer | None:
        """The connection if `connect` had it at once; never waits."""
        peer = self.pool.find(address)
        return peer if peer is not None and (GREETED in peer.data or self.is_unused) else None

    def open_master(self, queue: MessageQueue) -> Peer | None:
        """The connection to the queue's broker, if its route is known and it is open."""
        found = self.routes.replica(queue.broker_name)
        return None if found is None else self.open_connection(found.address)

    async def _greet(self, address: str, peer: Peer) -> None:
        try:
            await self._heartbeat(address, encode_body(self.heartbeat_data()))
        except PenstockError as error:
            log.warning("heartbeat failed address=%s error=%s", address, error)
        finally:
            # Even if it failed: the next heartbeat is at most 30 s away.
            peer.data[GREETED] = True
            del self._greetings[address]
        self.wake_rebalance()

    # ------------------------------------------------------------------------- heartbeats

    def heartbeat_data(self) -> bodies.clients.HeartbeatData:
        """The groups of this client, as a heartbeat carries them."""
        return bodies.clients.HeartbeatData(
            self.client_id,
            tuple(
                bodies.clients.ProducerData(group)
                for group in sorted({*self.producers, INNER_PRODUCER})
            ),
            tuple(member.consumer_data() for member in self.consumers.values()),
            heartbeat_fingerprint=0,
            without_sub=False,
        )

    def broker_addresses(self) -> list[str]:
        """The receivers of heartbeats: all masters; slaves, too, if there is a consumer."""
        return [
            address
            for broker in self.routes.brokers.values()
            for broker_id, address in sorted(broker.addresses.items())
            if broker_id == MASTER_ID or self.consumers
        ]

    async def heartbeat_all(self) -> bool:
        """Send a heartbeat to every known broker; whether one was accepted."""
        if self.is_unused:
            return False
        data = encode_body(self.heartbeat_data())

        async def send(address: str) -> bool:
            try:
                peer = await self.pool.peer(address)
                await self._heartbeat(address, data)
                peer.data[GREETED] = True
            except PenstockError as error:
                log.warning("heartbeat failed address=%s error=%s", address, error)
                return False
            return True

        return any(await asyncio.gather(*map(send, self.broker_addresses())))

    def heartbeat_soon(self) -> None:
        """Send an extra heartbeat to all brokers, unless one is being sent."""
        if not self.tasks.is_running(EXTRA_HEARTBEAT):
            self.tasks.spawn(self._heartbeat_once(), EXTRA_HEARTBEAT)

    async def _heartbeat_once(self) -> None:
        await self.heartbeat_all()

    async def _heartbeat(self, address: str, data: bytes) -> None:
        answer = await self._plain_calls.call(address, requests.heartbeat(data))
        self.broker_versions[address] = answer.version
        self._note_pop_retries(address, (answer.ext or {}).get(POP_RETRY_TOPICS, ""))
        # Only Penstock brokers are written in Python, and they keep the reasons of send-backs.
        if answer.language is Language.PYTHON:
            self._reason_keepers.add(address)
        else:
            self._reason_keepers.discard(address)

    def _note_pop_retries(self, address: str, names: str) -> None:
        if names != self._pop_retries.get(address, ""):
            self._pop_retries[address] = names
            self.wake_rebalance()

    @property
    def pop_retry_topics(self) -> set[str]:
        """The pop retry topics that the groups of this session have, as far as brokers tell."""
        return {name for names in self._pop_retries.values() for name in names.split(",") if name}

    def stores_repeats_once(self, address: str) -> bool:
        """Whether the broker is known to look for a message that is sent again."""
        return address in self._reason_keepers

    def keeps_reasons(self, address: str) -> bool:
        """Whether the broker stores why a message was sent back."""
        return address in self._reason_keepers

    async def _clean_and_greet(self) -> None:
        self.routes.forget(self.topics_in_use | {DEFAULT_TOPIC})
        await self.heartbeat_all()

    # ----------------------------------------------------------------------------- routes

    async def refresh_all_routes(self) -> None:
        """Refresh the routes of all topics in use."""
        await asyncio.gather(*map(self._refresh_quietly, sorted(self.topics_in_use)))

    async def _find_missing_routes(self) -> None:
        """Ask again for routes that were not found, until there are none left."""
        while True:
            # Set by the first request that finds no route: an idle session has no timer here.
            await self._route_is_missing.wait()
            self._route_is_missing.clear()
            while missing := sorted(t for t in self.topics_in_use if t not in self.routes):
                now = self.clock.monotonic()
                self._missing_since = {t: self._missing_since.get(t, now) for t in missing}
                is_new = now - max(self._missing_since.values()) < NEW_TOPIC_SECONDS
                await self.clock.sleep(NEW_TOPIC_INTERVAL if is_new else MISSING_ROUTE_INTERVAL)
                await asyncio.gather(*map(self._refresh_quietly, missing))
            self._missing_since.clear()

    async def _refresh_quietly(self, topic: str) -> None:
        try:
            await self.refresh_route(topic)
        except NoPermission as error:
            if self._unrouted.get(topic) != math.inf:
                self._unrouted[topic] = math.inf  # logged
                log.warning("route of a topic refused topic=%s error=%s", topic, error)
            return
        except PenstockError as error:
            # A stale route is better than none.
            log.debug("route not refreshed topic=%s error=%s", topic, error)
            return
        if topic in self.routes:
            return
        now = self.clock.monotonic()
        missed_for = now - self._unrouted.setdefault(topic, now)
        # Not at once: a new topic gets its route a moment later.
        if missed_for >= UNROUTED_SECONDS and not topic.startswith(RETRY_PREFIX):
            self._unrouted[topic] = math.inf  # logged
            log.warning(
                "no route for topic, asking again every second topic=%s name_server=%s",
                topic,
                self.nameservers.current,
            )

    def refresh_route_soon(self, topic: str) -> None:
        """Refresh the route of a topic in the background, unless that is being done."""
        if topic not in self._refreshes:
            self.tasks.spawn(self._refresh_quietly(topic), f"refresh {topic}")

    async def refresh_route(self, topic: str) -> bool:
        """Refresh the route of a topic; return whether a route is known now.

        Concurrent calls for one topic share one request.
        """
        refresh = self._refreshes.get(topic)
        if refresh is None:
            refresh = asyncio.get_running_loop().create_future()
            # Mark a failure as retrieved: every waiter may have been cancelled.
            refresh.add_done_callback(lambda done: done.exception())
            self._refreshes[topic] = refresh
            if self.tasks.spawn(self._fetch_route(topic, refresh), f"route {topic}") is None:
                self._refreshes.pop(topic).set_exception(self._stopped())
        await asyncio.shield(refresh)
        return topic in self.routes

    def _stopped(self) -> LifecycleError:
        return LifecycleError(f"session {self.client_id} was stopped")

    async def _fetch_route(self, topic: str, done: asyncio.Future[None]) -> None:
        try:
            route = await self.nameservers.route(topic)
            if route is not None:
                self._take_route(topic, route)
            done.set_result(None)
        except PenstockError as error:
            done.set_exception(error)
        finally:
            del self._refreshes[topic]
            if topic not in self.routes:
                self._route_is_missing.set()
            if not done.done():
                done.set_exception(self._stopped())

    def _take_route(self, topic: str, route: TopicRoute) -> None:
        readable_before = self.routes.subscribe_queues(topic)
        if not self.routes.put(topic, route):
            return
        log.info("route changed topic=%s brokers=%d", topic, len(route.brokers))
        self._unrouted.pop(topic, None)
        if self.routes.subscribe_queues(topic) != readable_before:
            # A topic that has just been made has nothing to share yet: do not wait for the pause.
            self._may_rebalance_now |= not readable_before
            self.wake_rebalance()

    async def publish_queues(self, topic: str, max_queues: int) -> tuple[MessageQueue, ...]:
        """The queues to send to; for a missing topic, those the broker will create."""
        queues = self.routes.publish_queues(topic)
        if queues:
            return queues
        await self.refresh_route(topic)
        if topic not in self.routes:
            template = await self.nameservers.route(DEFAULT_TOPIC)
            if template is not None:
                self.routes.put(topic, template_route(template, max_queues))
        queues = self.routes.publish_queues(topic)
        if not queues:
            raise TopicNotFound(
                f"no route for topic {topic!r} at name servers "
                f"{', '.join(self.nameservers.addresses)}",
                expected="an existing topic, or autoCreateTopicEnable on a broker",
                hint=f"penstock topic create {topic}",
            )
        return queues

    async def find_broker(
        self, queue: MessageQueue, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> BrokerAddress:
        """A replica of the queue's broker; refreshes the route if none is known."""
        found = self.routes.replica(queue.broker_name, broker_id, only_this=only_this)
        if found is None:
            await self.refresh_route(queue.topic)
            found = self.routes.replica(queue.broker_name, broker_id, only_this=only_this)
        if found is None:
            raise ServiceNotAvailable(
                f"no route names broker {queue.broker_name!r} of {queue}",
                hint="is the broker up and registered?",
            )
        return found

    # -------------------------------------------------------------------------- rebalance

    def wake_rebalance(self) -> None:
        """Rebalance as soon as one second has passed since the last time."""
        self._rebalance_due.set()

    def rebalance_later(self, seconds: float) -> None:
        """The same, after a while."""
        self.clock.call_later(seconds, self.wake_rebalance)

    async def _rebalance_by_the_clock(self) -> None:
        interval, pause = self.settings.rebalance_interval, self.settings.rebalance_pause
        last_run = self.clock.monotonic() - pause
        wait = interval
        while True:
            timer = self.clock.call_later(wait, self._rebalance_due.set)
            await self._rebalance_due.wait()
            timer.cancel()
            self._rebalance_due.clear()
            since = self.clock.monotonic() - last_run
            is_urgent, self._may_rebalance_now = self._may_rebalance_now, False
            if since < pause and not is_urgent:
                # A rounding error could make the rest of the pause zero.
                wait = max(pause - since, SHORTEST_WAIT)
                continue
            is_balanced = await self.rebalance()
            last_run = self.clock.monotonic()
            wait = interval if is_balanced else pause

    async def rebalance(self) -> bool:
        """Have every consumer take and release queues; whether all hold their share."""

        async def one(member: ConsumerMember) -> bool:
            try:
                return await member.rebalance()
            except Exception:
                log.exception("rebalance failed group=%s", member.group)
                return False

        return all(await asyncio.gather(*map(one, list(self.consumers.values()))))

    async def _persist_offsets(self) -> None:
        await asyncio.gather(*(member.persist_offsets() for member in self.consumers.values()))
