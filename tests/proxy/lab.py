"""An endpoint in front of a broker, and clients of it, without gRPC and in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.topics import TopicConfig
from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import UNARY, Endpoint
from penstock.proxy.handlers.receiving import Received
from penstock.proxy.local_backend import LocalBackend
from penstock.proxy.quick_polls import Found
from penstock.proxy.renewals import LONGEST_SECONDS
from penstock.proxy.streams import Stream
from penstock.proxy.times import duration, timestamp
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import AddressScheme, ClientType, Code, FilterType, MessageType
from penstock.runtime.clock import Clock

TOPIC = "orders"
GROUP = "billing"
ENDPOINTS = wire.Endpoints(
    scheme=AddressScheme.IPV4, addresses=[wire.Address(host="192.0.2.7", port=8081)]
)
_ids = itertools.count(1)


def topic_config(
    name: str = TOPIC, queues: int = 4, *, write: int | None = None, perm: int = 6, kind: str = ""
) -> TopicConfig:
    attributes = {"message.type": kind} if kind else {}
    return TopicConfig(
        name, queues, queues if write is None else write, perm, attributes=attributes
    )


class Lab:
    """One broker with an endpoint."""

    def __init__(
        self, root: Path, *, longest_renewal: float = LONGEST_SECONDS, **settings: Any
    ) -> None:
        self._stage = Stage(root)
        self._longest_renewal = longest_renewal
        self._settings = settings
        self.broker: Broker
        self.endpoint: Endpoint

    @property
    def clock(self) -> Clock:
        return self._stage.clock

    async def __aenter__(self) -> Self:
        await self._stage.__aenter__()
        self.broker = await self._stage.broker(**self._settings)
        self.endpoint = Endpoint(
            LocalBackend(self.broker),
            self.clock,
            advertised=lambda: ("192.0.2.1", 8081),
            chance=random.Random(1),
            longest_renewal=self._longest_renewal,
        )
        await self.endpoint.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.endpoint.stop()
        await self._stage.__aexit__(exc_type, exc, traceback)

    def topic(self, name: str = TOPIC, queues: int = 4, **more: Any) -> None:
        self.broker.state.topics.put(topic_config(name, queues, **more))

    def group(self, name: str = GROUP, **settings: Any) -> None:
        self.broker.state.groups.put(SubscriptionGroupConfig(name, **settings))

    def client(self, client_id: str = "c1", **facts: Any) -> LabClient:
        return LabClient(self, Caller(client_id=client_id, address="198.51.100.9:4000", **facts))

    async def remoting(self) -> Wire:
        return await self._stage.connect(self.broker)


class LabClient:
    """A client of the endpoint, in the words of a test."""

    def __init__(self, lab: Lab, caller: Caller) -> None:
        self.lab = lab
        self.caller = caller

    async def call(self, name: str, request: Any) -> Any:
        """The answer to a call, by the fast path if that takes it, as the server serves it."""
        answer = await self.quick(name, request)
        return await self.plain(name, request) if answer is None else answer

    async def plain(self, name: str, request: Any) -> Any:
        return await self.lab.endpoint.call(name, request, self.caller)

    async def quick(self, name: str, request: Any) -> Any | None:
        """The answer of the fast path; None if it leaves the call to the plain one."""
        serve = self.lab.endpoint.quick.by_name.get(name)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        data = request.SerializeToString()
        if serve is None or not serve(self.caller.client_id, data, answer.set_result):
            return None
        return UNARY[name].response.FromString(await answer)

    # Sending

    async def send(self, body: bytes = b"hello", **more: Any) -> Any:
        return await self.call(
            "SendMessage", wire.SendMessageRequest(messages=[message(body, **more)])
        )

    async def sent(self, body: bytes = b"hello", **more: Any) -> Any:
        """Send a message that must be stored; its entry."""
        answer = await self.send(body, **more)
        assert answer.status.code == Code.OK, answer.status
        return answer.entries[0]

    # Receiving

    async def receive(self, **more: Any) -> list[wire.ReceiveMessageResponse]:
        """The responses of a poll, by the fast path if that takes it, as the server serves it."""
        request = poll_request(**more)
        found = await self.quick_poll(request)
        endpoint = self.lab.endpoint
        if found is None:
            received = await endpoint.receive(request, self.caller)
        else:
            received = found.received or await endpoint.receive_rest(found)
        return responses_of(received)

    async def plain_receive(self, **more: Any) -> list[wire.ReceiveMessageResponse]:
        """The responses of a poll by the plain path."""
        return responses_of(await self.lab.endpoint.receive(poll_request(**more), self.caller))

    async def quick_poll(self, request: wire.ReceiveMessageRequest) -> Found | None:
        """What the fast path finds; None if it leaves the poll to the plain one."""
        found: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        polls, deadline = self.lab.endpoint.quick_polls, self.caller.deadline
        timeout = None if deadline is None else deadline - self.lab.clock.monotonic()
        data = request.SerializeToString()

        def done(result: Found) -> None:
            if found.cancelled():
                self.lab.endpoint.abandon(result)
            else:
                found.set_result(result)

        if not polls.start(self.caller.client_id, data, timeout, done):
            return None
        try:
            return await found
        except asyncio.CancelledError:
            if found.done() and not found.cancelled():
                self.lab.endpoint.abandon(found.result())
            raise

    async def messages(self, **more: Any) -> list[wire.Message]:
        """The messages of a poll that must not be refused."""
        responses = await self.receive(**more)
        status = responses[0].status
        assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
        return [one.message for one in responses if one.WhichOneof("content") == "message"]

    async def ack(self, *handles: str, topic: str = TOPIC, group: str = GROUP) -> Any:
        return await self.call(
            "AckMessage",
            wire.AckMessageRequest(
                group=wire.Resource(name=group),
                topic=wire.Resource(name=topic),
                entries=[
                    wire.AckMessageEntry(message_id=f"m{index}", receipt_handle=handle)
                    for index, handle in enumerate(handles)
                ],
            ),
        )

    async def change(
        self, handle: str, seconds: float, *, suspend: bool | None = None, **more: Any
    ) -> Any:
        return await self.call(
            "ChangeInvisibleDuration",
            wire.ChangeInvisibleDurationRequest(
                group=wire.Resource(name=more.get("group", GROUP)),
                topic=wire.Resource(name=more.get("topic", TOPIC)),
                receipt_handle=handle,
                invisible_duration=duration(seconds),
                message_id="m",
                suspend=suspend,
            ),
        )

    async def bury(self, message: wire.Message, **more: Any) -> Any:
        return await self.call(
            "ForwardMessageToDeadLetterQueue",
            wire.ForwardMessageToDeadLetterQueueRequest(
                group=wire.Resource(name=more.get("group", GROUP)),
                topic=wire.Resource(name=more.get("topic", TOPIC)),
                receipt_handle=handle_of(message),
                message_id=message.system_properties.message_id,
            ),
        )

    async def end(self, transaction_id: str, resolution: int, **more: Any) -> Any:
        return await self.call(
            "EndTransaction",
            wire.EndTransactionRequest(
                topic=wire.Resource(name=more.get("topic", TOPIC)),
                message_id=transaction_id,
                transaction_id=transaction_id,
                resolution=resolution,
                source=more.get("source", 1),
            ),
        )

    # Sessions

    async def heartbeat(self, kind: ClientType, group: str | None = None) -> Any:
        resource = None if group is None else wire.Resource(name=group)
        return await self.call("Heartbeat", wire.HeartbeatRequest(group=resource, client_type=kind))

    async def settle(self, settings: wire.Settings) -> tuple[Stream, wire.TelemetryCommand | None]:
        """Open a stream, send settings, and take the answer."""
        stream = await self.lab.endpoint.open_stream(self.caller)
        await self.lab.endpoint.take_command(
            stream, self.caller, wire.TelemetryCommand(settings=settings)
        )
        return stream, await stream.next()

    async def leave(self) -> Any:
        return await self.call("NotifyClientTermination", wire.NotifyClientTerminationRequest())


def poll_request(
    *,
    topic: str = TOPIC,
    group: str = GROUP,
    count: int = 32,
    invisible: float = 30,
    wait: float = 0,
    tags: str = "*",
    sql: str | None = None,
    renew: bool = False,
    queue_id: int = -1,
    attempt: str | None = None,
) -> wire.ReceiveMessageRequest:
    """A poll."""
    expression = wire.FilterExpression(type=FilterType.TAG, expression=tags)
    if sql is not None:
        expression = wire.FilterExpression(type=FilterType.SQL, expression=sql)
    request = wire.ReceiveMessageRequest(
        group=wire.Resource(name=group),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic), id=queue_id),
        filter_expression=expression,
        batch_size=count,
        auto_renew=renew,
        long_polling_timeout=duration(wait),
    )
    if not renew:
        request.invisible_duration.CopyFrom(duration(invisible))
    if attempt is not None:
        request.attempt_id = attempt
    return request


def responses_of(received: Received) -> list[wire.ReceiveMessageResponse]:
    """The responses of a poll as messages."""
    return [wire.ReceiveMessageResponse.FromString(one) for one in received.responses]


def message(
    body: bytes = b"hello",
    *,
    topic: str = TOPIC,
    tag: str | None = None,
    keys: tuple[str, ...] = (),
    group: str | None = None,
    at_ms: int | None = None,
    kind: MessageType = MessageType.NORMAL,
    properties: dict[str, str] | None = None,
    message_id: str | None = None,
    **more: Any,
) -> wire.Message:
    """A message as a producer builds it."""
    system = wire.SystemProperties(
        keys=keys,
        message_id=f"01{next(_ids):032X}" if message_id is None else message_id,
        message_type=kind,
        born_host="a-host",
        **more,
    )
    if tag is not None:
        system.tag = tag
    if group is not None:
        system.message_group = group
    if at_ms is not None:
        system.delivery_timestamp.CopyFrom(timestamp(at_ms))
    return wire.Message(
        topic=wire.Resource(name=topic),
        user_properties=properties or {},
        system_properties=system,
        body=body,
    )


def producer_settings(*topics: str) -> wire.Settings:
    return wire.Settings(
        client_type=ClientType.PRODUCER,
        access_point=ENDPOINTS,
        publishing=wire.Publishing(topics=[wire.Resource(name=topic) for topic in topics]),
    )


def consumer_settings(
    kind: ClientType = ClientType.PUSH_CONSUMER, group: str = GROUP, topic: str = TOPIC
) -> wire.Settings:
    return wire.Settings(
        client_type=kind,
        access_point=ENDPOINTS,
        subscription=wire.Subscription(
            group=wire.Resource(name=group),
            subscriptions=[
                wire.SubscriptionEntry(
                    topic=wire.Resource(name=topic),
                    expression=wire.FilterExpression(type=FilterType.TAG, expression="*"),
                )
            ],
        ),
    )


def handle_of(message: wire.Message) -> str:
    return message.system_properties.receipt_handle


def bodies(messages: list[wire.Message]) -> list[bytes]:
    return [one.body for one in messages]


def code_of(answer: Any) -> Code:
    return Code(answer.status.code)
