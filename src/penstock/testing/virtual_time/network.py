"""An in-memory network with named hosts, latency and faults.

Code runs "on" a host: ``with network.host("10.0.0.1"): ...`` decides, through a context variable,
where the servers started and the connections made inside live, and that holds for the tasks and
protocol callbacks that come of them. Without it everything is on `LOCAL`.

`Conditions` describe what a path between two hosts is like; the defaults are a perfect network.
On top of that a test may

- `partition` hosts, one way or both, and `heal`: bytes wait, as TCP would resend them;
- cut a `Connection`, seen by both ends, by one, or by neither (a black hole);
- `crash` a host: its code gets no callback any more, the others a reset, or silence.

Every random choice comes from the loop's seeded generator.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import ipaddress
import random
import socket
import ssl as ssl_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.testing.virtual_time.pipes import Pipe, reset_error
from penstock.testing.virtual_time.servers import (
    LOCAL,
    ProtocolFactory,
    VirtualServer,
    VirtualSocket,
    sockaddr,
    tls_layer,
)
from penstock.testing.virtual_time.transports import Endpoint

if TYPE_CHECKING:
    from penstock.testing.virtual_time.loop import VirtualLoop

FIRST_EPHEMERAL_PORT = 20_000

SeenBy = Literal["both", "client", "server", "neither"]

_current_host: contextvars.ContextVar[str] = contextvars.ContextVar("host", default=LOCAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the path between two hosts is like, in each direction."""

    latency: tuple[float, float] = (0.0, 0.0)
    """Seconds a write takes, drawn evenly from this range."""
    split: float = 0.0
    """Probability that a read gets a random part of what has arrived."""
    refuse: float = 0.0
    """Probability that a connect is refused although a server listens."""
    lose: float = 0.0
    """Probability, for each read, that the connection is lost instead (both ends see it)."""


PERFECT = Conditions()
LAN = Conditions(latency=(0.000_05, 0.000_5), split=0.02)
ROUGH = Conditions(latency=(0.001, 0.25), split=0.3, refuse=0.05, lose=0.002)


class Connection:
    """Two ends and what is between them; the handle by which a test hurts it."""

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.number = number
        self.client: Endpoint
        self.server: Endpoint

    def cut(self, seen_by: SeenBy = "both") -> None:
        """Lose the connection. An end that does not see it writes into a black hole."""
        self.network.record("cut", self.number, seen_by)
        for name, end in (("client", self.client), ("server", self.server)):
            end.outgoing.vanish()
            if seen_by in ("both", name):
                end.lose(reset_error())

    def end_closed(self) -> None:
        """Forget the connection once neither end can use it."""
        if all(end.is_closed or end.is_dead for end in (self.client, self.server)):
            self.network.connections.pop(self.number, None)

    def __repr__(self) -> str:
        return f"<Connection {self.number} {self.client.host_name} -> {self.server.host_name}>"


