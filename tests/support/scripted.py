"""A scripted cluster: it records every request and answers as the test has set.

For tests of clients. It is a peer, not a broker: messages live in lists, nothing is stored, and
every answer can be replaced:

    cluster.broker("broker-a").script[RequestCode.PULL_MESSAGE] = lambda peer, request: ...

Left alone it behaves well enough for a client to work: routes, heartbeats, member lists, offsets,
pulls that are held until something comes, locks that are granted, send-backs that succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from penstock.client.session.loop_thread import LoopThread
from penstock.model import BrokerRoute, MessageQueue, QueueRoute, TopicRoute
from penstock.model.hosts import pack_host
from penstock.model.names import READ, RETRY_PREFIX, WRITE
from penstock.model.properties import encode_properties
from penstock.protocol.bodies.clients import (
    ConsumerList,
    HeartbeatData,
    LockBatch,
    LockBatchReply,
)
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from penstock.protocol.headers.pull import PullFlag, PullMessage, PullMessageResult
from penstock.protocol.headers.send import SendMessage, SendMessageResult, decode_send_v2
from penstock.protocol.records.batches import decode_batch
from penstock.protocol.records.codec import encode_record
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise
from penstock.remoting.server import Server
from penstock.runtime.clock import Clock

Answer = Command | Promise | None
Script = Callable[[Peer, Command], Answer]

_LOOPBACK = "127.0.0.1"
_HOST = pack_host(_LOOPBACK, 10911)
_RECORD_STEP = 1000


@dataclass(slots=True)
class Recorded:
    """A request as it came in."""

    at: float
    code: int
    ext: dict[str, str]
    body: bytes
    is_oneway: bool
    peer: Peer
    version: int
    language: str


@dataclass(slots=True)
class _Held:
    """A pull that waits for a message."""

    request: PullMessage
    promise: Promise
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class ScriptedQueue:
    """The messages of one queue, and the pulls that wait for more."""

    records: list[bytes] = field(default_factory=list)
    held: list[_Held] = field(default_factory=list)
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.records)


class ScriptedServer:
    """Records requests and answers them by script, else by itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.script: dict[int, Script] = {}
        """Answers by request code; a script that raises a `PenstockError` refuses."""
        self.requests: list[Recorded] = []
        self.language = Language.JAVA
        """What it says it is written in; clients take a Python broker for one of ours."""
        self._server = Server(self._serve, _LOOPBACK, 0)
        self._last_port = 0

    @property
    def address(self) -> str:
        """Where it listens, or listened last."""
        return f"{_LOOPBACK}:{self._last_port or self._server.port}"

    @property
    def peers(self) -> list[Peer]:
        """The connections that are open now."""
        return list(self._server.peers)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0.0)

    async def go_down(self) -> None:
        """Stop; connections are lost, and new ones refused."""
        self._last_port = self._server.port
        await self._server.stop(0.0)

    async def come_back(self, *, same_port: bool = True) -> None:
        """Start again, with what it had."""
        self._server = Server(self._serve, _LOOPBACK, self._last_port if same_port else 0)
        await self._server.start()
        self._last_port = 0

    def asked(self, code: int, **ext: object) -> list[Recorded]:
        """The requests of a code so far, with these ext fields."""
        wanted = {key: str(value) for key, value in ext.items()}
        return [
            request
            for request in self.requests
            if request.code == code and wanted.items() <= request.ext.items()
        ]

    def forget(self) -> None:
        """Start a new record."""
        self.requests.clear()

    def _serve(self, peer: Peer, request: Command) -> Answer:
        body = request.body
        assert isinstance(body, bytes)
        self.requests.append(
            Recorded(
                self._clock.monotonic(),
                request.code,
                dict(request.ext or {}),
                body,
                request.is_oneway,
                peer,
                request.version,
                request.language.name,
            )
        )
        script = self.script.get(request.code)
        answer = script(peer, request) if script is not None else self._answer(peer, request)
        if isinstance(answer, Command):
            answer.language = self.language
        return answer

    def _answer(self, peer: Peer, request: Command) -> Answer:
        return Command(ResponseCode.SUCCESS)


