"""Reports as plain objects: the JSON of the command line and of the console's API.

Both show the same fields under the same names. What is not known is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from penstock.admin.reports import (
    BrokerAddress,
    Client,
    DeadLetterQueue,
    DeadLetterRow,
    Move,
    QueueLag,
    QueueRange,
    UserRight,
    UserRow,
    WaitingTimer,
)
from penstock.model import MessageQueue
from penstock.model.message_json import MessageJson, message_json
from penstock.protocol.versions import readable_version

MASTER = "master"
NOT_RECORDED = "not recorded"
REASON_SHOWN = 80


class BrokerJson(TypedDict):
    """A broker of a cluster, with what it reports about itself."""

    cluster: str
    broker: str
    broker_id: int
    role: str
    address: str
    version: str | None
    in_per_second: float | None
    out_per_second: float | None
    in_today: int | None
    out_today: int | None
    disk_used: float | None
    started_ms: int | None
    problem: str | None


def broker_row(
    broker: BrokerAddress, info: Mapping[str, str], problem: str | None = None
) -> BrokerJson:
    """A broker; ``info`` is empty where it did not answer, and ``problem`` says why."""
    return {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "broker_id": broker.broker_id,
        "role": MASTER if broker.broker_id == 0 else f"slave {broker.broker_id}",
        "address": broker.address,
        "version": _version(info.get("brokerVersionDesc")),
        "in_per_second": _rate(info.get("putTps")),
        # RocketMQ has written the word both ways.
        "out_per_second": _rate(info.get("getTransferredTps") or info.get("getTransferedTps")),
        "in_today": _since_morning(info, "msgPutTotal"),
        "out_today": _since_morning(info, "msgGetTotal"),
        "disk_used": _number(info.get("commitLogDiskRatio")),
        "started_ms": _whole(info.get("bootTimestamp")),
        "problem": problem,
    }


class TopicSummaryJson(TypedDict):
    """A topic in one line."""

    topic: str
    brokers: list[str] | None
    queues: int | None
    messages: int | None
    last_ms: int | None


def topic_summary(topic: str, queues: Sequence[QueueRange] | None) -> TopicSummaryJson:
    """A topic; None for queues that are not known."""
    if queues is None:
        return {"topic": topic, "brokers": None, "queues": None, "messages": None, "last_ms": None}
    return {
        "topic": topic,
        "brokers": sorted({queue.broker_name for queue in queues}),
        "queues": len(queues),
        "messages": sum(queue.count for queue in queues),
        "last_ms": max((queue.last_timestamp for queue in queues), default=0) or None,
    }


class TopicQueueJson(TypedDict):
    """A queue of a topic."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    last_ms: int | None


def topic_queue(queue: QueueRange) -> TopicQueueJson:
    """What one queue holds."""
    return {
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "messages": queue.count,
        "last_ms": queue.last_timestamp or None,
    }


class LagQueueJson(TypedDict):
    """How far a group is behind in one queue, and who holds it."""

    topic: str
    broker: str
    queue_id: int
    committed: int
    latest: int
    lag: int
    in_flight: int
    last_ms: int | None
    members: list[str] | None


def lag_queue(queue: QueueLag, holders: Mapping[MessageQueue, list[str]]) -> LagQueueJson:
    """The lag of one queue."""
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "committed": queue.committed,
        "latest": queue.latest,
        "lag": queue.lag,
        "in_flight": queue.in_flight,
        "last_ms": queue.last_timestamp or None,
        "members": holders.get(MessageQueue(queue.topic, queue.broker_name, queue.queue_id)),
    }


class ClientJson(TypedDict):
    """A connected client."""

    client_id: str
    address: str
    language: str
    version: int
    release: str | None
    brokers: list[str]


def client_row(client: Client) -> ClientJson:
    """A client; ``release`` is its version as people write it."""
    return {
        "client_id": client.client_id,
        "address": client.address,
        "language": client.language,
        "version": client.version,
        "release": readable_version(client.version),
        "brokers": list(client.broker_names),
    }


class MoveJson(TypedDict):
    """A queue in the plan of a reset."""

    topic: str
    broker: str
    queue_id: int
    committed: int | None
    target: int
    change: int | None
    lag: int


def move_row(move: Move) -> MoveJson:
    """Where a queue stands and where it would go."""
    return {
        "topic": move.queue.topic,
        "broker": move.queue.broker_name,
        "queue_id": move.queue.queue_id,
        "committed": move.committed,
        "target": move.target,
        "change": move.change,
        "lag": move.lag,
    }


