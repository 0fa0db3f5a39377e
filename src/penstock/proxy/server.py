"""The gRPC server: the only module that knows grpc.

Calls are served on the loop of the process. Everything about a call that the rules need is put
into a `Caller`; answers are messages, and errors are statuses inside them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from penstock.errors import ListenFailed
from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import UNARY, Endpoint, failure_text
from penstock.proxy.statuses import Refused, make_status
from penstock.proxy.streams import Stream
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.remoting.addresses import format_address
from penstock.remoting.listener import bind
from penstock.remoting.tls import ServerTls, TlsMode
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 16 << 20
"""A body of the greatest legal size with its properties, and room for several messages."""
_MAX_METADATA_BYTES: Final = 64 << 10
_STOP_SECONDS: Final = 1.0
_OPTIONS: Final = (
    # A taken port is an error, not a second server beside the first.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    # The C++ client pings each minute and Java's each five, with and without calls.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 120_000),
)


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
    ) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._host = host
        self._asked_port = port
        self._tls = tls
        self.port = 0
        """The port that is listened on, once it is started."""

    async def _run(self, ready: Callable[[], None]) -> None:
        # A socket of our own says better what is wrong with the port than grpc does.
        for sock in await bind(self._host, self._asked_port):
            sock.close()
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers(),))
        self.port = self._listen(server)
        await server.start()
        log.info("grpc listening host=%s port=%d", self._host, self.port)
        async with self.endpoint:
            try:
                ready()
                await self.endpoint.wait()
            finally:
                await asyncio.shield(self._stop(server))

    async def _stop(self, server: grpc.aio.Server) -> None:
        # Nothing but the endpoint ends polls and streams.
        await self.endpoint.stop()
        await server.stop(_STOP_SECONDS)

    def _listen(self, server: grpc.aio.Server) -> int:
        address = format_address((self._host, self._asked_port))
        credentials = _credentials(self._tls)
        try:
            if credentials is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise ListenFailed(
                f"cannot listen for gRPC on {address}: {error}",
                hint="stop the process that listens there, or choose another port (0: any free)",
            ) from error

    def _handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler] = {
            name: grpc.unary_unary_rpc_method_handler(
                functools.partial(self._unary, name),
                response_serializer=unary.response.SerializeToString,
            )
            for name, unary in UNARY.items()
        }
        handlers["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(
            self._receive,
            response_serializer=wire.ReceiveMessageResponse.SerializeToString,
        )
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry,
            response_serializer=wire.TelemetryCommand.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    # Calls

    def _caller(self, context: Any) -> Caller:
        metadata = {key: value for key, value in context.invocation_metadata() or ()}
        left = context.time_remaining()
        return Caller(
            client_id=_text(metadata.get("x-mq-client-id")),
            address=_address(context.peer()),
            language=_text(metadata.get("x-mq-language")),
            version=_text(metadata.get("x-mq-client-version")),
            deadline=None if left is None else self._clock.monotonic() + left,
            date_time=_text(metadata.get("x-mq-date-time")),
            authorization=_text(metadata.get("authorization")),
        )

    # Requests are decoded here: what cannot be decoded is a fault of the client, which grpc would
    # log as one of ours, with a traceback for each.

    async def _unary(self, name: str, data: bytes, context: Any) -> Any:
        unary = UNARY[name]
        try:
            request = unary.request.FromString(data)
        except DecodeError as error:
            return unary.response(status=make_status(Code.BAD_REQUEST, str(error)))
        return await self.endpoint.call(name, request, self._caller(context))

    async def _receive(self, data: bytes, context: Any) -> None:
        try:
            request = wire.ReceiveMessageRequest.FromString(data)
        except DecodeError as error:
            status = make_status(Code.BAD_REQUEST, str(error))
            await context.write(wire.ReceiveMessageResponse(status=status))
            return
        received = await self.endpoint.receive(request, self._caller(context))
        written = 0
        try:
            for response in received.responses:
                await context.write(response)
                written += 1
        finally:
            if written < len(received.responses):
                self.endpoint.not_delivered(received, written)

    async def _telemetry(self, commands: AsyncIterator[bytes], context: Any) -> None:
        caller = self._caller(context)
        stream = self.endpoint.open_stream(caller)
        reader = asyncio.ensure_future(self._read(stream, caller, commands))
        try:
            while (command := await stream.next()) is not None:
                await context.write(command)
        finally:
            reader.cancel()
            self.endpoint.close_stream(stream)
        if stream.failure is not None:
            is_fault_of_client, text = failure_text(stream.failure)
            code = grpc.StatusCode.INVALID_ARGUMENT
            if not is_fault_of_client:
                code = grpc.StatusCode.INTERNAL
            await context.abort(code, text)

    async def _read(self, stream: Stream, caller: Caller, commands: AsyncIterator[bytes]) -> None:
        try:
            async for data in commands:
                command = wire.TelemetryCommand.FromString(data)
                await self.endpoint.take_command(stream, caller, command)
        except DecodeError as error:
            stream.end(Refused(Code.BAD_REQUEST, str(error)))
        except grpc.RpcError:
            pass
        finally:
            stream.end()


def _credentials(tls: ServerTls | None) -> grpc.ServerCredentials | None:
    """What a port with TLS needs; grpc cannot take plain connections on the same port."""
    if tls is None or tls.mode is TlsMode.DISABLED:
        return None
    assert tls.certificate_file is not None, "checked when it was made"
    key_file = tls.key_file or tls.certificate_file
    authority = None if tls.client_ca_file is None else tls.client_ca_file.read_bytes()
    return grpc.ssl_server_credentials(
        [(key_file.read_bytes(), tls.certificate_file.read_bytes())],
        root_certificates=authority,
        require_client_auth=authority is not None,
    )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value or ""


def _address(peer: str) -> str:
    """``ip:port`` of what grpc says, ``ipv4:1.2.3.4:5`` or ``ipv6:%5B::1%5D:5``."""
    kind, _, address = unquote(peer or "").partition(":")
    return address if kind in ("ipv4", "ipv6") and address else "127.0.0.1:0"
