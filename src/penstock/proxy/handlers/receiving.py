"""Receiving: ReceiveMessage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import PenstockError, SubscriptionIllegal
from penstock.model.subscription import EVERYTHING, SQL92, TAG
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.filters.tags import parse_tags
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.pop import PopMessage, PopMessageResult
from penstock.proxy.clients import REQUEST_SECONDS, Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.facts import GroupFacts, TopicFacts
from penstock.proxy.handlers.finishing import acknowledge, bury
from penstock.proxy.handlers.routes import ANY_QUEUE, find_topic, readable_brokers
from penstock.proxy.names import group_name
from penstock.proxy.popped import Popped, read_popped
from penstock.proxy.quick_deliveries import delivery_response
from penstock.proxy.renewals import FIRST_SECONDS, Delivery, make_visible
from penstock.proxy.statuses import OK, Refused, make_status
from penstock.proxy.times import timestamp, to_ms
from penstock.proxy.wire.codes import Code, FilterType
from penstock.proxy.wire.messages import (
    FilterExpression,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
)

log = logging.getLogger(__name__)

MAX_BATCH: Final = 32
MAX_POLL_SECONDS: Final = 20.0
MIN_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
_EARLY_SECONDS: Final = 0.3
"""A poll ends so much before the deadline of the call."""
_FROM_LAST: Final = 1
EMPTY: Final = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
)
"""What a broker answers that has no messages."""


@dataclass(slots=True)
class Received:
    """The answer to a poll, and what to do if it does not reach the client."""

    responses: list[bytes]
    """Each is a ReceiveMessageResponse."""
    delivery: Delivery | None = None
    popped: Sequence[Popped] = ()
    is_renewed: bool = False

    async def give_back(self, parts: Parts, written: int) -> None:
        """Make visible again what follows the first ``written`` responses."""
        if self.delivery is None:
            return
        # The first response is the status.
        lost = self.popped[max(0, written - 1) :]
        for one in lost:
            if self.is_renewed:
                await parts.renewals.take(self.delivery.group, self.delivery.topic, one.receipt)
        await make_visible(self.delivery, [one.receipt for one in lost])


@dataclass(slots=True)
class Poll:
    """One poll under way."""

    parts: Parts
    client: Client
    group: GroupFacts
    topic: str
    broker_name: str
    batch: int
    invisible_ms: int
    expression_type: str
    expression: str
    attempt_id: str | None
    ends: float
    is_renewed: bool
    tags: frozenset[str] = field(default_factory=frozenset)

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.client, self.group.name, self.topic)


async def receive_message(
    parts: Parts, client: Client, request: ReceiveMessageRequest, deadline: float | None
) -> Received:
    """Pop messages for a group; held until there are some, or the time is up."""
    topic = await find_topic(parts, request.message_queue.topic.name)
    group = await parts.backend.group(group_name(request.group.name))
    poll = read_poll(parts, client, request, topic, group, deadline)
    return await finish_poll(poll, await _pop(poll))


async def hold_poll(poll: Poll) -> Received:
    """Go on with a poll that has found nothing."""
    if poll.ends <= poll.parts.clock.monotonic():
        return _empty(poll)
    return await finish_poll(poll, await _pop(poll))


async def finish_poll(poll: Poll, popped: list[Popped] | None) -> Received:
    """Deliver what was popped, or pop again if that is nothing that a client gets."""
    while popped is not None:
        kept = await _sift(poll, popped)
        if kept:
            return deliver(poll, kept)
        if poll.ends <= poll.parts.clock.monotonic():
            break
        popped = await _pop(poll)
    return _empty(poll)


def deliver(poll: Poll, kept: list[Popped]) -> Received:
    """The answer with these messages."""
    now_ms = poll.parts.clock.time_ms()
    if poll.is_renewed:
        for one in kept:
            poll.parts.renewals.add(poll.delivery, one.receipt, one.message.reconsume_times)
    responses = [_STATUS_OK]
    responses += [delivery_response(one.message, poll.topic, str(one.receipt)) for one in kept]
    responses.append(_at(now_ms))
    return Received(responses, poll.delivery, kept, poll.is_renewed)


def status_response(status: Status) -> bytes:
    """The response that tells what became of a poll."""
    return ReceiveMessageResponse(status=status).SerializeToString()


def _at(now_ms: int) -> bytes:
    return ReceiveMessageResponse(delivery_timestamp=timestamp(now_ms)).SerializeToString()


_STATUS_OK: Final = status_response(OK)


def read_poll(
    parts: Parts,
    client: Client,
    request: ReceiveMessageRequest,
    topic: TopicFacts,
    group: GroupFacts,
    deadline: float | None,
) -> Poll:
    """The facts of a request, checked."""
    invisible_ms = round(FIRST_SECONDS * 1000)
    if not request.auto_renew:
        invisible_ms = to_ms(request.invisible_duration)
        if not MIN_INVISIBLE_MS <= invisible_ms <= MAX_INVISIBLE_MS:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible for {invisible_ms} ms",
                expected=f"{MIN_INVISIBLE_MS} to {MAX_INVISIBLE_MS}",
            )
    kind, expression, tags = read_filter(request.filter_expression)
    readable = readable_brokers(topic)
    names = [at.broker_name for at in readable]
    asked = request.message_queue.broker.name
    broker_name = asked if asked in names else names[parts.chance.randrange(len(names))]
    now = parts.clock.monotonic()
    wait = MAX_POLL_SECONDS
    if request.HasField("long_polling_timeout"):
        wait = min(wait, max(0.0, to_ms(request.long_polling_timeout) / 1000))
    if deadline is not None:
        wait = min(wait, max(0.0, deadline - now - _EARLY_SECONDS))
    return Poll(
        parts,
        client,
        group,
        topic.name,
        broker_name,
        min(max(1, request.batch_size), MAX_BATCH),
        invisible_ms,
        kind,
        expression,
        request.attempt_id if request.HasField("attempt_id") else None,
        now + wait,
        request.auto_renew,
        tags,
    )


def read_filter(wanted: FilterExpression) -> tuple[str, str, frozenset[str]]:
    """Kind and text of a filter, and the tags that it takes; no tags mean all."""
    text = wanted.expression.strip()
    if wanted.type == FilterType.SQL:
        if not text:
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        return SQL92, text, frozenset()
    try:
        tags, _ = parse_tags(text or EVERYTHING)
    except SubscriptionIllegal as error:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
    return TAG, text or EVERYTHING, frozenset(tags)


def pop_command(poll: Poll, wait: float) -> Command:
    """The request for messages, which a broker answers after so many seconds at the latest."""
    header = PopMessage(
        poll.group.name,
        poll.topic,
        ANY_QUEUE,
        poll.batch,
        poll.invisible_ms,
        round(wait * 1000),
        0,
        _FROM_LAST,
        poll.expression_type,
        poll.expression,
        poll.group.is_fifo,
        poll.attempt_id,
    )
    ext = {**encode_header(header), "bname": poll.broker_name}
    return Command(RequestCode.POP_MESSAGE, ext=ext)


async def _pop(poll: Poll) -> list[Popped] | None:
    """What a pop takes; None if the time is up or the client has left."""
    client = poll.client
    left = max(0.0, poll.ends - poll.parts.clock.monotonic())
    command = pop_command(poll, left)
    work = asyncio.ensure_future(client.request(poll.broker_name, command, left + REQUEST_SECONDS))
    try:
        await asyncio.wait((work, client.gone), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        _give_back_late(poll, work)
        raise
    if not work.done():
        _give_back_late(poll, work)
        return None
    answer = work.result()
    if answer.code in EMPTY:
        return None
    if answer.code == ResponseCode.POLLING_FULL:
        raise Refused(Code.TOO_MANY_REQUESTS, f"too many polls of group {poll.group.name!r} wait")
    if answer.code != ResponseCode.SUCCESS:
        raise client.refusal(answer)
    return popped_of(poll, answer)


def popped_of(poll: Poll, answer: Command) -> list[Popped]:
    """The messages of an answer to a pop."""
    result = decode_header(PopMessageResult, answer.ext)
    return read_popped(answer, result, poll.group.name, poll.topic, poll.broker_name)


def _give_back_late(poll: Poll, work: asyncio.Future[Command]) -> None:
    """The client is gone; what its pop takes until the broker notices comes again soon."""

    async def finish() -> None:
        try:
            answer = await work
        except PenstockError:
            return
        if answer.code == ResponseCode.SUCCESS:
            await make_visible(poll.delivery, [one.receipt for one in popped_of(poll, answer)])

    poll.parts.in_background(finish())


async def _sift(poll: Poll, popped: Sequence[Popped]) -> list[Popped]:
    """What is delivered: not what has another tag, nor what was delivered too often."""
    kept: list[Popped] = []
    for index, one in enumerate(popped):
        try:
            if is_delivered(poll, one):
                kept.append(one)
            elif _is_wanted(poll, one):
                await bury(poll.delivery, one.receipt, one.message.msg_id)
            else:
                await acknowledge(poll.delivery, one.receipt)
        except PenstockError as error:
            # It comes again when its time is up, and takes nothing from the others.
            log.warning("message not ended receipt=%s error=%s", one.receipt, error)
        except asyncio.CancelledError:
            left = [other.receipt for other in (*kept, *popped[index:])]
            poll.parts.in_background(make_visible(poll.delivery, left))
            raise
    return kept


def is_delivered(poll: Poll, one: Popped) -> bool:
    """Whether a client gets a message."""
    return _is_wanted(poll, one) and one.message.reconsume_times < poll.group.max_attempts


def _is_wanted(poll: Poll, one: Popped) -> bool:
    # Brokers compare hashes of tags, which may be equal by chance.
    return not poll.tags or one.message.tag in poll.tags


def _empty(poll: Poll) -> Received:
    status = make_status(Code.MESSAGE_NOT_FOUND, "no new message")
    return Received([status_response(status), _at(poll.parts.clock.time_ms())])