class ScriptedBroker(ScriptedServer):
    """One broker of a scripted cluster."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(clock)
        self.name = name
        self.queues: dict[tuple[str, int], ScriptedQueue] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        """Committed offsets by group, topic and queue."""
        self.members: dict[str, dict[str, Peer]] = {}
        """Who is connected for a group, by client id."""
        self.locks: dict[tuple[str, MessageQueue], str] = {}
        self.sent: list[tuple[SendMessage, bytes]] = []
        """Every message that was sent here."""
        self.heartbeats: list[HeartbeatData] = []
        self.max_pull = 32
        self._handlers: dict[int, Script] = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._send,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }

    def _answer(self, peer: Peer, request: Command) -> Answer:
        handler = self._handlers.get(request.code)
        return Command(ResponseCode.SUCCESS) if handler is None else handler(peer, request)

    def queue(self, topic: str, queue_id: int) -> ScriptedQueue:
        return self.queues.setdefault((topic, queue_id), ScriptedQueue())

    def put(
        self,
        topic: str,
        queue_id: int,
        *bodies: bytes,
        properties: Mapping[str, str] | None = None,
        reconsume_times: int = 0,
    ) -> None:
        """Add messages to a queue; held pulls get them."""
        queue = self.queue(topic, queue_id)
        for body in bodies:
            offset = queue.max_offset
            stamped = {**(properties or {}), "UNIQ_KEY": f"{topic}-{queue_id}-{offset}"}
            now = self._clock.time_ms()
            queue.records.append(
                encode_record(
                    topic.encode(),
                    body,
                    encode_properties(stamped),
                    queue_id,
                    offset,
                    offset * _RECORD_STEP,
                    now,
                    now,
                    _HOST,
                    _HOST,
                    reconsume_times=reconsume_times,
                )
            )
        held, queue.held = queue.held, []
        for pull in held:
            pull.timer.cancel()
            pull.promise.resolve(self.pull_answer(pull.request))

    def pull_answer(self, ask: PullMessage) -> Command:
        """What a pull finds now."""
        queue = self.queue(ask.topic, ask.queue_id)
        low, high = queue.min_offset, queue.max_offset
        if ask.queue_offset > high or ask.queue_offset < low:
            return pull_result(
                ResponseCode.PULL_OFFSET_MOVED, high if ask.queue_offset > high else low, low, high
            )
        if ask.queue_offset == high:
            return pull_result(ResponseCode.PULL_NOT_FOUND, ask.queue_offset, low, high)
        start = ask.queue_offset - low
        found = queue.records[start : start + min(ask.max_msg_nums, self.max_pull)]
        next_offset = ask.queue_offset + len(found)
        return pull_result(ResponseCode.SUCCESS, next_offset, low, high, b"".join(found))

    # ---------------------------------------------------------------------------- answers

    def _heartbeat(self, peer: Peer, request: Command) -> Answer:
        body = request.body
        assert isinstance(body, bytes)
        data = decode_body(HeartbeatData, body)
        self.heartbeats.append(data)
        for consumer in data.consumer_data_set:
            self.members.setdefault(consumer.group_name, {})[data.client_id] = peer
        peer.on_close(lambda lost: self._forget_peer(lost))
        return Command(ResponseCode.SUCCESS)

    def _forget_peer(self, peer: Peer) -> None:
        for members in self.members.values():
            for client_id in [name for name, known in members.items() if known is peer]:
                del members[client_id]

    def _unregister(self, peer: Peer, request: Command) -> Answer:
        ext = request.ext or {}
        self.members.get(ext.get("consumerGroup", ""), {}).pop(ext["clientID"], None)
        return Command(ResponseCode.SUCCESS)

    def _members(self, peer: Peer, request: Command) -> Answer:
        group = (request.ext or {})["consumerGroup"]
        body = encode_body(ConsumerList(tuple(self.members.get(group, ()))))
        return Command(ResponseCode.SUCCESS, body=body)

    def _query_offset(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(QueryConsumerOffset, request.ext)
        offset = self.offsets.get((ask.consumer_group, ask.topic, ask.queue_id))
        if offset is None:
            return Command(ResponseCode.QUERY_NOT_FOUND, remark="no offset")
        return _offset(offset)

    def _update_offset(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(UpdateConsumerOffset, request.ext)
        self.offsets[ask.consumer_group, ask.topic, ask.queue_id] = ask.commit_offset
        return Command(ResponseCode.SUCCESS)

    def _max_offset(self, peer: Peer, request: Command) -> Answer:
        ext = request.ext or {}
        return _offset(self.queue(ext["topic"], int(ext["queueId"])).max_offset)

    def _min_offset(self, peer: Peer, request: Command) -> Answer:
        ext = request.ext or {}
        return _offset(self.queue(ext["topic"], int(ext["queueId"])).min_offset)

    def _search_offset(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(SearchOffset, request.ext)
        return _offset(self.queue(ask.topic, ask.queue_id).min_offset)

    def _pull(self, peer: Peer, request: Command) -> Answer:
        ask = decode_header(PullMessage, request.ext)
        if ask.sys_flag & PullFlag.COMMIT_OFFSET:
            self.offsets[ask.consumer_group, ask.topic, ask.queue_id] = ask.commit_offset
        answer = self.pull_answer(ask)
        if answer.code != ResponseCode.PULL_NOT_FOUND or not ask.sys_flag & PullFlag.SUSPEND:
            return answer
        promise = Promise()
        queue = self.queue(ask.topic, ask.queue_id)

        def expire() -> None:
            queue.held[:] = [held for held in queue.held if held.promise is not promise]
            promise.resolve(self.pull_answer(ask))

        loop = asyncio.get_running_loop()
        timer = loop.call_later(ask.suspend_timeout_millis / 1000, expire)
        queue.held.append(_Held(ask, promise, timer))
        return promise

    def _send(self, peer: Peer, request: Command) -> Answer:
        header = decode_send_v2(request.ext or {})
        body = request.body
        assert isinstance(body, bytes)
        self.sent.append((header, body))
        queue = self.queue(header.topic, max(header.queue_id, 0))
        offset = queue.max_offset
        bodies = [item.body for item in decode_batch(body)] if header.batch else [body]
        if not header.topic.startswith(RETRY_PREFIX):
            # What is retried would wait for its delay, or become a dead letter.
            self.put(header.topic, max(header.queue_id, 0), *bodies)
        ids = [
            f"{_HOST.hex().upper()}{(offset + i) * _RECORD_STEP:016X}" for i in range(len(bodies))
        ]
        result = SendMessageResult(",".join(ids), header.queue_id, offset)
        return Command(ResponseCode.SUCCESS, ext=encode_header(result))

    def _lock(self, peer: Peer, request: Command) -> Answer:
        body = request.body
        assert isinstance(body, bytes)
        ask = decode_body(LockBatch, body)
        granted = []
        for queue in ask.mq_set:
            if self.locks.setdefault((ask.consumer_group, queue), ask.client_id) == ask.client_id:
                granted.append(queue)
        return Command(ResponseCode.SUCCESS, body=encode_body(LockBatchReply(tuple(granted))))

    def _unlock(self, peer: Peer, request: Command) -> Answer:
        body = request.body
        assert isinstance(body, bytes)
        ask = decode_body(LockBatch, body)
        for queue in ask.mq_set:
            if self.locks.get((ask.consumer_group, queue)) == ask.client_id:
                del self.locks[ask.consumer_group, queue]
        return Command(ResponseCode.SUCCESS)

    # ------------------------------------------------------------------- to the clients

    def notify_members_changed(self, group: str) -> None:
        """Tell all members of a group that others came or went."""
        for peer in self.members.get(group, {}).values():
            peer.oneway(
                Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group})
            )


class ScriptedCluster:
    """A name server and some brokers, on the loop that enters it."""

    def __init__(self, clock: Clock, *, brokers: Iterable[str] = ("broker-a",)) -> None:
        self.clock = clock
        self.nameserver = _ScriptedNameServer(clock, self)
        self.brokers = {name: ScriptedBroker(name, clock) for name in brokers}
        self.topics: dict[str, dict[str, QueueRoute]] = {}
        self.slaves: dict[str, list[str]] = {}
        """Brokers that are known as the slaves of another one, by its name."""
        self.masters_gone: set[str] = set()
        """Broker names of which only the slaves are known."""

    @property
    def namesrv(self) -> str:
        return self.nameserver.address

    def broker(self, name: str = "broker-a") -> ScriptedBroker:
        return self.brokers[name]

    def add_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        write_queues: int | None = None,
        permission: int = READ | WRITE,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Give a topic a route, on all brokers unless some are named."""
        self.topics[topic] = {
            name: QueueRoute(
                name, queues, queues if write_queues is None else write_queues, permission
            )
            for name in (self.brokers if brokers is None else brokers)
        }

    def route(self, topic: str) -> TopicRoute | None:
        queues = self.topics.get(topic)
        if queues is None:
            return None
        return TopicRoute(
            tuple(queues.values()),
            tuple(
                BrokerRoute(
                    name,
                    "scripted",
                    {
                        number: self.brokers[one].address
                        for number, one in enumerate([name, *self.slaves.get(name, [])])
                        if number or name not in self.masters_gone
                    },
                )
                for name in queues
            ),
        )

    async def __aenter__(self) -> Self:
        await self.nameserver.start()
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        await self.nameserver.stop()


