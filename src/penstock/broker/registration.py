"""Tells all name servers that this broker lives, and which topics it has.

Every thirty seconds, and at once when a topic changed; changes that come in one burst are told
together. Name servers do not talk to each other, so each is told, and one that does not answer
keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence

from penstock.broker.config import BrokerConfig
from penstock.broker.topics import Topics
from penstock.errors import PenstockError
from penstock.model.names import INHERIT, READ, WRITE
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.registration import RegisterBroker as RegisteredTopics
from penstock.protocol.bodies.topics import TopicConfigTable
from penstock.protocol.codes import RequestCode, ResponseCode, response_name
from penstock.protocol.commands import Command
from penstock.protocol.headers import encode_header
from penstock.protocol.headers.nameserver import RegisterBroker, UnregisterBroker
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


class Registration(Service):
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
        self._name_servers = tuple(name_servers)
        self._handler = handler
        self._permission = permission
        self._changed = {name_server: asyncio.Event() for name_server in self._name_servers}
        self._waiting: dict[str, list[Callable[[], None]]] = {
            name_server: [] for name_server in self._name_servers
        }
        self._failing: set[str] = set()
        self._registered: set[str] = set()

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that took the last registration."""
        return frozenset(self._registered)

    def topics_changed(self) -> None:
        """Register again, soon."""
        for changed in self._changed.values():
            changed.set()

    def when_known(self, done: Callable[[], object]) -> None:
        """Call ``done`` when the name servers know the topics as they are now.

        Name servers that are down keep nobody waiting, nor does a slow one for long.
        """
        name_servers = [name for name in self._name_servers if name in self._registered]
        if not name_servers:
            done()
            return
        countdown = _Countdown(len(name_servers), done)
        countdown.timer = self._clock.call_later(_KNOWN_SECONDS, countdown.finish)
        for name_server in name_servers:
            self._waiting[name_server].append(countdown.count)
            self._changed[name_server].set()

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
                    for name_server, changed in self._changed.items():
                        group.create_task(self._keep_registered(pool, name_server, changed))
                    # Also a broker without a name server lives until it is stopped.
                    await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.shield(self._unregister_everywhere(pool))

    async def _keep_registered(self, pool: Pool, name_server: str, changed: asyncio.Event) -> None:
        period = self._config.register_period_seconds
        earliest = 0.0
        while True:
            timer = self._clock.call_later(period, changed.set)
            try:
                await changed.wait()
            finally:
                timer.cancel()
            # A first change is told at once: a send that made a topic waits for it.
            await self._clock.sleep(max(0.0, earliest - self._clock.monotonic()))
            earliest = self._clock.monotonic() + _BURST_SECONDS
            changed.clear()
            waiting, self._waiting[name_server] = self._waiting[name_server], []
            try:
                await self._register(pool, name_server)
            finally:
                for known in waiting:
                    known()

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
            body=encode_body(RegisteredTopics(self._table())),
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

    async def _register(self, pool: Pool, name_server: str) -> None:
        try:
            answer = await pool.request(name_server, self._command(), _TIMEOUT_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                raise PenstockError(f"{response_name(answer.code)}: {answer.remark}")
            body = bytes(answer.body)  # type: ignore[arg-type]  # a received body is bytes
            if body:
                self._topics.set_order(decode_body(KvTable, body).table)
        except PenstockError as error:
            self._registered.discard(name_server)
            if name_server not in self._failing:
                # Once per outage: the next thirty seconds bring the same line again.
                self._failing.add(name_server)
                log.warning("not registered name_server=%s error=%s", name_server, error)
            return
        self._registered.add(name_server)
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
