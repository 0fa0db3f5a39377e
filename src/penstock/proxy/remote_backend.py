"""The brokers of a cluster as a backend, over connections: for an endpoint of its own process.

What brokers know of topics and groups is asked for when it is needed and kept for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, TypeVar

from penstock.auth.user_source import UserSource
from penstock.errors import (
    ConnectFailed,
    GroupNotFound,
    NameserverUnavailable,
    PenstockError,
    RemotingError,
    RequestCodeNotSupported,
    TopicNotFound,
)
from penstock.model.names import HALF_TOPIC
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.half_messages import TransactionKey, read_half
from penstock.protocol.headers.admin import GetGroupConfig, GetTopicConfig
from penstock.protocol.headers.codec import Header, encode_header
from penstock.protocol.headers.pull import QueryMessage
from penstock.protocol.headers.routes import GetRouteInfo
from penstock.protocol.records.pulled import messages_from_pull
from penstock.proxy.access import Signer
from penstock.proxy.backend import HalfPlace
from penstock.proxy.facts import GroupFacts, TopicAtBroker, TopicFacts
from penstock.proxy.local_backend import MESSAGE_TYPE, group_facts, topic_facts
from penstock.proxy.statuses import broker_refusal
from penstock.remoting import Peer, Pool, Tls
from penstock.remoting.peer import Handler
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_SECONDS: Final = 3.0
_FRESH_SECONDS: Final = 1.0
_MAX_KNOWN: Final = 10_000
_SILENT_SECONDS: Final = 10.0
_MASTER: Final = 0
_MAX_HALVES: Final = 64
_END_OF_TIME: Final = (1 << 63) - 1
_T = TypeVar("_T")


class _Known(Generic[_T]):
    """Facts by name, each as it was found not long ago; what is not there is not remembered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._facts: dict[str, tuple[float, _T]] = {}
        self._finding: dict[str, asyncio.Task[_T]] = {}

    async def get(
        self, name: str, find: Callable[[str], Coroutine[Any, Any, _T]], *, is_fresh: bool = False
    ) -> _T:
        if is_fresh:
            return await self._find(name, find)
        known = self.at_hand(name)
        if known is not None:
            return known
        # All calls of a busy client need the same facts at the same time: one of them asks.
        task = self._finding.get(name)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._finding[name] = loop.create_task(self._find(name, find))
            task.add_done_callback(lambda done: self._finding.pop(name))
        # Not awaited directly: a cancelled call must not cancel it for the others.
        await asyncio.wait((task,))
        return task.result()

    def at_hand(self, name: str) -> _T | None:
        """What was found of late."""
        known = self._facts.get(name)
        if known is not None and self._clock.monotonic() - known[0] < _FRESH_SECONDS:
            return known[1]
        return None

    async def _find(self, name: str, find: Callable[[str], Coroutine[Any, Any, _T]]) -> _T:
        now = self._clock.monotonic()
        found = await find(name)
        if found is None:
            self._facts.pop(name, None)
        else:
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
        # Reading certificates for each client would take longer than its connection.
        self._tls_context = None if tls is None else tls.context()
        self._users = users
        self._own_signer = own_signer
        self._pool: Pool | None = None
        self._topics: _Known[TopicFacts | None] = _Known(clock)
        self._groups: _Known[GroupFacts] = _Known(clock)
        self._clusters: _Known[dict[str, str]] = _Known(clock)
        self._silent_until: dict[str, float] = {}
        """Addresses of brokers that did not answer of late: the others are asked first."""

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
            self._pool = await stack.enter_async_context(
                Pool(_refuse, tls_context=self._tls_context)
            )
            ready()
            await asyncio.get_running_loop().create_future()

    # Facts

    async def topic(self, name: str, *, is_fresh: bool = False) -> TopicFacts | None:
        return await self._topics.get(name, self._find_topic, is_fresh=is_fresh)

    def known_topic(self, name: str) -> TopicFacts | None:
        return self._topics.at_hand(name)

    async def _find_topic(self, name: str) -> TopicFacts | None:
        header = GetRouteInfo(name, accept_standard_json_only=True)
        answer = await self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return await self._find_new_topic(name)
        route = decode_body(TopicRouteData, _success(answer))
        addresses = _masters(route.broker_datas)
        brokers = [
            TopicAtBroker(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            if data.broker_name in addresses
        ]
        places = {broker.broker_name: addresses[broker.broker_name] for broker in brokers}
        configs = await self._topic_configs(places, name, until_typed=True)
        kinds = (_type(config) for config in configs.values())
        return TopicFacts(name, next(filter(None, kinds), ""), brokers)

    async def _find_new_topic(self, name: str) -> TopicFacts | None:
        """A topic that its brokers know, and the name server not yet."""
        found = await self._topic_configs(await self._brokers(), name)
        return topic_facts(name, found) if found else None

    async def _topic_configs(
        self, brokers: Mapping[str, str], topic: str, *, until_typed: bool = False
    ) -> dict[str, TopicConfig]:
        return await self._ask_brokers(
            brokers,
            RequestCode.GET_TOPIC_CONFIG,
            GetTopicConfig(topic),
            TopicConfig,
            lambda config: until_typed and bool(_type(config)),
        )

    def known_group(self, name: str) -> GroupFacts | None:
        return self._groups.at_hand(name)

    async def group(self, name: str, *, is_fresh: bool = False) -> GroupFacts:
        return await self._groups.get(name, self._find_group, is_fresh=is_fresh)

    async def _find_group(self, name: str) -> GroupFacts:
        found = await self._ask_brokers(
            await self._brokers(),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            GetGroupConfig(name),
            SubscriptionGroupConfig,
            lambda config: True,
        )
        for config in found.values():
            return group_facts(config)
        # A broker creates it on its first use, or refuses that.
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
        # Half messages have the id of their transaction as unique key. Of one that a broker has
        # asked about there are several; the newest counts.
        key = TransactionKey(topic, topic, transaction_id)
        header = QueryMessage(HALF_TOPIC, transaction_id, _MAX_HALVES, 0, _END_OF_TIME, True)
        for broker_name, address in (await self._brokers()).items():
            try:
                answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header)
            except PenstockError as error:
                log.warning("half messages not found broker=%s error=%s", broker_name, error)
                continue
            if answer.code != ResponseCode.SUCCESS:
                continue
            found = [
                (one.log_position, one.queue_offset)
                for one in messages_from_pull(_success(answer), broker_name, keep_unreadable=True)
                if (half := read_half(one.properties, 0)) is not None and half.key == key
            ]
            if found:
                return HalfPlace(broker_name, *max(found))
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
        pool = Pool(handler, tls_context=self._tls_context)
        try:
            return await pool.peer(address)
        except asyncio.CancelledError:
            # The attempt goes on without its caller, and nothing would close what it makes.
            await pool.close()
            raise

    async def _ask_name_server(self, code: int, header: Header | None) -> Command:
        failures: list[str] = []
        for address in self._name_servers:
            try:
                return await self._ask(address, code, header)
            except PenstockError as error:
                failures.append(str(error))
        raise NameserverUnavailable(f"no name server answers: {'; '.join(failures)}")

    async def _ask_brokers(
        self,
        brokers: Mapping[str, str],
        code: int,
        header: Header,
        body: type[_T],
        is_enough: Callable[[_T], bool],
    ) -> dict[str, _T]:
        """What the brokers know, by their names, up to an answer that is enough.

        A broker that cannot be reached takes nothing from what the others know. Its failure is
        raised if it is all that there is.
        """
        found: dict[str, _T] = {}
        failure: RemotingError | None = None
        has_answer = False
        for name, address in self._likely_first(brokers):
            if found and self._is_silent(address):
                break
            try:
                answer = await self._ask(address, code, header)
                has_answer = True
                found[name] = decode_body(body, _success(answer))
            except (GroupNotFound, RequestCodeNotSupported, TopicNotFound) as error:
                log.debug("broker has no such thing broker=%s error=%s", name, error)
                continue
            except RemotingError as error:
                log.warning("broker does not answer broker=%s error=%s", name, error)
                self._note_silence(address)
                failure = error
                continue
            if is_enough(found[name]):
                break
        if failure is not None and not has_answer:
            raise failure
        return found

    def _likely_first(self, brokers: Mapping[str, str]) -> list[tuple[str, str]]:
        return sorted(brokers.items(), key=lambda one: self._is_silent(one[1]))

    def _is_silent(self, address: str) -> bool:
        return self._clock.monotonic() < self._silent_until.get(address, 0.0)

    def _note_silence(self, address: str) -> None:
        if len(self._silent_until) >= _MAX_KNOWN:
            self._silent_until.clear()
        self._silent_until[address] = self._clock.monotonic() + _SILENT_SECONDS

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


def _type(config: TopicConfig) -> str:
    return (config.attributes or {}).get(MESSAGE_TYPE, "")


def _masters(brokers: Iterable[BrokerData]) -> dict[str, str]:
    return {
        data.broker_name: data.broker_addrs[_MASTER]
        for data in sorted(brokers, key=lambda data: data.broker_name)
        if _MASTER in data.broker_addrs
    }
