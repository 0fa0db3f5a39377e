"""A scripted client for tests of servers: sends what a test asks for and keeps what it receives.

It does nothing by itself: no heartbeats, no retries, no checks. A test sees every answer and
every request of the server, in the order they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from penstock.model.names import DEFAULT_TOPIC, retry_topic
from penstock.model.properties import format_properties
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from penstock.protocol.codes import RequestCode, response_name
from penstock.protocol.commands import (
    ONEWAY,
    RESPONSE,
    VERSION,
    Command,
    Language,
    decode_command,
    encode_command,
)
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.protocol.headers.send import SendMessage, encode_send_v2

if TYPE_CHECKING:
    from penstock.protocol.headers.codec import Header

ANSWER_SECONDS: Final = 10.0
"""How long a test waits for an answer before it fails."""

_SHORT_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
Serve = Callable[[Command], Command | None]
_Body = TypeVar("_Body")


class Wire(asyncio.Protocol):
    """One connection of a scripted client."""

    def __init__(self, *, language: Language = Language.JAVA, version: int = VERSION) -> None:
        self.language = language
        self.version = version
        self.requests: list[Command] = []
        """Requests of the server, oldest first."""
        self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._served: dict[int, Serve] = {}
        self._heard = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        port: int,
        host: str = "127.0.0.1",
        *,
        language: Language = Language.JAVA,
        version: int = VERSION,
    ) -> Self:
        """Open a connection."""
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: cls(language=language, version=version), host, port
        )
        return wire

    @property
    def address(self) -> str:
        """Our own address, as the server knows us."""
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    # Asking

    def start(
        self,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: object = b"",
        *,
        serializer: int = 0,
    ) -> asyncio.Future[Command]:
        """Send a request now; the future gets its answer."""
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        command = self._command(code, header, body, 0)
        command.serializer = serializer
        self._waiting[command.request_id] = future
        self._send(command)
        return future

    async def request(
        self,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: object = b"",
        *,
        serializer: int = 0,
    ) -> Command:
        """Send a request and return its answer, with any code."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self.start(code, header, body, serializer=serializer)

    async def ok(
        self,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: object = b"",
    ) -> Command:
        """The same for an answer that must be a success."""
        answer = await self.request(code, header, body)
        assert answer.code == 0, f"{response_name(answer.code)}: {answer.remark}"
        return answer

    def oneway(
        self,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: object = b"",
    ) -> None:
        """Send a request that is never answered."""
        self._send(self._command(code, header, body, ONEWAY))

    def _command(
        self, code: int, header: Header | dict[str, str] | None, body: object, flag: int
    ) -> Command:
        self._last_id += 1
        ext: dict[str, str] | None
        if header is None or isinstance(header, dict):
            ext = header
        else:
            ext = encode_header(header)
            if code in _SHORT_SENDS and isinstance(header, SendMessage):
                ext = encode_send_v2(header)
        return Command(
            code,
            request_id=self._last_id,
            flag=flag,
            ext=ext,
            body=body if isinstance(body, bytes) else encode_body(body),
            language=self.language,
            version=self.version,
        )

    # Being asked

    def serve(self, code: int, answer: Serve) -> None:
        """Answer requests of the server with ``answer``; None says nothing."""
        self._served[code] = answer

    async def asked(self, code: int) -> Command:
        """The oldest request of the server with ``code`` that no test has taken yet."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                for command in self.requests:
                    if command.code == code:
                        self.requests.remove(command)
                        return command
                self._heard.clear()
                await self._heard.wait()

    def answer(self, request: Command, answer: Command) -> None:
        """Answer a request of the server."""
        answer.request_id = request.request_id
        answer.flag = RESPONSE
        self._send(answer)

    # What most tests say

    async def send(
        self,
        topic: str,
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        raw_properties: str | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        **fields: object,
    ) -> Command:
        """Send one message; ``fields`` are further members of the header."""
        header = SendMessage(
            producer_group="test-producers",
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=(
                format_properties(properties or {}) if raw_properties is None else raw_properties
            ),
        )
        for name, value in fields.items():
            setattr(header, name, value)
        return await self.request(code, header, body)

    def start_pull(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        queue_id: int = 0,
        hold_ms: int = 0,
        expression: str | None = "*",
        expression_type: str = "TAG",
        commit: int | None = None,
        count: int = 32,
        code: int = RequestCode.PULL_MESSAGE,
    ) -> asyncio.Future[Command]:
        """Send a pull; with ``expression`` None it relies on the subscription of a heartbeat."""
        flag = 0
        if commit is not None:
            flag |= PullFlag.COMMIT_OFFSET
        if hold_ms:
            flag |= PullFlag.SUSPEND
        if expression is not None:
            flag |= PullFlag.SUBSCRIPTION
        header = PullMessage(
            group, topic, queue_id, offset, count, flag, commit or 0, hold_ms, 0,
            expression, expression_type,
        )  # fmt: skip
        return self.start(code, header)

    async def pull(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        queue_id: int = 0,
        expression: str | None = "*",
        expression_type: str = "TAG",
        commit: int | None = None,
        count: int = 32,
    ) -> Command:
        """Pull without waiting for messages."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self.start_pull(
                group,
                topic,
                offset,
                queue_id=queue_id,
                expression=expression,
                expression_type=expression_type,
                commit=commit,
                count=count,
            )

    async def heartbeat(
        self,
        client_id: str,
        *,
        consumer: str | None = None,
        topics: Sequence[str] | dict[str, str] = (),
        producer: str | None = None,
        model: MessageModel = MessageModel.CLUSTERING,
        version: int = 1,
        expression_type: str = "TAG",
    ) -> Command:
        """Send a heartbeat; ``topics`` are the subscriptions of the consumer group."""
        expressions = topics if isinstance(topics, dict) else dict.fromkeys(topics, "*")
        consumers: tuple[ConsumerData, ...] = ()
        if consumer is not None:
            subscriptions = [
                SubscriptionData(topic, expression, version, expression_type=expression_type)
                for topic, expression in expressions.items()
            ]
            subscriptions.append(SubscriptionData(retry_topic(consumer), "*", version))
            consumers = (
                ConsumerData(
                    consumer,
                    ConsumeType.CONSUME_PASSIVELY,
                    model,
                    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                    tuple(subscriptions),
                ),
            )
        producers = () if producer is None else (ProducerData(producer),)
        return await self.ok(
            RequestCode.HEART_BEAT, body=HeartbeatData(client_id, producers, consumers)
        )

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one, but not a subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            command = decode_command(frame)
            if command.flag & RESPONSE:
                future = self._waiting.pop(command.request_id, None)
                if future is not None and not future.done():
                    future.set_result(command)
                continue
            serve = self._served.get(command.code)
            if serve is None:
                self.requests.append(command)
                self._heard.set()
            elif (answer := serve(command)) is not None:
                self.answer(command, answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the server closed the connection"))
        self._waiting.clear()

    async def close(self) -> None:
        """Close our end."""
        if self._transport is not None:
            self._transport.close()
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _send(self, command: Command) -> None:
        assert self._transport is not None, "connected"
        self._transport.write(encode_command(command))


def body_of(answer: Command) -> bytes:
    """The body of an answer that was received."""
    assert isinstance(answer.body, bytes)
    return answer.body


def json_body(cls: type[_Body], answer: Command) -> _Body:
    """The body of an answer as one of the body classes."""
    return decode_body(cls, body_of(answer))
