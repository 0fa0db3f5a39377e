"""Pop requests of a client: take messages from a broker, acknowledge them, change their time.

A popped message carries its receipt handle as a property; the handle names the broker, the queue
and the offset, so it is all that is needed to acknowledge, in another process, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client.consuming.subscriptions import restored_topic
from penstock.client.requests import Request, body_bytes, refusal
from penstock.client.session.client_session import ClientSession
from penstock.client.session.namespaces import unwrap, wrap
from penstock.errors import (
    InvalidArgument,
    PenstockError,
    RequestCodeNotSupported,
    RequestRefused,
)
from penstock.model import MessageQueue, StoredMessage, Subscription
from penstock.model.names import Property, pop_retry_topic, pop_retry_topic_v2, retry_topic
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResult,
    PopMessage,
    PopMessageResult,
)
from penstock.protocol.headers.receipts import (
    ORDERLY_REVIVE_QUEUE,
    RETRY_TOPIC_V1,
    RETRY_TOPIC_V2,
    ReceiptHandle,
)
from penstock.protocol.records.popped import with_handles
from penstock.protocol.records.pulled import messages_from_pull

if TYPE_CHECKING:
    from penstock.protocol.bodies.pop import BatchAckEntry

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long the answer to a pop may take beyond its poll time."""
ACK_SECONDS: Final = 3.0
ACK_RETRY: Final = 0.2
"""Between two tries to acknowledge."""
GIVE_BACK_SECONDS: Final = 1.0
"""When messages come again that were popped but not used."""
ANY_QUEUE: Final = -1
_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
)


class Source(NamedTuple):
    """Where to pop: a topic at a broker, one of its queues or all of them."""

    topic: str
    broker_name: str
    queue_id: int = ANY_QUEUE


class Popped(NamedTuple):
    """The answer to a pop."""

    messages: list[StoredMessage]
    is_busy: bool
    """Whether the broker has no room for another waiting pop."""
    arrived: float
    """When it came, on the monotonic clock."""