class DeadLetterGroupJson(TypedDict):
    """The dead letters of a group in one line."""

    group: str
    pending: int | None
    stored: int | None
    last_ms: int | None


def dead_letter_group(group: str, queues: Sequence[DeadLetterQueue] | None) -> DeadLetterGroupJson:
    """How many letters a group has; None for queues that are not known."""
    if queues is None:
        return {"group": group, "pending": None, "stored": None, "last_ms": None}
    return {
        "group": group,
        "pending": sum(queue.pending for queue in queues),
        "stored": sum(queue.count for queue in queues),
        "last_ms": max((queue.last_timestamp for queue in queues), default=0) or None,
    }


class DeadLetterJson(MessageJson):
    """A dead letter: the message, where it came from and why it died."""

    origin_topic: str | None
    origin_msg_id: str | None
    attempts: int
    reason_type: str | None
    reason: str | None
    reason_text: str
    host: str | None
    redrives: int
    state: str


def dead_letter(
    letter: DeadLetterRow,
    redriven: Iterable[str],
    settled: Mapping[MessageQueue, int],
    *,
    hide_body: bool = False,
) -> DeadLetterJson:
    """A letter; ``redriven`` has offset ids, ``settled`` the settled offset by queue."""
    message = letter.message
    state = "pending"
    if message.offset_msg_id in redriven:
        state = "redriven"
    elif message.queue_offset < settled.get(message.queue, 0):
        state = "settled"
    return {
        **message_json(message, hide_body=hide_body),
        "origin_topic": letter.origin_topic,
        "origin_msg_id": letter.origin_msg_id,
        "attempts": letter.attempts,
        "reason_type": letter.reason_type,
        "reason": letter.reason,
        "reason_text": reason_text(letter, REASON_SHOWN),
        "host": letter.host,
        "redrives": letter.redrives,
        "state": state,
    }


def reason_text(letter: DeadLetterRow, limit: int | None = None) -> str:
    """The reason on one line."""
    said = ": ".join(filter(None, (letter.reason_type, letter.reason))) or NOT_RECORDED
    return said if limit is None or len(said) <= limit else f"{said[:limit]}..."


class TimerJson(TypedDict):
    """A message that waits for its time."""

    due_ms: int
    topic: str
    broker: str
    queue_id: int
    msg_id: str
    keys: list[str]
    recall_handle: str


def timer_row(one: WaitingTimer) -> TimerJson:
    """A timer message."""
    return {
        "due_ms": one.due_ms,
        "topic": one.topic,
        "broker": one.broker_name,
        "queue_id": one.queue_id,
        "msg_id": one.msg_id,
        "keys": list(one.keys),
        "recall_handle": one.recall_handle,
    }


class UserJson(TypedDict):
    """A user of a broker with authentication."""

    name: str
    type: str
    status: str
    rights: int
    secrets: None


def user_row(user: UserRow, rights: Iterable[UserRight]) -> UserJson:
    """A user; a broker never tells secrets."""
    return {
        "name": user.name,
        "type": "Super" if user.is_super else "Normal",
        "status": "enable" if user.is_enabled else "disable",
        "rights": sum(right.user == user.name for right in rights),
        "secrets": None,
    }


class RightJson(TypedDict):
    """What one entry allows or denies a user."""

    user: str
    resource: str
    actions: list[str]
    decision: str
    sources: list[str]
    policy: str


def right_row(right: UserRight) -> RightJson:
    """A right."""
    return {
        "user": right.user,
        "resource": right.resource,
        "actions": list(right.actions),
        "decision": right.decision,
        "sources": list(right.sources),
        "policy": right.policy,
    }


def _version(text: str | None) -> str | None:
    """``V5_3_3`` as people write it."""
    return None if text is None else text.removeprefix("V").replace("_", ".")


def _rate(rates: str | None) -> float | None:
    """The first of the rates over ten seconds, a minute and ten minutes."""
    return _number(rates.split()[0]) if rates and rates.split() else None


def _since_morning(info: Mapping[str, str], total: str) -> int | None:
    now, morning = _whole(info.get(f"{total}TodayNow")), _whole(info.get(f"{total}TodayMorning"))
    return None if now is None or morning is None else now - morning


def _number(text: str | None) -> float | None:
    """A number that a broker reported as text; None if it is not a number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or number != number // 1 else int(number)