class ThreadedCluster:
    """A scripted cluster on a loop in its own thread, for clients that block."""

    def __init__(self, *, brokers: Iterable[str] = ("broker-a",)) -> None:
        self._brokers = tuple(brokers)
        self._host = LoopThread("scripted cluster")
        self.cluster = ScriptedCluster(self._host.clock, brokers=self._brokers)

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    @property
    def broker(self) -> ScriptedBroker:
        """The first broker; its lists may be read from any thread."""
        return self.cluster.brokers[self._brokers[0]]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the cluster's loop, and wait for it."""
        self._host.run(work)

    def put(self, topic: str, queue_id: int, *bodies: bytes) -> None:
        """Add messages to a queue of the first broker."""

        async def put() -> None:
            self.broker.put(topic, queue_id, *bodies)

        self._host.run(put())

    def __enter__(self) -> Self:
        self._host.run(self.cluster.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._host.run(self.cluster.__aexit__(exc_type, exc, traceback))
        self._host.close()


class _ScriptedNameServer(ScriptedServer):
    def __init__(self, clock: Clock, cluster: ScriptedCluster) -> None:
        super().__init__(clock)
        self._cluster = cluster

    def _answer(self, peer: Peer, request: Command) -> Answer:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Command(ResponseCode.SUCCESS)
        route = self._cluster.route((request.ext or {})["topic"])
        if route is None:
            return Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        return Command(ResponseCode.SUCCESS, body=encode_body(TopicRouteData.from_model(route)))


def pull_result(
    code: int, next_offset: int, min_offset: int, max_offset: int, body: bytes = b""
) -> Command:
    """The answer to a pull."""
    result = PullMessageResult(0, next_offset, min_offset, max_offset)
    return Command(code, ext=encode_header(result), body=body)


def _offset(offset: int) -> Command:
    return Command(ResponseCode.SUCCESS, ext=encode_header(OffsetResult(offset)))
