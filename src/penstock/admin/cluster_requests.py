"""How an administrator reaches a cluster: a session without groups, and requests to many at once.

An action is a coroutine that runs on the session's loop from beginning to end (`on_host`), wherever
it was called from. So it has one clock, which is the virtual one when the cluster is.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from penstock.auth.freshness import stamps
from penstock.client.arguments import AccessOptions, session_settings, split
from penstock.client.requests import Request, body_bytes
from penstock.client.session import session_registry
from penstock.client.session.client_session import ClientSession
from penstock.client.session.host import Host
from penstock.client.session.namespaces import SEPARATOR
from penstock.client.session.session_registry import Lease
from penstock.errors import (
    ConfigError,
    LifecycleError,
    NameserverUnavailable,
    PenstockError,
    RemotingError,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model import StoredMessage, TopicRoute
from penstock.protocol import bodies
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.runtime.durations import Duration, seconds

if TYPE_CHECKING:
    from penstock.protocol.headers.codec import Header

_T = TypeVar("_T")
_Body = TypeVar("_Body")
_Self = TypeVar("_Self", bound="ClusterRequests")
_P = ParamSpec("_P")

Action = Callable[Concatenate[_Self, _P], Coroutine[Any, Any, _T]]


def on_host(action: Action[_Self, _P, _T]) -> Action[_Self, _P, _T]:
    """Run an action on the loop of the session, wherever it is awaited."""

    @functools.wraps(action)
    async def run(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.host.await_(action(self, *args, **kwargs))

    return run


class ClusterRequests:
    """Name servers, brokers and the names of topics, as one user sees them."""

    def __init__(
        self,
        *,
        namesrv: str | Iterable[str] | None = None,
        timeout: Duration = 5,
        **options: Unpack[AccessOptions],
    ) -> None:
        access, rest = split(dict(options))
        if rest:
            raise ConfigError(f"unknown keyword: {', '.join(map(repr, rest))}")
        self._settings = session_settings(namesrv, None, access)
        self._timeout = seconds(timeout)
        self._lease: Lease | None = None
        self._is_closed = False
        # The first call may come from several threads at once.
        self._opening = threading.Lock()

    # ------------------------------------------------------------------------- the session

    @property
    def host(self) -> Host:
        """Where the session runs; made by the first call."""
        with self._opening:
            if self._is_closed:
                raise LifecycleError(
                    f"this Admin of {self._nameservers_text} was closed", hint="make a new one"
                )
            if self._lease is None:
                self._lease = session_registry.lease(self._settings)
            return self._lease.host

    def give_up(self) -> Lease | None:
        """Make no more calls; the caller releases what is returned."""
        with self._opening:
            self._is_closed = True
            lease, self._lease = self._lease, None
            return lease

    @property
    def session(self) -> ClientSession:
        """The session of a running action."""
        lease = self._lease
        if lease is None:
            raise LifecycleError(
                f"this Admin of {self._nameservers_text} was closed during the request"
            )
        return lease.session

    @property
    def _nameservers_text(self) -> str:
        return ", ".join(self._settings.access.namesrv)

    # -------------------------------------------------------------------------------- names

    def long_name(self, name: str) -> str:
        """The name brokers know a topic or group by."""
        return self._settings.access.long_name(name)

    def short_name(self, name: str) -> str:
        """The name this user knows a topic or group by."""
        return self._settings.access.short_name(name)

    def is_ours(self, name: str) -> bool:
        """Whether a topic or group is in this user's namespace."""
        namespace = self._settings.access.namespace
        return not namespace or f"{namespace}{SEPARATOR}" in name

    def shown(self, messages: Iterable[StoredMessage]) -> list[StoredMessage]:
        """Messages under the topic names this user knows."""
        shown = list(messages)
        if self._settings.access.namespace:
            for message in shown:
                message.topic = self.short_name(message.topic)
        return shown

    # ----------------------------------------------------------------------------- requests

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        about: str,
        seconds: float | None = None,
    ) -> Command:
        """Ask one server; anything but success is an error that names it and ``about``."""
        request = Request(code=code, about=about, header=header, body=body, read=lambda a: a)
        return await self.call(address, request, seconds)

    async def call(self, address: str, request: Request[_T], seconds: float | None = None) -> _T:
        """Send a request to one server, with the timeout of this administrator."""
        if self._settings.access.credentials is not None:
            extra = {**(request.extra or {}), **stamps.fields(request.code)}
            request = replace(request, extra=extra)
        return await self.session.calls.call(address, request, seconds or self._timeout)

    async def ask_body(
        self,
        body_type: type[_Body],
        address: str,
        code: int,
        header: Header | None = None,
        *,
        about: str,
        seconds: float | None = None,
    ) -> _Body:
        """Ask one server for a structured body."""
        answer = await self.ask(address, code, header, about=about, seconds=seconds)
        return decode_body(body_type, body_bytes(answer))

    async def ask_nameserver(
        self, code: int, header: Header | None = None, *, about: str
    ) -> Command:
        """Ask whichever name server answers."""
        failures: list[str] = []
        addresses = self._settings.access.namesrv
        first = addresses.index(self.session.nameservers.current)
        for address in (*addresses[first:], *addresses[:first]):
            try:
                return await self.ask(address, code, header, about=about)
            except RemotingError as error:
                failures.append(str(error))
        raise NameserverUnavailable(
            f"none of the name servers {self._nameservers_text} answered ({'; '.join(failures)})",
            hint="is a name server running there, and is the address right?",
        )

    async def tell_nameservers(
        self, code: int, header: Header | None = None, *, about: str
    ) -> None:
        """Tell every name server; they know nothing of each other."""
        await asyncio.gather(
            *(
                self.ask(address, code, header, about=about)
                for address in self._settings.access.namesrv
            )
        )

    async def each(
        self, brokers: Mapping[str, str], ask: Callable[[str], Awaitable[_T]]
    ) -> dict[str, _T]:
        """Ask several brokers at once; answers by broker name, in its order."""
        names = sorted(brokers)
        answers = await asyncio.gather(*(ask(brokers[name]) for name in names))
        return dict(zip(names, answers, strict=True))

    async def each_answering(
        self, brokers: Mapping[str, str], ask: Callable[[str], Awaitable[_T]]
    ) -> tuple[dict[str, _T], dict[str, str]]:
        """Ask several brokers at once: the answers, and the errors of those without one."""
        names = sorted(brokers)
        results = await asyncio.gather(
            *(ask(brokers[name]) for name in names), return_exceptions=True
        )
        answers: dict[str, _T] = {}
        silent: dict[str, str] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, PenstockError):
                silent[name] = str(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[name] = result
        return answers, silent

    # ------------------------------------------------------------------------ who there is

    async def cluster_info(self) -> bodies.routes.ClusterInfo:
        """Every broker that is registered."""
        answer = await self.ask_nameserver(
            RequestCode.GET_BROKER_CLUSTER_INFO, about="the brokers of the cluster"
        )
        return decode_body(bodies.routes.ClusterInfo, body_bytes(answer))

    async def masters(self, brokers: Iterable[str] | None = None) -> dict[str, str]:
        """The addresses of masters by broker name: of all, or of the brokers named."""
        info = await self.cluster_info()
        found = {
            name: data.broker_addrs[0]
            for name, data in info.broker_addr_table.items()
            if 0 in data.broker_addrs
        }
        if brokers is not None:
            wanted = list(brokers)
            missing = [name for name in wanted if name not in found]
            if missing:
                raise ServiceNotAvailable(
                    f"no master of broker {', '.join(map(repr, missing))} is registered at "
                    f"name servers {self._nameservers_text}",
                    expected=f"one of {', '.join(sorted(found)) or '(none is registered)'}",
                )
            found = {name: found[name] for name in wanted}
        if not found:
            raise ServiceNotAvailable(
                f"no broker is registered at name servers {self._nameservers_text}",
                hint="start one: penstock broker --namesrv ...",
            )
        return found

    async def find_route(self, topic: str) -> TopicRoute | None:
        """The route of a long name; None for an unknown topic."""
        return await self.session.nameservers.route(topic)

    async def require_route(self, topic: str) -> TopicRoute:
        """The route of a long name; `TopicNotFound` for an unknown topic."""
        route = await self.find_route(topic)
        if route is None:
            raise TopicNotFound(
                f"no route for topic {topic!r} at name servers {self._nameservers_text}",
                expected="an existing topic",
                hint=f"penstock topic create {topic}",
            )
        return route

    async def topic_masters(self, topic: str) -> dict[str, str]:
        """The masters that have a topic (a long name), by broker name."""
        route = await self.require_route(topic)
        with_queues = {queues.broker_name for queues in route.queues}
        return {
            broker.broker_name: broker.master
            for broker in route.brokers
            if broker.master is not None and broker.broker_name in with_queues
        }
