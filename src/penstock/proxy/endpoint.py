"""The endpoint without its server: calls in, messages out."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.proxy.access import Access
from penstock.proxy.backend import Backend
from penstock.proxy.calls import Caller
from penstock.proxy.clients import MAX_CLIENT_ID, Client, Clients
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.halves import Halves
from penstock.proxy.handlers.finishing import (
    ack_message,
    change_invisible_duration,
    forward_to_dead_letter_queue,
)
from penstock.proxy.handlers.receiving import (
    Received,
    finish_poll,
    hold_poll,
    receive_message,
    status_response,
)
from penstock.proxy.handlers.routes import query_assignment, query_route
from penstock.proxy.handlers.sending import recall_message, send_message
from penstock.proxy.handlers.sessions import (
    end_client,
    heartbeat,
    notify_client_termination,
    take_settings,
)
from penstock.proxy.handlers.transactions import end_transaction, recover_orphan
from penstock.proxy.quick_calls import QuickCalls
from penstock.proxy.quick_polls import Found, QuickPolls
from penstock.proxy.renewals import LONGEST_SECONDS, ROUND_SECONDS, Renewals, make_visible
from penstock.proxy.statuses import Refused, status_of
from penstock.proxy.streams import Stream
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import AddressScheme, Code
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_NODE: Final = ("HTTP", "NODE_JS")
_AGAIN_SECONDS: Final = 1.0


class Unary(NamedTuple):
    """A call with one message each way."""

    request: Any
    response: Any
    handler: Callable[[Parts, Client, Any], Awaitable[Any]] | None
    """None: the call is known and not supported."""


UNARY: Final[Mapping[str, Unary]] = {
    "QueryRoute": Unary(wire.QueryRouteRequest, wire.QueryRouteResponse, query_route),
    "Heartbeat": Unary(wire.HeartbeatRequest, wire.HeartbeatResponse, heartbeat),
    "SendMessage": Unary(wire.SendMessageRequest, wire.SendMessageResponse, send_message),
    "QueryAssignment": Unary(
        wire.QueryAssignmentRequest, wire.QueryAssignmentResponse, query_assignment
    ),
    "AckMessage": Unary(wire.AckMessageRequest, wire.AckMessageResponse, ack_message),
    "ForwardMessageToDeadLetterQueue": Unary(
        wire.ForwardMessageToDeadLetterQueueRequest,
        wire.ForwardMessageToDeadLetterQueueResponse,
        forward_to_dead_letter_queue,
    ),
    "EndTransaction": Unary(
        wire.EndTransactionRequest, wire.EndTransactionResponse, end_transaction
    ),
    "NotifyClientTermination": Unary(
        wire.NotifyClientTerminationRequest,
        wire.NotifyClientTerminationResponse,
        notify_client_termination,
    ),
    "ChangeInvisibleDuration": Unary(
        wire.ChangeInvisibleDurationRequest,
        wire.ChangeInvisibleDurationResponse,
        change_invisible_duration,
    ),
    "RecallMessage": Unary(wire.RecallMessageRequest, wire.RecallMessageResponse, recall_message),
    "SyncLiteSubscription": Unary(
        wire.SyncLiteSubscriptionRequest, wire.SyncLiteSubscriptionResponse, None
    ),
}
"""Calls that are not here, such as PullMessage, are UNIMPLEMENTED, as at Apache's."""