class PopRequests:
    """The pop requests of one group."""

    def __init__(self, session: ClientSession, group: str, namespace: str | None) -> None:
        self._session = session
        self._group = group
        self._namespace = namespace

    # Taking

    async def pop(
        self,
        source: Source,
        wanted: Subscription,
        *,
        count: int,
        invisible: float,
        wait: float,
        starts_first: bool,
        is_orderly: bool = False,
        attempt_id: str | None = None,
    ) -> Popped:
        """Take messages; none when ``wait`` seconds pass without any."""
        topic, broker_name, queue_id = source
        header = PopMessage(
            self._group,
            topic,
            queue_id,
            count,
            round(invisible * 1000),
            round(wait * 1000),
            # The broker counts from the arrival; its clock and ours may differ.
            0,
            0 if starts_first else 1,
            wanted.expression_type,
            wanted.expression,
            is_orderly,
            attempt_id,
        )
        session = self._session
        replica = await session.find_broker(
            MessageQueue(topic, broker_name, max(0, queue_id)), only_this=True
        )
        ext = {**encode_header(header), "bname": broker_name}
        command = session.calls.signed(Command(RequestCode.POP_MESSAGE, ext=ext))
        answer = await session.calls.exchange(replica.address, command, wait + ANSWER_SECONDS)
        arrived = session.clock.monotonic()
        if answer.code in _NOTHING:
            return Popped([], answer.code == ResponseCode.POLLING_FULL, arrived)
        if answer.code != ResponseCode.SUCCESS:
            raise self._refusal(answer, replica.address, f"topic {topic!r}")
        messages = popped_messages(answer, self._group, topic, broker_name, self._namespace)
        return Popped(messages, False, arrived)

    async def take(
        self,
        source: Source,
        wanted: Subscription,
        *,
        count: int,
        invisible: float,
        wait: float,
        starts_first: bool,
    ) -> Popped:
        """`pop`; messages that come after the caller has gone are given back.

        The broker holds the request on a connection that others may go on using.
        """
        popping = asyncio.ensure_future(
            self.pop(
                source,
                wanted,
                count=count,
                invisible=invisible,
                wait=wait,
                starts_first=starts_first,
            )
        )
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            popping.add_done_callback(self._return_late)
            raise

    def _return_late(self, popping: asyncio.Future[Popped]) -> None:
        if popping.cancelled() or popping.exception() is not None:
            return
        late = popping.result().messages
        if late:
            self._session.tasks.spawn(self._give_back(late), "give back")

    async def _give_back(self, messages: Iterable[StoredMessage]) -> None:
        async def give_back(message: StoredMessage) -> None:
            topic = topic_of(message, self._group, self._namespace)
            try:
                await self.change(topic, handle_of(message), GIVE_BACK_SECONDS, is_suspended=True)
            except PenstockError as error:
                # It comes again at its time.
                log.info("message not given back topic=%s error=%s", topic, error)

        await asyncio.gather(*map(give_back, messages))

    def _refusal(self, answer: Command, address: str, about: str) -> Exception:
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return RequestCodeNotSupported(
                f"the broker at {address} does not support pop consumption (asked for {about})",
                expected="Penstock, or RocketMQ 5.0 or newer; 4.9 has no POP_MESSAGE",
                hint="use a PushConsumer or a PullConsumer",
            )
        return refusal(answer, RequestCode.POP_MESSAGE, address, about)

    # Acknowledging

    def _real_topic(self, topic: str, handle: ReceiptHandle) -> str:
        """The topic that has the record."""
        if handle.flag == RETRY_TOPIC_V1:
            return pop_retry_topic(self._group, topic)
        if handle.flag == RETRY_TOPIC_V2:
            return pop_retry_topic_v2(self._group, topic)
        return topic

    async def _address(self, topic: str, broker_name: str) -> str:
        queue = MessageQueue(topic, broker_name, 0)
        return (await self._session.find_broker(queue, only_this=True)).address

    async def acknowledge_until(
        self, broker_name: str, handles: Sequence[tuple[str, ReceiptHandle]], deadline: float
    ) -> None:
        """Acknowledge at one broker; a failure is tried again until the messages' time is up.

        A lost connection or a busy broker is no reason to do the work again.
        """
        clock = self._session.clock
        while True:
            try:
                if len(handles) == 1:
                    await self.acknowledge(*handles[0])
                else:
                    await self.acknowledge_all(broker_name, handles)
                return
            except PenstockError as error:
                if not _may_succeed_later(error) or clock.monotonic() + ACK_RETRY >= deadline:
                    raise
                await clock.sleep(ACK_RETRY)

    async def acknowledge(self, topic: str, handle: ReceiptHandle) -> None:
        """End one message; ``topic`` is the subscribed one."""
        address = await self._address(topic, handle.broker_name)
        header = AckMessage(
            self._group,
            self._real_topic(topic, handle),
            handle.queue_id,
            str(handle),
            handle.queue_offset,
        )
        await self._session.calls.call(
            address, self._request(RequestCode.ACK_MESSAGE, header, topic, handle.broker_name)
        )

    async def acknowledge_all(
        self, broker_name: str, handles: Iterable[tuple[str, ReceiptHandle]]
    ) -> None:
        """End messages of one broker in one request; brokers before 5.1.3 get one for each."""
        from penstock.protocol.bodies.pop import BatchAck  # only those that pop load it

        handles = list(handles)
        entries = batch_entries(self._group, handles)
        address = await self._address(handles[0][0], broker_name)
        request = Request(
            code=RequestCode.BATCH_ACK_MESSAGE,
            about=f"{len(handles)} messages of group {self._group!r}",
            body=encode_body(BatchAck(broker_name, tuple(entries))),
            read=lambda answer: None,
            seconds=ACK_SECONDS,
        )
        try:
            await self._session.calls.call(address, request)
        except RequestCodeNotSupported:
            for topic, handle in handles:
                await self.acknowledge(topic, handle)

    async def change(
        self, topic: str, handle: ReceiptHandle, invisible: float, *, is_suspended: bool = False
    ) -> ReceiptHandle:
        """Let a message become visible after ``invisible`` seconds; its new handle."""
        address = await self._address(topic, handle.broker_name)
        header = ChangeInvisibleTime(
            self._group,
            self._real_topic(topic, handle),
            handle.queue_id,
            str(handle),
            handle.queue_offset,
            round(invisible * 1000),
            True if is_suspended else None,
        )
        request = Request(
            code=RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            about=f"topic {topic!r}",
            header=header,
            extra={"bname": handle.broker_name},
            read=lambda answer: decode_header(ChangeInvisibleTimeResult, answer.ext),
            seconds=ACK_SECONDS,
        )
        changed = await self._session.calls.call(address, request)
        is_orderly = handle.revive_queue_id == ORDERLY_REVIVE_QUEUE
        return handle._replace(
            start_offset=handle.start_offset if is_orderly else handle.queue_offset,
            pop_time=changed.pop_time,
            invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        )

    def _request(self, code: int, header: AckMessage, topic: str, broker: str) -> Request[None]:
        return Request(
            code=code,
            about=f"topic {topic!r}",
            header=header,
            extra={"bname": broker},
            read=lambda answer: None,
            seconds=ACK_SECONDS,
        )


