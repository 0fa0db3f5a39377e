"""Polls that find messages at once, or begin to wait.

A fast path: a poll is a request to the broker and the answer to it, in two callbacks, as in
`quick_calls`. A consumer that works off a backlog has one poll under way and its acknowledgements
beside it; on the plain path, a poll lets go of the loop six times, and each time the
acknowledgements go first. The rules are those of the plain path, whose parts are used. The broker
does not hold the request: if it has nothing, the plain path goes on with a request that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from penstock.errors import PenstockError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.handlers.receiving import (
    EMPTY,
    Poll,
    Received,
    deliver,
    is_delivered,
    pop_command,
    popped_of,
    read_poll,
    status_response,
)
from penstock.proxy.names import group_name, topic_name
from penstock.proxy.popped import Popped
from penstock.proxy.quick_calls import ask_broker, unsigned_client
from penstock.proxy.statuses import status_of
from penstock.proxy.wire.messages import ReceiveMessageRequest


class Found(NamedTuple):
    """What became of a poll."""

    poll: Poll
    received: Received | None
    """The whole answer; None: the plain path goes on."""
    popped: list[Popped] | None = None
    """What it goes on with; None: nothing was there."""


class QuickPolls:
    """The fast path of one endpoint."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def start(
        self, client_id: str, data: bytes, timeout: float | None, done: Callable[[Found], None]
    ) -> bool:
        """Serve a request of a client, which gives up after ``timeout``; False if it is left."""
        parts = self._parts
        client = unsigned_client(parts, client_id)
        if client is None:
            return False
        try:
            request = ReceiveMessageRequest.FromString(data)
            topic = parts.backend.known_topic(topic_name(request.message_queue.topic.name))
            group = parts.backend.known_group(group_name(request.group.name))
            if topic is None or not topic.brokers or group is None or group.is_fifo:
                return False
            deadline = None if timeout is None else parts.clock.monotonic() + timeout
            poll = read_poll(parts, client, request, topic, group, deadline)
        except (DecodeError, PenstockError):
            return False
        command = pop_command(poll, 0)
        return ask_broker(
            client, poll.broker_name, command, lambda answer: done(_found(poll, answer))
        )


def _found(poll: Poll, answer: Command | PenstockError) -> Found:
    try:
        if isinstance(answer, PenstockError):
            if poll.client.is_gone:
                # Its connections are closed; the plain path tells it that nothing was there.
                return Found(poll, None)
            raise answer
        if answer.code in EMPTY:
            return Found(poll, None)
        if answer.code != ResponseCode.SUCCESS:
            raise poll.client.refusal(answer)
        popped = popped_of(poll, answer)
        if not popped or not all(is_delivered(poll, one) for one in popped):
            return Found(poll, None, popped)
        return Found(poll, deliver(poll, popped))
    except Exception as error:
        return Found(poll, Received([status_response(status_of(error))]))
