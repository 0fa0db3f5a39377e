"""What a client asks of brokers and name servers: each request as one typed call of an address.

A call either returns what was asked for or raises: `RemotingError` when no answer came,
`RequestRefused` (one of its leaves) when the answer was no. Requests are signed here and nowhere
else, and here a server that is going away (GO_AWAY) is left for a new connection, once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import orjson

from penstock.client.cluster_access import Credentials
from penstock.errors import NotFound, ProtocolError, RequestRefused, TopicNotFound, refused
from penstock.model import MessageQueue, Subscription, TopicRoute
from penstock.protocol import bodies, headers
from penstock.protocol.acl import sign
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.codes import RequestCode, ResponseCode, request_name, response_name
from penstock.protocol.commands import Command
from penstock.protocol.extensions import LOCK_OWNERS, REASON_FIELDS
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.remoting.peer import Peer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OFFSET_TIMEOUT = 5.0
LOCK_TIMEOUT = 1.0
SEND_BACK_TIMEOUT = 5.0


class LockAnswer(NamedTuple):
    """The answer to a lock request: what this client holds, and who holds other queues."""

    held: frozenset[MessageQueue]
    owners: dict[str, str]
    """Client ids by the text of a queue; empty where the broker does not tell."""


class Calls:
    """The requests of one session. ``connect`` gives the connection to an address."""

    def __init__(
        self,
        connect: Callable[[str], Awaitable[Peer]],
        credentials: Credentials | None,
        timeout: float,
    ) -> None:
        self._connect = connect
        self._credentials = credentials
        self._timeout = timeout

    # ------------------------------------------------------------------------ any request

    def command(
        self,
        code: int,
        header: DataclassInstance | dict[str, str] | None = None,
        body: bytes = b"",
        extra: dict[str, str] | None = None,
    ) -> Command:
        """A request, signed when the session has credentials."""
        ext = header if isinstance(header, dict) else encode_header(header) if header else None
        if extra:
            ext = {**(ext or {}), **extra}
        command = Command(code, ext=ext, body=body)
        self.sign(command)
        return command

    def sign(self, command: Command) -> None:
        """Prove who asks, if the session knows who it is."""
        who = self._credentials
        if who is not None:
            proof = sign(
                command.ext, command.body, who.access_key, who.secret_key, who.security_token
            )
            command.ext = {**(command.ext or {}), **proof}

    async def exchange(self, address: str, command: Command, seconds: float) -> Command:
        """Send ``command`` and return the answer, whatever its code."""
        peer = await self._connect(address)
        answer = await peer.request(command, seconds)
        if answer.code == ResponseCode.GO_AWAY:
            # The server is about to stop; whoever listens there next may serve the request.
            peer.close("the server asked to go away")
            peer = await self._connect(address)
            answer = await peer.request(command, seconds)
        return answer

    async def ask(
        self,
        address: str,
        code: int,
        header: DataclassInstance | None = None,
        body: bytes = b"",
        *,
        about: str,
        seconds: float | None = None,
    ) -> Command:
        """Send a request and return its answer; any code but success is an error."""
        command = self.command(code, header, body)
        answer = await self.exchange(address, command, seconds or self._timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, address, about)
        return answer

    async def tell(
        self, address: str, code: int, header: DataclassInstance | None = None, body: bytes = b""
    ) -> None:
        """Send a request that nobody answers."""
        command = self.command(code, header, body)
        peer = await self._connect(address)
        peer.oneway(command)

    # ----------------------------------------------------------------------- name servers

    async def route(self, address: str, topic: str) -> TopicRoute | None:
        """Where the topic's queues are; None when the name server does not know the topic."""
        header = headers.routes.GetRouteInfo(topic, accept_standard_json_only=True)
        try:
            answer = await self.ask(
                address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, about=f"topic {topic!r}"
            )
        except TopicNotFound:
            return None
        return decode_body(bodies.routes.TopicRouteData, _bytes(answer)).route()

    # ----------------------------------------------------------------- groups and members

    async def heartbeat(self, address: str, data: bytes) -> Command:
        """Tell a broker which groups live here; ``data`` is an encoded `HeartbeatData`."""
        return await self.ask(
            address, RequestCode.HEART_BEAT, None, data, about="the groups of this client"
        )

    async def unregister(
        self,
        address: str,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Leave a group."""
        await self.ask(
            address,
            RequestCode.UNREGISTER_CLIENT,
            headers.clients.UnregisterClient(client_id, producer_group, consumer_group),
            about=f"group {producer_group or consumer_group!r}",
        )

    async def members(self, address: str, group: str) -> tuple[str, ...]:
        """The client ids of a consumer group, as this broker knows them."""
        answer = await self.ask(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            headers.clients.GetConsumerList(group),
            about=f"group {group!r}",
        )
        body = _bytes(answer)
        return decode_body(bodies.clients.ConsumerList, body).consumer_id_list if body else ()

    async def check_filter(
        self, address: str, client_id: str, group: str, subscription: Subscription
    ) -> None:
        """Have a broker look at a SQL92 expression before it is used."""
        body = bodies.clients.CheckClientConfig(
            client_id, group, bodies.common.SubscriptionData.of(subscription)
        )
        await self.ask(
            address,
            RequestCode.CHECK_CLIENT_CONFIG,
            None,
            encode_body(body),
            about=f"filter {subscription.expression!r} of group {group!r}",
        )

    # ---------------------------------------------------------------------------- offsets

    async def committed(self, address: str, group: str, queue: MessageQueue) -> int | None:
        """Where the group stands in a queue; None when it never committed there."""
        try:
            answer = await self.ask(
                address,
                RequestCode.QUERY_CONSUMER_OFFSET,
                headers.offsets.QueryConsumerOffset(group, queue.topic, queue.queue_id),
                about=f"group {group!r} in {queue}",
                seconds=OFFSET_TIMEOUT,
            )
        except NotFound:
            return None
        return decode_header(headers.offsets.OffsetResult, answer.ext).offset

    async def commit(
        self, address: str, group: str, queue: MessageQueue, offset: int, *, oneway: bool
    ) -> None:
        """Move a group in a queue."""
        header = headers.offsets.UpdateConsumerOffset(group, queue.topic, queue.queue_id, offset)
        if oneway:
            await self.tell(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            await self.ask(
                address,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                header,
                about=f"group {group!r} in {queue}",
                seconds=OFFSET_TIMEOUT,
            )

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """One past the last message of a queue."""
        return await self._offset(
            address,
            RequestCode.GET_MAX_OFFSET,
            headers.offsets.GetMaxOffset(queue.topic, queue.queue_id),
            queue,
        )

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """The first message of a queue."""
        return await self._offset(
            address,
            RequestCode.GET_MIN_OFFSET,
            headers.offsets.GetMinOffset(queue.topic, queue.queue_id),
            queue,
        )

    async def offset_at(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message of a queue that was stored at that time or later."""
        header = headers.offsets.SearchOffset(queue.topic, queue.queue_id, timestamp_ms)
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)

    async def _offset(
        self, address: str, code: int, header: DataclassInstance, queue: MessageQueue
    ) -> int:
        answer = await self.ask(address, code, header, about=str(queue), seconds=OFFSET_TIMEOUT)
        return decode_header(headers.offsets.OffsetResult, answer.ext).offset

    # ------------------------------------------------------------------------------ locks

    async def lock(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> LockAnswer:
        """Lock or renew queues for this client."""
        body = encode_body(
            bodies.clients.LockBatch(group, client_id, tuple(queues), only_this_broker=False)
        )
        answer = await self.ask(
            address,
            RequestCode.LOCK_BATCH_MQ,
            None,
            body,
            about=f"locks of group {group!r}",
            seconds=LOCK_TIMEOUT,
        )
        held = frozenset(decode_body(bodies.clients.LockBatchReply, _bytes(answer)).locked)
        return LockAnswer(held, _lock_owners((answer.ext or {}).get(LOCK_OWNERS)))

    async def unlock(
        self,
        address: str,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        *,
        oneway: bool,
    ) -> None:
        """Let go of queues."""
        body = encode_body(
            bodies.clients.LockBatch(group, client_id, tuple(queues), only_this_broker=False)
        )
        if oneway:
            await self.tell(address, RequestCode.UNLOCK_BATCH_MQ, None, body)
        else:
            await self.ask(
                address,
                RequestCode.UNLOCK_BATCH_MQ,
                None,
                body,
                about=f"locks of group {group!r}",
                seconds=LOCK_TIMEOUT,
            )

    # --------------------------------------------------------------------------- messages

    async def pull(
        self,
        address: str,
        header: headers.pull.PullMessage,
        seconds: float,
        extra: dict[str, str] | None = None,
    ) -> Command:
        """Ask for messages; the answer's code tells what was found."""
        command = self.command(RequestCode.PULL_MESSAGE, header, extra=extra)
        return await self.exchange(address, command, seconds)

    async def send_back(
        self, address: str, header: headers.send.SendBack, reason: dict[str, str]
    ) -> None:
        """Return a message that could not be handled; ``reason`` rides along for who keeps it."""
        extra = {field: reason[key] for field, key in REASON_FIELDS.items() if key in reason}
        command = self.command(RequestCode.CONSUMER_SEND_MSG_BACK, header, extra=extra)
        answer = await self.exchange(address, command, SEND_BACK_TIMEOUT)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(
                answer,
                RequestCode.CONSUMER_SEND_MSG_BACK,
                address,
                f"message {header.origin_msg_id} of group {header.group!r}",
            )

    def send_command(self, code: int, header: headers.send.SendMessage, body: bytes) -> Command:
        """A send in its short spelling."""
        command = Command(code, ext=headers.send.encode_send_v2(header), body=body)
        self.sign(command)
        return command


def refusal(answer: Command, code: int, address: str, about: str) -> RequestRefused:
    """The error for an answer that was no."""
    remark = f": {answer.remark}" if answer.remark else ""
    return refused(
        answer.code,
        f"{address} refused {request_name(code)} for {about} "
        f"with {response_name(answer.code)} ({answer.code}){remark}",
    )


def _lock_owners(text: str | None) -> dict[str, str]:
    """Who holds what was refused, as far as the broker tells."""
    if text is None:
        return {}
    try:
        owners = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(owners, dict):
        return {}
    return {queue: owner for queue, owner in owners.items() if isinstance(owner, str)}


def _bytes(answer: Command) -> bytes:
    body = answer.body
    if not isinstance(body, bytes):
        raise ProtocolError(f"a received body of type {type(body).__name__}")
    return body


def encode_heartbeat(data: bodies.clients.HeartbeatData) -> bytes:
    """A heartbeat's body, made once for all brokers."""
    return encode_body(data)
