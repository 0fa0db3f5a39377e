"""The clients of the endpoint: who they are, their connections to brokers, their stream.

A client is known by its id from its first call on; settings are no precondition, since clients send
them again only minutes after a restart of the server. One that is silent for two minutes is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import (
    ConnectionLost,
    PenstockError,
    RemotingError,
    RequestCodeNotSupported,
)
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import ConsumeType, SubscriptionData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.headers.clients import UnregisterClient
from penstock.protocol.headers.codec import encode_header
from penstock.proxy.access import Signer
from penstock.proxy.backend import Backend
from penstock.proxy.calls import Caller
from penstock.proxy.statuses import Refused, UnknownBroker, broker_refusal
from penstock.proxy.wire.codes import ClientType, Code
from penstock.remoting import Peer
from penstock.remoting.promise import Promise
from penstock.runtime.clock import Clock

if TYPE_CHECKING:
    from penstock.proxy.streams import Stream

log = logging.getLogger(__name__)

MAX_CLIENTS: Final = 10_000
MAX_TOPICS_OF_CLIENT: Final = 1000
MAX_CLIENT_ID: Final = 255
"""Bytes; those of clients are the name of a host and a few numbers."""
_MAX_FACT: Final = 255
"""Of the name of a language, and of a version: any is taken, and no more of it kept."""
EXPIRY_SECONDS: Final = 120.0
REQUEST_SECONDS: Final = 5.0
_LANGUAGES: Final = {
    "PYTHON": Language.PYTHON,
    "GO": Language.GO,
    "GOLANG": Language.GO,
    "HTTP": Language.HTTP,
    "NODE_JS": Language.NODE_JS,
    "RUST": Language.RUST,
    "DOTNET": Language.DOTNET,
    "CPP": Language.CPP,
    "PHP": Language.PHP,
    "JAVA": Language.JAVA,
}

BrokerRequest = Callable[["Client", str, Command], None]
"""Takes a request of a broker to a client; the second argument names the broker."""


class Client:
    """One client."""

    def __init__(
        self, caller: Caller, signer: Signer | None, backend: Backend, asked: BrokerRequest
    ) -> None:
        self.id = caller.client_id
        self.address = caller.address
        self.language = caller.language[:_MAX_FACT]
        self._language = _LANGUAGES.get(self.language.upper(), Language.OTHER)
        self.version = caller.version[:_MAX_FACT]
        self.signer = signer
        self.type = ClientType.UNSPECIFIED
        self.group: str | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.topics: dict[str, None] = {}
        """What it publishes to; each topic is a producer group of it."""
        self.stream: Stream | None = None
        """The newest of its telemetry streams."""
        self.last_seen = 0.0
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has left; polls of it are answered then."""
        self._backend = backend
        self._asked = asked
        self._peers: dict[str, Peer] = {}
        # One for each broker: one that cannot be reached must not hold up the others.
        self._connecting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._has_left = False

    @property
    def is_gone(self) -> bool:
        return self.gone.done()

    @property
    def has_said_what_it_is(self) -> bool:
        """Whether it has sent settings, or registered by a heartbeat: not just any call."""
        return self.stream is not None or self.group is not None or bool(self.topics)

    # Requests

    async def request(
        self, broker_name: str, command: Command, seconds: float = REQUEST_SECONDS
    ) -> Command:
        """Send a request to a broker in the name of the client; the answer, with any code."""
        peer = await self.peer(broker_name)
        return await peer.request(self.signed(command), seconds)

    async def demand(
        self, broker_name: str, command: Command, seconds: float = REQUEST_SECONDS
    ) -> Command:
        """The same; a refusal is raised."""
        answer = await self.request(broker_name, command, seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise self.refusal(answer)
        return answer

    def refusal(self, answer: Command) -> PenstockError:
        """The error for an answer that is a refusal."""
        if answer.code == ResponseCode.NO_PERMISSION and self.signer is not None:
            return Refused(Code.UNAUTHORIZED, answer.remark or "not allowed")
        return broker_refusal(answer)

    def signed(self, command: Command) -> Command:
        """A command in the name of the client."""
        command.language = self._language
        return command if self.signer is None else self.signer.sign(command)

    def open_peer(self, broker_name: str) -> Peer | None:
        """The connection to a broker, if there is one."""
        found = self._peers.get(broker_name)
        return None if found is None or found.is_closed else found

    async def peer(self, broker_name: str) -> Peer:
        """The connection to a broker, made if need be."""
        found = self.open_peer(broker_name)
        if found is not None:
            return found
        if broker_name not in self._connecting:
            names = await self._backend.broker_names()
            # Clients name brokers in receipt handles: what is none must not be remembered.
            if broker_name not in names:
                raise UnknownBroker(
                    f"no broker {broker_name!r} is known", expected=", ".join(names) or "a broker"
                )
        async with self._connecting[broker_name]:
            found = self._peers.get(broker_name)
            if found is None or found.is_closed:

                def serve(peer: Peer, command: Command) -> Command | Promise | bytes | None:
                    self._asked(self, broker_name, command)
                    if command.is_oneway:
                        return None
                    raise RequestCodeNotSupported(
                        f"request {command.code} to a client that speaks gRPC"
                    )

                found = await self._backend.connect(broker_name, serve, self.address)
                if self._has_left:
                    # Nothing would close it later.
                    found.close("the client has left")
                    raise ConnectionLost("the client has left")
                self._peers[broker_name] = found
                if self.group is not None or self.topics:
                    await self._register_at(found)
            return found

    # Registration

    async def register(self) -> None:
        """Let the brokers know the client with its groups, as a heartbeat does."""
        if self.group is None and not self.topics:
            return
        names = await self._backend.broker_names()
        results = await asyncio.gather(*map(self._try_to_register, names))
        failures = [one for one in results if one is not None]
        if failures and len(failures) == len(names):
            raise failures[0]

    async def _try_to_register(self, broker_name: str) -> RemotingError | None:
        """Register at one broker; a connection that fails takes nothing from the others."""
        try:
            await self._register_at(await self.peer(broker_name))
        except RemotingError as error:
            log.warning(
                "client not registered client=%s broker=%s error=%s", self.id, broker_name, error
            )
            return error
        return None

    async def _register_at(self, peer: Peer) -> None:
        consumers: tuple[ConsumerData, ...] = ()
        if self.group is not None:
            is_simple = self.type is ClientType.SIMPLE_CONSUMER
            kind = ConsumeType.CONSUME_ACTIVELY if is_simple else ConsumeType.CONSUME_PASSIVELY
            wanted = tuple(self.subscriptions.values())
            consumers = (ConsumerData(self.group, kind, subscription_data_set=wanted),)
        data = HeartbeatData(
            self.id,
            tuple(ProducerData(topic) for topic in self.topics),
            consumers,
            without_sub=True if consumers and not self.subscriptions else None,
        )
        command = Command(RequestCode.HEART_BEAT, body=encode_body(data))
        answer = await peer.request(self.signed(command), REQUEST_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise self.refusal(answer)

    async def leave(self) -> None:
        """Unregister at the brokers and close the connections."""
        self._has_left = True
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            names = [UnregisterClient(self.id, producer_group=topic) for topic in self.topics]
            if self.group is not None:
                names.append(UnregisterClient(self.id, consumer_group=self.group))
            for name in names:
                try:
                    command = Command(RequestCode.UNREGISTER_CLIENT, ext=encode_header(name))
                    peer.oneway(self.signed(command))
                except ConnectionLost:
                    break
            peer.close("the client has left")


class Clients:
    """All clients, the one that was silent the longest first."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        asked: BrokerRequest,
        given_up: Callable[[Client], None],
    ) -> None:
        """``given_up`` ends a client whose place another one gets."""
        self._backend = backend
        self._clock = clock
        self._asked = asked
        self._given_up = given_up
        self._clients: OrderedDict[tuple[str, str], Client] = OrderedDict()
        self._callers: dict[Client, float] = {}
        """Clients that are perhaps no more than an id, and when they were heard of; see `_evict`.
        """

    def __len__(self) -> int:
        return len(self._clients)

    def all(self) -> list[Client]:
        """The clients as they are now."""
        return list(self._clients.values())

    def find(self, caller: Caller, signer: Signer | None) -> Client | None:
        """The client of a caller, if it is known."""
        return self._clients.get(_key(caller, signer))

    def get(self, caller: Caller, signer: Signer | None) -> Client:
        """The client of a caller, known from now on."""
        key = _key(caller, signer)
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._evict()
            client = self._clients[key] = Client(caller, signer, self._backend, self._asked)
            self._callers[client] = self._clock.monotonic()
        client.last_seen = self._clock.monotonic()
        client.signer = signer
        self._clients.move_to_end(key)
        return client

    def known(self, client_id: str) -> Client | None:
        """The client of a call without a user, if it is known; it was heard of now."""
        key = ("", client_id)
        client = self._clients.get(key)
        if client is not None:
            client.last_seen = self._clock.monotonic()
            self._clients.move_to_end(key)
        return client

    def remove(self, client: Client) -> None:
        """Forget a client."""
        key = ("" if client.signer is None else client.signer.name, client.id)
        if self._clients.get(key) is client:
            del self._clients[key]
            self._callers.pop(client, None)
        if not client.gone.done():
            client.gone.set_result(None)

    def _evict(self) -> None:
        """Make room: any id makes a client, so the oldest that is no more than that is given up.

        Each is looked at once, and once more for each time that it was heard of since.
        """
        while self._callers:
            client, heard_at = next(iter(self._callers.items()))
            del self._callers[client]
            if client.has_said_what_it_is:
                continue
            if client.last_seen > heard_at:
                self._callers[client] = client.last_seen
                continue
            self.remove(client)
            self._given_up(client)
            return
        raise Refused(
            Code.TOO_MANY_REQUESTS,
            f"{len(self._clients)} clients are connected",
            expected=f"at most {MAX_CLIENTS}",
        )

    def silent(self) -> list[Client]:
        """The clients that were not heard of for too long."""
        limit = self._clock.monotonic() - EXPIRY_SECONDS
        late: list[Client] = []
        for client in self._clients.values():
            if client.last_seen > limit:
                break
            late.append(client)
        return late


def _key(caller: Caller, signer: Signer | None) -> tuple[str, str]:
    # A user must not act as the client of another one.
    return ("" if signer is None else signer.name, caller.client_id)
