"""The routes of topics over all brokers, as the name servers know them.

A broker that assigns queues needs the queues of the other brokers, too. A route is asked for when
it is first needed, and again when it is older than half a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.errors import PenstockError
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.routes import GetRouteInfo
from penstock.remoting import Handler, Pool, Tls
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 3.0
_MAX_ROUTES = 4096
Answer = Callable[[tuple[MessageQueue, ...]], None]


class TopicRoutes(Service):
    """Asks name servers for routes."""

    FRESH = 30.0

    def __init__(
        self,
        clock: Clock,
        name_servers: Sequence[str],
        *,
        handler: Handler,
        own_queues: Callable[[str], tuple[MessageQueue, ...]],
        sign: Callable[[Command], Command] = lambda command: command,
        tls: Tls | None = None,
    ) -> None:
        """``own_queues`` are what a topic has here, for a broker without a name server."""
        self._clock = clock
        self._name_servers = tuple(name_servers)
        self._handler = handler
        self._own_queues = own_queues
        self._sign = sign
        self._tls = tls
        self._known: dict[str, tuple[float, tuple[MessageQueue, ...]]] = {}
        self._asked: dict[str, list[Answer]] = {}
        self._pool: Pool | None = None
        self._group: asyncio.TaskGroup | None = None

    def queues(self, topic: str, answer: Answer) -> None:
        """Call ``answer`` with the queues of a topic that consumers may read."""
        known = self._known.get(topic)
        if known is not None and self._clock.monotonic() - known[0] < self.FRESH:
            answer(known[1])
            return
        if not self._name_servers or self._group is None:
            answer(self._own_queues(topic))
            return
        waiting = self._asked.setdefault(topic, [])
        waiting.append(answer)
        if len(waiting) == 1:
            self._group.create_task(self._ask(topic))

    async def _run(self, ready: Callable[[], None]) -> None:
        pool = Pool(self._handler, tls=self._tls)
        async with pool as self._pool, asyncio.TaskGroup() as self._group:
            ready()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None

    async def _ask(self, topic: str) -> None:
        queues = await self._fetch(topic)
        if queues is None:
            # Better than nothing: what was known before, or the queues of this broker.
            known = self._known.get(topic)
            queues = known[1] if known is not None else self._own_queues(topic)
        else:
            if len(self._known) >= _MAX_ROUTES:
                self._known.clear()
            self._known[topic] = (self._clock.monotonic(), queues)
        for answer in self._asked.pop(topic, ()):
            answer(queues)

    async def _fetch(self, topic: str) -> tuple[MessageQueue, ...] | None:
        assert self._pool is not None
        ext = encode_header(GetRouteInfo(topic, accept_standard_json_only=True))
        for address in self._name_servers:
            command = self._sign(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=dict(ext)))
            try:
                answer = await self._pool.request(address, command, _TIMEOUT_SECONDS)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return ()
                if answer.code == ResponseCode.SUCCESS:
                    body = bytes(answer.body)  # type: ignore[arg-type]  # a received body is bytes
                    route = decode_body(TopicRouteData, body).route()
                    return tuple(route.subscribe_queues(topic))
            except PenstockError as error:
                log.info("route not found topic=%s name_server=%s error=%s", topic, address, error)
        return None
