"""The brokers of a cluster as a backend, over connections: for an endpoint of its own process.

What brokers know of topics and groups is asked for when it is needed and kept for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Final, Generic, TypeVar

from penstock.auth.user_source import UserSource
from penstock.errors import (
    ConnectFailed,
    GroupNotFound,
    NameserverUnavailable,
    PenstockError,
    RequestCodeNotSupported,
    TopicNotFound,
)
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import GetGroupConfig, GetTopicConfig
from penstock.protocol.headers.codec import Header, encode_header
from penstock.protocol.headers.routes import GetRouteInfo
from penstock.proxy.access import Signer
from penstock.proxy.backend import HalfPlace
from penstock.proxy.facts import GroupFacts, TopicAtBroker, TopicFacts
from penstock.proxy.local_backend import MESSAGE_TYPE, group_facts
from penstock.proxy.statuses import broker_refusal
from penstock.remoting import Peer, Pool, Tls
from penstock.remoting.peer import Handler
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_SECONDS: Final = 3.0
_FRESH_SECONDS: Final = 5.0
_MAX_KNOWN: Final = 10_000
_MASTER: Final = 0
_T = TypeVar("_T")


class _Known(Generic[_T]):
    """Facts by name, each as it was found not long ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._facts: dict[str, tuple[float, _T]] = {}

    async def get(self, name: str, find: Callable[[str], Awaitable[_T]]) -> _T:
        known = self._facts.get(name)
        now = self._clock.monotonic()
        if known is not None and now - known[0] < _FRESH_SECONDS:
            return known[1]
        found = await find(name)
        if len(self._facts) >= _MAX_KNOWN:
            self._facts.clear()
        self._facts[name] = (now, found)
        return found


class RemoteBackend(Service):
    """All brokers that name servers know."""

    def __init__(
        self,
        name_servers: Sequence[str],
        clock: Clock,
        *,
        tls: Tls | None = None,
        users: UserSource | None = None,
        own_signer: Signer | None = None,
    ) -> None:
        """``users`` are those of the brokers: calls are checked with them and signed as them.

        Without them, ``own_signer`` signs the calls of all clients.
        """
        self._name_servers = tuple(name_servers)
        self._clock = clock
        self._tls = tls
        self._users = users
        self._own_signer = own_signer
        self._pool: Pool | None = None
        self._topics: _Known[TopicFacts | None] = _Known(clock)
        self._groups: _Known[GroupFacts] = _Known(clock)
        self._clusters: _Known[dict[str, str]] = _Known(clock)

    @property
    def users(self) -> UserSource | None:
        return self._users

    @property
    def own_signer(self) -> Signer | None:
        return self._own_signer

    async def _run(self, ready: Callable[[], None]) -> None:
        async with AsyncExitStack() as stack:
            if self._users is not None:
                await stack.enter_async_context(self._users)
            self._pool = await stack.enter_async_context(Pool(_refuse, tls=self._tls))
            ready()
            await asyncio.get_running_loop().create_future()

    # Facts

    async def topic(self, name: str) -> TopicFacts | None:
        return await self._topics.get(name, self._find_topic)

    async def _find_topic(self, name: str) -> TopicFacts | None:
        header = GetRouteInfo(name, accept_standard_json_only=True)
        answer = await self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        route = decode_body(TopicRouteData, _success(answer))
        addresses = _masters(route.broker_datas)
        brokers = [
            TopicAtBroker(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            if data.broker_name in addresses
        ]
        kind = ""
        for broker in brokers:
            kind = await self._message_type(addresses[broker.broker_name], name)
            if kind:
                break
        return TopicFacts(name, kind, brokers)

    async def _message_type(self, address: str, topic: str) -> str:
        try:
            answer = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, GetTopicConfig(topic))
            config = decode_body(TopicConfig, _success(answer))
        except (RequestCodeNotSupported, TopicNotFound) as error:
            log.info("type of a topic not known topic=%s error=%s", topic, error)
            return ""
        return (config.attributes or {}).get(MESSAGE_TYPE, "")

    async def group(self, name: str) -> GroupFacts:
        return await self._groups.get(name, self._find_group)

    async def _find_group(self, name: str) -> GroupFacts:
        for address in (await self._brokers()).values():
            header = GetGroupConfig(name)
            try:
                answer = await self._ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
                return group_facts(decode_body(SubscriptionGroupConfig, _success(answer)))
            except (GroupNotFound, RequestCodeNotSupported):
                # A broker creates it on its first use, or refuses that.
                continue
        return GroupFacts(name)

    async def broker_names(self) -> list[str]:
        return list(await self._brokers())

    async def _brokers(self) -> dict[str, str]:
        """The addresses of all masters by name."""
        return await self._clusters.get("", self._find_brokers)

    async def _find_brokers(self, _: str) -> dict[str, str]:
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        cluster = decode_body(ClusterInfo, _success(answer))
        return _masters(cluster.broker_addr_table.values())

    async def find_half(self, topic: str, transaction_id: str) -> HalfPlace | None:
        return None

    # Connections

    async def connect(self, broker_name: str, handler: Handler, remote: str) -> Peer:
        address = (await self._brokers()).get(broker_name)
        if address is None:
            raise ConnectFailed(
                f"no broker {broker_name!r} is registered",
                expected=", ".join(await self._brokers()) or "a broker",
            )
        # A pool of one connection: each client has its own, with its own handler.
        return await Pool(handler, tls=self._tls).peer(address)

    async def _ask_name_server(self, code: int, header: Header | None) -> Command:
        failures: list[str] = []
        for address in self._name_servers:
            try:
                return await self._ask(address, code, header)
            except PenstockError as error:
                failures.append(str(error))
        raise NameserverUnavailable(f"no name server answers: {'; '.join(failures)}")

    async def _ask(self, address: str, code: int, header: Header | None) -> Command:
        assert self._pool is not None, "the backend was started"
        ext = None if header is None else encode_header(header)
        command = Command(code, ext=ext)
        if self._own_signer is not None:
            command = self._own_signer.sign(command)
        return await self._pool.request(address, command, _SECONDS)


def _refuse(peer: Peer, command: Command) -> Command:
    raise RequestCodeNotSupported(f"request {command.code} to a proxy")


def _success(answer: Command) -> bytes:
    if answer.code != ResponseCode.SUCCESS:
        raise broker_refusal(answer)
    body = answer.body
    assert isinstance(body, bytes), "a received body is bytes"
    return body


def _masters(brokers: Iterable[BrokerData]) -> dict[str, str]:
    return {
        data.broker_name: data.broker_addrs[_MASTER]
        for data in sorted(brokers, key=lambda data: data.broker_name)
        if _MASTER in data.broker_addrs
    }