def _may_succeed_later(error: PenstockError) -> bool:
    """Whether to acknowledge once more; that has no effect if the first time had one."""
    is_unflushed = (
        isinstance(error, RequestRefused) and error.code == ResponseCode.FLUSH_DISK_TIMEOUT
    )
    return error.retriable or is_unflushed


def popped_messages(
    answer: Command, group: str, topic: str, broker_name: str, namespace: str | None
) -> list[StoredMessage]:
    """The messages of a pop answer, each with its receipt handle, under the subscribed topic."""
    header = decode_header(PopMessageResult, answer.ext)
    messages = messages_from_pull(body_bytes(answer), broker_name, keep_unreadable=True)
    for message, handle in with_handles(messages, header, group, topic):
        if handle is not None:
            set_handle(message, handle)
        if message.peek(Property.FIRST_POP_TIME) is None:
            message.append_properties(
                f"{Property.FIRST_POP_TIME}\x01{header.pop_time}\x02".encode()
            )
        if topic == retry_topic(group):
            # Failed when the group pulled; the topic it was sent to is a property.
            message.topic = restored_topic(message, topic, namespace)
        else:
            message.topic = unwrap(namespace, topic)
    return messages


def batch_entries(group: str, handles: Sequence[tuple[str, ReceiptHandle]]) -> list[BatchAckEntry]:
    """The body of a batch acknowledgement: one entry for each pop and queue."""
    from penstock.protocol.bodies.pop import BatchAckEntry, bits_of  # only those that pop load it

    by_pop: dict[tuple[str, ReceiptHandle], list[int]] = {}
    for topic, handle in handles:
        by_pop.setdefault((topic, handle._replace(queue_offset=0)), []).append(handle.queue_offset)
    return [
        BatchAckEntry(
            group,
            topic,
            str(handle.flag),
            handle.start_offset,
            handle.queue_id,
            handle.revive_queue_id,
            handle.pop_time,
            handle.invisible_time,
            bits_of(handle.start_offset, offsets),
        )
        for (topic, handle), offsets in by_pop.items()
    ]


def topic_of(message: StoredMessage, group: str, namespace: str | None) -> str:
    """The topic that a message was popped from, for its acknowledgement."""
    if message.queue.topic == retry_topic(group):
        return message.queue.topic
    return wrap(namespace, message.topic)


def handle_of(message: StoredMessage) -> ReceiptHandle:
    """The receipt handle of a popped message."""
    text = message.peek(Property.POP_RECEIPT) if isinstance(message, StoredMessage) else None
    if text is None:
        raise InvalidArgument(
            f"{message!r:.200} has no receipt handle",
            expected="a message that receive() returned",
        )
    return ReceiptHandle.parse(text)


def set_handle(message: StoredMessage, handle: ReceiptHandle) -> None:
    """Give a message its receipt handle, or a new one."""
    message.append_properties(f"{Property.POP_RECEIPT}\x01{handle}\x02".encode())