class Endpoint(Service):
    """Serves calls; while it runs, it renews messages and forgets silent clients."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        advertised: Callable[[], tuple[str, int]],
        chance: random.Random | None = None,
        longest_renewal: float = LONGEST_SECONDS,
    ) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[Stream] = set()
        self._advertised = advertised
        halves = Halves(backend)
        clients = Clients(backend, clock, self._broker_asked, self._given_up)
        self.parts = Parts(
            backend=backend,
            clock=clock,
            clients=clients,
            renewals=Renewals(backend, clock, longest=longest_renewal),
            halves=halves,
            chance=chance or random.Random(),
            advertised=self._own_endpoints,
            in_background=self._start,
        )
        self.quick = QuickCalls(self.parts)
        self.quick_polls = QuickPolls(self.parts)
        self._access = Access(lambda: backend.users, clock, backend.own_signer)

    # Calls

    async def call(self, name: str, request: Any, caller: Caller) -> Any:
        """Serve a call with one message each way; the response says what was wrong."""
        unary = UNARY[name]
        try:
            client = await self._known(caller, is_leaving=name == "NotifyClientTermination")
            if unary.handler is None:
                raise Refused(Code.NOT_IMPLEMENTED, f"{name} is not supported")
            return await unary.handler(self.parts, client, request)
        except Exception as error:
            return unary.response(status=status_of(error))

    async def receive(self, request: wire.ReceiveMessageRequest, caller: Caller) -> Received:
        """Serve a poll."""
        try:
            client = await self._known(caller)
            return await receive_message(self.parts, client, request, caller.deadline)
        except Exception as error:
            return Received([status_response(status_of(error))])

    async def receive_rest(self, found: Found) -> Received:
        """Go on with a poll that the fast path has begun."""
        poll, popped = found.poll, found.popped
        try:
            return await (hold_poll(poll) if popped is None else finish_poll(poll, popped))
        except Exception as error:
            return Received([status_response(status_of(error))])

    def abandon(self, found: Found) -> None:
        """The client of a poll is gone before its answer."""
        if found.received is not None:
            self.not_delivered(found.received, 0)
        elif found.popped:
            lost = [one.receipt for one in found.popped]
            self._start(make_visible(found.poll.delivery, lost))

    def not_delivered(self, received: Received, written: int) -> None:
        """The client of a poll is gone after so many responses."""
        self._start(received.give_back(self.parts, written))

    async def _known(self, caller: Caller, *, is_leaving: bool = False) -> Client:
        try:
            return self._client(caller, is_leaving=is_leaving)
        except Refused:
            # A user that was made just now, at a server of another process.
            if not await self._access.has_news():
                raise
            return self._client(caller, is_leaving=is_leaving)

    def _client(self, caller: Caller, *, is_leaving: bool = False) -> Client:
        signer = self._access.signer(caller)
        if not caller.client_id.strip():
            raise Refused(Code.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing or empty")
        if len(caller.client_id) > MAX_CLIENT_ID:
            raise Refused(
                Code.BAD_REQUEST,
                f"a client id of {len(caller.client_id)} bytes",
                expected=f"at most {MAX_CLIENT_ID}",
            )
        if not is_leaving:
            return self.parts.clients.get(caller, signer)
        client = self.parts.clients.find(caller, signer)
        if client is None:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "the client is not known")
        return client

    # Telemetry

    async def open_stream(self, caller: Caller) -> Stream:
        """A stream of a client; one that cannot be used ends with its status."""
        stream = Stream()
        self._streams.add(stream)
        try:
            await self._known(caller)
        except PenstockError as error:
            stream.send(wire.TelemetryCommand(status=status_of(error)))
            stream.end()
        except BaseException:
            # Its call is gone, so nothing would close it.
            self._streams.discard(stream)
            raise
        return stream

    async def take_command(
        self, stream: Stream, caller: Caller, command: wire.TelemetryCommand
    ) -> None:
        """Serve a command of a client; a failure ends its stream."""
        if stream.is_ended or command.WhichOneof("command") != "settings":
            return
        try:
            client = await self._known(caller)
            answer = await take_settings(self.parts, client, command.settings)
        except Exception as error:
            stream.end(error)
            return
        client.stream = stream
        # One that was forgotten meanwhile is not found any more.
        stream.client = client
        stream.send(answer)
        if client.language.upper() in _NODE:
            # Its producer of several topics misses what comes before it knows the last route.
            if stream.settings is None:
                self._clock.call_later(_AGAIN_SECONDS, _send_again, stream)
            stream.settings = answer

    def open_streams(self) -> int:
        """How many streams are open now."""
        return len(self._streams)

    def close_stream(self, stream: Stream) -> None:
        """A stream is over; the client stays registered."""
        stream.end()
        self._streams.discard(stream)
        client, stream.client = stream.client, None
        if client is not None and client.stream is stream:
            client.stream = None

    def _given_up(self, client: Client) -> None:
        log.debug("too many clients, forgotten id=%s", client.id)
        self._start(end_client(self.parts, client))

    # Requests of brokers

    def _broker_asked(self, client: Client, broker_name: str, command: Command) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            recover_orphan(self.parts.halves, client, broker_name, command)

    # Running

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        try:
            while True:
                await self._clock.sleep(ROUND_SECONDS)
                await self.parts.renewals.round()
                for client in self.parts.clients.silent():
                    log.info("client is silent, forgotten id=%s", client.id)
                    await end_client(self.parts, client)
        finally:
            await asyncio.shield(self._end())

    async def _end(self) -> None:
        """Answer polls, end streams, give back what is not finished."""
        for stream in list(self._streams):
            stream.end()
        clients = self.parts.clients.all()
        for client in clients:
            self.parts.clients.remove(client)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_AGAIN_SECONDS)
        await self.parts.renewals.release_all()
        for client in clients:
            await client.leave()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work of the endpoint failed", exc_info=task.exception())

    def _own_endpoints(self) -> wire.Endpoints:
        host, port = self._advertised()
        if ":" in host:
            scheme = AddressScheme.IPV6
        elif host.replace(".", "").isdecimal():
            scheme = AddressScheme.IPV4
        else:
            scheme = AddressScheme.DOMAIN_NAME
        return wire.Endpoints(scheme=scheme, addresses=[wire.Address(host=host, port=port)])


def _send_again(stream: Stream) -> None:
    answer, stream.settings = stream.settings, None
    if answer is not None:
        stream.send(answer)


def failure_text(failure: Exception) -> tuple[bool, str]:
    """Whether a stream ends for a fault of the client, and the text of the error."""
    status = status_of(failure)
    return Code.BAD_REQUEST <= status.code < Code.INTERNAL_ERROR, status.message
