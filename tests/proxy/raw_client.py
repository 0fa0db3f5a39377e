"""Calls over a real channel, without a client library."""

from __future__ import annotations

from typing import Any

import grpc.aio
from tests.proxy.lab import GROUP, TOPIC

from penstock.proxy.endpoint import UNARY
from penstock.proxy.times import duration
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.definitions import SERVICE

CALL_SECONDS = 20
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # Channels of one process would share a connection otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # The time that a connection may take. The server may be on the same loop as the client.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class RawClient:
    """A client with a connection of its own."""

    def __init__(self, address: str, client_id: str = "a-client") -> None:
        self.address = address
        self.metadata = (("x-mq-client-id", client_id),)
        self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    async def call(self, name: str, request: Any, metadata: Any = None) -> Any:
        unary = UNARY[name]
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=unary.request.SerializeToString,
            response_deserializer=unary.response.FromString,
        )
        metadata = self.metadata if metadata is None else metadata
        return await method(request, metadata=metadata, timeout=CALL_SECONDS)

    async def raw(self, name: str, data: bytes) -> bytes:
        method = self.channel.unary_unary(f"/{SERVICE}/{name}")
        return bytes(await method(data, metadata=self.metadata, timeout=CALL_SECONDS))

    def receive(self, wait: float = 20, timeout: float | None = None, group: str = GROUP) -> Any:
        request = wire.ReceiveMessageRequest(
            group=wire.Resource(name=group),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=TOPIC)),
            batch_size=32,
            auto_renew=True,
            long_polling_timeout=duration(wait),
        )
        method = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=wire.ReceiveMessageRequest.SerializeToString,
            response_deserializer=wire.ReceiveMessageResponse.FromString,
        )
        return method(request, metadata=self.metadata, timeout=timeout)

    def telemetry(self, metadata: Any = None) -> Any:
        return self.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=wire.TelemetryCommand.SerializeToString,
            response_deserializer=wire.TelemetryCommand.FromString,
        )(metadata=self.metadata if metadata is None else metadata)
