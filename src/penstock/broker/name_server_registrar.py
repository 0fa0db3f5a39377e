"""Registers the broker and its topics with all name servers.

The whole table is registered every thirty seconds. Changes are sent at once: a few new or changed
topics one by one, because a name server only adds what a request names; many topics, or any other
change, with the whole table. The changes of a burst share a request. Name servers do not talk to
each other, so each gets every registration, and one that does not answer delays nothing.

A single topic can be registered only with a name server that knows the broker. A name server
forgets brokers when it stops or closes their connection, so single topics use only the connection
that carried the whole table. Name servers of 4.x do not answer requests for single topics and get
the whole table.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.broker.config import BrokerConfig
from penstock.broker.tables.topics import Topics
from penstock.errors import PenstockError
from penstock.model.names import INHERIT, READ, WRITE
from penstock.model.route import MASTER_ID
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.registration import V5_0_0, RegisterBrokerBody
from penstock.protocol.bodies.routes import QueueData, TopicRouteData
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable
from penstock.protocol.codes import RequestCode, ResponseCode, response_name
from penstock.protocol.commands import Command
from penstock.protocol.extensions import REGISTRATION_KEY
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.nameserver import RegisterBroker, RegisterTopic, UnregisterBroker
from penstock.remoting import Handler, Peer, Pool, Tls
from penstock.runtime.clock import Clock, TimerHandle
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 6.0
_UNREGISTER_SECONDS = 2.0
# A burst of new topics is one registration more, not one each.
_BURST_SECONDS = 0.02
# How long the creation of a topic waits for name servers; the next registration repeats it.
_KNOWN_SECONDS = 2.0
# A request for one topic costs both sides about as much as this many topics in a table.
_TOPICS_PER_REQUEST = 100


@dataclass(slots=True, eq=False)
class _NameServer:
    """What one name server has been sent, and what it still has to be sent."""

    address: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    unsent: set[str] = field(default_factory=set)
    """Topics that changed since the last request."""
    needs_all: bool = True
    """Whether the whole table has to be sent."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    connection: Peer | None = None
    """The connection that carried the whole table; None without one, or if the name server is
    too old for single topics."""
    next_round: float = 0.0
    ordered: frozenset[str] = frozenset()
    """The topics it listed as ordered in its answer to the last whole table."""


