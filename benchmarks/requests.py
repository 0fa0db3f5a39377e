"""Encoded requests for a broker, as RocketMQ's Java client sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.protocol.headers.send import SendMessage, encode_send_v2

BORN: Final = 1_700_000_000_000
MESSAGES_PER_PULL: Final = 32


def send(topic: str, queue_id: int, body_bytes: int, number: int) -> Command:
    """A message with a unique id and a tag."""
    properties = f"UNIQ_KEY\x017F0000013A2218B4AAC2{number:012X}\x02WAIT\x01true\x02TAGS\x01t\x02"
    header = SendMessage(
        *("bench-producers", topic, "TBW102", 8, queue_id, 0, BORN, 0),
        properties=properties,
        broker_name="broker-a",
    )
    ext = encode_send_v2(header)
    return Command(RequestCode.SEND_MESSAGE_V2, number + 1, ext=ext, body=b"x" * body_bytes)


def sends(topic: str, queues: Sequence[int], body_bytes: int, count: int) -> list[Command]:
    """Messages to several queues in turn."""
    return [send(topic, queues[n % len(queues)], body_bytes, n) for n in range(count)]


def pull(
    topic: str, queue_id: int, queue_offset: int, *, hold_ms: int = 0, group: str = "bench-readers"
) -> Command:
    """A pull of up to 32 messages; ``hold_ms`` is the wait if there are none."""
    header = PullMessage(
        *(group, topic, queue_id, queue_offset, MESSAGES_PER_PULL),
        sys_flag=PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        sub_version=BORN,
        subscription="*",
        expression_type="TAG",
    )
    return Command(RequestCode.PULL_MESSAGE, queue_offset + 1, ext=encode_header(header))
