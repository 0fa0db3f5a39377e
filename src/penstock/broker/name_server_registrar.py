"""Tells all name servers that this broker lives, and which topics it has.

All of it every thirty seconds, and at once what changed: a few topics each by itself, since a name
server only adds what it is told, and many of them, or whatever else changed, with all the others.
Changes that come in one burst are told together. Name servers do not talk to each other, so each
is told, and one that does not answer keeps nobody waiting.

A topic by itself means something only to a name server that knows the broker. It forgets brokers
when it ends, or when it closes their connection; so only the connection that carried the whole
table is used for that. Name servers of 4.x do not even answer the request; they are told all.
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
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.nameserver import RegisterBroker, RegisterTopic, UnregisterBroker
from penstock.remoting import Handler, Peer, Pool
from penstock.runtime.clock import Clock, TimerHandle
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 6.0
_UNREGISTER_SECONDS = 2.0
# A burst of new topics is one registration more, not one each.
_BURST_SECONDS = 0.02
# How long the creation of a topic waits for name servers; they are told again anyway.
_KNOWN_SECONDS = 2.0
# A topic by itself costs both sides about as much as so many in one table.
_TOPICS_PER_REQUEST = 100


@dataclass(slots=True, eq=False)
class _NameServer:
    """What one name server was told, and what it is still to be told."""

    address: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    unsaid: set[str] = field(default_factory=set)
    """Topics that changed since."""
    needs_all: bool = True
    """Whether more changed than some topics."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    told_over: Peer | None = None
    """The connection that it took the whole table over; None if it did not, or is too old to be
    told of single topics."""
    next_round: float = 0.0
    ordered: frozenset[str] = frozenset()
    """The topics it listed as ordered when it was last told everything, and only then lists."""


class NameServerRegistrar(Service):
    """The broker's side of its name servers."""

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
    ) -> None:
        self._config = config
        self._topics = topics
        self._clock = clock
        self._address = address
        self._ha_address = ha_address
        self._name_servers = [_NameServer(address) for address in dict.fromkeys(name_servers)]
        self._handler = handler
        self._permission = permission
        self._failing: set[str] = set()
        self._registered: set[str] = set()

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that took the last registration."""
        return frozenset(self._registered)

    def topic_changed(self, topic: str) -> None:
        """Tell of a new or changed topic soon; of everything if it is gone, or is none."""
        is_there = topic in self._topics
        for name_server in self._name_servers:
            if is_there:
                name_server.unsaid.add(topic)
            else:
                name_server.needs_all = True
            name_server.changed.set()

    def when_known(self, done: Callable[[], object], topics: Iterable[str] = ()) -> None:
        """Call ``done`` when the name servers know the topics as they are now.

        Of ``topics`` they are told again in any case. Name servers that are down keep nobody
        waiting, nor does a slow one for long.
        """
        name_servers = [one for one in self._name_servers if one.address in self._registered]
        if not name_servers:
            done()
            return
        countdown = _Countdown(len(name_servers), done)
        countdown.timer = self._clock.call_later(_KNOWN_SECONDS, countdown.finish)
        topics = [topic for topic in topics if topic in self._topics]
        for name_server in name_servers:
            name_server.unsaid.update(topics)
            name_server.waiting.append(countdown.count)
            name_server.changed.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        async with Pool(self._handler) as pool:
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
                    # Also a broker without a name server lives until it is stopped.
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
            # A first change is told at once: a send that made a topic waits for it.
            await self._clock.sleep(max(0.0, earliest - self._clock.monotonic()))
            earliest = self._clock.monotonic() + _BURST_SECONDS
            changed.clear()
            waiting, name_server.waiting = name_server.waiting, []
            try:
                if not await self._tell_topics(pool, name_server):
                    await self._register(pool, name_server)
            finally:
                for known in waiting:
                    known()

    async def _tell_topics(self, pool: Pool, name_server: _NameServer) -> bool:
        """Tell of topics that changed, each by itself; False if that is not the way."""
        unsaid, peer = name_server.unsaid, name_server.told_over
        if (
            not unsaid
            or name_server.needs_all
            or not unsaid.isdisjoint(name_server.ordered)
            or len(unsaid) > 1 + len(self._topics) // _TOPICS_PER_REQUEST
            or self._clock.monotonic() >= name_server.next_round
            or peer is None
            or peer is not pool.find(name_server.address)
            or self._config.broker_id != MASTER_ID
        ):
            return False
        name_server.unsaid = set()
        try:
            answers = await asyncio.gather(
                *(peer.request(one, _KNOWN_SECONDS) for one in self._topic_commands(unsaid))
            )
        except PenstockError as error:
            log.info("topics not told name_server=%s error=%s", name_server.address, error)
            return False
        return all(answer.code == ResponseCode.SUCCESS for answer in answers)

    def _topic_commands(self, topics: Collection[str]) -> list[Command]:
        found = [(topic, self._topics.get(topic)) for topic in topics]
        allowed = self._permission() | INHERIT
        return [
            Command(
                RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                ext=encode_header(RegisterTopic(topic)),
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
            ext=encode_header(header),
            body=encode_body(RegisterBrokerBody(self._table())),
        )

    def _table(self) -> TopicConfigTable:
        """The topics, with no more permissions than the broker has at the moment."""
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
        """Tell a name server everything."""
        name_server = to.address
        to.unsaid, to.needs_all, to.told_over = set(), False, None
        to.next_round = self._clock.monotonic() + self._config.register_period_seconds
        try:
            answer = await pool.request(name_server, self._command(), _TIMEOUT_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                raise PenstockError(f"{response_name(answer.code)}: {answer.remark}")
            body = bytes(answer.body)  # type: ignore[arg-type]  # a received body is bytes
            ordered = decode_body(KvTable, body).table if body else {}
            to.ordered = frozenset(ordered)
            self._topics.set_order(ordered)
        except PenstockError as error:
            self._registered.discard(name_server)
            if name_server not in self._failing:
                # Once per outage: the next thirty seconds bring the same line again.
                self._failing.add(name_server)
                log.warning("not registered name_server=%s error=%s", name_server, error)
            return
        self._registered.add(name_server)
        if answer.version >= V5_0_0:
            to.told_over = pool.find(name_server)
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
        ext = encode_header(header)
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
            await peer.request(command, _UNREGISTER_SECONDS)
        except PenstockError as error:
            log.info("not unregistered name_server=%s error=%s", name_server, error)


class _Countdown:
    """Calls ``done`` once: when it was counted down, or when time is up."""

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