class NameServerRegistrar(Service):
    """Keeps one broker registered."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        clock: Clock,
        *,
        address: str,
        ha_address: str,
        name_servers: Sequence[str],
        handler: Handler,
        permission: Callable[[], int] = lambda: READ | WRITE,
        sign: Callable[[Command], Command] = lambda command: command,
        registration_key: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._config = config
        self._topics = topics
        self._clock = clock
        self._address = address
        self._ha_address = ha_address
        self._name_servers = [_NameServer(address) for address in dict.fromkeys(name_servers)]
        self._handler = handler
        self._permission = permission
        self._sign = sign
        self._key = {} if registration_key is None else {REGISTRATION_KEY: registration_key}
        self._tls = tls
        self._failing: set[str] = set()
        self._registered: set[str] = set()

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that took the last registration."""
        return frozenset(self._registered)

    def topic_changed(self, topic: str) -> None:
        """Register a new or changed topic soon; the whole table if the topic is gone."""
        is_there = topic in self._topics
        for name_server in self._name_servers:
            if is_there:
                name_server.unsent.add(topic)
            else:
                name_server.needs_all = True
            name_server.changed.set()

    def when_known(self, done: Callable[[], object], topics: Iterable[str] = ()) -> None:
        """Call ``done`` when the name servers know the topics as they are now.

        ``topics`` are sent again in any case. Name servers that cannot be reached are not waited
        for, and a slow one only for a short time.
        """
        name_servers = [one for one in self._name_servers if one.address in self._registered]
        if not name_servers:
            done()
            return
        countdown = _Countdown(len(name_servers), done)
        countdown.timer = self._clock.call_later(_KNOWN_SECONDS, countdown.finish)
        topics = [topic for topic in topics if topic in self._topics]
        for name_server in name_servers:
            name_server.unsent.update(topics)
            name_server.waiting.append(countdown.count)
            name_server.changed.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        async with Pool(self._handler, tls=self._tls) as pool:
            try:
                async with asyncio.TaskGroup() as group:
                    first = [
                        group.create_task(self._register(pool, name_server))
                        for name_server in self._name_servers
                    ]
                    await asyncio.gather(*first)
                    ready()
                    for name_server in self._name_servers:
                        group.create_task(self._keep_registered(pool, name_server))
                    # A broker without a name server runs until it is stopped, too.
                    await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.shield(self._unregister_everywhere(pool))

    async def _keep_registered(self, pool: Pool, name_server: _NameServer) -> None:
        changed = name_server.changed
        earliest = 0.0
        while True:
            wait = max(0.0, name_server.next_round - self._clock.monotonic())
            timer = self._clock.call_later(wait, changed.set)
            try:
                await changed.wait()
            finally:
                timer.cancel()
            # The first change is sent at once: a send that created a topic waits for it.
            await self._clock.sleep(max(0.0, earliest - self._clock.monotonic()))
            earliest = self._clock.monotonic() + _BURST_SECONDS
            changed.clear()
            waiting, name_server.waiting = name_server.waiting, []
            try:
                if not await self._send_topics(pool, name_server):
                    await self._register(pool, name_server)
            finally:
                for known in waiting:
                    known()

    async def _send_topics(self, pool: Pool, name_server: _NameServer) -> bool:
        """Send changed topics one by one; False if the whole table has to be sent."""
        unsent, peer = name_server.unsent, name_server.connection
        if (
            not unsent
            or name_server.needs_all
            or not unsent.isdisjoint(name_server.ordered)
            or len(unsent) > 1 + len(self._topics) // _TOPICS_PER_REQUEST
            or self._clock.monotonic() >= name_server.next_round
            or peer is None
            or peer is not pool.find(name_server.address)
            or self._config.broker_id != MASTER_ID
        ):
            return False
        name_server.unsent = set()
        try:
            answers = await asyncio.gather(
                *(
                    peer.request(self._sign(one), _KNOWN_SECONDS)
                    for one in self._topic_commands(unsent)
                )
            )
        except PenstockError as error:
            log.info("topics not registered name_server=%s error=%s", name_server.address, error)
            return False
        return all(answer.code == ResponseCode.SUCCESS for answer in answers)

    def _topic_commands(self, topics: Collection[str]) -> list[Command]:
        found = [(topic, self._topics.get(topic)) for topic in topics]
        allowed = self._permission() | INHERIT
        return [
            Command(
                RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                ext=encode_header(RegisterTopic(topic)) | self._key,
                body=encode_body(TopicRouteData((self._queues(config, allowed),))),
            )
            for topic, config in found
            if config is not None
        ]

    def _queues(self, config: TopicConfig, allowed: int) -> QueueData:
        return QueueData(
            self._config.broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm & allowed,
            config.topic_sys_flag,
        )

    def _command(self) -> Command:
        header = RegisterBroker(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._config.broker_id,
            enable_acting_master=False,
        )
        return Command(
            RequestCode.REGISTER_BROKER,
            ext=encode_header(header) | self._key,
            body=encode_body(RegisterBrokerBody(self._table())),
        )

    def _table(self) -> TopicConfigTable:
        """The topics, with no more permissions than the broker has now."""
        table = self._topics.table()
        allowed = self._permission() | INHERIT
        if allowed & READ and allowed & WRITE:
            return table
        masked = {
            name: dataclasses.replace(config, perm=config.perm & allowed)
            for name, config in table.topic_config_table.items()
        }
        return TopicConfigTable(masked, table.data_version)

    async def _register(self, pool: Pool, to: _NameServer) -> None:
        """Send the whole table to a name server."""
        name_server = to.address
        to.unsent, to.needs_all, to.connection = set(), False, None
        to.next_round = self._clock.monotonic() + self._config.register_period_seconds
        try:
            command = self._sign(self._command())
            answer = await pool.request(name_server, command, _TIMEOUT_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                raise PenstockError(f"{response_name(answer.code)}: {answer.remark}")
            body = bytes(answer.body)  # type: ignore[arg-type]  # a received body is bytes
            ordered = decode_body(KvTable, body).table if body else {}
            to.ordered = frozenset(ordered)
            self._topics.set_order(ordered)
        except PenstockError as error:
            self._registered.discard(name_server)
            if name_server not in self._failing:
                # Once per outage: every further attempt would log the same line.
                self._failing.add(name_server)
                log.warning("not registered name_server=%s error=%s", name_server, error)
            return
        self._registered.add(name_server)
        if answer.version >= V5_0_0:
            to.connection = pool.find(name_server)
        if name_server in self._failing:
            self._failing.discard(name_server)
            log.info("registered again name_server=%s", name_server)

    async def _unregister_everywhere(self, pool: Pool) -> None:
        header = UnregisterBroker(
            broker_name=self._config.broker_name,
            broker_addr=self._address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        ext = encode_header(header) | self._key
        await asyncio.gather(
            *(
                self._unregister(
                    name_server, peer, Command(RequestCode.UNREGISTER_BROKER, ext=dict(ext))
                )
                for name_server, peer in pool.peers.items()
            )
        )

    async def _unregister(self, name_server: str, peer: Peer, command: Command) -> None:
        try:
            await peer.request(self._sign(command), _UNREGISTER_SECONDS)
        except PenstockError as error:
            log.info("not unregistered name_server=%s error=%s", name_server, error)


class _Countdown:
    """Calls ``done`` once: when the count reaches 0 or the time is up."""

    __slots__ = ("_done", "_left", "timer")

    def __init__(self, left: int, done: Callable[[], object]) -> None:
        self._left = left
        self._done: Callable[[], object] | None = done
        self.timer: TimerHandle | None = None

    def count(self) -> None:
        self._left -= 1
        if not self._left:
            self.finish()

    def finish(self) -> None:
        done, self._done = self._done, None
        if self.timer is not None:
            self.timer.cancel()
        if done is not None:
            done()
