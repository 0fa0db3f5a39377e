"""The sends of one task: several requests in flight, all confirmed before the task ends.

A request without an answer, or with one that another attempt may change, is sent again. Whether the
first attempt was stored is unknown. If the first message has a unique id, and the broker is a
Penstock broker, the request is sent to the same queue again, marked as a repeat, and stored once.
Else it goes to another queue if any will do, and may be stored twice, with the same row property
(`encode.Origin`). Attempts that reach no broker are not counted for a while
(`client.producing.waiting`): a restart does not end a task.

A request that an earlier task may have sent is looked for at the other brokers, too, and sent to
the one that has its id.

Requests to a given queue keep their order: each one is sent when the one before is confirmed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from penstock.client import requests
from penstock.client.cluster_access import ClusterAccess
from penstock.client.producing.receipts import receipt
from penstock.client.producing.selection import RoundRobin
from penstock.client.producing.sending import RETRIED_CODES
from penstock.client.producing.waiting import PAUSES, is_unsent, tried
from penstock.client.requests import refusal
from penstock.errors import (
    ConnectionLost,
    PenstockError,
    RemotingError,
    RequestRefused,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model import MessageQueue
from penstock.model.names import DEFAULT_TOPIC, SPARK_GROUP, Property
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Body, Command, Language
from penstock.protocol.extensions import EACH_REPEAT_MARK, REPEAT_MARK, SHORT_RECEIPT
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pull import QueryMessage
from penstock.protocol.headers.send import SendMessage, encode_send_v2
from penstock.protocol.records.pulled import messages_from_pull
from penstock.spark.connection import Connection
from penstock.spark.connection_pool import ConnectionPool, RouteCache

log = logging.getLogger(__name__)

WINDOW: Final = 4
"""Requests in flight at once; each may hold a megabyte."""
FIRST_PAUSE: Final = 0.2
MAX_PAUSE: Final = 5.0
DEFAULT_QUEUES: Final = 4
"""defaultTopicQueueNums: queues of a topic that the first message creates."""
BATCH_PROPERTIES: Final = "WAIT\x01true\x02"
_END_OF_TIME: Final = 2**63 - 1


_Block = AbstractContextManager[Connection]


@dataclass(slots=True)
class Post:
    """One request: a batch of messages, or a single one."""

    topic: str
    queue: MessageQueue | None
    """The queue to send to; None: any queue of the topic."""
    body: Body
    properties: str = BATCH_PROPERTIES
    count: int = 1
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    sys_flag: int = 0
    flag: int = 0
    unique_id: str | None = None
    """The id of its first message; None: a repeat of it cannot be recognised."""
    mark: str = ""
    """The property that makes a Penstock broker look for the message before it stores it."""
    doubted: MessageQueue | None = field(default=None, init=False)
    """Where it may be stored already, because there was no answer."""
    is_looked_for: bool = field(default=False, init=False)
    sent_to: MessageQueue | None = field(default=None, init=False)
    attempts: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    """Attempts that used up a retry."""
    failing_since: float | None = field(default=None, init=False)

    @property
    def what(self) -> str:
        """Its messages and target, for errors."""
        messages = "1 message" if self.count == 1 else f"{self.count} messages"
        return f"{messages} to {self.sent_to or f'topic {self.topic!r}'}"


Stored = Callable[[Post, MessageQueue, int], None]
"""Called with a confirmed request, its queue, and the queue offset of its first message."""


class WritableQueues:
    """The queues that topics can be written to, asked for once and again after a failure."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._routes = RouteCache(pool)
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._from_default: set[str] = set()
        self._seen: set[str] = set()

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that take messages, by the user's name of the topic."""
        known = self._queues.get(topic)
        if known is None:
            known = self._queues[topic] = self._writable(topic)
        return known

    def _writable(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            queues = self._routes.route(topic).publish_queues(topic)
        except TopicNotFound as error:
            # Brokers that create topics on demand have one that stands for all of these.
            try:
                route = self._routes.route(DEFAULT_TOPIC)
            except TopicNotFound:
                raise error from None
            self._from_default.add(topic)
            queues = [q for q in route.publish_queues(topic) if q.queue_id < DEFAULT_QUEUES]
        if not queues:
            raise ServiceNotAvailable(
                f"no queue of topic {topic!r} takes messages",
                expected="a broker that is up and allows writing to the topic",
            )
        self._seen.add(topic)
        return tuple(queues)

    def address(self, queue: MessageQueue) -> str:
        """The address of the queue's master."""
        topic = DEFAULT_TOPIC if queue.topic in self._from_default else queue.topic
        broker = self._routes.route(topic).broker(queue.broker_name)
        if broker is None or broker.master is None:
            raise ServiceNotAvailable(
                f"broker {queue.broker_name!r} of {queue} has no master",
                hint="is it up and registered at the name server?",
            )
        return broker.master

    def has_seen(self, topic: str) -> bool:
        """Whether there ever was a route."""
        return topic in self._seen

    def forget(self, topic: str) -> None:
        """Ask again: something about the topic has changed."""
        self._routes.forget(topic)
        self._routes.forget(DEFAULT_TOPIC)
        self._queues.pop(topic, None)
        self._from_default.discard(topic)


class TaskSender:
    """Sends posts; use it in a ``with`` block, whose end waits for every confirmation.

    ``first_turn`` is where the round robin begins for posts that may use any queue.
    """

    def __init__(
        self,
        access: ClusterAccess,
        stored: Stored,
        *,
        seconds: float,
        retries: int,
        first_turn: int | None = None,
    ) -> None:
        self._access = access
        self._pool = ConnectionPool.shared(access)
        self._stored = stored
        self._seconds = seconds
        self._retries = retries
        self._group = access.long_name(SPARK_GROUP)
        self.routes = WritableQueues(self._pool)
        self._first_turn = random.getrandbits(31) if first_turn is None else first_turn
        self._turns: dict[str, RoundRobin] = {}
        self._connections: dict[str, tuple[_Block, Connection]] = {}
        self._in_flight: dict[tuple[str, int], Post] = {}
        self._are_ours: dict[str, bool] = {}
        """Whether the broker at an address is a Penstock broker, as far as that is known."""

    def __enter__(self) -> TaskSender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            # A connection with unread answers cannot be reused.
            for address in {address for address, _ in self._in_flight}:
                self._drop(address)
            self._in_flight.clear()
            for block, _ in self._connections.values():
                block.__exit__(None, None, None)
            self._connections.clear()

    def post(self, post: Post) -> None:
        """Send a request, after waiting for answers while too many are in flight."""
        while len(self._in_flight) >= WINDOW or self._must_wait(post):
            self._receive()
        self._send(post)

    def flush(self) -> None:
        """Wait until all requests are confirmed."""
        while self._in_flight:
            self._receive()

    def _must_wait(self, post: Post) -> bool:
        return post.queue is not None and any(
            other.queue == post.queue for other in self._in_flight.values()
        )

    # ------------------------------------------------------------------------------ one request

    def _send(self, post: Post) -> None:
        while True:
            address: str | None = None
            is_leaving = False
            post.attempts += 1
            try:
                avoid = (post.sent_to.broker_name,) if post.sent_to else ()
                queue = post.queue or post.doubted or self._turn(post.topic, avoid)
                queue = post.sent_to = self._place(post, queue)
                target = self.routes.address(queue)
                command = self._command(post, queue, self._mark(post, queue, target))
                # Until here other connections were used, whose failures say nothing about this one.
                address = target
                connection = self._connection(address)
                is_leaving = True
                number = connection.send(command, self._seconds)
            except PenstockError as error:
                if address is not None and is_leaving and not is_unsent(error):
                    self._doubt(post, address)
                self._failed(post, error)
                if address is not None:
                    self._lose(address, error)
                continue
            self._in_flight[address, number] = post
            return

    def _receive(self) -> None:
        """Read one answer, from the broker with the oldest request in flight."""
        address, _ = next(iter(self._in_flight))
        _, connection = self._connections[address]
        try:
            answer = connection.receive(time.monotonic() + self._seconds)
        except PenstockError as error:
            self._lose(address, error)
            return
        post = self._in_flight.pop((address, answer.request_id), None)
        if post is None:
            return
        assert post.sent_to is not None, "it is in flight"
        stored = receipt(answer, "", post.sent_to)
        if stored is not None:
            self._stored(post, stored.queue, stored.queue_offset)
            return
        no = refusal(answer, RequestCode.SEND_MESSAGE_V2, address, post.what)
        if answer.code not in RETRIED_CODES:
            raise no
        if answer.code == ResponseCode.GO_AWAY:
            self._lose(address, no)
        self._failed(post, no)
        self._send(post)

    def _failed(self, post: Post, error: PenstockError) -> None:
        """Raise if that was the last attempt, else wait before the next one."""
        may_pass = isinstance(error, RemotingError) or error.code in RETRIED_CODES
        if isinstance(error, TopicNotFound) and not self.routes.has_seen(post.topic):
            may_pass = False  # Waiting does not create a topic.
        now = time.monotonic()
        if post.failing_since is None:
            post.failing_since = now
        # As for a producer, a cluster that restarts is waited for: no broker has the message.
        is_waiting = is_unsent(error) and now - post.failing_since < self._seconds
        if not is_waiting:
            post.failures += 1
        if not may_pass or post.failures > self._retries:
            text = (
                f"{post.what} not confirmed {tried(post.attempts, now - post.failing_since)}: "
                f"{error.what}"
            )
            raise type(error)(text, expected=error.expected, hint=error.hint)
        log.warning("sending again attempt=%d what=%s error=%s", post.attempts, post.what, error)
        if is_waiting:
            time.sleep(PAUSES.delay(post.attempts, random.random()))
        else:
            time.sleep(min(FIRST_PAUSE * 2 ** (post.failures - 1), MAX_PAUSE))
        self.routes.forget(post.topic)

    def _lose(self, address: str, error: PenstockError) -> None:
        """Send everything again that was in flight on a failed connection."""
        self._drop(address)
        lost = [key for key in self._in_flight if key[0] == address]
        posts = [self._in_flight.pop(key) for key in lost]
        # They have left, also if the error is about a later request that has not.
        for post in posts:
            self._doubt(post, address)
        self._are_ours.pop(address, None)
        for post in posts:
            self._failed(post, error)
            self._send(post)

    # ------------------------------------------------------------------------------ repeats

    def _doubt(self, post: Post, address: str) -> None:
        """Note that the broker may have a request that it did not answer."""
        if post.unique_id is not None and self._are_ours.get(address):
            post.doubted = post.sent_to
            # It was sent as it is, so that the broker need not look for each of its messages.
            post.mark = REPEAT_MARK if post.mark != EACH_REPEAT_MARK else post.mark

    def _mark(self, post: Post, queue: MessageQueue, address: str) -> str:
        if post.unique_id is None or not self._is_ours(queue, address):
            return ""
        return post.mark

    def _is_ours(self, queue: MessageQueue, address: str) -> bool:
        """Whether a broker is a Penstock broker; asked once, with a request that any broker has."""
        known = self._are_ours.get(address)
        if known is None:
            named = queue._replace(topic=self._access.long_name(queue.topic))
            answer = self._pool.exchange(address, requests.max_offset(named).command())
            # No other broker is written in Python.
            known = self._are_ours[address] = answer.language is Language.PYTHON
        return known

    def _place(self, post: Post, queue: MessageQueue) -> MessageQueue:
        """The queue to send to: where an earlier task may have sent the request, if that is known.

        It is sent there again, as a repeat, and not taken for confirmed: the rows of the request
        that has the id may be other ones, and only the broker compares all of it.
        """
        if post.mark != REPEAT_MARK or post.is_looked_for or post.queue or post.doubted:
            return queue
        for name in sorted({other.broker_name for other in self.routes.queues(post.topic)}):
            if name == queue.broker_name:
                continue  # It looks for the request when it gets it.
            queue_id = self._queue_with(post, queue._replace(broker_name=name))
            if queue_id is not None:
                post.doubted = MessageQueue(post.topic, name, queue_id)
                return post.doubted
        post.is_looked_for = True
        return queue

    def _queue_with(self, post: Post, queue: MessageQueue) -> int | None:
        """The queue in which a broker has a message with the id of a request; None: in none."""
        assert post.unique_id is not None, "it has a mark"
        address = self.routes.address(queue)
        if not self._is_ours(queue, address):
            return None  # It would not recognise the request.
        topic = self._access.long_name(post.topic)
        header = QueryMessage(topic, post.unique_id, 1, 0, _END_OF_TIME, unique_key_query=True)
        command = Command(RequestCode.QUERY_MESSAGE, ext=encode_header(header))
        answer = self._pool.exchange(address, command)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise _not_looked_up(refusal(answer, RequestCode.QUERY_MESSAGE, address, post.what))
        for message in messages_from_pull(requests.body_bytes(answer), queue.broker_name):
            if message.properties.get(Property.UNIQUE_KEY) == post.unique_id:
                return message.queue.queue_id
        return None

    # ------------------------------------------------------------------------------ its parts

    def _turn(self, topic: str, avoid: tuple[str, ...]) -> MessageQueue:
        turns = self._turns.get(topic)
        if turns is None:
            turns = self._turns[topic] = RoundRobin(self._first_turn)
        return turns.next(self.routes.queues(topic), avoid)

    def _connection(self, address: str) -> Connection:
        known = self._connections.get(address)
        if known is None:
            block = self._pool.connection(address)
            known = self._connections[address] = (block, block.__enter__())
        return known[1]

    def _drop(self, address: str) -> None:
        """Close a connection, with any answers still to come."""
        known = self._connections.pop(address, None)
        if known is not None:
            error = ConnectionLost(f"the connection to {address} is closed")
            known[0].__exit__(type(error), error, None)

    def _command(self, post: Post, queue: MessageQueue, mark: str) -> Command:
        header = SendMessage(
            self._group,
            self._access.long_name(post.topic),
            DEFAULT_TOPIC,
            DEFAULT_QUEUES,
            queue.queue_id,
            post.sys_flag,
            time.time_ns() // 1_000_000,
            post.flag,
            post.properties + mark,
            post.reconsume_times,
            max_reconsume_times=post.max_reconsume_times,
            batch=post.is_batch,
            broker_name=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if post.is_batch else RequestCode.SEND_MESSAGE_V2
        ext = encode_send_v2(header)
        if post.is_batch:
            ext[SHORT_RECEIPT] = "true"
        return Command(code, ext=ext, body=post.body)


def _not_looked_up(no: RequestRefused) -> RequestRefused:
    """The error for a broker that does not answer whether it has a request."""
    return type(no)(
        no.what,
        code=no.code,
        expected="an answer whether an earlier task has sent these rows already",
        hint="let the user read the topic, too (SUB), give the rows an idColumn, or set option "
        "exactlyOnce to false",
    )
