"""The gRPC server: the endpoint on a port.

Calls are served on the loop of the process. Everything about a call that the rules need is put
into a `Caller`; answers are messages, and errors are statuses inside them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from google.protobuf.message import DecodeError

from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import UNARY, Endpoint, Unary, failure_text
from penstock.proxy.handlers.receiving import Received, status_response
from penstock.proxy.http2.call import Call, Method
from penstock.proxy.http2.grpc_status import CallFailed, GrpcStatus
from penstock.proxy.http2.listening import MAX_CONNECTIONS, Http2Server
from penstock.proxy.quick_calls import QuickCall
from penstock.proxy.quick_polls import Found
from penstock.proxy.statuses import Refused, make_status
from penstock.proxy.streams import Stream
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.remoting.certificate_reload import CertificateReload
from penstock.remoting.listener import SniffingListener, bind
from penstock.remoting.tls import HANDSHAKE_SECONDS, ServerTls, TlsMode
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service, wait_any

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 16 << 20
"""A body of the greatest legal size with its properties, and room for several messages."""
MAX_SMALL_BYTES: Final = 1 << 20
"""A request that has no messages: settings with a thousand topics are far below it."""
_MAX_UNTAKEN: Final = 1 << 20
"""Bytes of a poll that wait for the client; the rest waits as messages."""
MAX_HANDSHAKES: Final = MAX_CONNECTIONS // 4
"""Connections that wait for their TLS handshake."""
_CLIENT_ID: Final = "x-mq-client-id"
_SENDING: Final = "SendMessage"
_STOP_SECONDS: Final = 1.0


class GrpcServer(Service):
    """Serves one endpoint on one port."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        *,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        """``sockets`` are listening already; host and port are not used then."""
        self.endpoint = endpoint
        self._clock = clock
        self._host = host
        self._asked_port = port
        self._tls = tls
        self._sockets = list(sockets)
        self.port = 0
        """The port that is listened on, once it is started."""

    async def _run(self, ready: Callable[[], None]) -> None:
        # A port takes plain connections, or such with TLS: a client of this API is set to one of
        # them.
        context = None if self._tls is None else self._tls.context()
        sockets = self._sockets or await bind(self._host, self._asked_port)
        self.port = sockets[0].getsockname()[1]
        server = Http2Server(
            self._methods(),
            max_message=MAX_REQUEST_BYTES,
            accept=None if context is None else functools.partial(_accept, context),
        )
        parts: list[Service] = [self.endpoint]
        if self._tls is not None and context is not None:
            parts.append(CertificateReload(self._tls, context, self._clock))
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(part)
            await server.start(sockets)
            log.info("grpc listening host=%s port=%d", self._host, self.port)
            try:
                ready()
                await wait_any(*parts)
            finally:
                await asyncio.shield(self._stop(server))

    async def _stop(self, server: Http2Server) -> None:
        server.leave()
        # Nothing but the endpoint ends polls and streams.
        await self.endpoint.stop()
        await server.stop(_STOP_SECONDS)

    def _methods(self) -> dict[str, Method]:
        methods = {
            f"/{SERVICE}/{name}": Method(
                functools.partial(self._unary, name, unary),
                max_message=MAX_REQUEST_BYTES if name == _SENDING else MAX_SMALL_BYTES,
                quick=_quick(self.endpoint.quick.by_name.get(name)),
            )
            for name, unary in UNARY.items()
        }
        methods[f"/{SERVICE}/ReceiveMessage"] = Method(
            self._receive, max_message=MAX_SMALL_BYTES, quick=self._quick_receive
        )
        methods[f"/{SERVICE}/Telemetry"] = Method(
            self._telemetry, is_streaming=True, max_message=MAX_SMALL_BYTES
        )
        return methods

    # Calls

    def _caller(self, call: Call) -> Caller:
        get = call.headers.get
        timeout = call.timeout
        return Caller(
            client_id=get(_CLIENT_ID, ""),
            address=call.remote,
            language=get("x-mq-language", ""),
            version=get("x-mq-client-version", ""),
            deadline=None if timeout is None else self._clock.monotonic() + timeout,
            date_time=get("x-mq-date-time", ""),
            authorization=get("authorization", ""),
        )

    async def _unary(self, name: str, unary: Unary, call: Call) -> None:
        answer: Any
        try:
            # The request has a copy of its own, for as long as it is needed.
            data, call.message = call.message, b""
            request = unary.request.FromString(data)
            del data
        except DecodeError as error:
            answer = unary.response(status=make_status(Code.BAD_REQUEST, str(error)))
        else:
            answer = await self.endpoint.call(name, request, self._caller(call))
        call.answer(answer.SerializeToString())

    async def _receive(self, call: Call) -> None:
        try:
            request = wire.ReceiveMessageRequest.FromString(call.message)
        except DecodeError as error:
            status = make_status(Code.BAD_REQUEST, str(error))
            call.write(status_response(status))
            return
        await self._deliver(await self.endpoint.receive(request, self._caller(call)), call)

    def _quick_receive(self, call: Call) -> bool:
        def done(found: Found) -> None:
            left = functools.partial(self.endpoint.abandon, found)
            if found.received is None:
                call.go_on(functools.partial(self._receive_rest, found), left)
            elif not call.answer_all(found.received.responses):
                call.go_on(functools.partial(self._deliver, found.received), left)

        client_id = call.headers.get(_CLIENT_ID, "")
        if not self.endpoint.quick_polls.start(client_id, call.message, call.timeout, done):
            return False
        call.message = b""
        return True

    async def _receive_rest(self, found: Found, call: Call) -> None:
        await self._deliver(await self.endpoint.receive_rest(found), call)

    async def _deliver(self, received: Received, call: Call) -> None:
        ends: list[int] = []
        try:
            for response in received.responses:
                call.write(response)
                ends.append(call.queued)
                if len(call.pending) > _MAX_UNTAKEN:
                    await call.drain()
            await call.drain()
        finally:
            written = sum(end <= call.flushed for end in ends)
            if written < len(received.responses):
                self.endpoint.not_delivered(received, written)

    async def _telemetry(self, call: Call) -> None:
        caller = self._caller(call)
        stream = await self.endpoint.open_stream(caller)
        reader = asyncio.ensure_future(self._read(stream, caller, call))
        try:
            while (command := await stream.next()) is not None:
                call.write(command.SerializeToString())
                await call.drain()
        finally:
            reader.cancel()
            self.endpoint.close_stream(stream)
        if stream.failure is not None:
            is_fault_of_client, text = failure_text(stream.failure)
            status = GrpcStatus.INVALID_ARGUMENT if is_fault_of_client else GrpcStatus.INTERNAL
            raise CallFailed(status, text)

    async def _read(self, stream: Stream, caller: Caller, call: Call) -> None:
        try:
            while (data := await call.read()) is not None:
                command = wire.TelemetryCommand.FromString(data)
                await self.endpoint.take_command(stream, caller, command)
        except DecodeError as error:
            stream.end(Refused(Code.BAD_REQUEST, str(error)))
        finally:
            stream.end()


def _quick(serve: QuickCall | None) -> Callable[[Call], bool] | None:
    """A fast path of the endpoint as one of the server."""
    if serve is None:
        return None

    def take(call: Call) -> bool:
        if not serve(call.headers.get(_CLIENT_ID, ""), call.message, call.answer):
            return False
        # It is not needed any more, and the answer of the broker may take a while.
        call.message = b""
        return True

    return take


def _accept(
    context: ssl.SSLContext,
    make: Callable[[], asyncio.Protocol],
    sockets: list[socket.socket],
) -> SniffingListener:
    """Accept connections with TLS.

    A server of the loop knows a connection only after its handshake, so any number of them could
    wait for that.
    """
    context.set_alpn_protocols(["h2"])
    for one in sockets:
        one.setblocking(False)
    return SniffingListener(
        make,
        sockets,
        context=context,
        mode=TlsMode.ENFORCING,
        patience=HANDSHAKE_SECONDS,
        max_waiting=MAX_HANDSHAKES,
    )