class Network:
    """All hosts, listeners and connections of one virtual loop."""

    def __init__(self, loop: VirtualLoop, generator: random.Random) -> None:
        self.loop = loop
        self.conditions = PERFECT
        self.connections: dict[int, Connection] = {}
        self.connect_seconds: float = 127.0  # Linux: six SYN retries
        self.give_up_seconds: float = 924.6  # Linux: tcp_retries2 = 15
        self._random = generator
        self._between: dict[tuple[str, str], Conditions] = {}
        self._cut_off: set[tuple[str, str]] = set()
        self._isolated: set[str] = set()
        self._servers: list[VirtualServer] = []
        self._names: dict[str, str] = {"localhost": LOCAL}
        self._next_port = FIRST_EPHEMERAL_PORT
        self._next_number = 1
        self._healing: list[asyncio.Future[None]] = []

    # -- hosts ----------------------------------------------------------------------------------

    @contextmanager
    def host(self, address: str) -> Iterator[None]:
        """What is started and connected inside lives on the host ``address``."""
        ipaddress.ip_address(address)
        token = _current_host.set(address)
        try:
            yield
        finally:
            _current_host.reset(token)

    @property
    def current_host(self) -> str:
        return _current_host.get()

    def add_name(self, name: str, address: str) -> None:
        """Let ``name`` resolve to ``address``, on this network only."""
        ipaddress.ip_address(address)
        self._names[name.lower()] = address

    def resolve(self, host: str) -> str:
        """The address of ``host``: a literal, or a name given to `add_name`."""
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            address = self._names.get(host.lower())
            if address is None:
                raise socket.gaierror(
                    socket.EAI_NONAME, f"Name or service not known on the virtual network: {host!r}"
                ) from None
            return address

    # -- what a path is like ----------------------------------------------------------------------

    def set_conditions(self, one: str, other: str, conditions: Conditions) -> None:
        """What the path between two hosts is like; `Network.conditions` holds for all others."""
        self._between[one, other] = self._between[other, one] = conditions

    def between(self, source: str, target: str) -> Conditions:
        return self._between.get((source, target), self.conditions)

    @property
    def now(self) -> float:
        return self.loop.time()

    def latency(self, source: str, target: str) -> float:
        low, high = self._between.get((source, target), self.conditions).latency
        return low if low == high else self._random.uniform(low, high)

    def split(self, source: str, target: str, size: int) -> int:
        """Where to cut a read of ``size`` bytes; 0: nowhere."""
        chance = self._between.get((source, target), self.conditions).split
        if chance and size > 1 and self._random.random() < chance:
            return self._random.randrange(1, size)
        return 0

    def loses_connection(self, source: str, target: str) -> bool:
        chance = self._between.get((source, target), self.conditions).lose
        return bool(chance) and self._random.random() < chance

    # -- faults -----------------------------------------------------------------------------------

    def partition(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Let nothing pass from ``one`` to ``other``, nor back unless ``one_way``."""
        self.record("partition", one, other, one_way)
        self._cut_off.add((one, other))
        if not one_way:
            self._cut_off.add((other, one))

    def isolate(self, host: str) -> None:
        """Cut ``host`` off from every other one."""
        self.record("isolate", host)
        self._isolated.add(host)

    def heal(self) -> None:
        """End every partition; what waited arrives after the usual latency."""
        self.record("heal")
        self._cut_off.clear()
        self._isolated.clear()
        for connection in list(self.connections.values()):
            connection.client.outgoing.wake()
            connection.server.outgoing.wake()
        waiting, self._healing = self._healing, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def is_cut_off(self, source: str, target: str) -> bool:
        if source == target or not (self._cut_off or self._isolated):
            return False
        return (
            (source, target) in self._cut_off
            or source in self._isolated
            or target in self._isolated
        )

    def crash(self, host: str, *, silent: bool = False) -> None:
        """Kill ``host``: it listens no more, and its protocols get no callback any more.

        The other ends see a reset, or nothing at all with ``silent`` (the machine lost power). The
        tasks that ran there are the caller's to cancel.
        """
        self.record("crash", host, silent)
        self.stop_listening(host)
        for connection in list(self.connections.values()):
            ends = (connection.client, connection.server)
            for end, other in (ends, ends[::-1]):
                if end.host_name != host or end.is_dead:
                    continue
                end.die()
                other.outgoing.vanish()
                if silent:
                    end.outgoing.vanish()
                else:
                    end.outgoing.push_reset()
            connection.end_closed()

    def stop_listening(self, host: str) -> None:
        """Close the listeners of ``host``: connects are refused from now on."""
        for server in [server for server in self._servers if server.has_host(host)]:
            server.close()

    def connections_between(self, one: str, other: str) -> list[Connection]:
        """The live connections between two hosts, oldest first."""
        return [
            connection
            for connection in self.connections.values()
            if {connection.client.host_name, connection.server.host_name} == {one, other}
        ]

    def record(self, event: str, *details: object) -> None:
        self.loop.trace.record(self.loop.time(), event, *details)

    # -- servers ----------------------------------------------------------------------------------

    def listen(
        self,
        factory: ProtocolFactory,
        hosts: Sequence[str | None],
        port: int,
        tls: ssl_module.SSLContext | None,
        tls_handshake_timeout: float | None,
    ) -> VirtualServer:
        """Bind ``port`` (0: a free one) on the current host, or on the addresses named."""
        bound: list[tuple[str, int, bool]] = []
        for host in hosts:
            address = self.resolve(host) if host else "0.0.0.0"
            parsed = ipaddress.ip_address(address)
            here = self.current_host
            is_local = parsed.is_loopback and address != here
            owner = here if parsed.is_unspecified or parsed.is_loopback else address
            if not port:
                port = self._free_port()
            if any(server.is_bound_to(owner, port) for server in self._servers):
                raise OSError(
                    errno.EADDRINUSE,
                    f"error while attempting to bind on address ({owner!r}, {port}): "
                    "address already in use",
                )
            if (owner, port, is_local) not in bound:
                bound.append((owner, port, is_local))
        server = VirtualServer(self, factory, bound, tls, tls_handshake_timeout)
        self._servers.append(server)
        return server

    def forget(self, server: VirtualServer) -> None:
        self._servers.remove(server)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    def _listener(self, host: str, port: int, *, over_loopback: bool) -> VirtualServer | None:
        for server in self._servers:
            if server.accepts(host, port, over_loopback=over_loopback):
                return server
        return None

    # -- connections ------------------------------------------------------------------------------

    async def connect(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ssl_module.SSLContext | None,
        server_hostname: str | None,
        tls_handshake_timeout: float | None,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect from the current host, as ``loop.create_connection`` does."""
        source = self.current_host
        address = self.resolve(host)
        over_loopback = ipaddress.ip_address(address).is_loopback and address != source
        target = source if over_loopback else address
        await self._cross(source, target, (host, port))
        server = self._listener(target, port, over_loopback=over_loopback or source == target)
        if server is None or self._random.random() < self.between(source, target).refuse:
            await self._cross(target, source, (host, port))
            self.record("refused", source, target, port)
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"Connect call failed ({address!r}, {port})"
            )
        connection = self._join(source, target, sockaddr(address, port), over_loopback)
        connection.server.context = server.context.copy()
        self.record("connect", connection.number, source, target, port)
        self.loop.call_soon(server.accept, connection, context=connection.server.context)
        try:
            await self._cross(target, source, (host, port))
            if connection.client.is_closing():
                raise reset_error()
            return await self._open_client(
                connection, factory, tls, server_hostname, tls_handshake_timeout
            )
        except BaseException:
            connection.client.abort()
            raise

    async def _cross(self, source: str, target: str, address: tuple[str, int]) -> None:
        """Let one packet of a handshake pass; wait out a partition, but not for ever."""
        try:
            async with asyncio.timeout(self.connect_seconds):
                while self.is_cut_off(source, target):
                    healed = self.loop.create_future()
                    self._healing.append(healed)
                    await healed
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"Connect call failed {address!r}") from None
        await asyncio.sleep(self.latency(source, target))

    def _join(
        self, source: str, target: str, far: tuple[Any, ...], over_loopback: bool
    ) -> Connection:
        connection = Connection(self, self._next_number)
        self._next_number += 1
        near = sockaddr(far[0] if over_loopback else source, self._free_port())
        forth, back = Pipe(connection, "c>s"), Pipe(connection, "s>c")
        client = Endpoint(connection, source, _extra(near, far), contextvars.copy_context())
        server = Endpoint(connection, target, _extra(far, near), contextvars.Context())
        forth.sender, forth.receiver = client, server
        back.sender, back.receiver = server, client
        client.outgoing, client.incoming = forth, back
        server.outgoing, server.incoming = back, forth
        connection.client, connection.server = client, server
        self.connections[connection.number] = connection
        return connection

    async def _open_client(
        self,
        connection: Connection,
        factory: ProtocolFactory,
        tls: ssl_module.SSLContext | None,
        server_hostname: str | None,
        tls_handshake_timeout: float | None,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        protocol = factory()
        opened: asyncio.Future[None] = self.loop.create_future()
        end = connection.client
        if tls is None:
            self.loop.call_soon(self._open_end, end, protocol, opened, context=end.context)
            await opened
            return end, protocol
        layer = tls_layer(self.loop, protocol, tls, opened, server_hostname, tls_handshake_timeout)
        self.loop.call_soon(end.open, layer, context=end.context)
        await opened
        return cast(Any, layer)._app_transport, protocol

    def _open_end(
        self, end: Endpoint, protocol: asyncio.BaseProtocol, opened: asyncio.Future[None]
    ) -> None:
        try:
            end.open(protocol)
        except Exception as error:
            if not opened.done():
                opened.set_exception(error)
            return
        if not opened.done():
            opened.set_result(None)


def _extra(sockname: tuple[Any, ...], peername: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "sockname": sockname,
        "peername": peername,
        "socket": VirtualSocket(sockname, peername),
    }
