"""Pop consumption in the words of a test: raw requests, no rules of a client."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tests.support.asking import ext, records
from tests.support.wire import Wire, body_of

from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.pop import AckMessage, ChangeInvisibleTime, PopMessage
from penstock.protocol.headers.receipts import (
    ReceiptHandle,
    parse_message_offsets,
    parse_start_offsets,
)

GROUP = "g"
TOPIC = "T"


class Got(NamedTuple):
    """One popped message with its receipt handle."""

    body: bytes
    topic: str
    """The topic of the record: for a retry, the retry topic."""
    queue_id: int
    offset: int
    times: int
    handle: str
    properties: dict[str, str]


def start_pop(
    wire: Wire,
    *,
    group: str = GROUP,
    topic: str = TOPIC,
    queue_id: int = -1,
    count: int = 32,
    invisible: float = 60,
    wait: float = 0,
    first: bool = True,
    tags: str = "*",
    sql: str | None = None,
    order: bool = False,
    attempt: str | None = None,
    born: int = 0,
) -> asyncio.Future[Command]:
    """Send a pop now; the future gets its answer."""
    header = PopMessage(
        group,
        topic,
        queue_id,
        count,
        round(invisible * 1000),
        round(wait * 1000),
        born,
        0 if first else 1,
        "SQL92" if sql else "TAG",
        sql or tags,
        order,
        attempt,
    )
    return wire.start(RequestCode.POP_MESSAGE, header)


def messages(answer: Command) -> list[Got]:
    """The messages of an answer, with the handles that Java's client would make."""
    fields = ext(answer)
    starts = parse_start_offsets(fields.get("startOffsetInfo"))
    offsets = {
        q: list(found) for q, found in parse_message_offsets(fields.get("msgOffsetInfo")).items()
    }
    order = [(queue, offset) for queue, found in offsets.items() for offset in found]
    got: list[Got] = []
    if not body_of(answer):
        return got
    for record, (queue, offset) in zip(records(answer), order, strict=True):
        assert (record.queue_id, record.queue_offset) == (queue.queue_id, offset)
        handle = ReceiptHandle(
            starts[queue],
            int(fields["popTime"]),
            int(fields["invisibleTime"]),
            int(fields["reviveQid"]),
            queue.flag,
            "broker-a",
            queue.queue_id,
            offset,
        )
        got.append(
            Got(
                record.body,
                record.topic,
                record.queue_id,
                offset,
                record.reconsume_times,
                str(handle),
                parse_properties(record.properties),
            )
        )
    return got


async def pop(wire: Wire, **more: object) -> list[Got]:
    """Pop now; the messages."""
    answer = await start_pop(wire, **more)  # type: ignore[arg-type]  # keywords of a test
    assert answer.code in (0, 210), answer.remark
    return messages(answer)


async def ack(wire: Wire, got: Got, *, group: str = GROUP, offset: int | None = None) -> Command:
    """Acknowledge a message."""
    header = AckMessage(
        group, got.topic, got.queue_id, got.handle, got.offset if offset is None else offset
    )
    return await wire.request(RequestCode.ACK_MESSAGE, header)


async def change(
    wire: Wire, got: Got, seconds: float, *, group: str = GROUP, suspend: bool | None = None
) -> Command:
    """Let a message become visible after some seconds."""
    header = ChangeInvisibleTime(
        group, got.topic, got.queue_id, got.handle, got.offset, round(seconds * 1000), suspend
    )
    return await wire.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def changed(got: Got, answer: Command) -> Got:
    """The message with the handle that the answer to a change makes."""
    fields = ext(answer)
    old = ReceiptHandle.parse(got.handle)
    handle = old._replace(
        start_offset=got.offset,
        pop_time=int(fields["popTime"]),
        invisible_time=int(fields["invisibleTime"]),
        revive_queue_id=int(fields["reviveQid"]),
    )
    return got._replace(handle=str(handle))


def bodies(got: list[Got]) -> list[bytes]:
    """The bodies of messages, sorted."""
    return sorted(one.body for one in got)
